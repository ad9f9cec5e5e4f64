"""Messages between real nodes: every QoS, shared groups, and processes that are killed on the way."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from operator import le

import pytest

from tests.cluster.real.nodes import Nodes, rings_to, running
from tests.harness import Client, client_id_on
from tests.harness.waiting import stopped, until

KEPT = {"session_expiry_interval": 300}
PAUSE_S = 0.002
"""Between two messages of a publisher."""


def linked(nodes: Nodes) -> None:
    for number in nodes.brokers:
        nodes.await_links(number, **{f"n{peer}": "up" for peer in nodes.brokers if peer != number})


def client(stack: ExitStack, nodes: Nodes, node: int, name: str, clean: bool = True) -> Client:
    properties = None if clean else KEPT
    return stack.enter_context(Client(nodes.brokers[node].address, 5, name, clean=clean, timeout=20, properties=properties))


def test_a_subscriber_gets_what_is_published_on_another_node_behind_its_suback() -> None:
    with running(3, workers=2) as nodes, ExitStack() as stack:
        linked(nodes)
        publishers = {node: client(stack, nodes, node, f"publisher{node}") for node in nodes.brokers}
        for node in nodes.brokers:
            for worker in range(2):
                subscriber = client(stack, nodes, node, client_id_on(worker, 2, f"s{node}"))
                place = f"{node}/{worker}"
                for qos, filter in enumerate((f"plain/{place}", f"+/{place}/#", f"$share/g/group/{place}")):
                    subscriber.subscribe(filter, qos)
                    for publisher in publishers.values():
                        topic = f"group/{place}" if qos == 2 else f"plain/{place}" + "/x" * qos
                        publisher.publish(topic, filter, qos=2)
                    got = [subscriber.recv() for _ in publishers]
                    assert Counter(packet.qos for packet in got) == {qos: len(publishers)}, got
                    subscriber.unsubscribe(filter)
        for publisher in publishers.values():
            publisher.publish("plain/1/0", "nobody", qos=1)


def test_a_message_to_a_group_on_three_nodes_reaches_one_member() -> None:
    with running(3, workers=2) as nodes, ExitStack() as stack:
        linked(nodes)
        members = [client(stack, nodes, node, client_id_on(node % 2, 2, f"m{node}")) for node in nodes.brokers]
        for member in members:
            member.subscribe("$share/g/t/#", 2)
        publisher = client(stack, nodes, 1, "publisher")
        sent = [b"%d" % number for number in range(60)]
        for payload in sent:
            publisher.publish("t/1", payload, qos=2)
        got: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(got) < len(sent) and time.monotonic() < deadline:
            for member in members:
                packet = member.recv(0.05)
                if packet is not None and hasattr(packet, "payload"):
                    got.append(packet.payload)
        assert sorted(got) == sorted(sent)
        for member in members:
            member.expect_none()


def test_retained_is_delivered_and_large_messages_pass() -> None:
    with running(2) as nodes, ExitStack() as stack:
        linked(nodes)
        subscriber, publisher = client(stack, nodes, 2, "s"), client(stack, nodes, 1, "p")
        subscriber.subscribe("big/#", 1)
        for size in (0, 1, 70_000, 600_000):
            publisher.publish("big/1", b"x" * size, qos=1)
            assert len(subscriber.recv().payload) == size


def test_what_a_killed_peer_had_in_its_rings_is_delivered_after_its_restart() -> None:
    with running(2, workers=2) as nodes, ExitStack() as stack:
        linked(nodes)
        name = client_id_on(1, 2, "subscriber")
        with Client(nodes.brokers[2].address, 5, name, clean=False, properties=KEPT) as first:
            first.subscribe("t", 2)
        publisher = client(stack, nodes, 1, "publisher")
        (worker,) = nodes.brokers[2].child_pids("sb-worker-1")
        sent = [b"%d" % number for number in range(20)]
        with stopped(worker):
            for number, payload in enumerate(sent):
                publisher.publish("t", payload, qos=1 + number % 2)
            until(lambda: all(ring.fill() == 0 for ring in rings_to(nodes, 1, 2)), timeout_s=10)
            _restart(nodes)
        linked(nodes)
        client(stack, nodes, 2, name, clean=False).expect_messages(*sent)


@pytest.mark.parametrize("overflow", ["drop", "push_back"])
def test_publishers_do_not_wait_for_full_queues_of_another_node(overflow: str) -> None:
    """Both drop the same number, plain and shared: push_back the newest messages, which were acknowledged at the other node."""
    settings = {"mqtt.mqueue_overflow": overflow, "mqtt.max_mqueue_len": 40, "mqtt.max_inflight": 4}
    with running(2, workers=2, **settings) as nodes, ExitStack() as stack:
        linked(nodes)
        sent = [b"%d" % number for number in range(100)]
        for number, filter in enumerate(("t/0", "$share/g/t/1")):
            still = stack.enter_context(Client(nodes.brokers[2].address, 5, f"still{number}", auto_ack=False, timeout=20))
            still.subscribe(filter, 1)
            publisher = client(stack, nodes, 1, f"publisher{number}")
            began = time.monotonic()
            for payload in sent:
                publisher.publish(f"t/{number}", payload, qos=1)
            assert time.monotonic() - began < 4.0, "push_back_timeout is 5 s"
            dropped = 56 * (number + 1)
            until(lambda: nodes.counters(2)["delivery.dropped.queue_full"] == dropped, timeout_s=10)  # noqa: B023
            got = []
            while len(got) < 44:
                message = still.recv()
                still.ack(message)
                got.append(message.payload)
            assert got == (sent[:44] if overflow == "push_back" else sent[:4] + sent[60:])
            still.expect_none()
        assert nodes.counters(1)["overload.acks_held"] == nodes.counters(2)["overload.acks_held"] == 0


@pytest.mark.parametrize("level", ["process", "machine"])
@pytest.mark.parametrize("kill", ["links", "workers", "peer"])
def test_nothing_acknowledged_is_lost_and_no_qos_2_comes_twice_while_processes_are_killed(kill: str, level: str) -> None:
    """The subscriber is on node 2 with a session that stays; node 1 takes the messages."""
    settings = {"durability.level": level, "mqtt.max_mqueue_len": 0}
    with running(2, workers=2, **settings) as nodes, ExitStack() as stack:
        linked(nodes)
        name = client_id_on(1, 2, "subscriber")
        with Client(nodes.brokers[2].address, 5, name, clean=False, properties=KEPT) as first:
            first.subscribe([("t/1", 1), ("t/2", 2)])
        acknowledged: dict[int, list[bytes]] = {1: [], 2: []}
        ended = threading.Event()

        def publish(qos: int) -> None:
            with Client(nodes.brokers[1].address, 5, client_id_on(0, 2, f"p{qos}"), timeout=60) as publisher:
                for number in count():
                    if ended.is_set():
                        return
                    publisher.publish(f"t/{qos}", b"%d" % number, qos=qos)
                    acknowledged[qos].append(b"%d" % number)
                    time.sleep(PAUSE_S)

        threads = [threading.Thread(target=publish, args=(qos,)) for qos in acknowledged]
        for thread in threads:
            thread.start()

        def go_on() -> None:
            """Some time, in which each publisher gets on however slow the disk is."""
            before = {qos: len(found) for qos, found in acknowledged.items()}
            time.sleep(0.7)
            until(lambda: all(len(found) >= before[qos] + 30 for qos, found in acknowledged.items()), timeout_s=30)

        try:
            for _ in range(3):
                go_on()
                _kill(nodes, kill)
            go_on()
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        linked(nodes)
        received: dict[str, list[bytes]] = {"t/1": [], "t/2": []}
        back = stack.enter_context(Client(nodes.brokers[2].address, 5, name, clean=False, timeout=20, properties=KEPT))

        def complete() -> bool:
            while (packet := back.recv(0.3)) is not None:
                received[packet.topic].append(packet.payload)
            return all({*acknowledged[qos]} <= {*received[f"t/{qos}"]} for qos in acknowledged)

        def missing() -> str:
            lost = {qos: [one for one in acknowledged[qos] if one not in {*received[f"t/{qos}"]}] for qos in acknowledged}
            return ", ".join(f"QoS {qos}: {len(found)} of {len(acknowledged[qos])}, {found[:5]}" for qos, found in lost.items())

        until(complete, missing, 60)
        assert nodes.counters(1)["messages.dropped.no_subscribers"] == 0
        assert all(len(payloads) > 100 for payloads in acknowledged.values())
        twice = [payload for payload, times in Counter(received["t/2"]).items() if times > 1]
        assert not twice, f"QoS 2: {len(twice)} twice, {twice[:5]}"
        for qos in acknowledged:
            numbers = [int(payload) for payload in dict.fromkeys(received[f"t/{qos}"])]
            assert all(map(le, numbers, numbers[1:])), f"QoS {qos}: order of the first arrivals"


def _kill(nodes: Nodes, kill: str) -> None:
    kills: dict[str, Callable[[], object]] = {
        "links": lambda: [nodes.kill_link(number, link) for number in nodes.brokers for link in (0, 1)],
        "workers": lambda: [nodes.brokers[2].kill_process(pid) for pid in nodes.brokers[2].child_pids("sb-worker")],
        "peer": lambda: _restart(nodes),
    }
    kills[kill]()


def _restart(nodes: Nodes) -> None:
    broker = nodes.brokers[2]
    broker.kill()
    assert broker.process is not None
    broker.process.wait(15)
    broker.start()
