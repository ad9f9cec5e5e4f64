"""The CoAP gateway with a real broker of three workers, over UDP."""

import json
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.api.rest import ApiBroker, Rest
from tests.gateways import coap_client as norm
from tests.gateways.coap_client import ACK, CON, DELETE, GET, NON, OBSERVE, POST, PUT, CoapClient, Got
from tests.gateways.conftest import GatewayBroker
from tests.harness import Client, free_port, until, wire
from tests.harness.waiting import stopped


@pytest.fixture
def device(coap: GatewayBroker, name: str) -> Any:
    with coap.coap() as one:
        one.connect(name)
        yield one
        with suppress(AssertionError, OSError):
            one.request(DELETE, "mqtt/connection")


# --- as any client ----------------------------------------------------------------------------------------------------------------


def test_both_ways(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    with Client(coap.address, 5, f"{name}-mqtt") as mqtt:
        mqtt.subscribe(f"{name}/up", 2)
        device.observe(f"{name}/+/down", qos=2)
        for qos in (0, 1, 2):
            device.good(POST, f"ps/{name}/up", b"up%d" % qos, qos=qos)
            got = mqtt.expect(wire.Publish)
            assert (got.payload, got.qos) == (b"up%d" % qos, qos)
            mqtt.publish(f"{name}/x/down", b"down%d" % qos, qos)
            got = device.notified()
            assert (got.payload, got.kind) == (b"down%d" % qos, CON if qos else NON)


def test_long_messages_in_blocks(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    device.observe(f"{name}/x")
    body = bytes(range(256)) * 40
    for number in range(10):
        option = {"block1": norm.block(number, number < 9, 6)}
        got = device.good(PUT, f"ps/{name}/x", body[number * 1024 : (number + 1) * 1024], more=option)
        assert got.text == ("2.31" if number < 9 else "2.04")
    first = device.notified()
    assert first.uint(norm.BLOCK2) == 0x0E
    found = first.payload
    for number in range(1, 10):
        found += device.good(GET, f"ps/{name}/x", more={"block2": norm.block(number, False, 6)}).payload
    assert found == body


def test_retained_messages_follow_an_observation(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    device.good(POST, f"ps/{name}/state", b"on", retain="true")
    with coap.coap() as other:
        other.connect(f"{name}-other")
        other.observe(f"{name}/+")
        assert other.notified().payload == b"on"
        other.good(DELETE, "mqtt/connection")


def test_shared_subscriptions(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    device.observe(f"$share/g/{name}/x")
    with Client(coap.address, 5, f"{name}-mqtt") as mqtt:
        for n in range(5):
            mqtt.publish(f"{name}/x", b"%d" % n, 1)
        assert [device.notified().payload for _ in range(5)] == [b"%d" % n for n in range(5)]


def test_clients_have_their_address_and_protocol(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    (row,) = until(lambda: coap.ctl("clients list", clientid=name)["data"])
    host, port = device.socket.getsockname()
    assert row["listener"] == "coap:udp:default" and (row["ip_address"], row["port"]) == (host, port)
    rows = coap.ctl("gateways clients", name="coap")["data"]
    assert name in [one["clientid"] for one in rows] and {one["proto_name"] for one in rows} == {"CoAP"}


def test_a_kicked_observer_is_told(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    device.observe(f"{name}/x")
    coap.ctl("clients kick", clientids=[name])
    got = device.notified()
    assert got.text == "5.03" and got.option(OBSERVE) is None
    assert device.request(PUT, "mqtt/connection").text == "4.01"


def test_a_device_at_another_address_goes_on_with_its_token(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    device.observe(f"{name}/x")
    with coap.coap() as moved:
        moved.auth = {**device.auth, "token": "0" * 16}
        assert moved.request(POST, f"ps/{name}/x", b"forged").text == "4.01"
        moved.auth, moved.observing = device.auth, device.observing
        moved.good(POST, f"ps/{name}/x", b"moved")
        assert moved.notified().payload == b"moved"
        device.expect_nothing()
        assert device.request(PUT, "mqtt/connection").text == "2.04", "and back"


def test_a_client_id_that_connects_again_replaces_the_one_before(coap: GatewayBroker, device: CoapClient, name: str) -> None:
    with coap.coap() as again:
        again.connect(name)
        until(lambda: device.request(PUT, "mqtt/connection").text == "4.01")
        again.good(PUT, "mqtt/connection")


def test_without_a_connection(coap: GatewayBroker, name: str) -> None:
    with coap.coap() as observer, coap.coap() as publisher:
        observer.observe(f"{name}/+")
        for kind in (CON, NON):
            assert publisher.request(POST, f"ps/{name}/x", b"%d" % kind, kind=kind).text == "2.04"
            assert observer.notified().payload == b"%d" % kind
        assert observer.request(GET, f"ps/{name}/+", more={"observe": b"\x01"}).text == "2.07"
        publisher.good(POST, f"ps/{name}/x", b"nobody")
        observer.expect_nothing()


# --- brokers of their own ---------------------------------------------------------------------------------------------------------


@pytest.mark.own_broker
def test_connection_required_and_authentication(name: str) -> None:
    settings = {"authentication": '["builtin"]', "connection_required": "true", "heartbeat": "3s"}
    with GatewayBroker(2, settings, "coap") as broker:
        broker.ctl("users add", name="ada", password="secret")
        broker.wait_for_log("gateway listener opened")
        with broker.coap() as device:
            for wrong in ({}, {"username": "ada"}, {"username": "ada", "password": "wrong"}):
                assert device.request(POST, "mqtt/connection", clientid=name, **wrong).text == "4.01"
            assert device.request(POST, "ps/a", b"x").text == "4.00"
            device.connect(name, username="ada", password="secret")
            device.good(POST, "ps/a", b"x")
            for _ in range(5):
                time.sleep(1.2)
                device.good(PUT, "mqtt/connection")
            broker.wait_for_log("the broker rejects the client")
            broker.wait_for_log("gateway client disconnected", "no request within 1.5 times heartbeat")
            assert device.request(PUT, "mqtt/connection").text == "4.01"


@pytest.mark.own_broker
def test_rules_of_the_broker_hold(name: str, tmp_path: Any) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text('{deny, all, all, ["closed/#"]}.\n{allow, all}.\n')
    with GatewayBroker(2, None, "coap", acl__sources="file", acl__file__path=rules) as broker:
        broker.wait_for_log("gateway listener opened")
        with broker.coap() as device:
            device.connect(name)
            assert device.request(POST, "ps/closed/a", b"x").text == "4.01"
            assert device.request(GET, "ps/closed/a", more={"observe": b""}).text == "4.01"
            device.good(POST, "ps/open", b"x")


@pytest.mark.own_broker
def test_more_devices_than_may_be(name: str) -> None:
    with GatewayBroker(2, {"listeners.default.max_connections": 2}, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        devices = [broker.coap() for _ in range(4)]
        for n, device in enumerate(devices[:2]):
            device.connect(f"{name}-{n}")
            device.good(PUT, "mqtt/connection")  # its address is proven
            device.good(PUT, "mqtt/connection")
        assert devices[2].request(POST, "mqtt/connection", clientid=f"{name}-2").text == "5.03"
        broker.wait_for_log("gateway client refused", "max_connections = 2 is reached")
        devices[0].good(DELETE, "mqtt/connection")
        devices[2].connect(f"{name}-2")  # it sends nothing more, as a forged address
        devices[3].connect(f"{name}-3")
        broker.wait_for_log("gateway client disconnected", "another device has taken its place")
        for device in devices:
            device.socket.close()


@pytest.mark.own_broker
def test_forged_addresses_hold_little_and_not_for_long(name: str) -> None:
    """Requests from many addresses, none of which answers. The places come back, and a device that is known is served."""
    settings = {"idle_timeout": "6s", "heartbeat": "6s", "listeners.default.max_connections": 50}
    with GatewayBroker(1, settings, "coap") as broker, broker.coap() as device:
        broker.wait_for_log("gateway listener opened")
        device.connect(name)
        device.good(PUT, "mqtt/connection")
        device.good(PUT, "mqtt/connection")
        forged, sent = [broker.coap() for _ in range(150)], []
        for n, one in enumerate(forged):
            options = norm.options_of("ps/t", {}, observe=b"") if n % 3 == 0 else norm.options_of("ps/t", {})
            if n % 3 == 2:
                options = norm.options_of("mqtt/connection", {"clientid": f"{name}-{n}"})
            sent.append(norm.message(CON, GET if n % 3 == 0 else POST, 1, b"", options))
            one.raw(sent[-1])
        until(lambda: broker.ctl("gateways show", name="coap")["current_connections"] == 50)
        with Client(broker.address, 5, f"{name}-mqtt") as mqtt:
            mqtt.publish("t", b"x" * 1000, 1)
        for _ in range(6):
            time.sleep(2)
            device.good(PUT, "mqtt/connection")
        for data, one in zip(sent, forged, strict=True):
            got = 0
            one.socket.settimeout(0.01)
            with suppress(TimeoutError):
                while True:
                    got += len(one.socket.recv(2000))
            assert got <= 3 * len(data)
            one.socket.close()
        until(lambda: broker.ctl("gateways show", name="coap")["current_connections"] < 20, timeout_s=120)


@pytest.mark.own_broker
def test_unknown_senders_are_bounded_and_known_devices_are_not(name: str) -> None:
    with GatewayBroker(1, {"listeners.default.max_unknown_rate": 20}, "coap") as broker, broker.coap() as device:
        broker.wait_for_log("gateway listener opened")
        device.connect(name)
        other = broker.coap()
        for _ in range(500):
            other.raw(norm.message(CON, 0, 7))
        device.good(PUT, "mqtt/connection")
        answers = 0
        with suppress(TimeoutError):
            while other.recv(0.5):
                answers += 1
        assert 1 <= answers < 100
        until(lambda: broker.figures("coap")["unknown_dropped"] > 400)
        other.socket.close()


@pytest.mark.own_broker
def test_it_starts_and_stops_while_the_broker_runs(name: str) -> None:
    with GatewayBroker(2, {"enable": None}, "coap") as broker:
        assert broker.child_pids("gateway") == []
        for _ in range(2):
            broker.ctl("gateways enable", name="coap", enable=True)
            with broker.coap() as device:
                until(lambda: _connects(device, name))
                device.observe(f"{name}/x")
                broker.ctl("gateways enable", name="coap", enable=False)
                assert device.notified().text == "5.03"
                until(lambda: _is_closed(broker))


def _is_closed(broker: GatewayBroker) -> bool:
    with broker.coap() as one:
        try:
            one.raw(norm.message(CON, 0, 7))
            one.recv(0.5)
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
    return False


def _connects(device: CoapClient, name: str) -> bool:
    with suppress(OSError):
        device.connect(name)
        return True
    return False


@pytest.mark.own_broker
def test_rest_and_metrics(name: str) -> None:
    port = free_port()
    with ApiBroker(2, {"gateways.coap.listeners.default.bind": f"127.0.0.1:{port}"}) as broker:
        rest = Rest.logged_in(broker)
        rest.good("PUT", "/gateways/coap/enable/true")
        with CoapClient(("127.0.0.1", port)) as device:
            until(lambda: _connects(device, name))
            device.good(POST, "ps/a", b"x")
            (row,) = until(lambda: rest.good("GET", "/gateways/coap/clients")["data"])
            assert (row["clientid"], row["proto_name"], row["connected"]) == (name, "CoAP", True)
            shown = until(lambda: (found := rest.good("GET", "/gateways/coap"))["figures"].get("messages_in") and found)
            assert shown["current_connections"] == 1 and shown["listeners"][0]["id"] == "coap:udp:default"
            text = rest.good("GET", "/prometheus/stats")
            assert 'shardbroker_gateway_messages_in{gateway="coap"} 1' in text
            assert 'shardbroker_gateway_withheld{gateway="coap"} 0' in text
            json.dumps(shown)


# --- kill -9 ----------------------------------------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Publishes numbers with QoS 1 and connects again for ever; `acked`: those with 2.04."""

    def __init__(self, broker: GatewayBroker, name: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name, self._topic = broker, name, topic
        self.acked: set[int] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            with suppress(OSError, AssertionError), self._broker.coap() as device:
                device.connect(self._name, timeout_s=2.0)
                while not self.stopping.is_set():
                    number += 1
                    device.good(POST, f"ps/{self._topic}", b"%d" % number, timeout_s=2.0)
                    self.acked.add(number)
                    time.sleep(0.002)


class Observer(threading.Thread):
    """Acknowledges each notification, and connects to its session again when the gateway was killed; `seen`: by publisher."""

    def __init__(self, broker: GatewayBroker, name: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name = broker, name
        self.seen: list[set[int]] = [set(), set()]
        self.stopping = threading.Event()
        self.connections = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            with suppress(OSError, AssertionError), self._broker.coap() as device:
                device.connect(self._name, timeout_s=2.0)
                for n in range(2):
                    device.observe(f"{self._name}/{n}", token=b"t%d" % n, timeout_s=2.0)
                self.connections += 1
                self._take(device)

    def _take(self, device: CoapClient) -> None:
        while not self.stopping.is_set():
            while device.notifications:
                self._note(device.notifications.popleft())
            try:
                device.take(device.recv(0.5))
            except TimeoutError:
                device.good(PUT, "mqtt/connection", timeout_s=2.0)

    def _note(self, got: Got) -> None:
        assert got.text == "2.05", got
        if got.payload:
            self.seen[int(got.token[1:])].add(int(got.payload))


@pytest.mark.own_broker
def test_a_killed_gateway_loses_nothing_acknowledged(name: str) -> None:
    with GatewayBroker(3, None, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        observer = Observer(broker, name)
        observer.start()
        until(lambda: observer.connections)
        publishers = [Publisher(broker, f"{name}-{n}", f"{name}/{n}") for n in range(2)]
        for one in publishers:
            one.start()
        for kill in range(5):
            until(lambda: sum(map(len, observer.seen)) > 100 * (kill + 1), timeout_s=60)  # noqa: B023
            (pid,) = until(lambda: broker.child_pids("gateway"))
            broker.kill_process(pid)
        for one in publishers:
            one.stopping.set()
            one.join(60)
            assert not one.is_alive()

        def has_all() -> bool:
            return all(one.acked <= seen for one, seen in zip(publishers, observer.seen, strict=True))

        until(has_all, lambda: str([one.acked - seen for one, seen in zip(publishers, observer.seen, strict=True)]), 60)
        assert all(len(one.acked) > 30 for one in publishers) and observer.connections > 2
        subscriptions = broker.ctl("subscriptions list", clientid=name)["data"]
        assert sorted(one["topic"] for one in subscriptions) == [f"{name}/0", f"{name}/1"]
        observer.stopping.set()
        observer.join(30)


@pytest.mark.own_broker
def test_an_answer_that_takes_long_is_a_separate_one(name: str) -> None:
    with GatewayBroker(1, None, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        (pid,) = broker.child_pids("worker")
        with broker.coap() as device:
            device.connect(name)
            with stopped(pid):
                device.raw(norm.message(CON, POST, 7, b"token", norm.options_of("ps/a", device.auth), b"x"))
                assert device.recv() == Got(ACK, 0, 7, b"", [], b"")
            got = device.recv()
            assert (got.kind, got.text, got.token) == (CON, "2.04", b"token")
            device.take(got)
            device.good(PUT, "mqtt/connection")
