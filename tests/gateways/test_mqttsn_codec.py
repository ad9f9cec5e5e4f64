"""Messages of MQTT-SN without a gateway: both ways, against the client's own codec, and what is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.gateways.mqttsn.codec import (
    LAYOUTS,
    NODE_MAX,
    Kind,
    Message,
    MqttSnError,
    decode,
    encode_publish,
    short_id,
    short_name,
    unwrap,
)
from tests.gateways import mqttsn_client as norm

BYTE, WORD = st.integers(0, 255), st.integers(0, 65535)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(list(Kind)))
    layout = LAYOUTS[kind]
    message = Message(kind)
    for name, size in layout.fields:
        setattr(message, name, draw(BYTE if size == "B" else WORD))
    if layout.has_rest:
        message.data = draw(st.binary(max_size=400))
    return message


@given(messages())
def test_a_message_survives_both_ways(message: Message) -> None:
    data = message.encode()
    assert decode(data) == message
    assert decode(data).encode() == data


@given(messages())
def test_lengths_are_those_of_the_norm(message: Message) -> None:
    """MQTT-SN §5.2.1: one byte up to 255, else 0x01 and two bytes."""
    data = message.encode()
    if len(data) <= 255:
        assert data[0] == len(data) and data[1] == message.kind
    else:
        assert data[0] == 1 and struct.unpack_from("!H", data, 1) == (len(data),) and data[3] == message.kind


@given(st.binary(max_size=300))
def test_any_datagram_is_a_message_or_an_error(data: bytes) -> None:
    try:
        message = decode(data)
    except MqttSnError:
        return
    assert len(message.encode()) <= len(data) and decode(message.encode()) == message


@given(BYTE, WORD, WORD, st.binary(max_size=400))
def test_publish_is_made_in_one_go(flags: int, topic_id: int, message_id: int, payload: bytes) -> None:
    whole = Message(Kind.PUBLISH, flags=flags, topic_id=topic_id, msg_id=message_id, data=payload)
    assert encode_publish(flags, topic_id, message_id, payload) == whole.encode()


def test_types_and_fields_are_those_of_the_norm() -> None:
    """The test client has its own table, and so its own reading of the norm."""
    assert {kind.name: int(kind) for kind in Kind} == norm.TYPES
    assert decode(norm.connect("c1", 300, norm.WILL | norm.CLEAN)) == Message(Kind.CONNECT, flags=0x0C, duration=300, data=b"c1")
    assert decode(norm.publish(norm.SHORT, 0x6162, b"x", 2, 7, norm.DUP | norm.RETAIN)) == Message(
        Kind.PUBLISH, flags=0xD2, topic_id=0x6162, msg_id=7, data=b"x"
    )
    assert decode(norm.subscribe(b"a/+", -1, 9)) == Message(Kind.SUBSCRIBE, flags=0x60, msg_id=9, data=b"a/+")
    assert decode(norm.framed("DISCONNECT", b"\x01\x02")) == Message(Kind.DISCONNECT, duration=258)
    assert norm.parsed(Message(Kind.SUBACK, flags=0x20, topic_id=3, msg_id=4, code=2).encode()).fields == (0x20, 3, 4, 2)
    assert norm.parsed(Message(Kind.ADVERTISE, gateway_id=5, duration=900).encode()).fields == (5, 900)
    assert norm.parsed(encode_publish(0x21, 1, 2, b"y" * 300)) == norm.Got("PUBLISH", (0x21, 1, 2), b"y" * 300)


def test_empty_messages() -> None:
    """MQTT-SN §5.4.7, §5.4.21, §5.4.22: WILLTOPIC, DISCONNECT and WILLTOPICUPD may have no fields."""
    for kind in (Kind.WILLTOPIC, Kind.WILLTOPICUPD, Kind.DISCONNECT, Kind.PINGREQ):
        assert Message(kind).encode() == bytes((2, kind))
        assert decode(bytes((2, kind))) == Message(kind)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"\x02", "1 bytes"),
        (b"\x01\x00\x04", "without its length"),
        (b"\x03\x17", "length"),
        (b"\x02\x17\x00", "length"),
        (b"\x02\x03", "not defined"),
        (b"\x02\x11", "not defined"),
        (b"\x02\x1e", "not defined"),
        (b"\x02\x05", "CONNACK"),
        (b"\x04\x05\x00\x00", "CONNACK"),
        (b"\x03\x17\x00", "PINGRESP"),
        (b"\x03\x18\x00", "DISCONNECT"),
        (b"\x05\x04\x00\x01\x00", "CONNECT"),
        (b"\x01\x00\x05\x18\x00", "DISCONNECT"),
    ],
)
def test_what_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(MqttSnError, match=text):
        decode(data)


def test_a_message_that_is_too_long_is_not_made() -> None:
    with pytest.raises(ValueError, match="65535"):
        encode_publish(0, 1, 1, b"x" * 65536)


def test_short_topics() -> None:
    assert short_id(b"ab") == 0x6162 and short_name(0x6162) == b"ab"


def test_the_header_of_a_forwarder() -> None:
    """MQTT-SN §5.5: its length ends behind the node id."""
    assert unwrap(b"\x05\xfe\x00nn\x02\x16") == (b"\x05\xfe\x00nn", b"\x02\x16")
    assert unwrap(b"\x03\xfe\x01\x02\x16") == (b"\x03\xfe\x01", b"\x02\x16")
    assert unwrap(b"\x02\x16") == (b"", b"\x02\x16")
    assert unwrap(b"\x01\xfe\x00") == (b"", b"\x01\xfe\x00")
    longest = bytes((3 + NODE_MAX, 0xFE, 0)) + bytes(NODE_MAX)
    assert unwrap(longest + b"\x02\x16") == (longest, b"\x02\x16")
    for data in (b"\x02\xfe\x00", b"\x09\xfe\x00n", bytes((4 + NODE_MAX, 0xFE, 0)) + bytes(NODE_MAX + 1)):
        with pytest.raises(MqttSnError):
            unwrap(data)
