"""Packets of a client, many at a time: the same bytes as one by one, and the same packets however they are cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.mqtt.batches import encode_acks, encode_publishes, publish_size, split_packets
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Connack, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, encode_properties
from shardbroker.mqtt.spec import PropertyId

MOST = 1 << 20
Given = tuple[int, int, bytes, dict[int, object] | None, bytes]
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 3, 4, 5, 10, 12, 13]),
        st.integers(1, 65535),
        st.binary(min_size=1, max_size=200),
        st.sampled_from([None, {PropertyId.CONTENT_TYPE: b"x" * 130}, {PropertyId.USER_PROPERTY: [(b"a", b"b"), (b"a", b"")]}]),
        st.binary(max_size=300),
    ),
    max_size=5,
)


@given(MESSAGES, st.sampled_from([3, 4, 5]))
def test_a_batch_has_the_bytes_of_its_packets(messages: list[Given], version: int) -> None:
    rows = [(flags, number, topic, encode_properties(given or {}), payload) for flags, number, topic, given, payload in messages]
    single = [
        Publish(topic, payload, flags >> 1 & 3, flags & 1, flags & 8, number, given).encode(version)
        for flags, number, topic, given, payload in messages
    ]
    assert encode_publishes(rows, version) == b"".join(single)
    sizes = [publish_size(topic, flags & 6, properties, payload, version) for flags, _, topic, properties, payload in rows]
    assert sizes == [len(one) for one in single]


@given(st.lists(st.integers(1, 65535), max_size=5), st.sampled_from([Puback, Pubrec, Pubrel, Pubcomp]), st.sampled_from([3, 4, 5]))
def test_acknowledgements_have_the_bytes_of_their_packets(ids: list[int], kind: Any, version: int) -> None:
    assert encode_acks(kind.first, ids) == b"".join(kind(one).encode(version) for one in ids)


@given(st.integers(0, 60))
def test_what_is_received_may_be_cut_anywhere(cut: int) -> None:
    packets = [
        Connack(False, 0), Puback(1), Pubrec(2, 0x87), Pubrel(3), Pubcomp(4, 0x92), Publish(b"t", b"x" * 20, 1, packet_id=5),
        Suback(6, b"\x01"), Pingresp(),
    ]  # fmt: skip
    data = b"".join(one.encode(5) for one in packets)
    first, used = split_packets(data[:cut], 5, MOST)
    second, end = split_packets(data[used:], 5, MOST)
    assert used + end == len(data)
    expected = [packets[0], (4, 1, 0), (5, 2, 0x87), (6, 3, 0), (7, 4, 0x92), *packets[5:]]
    assert first + second == expected


@pytest.mark.parametrize("topic", [b"", b"x" * 65536])
def test_a_message_that_no_packet_can_have(topic: bytes) -> None:
    with pytest.raises(ValueError, match=r"^topic: must be 1 to 65535 bytes"):
        encode_publishes([(0, 0, topic, b"", b"")], 4)


def test_a_packet_that_is_too_large_is_refused_before_it_is_complete() -> None:
    with pytest.raises(MqttError, match="a packet of 1000 bytes, allowed are 100"):
        split_packets(b"\x30\xe8\x07", 4, 100)
