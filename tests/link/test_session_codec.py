"""Frames of sessions: what is sent arrives, and whatever else arrives is a PeerFault in bounded memory."""

import random
from struct import pack_into

import pytest

from shardbroker.cluster.claims import SESSIONS_HELD, TAIL_BYTES, TAIL_MESSAGES
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.merge import SEEN_MAX
from shardbroker.cluster.messages import (
    FRAME_BYTES_MAX,
    POSITION_MAX,
    Announce,
    Claim,
    Decline,
    Done,
    End,
    Ended,
    Find,
    Found,
    Grant,
    Held,
    Here,
    Key,
    Moved,
    NoState,
    Offer,
    Queued,
    Rebuild,
    Refuse,
    Release,
    Retry,
    Revoke,
    SessionMessage,
    Sessions,
    Starting,
    State,
    StateAck,
    Tail,
    TailAck,
    Take,
    Wait,
    Who,
)
from shardbroker.cluster.registry import ALL_PARTITIONS, bitmap
from shardbroker.cluster.sessions import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX, checked
from shardbroker.cluster.takeover import PART_BYTES_MAX, TakeFault
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import HEADER, FrameReader, FrameType, pack_frame
from shardbroker.link.session_codec import BULK_FRAMES, SESSION_FRAMES, decode_session, encode_session

BIG, ID_MAX = POSITION_MAX, (1 << 128) - 1
LEAST, MOST = Key(0, 0), Key(1023, (1 << 64) - 1)
HELD = Held(MOST, BIG, BIG, True, True)
BARE = Held(LEAST, 0, 0, False)
ALL = bitmap(ALL_PARTITIONS)
LARGE = Queued(ID_MAX, b"t" * TEXT_BYTES_MAX, 2, b"b" * MESSAGE_BYTES_MAX)
MESSAGES: list[SessionMessage] = [
    Claim(BIG, MOST, b"d" * 16, True),
    Claim(0, LEAST, b"", False),
    Wait(1, MOST),
    Retry(BIG, LEAST),
    Refuse(0, MOST),
    Grant(BIG, MOST, BIG, 250, True),
    Grant(0, LEAST, 0, 0, False),
    Done(MOST, BIG, HELD, True),
    Done(LEAST, 0, BARE, False),
    Done(LEAST, 0, None, False),
    Announce(HELD),
    Announce(BARE),
    Release(MOST, BIG),
    Revoke(MOST, BIG, 250),
    Rebuild(BIG, b"d" * 16, ALL),
    Rebuild(0, b"", bitmap([])),
    Sessions(BIG, (1 << 32) - 1, ALL, (HELD, BARE, HELD._replace(is_moving=False), HELD._replace(is_connected=False)), True),
    Sessions(1, 1, bitmap([0, 1023]), (), False),
    Sessions(1, 2, ALL, (HELD,) * SESSIONS_HELD, False),
    Moved(bitmap([1, 9])),
    Who(BIG, MOST, b"d" * 16, BIG),
    Who(0, LEAST, b""),
    Here(BIG, MOST, HELD, BIG),
    Here(0, LEAST, None),
    Find(MOST, 250),
    Find(LEAST),
    Found(MOST, 250),
    Take(MOST, BIG, "ü" * 32_767, True),
    Take(LEAST, 0, "", False),
    NoState(MOST, BIG, TakeFault.HELD),
    Offer(MOST, BIG, "ü" * 32_767),
    Offer(LEAST, 0, ""),
    Decline(MOST, BIG),
    State(MOST, BIG, BIG, b"s" * PART_BYTES_MAX, True),
    State(LEAST, 0, 1, b"", False),
    StateAck(MOST, BIG),
    Tail(LEAST, 1, 0, (), 0),
    Tail(MOST, BIG, BIG, (Queued(ID_MAX, b"t", 2, b"body"), Queued(0, b"", 1)), BIG, True, True, ID_MAX, (0, ID_MAX)),
    Tail(MOST, 1, 0, (LARGE,), 1, True, True, 0, (ID_MAX,) * SEEN_MAX),
    Tail(MOST, 1, 0, (Queued(7, b"t", 1, b"b"),) * TAIL_MESSAGES, 1),
    TailAck(MOST, BIG, BIG, True),
    End(MOST, BIG),
    Ended(LEAST, 0),
    Starting(BIG, MOST),
]
SMALL = [message for message in MESSAGES if len(encode(message)) < 2_000]
IDS = [f"{number}-{type(message).__name__}" for number, message in enumerate(MESSAGES)]


def test_there_is_a_frame_for_each_message() -> None:
    assert {type(message) for message in MESSAGES} == {*SessionMessage.__args__}
    assert {encode_session(message)[0] for message in MESSAGES} == SESSION_FRAMES


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_what_is_sent_arrives(message: SessionMessage) -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(encode(message))
    frame = reader.next()
    assert frame is not None and not reader.pending
    assert checked(decode(frame)) == message  # type: ignore[arg-type]


def test_a_stamp_arrives_with_frames_of_sessions_only() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(pack_frame(*encode_session(MESSAGES[0]), stamp=BIG))
    frame = reader.next()
    assert frame is not None and (decode(frame), frame.stamp) == (MESSAGES[0], BIG)
    reader.feed(pack_frame(FrameType.LEAVING, b"", stamp=1))
    frame = reader.next()
    assert frame is not None
    with pytest.raises(PeerFault, match="hlc must be 0"):
        decode(frame)


