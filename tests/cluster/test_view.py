"""Members, links and states of a node, with time as an argument."""

from random import Random
from typing import Any

import pytest

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import Identity
from shardbroker.cluster.messages import Hello, Ping, Pong
from shardbroker.cluster.outputs import Close, Dial, Established, Gone, Send
from shardbroker.cluster.rendezvous import PARTITIONS, owners, rank
from shardbroker.cluster.view import LinkState, NodeState, RouteState, View, ViewSettings
from tests.cluster.test_handshake import identity

SEEDS = [f"n{number}:5370" for number in range(1, 5)]


def view(node_id: int = 1, seeds: list[str] = SEEDS) -> View:
    return View(identity(node_id), seeds, ViewSettings(first_dial_ms=0), Random(1), 0)


def hello(number: int, **fields: Any) -> Hello:
    me: Identity = identity(number)
    known = Hello(0, me.node_id, me.name, me.address, me.cluster, me.node_uuid, me.incarnation, 1, 1, 0, b"n" * 16)
    return known._replace(**fields)


def up(one: View, node_id: int, connection: int, now_ms: int) -> None:
    one.established(hello(node_id), connection, now_ms)
    one.synced(f"n{node_id}:5370", RouteState.NORMAL, True, now_ms)


def test_a_link_rises_when_both_tables_are_complete_and_falls_by_silence() -> None:
    one = view()
    link = one.links["n2:5370"]
    assert one.tick(0, 0) == [Dial(f"n{number}:5370", 0) for number in (2, 3, 4)]
    assert link.state == LinkState.HELLO
    assert one.established(hello(2), 7, 10) == [Established(2, 1002, "n2:5370", False)]
    one.synced("n2:5370", RouteState.NORMAL, False, 20)
    assert link.state == LinkState.SYNCING
    one.synced("n2:5370", RouteState.NORMAL, True, 30)
    assert link.state == LinkState.UP
    (ping,) = [output.message for output in one.tick(40, 1_000) if isinstance(output, Send)]
    assert isinstance(ping, Ping)
    one.tick(2_010, 3_000)
    assert link.state == LinkState.SUSPECT
    one.on_pong(link, Pong(ping.number, 6_000), 2_020)
    one.synced("n2:5370", RouteState.NORMAL, True, 2_020)
    assert link.state == LinkState.UP
    assert (link.rtt_ms, link.skew_ms) == (1_980, 0)
    one.tick(4_020, 5_000)
    assert link.state == LinkState.SUSPECT
    closes = [output for output in one.tick(6_020, 7_000) if isinstance(output, Close)]
    assert [(output.connection, output.reason) for output in closes] == [(7, ByeReason.TIMEOUT)]
    assert link.state == LinkState.DOWN and link.connection is None


def test_a_suspect_link_rises_once_the_peer_has_the_routes() -> None:
    """SUBACKs do not wait for a suspect peer: it may lack routes when its PONG arrives (seed 1205 of the simulation)."""
    one = view()
    up(one, 2, 7, 0)
    link = one.links["n2:5370"]
    (ping,) = [output.message for output in one.tick(10, 0) if isinstance(output, Send) and output.connection == 7]
    one.tick(2_010, 0)
    one.synced("n2:5370", RouteState.NORMAL, True, 2_020)
    assert link.state == LinkState.SUSPECT
    one.on_pong(link, Pong(ping.number, 0), 2_030)  # type: ignore[union-attr]
    one.synced("n2:5370", RouteState.NORMAL, False, 2_030)
    assert link.state == LinkState.SUSPECT and 2 in dict(one.members)
    one.synced("n2:5370", RouteState.NORMAL, True, 2_040)
    assert link.state == LinkState.UP


@pytest.mark.parametrize(
    ("clock_ms", "rtt_ms", "expected"), [(3_605_010, 20, 3_600_000), (10, 20, -5_000), (1 << 63, 20, 1 << 40), (9_000, 501, 0)]
)
def test_the_clock_of_a_peer_is_read_by_short_round_trips(clock_ms: int, rtt_ms: int, expected: int) -> None:
    one = view()
    up(one, 2, 7, 0)
    (ping,) = [output.message for output in one.tick(10, 5_000) if isinstance(output, Send) and output.connection == 7]
    one.on_pong(one.links["n2:5370"], Pong(ping.number, clock_ms), 10 + rtt_ms)  # type: ignore[union-attr]
    assert one.links["n2:5370"].skew_ms == expected


