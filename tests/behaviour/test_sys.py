"""$SYS: messages about clients that come and go, and statistics that workers write into shared memory."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import AnyBroker, Broker, Client, Disconnect, Publish, client_id_on

Connect = Callable[..., Client]

pytestmark = pytest.mark.own_broker
CLIENTS = "$SYS/brokers/+/clients"


def next_event(watcher: Client, client_id: str) -> tuple[str, dict[str, Any]]:
    """The next event about this client; those of clients that came or went just before are passed over."""
    while True:
        message = watcher.recv()
        assert isinstance(message, Publish), message
        assert not message.retain and message.qos == 0
        event = json.loads(message.payload)
        if event["clientid"] == client_id:
            return message.topic, event


def test_one_that_comes_and_goes(connect: Connect, broker: AnyBroker, new_id: Callable[..., str]) -> None:
    name = new_id()
    watcher = connect()
    watcher.subscribe(f"{CLIENTS}/{name}/#")
    before_ms = time.time_ns() // 1_000_000 - 1000  # the brokers' clock is a steady one
    with connect(5, name, keepalive=30, username="ann", properties={"session_expiry_interval": 7}) as client:
        topic, come = next_event(watcher, name)
        assert topic == f"$SYS/brokers/shardbroker@127.0.0.1/clients/{name}/connected"
        times = [come.pop("connected_at"), come.pop("ts")]
        assert come == {
            "clientid": name,
            "username": "ann",
            "ipaddress": "127.0.0.1",
            "sockport": broker.address[1],
            "proto_name": "MQTT",
            "proto_ver": 5,
            "keepalive": 30,
            "connack": 0,
            "clean_start": True,
            "expiry_interval": 7,
        }
        client.disconnect()
    topic, gone = next_event(watcher, name)
    assert topic == f"$SYS/brokers/shardbroker@127.0.0.1/clients/{name}/disconnected"
    times += [gone.pop("disconnected_at"), gone.pop("ts")]
    assert gone == {
        "clientid": name,
        "username": "ann",
        "ipaddress": "127.0.0.1",
        "proto_name": "MQTT",
        "proto_ver": 5,
        "reason": "normal",
    }
    assert all(before_ms <= at <= time.time_ns() // 1_000_000 + 1000 for at in times)


def test_reasons(connect: Connect, new_id: Callable[..., str]) -> None:
    watcher = connect()
    watcher.subscribe(f"{CLIENTS}/+/disconnected")

    def reason_of(client_id: str) -> str:
        return str(next_event(watcher, client_id)[1]["reason"])

    lost = connect(4)
    lost.socket.close()
    assert reason_of(lost.client_id) == "tcp_closed"
    with_will = connect()
    with_will.disconnect(0x04)
    assert reason_of(with_will.client_id) == "disconnect_with_will_message"
    name = new_id()
    first, second = connect(5, name), connect(5, name)
    assert isinstance(first.recv(), Disconnect)
    assert reason_of(name) == "takenover"
    second.close()
    silent = connect(3, keepalive=1)
    assert reason_of(silent.client_id) == "keepalive_timeout"
    wrong = connect()
    wrong.send_raw(b"\x00\x00")
    assert reason_of(wrong.client_id) == "malformed_packet"


def test_nothing_is_missed_right_after_suback(connect: Connect, new_id: Callable[..., str]) -> None:
    for _ in range(20):
        name = new_id()
        with connect() as watcher:
            watcher.subscribe(f"{CLIENTS}/{name}/connected")
            with connect(5, name):
                next_event(watcher, name)


@pytest.mark.parametrize("name", ["a+b", "#", "a/b/c", "/" * 200, "\N{SNOWMAN}", "x" * 60_000, "$SYS"])
def test_client_ids_that_are_not_plain_levels(connect: Connect, name: str) -> None:
    """Those that cannot stand in a topic get no message; none of them harms a worker."""
    watcher = connect()
    watcher.subscribe(f"{CLIENTS}/#")
    with connect(5, name) as client:
        client.ping()
    if "+" not in name and "#" not in name and name.count("/") < 100:
        assert [next_event(watcher, name)[0].rpartition("/")[2] for _ in range(2)] == ["connected", "disconnected"]
    next_event(watcher, connect().client_id)


def test_a_subscriber_of_a_shared_group_gets_them(connect: Connect, new_id: Callable[..., str]) -> None:
    watcher = connect()
    watcher.subscribe(f"$share/g/{CLIENTS}/+/connected")
    client = connect()
    next_event(watcher, client.client_id)


def test_they_can_be_switched_off(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(sys__event_messages__client_connected="false")
    watcher = connect(on=own)
    watcher.subscribe(f"{CLIENTS}/#")
    with connect(on=own) as client:
        client.disconnect()
    assert next_event(watcher, client.client_id)[0].endswith("/disconnected")


def test_latencies(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    own = broker_with(sys__msg_interval="300ms", workers=2)
    watcher, publisher = connect(on=own, client_id=client_id_on(0, 2)), connect(on=own, client_id=client_id_on(1, 2))
    watcher.subscribe([("$SYS/brokers/+/metrics/ring/hop_us/+", 0), ("$SYS/brokers/+/metrics/pass_us/+", 0), (topic, 0)])
    found: dict[str, int] = {}
    deadline = time.monotonic() + 10
    while len([name for name, value in found.items() if value]) < 6:
        assert time.monotonic() < deadline, found
        publisher.publish(topic, b"x", 1)  # through the ring between the two workers
        while isinstance(message := watcher.recv(0.05), Publish):
            if message.topic != topic:
                found[message.topic.partition("/metrics/")[2]] = int(message.payload)
    assert set(found) == {f"{name}/{word}" for name in ("ring/hop_us", "pass_us") for word in ("p50", "p99", "max")}
    assert all(value < 10_000_000 for value in found.values())
