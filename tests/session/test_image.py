"""A whole session in bytes and back, without a worker (session/image.pxd, journal/images.pyx)."""

import os
import random
from typing import Any

import cbor2
import pytest

from shardbroker.config import load
from shardbroker.journal.checksum import crc32
from shardbroker.journal.images import ImageError, read_image, write_image
from shardbroker.journal.schema import Kind, decode_items
from shardbroker.mqtt import packets as mqtt
from shardbroker.worker.sansio import SansIoRouter
from tests.sim.simulator import MemoryRoutes

NOW_MS = 1_700_000_000_000
HEADER = 32
SEED = int(os.environ.get("IMAGE_SEED", random.SystemRandom().getrandbits(32)))
SESSIONS = 60
FOREIGN = 1500
STRANGE = [None, -1, 0, 1, 3, 65535, 65536, 1 << 32, (1 << 64) - 1, 1 << 64, b"", b"x", bytes(16), "text", 1.5, [], {}]
"""Values of a field, most of which no broker writes."""
OPTIONS = ["mqtt.max_inflight=6", "mqtt.max_mqueue_len=0", 'mqtt.mqueue_priorities={"rich/1" = 9, "rich/2" = 200}']
FILTERS = [b"rich/#", b"rich/1", b"+/2", b"$share/group/rich/#", b"$queue/rich/3", b"$exclusive/rich/4"]


def new_router() -> SansIoRouter:
    routes = MemoryRoutes()
    router = SansIoRouter(load(None, {}, OPTIONS).settings, routes, 0, NOW_MS, seed=1)
    routes.shards = [router]
    return router


def properties(chance: random.Random) -> dict[int, Any] | None:
    return {0x26: [(b"key", b"value")], 0x01: 1, 0x03: b"text"} if chance.random() < 0.5 else None


def rich_session(chance: random.Random) -> tuple[SansIoRouter, Any]:
    """A session with something of everything; the client is away or still connected."""
    router, version = new_router(), chance.choice([4, 5])
    publisher = router.connect("publisher")
    publisher.receive(mqtt.Connect(5, b"publisher").encode(5))
    stays = {0x11: chance.choice([1000, 0xFFFFFFFF])} if version == 5 else None
    will = mqtt.Will(b"will/topic", b"gone", chance.randrange(3), False, {0x18: 30} if version == 5 else None)
    connect = mqtt.Connect(version, b"rich", False, properties=stays, will=will if chance.random() < 0.6 else None)
    client = router.connect("rich")
    client.receive(connect.encode(version))
    for number, filter in enumerate(chance.sample(FILTERS, chance.randrange(1, len(FILTERS) + 1)), 1):
        identifier = {0x0B: number} if version == 5 and chance.random() < 0.5 else None
        client.receive(mqtt.Subscribe(number, [(filter, chance.randrange(3))], identifier).encode(version))
    router.advance(NOW_MS)
    for number in range(chance.randrange(40)):
        topic, qos = b"rich/%d" % chance.randrange(6), chance.randrange(3)
        packet_id = number + 1 if qos else 0
        publisher.receive(mqtt.Publish(topic, b"%d" % number, qos, packet_id=packet_id, properties=properties(chance)).encode(5))
        if chance.random() < 0.4:
            packet_id = chance.randrange(1, 12)
            kind = chance.choice([mqtt.Puback, mqtt.Pubrec, mqtt.Pubcomp])
            client.receive(kind(packet_id).encode(version))
    for packet_id in range(20, 20 + chance.randrange(4)):
        client.receive(mqtt.Publish(b"elsewhere", b"", 2, packet_id=packet_id).encode(version))
    router.advance(NOW_MS)
    if chance.random() < 0.8 and not client.is_closing:
        router.cut(client)
        router.advance(NOW_MS)
        for number in range(chance.randrange(10)):
            publisher.receive(mqtt.Publish(b"rich/%d" % chance.randrange(6), b"later", 1, packet_id=100 + number).encode(5))
    return router, router.sessions.get(b"rich")


def images(count: int, seed: int) -> list[bytes]:
    chance, found = random.Random(seed), []
    while len(found) < count:
        _, session = rich_session(chance)
        if session is not None:
            found.append(write_image(session))
    return found


def records(image: bytes) -> list[Any]:
    return decode_items(image[HEADER:], int.from_bytes(image[12:16], "little"))


