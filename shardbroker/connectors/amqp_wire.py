"""Frames of AMQP 0-9-1, as RabbitMQ has them, and the values in them: bytes in, bytes out.

    frame      type u8 | channel u16 | size u32 | payload | 0xCE
    method     class u16 | method u16 | arguments
    header     class u16 | weight u16 | body size u64 | flags u16 | properties whose flag is set, as in PROPERTIES
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

__all__ = [
    "BODY", "FRAME_END", "HEADER", "HEARTBEAT", "HEARTBEAT_FRAME", "METHOD", "PREAMBLE", "PROPERTIES", "AmqpFault", "Reader",
    "frame", "header", "method", "octets", "short_text", "table",
]  # fmt: skip

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
"""Types of frames."""
FRAME_END: Final = 0xCE
PREAMBLE: Final = b"AMQP\x00\x00\x09\x01"
PROPERTIES: Final[tuple[tuple[str, str], ...]] = (
    ("content_type", "s"), ("content_encoding", "s"), ("headers", "F"), ("delivery_mode", "B"), ("priority", "B"),
    ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "T"), ("type", "s"),
    ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s"),
)  # fmt: skip
"""Properties of a message: a short text, a table, an octet or a time in seconds. The flag of the first one is bit 15."""
BASIC: Final = 60
"""The class of messages."""
DEPTH_MAX: Final = 20
"""Levels of tables in tables: a server may pass on what others have nested."""
SHORT_MAX: Final = 255
"""Bytes of a short text."""
INT64: Final = range(-(1 << 63), 1 << 63)


class AmqpFault(Exception):
    """Bytes that are no AMQP 0-9-1, or a value that it cannot have."""


def octets(payload: bytes) -> bytes:
    """Returns a long text: its size in four bytes, then it."""
    return struct.pack(">I", len(payload)) + payload


def short_text(text: bytes) -> bytes:
    """Returns a text of up to 255 bytes behind its size. Raises AmqpFault for a longer one."""
    if len(text) > SHORT_MAX:
        raise AmqpFault(f"must be at most {SHORT_MAX} bytes, got {len(text)}")
    return bytes((len(text),)) + text


def frame(type: int, channel: int, payload: bytes) -> bytes:
    """Returns a frame."""
    return b"%b%b\xce" % (struct.pack(">BHI", type, channel, len(payload)), payload)


HEARTBEAT_FRAME: Final = frame(HEARTBEAT, 0, b"")


def method(channel: int, number: tuple[int, int], *arguments: bytes) -> bytes:
    """Returns the frame of a method with encoded arguments."""
    return frame(METHOD, channel, struct.pack(">HH", *number) + b"".join(arguments))


def header(properties: Mapping[str, Any]) -> tuple[int, bytes]:
    """Returns flags and properties as a header has them. Texts are bytes. Raises AmqpFault, struct.error."""
    flags, parts = 0, []
    for at, (name, kind) in enumerate(PROPERTIES):
        if name not in properties:
            continue
        flags |= 1 << (15 - at)
        value = properties[name]
        if kind == "s":
            parts.append(short_text(value))
        elif kind == "F":
            parts.append(table(value))
        else:
            parts.append(struct.pack(">B" if kind == "B" else ">Q", value))
    return flags, b"".join(parts)


def table(values: Mapping[bytes, Any]) -> bytes:
    """Returns a table of texts, integers, booleans and tables. Raises AmqpFault."""
    return octets(b"".join([short_text(name) + _field(value) for name, value in values.items()]))


def _field(value: Any) -> bytes:
    if value is True or value is False:
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, bytes):
        return b"S" + octets(value)
    if isinstance(value, int):
        if value not in INT64:
            raise AmqpFault("must be an integer of 64 bits")
        return b"l" + struct.pack(">q", value)
    if isinstance(value, dict):
        return b"F" + table(value)
    raise AmqpFault(f"must be a text, an integer, a boolean or a table, got {type(value).__name__}")


class Reader:
    """Values one after the other. Raises AmqpFault where they end too early."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise AmqpFault("a value is longer than its frame")
        found = self._data[self._at : end]
        self._at = end
        return found

    def number(self, format: str) -> Any:
        """Returns a number, by a format of `struct` such as `>H`."""
        return struct.unpack(format, self._take(struct.calcsize(format)))[0]

    def short(self) -> bytes:
        return self._take(self._take(1)[0])

    def long(self) -> bytes:
        return self._take(self.number(">I"))

    def text(self) -> str:
        """Returns a short text of the server."""
        return self.short().decode(errors="replace")

    def table(self, depth: int = DEPTH_MAX) -> dict[str, Any]:
        """Returns a table. Texts are str if they are UTF-8, otherwise bytes; a decimal is a float, a time Unix seconds."""
        if not depth:
            raise AmqpFault(f"tables must be nested at most {DEPTH_MAX} levels deep")
        inner, found = Reader(self.long()), {}
        while inner._at < len(inner._data):
            name = inner.text()
            found[name] = inner._value(depth)
        return found

    def _value(self, depth: int) -> Any:
        kind = self._take(1)
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == b"t":
            return self._take(1) != b"\0"
        if kind in (b"S", b"x"):
            return _text(self.long())
        if kind == b"F":
            return self.table(depth - 1)
        if kind == b"A":
            if not depth:
                raise AmqpFault(f"tables must be nested at most {DEPTH_MAX} levels deep")
            inner, found = Reader(self.long()), []
            while inner._at < len(inner._data):
                found.append(inner._value(depth - 1))
            return found
        if kind == b"D":
            scale = self._take(1)[0]
            return self.number(">i") / 10**scale
        if kind == b"V":
            return None
        raise AmqpFault(f"no value has the type {kind!r}")

    def properties(self) -> tuple[int, dict[str, Any]]:
        """Returns the size of the body and the properties of the header of a message."""
        self._take(4)
        size, flags = self.number(">Q"), self.number(">H")
        found: dict[str, Any] = {}
        for at, (name, kind) in enumerate(PROPERTIES):
            if flags & 1 << (15 - at):
                if kind == "s":
                    found[name] = _text(self.short())
                else:
                    found[name] = self.table() if kind == "F" else self.number(">B" if kind == "B" else ">Q")
        return size, found


NUMBERS: Final = {
    b"b": ">b", b"B": ">B", b"s": ">h", b"U": ">h", b"u": ">H", b"I": ">i", b"i": ">I", b"l": ">q", b"L": ">q", b"f": ">f",
    b"d": ">d", b"T": ">Q",
}  # fmt: skip
"""Types of fields, as RabbitMQ has them, and their formats."""


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
