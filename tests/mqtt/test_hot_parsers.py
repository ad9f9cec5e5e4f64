"""The hot half of the codec (parse_publish, parse_ack, write_*) against the object half, through a connection of the core.

A client sends bytes to the core; what a subscriber gets, what the client is answered and whether it is cut off has to be what
the object decoder makes of the same bytes. And it is the same however the bytes are split.
"""

from itertools import pairwise
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shardbroker.config import load
from shardbroker.mqtt import packets as mqtt
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import decode
from shardbroker.mqtt.spec import PacketType, PropertyId
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.mqtt.test_packets import PACKETS_5, properties, text
from tests.sim.simulator import MemoryRoutes

NOW_MS = 1_700_000_000_000
SETTINGS = load(None, {}, ["mqtt.max_mqueue_len=0", "mqtt.max_inflight=65535"]).settings
TOPIC_LEVELS = 128
MALFORMED, PROTOCOL = 0x81, 0x82
NOT_FOUND, TOPIC_INVALID, FORMAT_INVALID = 0x92, 0x90, 0x99
NO_IDENTIFIER = PropertyId.SUBSCRIPTION_IDENTIFIER
VERSIONS = st.sampled_from([3, 4, 5])


def framed(first: int, body: bytes) -> bytes:
    size, length = len(body), b""
    while size > 127:
        length, size = length + bytes((size & 127 | 128,)), size >> 7
    return bytes((first,)) + length + bytes((size,)) + body


def all_of(channel: SansIoChannel, version: int) -> list[Any]:
    data = b""
    while more := channel.take_output():
        data += more
    found, offset = [], 0
    while (one := decode(data, offset, version)) is not None:
        packet, offset = one
        found.append(packet)
    assert offset == len(data)
    return found


def connection(router: SansIoRouter, name: bytes, version: int) -> SansIoChannel:
    channel = router.connect("peer")
    channel.receive(mqtt.Connect(version, name, keepalive_s=0).encode(version))
    return channel


class Core:
    """A shard with one subscriber to everything per version, at QoS 2 and with Retain As Published."""

    def __init__(self) -> None:
        routes = MemoryRoutes()
        self.router = SansIoRouter(SETTINGS, routes, 0, NOW_MS, seed=1)
        routes.shards = [self.router]
        self.subscribers = {version: connection(self.router, b"subscriber%d" % version, version) for version in (3, 5)}
        for version, channel in self.subscribers.items():
            channel.receive(mqtt.Subscribe(1, [(b"#", 2 if version < 5 else 2 | 8)]).encode(version))
        self.router.advance(NOW_MS)
        for channel in self.subscribers.values():
            channel.take_output()

    def delivered(self, version: int) -> list[Any]:
        """What the subscriber got; it is acknowledged, so that the window never fills."""
        channel = self.subscribers[version]
        found = all_of(channel, version)
        for packet in found:
            assert type(packet) is mqtt.Publish
            if packet.qos == 1:
                channel.receive(mqtt.Puback(packet.packet_id).encode(version))
            elif packet.qos == 2:
                channel.receive(mqtt.Pubrec(packet.packet_id).encode(version) + mqtt.Pubcomp(packet.packet_id).encode(version))
        channel.take_output()
        return found

    def send(self, version: int, data: bytes, size: int) -> tuple[list[Any], bool]:
        """Answers to a new client that sends this in pieces of `size` bytes, and whether it was cut off."""
        client = connection(self.router, b"client", version)
        client.take_output()
        for at in range(0, len(data), size):
            client.receive(data[at : at + size])
        answers, ended = all_of(client, version), client.is_closing
        if not ended:
            self.router.cut(client)
        return answers, ended


CORE = Core()


