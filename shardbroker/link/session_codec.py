"""Messages of sessions to the bodies of frames and back: between nodes, and between link-0 and the workers.

    key       partition u16 | hash u64
    held      key | generation u64 | stamp u64 | flags u8: 1 connected, 2 moving, 4 no session (all else is then 0)
    SESSIONS  number u64 | part u32 | last u8 | partitions 128 bytes | held...
    TAIL      key | number u64 | stamp u64 | uid u64 | flags u8: 1 stale, 2 last | base u128 | messages u16 | delivered u32 |
              ids u128... | qos u8... | sizes of topics u16... | sizes of bodies u32... | delivered ids u128... |
              topics and bodies one after the other

All others have their fields one after the other (`LAYOUTS`), a text or digest last. Every count is compared with its limit, and
with the bytes that are there, before anything is made of it. Ranges of values are checked by `cluster.sessions.checked`.
"""

from itertools import accumulate, pairwise
from struct import Struct, calcsize, pack, unpack_from
from struct import error as StructError
from typing import Any, cast

from shardbroker.cluster.claims import SESSIONS_HELD, TAIL_MESSAGES
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.merge import SEEN_MAX
from shardbroker.cluster.messages import (
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
from shardbroker.cluster.registry import BITMAP_BYTES
from shardbroker.link.frames import FrameType

__all__ = ["BULK_FRAMES", "SESSION_FRAMES", "decode_session", "encode_session"]

LAYOUTS: dict[FrameType, tuple[type[Any], str]] = {
    FrameType.CLAIM: (Claim, "QKrb"),
    FrameType.WAIT: (Wait, "QK"),
    FrameType.RETRY: (Retry, "QK"),
    FrameType.REFUSE: (Refuse, "QK"),
    FrameType.GRANT: (Grant, "QKQHb"),
    FrameType.DONE: (Done, "KQob"),
    FrameType.ANNOUNCE: (Announce, "h"),
    FrameType.RELEASE: (Release, "KQ"),
    FrameType.REVOKE: (Revoke, "KQH"),
    FrameType.REBUILD: (Rebuild, "Qrm"),
    FrameType.MOVED: (Moved, "mQ"),
    FrameType.WHO: (Who, "QKrQ"),
    FrameType.HERE: (Here, "QKoQ"),
    FrameType.FIND: (Find, "KH"),
    FrameType.FOUND: (Found, "KH"),
    FrameType.TAKE: (Take, "KQtb"),
    FrameType.NO_STATE: (NoState, "KQB"),
    FrameType.STATE: (State, "KQQrb"),
    FrameType.STATE_ACK: (StateAck, "KQ"),
    FrameType.TAIL_ACK: (TailAck, "KQQbb"),
    FrameType.END: (End, "KQ"),
    FrameType.ENDED: (Ended, "KQ"),
    FrameType.OFFER: (Offer, "KQt"),
    FrameType.DECLINE: (Decline, "KQ"),
    FrameType.STARTING: (Starting, "QK"),
}
"""Type of a frame to its message, and the kinds of its fields in their order: B, H, Q numbers of 8, 16, 64 bits; b a flag; m a
bitmap of partitions; K a key; h a session; o a session or None; r bytes and t a text up to the end of the body."""
SESSION_FRAMES = frozenset({*LAYOUTS, FrameType.SESSIONS, FrameType.TAIL})
BULK_FRAMES = frozenset({FrameType.STATE, FrameType.TAIL, FrameType.SESSIONS})
"""Frames that may be large. Where room is short they are dropped first: each of them is asked for or sent again."""

_HELD, _PARTS = Struct("<HQQQB"), Struct(f"<QIB{BITMAP_BYTES}s")
_TAIL = Struct("<HQQQQB16sHI")
_CONNECTED, _MOVING, _ABSENT = 1, 2, 4
_STALE, _LAST = 1, 2
_ID_BYTES = 16
_CODES = {"b": "B", "m": f"{BITMAP_BYTES}s", "K": "HQ", "h": "HQQQB", "o": "HQQQB", "r": "", "t": ""}
_STRUCTS = {kind: Struct("<" + "".join(_CODES.get(one, one) for one in fields)) for kind, (_, fields) in LAYOUTS.items()}
_TYPE_OF = {made: kind for kind, (made, _) in LAYOUTS.items()}


def encode_session(message: SessionMessage) -> tuple[FrameType, bytes]:
    """Returns the type and the body of a frame with a message of sessions."""
    if isinstance(message, Sessions):
        return FrameType.SESSIONS, _encode_sessions(message)
    if isinstance(message, Tail):
        return FrameType.TAIL, _encode_tail(message)
    kind = _TYPE_OF[type(message)]
    values: list[Any] = []
    rest = b""
    for field, value in zip(LAYOUTS[kind][1], cast(tuple[Any, ...], message), strict=True):
        match field:
            case "K":
                values += value
            case "h" | "o":
                values += _flat(value)
            case "r":
                rest = value
            case "t":
                rest = value.encode()
            case _:
                values.append(value)
    return kind, _STRUCTS[kind].pack(*values) + rest


def decode_session(kind: FrameType, body: bytes) -> SessionMessage:
    """Returns the message of sessions in a frame. Raises PeerFault."""
    try:
        if kind == FrameType.SESSIONS:
            return _decode_sessions(body)
        if kind == FrameType.TAIL:
            return _decode_tail(body)
        return _decode(kind, body)
    except (StructError, UnicodeDecodeError, _MalformedError) as error:
        text = f"{kind.name} of {len(body)} bytes: {error}"
        raise PeerFault(ByeReason.PROTOCOL_ERROR, text) from None


class _MalformedError(Exception):
    """A field of a body."""


def _decode(kind: FrameType, body: bytes) -> SessionMessage:
    made, fields = LAYOUTS[kind]
    layout = _STRUCTS[kind]
    values = iter(layout.unpack_from(body))
    if len(body) > layout.size and "r" not in fields and "t" not in fields:
        raise _MalformedError(f"must have {layout.size} bytes")
    done: list[Any] = []
    for field in fields:
        match field:
            case "K":
                done.append(Key(next(values), next(values)))
            case "h" | "o":
                done.append(_held([next(values) for _ in range(5)], field == "o"))
            case "b":
                done.append(_flag(next(values)))
            case "r":
                done.append(body[layout.size :])
            case "t":
                done.append(body[layout.size :].decode())
            case _:
                done.append(next(values))
    message: SessionMessage = made(*done)
    return message


def _flag(value: int) -> bool:
    if value > 1:
        raise _MalformedError(f"a flag must be 0 or 1, got {value}")
    return value == 1


def _flat(held: Held | None) -> tuple[int, int, int, int, int]:
    if held is None:
        return 0, 0, 0, 0, _ABSENT
    flags = held.is_connected * _CONNECTED | held.is_moving * _MOVING
    return held.key.partition, held.key.hash, held.generation, held.stamp, flags


def _held(values: list[int], may_be_absent: bool = False) -> Held | None:
    partition, number, generation, stamp, flags = values
    if flags <= (_CONNECTED | _MOVING):
        return Held(Key(partition, number), generation, stamp, bool(flags & _CONNECTED), bool(flags & _MOVING))
    if may_be_absent and values == [0, 0, 0, 0, _ABSENT]:
        return None
    raise _MalformedError(f"flags of a session must be 0 to {_CONNECTED | _MOVING}, got {flags}")


def _encode_sessions(message: Sessions) -> bytes:
    head = _PARTS.pack(message.number, message.part, message.is_last, message.partitions)
    return head + b"".join([_HELD.pack(*_flat(held)) for held in message.held])


def _decode_sessions(body: bytes) -> Sessions:
    number, part, is_last, partitions = _PARTS.unpack_from(body)
    size = len(body) - _PARTS.size
    if size % _HELD.size or size > SESSIONS_HELD * _HELD.size:
        raise _MalformedError(f"must have at most {SESSIONS_HELD} times {_HELD.size} bytes of sessions, got {size}")
    held = [_held([*values]) for values in _HELD.iter_unpack(body[_PARTS.size :])]
    return Sessions(number, part, partitions, tuple(one for one in held if one is not None), _flag(is_last))


def _encode_tail(tail: Tail) -> bytes:
    queued = tail.queued
    flags = tail.is_stale * _STALE | tail.is_last * _LAST
    counts = len(queued), len(tail.delivered)
    return b"".join([
        _TAIL.pack(*tail.key, tail.number, tail.clean_stamp, tail.uid, flags, tail.base.to_bytes(_ID_BYTES, "little"), *counts),
        *(one.id.to_bytes(_ID_BYTES, "little") for one in queued),
        bytes([one.qos for one in queued]),
        pack(f"<{len(queued)}H", *(len(one.topic) for one in queued)),
        pack(f"<{len(queued)}I", *(len(one.body) for one in queued)),
        *(one.to_bytes(_ID_BYTES, "little") for one in tail.delivered),
        *(text for one in queued for text in (one.topic, one.body)),
    ])  # fmt: skip


def _decode_tail(body: bytes) -> Tail:
    *key, number, clean_stamp, uid, flags, base, count, delivered_count = _TAIL.unpack_from(body)
    if count > TAIL_MESSAGES or delivered_count > SEEN_MAX or flags > (_STALE | _LAST):
        text = f"must have at most {TAIL_MESSAGES} messages, {SEEN_MAX} delivered ids and flags up to {_STALE | _LAST}"
        raise _MalformedError(f"{text}, got {count}, {delivered_count} and {flags}")
    layout = f"<{count * _ID_BYTES}s{count}B{count}H{count}I{delivered_count * _ID_BYTES}s"
    ids, *columns, delivered = unpack_from(layout, body, _TAIL.size)
    at = _TAIL.size + calcsize(layout)
    qos, topics, bodies = columns[:count], columns[count : 2 * count], columns[2 * count :]
    if len(body) - at != sum(topics) + sum(bodies):
        raise _MalformedError(f"topics and bodies must have {sum(topics) + sum(bodies)} bytes, got {len(body) - at}")
    ends = accumulate((size for sizes in zip(topics, bodies, strict=True) for size in sizes), initial=at)
    texts = iter([body[start:end] for start, end in pairwise(ends)])
    queued = tuple(Queued(one, next(texts), level, next(texts)) for one, level in zip(_ids(ids), qos, strict=True))
    first = Key(*key), number, clean_stamp, queued, uid
    return Tail(*first, bool(flags & _STALE), bool(flags & _LAST), int.from_bytes(base, "little"), tuple(_ids(delivered)))


def _ids(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + _ID_BYTES], "little") for at in range(0, len(data), _ID_BYTES)]
