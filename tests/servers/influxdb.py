"""InfluxDB 1 from Debian, which also has a listener for OpenTSDB's protocol."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import account, answers, folder
from tests.servers.service import Service, service

__all__ = ["PASSWORD", "InfluxServer", "influx", "influxdb_server"]

PASSWORD = "dbsecret"


class InfluxServer:
    """opentsdb_port: of the listener for OpenTSDB, whose points are in the database `opentsdb`."""

    def __init__(self, service: Service, opentsdb_port: int) -> None:
        self.service, self.port, self.opentsdb_port = service, service.port, opentsdb_port


@contextmanager
def influxdb_server(*, with_login: bool = False) -> Iterator[InfluxServer]:
    """A server with the database `mqtt`; with_login: and the user `writer`, who may write to it."""
    with folder() as where:
        port, rpc_port, opentsdb_port = free_port(), free_port(), free_port()
        config = where / "influx.conf"
        config.write_text(f"""reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
dir = "{where}/meta"
[data]
dir = "{where}/data"
wal-dir = "{where}/wal"
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
auth-enabled = {str(with_login).lower()}
[[opentsdb]]
enabled = true
bind-address = "127.0.0.1:{opentsdb_port}"
database = "opentsdb"
batch-size = 1
batch-timeout = "10ms"
""")
        _give(config)
        command = [needed("influxd"), "run", "-config", str(config)]
        with service(command, port, lambda: _pings(port) and answers(opentsdb_port), where) as one:
            if with_login:
                influx(port, f"CREATE USER admin WITH PASSWORD '{PASSWORD}' WITH ALL PRIVILEGES", login="")
            for statement in (
                "CREATE DATABASE mqtt",
                "CREATE DATABASE opentsdb",
                f"CREATE USER writer WITH PASSWORD '{PASSWORD}'",
                "GRANT WRITE ON mqtt TO writer",
            ):
                influx(port, statement)
            yield InfluxServer(one, opentsdb_port)


def influx(port: int, query: str, database: str = "mqtt", precision: str = "ms", login: str = "admin") -> list[dict[str, Any]]:
    """The rows of a query, by InfluxDB's own client, each with the name of its measurement as `_name`."""
    account = ["-username", login, "-password", PASSWORD] if login else []
    command = [needed("influx"), "-host", "127.0.0.1", "-port", str(port), "-database", database, "-format", "json", *account]
    command += ["-precision", precision, "-execute", query]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout or "{}")
    assert all("error" not in one for one in answer.get("results", [])), answer
    return [
        {"_name": series["name"], **dict(zip(series["columns"], values, strict=True))}
        for result in answer.get("results", [])
        for series in result.get("series", [])
        for values in series["values"]
    ]


def _pings(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
            return bool(answer.status == 204)
    except OSError:
        return False


def _give(file: Path) -> None:
    if account():
        subprocess.run(["chown", "nobody", str(file)], check=True)
