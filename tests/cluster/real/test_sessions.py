"""Sessions that move between real brokers. They do so only while the switch of worker/main.py is set."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from shardbroker.worker.main import SESSIONS_SWITCH
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_messages import linked
from tests.harness import Client, Closed, client_id_on, wire
from tests.harness.waiting import until

KEPT = {"session_expiry_interval": 300}
PAUSE_S = 0.004
"""Between two messages of a publisher."""


@pytest.fixture(autouse=True)
def _moving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, SESSIONS_SWITCH, "1")


def client(stack: ExitStack, nodes: Nodes, node: int, name: str, clean: bool = False) -> Client:
    return stack.enter_context(Client(nodes.brokers[node].address, 5, name, clean=clean, timeout=20, properties=KEPT))


def present(connection: Client) -> bool:
    assert connection.connack is not None
    return connection.connack.session_present


def publish(publisher: Client, count: int, first: int = 0) -> list[bytes]:
    sent = [b"%d" % number for number in range(first, first + count)]
    for number, payload in enumerate(sent, first):
        publisher.publish("t/1", payload, qos=1 + number % 2)
    return sent


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with running(2, workers=2) as found:
        linked(found)
        yield found


@pytest.mark.parametrize("worker", [0, 1])
def test_a_session_moves_to_the_node_of_its_client(nodes: Nodes, worker: int) -> None:
    with ExitStack() as stack:
        name = client_id_on(worker, 2, "subscriber")
        with client(ExitStack(), nodes, 1, name) as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, "publisher")
        sent = publish(publisher, 50)
        second = client(stack, nodes, 2, name)
        assert present(second)
        second.expect_messages(*sent)
        second.expect_messages(*publish(publisher, 10, 50))
        third = client(stack, nodes, 1, name)
        assert present(third)
        packet = second.recv()
        assert isinstance(packet, wire.Disconnect)
        assert packet.code == 0x8E
        third.expect_messages(*publish(publisher, 10, 60))
        third.expect_none()


def test_a_clean_start_ends_the_session_at_the_other_node(nodes: Nodes) -> None:
    with ExitStack() as stack:
        first = client(stack, nodes, 1, "c")
        first.subscribe("t/#", 2)
        second = client(stack, nodes, 2, "c", clean=True)
        assert not present(second)
        packet = first.recv()
        assert isinstance(packet, wire.Disconnect)
        assert packet.code == 0x8E
        publish(client(stack, nodes, 1, "p"), 3)
        second.expect_none()


def test_a_client_that_returns_to_its_node_sends_no_claim(nodes: Nodes) -> None:
    with ExitStack() as stack:
        with client(ExitStack(), nodes, 1, "c"):
            pass
        (pid,) = nodes.brokers[1].child_pids("link-0")
        os.kill(pid, 19)  # SIGSTOP
        try:
            assert present(client(stack, nodes, 1, "c"))
        finally:
            os.kill(pid, 18)  # SIGCONT


def test_a_session_survives_a_restart_of_its_worker_before_and_after_it_moves(nodes: Nodes) -> None:
    with ExitStack() as stack:
        name = client_id_on(0, 2, "subscriber")
        with client(ExitStack(), nodes, 1, name) as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, client_id_on(1, 2, "publisher"))
        sent = publish(publisher, 20)
        restart_worker(nodes, 1, 0)
        second = client(stack, nodes, 2, name)
        assert present(second)
        second.disconnect()
        sent += publish(publisher, 20, 20)
        restart_worker(nodes, 2, 0)
        restart_worker(nodes, 1, 0)
        third = client(stack, nodes, 2, name)
        assert present(third)
        third.expect_messages(*sent)
        third.expect_none()


def restart_worker(nodes: Nodes, number: int, worker: int) -> None:
    """Kills a worker, and waits until its successor accepts a client: it has its view then."""
    broker = nodes.brokers[number]
    (pid,) = broker.child_pids(f"worker-{worker}")
    broker.kill_process(pid)
    until(lambda: broker.child_pids(f"worker-{worker}") not in ([], [pid]))
    with Client(broker.address, 5, client_id_on(worker, 2, f"probe{number}"), timeout=20):
        pass


def test_a_client_of_a_node_that_is_down_gets_a_new_session_which_is_merged(nodes: Nodes) -> None:
    with ExitStack() as stack:
        with client(ExitStack(), nodes, 1, "c") as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, "publisher")
        sent = publish(publisher, 20)
        until(lambda: nodes.counters(1)["mqueue.count"] == len(sent))  # in the session, not in the spool of node 2
        nodes.brokers[1].kill()
        nodes.await_links(2, n1="down")
        second = client(stack, nodes, 2, "c")
        assert not present(second)
        second.subscribe("t/#", 2)
        second.expect_messages(*publish(publisher, 10, 20))
        nodes.start([1])
        linked(nodes)
        second.expect_messages(*sent)
        second.expect_none(2)
        third = client(stack, nodes, 1, "c")
        assert present(third)
        third.expect_messages(*publish(publisher, 10, 30))


class Receiver:
    """A client with a session that stays, which connects at any node and keeps its half of QoS 2."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self.nodes, self.name = nodes, name
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
            assert new.connack.session_present, f"session lost at move {self.moves}\n{self.nodes.output(node)}"
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
@pytest.mark.parametrize("kill", ["nothing", "links", "worker of the client"])
def test_nothing_acknowledged_is_lost_while_a_client_moves(kill: str, level: str) -> None:
    """Publishers on both nodes, and a subscriber that changes its node all the time."""
    settings = {"durability.level": level, "mqtt.max_mqueue_len": 0}
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
        for number in nodes.brokers:
            for line in FAILED:
                assert line not in nodes.output(number), nodes.output(number)


FAILED = ("session not moved", "message of a node failed", "session not imported")


def _kill_for(nodes: Nodes, kill: str, node: int) -> None:
    """Kills a process while a client moves to a node."""
    if kill == "worker of the client":
        (pid,) = nodes.brokers[node].child_pids("sb-worker-1")
        nodes.brokers[node].kill_process(pid)
    elif kill == "links":
        nodes.kill_link(1)
        nodes.kill_link(2)
