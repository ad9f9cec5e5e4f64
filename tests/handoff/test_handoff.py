"""Workers are replaced under their clients: no connection ends, and nothing is lost, doubled or overtaken."""

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import NEWER, OLDER, dial, speaking, upgraded
from tests.edge.websocket import WebSocket
from tests.handoff.conftest import WORKERS, replace
from tests.harness import Broker, Client, Publish, client_id_on, wire

pytestmark = pytest.mark.own_broker
TRANSPORTS = ("tcp", "ws", "tls1.2", "tls1.3", "wss")
ROUNDS = 3
CROWD = 1000

numbers = itertools.count(1)


def dialler(whole: Edge, authority: Authority, transport: str) -> Callable[[], Any] | None:
    if transport == "tcp":
        return None
    if transport == "ws":
        return lambda: WebSocket(socket.create_connection(whole.at("ws"), 5))
    if transport == "wss":
        return upgraded(dial(whole.at("wss"), speaking(authority, NEWER)))
    version: ssl.TLSVersion = OLDER if transport == "tls1.2" else NEWER
    return dial(whole.at("ssl"), speaking(authority, version))


def name_on(worker: int) -> str:
    return client_id_on(worker, WORKERS, f"handoff{next(numbers)}-")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [True, False])
def test_a_connection_goes_on_where_it_was(
    whole: Edge, authority: Authority, transport: str, version: int, clean: bool, move: Callable[[Broker], None]
) -> None:
    """Exchanges of both directions are half done, a packet is half sent, and both sides use aliases that they made before."""
    made = dialler(whole, authority, transport)
    topic = f"goes-on/{next(numbers)}"
    properties: dict[str, Any] = {} if version == 4 else {"topic_alias_maximum": 5, "receive_maximum": 3}
    if version == 5 and not clean:
        properties["session_expiry_interval"] = 100
    with Client(whole.address, 5, name_on(1)) as other, Client(
        whole.address, version, name_on(0), clean=clean, properties=properties, auto_ack=False, dial=made
    ) as client:
        client.subscribe(topic, 2)
        other.subscribe(f"{topic}/back", 2)
        other.publish(topic, b"first", 2)
        first = client.expect(Publish, payload=b"first")
        for number in range(ROUNDS):
            # From the client: QoS 2 received and not released, an alias, half of a packet.
            taken = client.next_id()
            client.send_raw(wire.publish(f"{topic}/back", b"released %d" % number, version=version, qos=2, packet_id=taken))
            client.expect(wire.Pubrec, packet_id=taken)
            if version == 5:
                client.publish(f"{topic}/back", b"names an alias", properties={"topic_alias": 1})
                assert other.expect(Publish).payload == b"released %d" % number
                assert other.expect(Publish).payload == b"names an alias"
            else:
                assert other.expect(Publish).payload == b"released %d" % number
            packet = wire.publish(f"{topic}/back", b"cut %d" % number * 50, version=version, qos=1, packet_id=client.next_id())
            client.send_raw(packet[:40])
            # To the client: one more in flight, none acknowledged.
            other.publish(topic, b"next %d" % number, 1)
            following = client.expect(Publish, payload=b"next %d" % number)
            move(whole)
            client.send_raw(packet[40:])
            client.expect(wire.Puback)
            assert other.expect(Publish).payload == b"cut %d" % number * 50
            client.release(taken)
            client.ack(first)
            client.expect(wire.Pubrel, packet_id=first.packet_id)
            client.send_raw(wire.pubcomp(first.packet_id))
            client.ack(following)
            if version == 5:
                client.publish("", b"by an alias", properties={"topic_alias": 1})
                assert other.expect(Publish).payload == b"by an alias"
                assert following.topic == "" or number == 0
            other.publish(topic, b"first", 2)
            first = client.expect(Publish, payload=b"first", dup=False)
            assert first.packet_id == following.packet_id + 1
        client.ping()


def test_a_crowd_stays_and_hears_everything_once(whole: Edge, authority: Authority) -> None:
    """1,000 connections of all transports; each gets one message between two of three replacements of both workers."""
    made = {transport: dialler(whole, authority, transport) for transport in TRANSPORTS}
    dials = [made[TRANSPORTS[number % len(TRANSPORTS)]] for number in range(CROWD)]
    crowd = [
        Client(whole.address, 4 + number % 2, f"crowd{number}", clean=number % 3 > 0, dial=dials[number]) for number in range(CROWD)
    ]
    try:
        for number, client in enumerate(crowd):
            client.send_raw(wire.subscribe(1, [(f"crowd/{number}", number % 3), ("crowd/all", 1)], version=client.version))
        for client in crowd:
            client.expect(wire.Suback)
        with Client(whole.address, 5, "crowd-publisher") as publisher:
            for round_ in range(ROUNDS):
                publisher.publish("crowd/all", b"all %d" % round_, 1)
                for number in range(CROWD):
                    publisher.publish(f"crowd/{number}", b"one %d" % round_, number % 3, wait=number % 3 == 2)
                for worker in range(WORKERS):
                    replace(whole, worker)
                publisher.ping()
                for number, client in enumerate(crowd):
                    found = {(packet.topic, packet.payload) for packet in (client.expect(Publish), client.expect(Publish))}
                    assert found == {(f"crowd/{number}", b"one %d" % round_), ("crowd/all", b"all %d" % round_)}
        for client in crowd:
            client.send_raw(wire.pingreq())
        for client in crowd:
            client.expect(wire.Pingresp)
    finally:
        for client in crowd:
            client.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept_in_a_stream(whole: Edge, authority: Authority, qos: int) -> None:
    """Publishers of both workers send as fast as they can to subscribers of both while workers are replaced."""
    topic, total = f"stream/{qos}/{next(numbers)}", 600
    got: dict[str, list[bytes]] = {}
    problems: list[BaseException] = []

    def receive(client: Client) -> None:
        try:
            while len(got[client.client_id]) < 2 * total:
                got[client.client_id].append(client.expect(Publish, timeout=60, dup=False).payload)
        except BaseException as error:
            problems.append(error)

    def publish(client: Client, number: int) -> None:
        try:
            for one in range(total):
                client.publish(topic, b"%d %d" % (number, one), qos)
                time.sleep(0.001)
        except BaseException as error:
            problems.append(error)

    dials = [dialler(whole, authority, transport) for transport in ("tcp", "tls1.3")]
    subscribers = [Client(whole.address, 5, name_on(number), dial=dials[number], timeout=60) for number in range(2)]
    publishers = [Client(whole.address, 4, name_on(number), timeout=60) for number in range(2)]
    try:
        for subscriber in subscribers:
            got[subscriber.client_id] = []
            subscriber.subscribe(topic, qos)
        threads = [threading.Thread(target=receive, args=(one,)) for one in subscribers]
        threads += [threading.Thread(target=publish, args=(one, number)) for number, one in enumerate(publishers)]
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            for worker in range(WORKERS):
                replace(whole, worker)
        for thread in threads:
            thread.join()
        assert not problems, problems
        for payloads in got.values():
            for number in range(2):
                of_one = [one for one in payloads if one.startswith(b"%d " % number)]
                assert of_one == [b"%d %d" % (number, one) for one in range(total)]
    finally:
        for client in (*subscribers, *publishers):
            client.close()
