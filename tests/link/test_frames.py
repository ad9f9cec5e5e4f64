"""Frames and messages between nodes: what is sent arrives, and whatever else arrives ends the connection in bounded memory."""

import random

import pytest

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    FRAME_BYTES_MAX,
    Bye,
    Hello,
    Leaving,
    Load,
    Message,
    Ping,
    Pong,
    Route,
    RouteAck,
    RouteEntries,
    RoutePartAck,
    RoutesBegin,
    RoutesEnd,
    RoutesFrom,
    RoutesPart,
    RoutesResume,
    Welcome,
)
from shardbroker.cluster.rlog import BATCH_ROUTES
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import HEADER, HELLO_BYTES_MAX, PREFACE_BYTES, FrameReader, FrameType, channel_of, pack_frame, preface
from shardbroker.link.subacks import MESSAGE_BYTES, decode_answer, decode_request, encode_answer, encode_request

BIG = (1 << 63) - 1
ROUTES = (Route(b"a/+"), Route(b"b/#", b"group", 3, 255), Route(b"\xc3\xa9" * 1000, b"", 0, 0))
MESSAGES: list[Message] = [
    Hello(8, 250, "né@b", "[::1]:5370", b"c" * 16, b"u" * 16, BIG, 1, 2, 7, b"n" * 16),
    Welcome(bytes(range(32))),
    Bye(ByeReason.TIMEOUT, "no PONG"),
    Bye(999, ""),
    Ping(1, -5, b"d" * 16, 4),
    Ping(BIG, 1 << 60, b"", 0),
    Pong(2, 3),
    Leaving(),
    Load(1, 2, 3, 4, 5, 60, True, "1.0é"),
    Load((1 << 32) - 1, 0, 0, 0, 0, 0, False, ""),
    RoutesFrom(0, 0),
    RoutesResume(BIG, 2, 3),
    RoutesBegin(1, 2),
    RoutesPart(4, ROUTES),
    RoutesEnd(4, 9),
    RouteEntries(1, 2, ROUTES),
    RoutePartAck(3),
    RouteAck(BIG),
]


def read(data: bytes, limit: int = FRAME_BYTES_MAX, piece: int = 1 << 20) -> list[Message]:
    reader, found = FrameReader(limit), []
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
        while (frame := reader.next()) is not None:
            found.append(decode(frame))
    return found


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_what_is_sent_arrives(piece: int) -> None:
    assert read(b"".join(map(encode, MESSAGES)), piece=piece) == MESSAGES


def test_a_batch_of_the_largest_size() -> None:
    routes = tuple(Route(b"%06d" % number * 80, b"g" * 20, number, number % 256) for number in range(1, BATCH_ROUTES + 1))
    assert read(encode(RoutesPart(1, routes))) == [RoutesPart(1, routes)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_changed_byte_ends_the_connection(message: Message) -> None:
    data = encode(message)
    for at in [*range(min(len(data), 100)), len(data) - 1]:
        changed = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        reader = FrameReader(FRAME_BYTES_MAX)
        reader.feed(changed)
        try:
            assert reader.next() is None, at  # a longer length: more is needed
        except PeerFault:
            pass


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_truncated_or_longer_body_is_malformed(message: Message) -> None:
    data = encode(message)
    kind, body = FrameType(data[2]), data[HEADER.size :]
    for other in [body[:-1], body + b"\0", b"", *(body[:size] for size in range(0, min(len(body), 64)))]:
        if other == body or len(other) >= {FrameType.BYE: 2, FrameType.PING: 17, FrameType.LOAD: 25}.get(kind, 1 << 20):
            continue  # these end with a text, or with a digest, of any size
        with pytest.raises(PeerFault) as found:
            read(pack_frame(kind, other))
        assert found.value.reason == ByeReason.PROTOCOL_ERROR


def test_noise_is_a_fault_or_needs_more() -> None:
    rng = random.Random(5)
    for _ in range(5_000):
        reader = FrameReader()
        reader.feed(rng.randbytes(rng.randrange(200)))
        try:
            assert reader.next() is None and reader.pending < HEADER.size
        except PeerFault as fault:
            assert fault.reason == ByeReason.PROTOCOL_ERROR


def test_noise_in_a_frame_is_a_fault_or_a_message() -> None:
    rng = random.Random(6)
    for _ in range(20_000):
        kind = rng.choice([*FrameType])
        body = bytearray(rng.randbytes(rng.choice([0, 1, 8, 16, 17, 24, 32, 90, 400])))
        if rng.random() < 0.5 and len(body) > 20:
            body[8:20] = rng.choice([0, 1, 2, BATCH_ROUTES, BATCH_ROUTES + 1, 1 << 31]).to_bytes(4, "little") * 3
        try:
            assert len(read(pack_frame(kind, bytes(body)))) == 1
        except PeerFault as fault:
            assert fault.reason in (ByeReason.PROTOCOL_ERROR, ByeReason.LIMIT)


def test_a_length_that_promises_much_is_refused_at_the_header() -> None:
    for limit, length in (HELLO_BYTES_MAX, HELLO_BYTES_MAX + 1), (FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1), (1 << 40, 1 << 31):
        reader = FrameReader(limit)
        reader.feed(HEADER.pack(0xC1B5, FrameType.HELLO, 0, length, 0, 0, 0, 0, 0, 0))
        with pytest.raises(PeerFault, match="must have at most") as found:
            reader.next()
        assert found.value.reason == ByeReason.LIMIT


def test_fields_that_signals_do_not_have() -> None:
    for fields in ({"lane": 1}, {"flags": 1}, {"position": 1}, {"ack": 1}):
        with pytest.raises(PeerFault, match="must be 0"):
            read(pack_frame(FrameType.LEAVING, b"", **fields))
    with pytest.raises(PeerFault, match="not allowed on the signal channel"):
        read(pack_frame(FrameType.DATA, b""))


def test_a_load_has_bounds() -> None:
    assert read(encode(Load(1 << 40, -1, 0, 0, 0, 0, False, "v" * 100))) == [Load((1 << 32) - 1, 0, 0, 0, 0, 0, False, "v" * 64)]
    for version in (b"v" * 65, b"\x1b[2J", b"\xff"):
        with pytest.raises(PeerFault) as found:
            read(pack_frame(FrameType.LOAD, bytes(25) + version))
        assert found.value.reason == ByeReason.PROTOCOL_ERROR


def test_the_preface() -> None:
    assert [channel_of(preface(channel)) for channel in (0, 8, 9, 10)] == [0, 8, 9, 10]
    assert len(preface(0)) == PREFACE_BYTES == 8
    for wrong in b"GET / HT", b"SBLK\2\0\0\0", b"SBLK\1\x0b\0\0", b"SBLK\1\0\0\1", bytes(8):
        with pytest.raises(PeerFault, match="preface"):
            channel_of(wrong)


def test_subacks() -> None:
    assert decode_request(encode_request(1 << 63, 5)) == (1 << 63, 5)
    assert [decode_answer(encode_answer(7, late)) for late in (False, True)] == [(7, False), (7, True)]
    assert len(encode_request(0, 0)) == len(encode_answer(0, True)) == MESSAGE_BYTES == 16