def image_of(items: list[Any], image: bytes) -> bytes:
    """The same header over other records."""
    body = b"".join(cbor2.dumps(item, canonical=True) for item in items)
    tail = image[8:12] + len(items).to_bytes(4, "little") + image[16:HEADER] + body
    return image[:4] + crc32(tail).to_bytes(4, "little") + tail


def test_an_image_of_the_session_of_an_image_is_the_same() -> None:
    seen: set[int] = set()
    for image in images(SESSIONS, SEED):
        router = new_router()
        again = write_image(read_image(image, router))
        items = records(image)
        if items[-1][0] not in (Kind.DISCONNECTED, Kind.WILL_DELAYED):
            # It had a connection, which the other one has not.
            gone = [Kind.DISCONNECTED, items[0][1], 0]
            items[0][3] = 0
            image = image_of([*items, gone], image)
        assert again == image, f"IMAGE_SEED={SEED}"
        seen |= {item[0] for item in items}
    assert seen >= {
        Kind.SESSION_SAVED, Kind.MESSAGE, Kind.SUBSCRIBED, Kind.QUEUED, Kind.DELIVERED, Kind.ACKNOWLEDGED, Kind.RECEIVED,
        Kind.WILL_SET, Kind.DISCONNECTED,
    }  # fmt: skip


def test_a_session_can_get_another_number() -> None:
    image = images(1, SEED)[0]
    session = read_image(image, new_router(), 77)
    assert (session.key, session.client_id) == (77, b"rich")
    assert {item[1] for item in records(write_image(session)) if item[0] != Kind.MESSAGE} == {77}


def test_an_image_leaves_the_session_as_it_is() -> None:
    _, session = rich_session(random.Random(SEED))
    while session is None:
        _, session = rich_session(random.Random())
    assert write_image(session) == write_image(session)


def test_records_of_changes_may_follow() -> None:
    image = next(image for image in images(SESSIONS, SEED) if any(item[0] == Kind.QUEUED for item in records(image)))
    items = records(image)
    key, queued = items[0][1], [item for item in items if item[0] == Kind.QUEUED]
    dropped = [Kind.DROPPED, key, queued[0][2], queued[0][3] | 0x20, 1]
    after = records(write_image(read_image(image_of([*items, dropped], image), new_router())))
    assert len([item for item in after if item[0] == Kind.QUEUED]) == len(queued) - 1


def test_a_record_of_a_later_version_is_passed_over() -> None:
    image = images(1, SEED)[0]
    items = records(image)
    expected = write_image(read_image(image, new_router()))
    assert write_image(read_image(image_of([*items, [9999, items[0][1], {1: b"new"}]], image), new_router())) == expected


def test_damaged_bytes_are_refused() -> None:
    chance = random.Random(SEED)
    for image in images(10, SEED):
        for _ in range(50):
            damaged = bytearray(image)
            damaged[chance.randrange(len(image))] ^= 1 << chance.randrange(8)
            with pytest.raises(ImageError):
                read_image(bytes(damaged), new_router())
        for _ in range(20):
            with pytest.raises(ImageError):
                read_image(image[: chance.randrange(len(image))], new_router())
    for foreign in (b"", b"\x00" * HEADER, chance.randbytes(500)):
        with pytest.raises(ImageError):
            read_image(foreign, new_router())


def broken(items: list[Any], chance: random.Random) -> list[Any]:
    """One thing changed, as no broker writes it."""
    items = [list(item) for item in items]
    at = chance.randrange(len(items))
    how = chance.randrange(5)
    if how == 0:
        del items[at]
    elif how == 1:
        items.insert(at, items[chance.randrange(len(items))])
    elif how == 2:
        items[at] = items[at][: chance.randrange(1, len(items[at]) + 1)]
    elif how == 3:
        chance.shuffle(items)
    else:
        items[at][chance.randrange(len(items[at]))] = chance.choice(STRANGE)
    return items


def test_foreign_records_make_a_session_or_an_error() -> None:
    """With a checksum that is right: what a broken peer might send. Whatever is read can be written again."""
    chance, refused = random.Random(SEED), 0
    found = images(20, SEED)
    for _ in range(FOREIGN):
        image = chance.choice(found)
        foreign = image_of(broken(records(image), chance), image)
        try:
            session = read_image(foreign, new_router())
        except ImageError:
            refused += 1
            continue
        again = write_image(session)
        assert write_image(read_image(again, new_router())) == again, f"IMAGE_SEED={SEED}"
    assert 0 < refused < FOREIGN