def test_a_pong_without_ping_is_a_fault() -> None:
    one = view()
    up(one, 2, 7, 0)
    with pytest.raises(PeerFault, match="open ping"):
        one.on_pong(one.links["n2:5370"], Pong(99, 0), 10)


def test_one_node_of_a_pair_dials() -> None:
    assert [view(1).dials("n2:5370"), view(2).dials("n1:5370")] == [True, False]


def test_a_peer_that_is_away_for_long_is_still_dialled_twice_a_second() -> None:
    """A split has to heal within 2 s, of which an attempt without an answer takes another one."""
    one, address = view(), "n2:5370"
    pauses = []
    for now_ms in range(0, 100_000, 5_000):
        one.tick(now_ms, 0)
        one.lost(address, now_ms + 4_000)
        pauses.append(one.links[address].dial_ms - now_ms - 4_000)
    assert pauses[0] <= 50 and max(pauses) <= 500


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"node_id": 1}, ByeReason.DUPLICATE_ID, "node id 1 of node n3 belongs to node n1"),
        ({"node_id": 2}, ByeReason.DUPLICATE_ID, "node id 2 of node n3 belongs to node n2 at n2:5370"),
        ({"address": "n9:5370"}, ByeReason.NOT_A_MEMBER, "missing from cluster.static.seeds"),
        ({"address": "n1:5370"}, ByeReason.DUPLICATE_ID, "address n1:5370"),
        ({"address": "n2:5370"}, ByeReason.DUPLICATE_ID, "belongs to node n2"),
        ({"node_uuid": b"\1" * 16, "incarnation": 1001}, ByeReason.SELF, "itself"),
    ],
)
def test_a_node_that_is_no_member_or_a_second_one_is_refused(fields: dict[str, Any], reason: ByeReason, text: str) -> None:
    one = view()
    up(one, 2, 7, 0)
    with pytest.raises(PeerFault, match=text) as caught:
        one.established(hello(3, **fields), 8, 10)
    assert caught.value.reason == reason
    assert one.links["n2:5370"].connection == 7


def test_an_id_is_free_once_its_seed_is_removed() -> None:
    one = view()
    up(one, 2, 7, 0)
    done = one.set_seeds([*SEEDS[:1], *SEEDS[2:]], 10)
    assert [type(output) for output in done] == [Close, Gone]
    one.established(hello(3, node_id=2), 8, 20)
    assert one.link_of(2) is one.links["n3:5370"]


def test_another_data_directory_at_an_address_is_new_and_only_while_the_old_node_is_away() -> None:
    one = view()
    up(one, 2, 7, 0)
    with pytest.raises(PeerFault, match="two data directories"):
        one.established(hello(2, node_uuid=b"z" * 16, incarnation=5), 8, 10)
    one.lost("n2:5370", 20)
    assert one.established(hello(2, node_uuid=b"z" * 16, incarnation=5), 8, 30) == [Established(2, 5, "n2:5370", True)]


def test_a_newer_connection_of_the_same_node_replaces_the_old_one() -> None:
    one = view()
    up(one, 2, 7, 0)
    done = one.established(hello(2, incarnation=2000), 8, 10)
    assert [(output.connection, output.reason) for output in done if isinstance(output, Close)] == [(7, ByeReason.REPLACED)]
    assert one.links["n2:5370"].connection == 8


def test_fewer_than_half_of_the_seeds_is_isolated() -> None:
    one = view()
    assert one.isolated
    up(one, 2, 7, 0)
    assert not one.isolated, "2 of 4 is half"
    assert not view(1, SEEDS[:2]).isolated, "a node of two is half of them"


