"""Settings of section `mqtt` that change what clients get: `max_subscriptions`, `ignore_loop_deliver`, `upgrade_qos`."""

from collections.abc import Callable

import pytest

from shardbroker.control import Control
from tests.harness import Broker, Client, Publish, Will

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]
NewId = Callable[..., str]
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
KEPT = {"session_expiry_interval": 60}


@pytest.fixture
def on(broker_with: Callable[..., Broker]) -> Broker:
    return broker_with(mqtt__max_subscriptions=2, mqtt__ignore_loop_deliver="true", mqtt__upgrade_qos="true")


@pytest.fixture
def come(on: Broker, connect: Connect, new_id: NewId) -> Connect:
    """A client of that broker."""
    return lambda version=5, **options: connect(version, **{"on": on, "client_id": new_id(), **options})


# --- mqtt.max_subscriptions -------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_session_has_no_more_subscriptions_than_it_may(come: Connect, topic: str, version: int) -> None:
    refused = 0x97 if version == 5 else 0x80
    client = come(version)
    filters = [(f"{topic}/1", 1), (f"$share/g/{topic}/2", 1), (f"{topic}/3", 1)]
    assert client.subscribe(filters, check=False).codes == (1, 1, refused)
    assert client.subscribe([(f"{topic}/1", 0), (f"{topic}/3", 0)], check=False).codes == (0, refused)  # the first one is replaced
    client.unsubscribe(f"$share/g/{topic}/2")
    assert client.subscribe(filters[2:]).codes == (1,)
    other = come(version)
    assert other.subscribe(filters[:2]).codes == (1, 1)


@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_of_a_session_that_stayed_count(come: Connect, topic: str, new_id: NewId, version: int) -> None:
    options = {"client_id": new_id(), "clean": False, "properties": KEPT if version == 5 else None}
    first = come(version, **options)
    first.subscribe([(f"{topic}/1", 1), (f"{topic}/2", 1)])
    first.disconnect()
    again = come(version, **options)
    assert again.subscribe([(f"{topic}/3", 1)], check=False).codes[0] >= 0x80
    again.unsubscribe(f"{topic}/1")
    assert again.subscribe([(f"{topic}/3", 1)]).codes == (1,)


# --- mqtt.ignore_loop_deliver -----------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_of_3_x_do_not_get_their_own_messages(come: Connect, topic: str, placement: str, version: int, qos: int) -> None:
    """Those of 5.0 say so themselves, by No Local."""
    client, other = come(version), come(version)
    for one in (client, other):
        one.subscribe(f"{topic}/#", 2)
    client.publish(f"{topic}/a", b"1", qos)
    assert other.expect(Publish).payload == b"1"
    if version == 5:
        assert client.expect(Publish).payload == b"1"
    client.expect_nothing_from(other, qos)
    other.publish(f"{topic}/a", b"2", qos)
    assert client.expect(Publish).payload == b"2"


def test_a_retained_message_of_its_own_is_no_loop(come: Connect, topic: str) -> None:
    client = come(4)
    client.publish(topic, b"kept", 1, retain=True)
    client.subscribe(topic, 1)
    assert client.expect(Publish, retain=True).payload == b"kept"
    client.publish(topic, b"", 1, retain=True)


def test_it_holds_from_when_it_is_switched_on(broker: Broker, connect: Connect, topic: str) -> None:
    client = connect(4)
    client.subscribe(topic, 1)
    with Control(broker.data_dir) as control:
        before = control.call("metrics")["delivery.dropped.no_local"]
        control.call("config set", key="mqtt.ignore_loop_deliver", value="true")
        client.publish(topic, b"1", 1)
        control.call("config reset", key="mqtt.ignore_loop_deliver")
        assert control.call("metrics")["delivery.dropped.no_local"] == before + 1
        client.publish(topic, b"2", 1)
    assert client.expect(Publish).payload == b"2"


# --- mqtt.upgrade_qos -------------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("published", [0, 1, 2])
def test_messages_come_with_the_qos_that_was_granted(
    come: Connect, topic: str, placement: str, version: int, published: int
) -> None:
    clients, sender = [come(version) for _ in range(3)], come(version)
    for qos, client in enumerate(clients):
        client.subscribe(topic, qos)
    sender.publish(topic, b"x", published)
    for qos, client in enumerate(clients):
        client.expect(Publish, qos=qos, payload=b"x")


@VERSIONS
def test_a_shared_group_and_a_client_that_was_away_get_it_too(
    come: Connect, topic: str, placement: str, new_id: NewId, version: int
) -> None:
    options = {"client_id": new_id(), "clean": False, "properties": KEPT if version == 5 else None}
    away, member, sender = come(version, **options), come(version), come(version)
    away.subscribe(topic, 2)
    away.disconnect()
    member.subscribe(f"$share/g/{topic}", 1)
    sender.publish(topic, b"x", 0)
    member.expect(Publish, qos=1)
    come(version, **options).expect(Publish, qos=2)


def test_retained_messages_and_wills_get_it_too(come: Connect, topic: str, placement: str) -> None:
    to, sender = come(), come(will=Will(f"{topic}/will", b"gone", 0))
    sender.publish(f"{topic}/kept", b"kept", 0, retain=True)
    sender.ping()
    to.subscribe(f"{topic}/+", 2)
    to.expect(Publish, qos=2, payload=b"kept", retain=True)
    sender.cut()
    to.expect(Publish, qos=2, payload=b"gone")
    to.publish(f"{topic}/kept", b"", 1, retain=True)


def test_without_it_the_lower_qos_counts(connect: Connect, topic: str, placement: str) -> None:
    to, sender = connect(), connect()
    to.subscribe(topic, 2)
    sender.publish(topic, b"x", 0)
    to.expect(Publish, qos=0)
