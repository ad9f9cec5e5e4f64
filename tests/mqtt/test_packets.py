"""The codec: every packet, both directions, however the bytes are split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
)
from shardbroker.mqtt.spec import PROPERTIES, REASON_CODES, PacketType, PropertyId, Wire

text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20).map(str.encode)
binary = st.binary(max_size=20)
packet_ids = st.integers(1, 65535)


def value_of(identifier: int) -> st.SearchStrategy[object]:
    spec = PROPERTIES[identifier]
    low = 1 if spec.nonzero or identifier == PropertyId.TOPIC_ALIAS else 0
    if identifier == PropertyId.RESPONSE_TOPIC:
        return st.just(b"answer/to")
    return {
        Wire.BYTE: st.integers(0, 1),
        Wire.UINT16: st.integers(low, 65535),
        Wire.UINT32: st.integers(low, 2**32 - 1),
        Wire.VARINT: st.integers(1, 268435455),
        Wire.STRING: text,
        Wire.BINARY: binary,
        Wire.PAIR: st.lists(st.tuples(text, text), min_size=1, max_size=3),
    }[spec.wire]


def properties(packet: PacketType, *without: int) -> st.SearchStrategy[dict[int, object] | None]:
    allowed = [int(i) for i, spec in PROPERTIES.items() if packet in spec.packets and i not in without]
    some = st.lists(st.sampled_from(allowed), unique=True, max_size=5).flatmap(
        lambda chosen: st.fixed_dictionaries({i: value_of(i) for i in chosen})
    )
    return some.map(lambda found: found or None)


def codes(packet: PacketType) -> st.SearchStrategy[int]:
    return st.sampled_from([code for code, (_, packets) in REASON_CODES.items() if packet in packets])


P, I = PacketType, PropertyId  # noqa: E741
wills = st.builds(Will, text, binary, st.integers(0, 2), st.booleans(), properties(P.WILL))
filters = st.sampled_from([b"a", b"a/+", b"#", b"$share/g/t"])
PACKETS_5 = st.one_of(
    st.builds(
        Connect,
        st.just(5),
        text,
        st.booleans(),
        st.integers(0, 65535),
        st.none() | text,
        st.none() | binary,
        st.none() | wills,
        properties(P.CONNECT, I.AUTHENTICATION_DATA),
    ),
    st.builds(Connack, st.booleans(), codes(P.CONNACK), properties(P.CONNACK)),
    st.builds(Publish, text, binary, st.just(0), st.booleans(), properties=properties(P.PUBLISH, I.SUBSCRIPTION_IDENTIFIER)),
    st.builds(
        Publish,
        text,
        binary,
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        packet_ids,
        properties(P.PUBLISH, I.SUBSCRIPTION_IDENTIFIER),
    ),
    *(st.builds(kind, packet_ids, codes(kind.type), properties(kind.type)) for kind in (Puback, Pubrec, Pubrel, Pubcomp)),
    st.builds(
        Subscribe, packet_ids, st.lists(st.tuples(filters, st.integers(0, 2)), min_size=1, max_size=3), properties(P.SUBSCRIBE)
    ),
    st.builds(Suback, packet_ids, st.lists(codes(P.SUBACK), min_size=1).map(bytes), properties(P.SUBACK)),
    st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=3), properties(P.UNSUBSCRIBE)),
    st.builds(Unsuback, packet_ids, st.lists(codes(P.UNSUBACK), min_size=1).map(bytes), properties(P.UNSUBACK)),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(Disconnect, codes(P.DISCONNECT), properties(P.DISCONNECT)),
    st.builds(Auth, codes(P.AUTH), properties(P.AUTH)),
)


@settings(max_examples=600, deadline=None)
@given(PACKETS_5)
def test_decode_of_encode_is_the_packet(packet: object) -> None:
    data = packet.encode(5)  # type: ignore[attr-defined]
    assert decode(data, 0, 5) == (packet, len(data))


@settings(max_examples=200, deadline=None)
@given(PACKETS_5)
def test_a_part_of_a_packet_asks_for_more(packet: object) -> None:
    data = packet.encode(5)  # type: ignore[attr-defined]
    for size in range(len(data)):
        assert decode(data[:size], 0, 5) is None


@pytest.mark.parametrize("version", [3, 4])
def test_versions_3(version: int) -> None:
    for packet in (
        Connect(version, b"id", False, 5, b"u", b"p", Will(b"w", b"x", 2, True)),
        Connack(True, 0),
        Publish(b"t", b"x", 1, True, True, 7),
        Puback(1),
        Pubrel(2),
        Subscribe(3, [(b"a/+", 2)]),
        Suback(3, b"\2\x80"),
        Unsubscribe(4, [b"a"]),
        Unsuback(4),
        Disconnect(),
    ):
        assert decode(packet.encode(version), 0, version) == (packet, len(packet.encode(version)))


@pytest.mark.parametrize(
    ("data", "version", "code"),
    [
        (b"\xc0\x80\x00", 5, 0x81),  # long form of a length
        (b"\x10\xff\xff\xff\xff\x01", 5, 0x81),  # five bytes of length
        (b"\x36\x05\0\x01t\0\x01", 4, 0x81),  # QoS 3
        (b"\x32\x05\0\x01t\0\0", 4, 0x82),  # packet id 0
        (b"\x38\x04\0\x01tx", 4, 0x81),  # DUP at QoS 0
        (b"\x40\x03\0\x01\x00", 4, 0x81),  # PUBACK of 3.1.1 with a code
        (b"\x40\x03\0\x01\x8e", 5, 0x82),  # a code that PUBACK does not have
        (b"\x82\x06\0\x01\0\x01t\x03", 4, 0x81),  # QoS 3
        (b"\x82\x02\0\x01", 4, 0x82),  # no filter
        (b"\x30\x07\0\x01t\x03\x23\0\0", 5, 0x94),  # topic alias 0
        (b"\xf0\x00", 4, 0x81),  # AUTH in 3.1.1
        (b"\x10\x0c\0\x04MQTT\x06\x02\0\x00\0\0", 4, 0x84),  # level 6
    ],
)
def test_refused(data: bytes, version: int, code: int) -> None:
    with pytest.raises(MqttError) as error:
        decode(data, 0, version)
    assert error.value.reason_code == code
