"""Sessions of the MQTT-SN gateway with the real protocol core of a worker, without I/O; and the simulator."""

import struct
import sys
from typing import Any

import pytest

from shardbroker.gateways.mqttsn.session import DUPLICATE_S, EARLY, RECENT, State
from shardbroker.gateways.mqttsn.topics import TOPIC_BYTES
from shardbroker.gateways.mqttsn.wills import WILLS_MAX, Wills
from shardbroker.mqtt import packets as mqtt
from tests.gateways import mqttsn_client as norm
from tests.gateways.mqttsn_client import CLEAN, DUP, PREDEFINED, SHORT, WILL, Got
from tests.gateways.mqttsn_sim import Place, Simulation, World


@pytest.fixture(params=[False, True], ids=["stays", "is replaced"], autouse=True)
def is_replaced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device sees is the same if another process takes the place of the gateway after each step."""
    monkeypatch.setattr(World, "is_replaced", request.param)


class Device:
    """A device on a network that loses nothing."""

    def __init__(self, world: World, name: str = "d1", duration_s: int = 60, flags: int | None = CLEAN) -> None:
        self.world, self.name = world, name
        self.place = Place(world)
        self.got: list[Got] = []
        self.message_id = 0
        if flags is not None:
            assert self.raw(norm.connect(name, duration_s, flags)) == [Got("CONNACK", (0,), b"")]

    @property
    def state(self) -> State | None:
        return None if self.place.session is None else self.place.session.state

    def work(self) -> list[Got]:
        found = [norm.parsed(data) for data in self.place.work()]
        self.world.advance()  # the end of a pass, which sends what waits for it
        while more := self.place.work():
            found += map(norm.parsed, more)
            self.world.advance()
        self.got += found
        return found

    def raw(self, data: bytes) -> list[Got]:
        self.place.receive(data)
        return self.work()

    def send(self, name: str, body: bytes = b"") -> list[Got]:
        return self.raw(norm.framed(name, body))

    def ids(self, name: str, message_id: int) -> list[Got]:
        return self.send(name, struct.pack("!H", message_id))

    def passes(self, seconds: float) -> list[Got]:
        """Lets time pass, in steps of a second."""
        found = []
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.world.now_s = min(end_s, self.world.now_s + 1)
            self.world.advance()
            self.place.tick()
            found += self.work()
        return found

    def register(self, topic: str) -> int:
        (got,) = self.send("REGISTER", struct.pack("!HH", 0, 77) + topic.encode())
        assert got.name == "REGACK" and got.fields[1:] == (77, 0), got
        return got.fields[0]

    def subscribe(self, topic: str | int, qos: int = 1, kind: int = 0) -> int:
        self.message_id += 1
        text = topic.to_bytes(2, "big") if isinstance(topic, int) else topic.encode()
        got = self.raw(norm.subscribe(text, qos, self.message_id, kind))[0]
        assert got.name == "SUBACK" and got.fields[0] == norm.QOS[qos] and got.fields[2:] == (self.message_id, 0), got
        return got.fields[1]

    def publish(self, topic_id: int, payload: bytes, qos: int = 1, message_id: int = 1, flags: int = 0, kind: int = 0) -> list[Got]:
        return self.raw(norm.publish(kind, topic_id, payload, qos, message_id, flags))

    def with_will(self, flags: int, topic: bytes = b"will/t", payload: bytes = b"gone", duration_s: int = 60) -> list[Got]:
        assert self.raw(norm.connect(self.name, duration_s, flags | WILL)) == [Got("WILLTOPICREQ", (), b"")]
        assert self.send("WILLTOPIC", b"\x30" + topic) == [Got("WILLMSGREQ", (), b"")]
        return self.send("WILLMSG", payload)


class Mqtt:
    """An MQTT client of the same broker."""

    def __init__(self, world: World, name: str = "m1", filter: bytes = b"") -> None:
        self.world, self.channel = world, world.router.connect(name)
        self.send(mqtt.Connect(5, name.encode(), True, 0))
        if filter:
            self.send(mqtt.Subscribe(1, [(filter, 2)]))
        self.take()

    def send(self, packet: Any) -> None:
        self.channel.receive(packet.encode(5))

    def take(self) -> list[Any]:
        """The packets that have come; all of them are acknowledged."""
        found = self._take()
        while more := self._take():
            found += more
        return found

    def _take(self) -> list[Any]:
        self.world.advance()
        data, found, at = self.channel.take_output(), [], 0
        while (one := mqtt.decode(data, at, 5)) is not None:
            found.append(one[0])
            at = one[1]
        for packet in found:
            if isinstance(packet, mqtt.Publish) and packet.qos == 1:
                self.send(mqtt.Puback(packet.packet_id))
            elif isinstance(packet, mqtt.Publish) and packet.qos == 2:
                self.send(mqtt.Pubrec(packet.packet_id))
            elif isinstance(packet, mqtt.Pubrel):
                self.send(mqtt.Pubcomp(packet.packet_id))
        return found

    def payloads(self) -> list[bytes]:
        return [packet.payload for packet in self.take() if isinstance(packet, mqtt.Publish)]

    def publish(self, topic: str, payload: bytes = b"m", qos: int = 1, retain: bool = False, packet_id: int = 1) -> None:
        self.send(mqtt.Publish(topic.encode(), payload, qos, retain, packet_id=packet_id if qos else 0))
        self.take()


@pytest.fixture
def world() -> World:
    return World(predefined=[{"id": 5, "topic": "pre/defined"}], retry_interval=10, max_retries=3)


@pytest.fixture
def device(world: World) -> Device:
    return Device(world)


@pytest.fixture
def watcher(world: World) -> Mqtt:
    return Mqtt(world, "watcher", b"#")


def names(found: list[Got]) -> list[str]:
    return [one.name for one in found]


def take(device: Device, qos: int = 1) -> Got:
    """Takes the message that has come last and acknowledges it."""
    got = device.got[-1]
    while got.name == "REGISTER":
        got = device.send("REGACK", struct.pack("!HHB", *got.fields, 0))[-1]
    assert got.name == "PUBLISH" and got.fields[0] & 0x60 == norm.QOS[qos], got
    if qos == 1:
        device.send("PUBACK", struct.pack("!HHB", *got.fields[1:], 0))
    elif qos == 2:
        assert names(device.ids("PUBREC", got.fields[2])) == ["PUBREL"]
        device.ids("PUBCOMP", got.fields[2])
    return got


# --- CONNECT ----------------------------------------------------------------------------------------------------------------------


def test_connect_is_answered_when_the_broker_has_accepted(world: World) -> None:
    device = Device(world, flags=None)
    device.place.receive(norm.connect("d1"))
    assert device.place.session is not None and device.place.session.to_device == []
    assert device.work() == [Got("CONNACK", (0,), b"")]


def test_another_protocol_id_or_client_id_is_not_supported(world: World) -> None:
    for hello in (norm.connect("d1", protocol=2), norm.connect(""), norm.connect("a\0b")):
        device = Device(world, flags=None)
        assert device.raw(hello) == [Got("CONNACK", (3,), b"")]
        assert device.state is None


def test_a_repeated_connect_is_answered_and_changes_nothing(world: World, device: Device) -> None:
    device.subscribe("a/b")
    assert device.raw(norm.connect("d1")) == [Got("CONNACK", (0,), b"")]
    Mqtt(world).publish("a/b")
    assert names(device.work()) == ["PUBLISH"]


def test_connect_after_a_restart_of_the_device_cleans_the_session(world: World, device: Device) -> None:
    device.subscribe("a/b")
    device.passes(DUPLICATE_S + 1)
    assert device.raw(norm.connect("d1")) == [Got("CONNACK", (0,), b"")]
    Mqtt(world).publish("a/b")
    assert device.work() == []
    assert device.publish(1, b"x") == [Got("PUBACK", (1, 1, 2), b"")], "topic ids are those of a connection"


def test_without_clean_session_subscriptions_stay(world: World) -> None:
    device = Device(world, flags=0)
    device.subscribe("a/b")
    device.send("DISCONNECT")
    assert device.state is None
    Mqtt(world).publish("a/b", b"kept")
    again = Device(world, flags=None)
    assert names(again.raw(norm.connect("d1", flags=0))) == ["CONNACK", "REGISTER"]
    assert take(again).rest == b"kept"


def test_another_client_id_at_the_same_address_is_another_device(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    assert names(device.raw(norm.connect("d2"))) == ["CONNACK"]
    assert watcher.payloads() == [b"gone"]
    assert device.place.session is not None and device.place.session.client_id == "d2"


def test_messages_before_connect_are_not_answered(world: World) -> None:
    device = Device(world, flags=None)
    device.raw(norm.connect("d1", flags=WILL))
    for data in (norm.publish(SHORT, 0x6162, b"x", 1, 1), norm.subscribe(b"a", 1, 1), norm.framed("PINGREQ")):
        assert device.raw(data) == []


def test_the_gateway_is_found_by_a_connected_device_too(device: Device) -> None:
    assert device.send("SEARCHGW", b"\1") == [Got("GWINFO", (1,), b"")]


# --- wills ------------------------------------------------------------------------------------------------------------------------


def test_a_will_is_asked_for_and_published_when_the_device_is_lost(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    assert names(device.with_will(CLEAN, duration_s=20)) == ["CONNACK"]
    assert names(device.passes(29)) == [] and watcher.payloads() == []
    assert names(device.passes(2)) == ["DISCONNECT"]
    (got,) = watcher.take()
    assert (got.topic, got.payload, got.qos) == (b"will/t", b"gone", 1)


def test_disconnect_drops_the_will(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    assert device.send("DISCONNECT") == [Got("DISCONNECT", (), b"")]
    assert watcher.payloads() == []


def test_an_empty_will_topic_means_no_will(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(0)
    device.passes(5)
    assert names(device.raw(norm.connect("d1", 20, WILL))) == ["WILLTOPICREQ"]
    assert names(device.send("WILLTOPIC")) == ["CONNACK"]
    device.passes(40)
    assert watcher.payloads() == []


def test_a_will_stays_without_clean_session(world: World, watcher: Mqtt) -> None:
    """MQTT-SN §6.3: CONNECT without CleanSession and Will keeps the will that is stored."""
    Device(world, flags=None).with_will(0)
    device = Device(world, flags=None)
    world.now_s += 5
    assert names(device.raw(norm.connect("d1", 20, 0))) == ["CONNACK"]
    watcher.payloads()
    device.passes(40)
    assert watcher.payloads() == [b"gone"]


def test_clean_session_drops_the_stored_will(world: World, watcher: Mqtt) -> None:
    Device(world, flags=None).with_will(0)
    assert world.wills.get(b"d1") is not None
    device = Device(world, duration_s=20)
    watcher.payloads()
    device.passes(40)
    assert watcher.payloads() == [] and world.wills.get(b"d1") is None


def test_stored_wills_are_bounded() -> None:
    wills = Wills()
    for n in range(WILLS_MAX + 5):
        wills.put(b"%d" % n, mqtt.Will(b"t", b"m"))
    assert wills.get(b"4") is None and wills.get(b"5") is not None


def test_wrong_will_topics_are_not_supported(world: World) -> None:
    for flags, topic in ((0, b"a/#"), (0x60, b"a"), (0, b"\xff")):
        device = Device(world, flags=None)
        device.raw(norm.connect("d1", flags=WILL))
        assert device.send("WILLTOPIC", bytes((flags,)) + topic) == [Got("CONNACK", (3,), b"")]


def test_will_updates(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN, duration_s=20)
    device.subscribe("a/b")
    assert device.send("WILLTOPICUPD", b"\x00other") == [Got("WILLTOPICRESP", (0,), b"")]
    assert device.send("WILLMSGUPD", b"farewell") == [Got("WILLMSGRESP", (0,), b"")]
    assert watcher.payloads() == []
    Mqtt(world).publish("a/b")
    assert names(device.work()) == ["PUBLISH"], "the session stays"
    take(device)
    watcher.payloads()
    device.passes(40)
    (got,) = watcher.take()
    assert (got.topic, got.payload, got.qos) == (b"other", b"farewell", 0)


def test_an_empty_will_topic_update_deletes_the_will(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN, duration_s=20)
    assert device.send("WILLTOPICUPD") == [Got("WILLTOPICRESP", (0,), b"")]
    assert device.send("WILLTOPICUPD") == [Got("WILLTOPICRESP", (0,), b"")], "again, since the answer may be lost"
    assert device.send("WILLMSGUPD", b"x") == [Got("WILLMSGRESP", (3,), b"")]
    assert device.send("WILLTOPICUPD", b"\x60a") == [Got("WILLTOPICRESP", (3,), b"")]
    device.passes(40)
    assert watcher.payloads() == []


def test_messages_during_a_will_update_wait(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    topic_id = device.register("a/b")
    device.place.receive(norm.framed("WILLMSGUPD", b"x"))
    for n in range(EARLY + 5):
        device.place.receive(norm.publish(0, topic_id, b"%d" % n))
    assert names(device.work()) == ["WILLMSGRESP"]
    assert watcher.payloads() == [b"%d" % n for n in range(EARLY)]


def test_a_will_update_between_publish_and_its_acknowledgement(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    topic_id = device.register("a/b")
    device.publish(topic_id, b"two", 2, 7)
    device.send("WILLMSGUPD", b"x")
    assert names(device.publish(topic_id, b"two", 2, 7, DUP)) == ["PUBREC"]
    assert names(device.ids("PUBREL", 7)) == ["PUBCOMP"]
    assert watcher.payloads() == [b"two"]


def test_will_questions_are_asked_again_and_not_for_ever(world: World) -> None:
    device = Device(world, flags=None)
    hello = norm.connect("d", flags=WILL)
    sent = sum(2 for _ in device.raw(hello))
    sent += sum(2 for _ in device.passes(29))
    assert sent == 2 * 3
    sent += sum(2 for _ in device.passes(60))
    assert device.state is None and sent <= 3 * len(hello)


# --- topics -----------------------------------------------------------------------------------------------------------------------


def test_register(world: World, device: Device, watcher: Mqtt) -> None:
    topic_id = device.register("a/b")
    assert 0 < topic_id < 0xFFFF and device.register("a/b") == topic_id != device.register("a/c")
    assert device.publish(topic_id, b"x", 1, 3) == [Got("PUBACK", (topic_id, 3, 0), b"")]
    assert [(one.topic, one.payload) for one in watcher.take()] == [(b"a/b", b"x")]


def test_a_filter_cannot_be_registered(device: Device) -> None:
    for topic in (b"a/#", b"+", b"", b"\xff"):
        assert device.send("REGISTER", struct.pack("!HH", 0, 9) + topic) == [Got("REGACK", (0, 9, 3), b"")]


def test_predefined_and_short_topics(world: World, device: Device, watcher: Mqtt) -> None:
    assert names(device.publish(5, b"p", 1, kind=PREDEFINED)) == ["PUBACK"]
    assert names(device.publish(0x6162, b"s", 1, 2, kind=SHORT)) == ["PUBACK"]
    assert [one.topic for one in watcher.take()] == [b"pre/defined", b"ab"]
    assert device.subscribe(5, kind=PREDEFINED) == 5
    assert device.subscribe("ab", kind=SHORT) == 0
    mqtt_client = Mqtt(world)
    for topic, kind, topic_id in (("pre/defined", PREDEFINED, 5), ("ab", SHORT, 0x6162)):
        mqtt_client.publish(topic)
        (got,) = device.work()
        assert (got.name, got.fields[0] & 3, got.fields[1]) == ("PUBLISH", kind, topic_id), "without REGISTER"
        take(device)


def test_unknown_topic_ids(device: Device) -> None:
    assert device.publish(9, b"x", 1, 4) == [Got("PUBACK", (9, 4, 2), b"")]
    assert device.publish(9, b"x", 2, 4) == [Got("PUBACK", (9, 4, 2), b"")]
    assert device.publish(9, b"x", 0, 0) == [Got("PUBACK", (9, 0, 2), b"")]
    assert device.publish(6, b"x", 1, 4, kind=PREDEFINED) == [Got("PUBACK", (6, 4, 2), b"")]
    assert device.publish(0x2B61, b"x", 1, 4, kind=SHORT) == [Got("PUBACK", (0x2B61, 4, 2), b"")]
    assert device.publish(0x6161, b"x", 1, 4, kind=3) == [Got("PUBACK", (0x6161, 4, 2), b"")]
    assert device.raw(norm.subscribe(b"\0\6", 1, 8, PREDEFINED)) == [Got("SUBACK", (0, 0, 8, 2), b"")]


def test_topics_of_a_device_are_bounded(world: World) -> None:
    world.settings = world.settings.model_copy(update={"max_topics": 10, "max_datagram_size": 9000})
    device = Device(world)
    first = device.register("t/0")
    ids = [device.register(f"t/{n}") for n in range(1, 15)]
    assert names(device.publish(first, b"x")) == ["PUBACK"] and device.got[-1].fields[2] == 2
    assert device.publish(ids[-1], b"x", 1, 2)[0].fields[2] == 0
    assert len({first, *ids}) == 15, "an id does not change its meaning"
    long = [device.register("l/" + "x" * 8000 + str(n)) for n in range(TOPIC_BYTES // 8000 + 2)]
    assert device.publish(long[0], b"x", 1, 3)[0].fields[2] == 2


# --- PUBLISH of the device --------------------------------------------------------------------------------------------------------


def test_qos_0_1_2(device: Device, watcher: Mqtt) -> None:
    topic_id = device.register("a/b")
    assert device.publish(topic_id, b"0", 0, 0) == []
    assert device.publish(topic_id, b"1", 1, 2) == [Got("PUBACK", (topic_id, 2, 0), b"")]
    assert device.publish(topic_id, b"2", 2, 3) == [Got("PUBREC", (3,), b"")]
    assert device.ids("PUBREL", 3) == [Got("PUBCOMP", (3,), b"")]
    got = [one for one in watcher.take() if isinstance(one, mqtt.Publish)]
    assert [(one.payload, one.qos) for one in got] == [(b"0", 0), (b"1", 1), (b"2", 2)]


def test_qos_minus_1_of_a_connected_device(device: Device, watcher: Mqtt) -> None:
    assert device.publish(5, b"x", -1, 0, kind=PREDEFINED) == []
    assert device.publish(9, b"x", -1, 0, kind=PREDEFINED) == [], "errors are not answered"
    assert watcher.payloads() == [b"x"]


def test_repeated_messages_are_published_once(device: Device, watcher: Mqtt) -> None:
    topic_id = device.register("a/b")
    device.publish(topic_id, b"1", 1, 5)
    assert names(device.publish(topic_id, b"1", 1, 5, DUP)) == ["PUBACK"]
    device.publish(topic_id, b"2", 2, 6)
    assert names(device.publish(topic_id, b"2", 2, 6, DUP)) == ["PUBREC"]
    assert names(device.ids("PUBREL", 6)) == ["PUBCOMP"]
    assert names(device.ids("PUBREL", 6)) == ["PUBCOMP"], "the answer may be lost"
    assert names(device.publish(topic_id, b"2", 2, 6)) == ["PUBREC"], "a late copy"
    assert names(device.publish(topic_id, b"2", 2, 6, DUP)) == ["PUBREC"]
    assert watcher.payloads() == [b"1", b"2"]


def test_a_message_id_is_used_again(device: Device, watcher: Mqtt) -> None:
    topic_id = device.register("a/b")
    for n in range(RECENT * 3):
        assert names(device.publish(topic_id, b"1:%d" % n, 1, 1)) == ["PUBACK"]
        assert names(device.publish(topic_id, b"2:%d" % n, 2, 1)) == ["PUBREC"]
        device.ids("PUBREL", 1)
    device.publish(topic_id, b"not released", 2, 1)
    assert names(device.publish(topic_id, b"another", 2, 1)) == ["PUBREC"]
    assert names(device.ids("PUBREL", 1)) == ["PUBCOMP"]
    assert len(watcher.payloads()) == RECENT * 6 + 2


def test_too_many_unacknowledged_messages_are_congestion(world: World) -> None:
    world.settings = world.settings.model_copy(update={"max_inflight": 3})
    device = Device(world)
    topic_id = device.register("a/b")
    for n in range(1, 4):
        assert names(device.publish(topic_id, b"%d" % n, 2, n)) == ["PUBREC"]
    assert device.publish(topic_id, b"4", 2, 4) == [Got("PUBACK", (topic_id, 4, 1), b"")]
    device.ids("PUBREL", 1)
    assert names(device.publish(topic_id, b"4", 2, 4, DUP)) == ["PUBREC"]


def test_congestion_of_the_broker(device: Device, watcher: Mqtt) -> None:
    topic_id = device.register("a/b")
    assert device.place.session is not None
    device.place.session.is_broker_slow = True
    assert device.publish(topic_id, b"1", 1, 1) == [Got("PUBACK", (topic_id, 1, 1), b"")]
    assert device.publish(topic_id, b"0", 0, 0) == []
    device.place.session.is_broker_slow = False
    assert names(device.publish(topic_id, b"1", 1, 1, DUP)) == ["PUBACK"]
    assert watcher.payloads() == [b"1"]


# --- SUBSCRIBE --------------------------------------------------------------------------------------------------------------------


def test_subscribe_by_name_gives_a_topic_id(world: World, device: Device) -> None:
    topic_id = device.subscribe("a/b", 2)
    assert topic_id
    Mqtt(world).publish("a/b", qos=2)
    (got,) = device.work()
    assert got.name == "PUBLISH" and got.fields[1] == topic_id, "without REGISTER"


def test_wildcards_have_no_topic_id_and_register_follows(world: World, device: Device) -> None:
    assert device.subscribe("a/+", 1) == 0
    Mqtt(world).publish("a/b", b"x")
    (got,) = device.work()
    assert got.name == "REGISTER" and got.rest == b"a/b"
    topic_id, message_id = got.fields
    (got,) = device.send("REGACK", struct.pack("!HHB", topic_id, message_id, 0))
    assert got.name == "PUBLISH" and got.fields[:2] == (norm.QOS[1], topic_id) and got.rest == b"x"


def test_wrong_subscriptions(device: Device) -> None:
    wrong = (b"a/#/b", 1, 0), (b"", 1, 0), (b"a", -1, 0), (b"abc", 1, SHORT), (b"a", 1, PREDEFINED), (b"ab", 1, 3)
    for topic, qos, kind in wrong:
        assert device.raw(norm.subscribe(topic, qos, 8, kind)) == [Got("SUBACK", (0, 0, 8, 3), b"")]


def test_unsubscribe(world: World, device: Device) -> None:
    device.subscribe("a/b")
    device.subscribe("ab", kind=SHORT)
    for topic, kind in ((b"a/b", 0), (b"ab", SHORT), (b"\0\6", PREDEFINED)):
        assert device.raw(norm.subscribe(topic, 0, 11, kind, name="UNSUBSCRIBE")) == [Got("UNSUBACK", (11,), b"")]
    client = Mqtt(world)
    client.publish("a/b")
    client.publish("ab", packet_id=2)
    assert device.work() == []


def test_subscribe_again_brings_no_retained_messages_twice(world: World, device: Device) -> None:
    device.place.receive(norm.subscribe(b"a/b", 1, 9))
    device.place.receive(norm.subscribe(b"a/b", 1, 9, flags=DUP))
    assert names(device.work()) == ["SUBACK"]
    assert names(device.raw(norm.subscribe(b"a/b", 1, 9, flags=DUP))) == ["SUBACK"]


# --- PUBLISH to the device --------------------------------------------------------------------------------------------------------


def test_one_message_at_a_time(world: World, device: Device) -> None:
    device.subscribe("a/b", 2)
    client = Mqtt(world)
    for n in range(3):
        client.publish("a/b", b"%d" % n, qos=2 if n == 1 else 1, packet_id=n + 1)
    assert names(device.work()) == ["PUBLISH"]
    assert take(device).rest == b"0"
    assert take(device, 2).rest == b"1"
    assert take(device).rest == b"2"


def test_messages_are_sent_again_with_dup_then_the_device_is_lost(world: World) -> None:
    device = Device(world, duration_s=1000)
    device.subscribe("a/b")
    Mqtt(world).publish("a/b")
    (first,) = device.work()
    found = device.passes(35)
    assert names(found) == ["PUBLISH"] * 3 and all(one.fields == (first.fields[0] | DUP, *first.fields[1:]) for one in found)
    assert names(device.passes(10)) == ["DISCONNECT"]
    assert device.state is None and "max_retries" in device.place.reason


def test_late_acknowledgements_do_not_meet_another_message(world: World, device: Device) -> None:
    device.subscribe("a/b")
    client = Mqtt(world)
    client.publish("a/b", b"1")
    device.work()
    first = take(device)
    client.publish("a/b", b"2")
    device.work()
    device.send("PUBACK", struct.pack("!HHB", *first.fields[1:], 0))
    assert names(device.passes(11)) == ["PUBLISH"], "it is not acknowledged"


def test_register_is_sent_again(world: World, device: Device) -> None:
    device.subscribe("a/+")
    Mqtt(world).publish("a/b")
    (first,) = device.work()
    assert device.passes(11) == [first]
    device.send("REGACK", struct.pack("!HHB", *first.fields, 1))
    assert device.passes(10) == [first], "congestion: later"
    device.send("REGACK", struct.pack("!HHB", *first.fields, 0))
    assert device.got[-1].name == "PUBLISH"


def test_a_rejected_topic_drops_the_message_only(world: World, device: Device) -> None:
    device.subscribe("a/+")
    client = Mqtt(world)
    client.publish("a/b", b"1")
    (first,) = device.work()
    client.publish("a/c", b"2", packet_id=2)
    device.send("REGACK", struct.pack("!HHB", *first.fields, 3))
    assert device.got[-1].name == "REGISTER" and device.got[-1].rest == b"a/c"
    assert take(device).rest == b"2"


def test_a_device_that_has_forgotten_a_topic_gets_register_again(world: World, device: Device) -> None:
    topic_id = device.subscribe("a/b")
    client = Mqtt(world)
    client.publish("a/b")
    (got,) = device.work()
    (again,) = device.send("PUBACK", struct.pack("!HHB", topic_id, got.fields[2], 2))
    assert again.name == "REGISTER" and again.rest == b"a/b"
    take(device)
    client.publish("a/b", b"zero", qos=0)
    (got,) = device.work()
    device.send("PUBACK", struct.pack("!HHB", got.fields[1], 0, 2))
    client.publish("a/b", b"zero", qos=0)
    assert names(device.work()) == ["REGISTER"]


def test_rejected_messages_are_given_up(world: World, device: Device) -> None:
    topic_id = device.subscribe("a/b", 2)
    client = Mqtt(world)
    for qos in (1, 2):
        client.publish("a/b", b"no", qos, packet_id=qos)
        (got,) = device.work()
        device.send("PUBACK", struct.pack("!HHB", topic_id, got.fields[2], 3))
    client.publish("a/b", b"yes", 1, packet_id=3)
    device.work()
    assert take(device).rest == b"yes"
    assert world.figures["messages_dropped"] == 2


def test_messages_that_no_datagram_can_have_are_dropped(world: World, device: Device) -> None:
    device.subscribe("a/#", 2)
    client = Mqtt(world)
    client.publish("a/b", b"x" * 1400, 1)
    client.publish("a/" + "t" * 1400, b"x", 2, packet_id=2)
    client.publish("a/c", b"fits", 1, packet_id=3)
    device.work()
    assert take(device).rest == b"fits"


def test_a_received_message_is_released_again_when_pubrel_was_lost(world: World, device: Device) -> None:
    device.subscribe("a/b", 2)
    Mqtt(world).publish("a/b", b"x", 2)
    (got,) = device.work()
    (message_id,) = got.fields[2:]
    assert device.ids("PUBREC", message_id) == [Got("PUBREL", (message_id,), b"")]
    assert device.ids("PUBREC", message_id) == [Got("PUBREL", (message_id,), b"")]
    assert device.passes(11) == [Got("PUBREL", (message_id,), b"")]
    device.ids("PUBCOMP", message_id)
    assert device.ids("PUBREC", message_id) == [Got("PUBREL", (message_id,), b"")], "a late copy"
    assert device.passes(20) == []


def test_a_message_on_its_way_comes_again_after_connect(world: World) -> None:
    device = Device(world, flags=0)
    device.subscribe("a/b", 2)
    Mqtt(world).publish("a/b", b"x", 2)
    (first,) = device.work()
    device.passes(5)
    found = device.raw(norm.connect("d1", flags=0))
    assert names(found) == ["CONNACK", "REGISTER"]
    (got,) = device.send("REGACK", struct.pack("!HHB", *found[1].fields, 0))
    assert got.fields[2] == first.fields[2] and got.fields[0] & DUP, "under the same message id"


# --- keep-alive, sleep ------------------------------------------------------------------------------------------------------------


def test_pingreq_keeps_a_device_alive(device: Device) -> None:
    for _ in range(4):
        assert device.passes(60) == []
        assert device.send("PINGREQ") == [Got("PINGRESP", (), b"")]
    assert names(device.passes(91)) == ["DISCONNECT"]
    assert device.state is None


def test_a_sleeping_device_gets_its_messages_when_it_wakes(world: World, device: Device) -> None:
    device.subscribe("a/b", 2)
    assert device.send("DISCONNECT", b"\0\x64") == [Got("DISCONNECT", (), b"")]
    assert device.state is State.ASLEEP
    client = Mqtt(world)
    for n in range(5):
        client.publish("a/b", b"%d" % n, n % 3, packet_id=n + 1)
    assert device.passes(100) == []
    device.send("PINGREQ", b"d1")
    assert device.state is State.AWAKE
    while device.got[-1].name == "PUBLISH":
        take(device, device.got[-1].fields[0] >> 5 & 3)
    assert sorted(one.rest for one in device.got if one.name == "PUBLISH") == [b"0", b"1", b"2", b"3", b"4"]
    assert device.got[-1].name == "PINGRESP" and device.state is State.ASLEEP
    assert names(device.send("PINGREQ", b"d1")) == ["PINGRESP"], "nothing more, and the answer may be lost"


def test_a_sleeping_device_that_does_not_wake_is_lost(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    device.send("DISCONNECT", b"\0\x64")
    device.passes(140)
    assert device.state is State.ASLEEP and watcher.payloads() == []
    device.passes(20)
    assert device.state is None and watcher.payloads() == [b"gone"]


def test_pingreq_prolongs_sleep_and_disconnect_changes_it(device: Device) -> None:
    device.send("DISCONNECT", b"\0\x0a")
    for _ in range(4):
        device.passes(10)
        assert names(device.send("PINGREQ", b"d1")) == ["PINGRESP"]
    device.send("DISCONNECT", b"\x03\xe8")
    device.passes(1400)
    assert device.state is State.ASLEEP
    assert device.send("DISCONNECT") == [Got("DISCONNECT", (), b"")]
    assert device.state is None


def test_connect_wakes_a_device_for_good(world: World) -> None:
    device = Device(world, flags=0)
    device.subscribe("ab", kind=SHORT)
    device.send("DISCONNECT", b"\0\x64")
    Mqtt(world).publish("ab", b"kept")
    assert device.work() == []
    assert names(device.raw(norm.connect("d1", flags=0))) == ["CONNACK", "PUBLISH"]
    assert device.state is State.ACTIVE and take(device).rest == b"kept"


def test_a_device_that_falls_asleep_again_is_not_lost(world: World, device: Device) -> None:
    device.subscribe("a/b")
    device.send("DISCONNECT", b"\x03\xe8")
    Mqtt(world).publish("a/b", b"x")
    assert names(device.send("PINGREQ", b"d1")) == ["PUBLISH"]
    assert names(device.passes(60)) == ["PUBLISH"] * 3
    assert device.state is State.ASLEEP
    (got,) = device.send("PINGREQ", b"d1")
    assert got.fields[0] & DUP and got.rest == b"x"
    assert take(device).rest == b"x" and device.got[-1].name == "PINGRESP"


def test_a_will_update_during_sleep(world: World, watcher: Mqtt) -> None:
    device = Device(world, flags=None)
    device.with_will(CLEAN)
    device.send("DISCONNECT", b"\0\x64")
    assert names(device.send("WILLMSGUPD", b"later")) == ["WILLMSGRESP"]
    assert device.state is State.ASLEEP
    device.passes(160)
    assert watcher.payloads() == [b"later"]


def test_pingreq_with_another_client_id_is_not_known(device: Device) -> None:
    assert device.send("PINGREQ", b"d2") == [Got("DISCONNECT", (), b"")]
    assert device.send("PINGREQ", b"d1") == [Got("PINGRESP", (), b"")]


def test_malformed_datagrams_are_counted_and_not_answered(world: World, device: Device) -> None:
    for data in (b"\x02", b"\x03\x16", b"\x02\xff", b"\x01\0\0\0"):
        assert device.raw(data) == []
    assert world.figures["malformed"] == 4 and device.state is State.ACTIVE


# --- loss, copies, order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 14, 30, 32])
def test_qos_2_is_exactly_once_on_a_bad_network(seed: int) -> None:
    """30 % of the datagrams are lost, 20 % are copied, all overtake each other; a subscriber sleeps."""
    sim = Simulation(seed)
    sim.run(25)
    sim.check()
    assert sim.subscribers[0].pings > 2 and sim.world.figures["duplicates"] > 10


@pytest.mark.parametrize("name", ["_recent", "_out", "_works"])
def test_the_simulator_finds_what_does_not_move(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from shardbroker.gateways.mqttsn.session import NOTHING, MqttSnSession

    empty = {"_recent": (), "_out": None, "_works": NOTHING}[name]
    whole = MqttSnSession.image

    def less(session: MqttSnSession) -> dict[str, Any]:
        setattr(session, name, empty)
        return whole(session)

    monkeypatch.setattr(MqttSnSession, "image", less)
    with pytest.raises(AssertionError):
        for seed in range(1, 6):
            sim = Simulation(seed, moves=0.2)
            sim.run(25)
            sim.check()


OTHERS = {
    "_figures", "_settings", "_levels", "_wills",  # of the process
    "is_over",  # what is over does not move
    "_draft", "_incoming", "_offered", "_out", "_queue", "_recent", "_requests", "_state", "_then", "_topics", "_will", "_works",
}  # fmt: skip
"""What MqttSnSession.image has by names of its own, and what is not in it."""


def test_no_part_of_a_session_is_forgotten_in_its_image() -> None:
    from shardbroker.gateways.mqttsn.session import MqttSnSession
    from shardbroker.gateways.session import GatewaySession

    assert {*GatewaySession.__slots__, *MqttSnSession.__slots__} == {*MqttSnSession.MOVES, *OTHERS}
    assert {one for one in MqttSnSession.MOVES if one.endswith("_s")} == {
        *MqttSnSession.TIMES, "_keepalive_s", "_ping_s", "_sleep_s",
    }, "a time of the clock that shift() leaves alone"  # fmt: skip


def test_the_simulator_finds_a_gateway_that_publishes_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardbroker.gateways.mqttsn.session import MqttSnSession

    monkeypatch.setattr(MqttSnSession, "_is_repeated", lambda *args: False)
    with pytest.raises(AssertionError):
        for seed in range(1, 6):
            sim = Simulation(seed)
            sim.run(25)
            sim.check()


# --- several processes, and many devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "last"), [(1, [Got("DISCONNECT", (), b"")]), (2, [])])
def test_a_session_that_was_taken_over_ends_without_disconnect_if_it_may_be_by_the_same_device(
    processes: int, last: list[Got]
) -> None:
    world = World(processes=processes)
    device = Device(world)
    Device(world)
    assert device.work() == last and device.place.session is None


def test_a_sleeping_device_takes_little_memory() -> None:
    """A session with a registered topic that has published, with its wills and buffers: the rest up to 3 KB is the transport's."""
    world = World()
    devices = [Device(world, f"device-{n}", 60_000) for n in range(50)]
    for one in devices:
        one.send("REGISTER", b"\0\0\0\1" + one.name.encode() + b"/state")
        one.raw(norm.publish(0, 1, b"x", 1, 7))
        one.send("DISCONNECT", b"\xea\x60")
    devices[0].passes(120)  # until messages on the way are forgotten
    sizes = []
    for one in devices:
        session = one.place.session
        assert session is not None and session.state is State.ASLEEP
        session.tick(world.now_s)
        sizes.append(size_of(session, {id(shared) for shared in (world, world.settings, world.figures, world.wills)}))
    assert max(sizes) < (1700 if World.is_replaced else 1600), sizes


