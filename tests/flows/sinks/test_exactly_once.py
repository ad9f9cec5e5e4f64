"""Rows in PostgreSQL with exactly_once: none is missing, none is there twice, through kills of flows and of connections."""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until
from tests.servers.postgresql import Postgresql, postgresql

pytestmark = pytest.mark.own_broker
WORKERS = 2
KILLS = 6
LOSE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'mqtt' AND pid != pg_backend_pid()"
TABLE = "CREATE TABLE rows (id serial, c text, n int)"


@pytest.fixture
def server() -> Iterator[Postgresql]:
    with postgresql(TABLE) as server:
        yield server


def sections(server: Postgresql) -> dict[str, dict[str, Any]]:
    sql = "INSERT INTO rows (c, n) VALUES (${c}, ${n})"
    options = {"buffer_records": 500, "batch_size": 200, "health_check_interval": "1s"}
    return {
        "connectors.pgsql.main": {"server": f"127.0.0.1:{server.port}", "username": "mqtt", "database": "mqtt", "timeout": "2s"},
        "actions.pgsql.rows": {"connector": "main", "parameters": {"sql": sql, "exactly_once": True}, "resource_opts": options},
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": ["pgsql:rows"]},
    }


def test_rows_are_there_once(server: Postgresql) -> None:
    done = [0] * WORKERS
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name,
        SinksBroker(WORKERS, Path(name) / "data", sections(server), {"flows.processes": 2}) as broker,
    ):

        def publish(worker: int) -> None:
            while not stop.is_set():
                begin = done[worker]
                publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, begin + 200)))
                done[worker] = begin + 200
                time.sleep(0.02)

        threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            for number in range(KILLS):
                time.sleep(random.uniform(0.3, 1.5))
                if number % 2:
                    server.psql(LOSE)
                else:
                    broker.kill_process(random.choice(until(lambda: broker.child_pids("flows-"))))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        until(lambda: int(server.psql("SELECT count(DISTINCT (c, n)) FROM rows")) == sum(done), timeout_s=60)
        until(lambda: broker.action("pgsql:rows")["lag_records"] == 0)
        assert int(server.psql("SELECT count(*) FROM rows")) == sum(done)
        unordered = "SELECT count(*) FROM (SELECT n < lag(n) OVER (PARTITION BY c ORDER BY id) AS wrong FROM rows) r WHERE wrong"
        assert int(server.psql(unordered)) == 0
        with Control(broker.data_dir) as control, pytest.raises(ControlError, match="exactly_once"):
            control.call("actions rewind", id="pgsql:rows", at="earliest")


def test_an_emptied_data_directory_begins_anew(server: Postgresql) -> None:
    for _ in range(2):
        with (
            tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name,
            SinksBroker(WORKERS, Path(name) / "data", sections(server)) as broker,
        ):
            publish_all(broker.address, 0, WORKERS, numbered("c", range(100)))
            until(lambda: broker.action("pgsql:rows").get("success") == 100)
    assert int(server.psql("SELECT count(*) FROM rows")) == 200
    assert int(server.psql("SELECT count(DISTINCT key) FROM shardbroker_cursors")) == 2
