"""MariaDB, which speaks MySQL's protocol: the user `mqtt` with the password `dbsecret` has all rights on the database `mqtt`."""

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import Server, answers, folder, quietly, running

ACCOUNT = (
    "CREATE DATABASE mqtt CHARACTER SET utf8mb4; CREATE USER mqtt@'%' IDENTIFIED BY 'dbsecret';"
    "GRANT ALL ON mqtt.* TO mqtt@'%'; USE mqtt;"
)


class Mariadb:
    """A server that runs."""

    def __init__(self, port: int, socket: str, server: Server) -> None:
        self.port, self.server, self._socket = port, server, socket

    def client(self, sql: str, *options: str) -> str:
        """Returns what the program `mariadb` prints of statements of root: a line for each row, with tabs between columns."""
        command = [needed("mariadb"), "--no-defaults", f"--socket={self._socket}", "-u", "root", "--batch", "--skip-column-names"]
        return quietly([*command, "--default-character-set=utf8mb4", *options], sql)


@contextmanager
def mariadb(sql: str = "", *options: str) -> Iterator[Mariadb]:
    """sql: executed once, in the database mqtt. options: of the server."""
    with folder() as where:
        port = free_port()
        user = "nobody" if os.geteuid() == 0 else getpass.getuser()
        own = ["--no-defaults", f"--datadir={where / 'data'}", f"--tmpdir={where}"]  # two that are installed share names in /tmp
        once = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--user={user}"]
        quietly([needed("mariadb-install-db"), *own, *once])
        command = [
            needed("mariadbd"), *own, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={where / 's'}",
            f"--pid-file={where / 'pid'}", "--innodb-flush-log-at-trx-commit=0", *options,
        ]  # fmt: skip
        with running(command, lambda: answers(port), where) as server:
            made = Mariadb(port, str(where / "s"), server)
            made.client(ACCOUNT + sql)
            yield made
