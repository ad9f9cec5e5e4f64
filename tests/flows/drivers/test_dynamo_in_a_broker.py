"""An action of DynamoDB in a broker with two workers: each row is there over kills of server, flows and broker, and a rewind."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.flows.drivers.test_dynamo import make_table
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until
from tests.servers.dynamodb import ACCOUNT, dynamodb_server, own_client, scanned

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROWS = 500
"""Of each of two publishers; the server syncs each item."""
ID = "dynamo:rows"


def sections(port: int) -> dict[str, dict[str, Any]]:
    connector = {"url": f"http://127.0.0.1:{port}", "region": "eu-central-1", "timeout": "2s", **ACCOUNT}
    opts = {"batch_size": 100, "buffer_records": 500, "health_check_interval": "1s"}
    return {
        "connectors.dynamodb.main": connector,
        "actions.dynamodb.rows": {"connector": "main", "parameters": {"table": "rows"}, "resource_opts": opts},
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": ["dynamodb:rows"]},
    }


def test_each_row_is_there() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, dynamodb_server(on_disk=True) as server:
        client = own_client(server.port)
        make_table(client, c="S", n="N")

        def found() -> set[tuple[str, int]]:
            return {(one["c"]["S"], int(one["n"]["N"])) for one in scanned(client, "rows")}

        with SinksBroker(WORKERS, Path(place) / "data", sections(server.port)) as broker:

            def publish(begin: int, end: int) -> None:
                for worker in range(WORKERS):
                    publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))

            def reached(count: int) -> None:
                until(lambda: len(found()) >= count, lambda: f"{len(found())} {broker.action(ID)} {broker.output[-8:]}", 90)

            publish(0, 100)
            reached(50)
            server.kill()
            publish(100, 200)
            server.start()
            publish(200, 300)
            broker.kill()
            broker.start()
            publish(300, 400)
            broker.kill_process(broker.child_pids("flows-0")[0])
            server.pause()
            publish(400, ROWS)
            server.resume()
            reached(2 * ROWS)
            broker.await_figures()
            until(lambda: broker.action(ID).get("lag_records") == 0, lambda: str(broker.action(ID)))
            before = broker.action(ID)["success"]
            with Control(broker.data_dir) as control:
                control.call("actions rewind", id=ID, at="earliest")
            until(lambda: broker.action(ID).get("success") == before + 2 * ROWS, lambda: f"{before} {broker.action(ID)}", 90)
            assert not broker.action(ID)["failed"]
        assert found() == {(f"c{worker}", number) for worker in range(WORKERS) for number in range(ROWS)}