def test_the_largest_tail_fits_into_a_frame() -> None:
    """A TAIL ends with the message that crosses TAIL_BYTES."""
    before = Queued(1, b"t" * 2_000, 1, b"b" * (TAIL_BYTES // (TAIL_MESSAGES - 1) - 2_001))
    queued = (before,) * (TAIL_MESSAGES - 1)
    assert sum(len(one.topic) + len(one.body) for one in queued) < TAIL_BYTES
    tail = Tail(MOST, 1, 0, (*queued, LARGE), 1, True, True, 0, (ID_MAX,) * SEEN_MAX)
    assert len(encode(tail)) <= FRAME_BYTES_MAX
    assert all(len(encode(message)) <= FRAME_BYTES_MAX for message in MESSAGES)


@pytest.mark.parametrize("message", SMALL, ids=lambda message: type(message).__name__)
def test_a_truncated_or_longer_body_is_a_fault_or_another_message(message: SessionMessage) -> None:
    """Messages that end with a text or digest have another one; all others are refused."""
    kind, body = encode_session(message)
    open_end = isinstance(message, Claim | Rebuild | Who | Take | Offer | State)
    least = len(encode_session(message._replace(**OPEN[type(message)]))[1]) if open_end else len(body)
    for other in [*(body[:size] for size in range(len(body))), body + b"\0", body + body]:
        if open_end and len(other) >= least:
            try:
                assert decode_session(kind, other) != message
            except PeerFault as fault:  # a character was cut
                assert isinstance(message, Take | Offer) and fault.reason == ByeReason.PROTOCOL_ERROR
            continue
        if isinstance(message, Sessions) and len(other) >= 141 and not (len(other) - 141) % 27:
            assert decode_session(kind, other) != message
            continue
        with pytest.raises(PeerFault) as found:
            decode_session(kind, other)
        assert found.value.reason == ByeReason.PROTOCOL_ERROR


OPEN = {
    Claim: {"digest": b""}, Rebuild: {"digest": b""}, Who: {"digest": b""},
    Take: {"name": ""}, Offer: {"name": ""}, State: {"body": b""},
}  # fmt: skip


@pytest.mark.parametrize("message", SMALL, ids=lambda message: type(message).__name__)
def test_changed_bytes_are_a_fault_or_a_message(message: SessionMessage) -> None:
    kind, body = encode_session(message)
    for at in range(len(body)):
        for value in 0, 1, 2, 4, 127, 255:
            taken_or_refused(kind, body[:at] + bytes([value]) + body[at + 1 :])


def test_noise_is_a_fault_or_a_message() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        kind = rng.choice(sorted(SESSION_FRAMES))
        body = bytearray(rng.randbytes(rng.choice([0, 1, 10, 27, 35, 67, 141, 168, 400])))
        if kind == FrameType.TAIL and len(body) > 67:
            pack_into("<HI", body, 61, rng.choice([0, 1, 2, 9, 200, 201]), rng.choice([0, 1, 5, SEEN_MAX, SEEN_MAX + 1, 1 << 31]))
        taken_or_refused(kind, bytes(body))


def taken_or_refused(kind: FrameType, body: bytes) -> None:
    """Asserts that a body is a message in range, which is the same one if it is sent on, or a fault."""
    try:
        message = checked(decode_session(kind, body))
    except PeerFault as fault:
        assert fault.reason in (ByeReason.PROTOCOL_ERROR, ByeReason.LIMIT)
    else:
        assert encode_session(message) == (kind, body)


def test_counts_are_refused_before_anything_is_made_of_them() -> None:
    _, body = encode_session(Tail(MOST, 1, 0, (), 1))
    for count, delivered in (TAIL_MESSAGES + 1, 0), (0, SEEN_MAX + 1), (0, (1 << 32) - 1), (65_535, 0):
        changed = bytearray(body)
        pack_into("<HI", changed, len(body) - 6, count, delivered)
        with pytest.raises(PeerFault, match=f"at most {TAIL_MESSAGES} messages"):
            decode_session(FrameType.TAIL, bytes(changed))
    _, body = encode_session(Sessions(1, 1, ALL, (HELD,) * SESSIONS_HELD, True))
    with pytest.raises(PeerFault, match=f"at most {SESSIONS_HELD} times"):
        decode_session(FrameType.SESSIONS, body + body[-27:])


def test_flags_are_those_that_exist() -> None:
    for message, at in (Done(LEAST, 0, None, False), -1), (Announce(BARE), -1), (Tail(LEAST, 1, 0, (), 0), 34):
        kind, body = encode_session(message)
        changed = bytearray(body)
        changed[at] = 4
        with pytest.raises(PeerFault):
            decode_session(kind, bytes(changed))
    kind, body = encode_session(Done(LEAST, 1, None, False))
    changed = bytearray(body)
    changed[20] = 1  # an absent session with a partition
    with pytest.raises(PeerFault, match="flags of a session"):
        decode_session(kind, bytes(changed))


def test_large_frames_are_those_that_may_be_large() -> None:
    """What is dropped first is asked for or sent again. Nothing else exceeds a few hundred bytes, but a name in TAKE and OFFER."""
    for message in MESSAGES:
        kind, body = encode_session(message)
        assert kind in BULK_FRAMES or len(body) < 300 or (kind in (FrameType.TAKE, FrameType.OFFER) and len(body) <= 65_535 + 19)


def test_a_header_is_no_part_of_a_body() -> None:
    kind, body = encode_session(MESSAGES[0])
    assert encode(MESSAGES[0])[HEADER.size :] == body and encode(MESSAGES[0])[2] == kind
