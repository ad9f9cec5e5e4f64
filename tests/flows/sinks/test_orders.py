"""Orders for actions while rows wait: stop, start, restart, rewind, reset, and probes of connectors."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.flows.sinks.service import Service
from tests.harness import free_port, until

pytestmark = pytest.mark.own_broker
WORKERS = 2


@pytest.fixture
def broker(place: Path, service: Service) -> Iterator[SinksBroker]:
    sections = {
        "connectors.http.service": {"url": service.url, "timeout": "2s"},
        "actions.http.rows": {
            "connector": "service",
            "parameters": {"batch": True},
            "resource_opts": {"buffer_records": 100, "health_check_interval": "1s"},
        },
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": ["http:rows"]},
    }
    with SinksBroker(WORKERS, place / "data", sections, {"flows.processes": 2}) as broker:
        yield broker


def call(broker: SinksBroker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


def publish(broker: SinksBroker, begin: int, end: int) -> None:
    for worker in range(WORKERS):
        publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(begin, end)))


def test_rows_wait_while_an_action_is_stopped(broker: SinksBroker, service: Service) -> None:
    publish(broker, 0, 10)
    until(lambda: len(service.rows()) == 20)
    call(broker, "actions stop", id="http:rows")
    until(lambda: broker.is_stopped("http:rows"))
    publish(broker, 10, 1000)
    until(lambda: broker.action("http:rows")["lag_records"] >= 1900)
    assert len(service.rows()) == 20
    call(broker, "actions start", id="http:rows")
    until(lambda: len(service.rows()) == 2000)
    call(broker, "actions restart", id="http:rows")
    publish(broker, 1000, 1010)
    until(lambda: len(service.rows()) == 2020)
    for client in ("c0", "c1"):
        assert [row["n"] for row in service.rows() if row["c"] == client] == [*range(1010)]
    until(lambda: broker.action("http:rows")["success"] == 2020)
    call(broker, "actions reset", id="http:rows")
    until(lambda: broker.action("http:rows")["success"] == 0)


def test_a_rewind_writes_rows_again(broker: SinksBroker, service: Service) -> None:
    publish(broker, 0, 500)
    until(lambda: len(service.rows()) == 1000)
    time.sleep(1.1)  # times of ctl have a resolution of milliseconds
    at_ms = time.time_ns() // 1_000_000
    publish(broker, 500, 600)
    until(lambda: len(service.rows()) == 1200)
    call(broker, "actions rewind", id="http:rows", at=str(at_ms))
    until(lambda: len(service.rows()) == 1400)
    assert sorted(row["n"] for row in service.rows()[1200:]) == sorted([*range(500, 600)] * 2)
    until(lambda: broker.action("http:rows")["success"] == 1400, lambda: f"counts go on: {broker.action('http:rows')}")
    call(broker, "actions rewind", id="http:rows", at="earliest")
    until(lambda: len(service.rows()) == 2600)
    service.pause()
    publish(broker, 600, 700)
    until(lambda: broker.action("http:rows")["lag_records"] >= 200)
    call(broker, "actions rewind", id="http:rows", at="latest")
    until(lambda: broker.action("http:rows")["queuing"] == 0)
    service.resume()
    publish(broker, 700, 701)
    until(lambda: [row["n"] for row in service.rows()].count(700) == 2)
    assert [row["n"] for row in service.rows()].count(699) <= 2, "rows under way may have been written"
    with pytest.raises(ControlError, match="at"):
        call(broker, "actions rewind", id="http:rows", at="no time")


def test_a_probe_shows_why_a_server_cannot_be_used(broker: SinksBroker, service: Service) -> None:
    call(broker, "connectors probe", id="http:service", definition=json.dumps({"url": service.url}))
    refused = json.dumps({"url": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(ControlError, match="connection refused"):
        call(broker, "connectors probe", id="http:service", definition=refused)
    with pytest.raises(ControlError, match=r"connectors\.http\.probe\.url"):
        call(broker, "connectors probe", id="http:new", definition=json.dumps({"url": ""}))
