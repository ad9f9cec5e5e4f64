"""Events as they travel, and the log lines made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.management.lines import client_come, client_gone, escaped
from shm.events import KIND_CONNECTED, KIND_DISCONNECTED, ClientEvent, EventError, pack_event, unpack_event


def gone(**changes: object) -> ClientEvent:
    event = ClientEvent(KIND_DISCONNECTED, 0x8E, 1, 5, 60, 1_700_000_000_123, b"sensor-1", "127.0.0.1:50312", "")
    return event._replace(**changes)  # type: ignore[arg-type]


@given(
    st.builds(
        ClientEvent,
        st.sampled_from([KIND_CONNECTED, KIND_DISCONNECTED]),
        st.integers(0, 255),
        st.integers(0, 2),
        st.integers(3, 5),
        st.integers(0, 65535),
        st.integers(0, 2**63),
        st.binary(max_size=300),
        st.text(max_size=60),
        st.text(max_size=90),
    )
)
def test_events_travel(event: ClientEvent) -> None:
    data = pack_event(*event)
    assert unpack_event(data) == unpack_event(memoryview(data + b"behind")) == event
    for size in range(len(data)):
        with pytest.raises(EventError):
            unpack_event(data[:size])


def test_texts_are_cut_and_never_within_a_character() -> None:
    event = unpack_event(pack_event(*gone(detail="\u20ac" * 500, client_id=b"c" * 70000)))
    assert event.detail == "\u20ac" * 133
    assert event.client_id == b"c" * 65535


def test_line_of_a_client_that_goes() -> None:
    assert client_gone(gone(detail='taken over by "x"')) == (
        "client gone client_id=sensor-1 peer=127.0.0.1:50312 reason=0x8e session_taken_over side=server "
        'detail="taken over by \\"x\\""'
    )
    assert client_gone(gone(reason_code=0, side=0)).endswith("reason=0x00 normal_disconnection side=client")
    assert client_gone(gone(reason_code=0x7F, side=2)).endswith("reason=0x7f unknown side=network")
    assert client_gone(gone(side=9)).endswith("side=9")


def test_line_of_a_client_that_comes() -> None:
    line = client_come(gone(kind=KIND_CONNECTED))
    assert line == "client connected client_id=sensor-1 peer=127.0.0.1:50312 version=5 keepalive=60s"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain-1", "plain-1"),
        (b"", '""'),
        (b"two words", '"two words"'),
        (b"a=b", '"a=b"'),
        (b'q"q\\', '"q\\"q\\\\"'),
        (b"line\nbreak\r\x1b[31m", '"line\\nbreak\\r\\x1b[31m"'),
        ("\u00e9\u2028\u202e".encode(), '"\u00e9\\u2028\\u202e"'),
        (b"\xff", '"\\\\xff"'),
    ],
)
def test_no_client_writes_lines_of_its_own(text: bytes, shown: str) -> None:
    assert escaped(text) == shown
    assert "\n" not in client_gone(gone(client_id=text, peer=text.decode(errors="replace"), detail=text.decode(errors="replace")))
