"""Rules on events: each event of a broker with two workers reaches the rule that names it, with its columns."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from shardbroker.rules.events import EVENTS, event_of
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 2
KEPT = {"session_expiry_interval": 300}
ABSENT = {"bridge.received", "message_transformation.failed", "schema_validation.failed"}
ELSEWHERE = {"message.publish", "sys.alarm_deactivated"} | ABSENT
"""Messages; events of features that this broker lacks; one that takes a minute, see tests/management/test_alarms.py."""
OUT = json.dumps([{"function": "republish", "args": {"topic": "out/${event}", "qos": 1, "payload": "${.}"}}])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        rules = Path(name) / "acl.conf"
        rules.write_text('{deny, all, publish, ["secret/#"]}.\n{allow, all}.\n')
        with Broker(WORKERS, {"acl.sources": ["file"], "acl.file.path": str(rules)}, Path(name)) as broker:
            yield broker


def call(broker: Broker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


class Rule:
    """A rule on one event that republishes all columns, and a client that gets them."""

    def __init__(self, broker: Broker, source: str, where: str = "") -> None:
        self._broker, self._event = broker, event_of(source)
        assert self._event is not None
        self.client = Client(broker.address, 5, client_id_on(1, WORKERS, "watch"))
        self.client.subscribe(f"out/{self._event.name}", 1)
        call(broker, "rules create", id="one", sql=f'SELECT * FROM "{source}" {where}', actions=OUT)

    def __enter__(self) -> "Rule":
        return self

    def __exit__(self, *_: object) -> None:
        call(self._broker, "rules delete", id="one")
        self.client.disconnect()

    def columns(self) -> dict[str, Any]:
        """Returns the columns of the next event. Those of the table are the ones that it has."""
        found: dict[str, Any] = json.loads(self.client.expect(Publish).payload)
        assert self._event is not None
        known = {one.name: type(one.example) for one in self._event.columns}
        del found["metadata"]
        for name, value in found.items():
            assert name in (*known, "User-Property-Pairs") and isinstance(value, known[name]), (name, value)
        assert found["event"] == self._event.name and found["node"] and found["timestamp"] > 1_600_000_000_000
        return found


def on(broker: Broker, worker: int, name: str, **arguments: Any) -> Client:
    return Client(broker.address, 5, client_id_on(worker, WORKERS, name), **arguments)


@pytest.mark.parametrize("source", ["$events/client/connected", "$events/client_connected"])
def test_clients_that_connect(broker: Broker, source: str) -> None:
    with Rule(broker, source) as rule:
        for worker in range(WORKERS):
            with on(broker, worker, "comes", username="ann", keepalive=20, properties=KEPT) as client:
                found = rule.columns()
                assert (found["clientid"], found["username"], found["keepalive"]) == (client.client_id, "ann", 20)
                assert (found["peerhost"], found["proto_name"], found["proto_ver"]) == ("127.0.0.1", "MQTT", 5)
                assert (found["clean_start"], found["expiry_interval"]) == (True, 300)
                assert found["peername"].startswith("127.0.0.1:") and found["sockname"]
                assert found["connected_at"] <= found["timestamp"]


def test_clients_that_go(broker: Broker) -> None:
    with Rule(broker, "$events/client/disconnected") as rule:
        on(broker, 0, "goes").disconnect()
        assert rule.columns()["reason"] == "normal"
        first = on(broker, 0, "goes")
        with on(broker, 0, "goes"):
            found = rule.columns()
            assert (found["clientid"], found["reason"]) == (first.client_id, "takenover")
            assert found["connected_at"] <= found["disconnected_at"]
            call(broker, "clients kick", clientids=[first.client_id])
            assert rule.columns()["reason"] == "kicked"


def test_logins(broker: Broker) -> None:
    with Rule(broker, "$events/client/connack") as rule:
        with on(broker, 0, "comes"):
            assert rule.columns()["reason_code"] == "success"
        refused = on(broker, 0, "comes", connect=False, properties={"authentication_method": "none"})
        refused.connect(expect_code=0x8C)
        assert rule.columns()["reason_code"] == "bad_authentication_method"
    for source in ("$events/client/check_authn_complete", "$events/auth/check_authn_complete"):
        with Rule(broker, source) as rule, on(broker, 1, "comes"):
            found = rule.columns()
            assert (found["reason_code"], found["is_anonymous"], found["is_superuser"]) == ("success", True, False)


def test_actions(broker: Broker) -> None:
    with Rule(broker, "$events/client_check_acl_complete", "WHERE action = 'publish'") as rule, on(broker, 0, "acts") as client:
        client.publish("secret/x", b"", 1, wait=False)
        found = rule.columns()
        assert (found["topic"], found["result"], found["authz_source"]) == ("secret/x", "deny", "file")
        client.publish("open/x", b"", 1)
        assert rule.columns()["result"] == "allow"


def test_pings(broker: Broker) -> None:
    with Rule(broker, "$events/client/ping") as rule, on(broker, 0, "pings", keepalive=33) as client:
        client.ping()
        found = rule.columns()
        assert (found["clientid"], found["keepalive"]) == (client.client_id, 33)


def test_subscriptions(broker: Broker) -> None:
    with on(broker, 0, "subs") as client:
        with Rule(broker, "$events/session_subscribed", "WHERE topic = 'a/#'") as rule:
            client.subscribe("a/#", 2)
            found = rule.columns()
            assert (found["clientid"], found["topic"], found["qos"]) == (client.client_id, "a/#", 2)
        with Rule(broker, "$events/session_unsubscribed") as rule:
            client.unsubscribe("a/#")
            assert rule.columns()["topic"] == "a/#"


def test_messages(broker: Broker) -> None:
    properties = {"content_type": "text", "user_property": [("a", "b")]}
    with on(broker, 0, "subs") as subscriber, on(broker, 1, "pubs") as publisher:
        subscriber.subscribe("m/#", 1)
        for source in ("$events/message/delivered", "$events/message_acked"):
            with Rule(broker, source, "WHERE topic =~ 'm/#'") as rule:
                publisher.publish("m/x", b'{"t": 1}', 1, properties=properties)
                subscriber.expect(Publish)
                found = rule.columns()
                assert (found["clientid"], found["from_clientid"]) == (subscriber.client_id, publisher.client_id)
                assert (found["topic"], found["payload"], found["qos"], len(found["id"])) == ("m/x", '{"t": 1}', 1, 32)
                assert found["pub_props"]["Content-Type"] == "text" and found["pub_props"]["User-Property"] == {"a": "b"}
                assert 0 <= found["timestamp"] - found["publish_received_at"] < 60_000
        with Rule(broker, "$events/message_dropped") as rule:
            publisher.publish("nowhere", b"x", 1)
            found = rule.columns()
            assert (found["reason"], found["clientid"], found["topic"]) == ("no_subscribers", publisher.client_id, "nowhere")
        with Rule(broker, "$events/delivery_dropped") as rule:
            publisher.subscribe("own", no_local=True)
            publisher.publish("own", b"x")
            found = rule.columns()
            assert (found["reason"], found["clientid"]) == ("no_local", publisher.client_id)


def test_alarms(broker: Broker) -> None:
    with Rule(broker, "$events/sys/alarm_activated") as rule:
        call(broker, "config set", key="alarm.lost_messages", value="0.01")
        with on(broker, 0, "away", clean=False, properties=KEPT) as away:
            away.subscribe("lost/#", 1)
        with on(broker, 1, "pubs") as publisher:
            for number in range(1010):
                publisher.publish("lost/x", b"%d" % number, 1, wait=number == 1009)
        found = rule.columns()
        assert found["name"] == "messages_lost" and "lost" in found["message"] and found["activated_at"] > 0


def test_the_start_of_the_broker(broker: Broker) -> None:
    with Rule(broker, "$events/sys/broker_started") as rule:
        columns = rule.columns()
        assert 1_600_000_000_000 < columns["started_at"] <= columns["timestamp"]


def test_a_rule_does_not_see_what_it_causes(broker: Broker) -> None:
    """It would make a message of each delivery of its messages, without an end."""
    with Rule(broker, "$events/message/delivered") as rule, on(broker, 0, "subs") as client:
        client.subscribe("loop/#", 1)
        client.publish("loop/x", b"one", 1)
        client.expect(Publish)
        assert rule.columns()["topic"] == "loop/x"
        client.publish("loop/y", b"two", 1)
        client.expect(Publish)
        assert rule.columns()["topic"] == "loop/y"
        assert call(broker, "rules show", id="one")["metrics"]["actions.success"] <= 2


def test_no_client_makes_an_event(broker: Broker) -> None:
    with Rule(broker, "$events/client/connected") as rule, on(broker, 0, "false") as client:
        assert rule.columns()["clientid"] == client.client_id
        client.publish("$events/client/connected", b"{}", 1)
        client.publish("$events/client_connected", b"{}", 1)
        with on(broker, 1, "true") as other:
            assert rule.columns()["clientid"] == other.client_id


def test_no_client_has_the_name_of_a_rule(broker: Broker) -> None:
    for id in ("$rule:one", "$source:rabbitmq:one", "$bridge:0123456789abcdef"):
        Client(broker.address, 5, id, connect=False).connect(expect_code=0x85)
    with Client(broker.address, 5, "$rules") as client:
        client.ping()


def test_events_hold_over_kills() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, {}, Path(name)) as broker:
        call(broker, "rules create", id="one", sql='SELECT * FROM "$events/client/connected"', actions=OUT)
        for victim in ("worker-0", "manager", "flows-0", ""):
            if victim:
                broker.kill_process(broker.child_pids(victim)[0])
                until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            else:
                broker.kill()
                broker.start()
            with Client(broker.address, 5, "watch") as watch:
                watch.subscribe("out/#", 1)
                for worker in range(WORKERS):
                    with on(broker, worker, f"{victim}x") as client:
                        while json.loads(watch.expect(Publish).payload)["clientid"] != client.client_id:
                            pass
        call(broker, "rules delete", id="one")
        assert all(row["callback"] != "rules" for row in call(broker, "hooks list")["data"])


@pytest.mark.parametrize(
    ("source", "reason"),
    [("$events/client/no_such", "no event $events/client/no_such"), ("$bridges/http:a", "type must be one with sources")],
)
def test_what_is_no_event_is_refused(broker: Broker, source: str, reason: str) -> None:
    with pytest.raises(ControlError, match=re.escape(reason)):
        call(broker, "rules create", id="wrong", sql=f'SELECT * FROM "{source}"', actions=OUT)


def test_each_event_has_a_test() -> None:
    text = Path(__file__).read_text()
    for event in EVENTS:
        if event.name not in ELSEWHERE:
            assert any(topic in text for topic in event.topics), event.name
