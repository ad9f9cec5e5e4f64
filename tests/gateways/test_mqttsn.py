"""The MQTT-SN gateway with a real broker of three workers, over UDP."""

import json
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from shardbroker.config.gateways import ClientInfoOverride
from shardbroker.gateways.mqttsn.door import MqttSnDoor
from shardbroker.gateways.session import login_of
from tests.api.rest import ApiBroker, Rest
from tests.gateways import mqttsn_client as norm
from tests.gateways.conftest import GatewayBroker
from tests.gateways.mqttsn_client import CLEAN, PREDEFINED, RETAIN, SHORT, Got, MqttSnClient
from tests.harness import Client, free_port, until, wire


@pytest.fixture
def device(sn: GatewayBroker, name: str) -> Any:
    with sn.mqttsn() as one:
        one.connect(name)
        yield one
        one.send("DISCONNECT")


# --- as any client ----------------------------------------------------------------------------------------------------------------


def test_both_ways(sn: GatewayBroker, device: MqttSnClient, name: str) -> None:
    with Client(sn.address, 5, f"{name}-mqtt") as mqtt:
        mqtt.subscribe(f"{name}/up", 2)
        up = device.register(f"{name}/up")
        device.subscribe(f"{name}/+/down", 2)
        for qos in (0, 1, 2):
            device.publish(up, b"up%d" % qos, qos)
            got = mqtt.expect(wire.Publish)
            assert (got.payload, got.qos) == (b"up%d" % qos, qos)
            mqtt.publish(f"{name}/x/down", b"down%d" % qos, qos)
            assert device.take(qos)[2] == b"down%d" % qos


def test_predefined_and_short_topics(sn: GatewayBroker, device: MqttSnClient, name: str) -> None:
    device.subscribe(7, kind=PREDEFINED)
    device.subscribe("zz", kind=SHORT)
    with sn.mqttsn() as other:
        other.connect(f"{name}-other")
        other.publish(7, b"p", 1, PREDEFINED)
        assert device.take() == (PREDEFINED, 7, b"p")
        other.publish(0x7A7A, b"s", 0, SHORT)
        assert device.take(0) == (SHORT, 0x7A7A, b"s")


def test_long_messages_and_retain(sn: GatewayBroker, device: MqttSnClient, name: str) -> None:
    topic_id = device.register(f"{name}/x")
    device.publish(topic_id, b"y" * 1300, flags=RETAIN)
    device.raw(norm.publish(0, topic_id, b"y" * 1400, 1, 99))
    device.expect_nothing()
    with sn.mqttsn() as other:
        other.connect(f"{name}-other")
        other.raw(norm.subscribe(f"{name}/+".encode(), 1, 5))
        other.expect("SUBACK")
        for topic in (b"-", f"{name}/x".encode()):  # first a proof of the address, since the message is long
            got = other.expect("REGISTER")
            assert got.rest == topic
            other.send("REGACK", struct.pack("!HHB", *got.fields, 0))
        got = other.expect("PUBLISH")
        assert got.rest == b"y" * 1300 and got.fields[0] & RETAIN


def test_clients_have_their_address_and_protocol(sn: GatewayBroker, device: MqttSnClient, name: str) -> None:
    (row,) = until(lambda: sn.ctl("clients list", clientid=name)["data"])
    host, port = device.socket.getsockname()
    assert row["listener"] == "mqttsn:udp:default" and (row["ip_address"], row["port"]) == (host, port)
    rows = sn.ctl("gateways clients", name="mqttsn")["data"]
    assert name in [one["clientid"] for one in rows] and {one["proto_name"] for one in rows} == {"MQTT-SN"}


def test_a_kicked_device_gets_disconnect(sn: GatewayBroker, name: str) -> None:
    with sn.mqttsn() as device:
        device.connect(name)
        until(lambda: sn.ctl("clients list", clientid=name)["data"])
        sn.ctl("clients kick", clientids=[name])
        device.expect("DISCONNECT")
        device.send("PINGREQ")
        device.expect("DISCONNECT")


