"""Actions of S3 in a broker with two workers, against moto_server, a stand-in.

Aggregated rows are there once over kills and restarts, direct ones once by their key.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until
from tests.servers.s3 import ACCOUNT, BUCKET, objects, own_client, s3_server

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROWS = 2000
"""Of each of two publishers."""
ID = "s3:rows"


def sections(port: int, **parameters: Any) -> dict[str, dict[str, Any]]:
    connector = {"host": "127.0.0.1", "port": port, "tls": False, "timeout": "2s", **ACCOUNT}
    action = {"connector": "main", "parameters": {"bucket": BUCKET, **parameters}}
    action["resource_opts"] = {"batch_size": 100, "buffer_records": 500, "health_check_interval": "1s"}
    return {
        "connectors.s3.main": connector,
        "actions.s3.rows": action,
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": [ID]},
    }


def found(client: Any) -> Counter[tuple[str, int]]:
    rows = [json.loads(line) for one in objects(client).values() for line in one.splitlines()]
    return Counter((one["c"], one["n"]) for one in rows)


def expected(count: int) -> Counter[tuple[str, int]]:
    return Counter((f"c{worker}", number) for worker in range(WORKERS) for number in range(count))


def publish(broker: SinksBroker, begin: int, end: int) -> None:
    for worker in range(WORKERS):
        publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))


def test_aggregated_rows_are_there_once() -> None:
    aggregation = {"time_interval": "200ms", "max_records": 150}
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, s3_server() as server:
        client = own_client(server.port)
        made = sections(server.port, mode="aggregated", aggregation=aggregation)
        with SinksBroker(WORKERS, Path(place) / "data", made) as broker:

            def reached(count: int) -> None:
                until(lambda: sum(found(client).values()) >= count, lambda: f"{broker.action(ID)} {broker.output[-8:]}", 90)

            server.kill()
            publish(broker, 0, 400)
            server.start()
            reached(100)
            broker.kill()
            broker.start()
            publish(broker, 400, 800)
            for _ in range(3):
                reached(sum(found(client).values()))
                broker.kill_process(until(lambda: broker.child_pids("flows-0"))[0])
            publish(broker, 800, 1200)
            server.pause()
            publish(broker, 1200, 1600)
            broker.kill()
            server.resume()
            broker.start()
            publish(broker, 1600, ROWS)
            reached(WORKERS * ROWS)
            until(lambda: broker.action(ID).get("lag_records") == 0, lambda: str(broker.action(ID)), 60)
            with Control(broker.data_dir) as control, pytest.raises(ControlError, match="takes no row twice"):
                control.call("actions rewind", id=ID, at="earliest")
        assert found(client) == expected(ROWS)
        assert all(one.startswith("rows/") and one.endswith(".jsonl") for one in objects(client))


def test_a_buffer_that_is_full_does_not_wait_for_the_interval() -> None:
    aggregation = {"time_interval": "1h", "max_records": 100_000, "max_bytes": "64KB"}
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, s3_server() as server:
        client = own_client(server.port)
        made = sections(server.port, mode="aggregated", aggregation=aggregation)
        made["actions.s3.rows"]["resource_opts"] |= {"buffer_bytes": "64KB"}
        with SinksBroker(WORKERS, Path(place) / "data", made) as broker:
            publish(broker, 0, 1000)
            until(lambda: len(objects(client)) > 8, lambda: str(broker.action(ID)), 60)
        sizes = [one.count(b"\n") for one in objects(client).values()]
        assert min(sizes) > 20, sizes


def test_direct_rows_are_there_once_by_their_key_also_after_a_rewind() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place, s3_server() as server:
        client = own_client(server.port)
        with SinksBroker(WORKERS, Path(place) / "data", sections(server.port, key="${c}/${n}.json")) as broker:
            publish(broker, 0, 100)
            until(lambda: sum(found(client).values()) >= 50, lambda: str(broker.action(ID)), 60)
            broker.kill_process(broker.child_pids("flows-0")[0])
            server.pause()
            publish(broker, 100, 200)
            server.resume()
            until(lambda: sum(found(client).values()) >= 400, lambda: str(broker.action(ID)), 60)
            broker.await_figures()
            until(lambda: broker.action(ID).get("lag_records") == 0, lambda: str(broker.action(ID)), 60)
            before = broker.action(ID)["success"]
            with Control(broker.data_dir) as control:
                control.call("actions rewind", id=ID, at="earliest")
            until(lambda: broker.action(ID).get("success") == before + 400, lambda: str(broker.action(ID)), 60)
        assert found(client) == expected(200)
