"""Events as they travel, and the log lines made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.logs.lines import client_line, escaped, stamp
from shm.events import (
    EXPIRY_NEVER,
    KIND_CONNECTED,
    KIND_DENIED,
    KIND_DISCONNECTED,
    KIND_REFUSED,
    ClientEvent,
    EventError,
    pack_event,
    unpack_event,
)


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
        st.one_of(st.ip_addresses(v=4).map("{}:50312".format), st.just("[2001:db8::1]:1"), st.just("")),
        st.text(max_size=90),
        st.binary(max_size=60),
        st.integers(0, EXPIRY_NEVER),
        st.integers(0, 65535),
        st.booleans(),
    )
)
def test_events_travel(event: ClientEvent) -> None:
    data = pack_event(*event)
    assert unpack_event(data) == unpack_event(data + b"behind") == event
    for size in range(len(data)):
        with pytest.raises(EventError):
            unpack_event(data[:size])


def test_texts_are_cut_and_never_within_a_character() -> None:
    event = unpack_event(pack_event(*gone(detail="\u20ac" * 500, client_id=b"c" * 70000)))
    assert event.detail == "\u20ac" * 133
    assert event.client_id == b"c" * 65535


def line(event: ClientEvent) -> str:
    """The line of an event, without time and level."""
    whole = client_line(pack_event(*event)).decode()
    assert whole.startswith("2023-11-14T22:13:20.123+00:00 ") and whole.endswith("\n")
    return whole.split(" ", 2)[2][:-1]


def test_line_of_a_client_that_goes() -> None:
    assert line(gone(detail='taken over by "x"')) == (
        "client disconnected client_id=sensor-1 peer=127.0.0.1:50312 reason=0x8e session_taken_over side=server "
        'detail="taken over by \\"x\\""'
    )
    assert line(gone(reason_code=0, side=0)).endswith("reason=0x00 normal_disconnection side=client")
    assert line(gone(reason_code=0x7F, side=2)).endswith("reason=0x7f unknown side=network")
    assert line(gone(side=9)).endswith("side=9")
    assert "peer=[2001:db8::1]:5 " in line(gone(peer="[2001:db8::1]:5"))
    assert 'peer="" ' in line(gone(peer=""))


def test_line_of_a_client_that_comes() -> None:
    whole = client_line(pack_event(*gone(kind=KIND_CONNECTED, username=b"a b")), b"INFO").decode()
    assert whole.endswith(' INFO client connected client_id=sensor-1 peer=127.0.0.1:50312 username="a b" version=5 keepalive=60s\n')
    assert line(gone(kind=KIND_CONNECTED)) == "client connected client_id=sensor-1 peer=127.0.0.1:50312 version=5 keepalive=60s"


def test_lines_name_the_user() -> None:
    user = {"username": b"ann\n", "detail": "x"}
    assert 'peer=127.0.0.1:50312 username="ann\\n" reason=0x8e' in line(gone(**user))
    assert 'username="ann\\n" detail="x"' in line(gone(kind=KIND_DENIED, **user))
    assert 'client disconnected client_id=sensor-1 peer=127.0.0.1:50312 username="ann\\n" ' in line(gone(kind=KIND_REFUSED, **user))
    assert f"username={'u' * 256} " in line(gone(username=b"u" * 65535))


def test_stamps_follow_the_seconds() -> None:
    assert [stamp(at_ms) for at_ms in (0, 999, 1000, 1_700_000_000_007, 1_700_000_000_100)] == [
        "1970-01-01T00:00:00.000+00:00",
        "1970-01-01T00:00:00.999+00:00",
        "1970-01-01T00:00:01.000+00:00",
        "2023-11-14T22:13:20.007+00:00",
        "2023-11-14T22:13:20.100+00:00",
    ]


@pytest.mark.parametrize("at_ms", [253_402_300_800_000, 2**63, 2**64 - 1])
def test_a_time_that_no_calendar_has_is_the_latest_one(at_ms: int) -> None:
    """The line of a damaged event is still a line."""
    assert client_line(pack_event(*gone(at_ms=at_ms))).startswith(b"9999-12-31T23:59:59.999+00:00 INFO client disconnected ")


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
    assert escaped(text) == shown.encode()
    assert "\n" not in line(gone(client_id=text, detail=text.decode(errors="replace")))
