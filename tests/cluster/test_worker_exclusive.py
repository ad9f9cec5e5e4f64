"""Exclusive subscriptions over the workers of nodes: real sessions, journals and tables, a network in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.cluster.claims import SETTLE_MS
from shardbroker.cluster.messages import Claim, Grant, NoState
from shardbroker.worker.cluster_exclusive import FRESH_MS, GIVE_UP_MS, SWEEP_MS
from tests.cluster.workers import Net, Session
from tests.harness import wire

TAKEN = 0x97
LOST = "exclusive subscription lost"
FILTERS = ["a", "b", "c/+", "d/#"]
"""Their registrars are different nodes."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    net = Net(tmp_path, 3)
    yield net
    assert [line for line in net.errors() if LOST not in line] == []


def take(client: Session, topic: str) -> int:
    """Returns the SUBACK code of an exclusive subscription."""
    client.send(wire.subscribe(1, [(f"$exclusive/{topic}", 1)]))
    return code(client)


def code(client: Session) -> int:
    client.take()
    packet = client.packets[-1]
    assert isinstance(packet, wire.Suback)
    return packet.codes[0]


def holders(net: Net, topic: str) -> list[tuple[int, bytes]]:
    """Node and client of each exclusive subscription."""
    return [
        (number, client_id)
        for number, node in net.nodes.items()
        for client_id in node.router.sessions
        if (row := node.table.owner(topic.encode())) is not None and row.client_id == client_id and row.confirmed
    ]  # fmt: skip


@pytest.mark.parametrize("topic", FILTERS)
def test_one_client_of_all_nodes_has_a_filter_until_it_unsubscribes(net: Net, topic: str) -> None:
    first, second = net.nodes[1].connect("first"), net.nodes[2].connect("second")
    assert take(first, topic) == 1
    assert take(second, topic) == TAKEN
    assert holders(net, topic) == [(1, b"first")]
    first.send(wire.unsubscribe(2, [topic]))
    assert take(second, topic) == 1
    assert take(net.nodes[3].connect("third"), topic) == TAKEN
    assert holders(net, topic) == [(2, b"second")]


@pytest.mark.parametrize("topic", FILTERS)
def test_of_clients_that_want_a_filter_at_the_same_time_one_gets_it(net: Net, topic: str) -> None:
    clients = [node.connect(f"c{number}") for number, node in net.nodes.items()]
    for client in clients:
        client.channel.receive(wire.subscribe(1, [(f"$exclusive/{topic}", 1)]))
    net.run()
    assert sorted(code(client) for client in clients) == [1, TAKEN, TAKEN]
    assert len(holders(net, topic)) == 1


def test_clients_of_one_node_contend_without_a_claim_and_what_has_ended_is_free_at_once(net: Net) -> None:
    first, second = net.nodes[1].connect("first"), net.nodes[1].connect("second")
    assert take(first, "a") == 1
    claims = net.count(Claim)
    assert take(second, "a") == TAKEN
    assert take(first, "a") == 1
    first.channel.receive(wire.unsubscribe(2, ["$exclusive/a"]))
    assert take(second, "a") == 1
    assert net.count(Claim) == claims
    assert holders(net, "a") == [(1, b"second")]


@pytest.mark.parametrize("end", ["session", "clean", "expiry"])
def test_the_end_of_a_session_frees_its_filters(net: Net, end: str) -> None:
    first = net.nodes[1].connect("first", expiry=0 if end == "session" else 1)
    second = net.nodes[2].connect("second")
    assert take(first, "a") == 1
    if end == "clean":
        net.nodes[3].connect("first", clean=True)
    else:
        first.channel.receive(wire.disconnect())
        net.run(2_000)
    assert take(second, "a") == 1
    net.run(SWEEP_MS + 1_000)
    assert not net.nodes[1].sessions.exclusive.held


@pytest.mark.parametrize("topic", FILTERS)
def test_a_session_that_moves_keeps_its_filters(net: Net, topic: str) -> None:
    old = net.nodes[1].connect("first")
    assert take(old, topic) == 1
    for number in (2, 1, 3):
        moved = net.nodes[number].connect("first")
        assert moved.connack() == (True, 0)
        net.run()
        assert holders(net, topic) == [(number, b"first")]
        for other in net.nodes.values():
            assert take(other.connect("second"), topic) == TAKEN
    moved.send(wire.unsubscribe(2, [topic]))
    assert take(net.nodes[1].connect("second"), topic) == 1


def test_after_a_split_the_later_client_loses_its_subscription(net: Net) -> None:
    first, second = net.nodes[1].connect("first"), net.nodes[2].connect("second")
    net.split(1, 2)
    net.split(3, 2)
    assert take(first, "a") == 1
    second.send(wire.subscribe(1, [("$exclusive/a", 1)]))
    net.run(6_000)
    assert code(second) == 1
    net.heal()
    net.run(SETTLE_MS)
    assert holders(net, "a") == [(1, b"first")]
    assert [line for line in net.errors() if LOST in line] == [f"{LOST} client_id=second filter=a"]
    publisher = net.nodes[3].connect("publisher")
    publisher.publish("a", b"x", 1)
    assert (first.drain(), second.drain()) == ([b"x"], [])


def test_after_a_split_a_client_of_both_sides_keeps_its_subscription(net: Net) -> None:
    first = net.nodes[1].connect("c")
    assert take(first, "a") == 1
    net.split(1, 2)
    net.split(1, 3)
    second = net.nodes[2].connect("c")
    net.run(6_000)
    second.send(wire.subscribe(1, [("$exclusive/a", 1)]))
    net.run(6_000)
    assert code(second) == 1
    net.heal()
    net.run(SETTLE_MS)
    assert len(holders(net, "a")) == 1
    assert not net.errors()


def test_a_subscription_without_an_answer_is_refused_and_free_again(net: Net) -> None:
    """A holder that is linked and does not answer has it."""
    assert take(net.nodes[1].connect("first"), "a") == 1
    second = net.nodes[2].connect("second")
    net.drops = lambda _sender, _receiver, message: isinstance(message, NoState)
    second.send(wire.subscribe(1, [("$exclusive/a", 1)]))
    net.run(GIVE_UP_MS + 1_000)
    assert code(second) == TAKEN
    assert not net.nodes[2].sessions.exclusive.wanted


def test_what_was_granted_to_a_client_that_has_gone_is_taken_back(net: Net) -> None:
    net.drops = lambda _sender, _receiver, message: isinstance(message, Grant)
    clients = [node.connect(f"c{number}") for number, node in net.nodes.items()]
    for client in clients:
        client.channel.receive(wire.subscribe(1, [("$exclusive/a", 1)]))
        client.node.router.cut(client.channel)
    net.drops = lambda *_: False
    net.run(2 * FRESH_MS)
    assert not any(node.sessions.exclusive.held or node.sessions.exclusive.wanted for node in net.nodes.values())
    assert take(net.nodes[2].connect("other"), "a") == 1