def test_a_will_and_its_updates(sn: GatewayBroker, name: str) -> None:
    with Client(sn.address, 5, f"{name}-mqtt") as mqtt, sn.mqttsn() as device:
        mqtt.subscribe(f"{name}/#", 1)
        device.connect(name, 1, will=(f"{name}/will", b"first", 0x20))
        device.subscribe("qq", kind=SHORT)
        device.send("WILLTOPICUPD", b"\x20" + f"{name}/other".encode())
        device.expect("WILLTOPICRESP", 0)
        device.send("WILLMSGUPD", b"second")
        device.expect("WILLMSGRESP", 0)
        mqtt.publish("qq", b"x", 1)
        assert device.take()[2] == b"x"
        got = mqtt.expect(wire.Publish)
        assert (got.topic, got.payload) == (f"{name}/other", b"second")
        device.expect("DISCONNECT")


def test_a_sleeping_device(sn: GatewayBroker, name: str) -> None:
    with Client(sn.address, 5, f"{name}-mqtt") as mqtt, sn.mqttsn() as device:
        device.connect(name)
        device.subscribe(f"{name}/+", 1)
        for wake in range(3):
            device.sleep(60)
            for n in range(20):
                mqtt.publish(f"{name}/x", b"%d:%d" % (wake, n), 1)
            device.expect_nothing()
            device.send("PINGREQ", name.encode())
            assert [device.take()[2] for _ in range(20)] == [b"%d:%d" % (wake, n) for n in range(20)]
            device.expect("PINGRESP")
        device.connect(name, flags=0)
        mqtt.publish(f"{name}/x", b"awake", 1)
        assert device.take()[2] == b"awake"


def test_a_slow_sleeper_does_not_fill_the_gateway(sn: GatewayBroker, name: str) -> None:
    """QoS 0 has no window: the gateway stops reading, and the worker drops what does not fit."""
    (pid,) = sn.child_pids("gateway")
    with Client(sn.address, 5, f"{name}-mqtt") as mqtt, sn.mqttsn() as device:
        device.connect(name)
        device.subscribe(f"{name}/x", 0)
        device.sleep(60)
        before = psutil.Process(pid).memory_info().rss
        for _ in range(20_000):
            mqtt.publish(f"{name}/x", b"x" * 1000, 0)
        mqtt.publish(f"{name}/end", b"", 1)
        assert psutil.Process(pid).memory_info().rss - before < 4 << 20


def test_the_session_of_a_device_outlives_it(sn: GatewayBroker, name: str) -> None:
    with sn.mqttsn() as device:
        device.connect(name, flags=0)
        device.subscribe(f"{name}/x")
        device.send("DISCONNECT")
        device.expect("DISCONNECT")
    with Client(sn.address, 5, f"{name}-mqtt") as mqtt:
        mqtt.publish(f"{name}/x", b"kept", 1)
    with sn.mqttsn() as device:
        device.connect(name, flags=0)
        assert device.take()[2] == b"kept"


def test_a_device_at_another_address_replaces_the_one_before(sn: GatewayBroker, name: str) -> None:
    with sn.mqttsn() as before, sn.mqttsn() as device:
        before.connect(name, flags=0)
        before.sleep(1000)
        until(lambda: sn.ctl("gateways list"))
        device.connect(name, flags=0)
        before.expect("DISCONNECT")
        until(lambda: len(sn.ctl("clients list", clientid=name)["data"]) == 1)


# --- gateways and unknown senders -------------------------------------------------------------------------------------------------


def test_a_gateway_is_searched_for(sn: GatewayBroker) -> None:
    with sn.mqttsn() as device:
        device.knock(norm.framed("SEARCHGW", b"\0"))
        device.expect("GWINFO", 9)


