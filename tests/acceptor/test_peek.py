"""The client id is found in whatever pieces a CONNECT comes, and nothing is taken for one that is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptor.peek import peek_client_id
from tests.acceptor.connects import connect, user_property, varint

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@VERSIONS
@pytest.mark.parametrize("bridge", [False, True])
def test_found_as_soon_as_it_is_there(version: int, bridge: bool) -> None:
    packet = connect(b"the-client", version, user_property(200), b"\0" * 300, bridge)
    complete = packet.index(b"the-client") + len(b"the-client")
    for size in range(complete):
        assert peek_client_id(packet[:size]) is None, size
    for size in range(complete, len(packet) + 1):
        assert peek_client_id(packet[:size]) == b"the-client", size


@given(st.sampled_from([3, 4, 5]), st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=50))
def test_found_in_any_connect(version: int, client_id: bytes, properties: int, rest: bytes) -> None:
    packet = connect(client_id, version, user_property(properties), rest)
    assert peek_client_id(packet) == client_id
    assert peek_client_id(packet + b"\x30\x00") == client_id


@VERSIONS
def test_empty_client_id_is_found(version: int) -> None:
    assert peek_client_id(connect(b"", version)) == b""


@pytest.mark.parametrize("first", [0x00, 0x20, 0x30, 0x47, 0xF0])
def test_other_first_byte(first: int) -> None:
    assert peek_client_id(bytes([first])) == "not_connect"


@pytest.mark.parametrize("first", [0x11, 0x16, 0x1F])
def test_flags_count_for_nothing_in_mqtt_3_1_alone(first: int) -> None:
    """The shortest CONNECT of MQTT 3.1 is longer than what a TLS record says of itself: it is not waited for."""
    assert peek_client_id(bytes([first])) is None
    assert peek_client_id(bytes([first, 3])) == peek_client_id(bytes([first, 13])) == "not_connect"
    assert peek_client_id(bytes([first]) + connect(b"id", 3)[1:]) == b"id"
    assert peek_client_id(bytes([first]) + connect(b"id", 4)[1:]) == "not_connect"


def test_announced_length_over_the_limit() -> None:
    packet = connect(b"c", 5, user_property(2000))
    assert peek_client_id(packet, len(packet)) == b"c"
    assert peek_client_id(packet, len(packet) - 1) == "too_large"
    assert peek_client_id(b"\x10\xff\xff\xff\x7f") == "too_large"


def short(packet: bytes, remaining: int) -> bytes:
    """The same packet with another remaining length, and what follows it still there."""
    return b"\x10" + varint(remaining) + packet[2:] + b"\x80" * 16


@pytest.mark.parametrize(
    "packet",
    [
        b"\x10\xff\xff\xff\xff\x01",  # remaining length of five bytes
        b"\x10\x00",
        b"\x10\x01\x00",
        b"\x10\x05\x00\x07MQTTxyz",  # a name that no version has
        b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\xff\xff\xff\xff\xff",  # property length without an end
        b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x3c\x50\x00\x01c\x00",  # properties beyond the packet
        connect(b"")[:-1] + b"\x01",  # client id beyond the packet
    ],
)
def test_unclear_packets_go_to_a_worker(packet: bytes) -> None:
    assert peek_client_id(packet) == "unclear"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packet_that_ends_early_is_never_read_beyond_its_end(version: int) -> None:
    packet = connect(b"client", version)
    for remaining in range(len(packet) - 2):
        assert peek_client_id(short(packet, remaining)) == "unclear", remaining


@given(st.binary(max_size=64), st.integers(0, 64))
def test_more_bytes_never_change_a_decision(tail: bytes, cut: int) -> None:
    data = b"\x10" + tail
    early = peek_client_id(data[: min(cut + 1, len(data))], 60)
    if early is not None:
        assert peek_client_id(data, 60) == early
