"""transport/websocket.pyx: frames fed whole, in halves and byte by byte give the result of a decoder of ten lines."""

import itertools
from collections.abc import Iterable

from fuzz.engine import pieces
from shardbroker.transport.websocket import Framing, WebSocketError, client_frame

MAX_LEN = 700
FRAME_MAX = 400
FINAL, CLOSE, PING = 0x80, 8, 9


def seeds() -> Iterable[bytes]:
    for size in (0, 1, 9, 125, 126, 300):
        yield client_frame(bytes(range(256))[: size % 256] * 2, mask=b"\1\2\3\4")
    yield client_frame(b"ab", 2, b"abcd") + client_frame(b"ping", FINAL | PING, b"wxyz") + client_frame(b"cd", FINAL, b"efgh")
    yield client_frame(b"\x03\xe8", FINAL | CLOSE, b"abcd")


def check(data: bytes) -> None:
    outcomes = [_outcome(parts) for parts in ([data], pieces(data, 1), pieces(data, len(data) // 2 + 1))]
    for outcome in outcomes[1:]:
        assert outcome == outcomes[0], outcomes
    plain, _, error = outcomes[0]
    expected = _plain(data)
    assert plain == expected if error is None else expected.startswith(plain), (plain, expected)


def _outcome(parts: list[bytes]) -> tuple[bytes, bytes, int | None]:
    """Returns (MQTT bytes, control frames to send, close code of the error); MQTT bytes in the piece of an error are left out."""
    framing, plain = Framing(FRAME_MAX), b""
    for number, part in enumerate(parts):
        try:
            plain += framing.decode(part)
        except WebSocketError as error:
            if number or len(parts) == 1:
                plain = b""  # the amount before an error depends on the pieces
            return plain, framing.close_frame(error.code), error.code
    return plain, framing.close_frame(1000), None


def _plain(data: bytes) -> bytes:
    """Returns the payloads of data frames up to a Close frame, by RFC 6455 §5.2 alone, for valid frames."""
    plain, at = b"", 0
    while at + 6 <= len(data):
        opcode, size, head = data[at] & 15, data[at + 1] & 127, 2
        if size >= 126:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[at + 2 : at + head])
        mask, start = data[at + head : at + head + 4], at + head + 4
        body = bytes(a ^ b for a, b in zip(data[start : start + size], itertools.cycle(mask or b"\0")))
        if opcode == CLOSE and start + size <= len(data):
            break
        if opcode < CLOSE:
            plain += body
        at = start + size
    return plain
