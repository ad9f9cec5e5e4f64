"""PostgreSQL: the user `mqtt` owns the database `mqtt`, and needs no password unless `access` says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import Server, folder, quietly, running


class Postgresql:
    """A server that runs."""

    def __init__(self, port: int, socket: str, server: Server) -> None:
        self.port, self.server, self._socket = port, server, socket
        self.user = "mqtt"
        """Of psql()."""

    def psql(self, sql: str, database: str = "mqtt") -> str:
        """Returns what psql prints of statements: a line for each row, with | between columns, `null` for NULL."""
        command = [needed("psql"), "-h", self._socket, "-p", str(self.port), "-U", self.user, "-v", "ON_ERROR_STOP=1"]
        return quietly([*command, "-X", "-q", "-A", "-t", "-P", "null=null", database], sql)


@contextmanager
def postgresql(sql: str = "", *options: str, access: str = "host all all 127.0.0.1/32 trust") -> Iterator[Postgresql]:
    """sql: executed once. options: of the server, NAME=VALUE. access: lines of pg_hba.conf for TCP."""
    with folder() as where:
        port = free_port()
        quietly([needed("initdb"), "-D", str(where / "data"), "-U", "mqtt", "-A", "trust", "--no-sync"])
        (where / "data" / "pg_hba.conf").write_text(f"local all all trust\n{access}\n")
        command = [needed("postgres"), "-D", str(where / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(where), "-F"]
        for option in options:
            command += ["-c", option]
        probe = [needed("psql"), "-h", str(where), "-p", str(port), "-U", "mqtt", "-c", "", "postgres"]
        with running(command, lambda: _succeeds(probe), where) as server:
            made = Postgresql(port, str(where), server)
            made.psql("CREATE DATABASE mqtt", "postgres")
            made.psql(sql)
            yield made


def _succeeds(command: list[str]) -> bool:
    try:
        quietly(command)
    except AssertionError:
        return False
    return True
