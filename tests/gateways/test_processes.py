"""Gateways of several processes: devices are spread by their addresses, and one that lands at another process goes on there."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from typing import Any

import pytest

from shardbroker.config import load
from shardbroker.config.errors import ConfigError
from shardbroker.config.live import is_live
from shm.runtime import find_runtime_dir
from tests.gateways import mqttsn_client as norm
from tests.gateways.coap_client import OBSERVE, POST, PUT
from tests.gateways.conftest import GatewayBroker
from tests.gateways.mqttsn_client import SHORT, MqttSnClient
from tests.harness import Client, free_port, until, wire

pytestmark = pytest.mark.own_broker
PROCESSES = 3


@pytest.fixture(scope="module")
def spread() -> Iterator[GatewayBroker]:
    settings = {"processes": PROCESSES, "enable_qos3": "true", "retry_interval": "1s"}
    with GatewayBroker(3, settings, "mqttsn") as broker:
        until(lambda: row_of(broker)["listeners"][0]["running"])
        yield broker


def row_of(broker: GatewayBroker, kind: str = "mqttsn") -> dict[str, Any]:
    return next(row for row in broker.ctl("gateways list")["data"] if row["name"] == kind)


def shares(broker: GatewayBroker, kind: str = "mqttsn") -> list[int]:
    """Connections of each process, as it has recorded them."""
    directory = find_runtime_dir(sha256(str(broker.data_dir.resolve()).encode()).hexdigest()[:12])
    assert directory is not None
    states = [json.loads((directory / f"gateway-{kind}-{n}.json").read_bytes()) for n in range(PROCESSES)]
    return [sum(one["current_connections"] for one in state["listeners"]) for state in states]


def test_devices_are_spread_and_one_is_found_wherever_it_is(spread: GatewayBroker, name: str) -> None:
    with ExitStack() as stack:
        devices = [stack.enter_context(spread.mqttsn()) for _ in range(30)]
        for n, one in enumerate(devices):
            one.connect(f"{name}-{n}")
        until(lambda: row_of(spread)["current_connections"] == 30)
        assert sum(shares(spread)) == 30 and sum(share > 0 for share in shares(spread)) >= 2, shares(spread)

        def listed() -> set[str]:
            return {one["clientid"] for one in spread.ctl("gateways clients", name="mqttsn", limit=100)["data"]}

        until(lambda: listed() >= {f"{name}-{n}" for n in range(30)}, lambda: str(listed()))
        for n in (3, 17):
            spread.ctl("clients kick", clientids=[f"{name}-{n}"])
            devices[n].expect("DISCONNECT")
        with Client(spread.address, 5, f"{name}-mqtt") as mqtt:
            for n, one in enumerate(devices):
                if n not in (3, 17):
                    one.subscribe(f"{name}/{n}")
                    mqtt.publish(f"{name}/{n}", b"%d" % n, 1)
                    assert one.take()[2] == b"%d" % n
                    one.send("DISCONNECT")
    until(lambda: row_of(spread)["current_connections"] == 0)


def test_a_device_goes_on_with_its_session_from_other_addresses(spread: GatewayBroker, name: str) -> None:
    """Some of twelve addresses belong to other processes. At each of them it is unknown, connects, and has its session."""
    with Client(spread.address, 5, f"{name}-mqtt") as mqtt, ExitStack() as stack:
        first = stack.enter_context(spread.mqttsn())
        first.connect(name, flags=0)
        first.subscribe(f"{name}/down")
        first.sleep(600)
        for n in range(12):
            mqtt.publish(f"{name}/down", b"%d" % n, 1)
            moved = stack.enter_context(spread.mqttsn())
            moved.send("PINGREQ", name.encode())
            moved.expect("DISCONNECT")
            moved.connect(name, flags=0)
            assert moved.take()[2] == b"%d" % n
            moved.sleep(600)
        moved.connect(name)
        moved.send("DISCONNECT")
        moved.expect("DISCONNECT")
    until(lambda: row_of(spread)["current_connections"] == 0)


def test_qos_minus_1_from_many_addresses(spread: GatewayBroker, name: str) -> None:
    """Each process publishes as a client of its own: they would end each other's sessions."""
    with Client(spread.address, 5, f"{name}-mqtt") as mqtt:
        mqtt.subscribe("qm", 0)
        for turn in range(2):
            for n in range(20):
                with spread.mqttsn() as one:
                    one.raw(norm.publish(SHORT, 0x716D, b"%d" % (20 * turn + n), -1))
        got = {int(mqtt.expect(wire.Publish).payload) for _ in range(40)}
        assert got == set(range(40))
        known = {"mqttsn-udp-default", "mqttsn-udp-default-1", "mqttsn-udp-default-2"}
        until(lambda: len({one["clientid"] for one in spread.ctl("gateways clients", name="mqttsn")["data"]} & known) >= 2)


