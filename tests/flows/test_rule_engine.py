"""What holds for all rules, changed while a broker with two workers runs, and kept over kills of flows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.flows.broker import RulesBroker, rule
from tests.harness import Client, Publish, until

pytestmark = pytest.mark.own_broker
OUT = {"function": "republish", "args": {"topic": "out", "payload": "${v}"}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RulesBroker]:
    with RulesBroker(2, tmp_path, {"sys.heartbeat_interval": "1s", "rules.kept.sql": '"SELECT 1 FROM \\"none\\""'}) as broker:
        yield broker


def set_key(broker: RulesBroker, key: str, value: str) -> None:
    with Control(broker.data_dir) as control:
        control.call("config set", key=key, value=value)


def test_messages_of_the_broker_are_seen_only_if_wanted(broker: RulesBroker) -> None:
    broker.define(rule("sys", 'SELECT topic AS v FROM "$SYS/#"'), rule("in", 'SELECT payload AS v FROM "in"'))

    def pass_time() -> None:
        """More than a heartbeat, by the messages of one who publishes."""
        with Client(broker.address, 5, "watching") as client:
            client.subscribe("$SYS/brokers/+/uptime", 0)
            for _ in range(2):
                client.expect(Publish)
            seen = broker.rule_figures("in")[0]
            client.publish("in", b"x", qos=1)
        until(lambda: broker.rule_figures("in")[0] > seen)

    pass_time()
    assert broker.rule_figures("sys")[0] == 0
    set_key(broker, "rule_engine.ignore_sys_message", "false")
    until(lambda: broker.rule_figures("sys")[0] > 0)
    broker.kill_process(broker.child_pids("flows-0")[0])
    seen = broker.rule_figures("sys")[0]
    until(lambda: broker.rule_figures("sys")[0] > seen)
    set_key(broker, "rule_engine.ignore_sys_message", "true")
    pass_time()
    pass_time()
    seen = broker.rule_figures("sys")[0]
    pass_time()
    assert broker.rule_figures("sys")[0] == seen


def test_the_time_of_jq_is_that_of_the_configuration(broker: RulesBroker) -> None:
    set_key(broker, "rule_engine.jq_function_default_timeout", "1ms")
    broker.define(rule("slow", "SELECT jq('[range(3000000)] | length', payload, 10000) AS v FROM \"in\"", OUT))

    def failed() -> Any:
        with Control(broker.data_dir) as control:
            text: Any = control.call("rules try", id="slow", context=json.dumps({"topic": "in", "payload": "1"}))
        return text

    with pytest.raises(Exception, match=r"within 0\.001 s"):
        failed()
    set_key(broker, "rule_engine.jq_function_default_timeout", "10s")
    assert failed()["result"]["v"] == [3_000_000]


def test_metadata_of_the_configuration_and_of_verbs(tmp_path: Path) -> None:
    metadata = {"owner": "ann", "list": [1, {"deep": True}]}
    settings = {
        "rules.kept.sql": '"SELECT 1 FROM \\"none\\""',
        "rules.kept.metadata": '{ owner = "ann", list = [1, { deep = true }] }',
    }
    with RulesBroker(2, tmp_path, settings) as broker:
        with Control(broker.data_dir) as control:
            assert control.call("rules show", id="kept")["metadata"] == metadata
            control.call("rules create", id="made", sql='SELECT 1 FROM "none"', metadata=json.dumps(metadata))
        broker.kill_process(broker.child_pids("manager")[0])
    with RulesBroker(2, tmp_path, settings) as broker, Control(broker.data_dir) as control:
        assert control.call("rules show", id="made")["metadata"] == metadata
        control.call("rules update", id="made", enable=False)
        assert control.call("rules show", id="made")["metadata"] == metadata
