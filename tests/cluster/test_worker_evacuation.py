"""Evacuation between the workers of nodes: real sessions and journals, a network in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.cluster.claims import FORWARD_MS
from shardbroker.cluster.messages import Claim, Decline, Done, Grant, Offer, SessionMessage, State, StateAck, Take
from shardbroker.cluster.offers import UNWILLING_MS
from tests.cluster.workers import Net, Node, Session
from tests.harness import wire

ROUND_MS = 200


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    net = Net(tmp_path, 3)
    yield net
    assert not net.errors()


def absent(net: Net, name: str, expiry: int = 300) -> None:
    """Leaves a session at node 1 with a subscription, and two messages in its queue."""
    old = net.nodes[1].connect(name, expiry=expiry)
    old.subscribe(f"{name}/#", 2)
    old.channel.receive(wire.disconnect())
    publisher = net.nodes[2].connect("publisher")
    publisher.publish(f"{name}/1", b"one", 1, 1)
    publisher.publish(f"{name}/1", b"two", 2, 2)


def holders(net: Net, name: str) -> list[int]:
    return [number for number, node in net.nodes.items() if name.encode() in node.router.sessions]


def evacuate(net: Net, *names: str, ms: int = 20_000) -> None:
    """Offers sessions of node 1, again and again as a command does, until they have moved or the time is over."""
    net.nodes[1].router.redirect = b""
    for _ in range(ms // ROUND_MS):
        for name in names:
            if name.encode() in net.nodes[1].router.sessions:
                net.nodes[1].sessions.offer(name.encode(), None)
        net.run(ROUND_MS)


def first_packet(node: Node, data: bytes, version: int) -> wire.Connack:
    channel = node.router.connect("127.0.0.1:1")
    channel.receive(data)
    node.net.run()
    parsed = wire.parse(channel.take_output(), version)
    assert parsed is not None and isinstance(parsed[0], wire.Connack)
    assert channel.is_closing
    return parsed[0]


def test_absent_sessions_move_with_their_queues_and_are_at_one_node_each(net: Net) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        absent(net, name)
    evacuate(net, *names, ms=1_000)
    assert not any(1 in holders(net, name) for name in names)
    assert {2, 3} == {holder for name in names for holder in holders(net, name)}, "both others get some"
    for name in names:
        [holder] = holders(net, name)
        client = net.nodes[5 - holder].connect(name)  # at the third node, which takes it on
        assert client.connack() == (True, 0)
        assert client.drain() == [b"one", b"two"]
    net.nodes[1].router.redirect = None
    net.run(FORWARD_MS + 1_000)
    assert net.nodes[1].sessions.core.claims.departing(net.now_ms) == (0, 0)


def test_late_messages_of_a_session_that_was_given_away_follow_once(net: Net) -> None:
    absent(net, "c")
    publisher = net.nodes[1].connect("p")
    evacuate(net, "c", ms=400)
    publisher.publish("c/1", b"three", 2, 1)  # node 1 still has a route, so it gets the message, too
    net.run(1_000)
    client = net.nodes[2].connect("c")
    assert client.drain() == [b"one", b"two", b"three"]


@pytest.mark.parametrize("dropped", [Offer, Claim, Grant, Take, State, StateAck, Done])
def test_any_message_may_be_lost(net: Net, dropped: type[SessionMessage]) -> None:
    absent(net, "c")
    lost: list[SessionMessage] = []

    def drops(sender: int, receiver: int, message: SessionMessage) -> bool:
        if isinstance(message, dropped) and not lost:
            lost.append(message)
            return True
        return False

    net.drops = drops
    evacuate(net, "c")
    assert lost or dropped in (Claim, Grant, Done)  # these stay within the node if it is the registrar
    [holder] = holders(net, "c")
    assert holder != 1
    client = net.nodes[2].connect("c")
    assert client.connack() == (True, 0)
    assert client.drain() == [b"one", b"two"]


def test_the_node_that_takes_a_session_dies_before_it_is_stored(net: Net) -> None:
    absent(net, "c")
    taking: set[int] = set()

    def drops(sender: int, receiver: int, message: SessionMessage) -> bool:
        if isinstance(message, State):
            taking.add(receiver)
        return isinstance(message, State) and receiver == min(taking)

    net.drops = drops
    evacuate(net, "c", ms=1_000)
    [dead] = taking
    for other in {1, 2, 3} - {dead}:
        net.split(dead, other)
    net.drops = lambda *_: False
    evacuate(net, "c", ms=15_000)
    assert holders(net, "c") == [5 - dead]
    client = net.nodes[5 - dead].connect("c")
    assert client.drain() == [b"one", b"two"]


def test_nodes_that_are_evacuated_decline(net: Net) -> None:
    absent(net, "c")
    for number in (2, 3):
        net.nodes[number].router.redirect = b""
    net.run()
    evacuate(net, "c", ms=2_000)
    assert holders(net, "c") == [1]
    assert net.count(Decline) == 2
    net.nodes[2].router.redirect = None
    evacuate(net, "c", ms=UNWILLING_MS + 1_000)
    assert holders(net, "c") == [2]


def test_a_client_takes_its_session_along_while_it_is_offered(net: Net) -> None:
    absent(net, "c")
    net.nodes[1].router.redirect = b""
    net.nodes[1].sessions.offer(b"c", [2])
    client = Session(net.nodes[3], "c", False)
    net.run(1_000)
    assert client.connack() == (True, 0)
    assert client.drain() == [b"one", b"two"]
    assert holders(net, "c") == [3]


def test_a_session_of_a_name_that_is_not_text_cannot_move(net: Net) -> None:
    assert net.nodes[1].sessions.can_move(b"c")
    assert not net.nodes[1].sessions.can_move(b"\xff")


def test_clients_are_turned_away_with_the_code_of_their_version(net: Net) -> None:
    node = net.nodes[1]
    node.router.redirect = b"other:1883"
    refused = first_packet(node, wire.connect("c"), 5)
    assert refused.code == 0x9C
    assert refused.properties["server_reference"] == "other:1883"
    assert first_packet(node, wire.connect("c", 4), 4).code == 3
    node.router.redirect = b""
    assert "server_reference" not in first_packet(node, wire.connect("c"), 5).properties
    node.router.redirect = None
    assert node.connect("c").connack() == (False, 0)


def test_connected_clients_are_told_where_to_go(net: Net) -> None:
    client = net.nodes[1].connect("c")
    client.channel.evacuated(b"other:1883")
    client.take()
    packet = client.packets[-1]
    assert isinstance(packet, wire.Disconnect)
    assert packet.code == 0x9C
    assert packet.properties["server_reference"] == "other:1883"
    assert client.channel.is_closing
