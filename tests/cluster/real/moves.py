"""A client that changes its node all the time, between real brokers, while processes are killed: `make partitions`.

Each CONNECT has to find the session, which has bounds in time: 1 s from TAKE to the first part of the session.
"""

import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import count

import pytest

from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_messages import linked
from tests.harness import Client, Closed, client_id_on, wire
from tests.harness.waiting import until

__all__ = ["KEPT", "MOVING", "move_around"]

MOVING = {"cluster.registry": "on"}
KEPT = {"session_expiry_interval": 300}
PAUSE_S = 0.004
"""Between two messages of a publisher."""


class Receiver:
    """A client with a session that stays, which connects at any node and keeps its half of QoS 2."""

    def __init__(self, nodes: Nodes, name: str, must_be_present: bool = True) -> None:
        self.nodes, self.name, self.must_be_present = nodes, name, must_be_present
        self.received: dict[str, list[bytes]] = {"t/1": [], "t/2": []}
        self.unreleased: set[int] = set()
        self.connection: Client | None = None
        self.moves = self.refusals = 0

    def connect(self, node: int) -> None:
        """Connects, again if the node refuses; the old connection is closed by the client behind it."""
        old, self.connection = self.connection, None
        for _ in range(20):
            try:
                new = Client(
                    self.nodes.brokers[node].address, 5, self.name, clean=False, timeout=20, properties=KEPT, auto_ack=False
                )
            except (OSError, AssertionError, Closed):
                self.refusals += 1
                time.sleep(0.3)
                continue
            if new.connack is not None and new.connack.code == 0:
                break
            self.refusals += 1
            new.close()
            time.sleep(0.3)
        else:
            raise AssertionError(f"node {node} does not accept {self.name}: {self.nodes.output(node)}")
        if old is not None:
            old.close()
            is_there = new.connack.session_present or not self.must_be_present
            assert is_there, f"session lost at move {self.moves}\n{self.nodes.output(node)}"
        self.connection = new
        self.moves += 1

    def read(self, seconds: float) -> bool:
        """Takes what arrives; returns whether nothing did."""
        assert self.connection is not None
        deadline, was_quiet = time.monotonic() + seconds, True
        with suppress(Closed, OSError):
            while (packet := self.connection.recv(max(deadline - time.monotonic(), 0.001))) is not None:
                was_quiet = False
                if isinstance(packet, wire.Pubrel):
                    self.unreleased.discard(packet.packet_id)
                    self.connection.send_raw(wire.pubcomp(packet.packet_id))
                elif isinstance(packet, wire.Publish):
                    self.take(packet)
                if time.monotonic() > deadline:
                    break
        return was_quiet

    def take(self, packet: wire.Publish) -> None:
        assert self.connection is not None and packet.packet_id is not None
        if packet.qos == 1:
            self.received[packet.topic].append(packet.payload)
            self.connection.send_raw(wire.puback(packet.packet_id))
            return
        if packet.packet_id not in self.unreleased:
            self.received[packet.topic].append(packet.payload)
            self.unreleased.add(packet.packet_id)
        self.connection.send_raw(wire.pubrec(packet.packet_id))


@pytest.mark.parametrize("level", ["process", "machine"])
@pytest.mark.parametrize("kill", ["links", "worker of the client"])
def test_nothing_acknowledged_is_lost_while_processes_are_killed(kill: str, level: str) -> None:
    move_around(level, kill)


def move_around(level: str, kill: str = "nothing") -> None:
    """Publishers on both nodes, and a subscriber that changes its node all the time."""
    settings = {**MOVING, "durability.level": level, "mqtt.max_mqueue_len": 0}
    with running(2, workers=2, **settings) as nodes:
        linked(nodes)
        receiver = Receiver(nodes, client_id_on(1, 2, "subscriber"))
        receiver.connect(1)
        assert receiver.connection is not None
        receiver.connection.subscribe([("t/1", 1), ("t/2", 2)])
        acknowledged: dict[str, list[bytes]] = {"t/1": [], "t/2": []}
        ended = threading.Event()

        def publish(node: int, qos: int) -> None:
            with Client(nodes.brokers[node].address, 5, client_id_on(0, 2, f"p{node}{qos}"), timeout=60) as publisher:
                for number in count():
                    if ended.is_set():
                        return
                    payload = b"%d %d" % (node, number)
                    publisher.publish(f"t/{qos}", payload, qos=qos)
                    acknowledged[f"t/{qos}"].append(payload)
                    time.sleep(PAUSE_S)

        threads = [threading.Thread(target=publish, args=(node, qos)) for node in nodes.brokers for qos in (1, 2)]
        for thread in threads:
            thread.start()
        try:
            for move in range(10):
                receiver.read(0.3)
                node = 2 - move % 2
                hit = threading.Timer(0.005 * move, _kill_for, (nodes, kill, node)) if move % 3 == 2 else None
                if hit is not None:
                    hit.start()
                receiver.connect(node)
                if hit is not None:
                    hit.join()
                    receiver.read(0.5)
                    if kill != "nothing":
                        receiver.connect(node)
                        linked(nodes)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        linked(nodes)

        def complete() -> bool:
            if receiver.read(0.3):
                receiver.connect(1 + receiver.moves % 2)
            return all({*acknowledged[topic]} <= {*receiver.received[topic]} for topic in acknowledged)

        def missing() -> str:
            lost = {topic: [one for one in acknowledged[topic] if one not in {*receiver.received[topic]}] for topic in acknowledged}
            return ", ".join(f"{topic}: {len(found)} of {len(acknowledged[topic])}, {found[:5]}" for topic, found in lost.items())

        until(complete, missing, 60)
        twice = [payload for payload, times in Counter(receiver.received["t/2"]).items() if times > 1]
        assert not twice, f"QoS 2: {len(twice)} twice, {twice[:5]}"
        if kill == "nothing":
            for topic, payloads in receiver.received.items():
                _assert_order(topic, payloads)
        for number in nodes.brokers:
            for line in FAILED:
                assert line not in nodes.output(number), nodes.output(number)


FAILED = ("session not moved", "message of a node failed", "session not imported")


def _assert_order(topic: str, payloads: list[bytes]) -> None:
    """Asserts that the first copies of the messages of each publisher are in the order of publication."""
    last: dict[int, int] = {}
    for payload in dict.fromkeys(payloads):
        node, number = map(int, payload.split())
        assert number > last.get(node, -1), f"{topic}: {number} of node {node} behind {last[node]}"
        last[node] = number


def _kill_for(nodes: Nodes, kill: str, node: int) -> None:
    """Kills a process while a client moves to a node."""
    if kill == "worker of the client":
        (pid,) = nodes.brokers[node].child_pids("sb-worker-1")
        nodes.brokers[node].kill_process(pid)
    elif kill == "links":
        nodes.kill_link(1)
        nodes.kill_link(2)