def test_unknown_senders_are_sent_away(sn: GatewayBroker) -> None:
    with sn.mqttsn() as device:
        for name, body in (("PINGREQ", b""), ("PINGREQ", b"who"), ("SUBSCRIBE", b"\x20\0\1a"), ("REGISTER", b"\0\0\0\1a")):
            device.send(name, body)
            device.expect("DISCONNECT")
        device.raw(norm.publish(SHORT, 0x6162, b"x", 1, 1))
        device.expect("DISCONNECT")
        device.send("DISCONNECT", b"\0\5")
        device.expect("DISCONNECT")
        for name, body in (("DISCONNECT", b""), ("PINGRESP", b""), ("CONNACK", b"\0"), ("ADVERTISE", b"\1\0\1"), ("GWINFO", b"\1")):
            device.send(name, body)  # which another gateway may have sent: an answer could go on for ever
        device.raw(b"\xff\xff\xff")
        device.expect_nothing()


def test_qos_minus_1_needs_no_connection(sn: GatewayBroker, name: str) -> None:
    with Client(sn.address, 5, name) as mqtt, sn.mqttsn() as device:
        mqtt.subscribe("pre/seven", 1)
        mqtt.subscribe("yy", 1)
        device.raw(norm.publish(PREDEFINED, 7, b"one", -1))
        assert mqtt.expect(wire.Publish).payload == b"one"
        device.raw(norm.publish(SHORT, 0x7979, b"two", -1))
        assert mqtt.expect(wire.Publish).payload == b"two"
        for kind, topic_id in ((PREDEFINED, 8), (0, 7), (SHORT, 0x2B2B)):
            device.raw(norm.publish(kind, topic_id, b"x", -1))
        device.expect_nothing()


def test_devices_behind_a_forwarder(sn: GatewayBroker, name: str) -> None:
    with sn.mqttsn(b"\x05\xfe\x01n1") as first:
        second = MqttSnClient(sn.at, b"\x06\xfe\x00n22")
        second.socket.close()
        second.socket = first.socket.dup()  # the same address, another node
        first.connect(f"{name}-1")
        second.connect(f"{name}-2")
        first.subscribe("fw", kind=SHORT)
        second.publish(0x6677, b"x", 0, SHORT)  # with PUBACK, there would be two datagrams for two readers of one socket
        assert first.take(0) == (SHORT, 0x6677, b"x")
        second.send("DISCONNECT")
        second.expect("DISCONNECT")
        first.send("PINGREQ")
        first.expect("PINGRESP")
        first.send("DISCONNECT")
        first.expect("DISCONNECT")
        second.socket.close()


# --- brokers of their own ---------------------------------------------------------------------------------------------------------


@pytest.mark.own_broker
def test_advertise() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(20)
        to = f"127.0.0.1:{listening.getsockname()[1]}"
        with GatewayBroker(1, {"gateway_id": 3, "advertise_interval": "1s", "advertise_to": to}, "mqttsn"):
            for _ in range(3):
                assert norm.parsed(listening.recv(100)) == Got("ADVERTISE", (3, 1), b"")


@pytest.mark.own_broker
def test_more_devices_than_may_be_are_congestion(name: str) -> None:
    with GatewayBroker(2, {"listeners.default.max_connections": 2}, "mqttsn") as broker:
        devices = [broker.mqttsn() for _ in range(4)]
        for n, device in enumerate(devices[:2]):
            device.connect(f"{name}-{n}")
            device.send("PINGREQ")
            device.expect("PINGRESP")
        devices[2].raw(norm.connect(f"{name}-2"))
        devices[2].expect("CONNACK", 1)
        broker.wait_for_log("gateway client refused", "max_connections = 2 is reached")
        devices[0].send("DISCONNECT")
        devices[0].expect("DISCONNECT")
        devices[2].connect(f"{name}-2")  # it sends nothing more, as a forged address
        devices[3].connect(f"{name}-3")
        broker.wait_for_log("gateway client disconnected", "another device has taken its place")
        for device in devices:
            device.socket.close()


@pytest.mark.own_broker
def test_unknown_senders_are_bounded_and_known_devices_are_not(name: str) -> None:
    with GatewayBroker(1, {"listeners.default.max_unknown_rate": 20}, "mqttsn") as broker, broker.mqttsn() as device:
        device.connect(name)
        other = broker.mqttsn()
        for _ in range(500):
            other.send("PINGREQ")
        device.send("PINGREQ")
        device.expect("PINGRESP")
        answers = 0
        with suppress(TimeoutError):
            while other.recv(0.5):
                answers += 1
        assert 1 <= answers < 100
        until(lambda: broker.figures("mqttsn")["unknown_dropped"] > 400)
        other.socket.close()


