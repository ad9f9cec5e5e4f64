"""The message queue of a session and its drop rules, as EMQX has them."""

from collections.abc import Callable, Sequence

import pytest

from tests.harness import Broker, Client, Publish

Connect = Callable[..., Client]
KEPT = {"session_expiry_interval": 60}


def queue_for(
    connect: Connect, own: Broker, new_id: Callable[..., str], topic: str, messages: Sequence[tuple[str, bytes, int]]
) -> Client:
    """A client that comes back after the messages (topic, payload, QoS) have reached its session.

    PUBACK says that a message is in a ring, not that the session has it: a witness on the same worker gets it in the same pass."""
    name = new_id(0)
    away = connect(client_id=name, on=own, clean=False, properties=KEPT)
    witness = connect(client_id=new_id(0), on=own)
    for client in (away, witness):
        client.subscribe(f"{topic}/#", 1)
    away.drop()
    publisher = connect(client_id=new_id(1), on=own)
    for to, payload, qos in messages:
        publisher.publish(to, payload, qos)
        witness.expect(Publish, payload=payload)
    return connect(client_id=name, on=own, clean=False, properties=KEPT)


def test_full_queue_drops_the_oldest(
    broker_with: Callable[..., Broker], connect: Connect, topic: str, placement: str, new_id: Callable[..., str]
) -> None:
    own = broker_with(mqtt__max_mqueue_len=5)

    back = queue_for(connect, own, new_id, topic, [(topic, b"%d" % i, 1) for i in range(8)])
    for i in range(3, 8):
        back.expect(Publish, payload=b"%d" % i)
    back.expect_none(0.1)


@pytest.mark.parametrize("stored", [True, False])
def test_qos_0_waits_only_if_it_is_stored(
    broker_with: Callable[..., Broker], connect: Connect, topic: str, new_id: Callable[..., str], stored: bool
) -> None:
    own = broker_with(mqtt__mqueue_store_qos0=str(stored).lower())
    back = queue_for(connect, own, new_id, topic, [(topic, b"zero", 0), (topic, b"one", 1)])
    if stored:
        back.expect(Publish, payload=b"zero", qos=0)
    back.expect(Publish, payload=b"one", qos=1)
    back.expect_none(0.1)


def test_priorities(broker_with: Callable[..., Broker], connect: Connect, new_id: Callable[..., str]) -> None:
    own = broker_with(mqtt__max_mqueue_len=3, mqtt__mqueue_priorities='{"p/high" = 10, "p/low" = 1}')
    sent = (b"l1", "low"), (b"h1", "high"), (b"other", "other"), (b"l2", "low"), (b"h2", "high")
    back = queue_for(connect, own, new_id, "p", [(f"p/{leaf}", payload, 1) for payload, leaf in sent])
    # Five for three places: the one without priority went first, then the older of the low ones.
    for payload in (b"h1", b"h2", b"l2"):
        back.expect(Publish, payload=payload)
    back.expect_none(0.1)


def test_a_subscriber_that_does_not_read_hinders_nobody(connect: Connect, topic: str, placement: str) -> None:
    stuck, other, publisher = connect(), connect(), connect()
    stuck.subscribe(topic, 0)
    other.subscribe(topic, 1)
    payload = b"x" * 50_000
    for i in range(200):
        publisher.publish(topic, payload + b"%d" % i, 1)
        other.expect(Publish)
    publisher.ping()
    # Once its output is full, QoS 0 is dropped for it; what it gets is in order and begins with the oldest.
    got = []
    while (message := stuck.recv(0.5)) is not None:
        if isinstance(message, Publish):
            got.append(int(message.payload[len(payload) :]))
    assert got == sorted(got)
    assert got[0] == 0 and len(got) < 200


def test_retry_interval_of_3_1_1(
    broker_with: Callable[..., Broker], connect: Connect, topic: str, new_id: Callable[..., str]
) -> None:
    own = broker_with(mqtt__retry_interval="1s")
    old, new, publisher = connect(4, on=own, auto_ack=False), connect(5, on=own, auto_ack=False), connect(on=own)
    for client in (old, new):
        client.subscribe(topic, 1)
    publisher.publish(topic, b"x", 1)
    first = old.expect(Publish, dup=False)
    new.expect(Publish, dup=False)
    old.expect(Publish, dup=True, packet_id=first.packet_id, timeout=3)
    new.expect_none(0.5)