def test_a_gateway_that_is_not_enabled_has_no_open_listener(spread: GatewayBroker) -> None:
    row = row_of(spread, "coap")
    assert row["status"] == "unloaded" and [one["running"] for one in row["listeners"]] == [False]
    assert row_of(spread)["status"] == "running" and row_of(spread)["listeners"][0]["running"]


def test_changed_settings_reach_all_processes(spread: GatewayBroker) -> None:
    assert not is_live("gateways.mqttsn.processes") and is_live("gateways.mqttsn.gateway_id")
    spread.ctl("config set", key="gateways.mqttsn.gateway_id", value="77")
    for _ in range(20):
        with spread.mqttsn() as one:
            one.send("SEARCHGW", b"\0")
            assert one.recv().fields == (77,)


class Sensor(threading.Thread):
    """A device that keeps its address, publishes numbers with QoS 1 and connects again as it is told; `acked`: with PUBACK."""

    def __init__(self, broker: GatewayBroker, name: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name, self._topic = broker, name, topic
        self.acked: set[int] = set()
        self.connections = 0
        self.patience_s = 2.0
        """Longest wait for an answer: the process may be another one, which does not know the device."""
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        with self._broker.mqttsn() as device:
            while not self.stopping.is_set():
                with suppress(OSError, AssertionError):
                    topic_id = self._begin(device)
                    while not self.stopping.is_set():
                        number += 1
                        self._publish(device, topic_id, number)
                        time.sleep(0.02)

    def _begin(self, device: MqttSnClient) -> int:
        device.raw(norm.connect(self._name, flags=0))
        while device.recv(self.patience_s).name != "CONNACK":
            pass
        self.connections += 1
        message_id = device.next_id()
        device.send("REGISTER", struct.pack("!HH", 0, message_id) + self._topic.encode())
        got = device.recv(self.patience_s)
        assert got.name == "REGACK", got
        return got.fields[0]

    def _publish(self, device: MqttSnClient, topic_id: int, number: int) -> None:
        message_id = device.next_id()
        device.raw(norm.publish(0, topic_id, b"%d" % number, 1, message_id))
        got = device.recv(self.patience_s)
        assert got.name == "PUBACK" and got.fields[1:] == (message_id, 0), got
        self.acked.add(number)


class Reader(threading.Thread):
    """Takes all messages, so that no queue fills up; `seen`: numbers by sensor."""

    def __init__(self, mqtt: Client, count: int) -> None:
        super().__init__(daemon=True)
        self._mqtt = mqtt
        self.seen: list[set[int]] = [set() for _ in range(count)]
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            message = self._mqtt.recv(0.2)
            if isinstance(message, wire.Publish):
                self.seen[int(message.topic.rpartition("/")[2])].add(int(message.payload))


def connections(sensors: list[Sensor]) -> int:
    return sum(one.connections for one in sensors)


def test_a_killed_process_loses_nothing_acknowledged_and_no_device(name: str) -> None:
    """When a process ends and when it is back, the kernel spreads addresses anew: most devices land at another process."""
    # The reader may be slower than the sensors for a while: its queue must not overflow.
    with GatewayBroker(3, {"processes": PROCESSES, "retry_interval": "1s"}, "mqttsn", mqtt__max_mqueue_len=0) as broker:
        until(lambda: row_of(broker)["listeners"][0]["running"])
        with Client(broker.address, 5, name) as mqtt:
            mqtt.subscribe(f"{name}/+", 1)
            sensors = [Sensor(broker, f"{name}-{n}", f"{name}/{n}") for n in range(12)]
            reader = Reader(mqtt, len(sensors))
            for one in (reader, *sensors):
                one.start()

            def read_on(much: int) -> None:
                wanted = sum(map(len, reader.seen)) + much
                until(lambda: sum(map(len, reader.seen)) >= wanted, timeout_s=60)

            received = 0
            for _ in range(3):
                read_on(600)
                pids = until(lambda: (found := broker.child_pids("gateway")) and len(found) == PROCESSES and found)
                broker.kill_process(pids[1])
                read_on(300)
                until(lambda: row_of(broker)["listeners"][0]["running"])
                figures = broker.figures("mqttsn")
                assert figures["received"] >= received, "a sum that falls"
                received = figures["received"]
            # A device notices after 2 s that its process is another one.
            until(lambda: (before := connections(sensors)) and not time.sleep(5.0) and connections(sensors) == before, timeout_s=60)
            for one in sensors:
                one.patience_s = 30.0  # none of them is to give up because the machine is slow
            read_on(600)
            settled = connections(sensors)
            read_on(1200)
            assert connections(sensors) == settled, "a process has sent a device away that is connected to another one"
            for one in sensors:
                one.stopping.set()
                one.join(60)

            def lost() -> list[set[int]]:
                return [one.acked - got for one, got in zip(sensors, reader.seen, strict=True)]

            until(lambda: not any(lost()), lambda: str(lost()), 60)
            reader.stopping.set()
            reader.join(10)
        assert all(len(one.acked) > 30 for one in sensors), [len(one.acked) for one in sensors]
        assert sum(one.connections > 1 for one in sensors) >= 2, "no device was spread anew"


def test_limits_are_shared() -> None:
    settings = {"processes": 3, "listeners.default.max_connections": 6}
    with GatewayBroker(2, settings, "mqttsn") as broker, ExitStack() as stack:
        until(lambda: row_of(broker)["listeners"][0]["running"])
        taken = 0
        for n in range(40):
            device = stack.enter_context(broker.mqttsn())
            device.knock(norm.connect(f"limit-{n}"))
            if device.recv().fields == (0,):
                taken += 1
                device.send("PINGREQ")
                device.expect("PINGRESP")
        assert taken == 6 and until(lambda: shares(broker) == [2, 2, 2])


def test_one_process_advertises() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(10)
        settings = {"processes": 3, "advertise_interval": "1s", "advertise_to": f"127.0.0.1:{one.getsockname()[1]}"}
        with GatewayBroker(1, settings, "mqttsn") as broker:
            until(lambda: row_of(broker)["listeners"][0]["running"])
            one.recv(100)
            start_s, count = time.monotonic(), 0
            while count < 3:
                one.recv(100)
                count += 1
            assert time.monotonic() - start_s > 1.9


def test_a_coap_token_at_another_process_is_unknown_there_and_the_device_connects_again(name: str) -> None:
    with GatewayBroker(3, {"processes": PROCESSES}, "coap") as broker, ExitStack() as stack:
        until(lambda: row_of(broker, "coap")["listeners"][0]["running"])
        device = stack.enter_context(broker.coap())
        device.connect(name)
        device.observe(f"{name}/x")
        answers = set()
        for n in range(16):
            moved = stack.enter_context(broker.coap())
            moved.auth = device.auth
            answer = moved.request(POST, f"ps/{name}/y", b"%d" % n).text
            answers.add(answer)
            if answer == "4.01":
                moved.connect(name)
                assert moved.request(POST, f"ps/{name}/y", b"again").text == "2.04"
                token = moved.observe(f"{name}/x")
                moved.good(POST, f"ps/{name}/x", b"%d" % n)
                got = moved.notified()
                assert got.payload == b"%d" % n and got.token == token and got.option(OBSERVE) is not None
                moved.expect_nothing()
            device = moved
        assert answers == {"2.04", "4.01"}, "all addresses belong to one process"
        assert device.request(PUT, "mqtt/connection").text == "2.04"
        assert row_of(broker, "coap")["status"] == "running"


def test_stomp_in_several_processes(name: str) -> None:
    with GatewayBroker(2, {"processes": PROCESSES}) as broker, ExitStack() as stack:
        until(lambda: row_of(broker, "stomp")["listeners"][0]["running"])
        clients = [stack.enter_context(broker.stomp()) for _ in range(20)]
        for n, one in enumerate(clients):
            one.connect(client_id=f"{name}-{n}")
            one.send("SUBSCRIBE", id="1", destination=f"{name}/all", receipt="r")
            one.expect("RECEIPT")
        until(lambda: sum(shares(broker, "stomp")) == 20)
        assert sum(share > 0 for share in shares(broker, "stomp")) >= 2
        clients[0].send("SEND", b"x", destination=f"{name}/all")
        for one in clients:
            assert one.expect("MESSAGE").body == b"x"
        until(lambda: len(broker.ctl("gateways clients", name="stomp", limit=100)["data"]) == 20)  # workers list them in time
        broker.ctl("clients kick", clientids=[f"{name}-5"])
        assert clients[5].expect("ERROR")


@pytest.mark.parametrize(
    ("setting", "text"),
    [("gateways.exproto.processes=2", "a program reaches all devices at one address"), ("gateways.coap.processes=0", "1"),
     ("gateways.stomp.processes=33", "32")],
)  # fmt: skip
def test_wrong_numbers_are_named(setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(None, None, [setting], {})


def test_an_address_that_another_program_has_is_found() -> None:
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", port))
        with GatewayBroker(1, {"processes": 2, "listeners.default.bind": f"127.0.0.1:{port}"}, "mqttsn") as broker:
            broker.expects("gateway listener not opened")
            until(lambda: row_of(broker)["listeners"][0]["problem"])
            assert not row_of(broker)["listeners"][0]["running"]
