"""From REST to rows: a connector, an action and a rule made at run time; figures, cursor, metrics and alarms that follow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardbroker.control import Control
from tests.api.rest import ApiBroker, Rest
from tests.harness import Client, free_port, until

pytestmark = pytest.mark.own_broker
CONNECTOR = {"type": "disk_log", "name": "file", "filepath": "readings.log"}
ACTION = {"type": "file", "name": "readings", "connector": "file", "parameters": {"template": "${clientid} ${temp}"}}
SQL = 'SELECT clientid, payload.temp AS temp FROM "sensors/#"'


@pytest.fixture(scope="module")
def broker() -> Iterator[ApiBroker]:
    with ApiBroker(2) as broker:
        yield broker


@pytest.fixture(scope="module")
def rest(broker: ApiBroker) -> Rest:
    return Rest.logged_in(broker)


def rows(broker: ApiBroker) -> list[str]:
    path = Path(broker.data_dir) / "disk_log" / "readings.log"
    return path.read_text().splitlines() if path.exists() else []


def publish(broker: ApiBroker, *temps: int) -> None:
    with Client(broker.address, 5, "kitchen") as client:
        for temp in temps:
            client.publish("sensors/a", json.dumps({"temp": temp}).encode(), 1)


def action(rest: Rest) -> dict[str, Any]:
    found: dict[str, Any] = rest.good("GET", "/actions/disk_log:readings")
    return found


def test_rows_arrive_and_are_written_again(broker: ApiBroker, rest: Rest) -> None:
    rest.good("POST", "/connectors_probe", CONNECTOR)
    rest.good("POST", "/connectors", CONNECTOR)
    rest.good("POST", "/actions", ACTION)
    rest.good("POST", "/rules", {"id": "readings", "sql": SQL, "actions": ["file:readings"]})
    publish(broker, 1, 2)
    until(lambda: rows(broker) == ["kitchen 1", "kitchen 2"], lambda: str((rows(broker), action(rest))))
    until(lambda: rest.good("GET", "/actions/disk_log:readings/metrics")["metrics"]["success"] == 2)
    until(lambda: action(rest)["status"] == rest.good("GET", "/connectors/disk_log:file")["status"] == "connected")
    assert action(rest)["rules"] == ["readings"]
    details = [{"type": "disk_log", "name": "readings", "status": "connected"}]
    assert rest.good("GET", "/rules/readings")["action_details"] == details
    with Control(broker.data_dir) as control:
        families = {family.name: family for family in text_string_to_metric_families(control.call("prometheus"))}
    assert [one.value for one in families["shardbroker_action_status"].samples] == [1]
    assert [one.value for one in families["shardbroker_action_success"].samples] == [2]
    assert sum(rest.good("GET", "/actions/disk_log:readings/cursor")["cursor"].values()) > 0
    rest.good("PUT", "/actions/disk_log:readings/cursor", {"at": "1h"})
    until(lambda: rows(broker) == ["kitchen 1", "kitchen 2"] * 2, lambda: str(rows(broker)))
    until(lambda: rest.good("GET", "/actions/disk_log:readings/metrics")["metrics"]["success"] == 4)  # a row is counted behind it
    rest.good("PUT", "/actions/disk_log:readings/metrics/reset")
    until(lambda: rest.good("GET", "/actions/disk_log:readings/metrics")["metrics"]["success"] == 0)


def test_a_stopped_action_writes_when_it_is_started(broker: ApiBroker, rest: Rest) -> None:
    before = rows(broker)
    rest.good("POST", "/connectors/disk_log:file/stop")
    until(lambda: action(rest)["status"] == "stopped")
    publish(broker, 3)
    until(lambda: rest.good("GET", "/actions/disk_log:readings/cursor")["lag_records"] > 0)
    assert rows(broker) == before
    rest.good("POST", "/connectors/disk_log:file/start")
    until(lambda: rows(broker) == [*before, "kitchen 3"], lambda: str(rows(broker)))
    rest.good("PUT", "/actions/disk_log:readings/enable/false")
    publish(broker, 4)
    rest.good("PUT", "/actions/disk_log:readings/enable/true")
    publish(broker, 5)
    until(lambda: rows(broker)[-1] == "kitchen 5", lambda: str(rows(broker)))


def test_a_server_that_is_not_there(broker: ApiBroker, rest: Rest) -> None:
    """The probe says why, and the alarm begins and ends with the action."""
    gone = {"type": "http", "name": "gone", "url": f"http://127.0.0.1:{free_port()}"}
    assert rest.refused("POST", "/connectors_probe", gone) == (400, "TEST_FAILED")
    rest.good("POST", "/connectors", gone)
    uses = {"type": "http", "name": "gone", "connector": "gone"}
    assert rest.refused("POST", "/actions_probe", uses) == (400, "TEST_FAILED")
    rest.good("POST", "/actions", uses)

    def names() -> list[str]:
        return [alarm["name"] for alarm in rest.good("GET", "/alarms")["data"]]

    until(lambda: names() == ["action_down"], lambda: str(names()), timeout_s=30)
    shown = rest.good("GET", "/actions/http:gone")
    assert shown["status"] == shown["node_status"][0]["status"] == "disconnected" and shown["status_reason"]
    rest.good("DELETE", "/connectors/http:gone", also_delete_dep_actions="true")
    until(lambda: names() == [], lambda: str(names()))


def test_what_the_process_refuses_is_not_kept(rest: Rest) -> None:
    """A template that the driver cannot use: the model does not know it."""
    wrong = {"type": "http", "name": "wrong", "connector": "wrong", "parameters": {"headers": {"Host": "a"}}}
    rest.good("POST", "/connectors", {"type": "http", "name": "wrong", "url": "http://127.0.0.1:1"})
    status, answer = rest("POST", "/actions", wrong)
    assert (status, answer["code"]) == (400, "BAD_REQUEST") and "headers" in answer["message"]
    assert rest.refused("GET", "/actions/http:wrong") == (404, "NOT_FOUND")
    rest.good("DELETE", "/connectors/http:wrong")