def test_epoch_digest_and_owners_follow_the_members() -> None:
    one, other = view(1), view(2)
    up(one, 2, 7, 0)
    up(other, 1, 7, 0)
    assert one.digest == other.digest and one.owners == other.owners
    epoch = one.epoch
    one.lost("n2:5370", 10)
    assert (one.epoch, one.members) == (epoch + 1, ((1, 1001),))
    one.established(hello(2, incarnation=2000), 8, 20)
    one.synced("n2:5370", RouteState.NORMAL, True, 20)
    assert one.digest != other.digest, "a restarted registrar has lost its table"


def test_state_of_a_node_until_it_serves() -> None:
    one = view()
    assert (one.state, one.serves) == (NodeState.JOINING, False)
    one.established(hello(2), 7, 0)
    one.synced("n2:5370", RouteState.BOOTSTRAP, False, 10)
    assert one.state == NodeState.BOOTSTRAP
    one.synced("n2:5370", RouteState.LOCAL_REPLAY, False, 20)
    assert one.state == NodeState.LOCAL_REPLAY
    one.tick(29_999, 0)
    assert not one.serves
    one.tick(30_000, 0)
    assert (one.state, one.joined_late) == (NodeState.NORMAL, True)
    assert view(1, SEEDS[:1]).state == NodeState.ALONE


def test_all_seeds_synced_is_normal_and_stays_so() -> None:
    one = view(1, SEEDS[:2])
    up(one, 2, 7, 0)
    assert (one.state, one.joined_late) == (NodeState.NORMAL, False)
    one.lost("n2:5370", 10)
    assert one.serves


def test_loss_of_a_node_moves_its_partitions_and_no_other() -> None:
    before, after = owners(range(1, 24)), owners(range(1, 23))
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 23)
    shares = [before.count(node_id) for node_id in range(1, 24)]
    assert sum(shares) == PARTITIONS and min(shares) > 20 and max(shares) < 80
    assert all(rank(range(1, 24), partition)[0] == before[partition] for partition in range(0, PARTITIONS, 50))
    with pytest.raises(ValueError, match="at least one"):
        owners([])


def restored(is_proved: bool) -> View:
    """A view of a process that knows node 2 from one before it."""
    one, known = view(), hello(2)
    one.restore(2, known.name, known.address, known.node_uuid, known.incarnation, is_proved)
    return one


def test_a_node_that_an_earlier_broker_knew_is_no_member_before_its_proof() -> None:
    one = restored(False)
    assert 2 not in dict(one.members) and not one.links["n2:5370"].is_proved
    assert one.established(hello(2, incarnation=2002), 7, 0) == [Established(2, 2002, "n2:5370", False)]
    assert one.links["n2:5370"].is_proved


def test_another_data_directory_is_found_over_a_restart() -> None:
    assert restored(False).established(hello(2, node_uuid=b"x" * 16), 7, 0) == [Established(2, 1002, "n2:5370", True)]


@pytest.mark.parametrize(("uuid", "is_new"), [(b"\2" * 16, False), (b"x" * 16, True)])
def test_an_id_of_an_earlier_broker_is_free_for_another_address(uuid: bytes, is_new: bool) -> None:
    """Nodes may have been numbered again, or have moved, while this one was stopped."""
    moved = hello(3)._replace(node_id=2, node_uuid=uuid)
    one = restored(False)
    assert one.established(moved, 7, 0) == [Established(2, 1003, "n3:5370", is_new)]
    assert one.links["n2:5370"].node is None and one.link_of(2) is one.links["n3:5370"]
    with pytest.raises(PeerFault, match="node id 2 of node n3 belongs to node n2"):
        restored(True).established(moved, 7, 0)


def test_two_nodes_that_have_exchanged_their_ids_are_both_new() -> None:
    one = restored(False)
    other = hello(3)
    one.restore(3, other.name, other.address, other.node_uuid, other.incarnation, False)
    second = hello(2, node_id=3)
    assert one.established(second, 7, 0) == [Gone(2), Established(3, 1002, "n2:5370", True)]
    assert one.links["n3:5370"].node is None
    assert one.established(hello(3, node_id=2), 8, 0) == [Established(2, 1003, "n3:5370", False)]
