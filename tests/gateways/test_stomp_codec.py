"""Frames of clients without a broker: how they may be cut, limits, escapes by version."""

import pytest

from shardbroker.gateways.stomp.codec import V10, V11, V12, Frame, FrameReader, StompError, encode_frame

LIMITS = 4, 64, 100
"""Headers, bytes of a line, bytes of a body."""


def read(data: bytes, version: str | None = V12, step: int = 1 << 20) -> list[Frame]:
    reader, found = FrameReader(*LIMITS), []
    reader.version = version
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        while (frame := reader.next()) is not None:
            found.append(frame)
    return found


def refused(data: bytes, version: str | None = V12, step: int = 1 << 20) -> str:
    with pytest.raises(StompError) as caught:
        read(data, version, step)
    return str(caught.value)


STREAM = (
    b"\n\nSEND\ndestination:a\n\nhello\0\n\r\n\nSEND\r\ndestination:b\r\ncontent-length:5\r\n\r\nh\0l\0o\0"
    b"SUBSCRIBE\nid:1\ndestination:c\n\n\0"
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_frames_do_not_depend_on_where_they_are_cut(step: int) -> None:
    assert read(STREAM, step=step) == [
        Frame("SEND", {"destination": "a"}, b"hello"),
        Frame("SEND", {"destination": "b", "content-length": "5"}, b"h\0l\0o"),
        Frame("SUBSCRIBE", {"id": "1", "destination": "c"}, b""),
    ]


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SEND\n" + b"a:b\n" * 5, "more headers than max_headers = 4"),
        (b"SEND\na:" + b"x" * 63 + b"\n", "max_headers_length = 64"),
        (b"SEND\na:" + b"x" * 1000, "max_headers_length = 64"),
        (b"SEND\ncontent-length:101\n\n", "max_body_length is 100"),
        (b"SEND\n\n" + b"x" * 101, "max_body_length = 100"),
        (b"SEND\ncontent-length:99999999999999999999\n\n", "content-length must be a number"),
        (b"SEND\ncontent-length:-1\n\n", "content-length must be a number"),
        (b"SEND\ncontent-length:1\n\nab\0", "no NUL octet"),
        (b"GET / HTTP/1.1\r\n", "unknown command"),
        (b"send\n", "unknown command"),
        (b"SEND\nno colon\n", "without a name and a colon"),
        (b"SEND\n:value\n", "without a name and a colon"),
        (b"SEND\na:\xff\n", "UTF-8"),
        (b"SEND\na:b\0", "NUL"),
        (b"SEND\0", "NUL"),
        (b"SEND\na:b\rc\n", "carriage return"),
    ],
)
def test_what_is_refused(data: bytes, text: str, step: int) -> None:
    assert text in refused(data, step=step)


@pytest.mark.parametrize("command", ["SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "DISCONNECT", "CONNECT"])
def test_only_send_has_a_body(command: str) -> None:
    assert "must not have a body" in refused(f"{command}\n\nbody\0".encode())


def test_the_first_of_repeated_headers_counts() -> None:
    (frame,) = read(b"SEND\nfoo:World\nfoo:Hello\n\n\0")
    assert frame.headers == {"foo": "World"}


@pytest.mark.parametrize(
    ("version", "escaped", "value"),
    [
        (V10, r"a\nb", r"a\nb"),
        (V11, r"a\nb\cc\\d", "a\nb:c\\d"),
        (V12, r"a\nb\cc\\d\r", "a\nb:c\\d\r"),
        (None, r"a\nb\x", r"a\nb\x"),
    ],
)
def test_escapes(version: str | None, escaped: str, value: str) -> None:
    (frame,) = read(f"SEND\nk:{escaped}\n\n\0".encode(), version)
    assert frame.headers == {"k": value}


@pytest.mark.parametrize(("version", "escape"), [(V11, r"\r"), (V11, r"\t"), (V12, r"\t"), (V12, "\\")])
def test_undefined_escapes_are_refused(version: str, escape: str) -> None:
    assert "undefined escape" in refused(f"SEND\nk:{escape}\n\n\0".encode(), version)


def test_a_carriage_return_is_part_of_a_line_before_1_2() -> None:
    (frame,) = read(b"SEND\nk:v\r\n\n\0", V11)
    assert frame.headers == {"k": "v\r"}


def test_blanks_around_values_are_kept_since_1_1() -> None:
    assert read(b"SEND\nk: v \n\n\0", V10)[0].headers == {"k": "v"}
    assert read(b"SEND\nk: v \n\n\0", V11)[0].headers == {"k": " v "}


def test_frames_of_the_server() -> None:
    assert encode_frame(V12, "MESSAGE", [("k", "a\n:\\\r")], b"b") == b"MESSAGE\nk:a\\n\\c\\\\\\r\n\nb\0\n"
    assert encode_frame(V11, "MESSAGE", [("k", "a\n:\\")]) == b"MESSAGE\nk:a\\n\\c\\\\\n\n\0\n"
    assert encode_frame(V10, "MESSAGE", [("k", "a:\\"), ("lost", "a\nb"), ("a:b", "c")]) == b"MESSAGE\nk:a:\\\n\n\0\n"
    assert encode_frame(V12, "CONNECTED", [("k", "a:b")]) == b"CONNECTED\nk:a:b\n\n\0\n"


def test_what_is_kept_is_bounded() -> None:
    """One byte at a time, a client gets no more into memory than a frame of the largest size."""
    reader = FrameReader(*LIMITS)
    most = 0
    with pytest.raises(StompError):
        for byte in b"SEND\nk:v\n\n" + b"x" * 1000:
            reader.feed(bytes([byte]))
            most = max(most, reader.buffered)
            assert reader.next() is None
    assert most <= 101
