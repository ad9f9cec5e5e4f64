"""Messages of CoAP (RFC 7252 §3), without I/O: one datagram is one message.

    version (2 bits) type (2) token length (4) | code (1 byte) | message id (2) | token | options | 0xFF and payload

An option is its number as difference to the one before, its length and its value:

    difference (4 bits) length (4) | 0 to 2 bytes more of the difference | 0 to 2 bytes more of the length | value
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

__all__ = [
    "EMPTY",
    "TOKEN_MAX",
    "CoapError",
    "Code",
    "Decoder",
    "Kind",
    "Message",
    "Number",
    "Option",
    "Options",
    "decode",
    "encode",
    "uint",
    "uint_of",
]  # fmt: skip

VERSION = 1
TOKEN_MAX = 8
"""Longest token, bytes (RFC 7252 §3)."""
MARKER = 0xFF
"""Between options and payload."""
EMPTY = 0
"""The code of a message that is neither request nor response."""
ONE_BYTE, TWO_BYTES, RESERVED = 13, 14, 15
"""Values of the four bits of a difference or length with more bytes behind them (RFC 7252 §3.1)."""
MORE_THAN_ONE = 269
RESERVED_CLASSES = frozenset({1, 6, 7})
"""Of codes (RFC 7252 §3)."""

Option = tuple[int, bytes]
"""Number and value."""
Options = tuple[Option, ...]


class Kind(IntEnum):
    """Types of messages (RFC 7252 §3)."""

    CON = 0
    NON = 1
    ACK = 2
    RST = 3


class Code(IntEnum):
    """Codes of requests and responses (RFC 7252 §12.1, RFC 7959 §2.9)."""

    GET = 0x01
    POST = 0x02
    PUT = 0x03
    DELETE = 0x04
    CREATED = 0x41
    DELETED = 0x42
    CHANGED = 0x44
    CONTENT = 0x45
    NO_CONTENT = 0x47
    """2.07: what EMQX answers to the end of an observation."""
    CONTINUE = 0x5F
    BAD_REQUEST = 0x80
    UNAUTHORIZED = 0x81
    BAD_OPTION = 0x82
    NOT_FOUND = 0x84
    METHOD_NOT_ALLOWED = 0x85
    NOT_ACCEPTABLE = 0x86
    INCOMPLETE = 0x88
    TOO_LARGE = 0x8D
    INTERNAL_ERROR = 0xA0
    UNAVAILABLE = 0xA3
    PROXYING_NOT_SUPPORTED = 0xA5


class Number(IntEnum):
    """Numbers of options (RFC 7252 §12.2, RFC 7641, RFC 7959, RFC 9175)."""

    URI_HOST = 3
    ETAG = 4
    OBSERVE = 6
    URI_PORT = 7
    URI_PATH = 11
    CONTENT_FORMAT = 12
    MAX_AGE = 14
    URI_QUERY = 15
    ACCEPT = 17
    BLOCK2 = 23
    BLOCK1 = 27
    PROXY_URI = 35
    PROXY_SCHEME = 39
    SIZE1 = 60
    REQUEST_TAG = 292


class CoapError(Exception):
    """A datagram that is no message of CoAP. answer: what its sender gets for it; empty: nothing."""

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer


class Message(NamedTuple):
    """A message."""

    kind: int
    code: int
    message_id: int
    token: bytes = b""
    options: Options = ()
    payload: bytes = b""


_HEAD = Struct("!BBH")


def encode(
    kind: int, code: int, message_id: int, token: bytes = b"", options: Iterable[Option] = (), payload: bytes = b""
) -> bytes:
    """Returns the datagram of a message. options: in any order; those of one number keep theirs."""
    head = _HEAD.pack(VERSION << 6 | kind << 4 | len(token), code, message_id)
    parts = [head, token]
    last = 0
    for number, value in sorted(options, key=_number_of) if options else ():
        delta, size = number - last, len(value)
        last = number
        if delta < ONE_BYTE and size < ONE_BYTE:
            parts += bytes((delta << 4 | size,)), value
        else:
            (high, more), (low, other) = _extended(delta), _extended(size)
            parts += bytes((high << 4 | low,)), more, other, value
    if payload:
        parts += b"\xff", payload
    return b"".join(parts)


def _number_of(option: Option) -> int:
    return option[0]


def _extended(value: int) -> tuple[int, bytes]:
    """Returns the four bits of a difference or length, and the bytes behind them."""
    if value < ONE_BYTE:
        return value, b""
    if value < MORE_THAN_ONE:
        return ONE_BYTE, bytes((value - ONE_BYTE,))
    return TWO_BYTES, (value - MORE_THAN_ONE).to_bytes(2, "big")


def decode(data: bytes) -> Message:
    """Returns the message of a datagram. Raises CoapError."""
    return Decoder().decode(data)


class Decoder:
    """Decodes the messages of one device. A device sends the same options again and again: they are parsed once as long as they
    do not change, and are then the same object."""

    __slots__ = ("_options", "_raw")

    def __init__(self) -> None:
        self._raw, self._options = b"", ()  # type: bytes, Options

    def decode(self, data: bytes) -> Message:
        """Returns the message of a datagram. Raises CoapError."""
        size = len(data)
        if size < 4 or data[0] >> 6 != VERSION:
            raise CoapError("no message of version 1")  # ignored (RFC 7252 §3)
        first, code, message_id = _HEAD.unpack_from(data)
        kind, at = first >> 4 & 3, 4 + (first & 15)
        token = data[4:at]
        if at > 4 + TOKEN_MAX or at > size:
            raise _malformed(kind, message_id, f"a token of {first & 15} bytes")
        if code == EMPTY and size != 4:
            raise _malformed(kind, message_id, "an Empty message with more than its header")
        if code >> 5 in RESERVED_CLASSES:
            raise _malformed(kind, message_id, f"code {code >> 5}.{code & 31:02}")
        raw = self._raw
        end = at + len(raw)
        if raw and data.startswith(raw, at) and (end == size or data[end] == MARKER):
            options = self._options
        else:
            try:
                options, end = _options(data, at)
            except ValueError as error:
                raise _malformed(kind, message_id, str(error)) from None
            self._raw, self._options = data[at:end], options
        if end < size:
            end += 1
            if end == size:
                raise _malformed(kind, message_id, "no payload behind its marker")
        return Message(kind, code, message_id, token, options, data[end:])


def _options(data: bytes, at: int) -> tuple[Options, int]:
    """Returns the options from `at`, and where they end. Raises ValueError."""
    found, number, size = [], 0, len(data)
    while at < size and (first := data[at]) != MARKER:
        at += 1
        delta, length = first >> 4, first & 15
        if delta >= ONE_BYTE:
            delta, at = _more(data, at, delta)
        if length >= ONE_BYTE:
            length, at = _more(data, at, length)
        number += delta
        end = at + length
        if number > 0xFFFF or end > size:
            raise ValueError(f"an option {number} of {length} bytes")
        found.append((number, data[at:end]))
        at = end
    return tuple(found), at


def _more(data: bytes, at: int, value: int) -> tuple[int, int]:
    size = value - ONE_BYTE + 1
    if value == RESERVED or at + size > len(data):
        raise ValueError("an option without its length")
    if size == 1:
        return data[at] + ONE_BYTE, at + 1
    return (data[at] << 8 | data[at + 1]) + MORE_THAN_ONE, at + 2


def _malformed(kind: int, message_id: int, text: str) -> CoapError:
    """Returns the error of a message that is rejected: a Confirmable one by a Reset, others silently (RFC 7252 §4.2, §4.3)."""
    return CoapError(text, encode(Kind.RST, EMPTY, message_id) if kind == Kind.CON else b"")


def uint(value: int) -> bytes:
    """Returns the value of an option of format uint: without leading zeros, so empty for 0 (RFC 7252 §3.2)."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def uint_of(value: bytes) -> int:
    """Returns an option of format uint, which may have leading zeros."""
    return int.from_bytes(value, "big")
