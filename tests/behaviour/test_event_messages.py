"""Events as messages (docs/features.md): `$event/...` and those below `$SYS` that workers make; from all workers."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from shardbroker.control import Control
from tests.harness import Broker, Client, Publish

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]
NewId = Callable[..., str]
NAMES = (
    "client_connected", "client_disconnected", "client_subscribed", "client_unsubscribed", "message_delivered", "message_acked",
    "message_dropped",
)  # fmt: skip


@pytest.fixture
def on(broker_with: Callable[..., Broker]) -> Broker:
    settings = {f"event_message__{name}": "true" for name in NAMES}
    return broker_with(**settings, sys__event_messages__client_subscribed="true", sys__event_messages__client_unsubscribed="true")


@pytest.fixture
def come(on: Broker, connect: Connect, new_id: NewId) -> Connect:
    """A client of that broker."""
    return lambda version=5, **options: connect(version, **{"on": on, "client_id": new_id(), **options})


def event(watcher: Client, about: str | None = None) -> dict[str, Any]:
    """The next event of this topic, or about this client."""
    while True:
        fields: dict[str, Any] = json.loads(watcher.expect(Publish, qos=0, retain=False).payload)
        if about is None or about in (fields.get("clientid"), fields.get("topic")):
            return fields


@pytest.mark.parametrize("version", [3, 4, 5])
def test_clients_that_come_and_go(come: Connect, placement: str, version: int) -> None:
    watcher = come()
    watcher.subscribe([("$event/client_connected", 0), ("$event/client_disconnected", 0)])
    client = come(version, keepalive=50, username="u")
    came = event(watcher, client.client_id)
    assert (came["proto_ver"], came["keepalive"], came["username"], came["ipaddress"]) == (version, 50, "u", "127.0.0.1")
    assert came["clean_start"] and came["expiry_interval"] == 0 and came["ts"] >= came["connected_at"] > 1_700_000_000_000
    client.disconnect()
    gone = event(watcher, client.client_id)
    assert gone["reason"] == "normal" and gone["connected_at"] == came["connected_at"] <= gone["disconnected_at"]
    lost = come(version)
    lost.cut()
    event(watcher, lost.client_id)
    assert event(watcher, lost.client_id)["reason"] == "tcp_closed"


def test_subscriptions_that_come_and_go(come: Connect, topic: str, placement: str) -> None:
    watcher, client = come(), come()
    watcher.expect_nothing_from(client)  # its fence is a subscription too
    watcher.subscribe([("$event/client_subscribed", 0), ("$event/client_unsubscribed", 0)])
    below_sys = f"$SYS/brokers/+/clients/{client.client_id}"  # the message about its connection may still come
    watcher.subscribe([(f"{below_sys}/subscribed", 0), (f"{below_sys}/unsubscribed", 0)])
    client.subscribe([(topic, 0b101110), ("bad#", 0)], check=False)
    for _ in range(2):  # one below $event, one below $SYS
        fields = event(watcher, topic)
        assert (fields["clientid"], fields["subopts"]) == (client.client_id, {"qos": 2, "nl": 1, "rap": 1, "rh": 2})
    client.unsubscribe(topic, f"{topic}/none")
    for _ in range(2):
        assert event(watcher, topic)["clientid"] == client.client_id
    watcher.expect_nothing_from(client)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_that_are_delivered_and_acknowledged(come: Connect, topic: str, placement: str, qos: int) -> None:
    watcher, to, sender = come(), come(), come()
    to.subscribe(topic, 2)
    watcher.subscribe("$event/message_delivered", 0)
    sender.publish(topic, b"one", qos)
    to.expect(Publish)
    delivered = event(watcher, topic)
    assert (delivered["payload"], delivered["qos"], delivered["clientid"]) == ("one", qos, to.client_id)
    assert delivered["from_clientid"] == sender.client_id and len(delivered["id"]) == 32
    for _ in range(2):
        to.ping()  # its acknowledgements have come, of QoS 2 both: nobody watched them
    watcher.unsubscribe("$event/message_delivered")
    watcher.subscribe("$event/message_acked", 0)
    sender.publish(topic, b"\xff\x00", qos)
    to.expect(Publish)
    if qos:
        acked = event(watcher, topic)
        assert acked["clientid"] == to.client_id and acked["payload_encoding"] == "base64"
        assert base64.b64decode(acked["payload"]) == b"\xff\x00"
    watcher.expect_nothing_from(to)


def test_a_message_that_waited_is_delivered_when_it_is_sent(come: Connect, topic: str, new_id: NewId, placement: str) -> None:
    watcher, name, sender = come(), new_id(), come()
    options = {"client_id": name, "clean": False, "properties": {"session_expiry_interval": 60}}
    away = come(**options)
    away.subscribe(topic, 1)
    away.disconnect()
    watcher.subscribe("$event/message_delivered", 0)
    for qos in (0, 1):
        sender.publish(topic, b"%d" % qos, qos)
    watcher.expect_nothing_from(sender, 1)
    back = come(**options)
    back.expect_messages(b"0", b"1")
    assert {event(watcher, topic)["payload"] for _ in range(2)} == {"0", "1"}


def test_messages_that_nobody_wants(come: Connect, topic: str, placement: str) -> None:
    watcher, sender = come(), come()
    watcher.subscribe("$event/message_dropped", 0)
    sender.publish(topic, b"lost", 1)
    dropped = event(watcher, topic)
    assert (dropped["reason"], dropped["payload"], dropped["clientid"]) == ("no_subscribers", "lost", sender.client_id)


def test_events_lead_to_no_events(come: Connect, topic: str, placement: str) -> None:
    """Everything at once, to several: what tells of events is delivered, acknowledged and dropped in silence."""
    watchers = [come(), come()]
    for watcher in watchers:
        watcher.subscribe([("$event/#", 1), ("$SYS/brokers/+/clients/+/subscribed", 1)])
    for watcher in watchers:
        watcher.fence(watchers[0])
        while watcher.recv(0.2) is not None:
            pass
    sender = come()
    sender.publish(topic, b"x", 1)
    for watcher in watchers:
        told = [json.loads(one.payload) for one in watcher.messages_from(sender)]
        of_sender = [one for one in told if sender.client_id in (one.get("clientid"), one.get("from_clientid"))]
        assert [one.get("reason") for one in of_sender if one.get("topic") == topic] == ["no_subscribers"]
        assert len(of_sender) <= 4, told  # it came, it published, and the marks of fences


def test_nobody_hears_of_what_is_switched_off(connect: Connect, topic: str, broker: Broker) -> None:
    watcher, client = connect(), connect()
    watcher.subscribe("$event/#", 0)
    client.publish(topic, b"x", 1)
    connect().subscribe(topic, 1)
    client.publish(topic, b"x", 1)
    watcher.expect_nothing_from(client)


def test_they_are_switched_on_and_off_while_it_runs(broker: Broker, connect: Connect, topic: str) -> None:
    watcher, sender = connect(), connect()
    watcher.subscribe("$event/message_dropped", 0)
    with Control(broker.data_dir) as control:
        control.call("config set", key="event_message.message_dropped", value="true")
        sender.publish(topic, b"seen", 1)
        control.call("config reset", key="event_message.message_dropped")
        sender.publish(topic, b"unseen", 1)
    assert event(watcher, topic)["payload"] == "seen"
    watcher.expect_nothing_from(sender, 1)
