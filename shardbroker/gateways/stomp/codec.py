"""Frames of STOMP 1.0, 1.1 and 1.2, without I/O.

    COMMAND EOL | name ":" value EOL | ... | EOL | body | NUL | EOL ...

Limits hold before anything is buffered beyond them: the reader never keeps more than one header line or one body above what it was
last fed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["COMMANDS", "V10", "V11", "V12", "Frame", "FrameReader", "StompError", "encode_frame"]

V10, V11, V12 = "1.0", "1.1", "1.2"
COMMANDS = frozenset({
    b"CONNECT", b"STOMP", b"SEND", b"SUBSCRIBE", b"UNSUBSCRIBE", b"ACK", b"NACK", b"BEGIN", b"COMMIT", b"ABORT", b"DISCONNECT",
})  # fmt: skip
"""Commands of clients."""
WITH_BODY = "SEND"
"""The only command of clients whose frame may have a body (STOMP 1.2 "Body")."""
UNESCAPED = ("CONNECT", "STOMP", "CONNECTED")
"""Frames whose headers are never escaped, for clients of 1.0 (STOMP 1.2 "Value Encoding")."""
_DECODED = {
    V11: {"\\\\": "\\", "\\n": "\n", "\\c": ":"},
    V12: {"\\\\": "\\", "\\n": "\n", "\\c": ":", "\\r": "\r"},
}  # fmt: skip
_ENCODED = {version: {ord(text): escape for escape, text in table.items()} for version, table in _DECODED.items()}
_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,10}")


class StompError(Exception):
    """A violation of the norm or of a limit by the client; the connection ends with an ERROR frame that has this text.

    receipt: `receipt` of the frame, if it was read.
    """

    def __init__(self, message: str, receipt: str | None = None) -> None:
        super().__init__(message)
        self.receipt = receipt


@dataclass(slots=True)
class Frame:
    """A frame of a client. Of repeated headers the first one counts (STOMP 1.2 "Repeated Header Entries")."""

    command: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def need(self, name: str) -> str:
        """Returns a header. Raises StompError without it."""
        value = self.headers.get(name)
        if value is None:
            raise StompError(f"{self.command}: header {name} is missing", self.headers.get("receipt"))
        return value


class FrameReader:
    """Finds frames in what a client sends. Limits are those of `gateways.stomp.frame`. After a StompError it is not used again."""

    def __init__(self, max_headers: int, max_header_length: int, max_body_length: int) -> None:
        self._max_headers, self._max_line, self._max_body = max_headers, max_header_length, max_body_length
        self.version: str | None = None
        """The negotiated version; None before CONNECT."""
        self._data = bytearray()
        self._at = 0
        """Bytes that are parsed."""
        self._searched = 0
        """Bytes in which the end of a line or a body was not found."""
        self._frame: Frame | None = None
        self._headers = 0
        self._in_body = False
        self._length: int | None = None

    def feed(self, data: bytes) -> None:
        """Adds received bytes."""
        if self._at:
            del self._data[: self._at]
            self._searched = max(0, self._searched - self._at)
            self._at = 0
        self._data += data

    @property
    def buffered(self) -> int:
        """Bytes that are not parsed."""
        return len(self._data) - self._at

    def next(self) -> Frame | None:
        """Returns the next frame, or None if it is incomplete. Raises StompError."""
        while not self._in_body:
            line = self._line()
            if line is None:
                return None
            if self._frame is None:
                if line:
                    self._begin(line)
            elif line:
                self._add(self._frame, line)
            else:
                self._end_headers(self._frame)
        return self._body()

    def _line(self) -> bytes | None:
        end = self._data.find(b"\n", max(self._at, self._searched))
        if end < 0:
            self._searched = len(self._data)
            if self.buffered > self._max_line:
                raise self._error(f"a line is longer than max_headers_length = {self._max_line} bytes")
            if self._data.find(b"\0", self._at) >= 0:
                raise self._error("a NUL octet before the end of the headers")
            return None
        line = bytes(self._data[self._at : end])
        self._at = end + 1
        if len(line) > self._max_line:
            raise self._error(f"a line is longer than max_headers_length = {self._max_line} bytes")
        if b"\0" in line:
            raise self._error("a NUL octet before the end of the headers")
        # STOMP 1.2 "Augmented BNF": EOL is LF or CRLF; before 1.2 a CR is part of the line.
        if self.version in (None, V12):
            line = line.removesuffix(b"\r")
            if b"\r" in line:
                raise self._error("a carriage return within a line")
        return line

    def _begin(self, line: bytes) -> None:
        if line not in COMMANDS:
            raise StompError(f"unknown command {line[:20].decode(errors='replace')!r}")
        self._frame, self._headers = Frame(line.decode()), 0

    def _add(self, frame: Frame, line: bytes) -> None:
        self._headers += 1
        if self._headers > self._max_headers:
            raise self._error(f"more headers than max_headers = {self._max_headers}")
        try:
            name, colon, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise self._error("a header is not valid UTF-8") from None
        if not colon or not name:
            raise self._error("a header line without a name and a colon")
        if self.version == V10:
            name, value = name.strip(), value.strip()
        elif self.version is not None and b"\\" in line:
            name, value = self._unescaped(name), self._unescaped(value)
        frame.headers.setdefault(name, value)

    def _unescaped(self, text: str) -> str:
        table = _DECODED[str(self.version)]

        def one(found: re.Match[str]) -> str:
            if found[0] not in table:
                raise self._error(f"undefined escape sequence {found[0]!r} in STOMP {self.version}")
            return table[found[0]]

        return _ESCAPE.sub(one, text)

    def _end_headers(self, frame: Frame) -> None:
        length = frame.headers.get("content-length")
        self._length = None
        if length is not None:
            if not _LENGTH.fullmatch(length.strip()):
                raise self._error(f"content-length must be a number, got {length[:20]!r}")
            self._length = int(length)
            if self._length > self._max_body:
                raise self._error(f"a body of {self._length} bytes, max_body_length is {self._max_body}")
        self._in_body, self._searched = True, self._at

    def _body(self) -> Frame | None:
        frame = self._frame
        assert frame is not None
        if self._length is not None:
            end = self._at + self._length
            if len(self._data) <= end:
                return None
            if self._data[end]:
                raise self._error(f"no NUL octet after the {self._length} bytes of content-length")
        else:
            end = self._data.find(b"\0", self._searched)
            if (end if end >= 0 else len(self._data)) - self._at > self._max_body:
                raise self._error(f"a body of more than max_body_length = {self._max_body} bytes")
            if end < 0:
                self._searched = len(self._data)
                return None
        frame.body = bytes(self._data[self._at : end])
        if frame.body and frame.command != WITH_BODY:
            raise self._error(f"{frame.command} must not have a body")
        self._at = self._searched = end + 1
        self._frame, self._in_body = None, False
        return frame

    def _error(self, text: str) -> StompError:
        frame = self._frame
        if frame is None:
            return StompError(text)
        return StompError(f"{frame.command}: {text}", frame.headers.get("receipt"))


def encode_frame(version: str, command: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """Returns a frame of the server. Headers that a version cannot express are left out."""
    lines = [command]
    table = None if command in UNESCAPED else _ENCODED.get(version)
    for name, value in headers:
        if table is not None:
            lines.append(f"{name.translate(table)}:{value.translate(table)}")
        elif "\n" not in name and "\n" not in value and ":" not in name:
            lines.append(f"{name}:{value}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0\n"
