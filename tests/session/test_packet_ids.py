"""Packet ids of a session over their whole range (MQTT 5.0 §2.2.1)."""

from collections.abc import Iterator

from shardbroker.config import load
from shardbroker.mqtt import packets as mqtt
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.sim.simulator import MemoryRoutes

LAST_ID = 65535
NOW_MS = 1_700_000_000_000


def shard_with_subscriber() -> tuple[SansIoRouter, SansIoChannel, SansIoChannel]:
    routes = MemoryRoutes()
    router = SansIoRouter(load(None, {}, ["mqtt.max_mqueue_len=0", "mqtt.max_inflight=4"]).settings, routes, 0, NOW_MS, seed=1)
    routes.shards = [router]
    subscriber, publisher = router.connect("subscriber"), router.connect("publisher")
    publisher.receive(mqtt.Connect(4, b"publisher").encode(4))
    subscriber.receive(mqtt.Connect(4, b"subscriber").encode(4) + mqtt.Subscribe(1, [(b"t", 1)]).encode(4))
    router.advance(NOW_MS)
    subscriber.take_output()
    return router, subscriber, publisher


def deliveries(channel: SansIoChannel) -> Iterator[tuple[int, bytes]]:
    data, offset = channel.take_output(), 0
    while (found := mqtt.decode(data, offset, 4)) is not None:
        packet, offset = found
        yield packet.packet_id, packet.payload


def test_after_the_last_id_comes_1() -> None:
    router, subscriber, publisher = shard_with_subscriber()
    for number in range(LAST_ID + 10):
        publisher.receive(mqtt.Publish(b"t", b"%d" % number, 1, packet_id=1).encode(4))
        assert list(deliveries(subscriber)) == [(number % LAST_ID + 1, b"%d" % number)]
        subscriber.receive(mqtt.Puback(number % LAST_ID + 1).encode(4))
        publisher.take_output()
    assert router.leftovers()[b"subscriber"] == (0, 0, 0)


def test_one_message_that_is_never_acknowledged_does_not_lend_its_id() -> None:
    """All other ids are used once; then the session waits, and goes on where it stopped."""
    router, subscriber, publisher = shard_with_subscriber()
    seen: list[tuple[int, bytes]] = []
    for number in range(LAST_ID + 10):
        publisher.receive(mqtt.Publish(b"t", b"%d" % number, 1, packet_id=1).encode(4))
        publisher.take_output()
        for packet_id, payload in deliveries(subscriber):
            seen.append((packet_id, payload))
            if packet_id != 1:
                subscriber.receive(mqtt.Puback(packet_id).encode(4))
    assert seen == [(number + 1, b"%d" % number) for number in range(LAST_ID - 1)]
    assert router.leftovers()[b"subscriber"] == (1, 11, 0)
    subscriber.receive(mqtt.Puback(1).encode(4))
    while got := list(deliveries(subscriber)):
        seen += got
        for packet_id, _ in got:
            subscriber.receive(mqtt.Puback(packet_id).encode(4))
    assert [payload for _, payload in seen] == [b"%d" % number for number in range(LAST_ID + 10)]
    assert [packet_id for packet_id, _ in seen[-11:]] == [LAST_ID, *range(1, 11)]
    assert router.leftovers()[b"subscriber"] == (0, 0, 0)
