"""Rows that wait survive the end of the service, of the processes flows, of workers and of the broker; order per client is kept."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.flows.sinks.service import Service
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROWS = 10_000
"""Of each of two publishers."""
SQL = 'SELECT payload.c as c, payload.n as n FROM "in/#"'


def sections(service: Service, **options: Any) -> dict[str, dict[str, Any]]:
    opts = {"batch_size": 500, "buffer_records": 2000, "health_check_interval": "1s", **options}
    return {
        "connectors.http.service": {"url": service.url, "timeout": "2s"},
        "actions.http.rows": {"connector": "service", "parameters": {"batch": True, "path": "/rows"}, "resource_opts": opts},
        "rules.hot": {"sql": SQL, "actions": ["http:rows"]},
    }


def publish(broker: SinksBroker, begin: int = 0, end: int = ROWS) -> None:
    for worker in range(WORKERS):
        publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))


def firsts(rows: list[dict[str, Any]], client: str) -> list[int]:
    """Numbers of a client in the order in which each was written first."""
    return list(dict.fromkeys(row["n"] for row in rows if row["c"] == client))


def wait_for_all(service: Service, end: int = ROWS) -> list[dict[str, Any]]:
    def missing() -> int:
        rows = service.rows()
        return sum(len(set(range(end)) - set(firsts(rows, f"c{worker}"))) for worker in range(WORKERS))

    until(lambda: missing() == 0, timeout_s=60)
    return service.rows()


def assert_ordered(rows: list[dict[str, Any]], end: int = ROWS) -> None:
    for worker in range(WORKERS):
        assert firsts(rows, f"c{worker}") == list(range(end))


@pytest.mark.parametrize("how", ["stopped", "killed", "refusing"])
def test_none_is_missing_after_the_service_is_back(place: Path, service: Service, how: str) -> None:
    with SinksBroker(WORKERS, place / "data", sections(service)) as broker:
        publish(broker, 0, 10)
        until(lambda: broker.action("http:rows").get("success") == 20, lambda: f"{broker.action('http:rows')} {broker.output[-5:]}")
        if how == "stopped":
            service.pause()
        elif how == "killed":
            service.kill()
        else:
            service.answer_with(503)
        publish(broker, 10)
        until(lambda: broker.action("http:rows").get("status") == "disconnected" or broker.action("http:rows")["retried"])
        until(lambda: broker.action("http:rows").get("queuing", 0) >= 2000)
        if how == "stopped":
            service.resume()
        elif how == "killed":
            service.start()
        else:
            service.answer_with(None)
        rows = wait_for_all(service)
        assert_ordered(rows)
        until(lambda: broker.action("http:rows").get("success") == 2 * ROWS)
        until(lambda: broker.action("http:rows").get("lag_records") == 0)
        figures = broker.action("http:rows")
    if how != "stopped":
        assert len(rows) == 2 * ROWS
    assert figures["matched"] == 2 * ROWS and figures["dropped"] == figures["failed"] == figures["queuing"] == 0


def kill_flows(broker: SinksBroker) -> None:
    broker.kill_process(broker.child_pids("flows-0")[0])


def kill_worker(broker: SinksBroker) -> None:
    broker.kill_process(broker.child_pids("worker-1")[0])


def kill_broker(broker: SinksBroker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.parametrize("kill", [kill_flows, kill_worker, kill_broker])
def test_none_is_missing_after_a_kill(place: Path, service: Service, kill: Callable[[SinksBroker], None]) -> None:
    with SinksBroker(WORKERS, place / "data", sections(service), {"flows.processes": 1}) as broker:
        publish(broker, 0, ROWS // 2)
        wait_for_all(service, ROWS // 2)
        service.kill()
        publish(broker, ROWS // 2)
        kill(broker)
        until(lambda: broker.action("http:rows").get("queuing", 0) >= 2000)
        service.start()
        rows = wait_for_all(service)
        assert_ordered(rows)


def test_other_numbers_of_workers_and_processes_continue(place: Path, service: Service) -> None:
    broker = SinksBroker(WORKERS, place / "data", sections(service), {"flows.processes": 2})
    with broker:
        publish(broker, 0, 2000)
        wait_for_all(service, 2000)
        service.kill()
        publish(broker, 2000)
    for workers, processes in ((3, 3), (1, 1)):
        broker.workers, broker.settings = workers, {"flows.processes": processes}
        if workers == 1:
            service.start()
        with broker:
            until(lambda: broker.action("http:rows").get("queuing", 0) or not broker.action("http:rows").get("lag_records", 1))
            if workers == 1:
                assert_ordered(wait_for_all(service))
                until(lambda: broker.action("http:rows").get("lag_records") == 0)
                assert not [one for one in os.listdir(broker.data_dir / "holds") if not one.endswith("-0.json")]