@pytest.mark.own_broker
def test_forged_addresses_hold_little_and_not_for_long(name: str) -> None:
    """CONNECT with a will from many addresses; none of them answers. The slots come back, and amplification stays below 3."""
    settings = {"idle_timeout": "6s", "retry_interval": "500ms", "listeners.default.max_connections": 50}
    with GatewayBroker(1, settings, "mqttsn") as broker, broker.mqttsn() as device:
        device.connect(name)
        device.send("PINGREQ")
        device.expect("PINGRESP")
        forged = [broker.mqttsn() for _ in range(100)]
        for n, one in enumerate(forged):
            one.raw(norm.connect(f"{name}-{n}", flags=norm.WILL | CLEAN))
        until(lambda: connections(broker) == 50)
        until(lambda: connections(broker) == 1, timeout_s=60)
        for n, one in enumerate(forged):
            got = 0
            with suppress(TimeoutError):
                while one.recv(0.01):
                    got += 3  # none is longer
            assert got <= 3 * len(norm.connect(f"{name}-{n}"))
            one.socket.close()
        device.send("PINGREQ")
        device.expect("PINGRESP")


def test_a_forged_connect_does_not_send_the_messages_of_a_session_to_another_address(sn: GatewayBroker, name: str) -> None:
    """The attacker fills a session of its own, and connects it from the address of the victim, which does not answer."""
    with sn.mqttsn() as evil, Client(sn.address, 5, f"{name}-mqtt") as mqtt:
        evil.connect(name, flags=0)
        evil.subscribe("fg", kind=SHORT)
        evil.send("DISCONNECT")
        evil.expect("DISCONNECT")
        for n in range(5):
            mqtt.publish("fg", b"%d" % n * 1000, 1)
        with sn.mqttsn() as victim:
            hello = norm.connect(name, flags=0)
            victim.knock(hello)
            got = 0
            with suppress(TimeoutError):
                while True:
                    one = victim.recv(1.0)
                    assert one.name in ("CONNACK", "REGISTER") and len(one.rest) <= 1, one
                    got += 8
            assert 0 < got <= 3 * len(hello) + 8
            victim.send("DISCONNECT")
            victim.expect("DISCONNECT")
        evil.connect(name, flags=0)
        for n in range(5):
            assert evil.take()[2] == b"%d" % n * 1000, "the address of the session's owner proves itself"
        evil.send("DISCONNECT")


def connections(broker: GatewayBroker) -> int:
    """Of the gateway, as it has recorded them last."""
    rows = {one["name"]: one for one in broker.ctl("gateways list")["data"]}
    return int(rows["mqttsn"]["current_connections"])


@pytest.mark.own_broker
def test_access_rules_and_authentication(name: str) -> None:
    settings = {"listeners.default.access_rules": '["deny 127.0.0.2/32", "allow all"]', "authentication": '["builtin"]'}
    with GatewayBroker(1, settings, "mqttsn") as broker:
        with broker.mqttsn() as device:
            device.knock(norm.connect(name))
            assert device.recv().fields == (3,)
        with broker.mqttsn(source="127.0.0.2") as device:
            device.raw(norm.connect(name))
            device.expect_nothing()
        broker.wait_for_log("gateway client refused", "reason=access_rules")


@pytest.mark.own_broker
def test_devices_get_a_user_name_and_a_password_of_the_settings(name: str) -> None:
    override = {"authentication": '["builtin"]', "clientinfo_override.username": "u-${clientid}", "enable_qos3": "true"}
    broker = GatewayBroker(1, override, "mqttsn")
    broker.environment["SHARDBROKER__GATEWAYS__MQTTSN__CLIENTINFO_OVERRIDE__PASSWORD"] = "of ${clientid}"
    with broker:
        broker.ctl("users add", name=f"u-{name}", password=f"of {name}")
        broker.ctl("users add", name=f"u-{name}x", password="another")
        with broker.mqttsn() as device:
            device.connect(name)
            (row,) = until(lambda: broker.ctl("clients list", clientid=name)["data"])
            assert row["username"] == f"u-{name}"
            assert f"of {name}" not in broker.log()
        for stranger in (f"{name}x", f"{name}y"):
            with broker.mqttsn() as device:
                device.knock(norm.connect(stranger))
                assert device.recv().fields == (3,), stranger


