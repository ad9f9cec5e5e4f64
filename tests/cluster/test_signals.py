"""The signal channel of a node: bounds before the proof, and what it takes over from an earlier process."""

from random import Random

import pytest

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import FEATURE_ACCESS, FEATURE_LOAD, FEATURE_RETAINED, Handshake, Identity, cluster_uuid
from shardbroker.cluster.messages import Hello, Load, Message, Welcome
from shardbroker.cluster.outputs import Close, Send
from shardbroker.cluster.rlog import MemoryRouteLog, SubackWait
from shardbroker.cluster.signals import UNPROVED_MAX, Signals
from shardbroker.cluster.view import SIGNALS
from tests.cluster.sim.disk import MemoryRoutes

CLUSTER = cluster_uuid("test")


def signals(suback: SubackWait | None = None) -> Signals:
    me = Identity(1, "one", "a:1", CLUSTER, b"1" * 16, 7)
    return Signals(
        me, b"cookie", ["a:1", "b:1", "c:1"], MemoryRouteLog(), MemoryRoutes(), Random(1), lambda: b"n" * 16, 0, suback=suback,
        auth_timeout_ms=300,
    )  # fmt: skip


def hello(node_id: int, address: str, uuid: bytes) -> Hello:
    return Hello(SIGNALS, node_id, "other", address, CLUSTER, uuid, 9, 1, 1, 0, b"m" * 16)


def test_connections_without_a_proof_are_bounded() -> None:
    node = signals()
    for number in range(UNPROVED_MAX):
        assert node.opened(number, "", 0) == []
    (refused,) = node.opened(UNPROVED_MAX, "", 0)
    assert isinstance(refused, Close) and refused.reason == ByeReason.LIMIT
    closed = [one for one in node.tick(300, 0) if isinstance(one, Close)]
    assert len(closed) == UNPROVED_MAX and {one.reason for one in closed} == {ByeReason.TIMEOUT}
    assert "no proof within 300 ms" in closed[0].text
    assert node.opened(1000, "", 300) == []
    assert not node.is_proved(1000) and not node.is_proved(1001)


def test_an_id_stays_bound_to_what_an_earlier_process_knew() -> None:
    node = signals()
    node.view.check(hello(2, "b:1", b"2" * 16))
    node.view.restore(2, "two", "c:1", b"3" * 16, 5)
    node.view.restore(3, "no member", "d:1", b"4" * 16, 5)
    with pytest.raises(PeerFault, match="node id 2 of node other belongs to node two at c:1"):
        node.view.check(hello(2, "b:1", b"2" * 16))
    assert node.view.check(hello(2, "c:1", b"3" * 16)).address == "c:1"
    assert [one.node_id for one in (link.node for link in node.view.links.values()) if one] == [2]
    assert node.view.members == ((1, 7),), "it is no member before it is connected"


def test_the_given_wait_of_subacks_is_used() -> None:
    wait = SubackWait(is_local=True)
    assert signals(wait).suback is wait


@pytest.mark.parametrize("takes_load", [True, False])
def test_the_load_goes_to_nodes_that_take_it(takes_load: bool) -> None:
    node, load = signals(), Load(1, 2, 3, 4, 5, 6, False, "1.0")
    other = Handshake(Identity(2, "two", "b:1", CLUSTER, b"2" * 16, 9), b"cookie", b"m" * 16, SIGNALS, True, 300, "a:1")
    if not takes_load:  # as an earlier version greets
        node.features = other.features = 0

    def sent(message: Message) -> list[Message]:
        return [one.message for one in node.received(1, message, 0, 0) if isinstance(one, Send)]

    node.opened(1, "", 0)
    answers = sent(other.own)
    greeting = next(one for one in answers if isinstance(one, Hello))
    (proof,) = other.on_hello(greeting)
    answers = sent(proof)
    assert any(isinstance(one, Welcome) for one in answers)
    assert bool(greeting.features & FEATURE_LOAD) is takes_load
    for feature in (FEATURE_RETAINED, FEATURE_ACCESS):
        assert node.peers_with(feature) == ({1: 2} if takes_load else {}), "an earlier version gets no retained messages or users"

    def loads() -> list[Message]:
        return [one.message for one in node.tick(1_000, 0) if isinstance(one, Send) and isinstance(one.message, Load)]

    assert not loads(), "it has not been measured"
    node.load = load
    node.view.links["b:1"].ping_due_ms = 0
    assert loads() == ([load] if takes_load else [])
    node.received(1, load, 1_000, 0)
    assert node.view.links["b:1"].load == load
    node.closed(1, 1_100)
    assert node.view.links["b:1"].load is None
