"""gateways/stomp/codec.py: frames fed whole, in halves and byte by byte are the same; what is accepted survives a second way."""

from collections.abc import Iterable

from fuzz.engine import pieces
from shardbroker.gateways.stomp.codec import V10, V11, V12, Frame, FrameReader, StompError

MAX_LEN = 400
MAX_HEADERS, MAX_LINE, MAX_BODY = 6, 40, 60
VERSIONS = (None, V10, V11, V12)


def seeds() -> Iterable[bytes]:
    yield b"CONNECT\naccept-version:1.0,1.1,1.2\nhost:h\nlogin:a\npasscode:b:c\n\n\0\n"
    yield b"SEND\ndestination:a/b\ncontent-length:5\n\na\0b\0c\0\n\nSEND\r\nk:a\\nb\\cc\\\\d\\r\r\n\r\nx\0"
    yield b"SUBSCRIBE\nid:1\ndestination:c\nack:client\n\n\0ACK\nid:1\n\n\0BEGIN\ntransaction:t\n\n\0COMMIT\ntransaction:t\n\n\0"
    yield b"SEND\n" + b"a:b\n" * 6 + b"\n" + b"x" * 60 + b"\0"
    yield b"UNSUBSCRIBE\nid:1\n\n\0NACK\nid:2\n\n\0ABORT\ntransaction:t\n\n\0DISCONNECT\nreceipt:77\n\n\0"


def check(data: bytes) -> None:
    for version in VERSIONS:
        outcomes = [_outcome(version, parts) for parts in ([data], pieces(data, 1), pieces(data, len(data) // 2 + 1))]
        for frames, error in outcomes[1:]:
            assert (frames, error is None) == (outcomes[0][0], outcomes[0][1] is None), outcomes
        for frame in outcomes[0][0]:
            assert len(frame.headers) <= MAX_HEADERS and len(frame.body) <= MAX_BODY, frame
            assert not frame.body or frame.command == "SEND", frame


def _outcome(version: str | None, parts: list[bytes]) -> tuple[list[Frame], str | None]:
    """Returns the frames, and the error that ended them."""
    reader, frames = FrameReader(MAX_HEADERS, MAX_LINE, MAX_BODY), []
    reader.version = version
    for part in parts:
        reader.feed(part)
        try:
            while (frame := reader.next()) is not None:
                frames.append(frame)
        except StompError as error:
            return frames, str(error)
        assert reader.buffered <= max(MAX_LINE, MAX_BODY) + 1, "more is kept than a frame may have"
    return frames, None
