"""Actions of PostgreSQL and MySQL in a broker with two workers: each row is there once over kills of flows, broker and server."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROWS = 5000
"""Of each of two publishers."""
TABLE = "CREATE TABLE t (c varchar(20), n integer, k varchar(100))"
COUNTS = "SELECT count(*), count(DISTINCT c, n) FROM mqtt.t"


class Database:
    """counts: rows, different rows."""

    def __init__(self, kind: str, made: Any) -> None:
        self.kind, self.server, self._made = kind, made.server, made
        self.connector = {"server": f"127.0.0.1:{made.port}", "username": "mqtt", "password": "dbsecret", "timeout": "1s"}

    def counts(self) -> tuple[int, int]:
        if self.kind == "mysql":
            found = self._made.client(COUNTS).split()
        else:
            found = self._made.psql("SELECT count(*), count(DISTINCT (c, n)) FROM t").strip().split("|")
        return int(found[0]), int(found[1])

    def execute(self, sql: str) -> str:
        return str(self._made.client(f"USE mqtt; {sql}") if self.kind == "mysql" else self._made.psql(sql))


@contextmanager
def database(kind: str) -> Iterator[Database]:
    if kind == "mysql":
        with mariadb(TABLE, "--innodb-flush-log-at-trx-commit=2") as mysql_server:
            yield Database(kind, mysql_server)
    else:
        with postgresql(TABLE) as server:
            yield Database(kind, server)


def sections(found: Database, **parameters: Any) -> dict[str, dict[str, Any]]:
    kind = found.kind
    sql = "INSERT INTO t (c, n, k) VALUES (${c}, ${n}, ${position})"
    opts = {"batch_size": 100, "buffer_records": 2000, "health_check_interval": "1s"}
    return {
        f"connectors.{kind}.main": found.connector,
        f"actions.{kind}.rows": {"connector": "main", "parameters": {"sql": sql, **parameters}, "resource_opts": opts},
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": [f"{kind}:rows"]},
    }


@pytest.mark.parametrize("kind", ["pgsql", "timescale", "mysql"])
def test_each_row_is_there_once(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, database(kind) as found:
        with SinksBroker(WORKERS, Path(place) / "data", sections(found, exactly_once=True)) as broker:
            id = f"{kind}:rows"

            def publish(begin: int, end: int) -> None:
                for worker in range(WORKERS):
                    publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))

            def reached(count: int) -> None:
                until(lambda: found.counts()[1] >= count, lambda: f"{found.counts()} {broker.action(id)} {broker.output[-8:]}", 90)

            publish(0, 1000)
            reached(500)
            found.server.kill()
            publish(1000, 2000)
            found.server.start()
            publish(2000, 3000)
            reached(4200)
            broker.kill()
            broker.start()
            publish(3000, 3500)
            broker.kill_process(broker.child_pids("flows-0")[0])
            publish(3500, 4000)
            found.server.pause()
            publish(4000, ROWS)
            found.server.resume()
            reached(2 * ROWS)
            until(lambda: broker.action(id).get("lag_records") == 0, lambda: str(broker.action(id)))
        assert found.counts() == (2 * ROWS, 2 * ROWS)


@pytest.mark.parametrize("kind", ["pgsql", "mysql"])
@pytest.mark.parametrize("once", [False, True])
def test_rows_that_fail_go_to_the_fallback_alone(kind: str, once: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, database(kind) as found:
        definitions = sections(found, exactly_once=once)
        definitions[f"actions.{kind}.rows"]["fallback_actions"] = ["disk_log:failed"]
        definitions["connectors.disk_log.file"] = {"filepath": "failed.log"}
        definitions["actions.disk_log.failed"] = {"connector": "file"}
        with SinksBroker(WORKERS, Path(place) / "data", definitions) as broker:
            payloads = numbered("c", range(1000))
            payloads[300] = b'{"c": "c", "n": "secret"}'
            payloads[700] = b'{"c": "a client with a very long name", "n": 700}'
            publish_all(broker.address, 0, WORKERS, payloads)
            path = broker.data_dir / "disk_log" / "failed.log"
            until(
                lambda: found.counts()[0] == 998,
                lambda: f"{found.counts()} {broker.action(f'{kind}:rows')} {broker.output[-5:]}",
                30,
            )
            until(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
            until(lambda: broker.action(f"{kind}:rows").get("failed") == 2, lambda: str(broker.action(f"{kind}:rows")))
            until(lambda: any("row not written" in line for line in broker.output))
            said = [line for line in broker.output if "row not written" in line]
            assert not any("secret" in line or "long name" in line for line in said)


@pytest.mark.parametrize("kind", ["pgsql", "mysql"])
def test_a_payload_that_is_no_text_fails_alone_for_a_column_of_text(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, database(kind) as found:
        definitions = sections(found)
        found.execute(f"CREATE TABLE b (c varchar(20), payload {'longblob' if kind == 'mysql' else 'bytea'})")
        action = definitions[f"actions.{kind}.rows"]
        action["parameters"] = {"sql": "INSERT INTO t (c, k) VALUES (${clientid}, ${payload})"}
        definitions[f"actions.{kind}.bytes"] = {**action, "parameters": {"sql": "INSERT INTO b VALUES (${clientid}, ${payload})"}}
        definitions["rules.hot"] = {"sql": 'SELECT clientid, payload FROM "in/#"', "actions": [f"{kind}:rows", f"{kind}:bytes"]}
        with SinksBroker(WORKERS, Path(place) / "data", definitions) as broker:
            publish_all(broker.address, 0, WORKERS, ["grün".encode(), b"\xff\x00 secret", b"{}"])
            until(lambda: found.counts()[0] == 2, lambda: str(broker.action(f"{kind}:rows")), 30)
            until(lambda: broker.action(f"{kind}:rows").get("failed") == 1, lambda: str(broker.action(f"{kind}:rows")))
            until(lambda: broker.action(f"{kind}:bytes").get("success") == 3, lambda: str(broker.action(f"{kind}:bytes")))
            until(lambda: any("row not written" in line for line in broker.output))
            (said,) = [line for line in broker.output if "row not written" in line]
        assert "${payload}: must be text in UTF-8" in said and "got bytes" in said and "secret" not in said
        shown = found.execute(f"SELECT {'hex(payload)' if kind == 'mysql' else 'encode(payload, $$hex$$)'} FROM b").lower().split()
        assert shown == ["6772c3bc6e", "ff0020736563726574", "7b7d"]
