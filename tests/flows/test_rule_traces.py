"""Traces of rules in a broker with two workers: what they show, through kills, and with payloads hidden."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.flows.broker import RulesBroker, rule
from tests.harness import Client, until

pytestmark = pytest.mark.own_broker
REPUBLISH = {"function": "republish", "args": {"topic": "out/${clientid}", "qos": 1, "payload": "${t}"}}
SQL = 'SELECT payload.t AS t, clientid FROM "in/#" WHERE payload.t > 1'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RulesBroker]:
    with RulesBroker(2, tmp_path) as broker:
        broker.define(rule("hot", SQL, REPUBLISH, {"function": "console"}, "mqtt:none"), rule("other", SQL))
        yield broker


def call(broker: RulesBroker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


def is_up(broker: RulesBroker) -> bool:
    try:
        return bool(call(broker, "rules show", id="hot"))
    except ControlError:
        return False


def lines(broker: RulesBroker, name: str) -> list[dict[str, Any]]:
    text = call(broker, "trace read", name=name)["data"].decode()
    return [json.loads(line) for line in text.splitlines()]


def wait_for(broker: RulesBroker, name: str, event: str, count: int = 1) -> list[dict[str, Any]]:
    until(lambda: sum(line["event"] == event for line in lines(broker, name)) >= count)
    return lines(broker, name)


def publish(broker: RulesBroker, *payloads: bytes) -> None:
    with Client(broker.address, 5, "me") as client:
        for payload in payloads:
            client.publish("in/a", payload, qos=1)


def begin(broker: RulesBroker, name: str, **options: Any) -> None:
    call(broker, "trace start", name=name, type="ruleid", value="hot", formatter="json", **options)


def test_a_trace_shows_results_and_actions(broker: RulesBroker) -> None:
    publish(broker, b'{"t": 9}')
    until(lambda: broker.rule_figures("hot")[0] == 1)
    begin(broker, "one")
    publish(broker, b'{"t": 7}', b'{"t": 0}', b"no json")
    found = wait_for(broker, "one", "failed")
    assert [line["event"] for line in found] == [
        "matched", "result", "action", "action", "action", "matched", "no_result", "matched", "failed",
    ]  # fmt: skip
    matched, result, republished, console, missing = found[:5]
    assert matched["topic"] == "in/a" and matched["payload"] == '{"t": 7}' and matched["clientid"] == "me"
    assert json.loads(result["result"]) == {"t": 7, "clientid": "me"}
    rendered = json.loads(republished["rendered"])
    assert (rendered["topic"], rendered["payload"], rendered["qos"]) == ("out/me", "7", 1)
    assert [one["action"] for one in (republished, console, missing)] == ["republish", "console", "mqtt:none"]
    assert [one["outcome"] for one in (republished, console, missing)] == ["success", "success", "failed"]
    assert "mqtt:none" in missing["reason"] and found[-1]["reason"]
    assert {line["rule"] for line in found} == {"hot"}
    row = call(broker, "trace stop", name="one")
    assert (row["status"], row["events"], row["lost"]) == ("stopped", 9, 0)
    publish(broker, b'{"t": 8}')
    until(lambda: broker.rule_figures("hot")[0] == 5)
    assert len(lines(broker, "one")) == 10 and lines(broker, "one")[-1]["event"] == "ended"


def test_a_trace_goes_on_through_kills_and_changes(broker: RulesBroker) -> None:
    begin(broker, "kept")
    for number, process in enumerate(("flows-0", "manager", "worker-1")):
        broker.kill_process(broker.child_pids(process)[0])
        until(lambda: is_up(broker))
        publish(broker, b'{"t": 2}')
        wait_for(broker, "kept", "result", number + 1)
    call(broker, "rules update", id="hot", sql='SELECT 1 AS changed FROM "in/#"')
    publish(broker, b"{}")
    until(lambda: any("changed" in line.get("result", "") for line in lines(broker, "kept")))
    tried = call(broker, "rules try", id="hot", context='{"topic": "in/tried"}')
    assert [one["action"] for one in tried["actions"]] == ["republish", "console", "mqtt:none"]
    call(broker, "rules delete", id="hot")
    broker.define(rule("hot", 'SELECT 2 AS again FROM "in/#"'))
    publish(broker, b"{}")
    until(lambda: any("again" in line.get("result", "") for line in lines(broker, "kept")))
    assert not any(line.get("topic") == "in/tried" for line in lines(broker, "kept"))


def test_a_hidden_payload_is_nowhere(broker: RulesBroker) -> None:
    begin(broker, "hidden", payload_encode="hidden")
    publish(broker, b'{"t": 77777}')
    found = wait_for(broker, "hidden", "action", 3)
    assert "77777" not in json.dumps(found)


def test_what_is_no_id_is_refused(broker: RulesBroker) -> None:
    for value in ("a b", "", "x" * 65):
        with pytest.raises(ControlError) as failure:
            call(broker, "trace start", name="wrong", type="ruleid", value=value)
        assert failure.value.code == "BAD_REQUEST"


def test_an_end_time_ends_it(broker: RulesBroker) -> None:
    begin(broker, "short", end_at=time.time_ns() // 1_000_000 + 1500)
    until(lambda: call(broker, "trace show", name="short")["status"] == "stopped")
    assert call(broker, "trace show", name="short")["stopped_by"] == "its end time"
