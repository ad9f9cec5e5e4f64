"""Frames between nodes: a header of 40 bytes, little endian, and a body.

    magic u16 | type u8 | flags u8 | length u32 | lane u16 | zero u16 | crc32 u32 | position u64 | ack u64 | hlc u64 | body

`length` is that of the body. The checksum is that of the journal (CRC-32 of zlib) over the header, with 0 in its place, and the
body. A header is checked before its body is buffered, so a reader keeps at most one frame of the allowed size beside what it was
given last.

A connection begins with a preface in clear, before TLS, from the side that dials: which process of the other node it is for.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import PREFACE_CHANNEL_MAX
from shardbroker.cluster.messages import FRAME_BYTES_MAX

__all__ = ["HEADER", "HELLO_BYTES_MAX", "PREFACE_BYTES", "Frame", "FrameReader", "FrameType", "channel_of", "pack_frame", "preface"]

HEADER = Struct("<HBBIHHIQQQ")
MAGIC = 0xC1B5
HELLO_BYTES_MAX = 4_096
"""Largest body before the proof: name, address and reason of a peer that nothing is known of."""
PREFACE = Struct("<4sBB2s")
PREFACE_MAGIC, PREFACE_VERSION = b"SBLK", 1
PREFACE_BYTES = PREFACE.size


class FrameType(IntEnum):
    """Type of a frame. Numbers are part of the protocol and never change."""

    HELLO = 1
    WELCOME = 2
    BYE = 3
    PING = 4
    PONG = 5
    LEAVING = 6
    LOAD = 7
    CHALLENGE = 8
    ROUTES_FROM = 10
    ROUTES_RESUME = 11
    ROUTES_BEGIN = 12
    ROUTES_PART = 13
    ROUTES_END = 14
    ROUTE_LOG = 15
    ROUTE_PART_ACK = 16
    ROUTE_ACK = 17
    JOIN = 20
    ADMIT = 21
    STREAMS = 30
    RESUME = 31
    DATA = 32
    DATA_ACK = 33
    LARGE = 34
    RETAINED_ROWS = 40
    RETAINED_ACK = 41
    RETAINED_BEGIN = 42
    RETAINED_SUMMARY = 43
    RETAINED_WANT = 44
    RETAINED_END = 45
    CLAIM = 50
    WAIT = 51
    RETRY = 52
    REFUSE = 53
    GRANT = 54
    DONE = 55
    ANNOUNCE = 56
    RELEASE = 57
    REVOKE = 58
    REBUILD = 59
    SESSIONS = 60
    MOVED = 61
    WHO = 62
    HERE = 63
    FIND = 64
    FOUND = 65
    TAKE = 66
    NO_STATE = 67
    STATE = 68
    STATE_ACK = 69
    TAIL = 70
    TAIL_ACK = 71
    END = 72
    ENDED = 73
    OFFER = 74
    DECLINE = 75
    STARTING = 76


_TYPES = frozenset(FrameType)


class Frame(NamedTuple):
    """One frame whose checksum is right."""

    type: FrameType
    body: bytes
    flags: int = 0
    lane: int = 0
    position: int = 0
    ack: int = 0
    stamp: int = 0
    """Of the hybrid clock of the sender (`hlc`); only of frames of sessions."""


def pack_frame(
    kind: FrameType, body: bytes, lane: int = 0, position: int = 0, ack: int = 0, flags: int = 0, stamp: int = 0
) -> bytes:
    """Returns a frame."""
    bare = HEADER.pack(MAGIC, kind, flags, len(body), lane, 0, 0, position, ack, stamp)
    checksum = crc32(body, crc32(bare))
    return HEADER.pack(MAGIC, kind, flags, len(body), lane, 0, checksum, position, ack, stamp) + body


class FrameReader:
    """Bytes of one connection to frames. `limit`: most bytes of a body; it may be raised between two frames."""

    def __init__(self, limit: int = HELLO_BYTES_MAX) -> None:
        self.limit = limit
        self._bytes = bytearray()
        self._at = 0

    @property
    def pending(self) -> int:
        """Returns the number of bytes that were fed and not returned in a frame."""
        return len(self._bytes) - self._at

    def feed(self, data: bytes) -> None:
        """Takes what was read; `next` has to be called until it returns None before more is fed."""
        if self._at:
            del self._bytes[: self._at]
            self._at = 0
        self._bytes += data

    def next(self) -> Frame | None:
        """Returns the next frame, or None if it is not complete. Raises PeerFault."""
        if self.pending < HEADER.size:
            return None
        magic, kind, flags, length, lane, zero, checksum, position, ack, hlc = HEADER.unpack_from(self._bytes, self._at)
        if magic != MAGIC or zero:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"frame: must begin with {MAGIC:#06x}, got {magic:#06x} and {zero}")
        if kind not in _TYPES:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"type of a frame: must be one of {min(_TYPES)} to {max(_TYPES)}, got {kind}")
        if length > min(self.limit, FRAME_BYTES_MAX):
            text = f"body of {FrameType(kind).name}: must have at most {min(self.limit, FRAME_BYTES_MAX)} bytes, got {length}"
            raise PeerFault(ByeReason.LIMIT, text)
        if self.pending < HEADER.size + length:
            return None
        start = self._at + HEADER.size
        body = bytes(self._bytes[start : start + length])
        bare = HEADER.pack(magic, kind, flags, length, lane, 0, 0, position, ack, hlc)
        if crc32(body, crc32(bare)) != checksum:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"checksum of {FrameType(kind).name}: must be that of header and body")
        self._at = start + length
        return Frame(FrameType(kind), body, flags, lane, position, ack, hlc)


def preface(channel: int) -> bytes:
    """Returns what the side that dials sends first, in clear: the process of the other node, 0 for its signals."""
    return PREFACE.pack(PREFACE_MAGIC, PREFACE_VERSION, channel, b"\0\0")


def channel_of(data: bytes) -> int:
    """Returns the channel of a preface. Raises PeerFault."""
    magic, version, channel, zero = PREFACE.unpack(data)
    if (magic, version, zero) != (PREFACE_MAGIC, PREFACE_VERSION, b"\0\0") or channel > PREFACE_CHANNEL_MAX:
        most = PREFACE_CHANNEL_MAX
        text = f"preface: must be {PREFACE_MAGIC!r}, version {PREFACE_VERSION} and a channel from 0 to {most}, got {data!r}"
        raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
    return int(channel)