@pytest.mark.parametrize(
    ("template", "own", "sent"),
    [("", b"own", b"own"), ("", None, None), ("fixed", None, b"fixed"), ("${username}@x", b"own", b"own@x"),
     ("${username}", None, b""), ("$${clientid}{", None, b"$id{"), ("${password}", None, b"secret")],
)  # fmt: skip
def test_templates_of_user_names(template: str, own: bytes | None, sent: bytes | None) -> None:
    override = ClientInfoOverride(username=template)
    assert login_of(override, b"id", own, b"secret") == (sent, b"secret")
    with pytest.raises(ValueError, match=r"allowed are the placeholders \$\{clientid\}"):
        ClientInfoOverride(username="${Packet.x}")


@pytest.mark.own_broker
def test_it_starts_and_stops_while_the_broker_runs(name: str) -> None:
    with GatewayBroker(2, {"enable": None}, "mqttsn") as broker:
        assert broker.child_pids("gateway") == []
        for _ in range(2):
            broker.ctl("gateways enable", name="mqttsn", enable=True)
            with broker.mqttsn() as device:
                device.connect(name, flags=0)
                device.publish(0x6162, b"x", 1, SHORT)
                broker.ctl("gateways enable", name="mqttsn", enable=False)
                device.expect("DISCONNECT")
                until(lambda: _is_closed(broker.at))
        port = free_port()
        broker.ctl("config set", key="gateways.mqttsn.listeners.more.bind", value=f"127.0.0.1:{port}")
        broker.ctl("gateways enable", name="mqttsn", enable=True)
        with MqttSnClient(("127.0.0.1", port)) as device:
            device.connect(name)
            broker.ctl("config reset", key="gateways.mqttsn.listeners.more")
            device.expect("DISCONNECT")


def _is_closed(at: tuple[str, int]) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(at)
        one.settimeout(0.5)
        try:
            one.send(norm.framed("SEARCHGW", b"\0"))
            one.recv(10)
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
    return False


@pytest.mark.own_broker
def test_an_address_in_use_is_an_alarm() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with GatewayBroker(1, {"listeners.default.bind": f"127.0.0.1:{port}"}, "mqttsn") as broker:
            broker.wait_for_log("alarm activated", "gateway_listener_failed")
            taken.close()
            broker.wait_for_log("alarm deactivated", "gateway_listener_failed")


@pytest.mark.own_broker
def test_rest_and_metrics(name: str) -> None:
    port = free_port()
    with ApiBroker(2, {"gateways.mqttsn.listeners.default.bind": f"127.0.0.1:{port}"}) as broker:
        rest = Rest.logged_in(broker)
        rest.good("PUT", "/gateways/mqttsn/enable/true")
        with MqttSnClient(("127.0.0.1", port)) as device:
            device.connect(name)
            device.publish(0x6162, b"x", 1, SHORT)
            (row,) = until(lambda: rest.good("GET", "/gateways/mqttsn/clients")["data"])
            assert (row["clientid"], row["proto_name"], row["connected"]) == (name, "MQTT-SN", True)
            shown = until(lambda: (found := rest.good("GET", "/gateways/mqttsn"))["figures"].get("messages_in") and found)
            assert shown["current_connections"] == 1 and shown["listeners"][0]["id"] == "mqttsn:udp:default"
            text = rest.good("GET", "/prometheus/stats")
            assert 'shardbroker_gateway_messages_in{gateway="mqttsn"} 1' in text
            assert 'shardbroker_gateway_malformed{gateway="mqttsn"} 0' in text
            json.dumps(shown)