def is_utf_8(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def expected_of_publish(first: int, body: bytes, version: int) -> tuple[set[int], mqtt.Publish | None, int]:
    """Codes of which one must end the connection, or what is delivered, and the code that it is acknowledged with."""
    size = int.from_bytes(body[:2], "big")
    topic = body[2 : 2 + size]
    if len(topic) == size and len(body) >= 2 and not is_utf_8(topic):
        # The hot parser leaves the topic to the topic cache, so other errors are found before.
        codes, _, _ = expected_of_publish(first, b"\0\x01t" + body[2 + size :], version)
        return codes or {TOPIC_INVALID, MALFORMED}, None, 0
    try:
        packet, _ = decode(framed(first, body), 0, version)
    except MqttError as error:
        codes = {error.reason_code}
        if NO_IDENTIFIER in body:
            codes.add(PROTOCOL)  # refused at sight; the object decoder, which servers' packets go through too, reads on
        return codes, None, 0
    found = dict(packet.properties or {})
    found.pop(PropertyId.TOPIC_ALIAS, None)
    if NO_IDENTIFIER in found or not packet.topic:
        return {PROTOCOL}, None, 0
    try:
        check_topic_name(packet.topic, TOPIC_LEVELS)
    except MqttError as error:
        return {error.reason_code}, None, 0
    if found.get(PropertyId.PAYLOAD_FORMAT_INDICATOR) and not is_utf_8(packet.payload.replace(b"\0", b"")):
        return set(), None, FORMAT_INVALID
    return set(), mqtt.Publish(packet.topic, packet.payload, packet.qos, packet.retain, False, 0, found or None), 0


def check_publish(first: int, body: bytes, version: int, size: int) -> None:
    topic = body[2:3]
    assume(topic != b"$")  # not matched by #
    codes, message, code = expected_of_publish(first, body, version)
    answers, ended = CORE.send(version, framed(first, body), size)
    got = {number: CORE.delivered(number) for number in CORE.subscribers}
    assert ended == bool(codes)
    if ended:
        assert got == {3: [], 5: []}
        assert version < 5 or [(type(one), one.reason_code in codes) for one in answers] == [(mqtt.Disconnect, True)], answers
        return
    qos = (first >> 1) & 3
    assert [(type(one), one.reason_code if version == 5 else 0) for one in answers] == (
        [] if qos == 0 else [(mqtt.Puback if qos == 1 else mqtt.Pubrec, code if version == 5 else 0)]
    )
    for number, packets in got.items():
        assert len(packets) == (message is not None)
        for packet in packets:
            packet.packet_id = 0
            if number < 5:
                assert packet == mqtt.Publish(message.topic, message.payload, message.qos)
            else:
                assert packet == message


topics = text.filter(lambda topic: topic and not set(topic) & set(b"+#$"))
publishes = st.builds(
    mqtt.Publish,
    topics,
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    st.just(False),
    st.integers(1, 65535),
    properties(PacketType.PUBLISH, NO_IDENTIFIER),
)
sizes = st.sampled_from([1, 2, 3, 7, 1000])
changes = st.lists(st.tuples(st.sampled_from("sid"), st.integers(0, 60), st.integers(0, 255)), max_size=4)


def changed(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    """Bytes set, inserted or deleted."""
    found = bytearray(data)
    for act, at, byte in edits:
        at = min(at, len(found))
        if act == "i":
            found[at:at] = bytes((byte,))
        else:
            found[at : at + 1] = bytes((byte,)) if act == "s" else b""
    return bytes(found)


def body_of(data: bytes) -> bytes:
    at = 1
    while data[at] & 128:
        at += 1
    return data[at + 1 :]


@settings(max_examples=500, deadline=None)
@given(publishes, VERSIONS, sizes)
def test_a_right_publish_is_read_and_written_as_it_is(packet: mqtt.Publish, version: int, size: int) -> None:
    data = packet.encode(version)
    codes, _, _ = expected_of_publish(data[0], body_of(data), version)
    assert not codes
    check_publish(data[0], body_of(data), version, size)


@settings(max_examples=1500, deadline=None)
@given(publishes, st.integers(0, 15), changes, VERSIONS, sizes)
@example(mqtt.Publish(b"t", b"", properties={PropertyId.TOPIC_ALIAS: 1}), 0, [("s", 6, 0)], 5, 1)
@example(mqtt.Publish(b"t"), 0, [("s", 2, 0xC3)], 5, 1)
def test_a_changed_publish(packet: mqtt.Publish, flags: int, edits: list[tuple[str, int, int]], version: int, size: int) -> None:
    body = body_of(packet.encode(version))
    flags = flags if edits and edits[0][1] % 4 == 0 else packet.encode(version)[0] & 15
    check_publish(0x30 | flags, changed(body, edits), version, size)


acknowledgements = st.one_of(
    *(
        st.builds(kind, st.integers(1, 65535), st.sampled_from([0, 0x10, 0x80, 0x92]), properties(kind.type))
        for kind in (mqtt.Puback, mqtt.Pubrec, mqtt.Pubrel, mqtt.Pubcomp)
    )
)


@settings(max_examples=1500, deadline=None)
@given(acknowledgements, st.integers(0, 15), changes, VERSIONS, sizes)
def test_a_changed_acknowledgement(packet: Any, flags: int, edits: list[tuple[str, int, int]], version: int, size: int) -> None:
    """Nothing is in flight: a right one is answered as unknown, a wrong one ends the connection."""
    data = packet.encode(version)
    flags = flags if edits and edits[0][1] % 4 == 0 else data[0] & 15
    data = framed(data[0] & 0xF0 | flags, changed(body_of(data), edits))
    answers, ended = CORE.send(version, data, size)
    try:
        packet, _ = decode(data, 0, version)
    except MqttError as error:
        assert ended
        assert version < 5 or [(type(one), one.reason_code) for one in answers] == [(mqtt.Disconnect, error.reason_code)]
        return
    assert not ended
    reason = f"no message with packet id {packet.packet_id} is in flight".encode()
    outcome = (NOT_FOUND, {PropertyId.REASON_STRING: reason}) if version == 5 else (0, None)
    if isinstance(packet, mqtt.Pubrel):
        assert answers == [mqtt.Pubcomp(packet.packet_id, *outcome)]
    elif isinstance(packet, mqtt.Pubrec) and packet.reason_code < 0x80:
        assert answers == [mqtt.Pubrel(packet.packet_id, *outcome)]
    else:
        assert answers == []


@settings(max_examples=400, deadline=None)
@given(st.lists(PACKETS_5, min_size=1, max_size=4), changes, st.lists(st.integers(0, 80), max_size=5))
def test_the_same_bytes_split_anywhere_do_the_same(packets: list[Any], edits: list[tuple[str, int, int]], cuts: list[int]) -> None:
    """Any packets behind a CONNECT, changed anywhere: answers and deliveries are equal byte for byte."""
    start = mqtt.Connect(5, b"client", keepalive_s=0).encode(5)
    data = start + changed(b"".join(packet.encode(5) for packet in packets), edits)
    places = sorted({min(len(start) + cut, len(data)) for cut in cuts} | {0, len(data)})
    results = []
    for pieces in (
        [data],
        [data[at : at + 1] for at in range(len(data))],
        [data[a:b] for a, b in pairwise(places)],
    ):
        core = Core()
        channel = core.router.connect("peer")
        for piece in pieces:
            channel.receive(piece)
        core.router.advance(NOW_MS)
        results.append((channel.take_output(), channel.is_closing, *(one.take_output() for one in core.subscribers.values())))
    assert results[0] == results[1] == results[2]
