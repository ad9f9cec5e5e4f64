"""An action of Cassandra in a broker with two workers: each row is there once over kills of flows, broker and node."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until
from tests.servers.cassandra import ACCOUNT, CassandraServer, cassandra

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROWS = 5000
"""Of each of two publishers."""
TABLE = "CREATE TABLE mqtt.rows (c text, n int, k uuid, PRIMARY KEY (c, n, k))"
LAST = "CREATE TABLE mqtt.last (c text PRIMARY KEY, n int)"
ID = "cassandra:rows"
OPTS = {"batch_size": 100, "buffer_records": 2000, "health_check_interval": "1s"}


def sections(server: CassandraServer) -> dict[str, dict[str, Any]]:
    def action(cql: str) -> dict[str, Any]:
        return {"connector": "main", "parameters": {"cql": cql}, "resource_opts": OPTS}

    settings = {"servers": [f"127.0.0.1:{server.port}"], "username": ACCOUNT, "password": ACCOUNT, "timeout": "2s"}
    return {
        "connectors.cassandra.main": settings,
        "actions.cassandra.rows": action("INSERT INTO rows (c, n, k) VALUES (${c}, ${n}, ${id})"),
        "actions.cassandra.last": action("UPDATE last SET n = ${n} WHERE c = ${c}"),
        "rules.hot": {
            "sql": 'SELECT id, payload.c as c, payload.n as n FROM "in/#"',
            "actions": [ID, "cassandra:last"],
        },
    }


def test_each_row_is_there_once() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        cassandra(TABLE, LAST) as server,
        SinksBroker(WORKERS, Path(place) / "data", sections(server)) as broker,
    ):

        def publish(begin: int, end: int) -> None:
            for worker in range(WORKERS):
                publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))

        def reached() -> None:
            def done() -> bool:
                return all(broker.action(id).get("lag_records") == 0 for id in (ID, "cassandra:last"))

            until(lambda: len(found()) == 2 * ROWS, lambda: f"{broker.action(ID)} {broker.output[-8:]}", 120)
            broker.await_figures()
            until(done, lambda: f"{broker.action(ID)} {broker.output[-8:]}", 120)

        def found() -> list[tuple[str, int]]:
            with server.session() as session:
                return sorted((one.c, one.n) for one in session.execute("SELECT c, n FROM rows"))

        publish(0, 1000)
        until(lambda: broker.action(ID).get("success", 0) >= 500)
        server.kill()
        publish(1000, 2000)
        broker.kill()  # with rows that wait for the node
        broker.start()
        publish(2000, 3000)
        server.start()
        until(lambda: broker.action(ID).get("success", 0) >= 1000, lambda: f"{broker.action(ID)} {broker.output[-8:]}", 120)
        broker.kill_process(broker.child_pids("flows-0")[0])
        publish(3000, 4000)
        server.pause()
        publish(4000, ROWS)
        server.resume()
        reached()
        wanted = [(f"c{worker}", number) for worker in range(WORKERS) for number in range(ROWS)]
        assert found() == wanted
        with server.session() as session:
            assert {tuple(one) for one in session.execute("SELECT c, n FROM last")} == {("c0", ROWS - 1), ("c1", ROWS - 1)}
        with Control(broker.data_dir) as control:
            control.call("actions rewind", id=ID, at="earliest")
        until(lambda: broker.action(ID).get("lag_records", 0) > 0 or broker.action(ID).get("success", 0) > 2 * ROWS)
        reached()
        assert broker.action(ID)["failed"] == 0 and found() == wanted, "rows that are written again are the same rows"


def test_rows_that_fail_go_to_the_fallback_alone() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, cassandra(TABLE, LAST) as server:
        definitions = sections(server)
        definitions["actions.cassandra.rows"]["fallback_actions"] = ["disk_log:failed"]
        definitions["connectors.disk_log.file"] = {"filepath": "failed.log"}
        definitions["actions.disk_log.failed"] = {"connector": "file"}
        with SinksBroker(WORKERS, Path(place) / "data", definitions) as broker:
            payloads = numbered("c", range(1000))
            payloads[300] = b'{"c": "c", "n": "secret"}'
            payloads[700] = b'{"c": "", "n": 700}'
            publish_all(broker.address, 0, WORKERS, payloads)
            path = broker.data_dir / "disk_log" / "failed.log"
            until(lambda: broker.action(ID).get("success") == 998, lambda: f"{broker.action(ID)} {broker.output[-5:]}", 30)
            until(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
            until(lambda: broker.action(ID).get("failed") == 2, lambda: str(broker.action(ID)))
            until(lambda: any("row not written" in line for line in broker.output))
            assert not any("secret" in line for line in broker.output)
        with server.session() as session:
            assert session.execute("SELECT count(*) FROM rows").one().count == 998