def size_of(one: object, seen: set[int]) -> int:
    """Bytes of an object and of all that it alone may refer to."""
    if id(one) in seen or one is None or isinstance(one, (type, bool, State)):
        return 0
    seen.add(id(one))
    parts: list[object] = []
    if isinstance(one, dict):
        parts = [*one.keys(), *one.values()]
    elif isinstance(one, (list, tuple, set)):
        parts = [*one]
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    parts += [getattr(one, name) for name in names if hasattr(one, name)]
    return sys.getsizeof(one) + sum(size_of(part, seen) for part in parts)


# --- addresses that are not proven ------------------------------------------------------------------------------------------------


class Forged(Device):
    """An attacker that sends from the address of another one: it sees no answer, and guesses."""

    def __init__(self, world: World) -> None:
        super().__init__(world, flags=None)
        self.sent = self.received = 0

    def raw(self, data: bytes) -> list[Got]:
        self.sent += len(data)
        return super().raw(data)

    def work(self) -> list[Got]:
        real = self.place.work

        def counted() -> list[bytes]:
            found = real()
            self.received += sum(map(len, found))
            return found

        self.place.work = counted  # type: ignore[method-assign]
        try:
            return super().work()
        finally:
            self.place.work = real  # type: ignore[method-assign]


@pytest.mark.parametrize("topic", ["zz", "pre/defined", "a/topic/with/a/long/name"])
@pytest.mark.parametrize("size", [1, 1300])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forged_address_gets_at_most_three_times_its_bytes(world: World, topic: str, size: int, qos: int) -> None:
    """A session of the attacker has messages, and a subscription to more of them; repeats count too."""
    owner = Device(world, "evil", flags=0)
    owner.subscribe(topic, qos)
    owner.send("DISCONNECT")
    mqtt_client = Mqtt(world)
    for n in range(1, 6):
        mqtt_client.publish(topic, b"x" * size, qos, packet_id=n)
    forged = Forged(world)
    forged.raw(norm.connect("evil", flags=0))
    for message_id in range(1, 4):
        forged.raw(norm.subscribe(topic.encode(), qos, message_id))
        for kind in ("REGACK", "PUBACK"):
            forged.send(kind, struct.pack("!HHB", 1, message_id, 0))
        forged.ids("PUBREC", message_id)
        mqtt_client.publish(topic, b"x" * size, qos, packet_id=10 + message_id)
        forged.passes(15)
    forged.passes(100)
    assert 0 < forged.received <= 3 * forged.sent, (forged.sent, forged.received)


