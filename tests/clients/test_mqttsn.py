"""The MQTT-SN client of PyPI's mqtt-sn-12 against the MQTT-SN gateway, as a library and by its programs."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqttsn12.client.MqttSnClient import MqttSnClient, MqttSnListener

from tests.gateways.conftest import GatewayBroker
from tests.harness import Client, until, wire

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 20
PREDEFINED = 7


class Listener(MqttSnListener):  # type: ignore[misc]
    """Keeps payloads."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def message_arrived(self, msg: Any) -> None:
        self.payloads.append(msg.get_payload())


@pytest.fixture(scope="module")
def broker() -> Iterator[GatewayBroker]:
    settings = {"enable_qos3": "true", "predefined": f'[{{ id = {PREDEFINED}, topic = "pre/seven" }}]'}
    with GatewayBroker(3, settings, "mqttsn") as one:
        one.wait_for_log("gateway listener opened")
        yield one


@pytest.fixture
def connect(broker: GatewayBroker) -> Iterator[Callable[..., MqttSnClient]]:
    clients = []

    def make(name: str, will: tuple[str, str, int] | None = None, keep_alive_s: int = 60) -> MqttSnClient:
        client = MqttSnClient()
        client.set_client_id(name)
        client.set_timeout(TIMEOUT_S)
        client.set_keep_alive(keep_alive_s)
        if will is not None:
            client.set_will(*will, False)
        client.open(*broker.at)
        client.send_connect()
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def poll(client: MqttSnClient, listener: Listener, count: int) -> list[bytes]:
    """Handles what comes, until there are `count` messages."""
    client.datagram_socket.settimeout(0.2)
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(listener.payloads) < count and time.monotonic() < deadline_s:
        client.polling()
    client.datagram_socket.settimeout(TIMEOUT_S)
    return listener.payloads


def test_publish(broker: GatewayBroker, connect: Callable[..., MqttSnClient]) -> None:
    with Client(broker.address, 5, "pub-mqtt") as mqtt:
        for topic in ("lib/a", "lb", "pre/seven"):
            mqtt.subscribe(topic, 2)
        client = connect("pub")
        for qos in (0, 1, 2):
            client.send_publish("lib/a", b"n%d" % qos, qos)
            client.send_publish("lb", b"s%d" % qos, qos)
            client.send_publish_predefined(PREDEFINED, b"p%d" % qos, qos)
            assert [mqtt.expect(wire.Publish).payload for _ in range(3)] == [b"%c%d" % (one, qos) for one in b"nsp"]
        client.send_publish_predefined(PREDEFINED, b"minus", -1)
        assert mqtt.expect(wire.Publish).payload == b"minus"
        client.send_disconnect()


def test_subscribe(broker: GatewayBroker, connect: Callable[..., MqttSnClient]) -> None:
    with Client(broker.address, 5, "sub-mqtt") as mqtt:
        client, listener = connect("sub"), Listener()
        client.send_subscribe("lib/sub", 0, listener)  # 1.0.9 acknowledges no message with QoS 1
        client.send_subscribe("ls", 0, listener)
        client.send_subscribe_predefined(PREDEFINED, 0, listener)
        for topic in ("lib/sub", "ls", "pre/seven"):
            mqtt.publish(topic, topic.encode(), 1)
        assert sorted(poll(client, listener, 3)) == [b"lib/sub", b"ls", b"pre/seven"]
        client.send_unsubscribe("lib/sub")
        client.send_disconnect()


def test_will_and_its_updates(broker: GatewayBroker, connect: Callable[..., MqttSnClient]) -> None:
    with Client(broker.address, 5, "will-mqtt") as mqtt:
        mqtt.subscribe("lib/will/#", 1)
        client = connect("will", ("lib/will/first", "m", 1), 2)
        client.send_will_topic_update("lib/will/second")
        client.send_will_message_update("gone")
        got = mqtt.expect(wire.Publish)
        assert (got.topic, got.payload) == ("lib/will/second", b"gone")


def test_search_and_sleep(broker: GatewayBroker, connect: Callable[..., MqttSnClient]) -> None:
    client = connect("sleepy")
    client.send_search_gateway(0)
    client.send_disconnect(60)
    row = until(lambda: broker.ctl("clients list", clientid="sleepy")["data"])[0]
    assert row["connected"]


def test_programs(broker: GatewayBroker) -> None:
    """The commands of docs/gateway-mqttsn.md."""
    at = ["-h", broker.at[0], "-p", str(broker.at[1])]
    here = Path(sys.executable).parent
    with Client(broker.address, 5, "prog-mqtt") as mqtt:
        mqtt.subscribe("lib/prog", 1)
        for qos in ("0", "1", "2"):
            subprocess.run([here / "mqtt_sn_pub", *at, "-t", "lib/prog", "-m", f"m{qos}", "-q", qos], check=True, timeout=60)
            assert mqtt.expect(wire.Publish).payload == f"m{qos}".encode()


@pytest.mark.parametrize(("topic", "name"), [(("-t", "lib/both"), "lib/both"), (("-T", str(PREDEFINED)), "pre/seven")])
def test_programs_reach_each_other(broker: GatewayBroker, topic: tuple[str, str], name: str) -> None:
    """Likewise, by name and by predefined id."""
    at = ["-h", broker.at[0], "-p", str(broker.at[1]), *topic]
    here = Path(sys.executable).parent
    with subprocess.Popen([here / "mqtt_sn_sub", *at, "-q", "0", "-1"], stdout=subprocess.PIPE) as subscriber:
        try:
            until(lambda: [one for one in broker.ctl("subscriptions list")["data"] if one["topic"] == name])
            subprocess.run([here / "mqtt_sn_pub", *at, "-m", "21.5", "-q", "1"], check=True, timeout=60)
            assert subscriber.communicate(timeout=60)[0] == b"21.5\n"
        finally:
            subscriber.kill()