# --- kill -9 ----------------------------------------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Publishes numbers with QoS 1 and connects again for ever; `acked`: those with PUBACK."""

    def __init__(self, broker: GatewayBroker, name: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name, self._topic = broker, name, topic
        self.acked: set[int] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            with suppress(OSError, AssertionError), self._broker.mqttsn() as device:
                device.connect(self._name)
                topic_id = device.register(self._topic)
                while not self.stopping.is_set():
                    number += 1
                    device.raw(norm.publish(0, topic_id, b"%d" % number, 1, device.next_id()))
                    got = device.recv(2.0)
                    assert got.name == "PUBACK" and got.fields[2] == 0, got
                    self.acked.add(number)
                    time.sleep(0.002)


class Subscriber(threading.Thread):
    """Acknowledges each message, and connects to its session again when the gateway was killed; `seen`: numbers by publisher."""

    def __init__(self, broker: GatewayBroker, name: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name = broker, name
        self.seen: list[set[int]] = [set(), set()]
        self.stopping = threading.Event()
        self.connections = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            with suppress(OSError, AssertionError), self._broker.mqttsn() as device:
                device.connect(self._name, flags=0)
                self.connections += 1
                if self.connections == 1:
                    device.subscribe(f"{self._name}/+")
                self._take(device)

    def _take(self, device: MqttSnClient) -> None:
        topics: dict[int, bytes] = {}
        while not self.stopping.is_set():
            try:
                got = device.recv(0.5)
            except TimeoutError:
                device.send("PINGREQ")
                got = device.recv(2.0)
            if got.name == "REGISTER":
                topics[got.fields[0]] = got.rest
                device.send("REGACK", struct.pack("!HHB", *got.fields, 0))
            elif got.name == "PUBLISH":
                self.seen[int(topics[got.fields[1]][-1:])].add(int(got.rest))
                device.send("PUBACK", struct.pack("!HHB", *got.fields[1:], 0))
            else:
                assert got.name == "PINGRESP", got


@pytest.mark.own_broker
def test_a_killed_gateway_loses_nothing_acknowledged(name: str) -> None:
    with GatewayBroker(3, {"retry_interval": "1s"}, "mqttsn") as broker:
        subscriber = Subscriber(broker, name)
        subscriber.start()
        until(lambda: subscriber.connections)
        until(lambda: broker.ctl("subscriptions list", clientid=name)["data"])
        publishers = [Publisher(broker, f"{name}-{n}", f"{name}/{n}") for n in range(2)]
        for one in publishers:
            one.start()
        for kill in range(5):
            until(lambda: sum(map(len, subscriber.seen)) > 100 * (kill + 1), timeout_s=60)  # noqa: B023
            (pid,) = until(lambda: broker.child_pids("gateway"))
            broker.kill_process(pid)
        for one in publishers:
            one.stopping.set()
            one.join(60)
            assert not one.is_alive()

        def has_all() -> bool:
            return all(one.acked <= seen for one, seen in zip(publishers, subscriber.seen, strict=True))

        until(has_all, lambda: str([one.acked - seen for one, seen in zip(publishers, subscriber.seen, strict=True)]), 60)
        assert all(len(one.acked) > 30 for one in publishers) and subscriber.connections > 2
        subscriptions = broker.ctl("subscriptions list", clientid=name)["data"]
        assert [one["topic"] for one in subscriptions] == [f"{name}/+"]
        subscriber.stopping.set()
        subscriber.join(30)


def test_no_answer_to_an_unknown_sender_is_longer_than_what_it_has_sent() -> None:
    """Each message that is no CONNECT, in its shortest form."""
    from shardbroker.config.gateways import MqttSnGateway
    from shardbroker.gateways.mqttsn.codec import LAYOUTS, Kind, Message

    settings = MqttSnGateway(enable_qos3=True)
    door = MqttSnDoor(lambda: settings, 128, "qos-1", {"malformed": 0, "messages_dropped": 0})
    for kind in LAYOUTS:
        if kind != Kind.CONNECT:
            for message in (Message(kind), Message(kind, flags=0x60, duration=1, msg_id=1, data=b"x" * LAYOUTS[kind].has_rest)):
                data = message.encode()
                assert len(door.knock(data).answer) <= len(data), kind
