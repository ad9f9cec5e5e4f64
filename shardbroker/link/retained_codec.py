"""Messages about retained messages to frames and back.

    ROWS     number u64, count u32, sizes u32..., rows one after the other
    BEGIN    round u64, sums of 4096 buckets, 8 bytes each
    SUMMARY  round, number u64, ranges u32, sizes of entries u32..., first and last digest of each range, entries
    WANT     round, number u64, digests of topics
    ACK, END number u64

Whether ranges and entries are in order is checked by the core, a row by the store.
"""

from itertools import accumulate, pairwise
from struct import Struct, unpack_from
from struct import error as StructError

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    RetainedAck,
    RetainedBegin,
    RetainedEnd,
    RetainedMessages,
    RetainedRange,
    RetainedRows,
    RetainedSummary,
    RetainedWant,
)
from shardbroker.cluster.retained import DIGEST, ENTRY, ROWS_MAX, SUMMARY_ENTRIES, SUMS_BYTES
from shardbroker.link.frames import FrameType

__all__ = ["RETAINED_FRAMES", "decode_retained", "encode_retained"]

RETAINED_FRAMES = frozenset(one for one in FrameType if one.name.startswith("RETAINED_"))
RANGES_MAX = 4096
_NUMBER = Struct("<Q")
_ROWS = Struct("<QI")
_SUMMARY = Struct("<QQI")
_WANT = Struct("<QQ")


def encode_retained(message: RetainedMessages) -> tuple[FrameType, bytes]:
    """Returns type and body of a frame."""
    match message:
        case RetainedRows(number, rows):
            sizes = Struct(f"<{len(rows)}I").pack(*map(len, rows))
            return FrameType.RETAINED_ROWS, b"".join((_ROWS.pack(number, len(rows)), sizes, *rows))
        case RetainedAck(number):
            return FrameType.RETAINED_ACK, _NUMBER.pack(number)
        case RetainedBegin(round, sums):
            return FrameType.RETAINED_BEGIN, _NUMBER.pack(round) + sums
        case RetainedSummary(round, number, ranges):
            sizes = Struct(f"<{len(ranges)}I").pack(*(len(one.entries) for one in ranges))
            places = (digest for one in ranges for digest in (one.first, one.last))
            head = _SUMMARY.pack(round, number, len(ranges)), sizes
            return FrameType.RETAINED_SUMMARY, b"".join((*head, *places, *(one.entries for one in ranges)))
        case RetainedWant(round, number, digests):
            return FrameType.RETAINED_WANT, _WANT.pack(round, number) + digests
        case RetainedEnd(round):
            return FrameType.RETAINED_END, _NUMBER.pack(round)


def decode_retained(kind: FrameType, body: bytes) -> RetainedMessages:
    """Returns the message of a frame. Raises PeerFault."""
    try:
        return _decode(kind, body)
    except (StructError, ValueError) as error:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{kind.name} of {len(body)} bytes: {error}") from None


def _decode(kind: FrameType, body: bytes) -> RetainedMessages:
    match kind:
        case FrameType.RETAINED_ROWS:
            number, count = _ROWS.unpack_from(body)
            _check(0 < count <= ROWS_MAX, f"must have 1 to {ROWS_MAX} rows, got {count}")
            return RetainedRows(number, tuple(_parts(body, _ROWS.size, count, 0)))
        case FrameType.RETAINED_ACK:
            return RetainedAck(*_NUMBER.unpack(body))
        case FrameType.RETAINED_BEGIN:
            _check(len(body) == _NUMBER.size + SUMS_BYTES, f"must have {_NUMBER.size + SUMS_BYTES} bytes")
            (round,) = _NUMBER.unpack_from(body)
            return RetainedBegin(round, body[_NUMBER.size :])
        case FrameType.RETAINED_SUMMARY:
            return _summary(body)
        case FrameType.RETAINED_WANT:
            digests = body[_WANT.size :]
            _check(len(digests) <= SUMMARY_ENTRIES * DIGEST, f"must have at most {SUMMARY_ENTRIES} topics")
            round, number = _WANT.unpack_from(body)
            return RetainedWant(round, number, digests)
    return RetainedEnd(*_NUMBER.unpack(body))


def _summary(body: bytes) -> RetainedSummary:
    round, number, count = _SUMMARY.unpack_from(body)
    _check(0 < count <= RANGES_MAX, f"must have 1 to {RANGES_MAX} ranges, got {count}")
    entries = _parts(body, _SUMMARY.size, count, 2 * DIGEST * count)
    _check(sum(map(len, entries)) <= SUMMARY_ENTRIES * ENTRY, f"must have at most {SUMMARY_ENTRIES} topics")
    at = _SUMMARY.size + 4 * count
    places = [body[place : place + DIGEST] for place in range(at, at + 2 * DIGEST * count, DIGEST)]
    ranges = (RetainedRange(first, last, own) for first, last, own in zip(places[::2], places[1::2], entries, strict=True))
    return RetainedSummary(round, number, tuple(ranges))


def _parts(body: bytes, at: int, count: int, between: int) -> list[bytes]:
    """Returns texts whose sizes are at an offset, and that begin `between` bytes behind the sizes. Raises ValueError."""
    sizes = unpack_from(f"<{count}I", body, at)
    at += 4 * count + between
    _check(len(body) - at == sum(sizes), f"must have {sum(sizes)} bytes behind the sizes, got {len(body) - at}")
    return [body[start:end] for start, end in pairwise(accumulate(sizes, initial=at))]


def _check(is_right: bool, text: str) -> None:
    if not is_right:
        raise ValueError(text)