def test_a_device_that_proves_its_address_gets_long_messages_in_order(world: World) -> None:
    owner = Device(world, "d1", flags=0)
    owner.subscribe("zz", 2)
    owner.send("DISCONNECT")
    mqtt_client = Mqtt(world)
    for n in range(1, 4):
        mqtt_client.publish("zz", b"%d" % n * 1000, 1, packet_id=n)
    device = Device(world, flags=None)
    first, probe = device.raw(norm.connect("d1", flags=0))
    assert first.name == "CONNACK" and probe.name == "REGISTER" and probe.rest == b"-"
    assert device.send("REGACK", struct.pack("!HHB", probe.fields[0] ^ 1, probe.fields[1], 0)) == []
    device.send("REGACK", struct.pack("!HHB", *probe.fields, 3))
    for n in range(1, 4):
        assert take(device).rest == b"%d" % n * 1000
    assert [got.name for got in device.got].count("REGISTER") == 1


def test_guesses_are_bounded(world: World) -> None:
    owner = Device(world, "d1", flags=0)
    owner.subscribe("zz", 1)
    owner.send("DISCONNECT")
    Mqtt(world).publish("zz", b"x" * 1000, 1)
    device = Device(world, flags=None)
    device.raw(norm.connect("d1", flags=0))
    found = [device.send("REGACK", struct.pack("!HHB", 1, n, 0)) for n in range(1, 10)]
    assert found[-1] == [Got("DISCONNECT", (), b"")] and device.state is None
    assert take_all(world) == b"x" * 1000, "it is still in the session"


def take_all(world: World) -> bytes:
    """The message of the session d1, at an address that proves itself."""
    device = Device(world, flags=None)
    device.raw(norm.connect("d1", flags=0))
    return take(device).rest


def test_another_client_at_a_proven_address_has_to_prove_it_again(world: World) -> None:
    owner = Device(world, "evil", flags=0)
    owner.subscribe("zz", 1)
    owner.send("DISCONNECT")
    Mqtt(world).publish("zz", b"x" * 1000, 1)
    victim = Device(world)
    victim.subscribe("yy", 1)
    Mqtt(world, "another").publish("yy", b"y", 1)
    victim.work()
    take(victim)
    assert names(victim.raw(norm.connect("evil", flags=0))) == ["CONNACK", "REGISTER"]
    assert victim.got[-1].rest == b"-"


def test_with_dtls_no_proof_is_needed(world: World) -> None:
    owner = Device(world, "d1", flags=0)
    owner.subscribe("zz", 1)
    owner.send("DISCONNECT")
    Mqtt(world).publish("zz", b"x" * 1000, 1)
    device = Device(world, flags=None)
    device.place.is_secure = True
    assert names(device.raw(norm.connect("d1", flags=0))) == ["CONNACK", "PUBLISH"]
