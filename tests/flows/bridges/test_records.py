"""Records out of journals into frames, and into lanes: what is wanted, positions, bounds, frames that no broker sends."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.cluster.faults import PeerFault
from shardbroker.flows.bridge.records import BRIDGED, FRAME_BYTES, HOPS_MAX, PREFIX, Picker, Records
from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, MessageFlag, encode
from shm.ring import Inbox

FED = int(MessageFlag.FED)
NEAR, FAR = b"a" * 16, b"b" * 16
HEADER = struct.Struct("<BBBBIIIIIIIQQQQ")
USER_PROPERTY = b"\x26\0\1k\0\1v"


def message(
    topic: bytes = b"t/a", payload: bytes = b"x", flags: int = 1 | FED, properties: bytes = b"", publisher: bytes | None = b"c"
) -> bytes:
    fields = {"topic": topic, "payload": payload, "flags": flags, "properties": properties, "publisher": publisher}
    return encode(Kind.MESSAGE, id=bytes(16), expires_ms=7, **fields)


def framed(*records: bytes, first: int = 1) -> bytes:
    return b"".join(struct.pack("<IIQ", len(one), 0, at) + one for at, one in enumerate(records, first))


def received(body: bytes, after: int = 0, position: int = 1 << 40, prefix: bytes = b"", payload_max: int = 1 << 20) -> Records:
    return Records(body, after, position, prefix, NEAR, 5, 6, payload_max)


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    made = Inbox.create(str(tmp_path / "inbox"), 1, 1 << 16)
    yield made
    made.close()


def parts(record: bytes) -> tuple[int, int, int, bytes, bytes, bytes, bytes, bytes]:
    """Kind, flags, position, topic, properties, publisher, place, payload."""
    kind, flags, _, _, *rest = HEADER.unpack_from(record)
    sizes, member = rest[:6], rest[-1]
    at, found = HEADER.size, []
    for size in sizes:
        found.append(record[at : at + size])
        at += size
    assert at == len(record)
    topic, properties, publisher, place, nothing, payload = found
    assert nothing == b""
    return kind, flags, member, topic, properties, publisher, place, payload


def picked(directory: Path, filter: bytes = b"", far: bytes = FAR) -> list[tuple[bytes, int, int]]:
    picker = Picker(directory, None, matches=lambda topic: topic.startswith(filter), far=far)
    found = []
    while not picker.at_end:
        frames, lost = picker.pick()
        assert not lost
        found += [(one.body, one.position, one.count) for one in frames]
    picker.close()
    return found


def journal(directory: Path, *records: bytes) -> Path:
    writer = open_journal(directory)
    for record in records:
        writer.append(record)
    writer.seal(1)
    writer.close()
    return directory


def test_what_is_wanted_arrives_as_it_was(tmp_path: Path, inbox: Inbox) -> None:
    other = encode(Kind.RELEASED, session=1, packet_id=2, reason=0)
    directory = journal(
        tmp_path / "0",
        message(b"t/a", b"one", properties=USER_PROPERTY),
        other,
        message(b"u/a", b"of another topic"),
        message(b"t/b", b"not fed", flags=1),
        message(b"t/c", b"has passed", publisher=PREFIX + FAR),
        message(b"t/d", b"two", flags=2 | 4 | 8 | FED, publisher=PREFIX + b"c" * 16),
        message(b"$SYS/x", b"of the system"),
    )
    ((body, position, count),) = picked(directory, b"t/")
    assert (position, count) == (7, 2)
    records = received(body, position=position, prefix=b"far/")
    ring = inbox.lanes[0]
    assert records.put(ring, 10) == 2
    assert records.is_done
    first, second = [parts(one) for one in ring.take_many(10)]
    place = struct.pack("<IIQ", 5 | 1 << 31, 0, 6)
    assert first == (BRIDGED, 8 | 1, 1, b"far/t/a", USER_PROPERTY, PREFIX + NEAR, place, b"one")
    assert second == (BRIDGED, 8 | 4 | 2, 6, b"far/t/d", b"", PREFIX + NEAR + b"/" + b"c" * 16, place, b"two")


def test_frames_are_bounded_and_have_all(tmp_path: Path) -> None:
    payloads = [bytes([n]) * 60_000 for n in range(20)] + [b"z" * (2 * FRAME_BYTES)]
    found = picked(journal(tmp_path / "0", *[message(payload=one) for one in payloads]))
    assert sum(count for _, _, count in found) == len(payloads)
    assert all(len(body) <= FRAME_BYTES or count == 1 for body, _, count in found)
    assert [position for _, position, _ in found] == sorted({position for _, position, _ in found})
    after = 0
    for body, position, count in found:
        assert received(body, after, position).count == count
        after = position


def test_a_full_lane_goes_on_where_it_was(inbox: Inbox) -> None:
    records = received(framed(*[message(payload=bytes([n]) * 2000) for n in range(200)]))
    ring, got = inbox.lanes[0], 0
    while not records.is_done:
        records.put(ring, 1000)
        for one in ring.take_many(1000):
            assert parts(one)[-1] == bytes([got]) * 2000
            got += 1
        ring.give_back()
    assert got == 200


def test_a_record_that_is_too_large_for_a_lane(inbox: Inbox) -> None:
    records, ring = received(framed(message(payload=b"l" * 40_000), message())), inbox.lanes[0]
    assert records.put(ring, 10) == 0
    assert parts(records.large(ring))[-1] == b"l" * 40_000
    records.skip()
    assert records.large(ring) is None
    assert records.put(ring, 10) == 1
    assert records.is_done


@pytest.mark.parametrize(
    "record",
    [
        message(b"$SYS/a"),
        message(b"$event/a"),
        message(payload=b"x" * 101),
        message(publisher=PREFIX + b"c" * 16 + b"/" + NEAR),
        message(publisher=PREFIX + b"/".join([b"c" * 16] * HOPS_MAX)),
    ],
    ids=["$SYS", "$event", "payload", "passed", "hops"],
)
def test_what_is_not_possible_here_is_left_out(inbox: Inbox, record: bytes) -> None:
    records = received(framed(message(), record, message()), payload_max=100)
    assert (records.count, records.failed) == (3, 1)
    assert records.put(inbox.lanes[0], 10) == 3
    assert len(inbox.lanes[0].take_many(10)) == 2


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"x", "behind the last record"),
        (framed(message())[:-1], "are left"),
        (framed(message() + b"\0"), "a whole message"),
        (framed(encode(Kind.RELEASED, session=1, packet_id=2, reason=0)), "a whole message"),
        (framed(message(flags=3)), "QoS"),
        (framed(message(b"a/#")), "topic name"),
        (framed(message(b"")), "topic name"),
        (framed(message(properties=b"\x0b\1")), "properties"),
        (framed(message(properties=USER_PROPERTY[:-1])), "properties"),
        (framed(message(), first=9), "position"),
        (framed(message(), first=3), "position"),
        (framed(message(), first=4) + framed(message(), first=4), "position"),
    ],
)
def test_a_frame_that_no_broker_sends(body: bytes, text: str) -> None:
    with pytest.raises(PeerFault, match=text):
        received(body, 3, 8)


@pytest.mark.parametrize("prefix", [b"$SYS/", b"$SY", b"$event/", b"$"])
def test_no_prefix_leads_to_a_reserved_topic(inbox: Inbox, prefix: bytes) -> None:
    rest = (b"$event/x" if prefix == b"$event/" else b"$SYS/x")[len(prefix) :]
    records = received(framed(message(rest), message(b"a/b")), prefix=prefix)
    assert (records.count, records.failed) == (2, 2 if prefix.endswith(b"/") else 1)


@pytest.mark.parametrize("prefix", [b"a/#", b"+/", b"a\0", b"\xff/"])
def test_a_prefix_that_is_no_topic_is_a_fault(prefix: bytes) -> None:
    with pytest.raises(PeerFault, match="prefix"):
        received(framed(message()), prefix=prefix)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_other_byte_is_refused_or_is_a_message(data: st.DataObject) -> None:
    body = bytearray(framed(message(properties=USER_PROPERTY), message(b"b" * 40, b"y" * 300)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        records = received(bytes(body))
    except PeerFault:
        return
    assert records.failed <= records.count <= 2
