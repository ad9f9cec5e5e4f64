"""The cores of one worker together: views, and messages of a node to itself."""

from collections.abc import Sequence

import pytest

from shardbroker.cluster.messages import Claim, Done, Key, Moved, Queued, Rebuild, Sessions
from shardbroker.cluster.outputs import Accepted, Create, SessionOutput, ToNode
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import NodeSessions

CLOCK = 1_700_000_000_000
KEY = Key(7, 99)
OWN = frozenset({5, 6, 7})
ALONE = SessionView(1, 1, ((1, 11),), b"1" * 16, bytes([1]) * PARTITIONS, frozenset(), True, False)
BOTH = SessionView(1, 2, ((1, 11), (2, 12)), b"2" * 16, bytes([1, 2]) * (PARTITIONS // 2), frozenset({2}), True, False)


class Queues:
    def queued(self, uid: int, most: int) -> Sequence[Queued]:
        return []

    def delivered_of(self, uid: int) -> tuple[int, Sequence[int]]:
        return 0, []


def made(view: SessionView) -> tuple[NodeSessions, list[SessionOutput]]:
    core = NodeSessions(1, Queues(), partitions=OWN, number=100)
    return core, core.follow(view, 0, CLOCK)


def kinds(outputs: Sequence[SessionOutput]) -> list[tuple[int, type]]:
    return [(one.node_id, type(one.message)) for one in outputs if isinstance(one, ToNode)]


def test_messages_of_a_node_to_itself_do_not_leave_the_worker() -> None:
    core, done = made(ALONE)
    assert done == [], "its own REBUILD is answered, and it had no registrar before"
    [create] = core.deliver(core.claims.connect(KEY, "x", False, 1, 0, CLOCK), 0, CLOCK)
    assert isinstance(create, Create)
    assert core.deliver(core.claims.created(KEY, 4, 0, 0, CLOCK), 0, CLOCK) == [Accepted(1, 4, False)]
    assert core.registry.entry(KEY) is not None


def test_a_change_of_members_is_followed_once() -> None:
    core, _ = made(ALONE)
    done = core.follow(BOTH, 0, CLOCK)
    # Of partitions 5, 6 and 7 node 2 owns 5 and 7, and node 1 has to know what node 2 holds of 6.
    assert kinds(done) == [(2, Rebuild), (2, Moved)]
    assert core.follow(BOTH, 0, CLOCK) == core.follow(BOTH._replace(all_up=False, linked=frozenset()), 0, CLOCK) == []


def test_another_run_counts_as_a_change() -> None:
    core, _ = made(BOTH)
    assert kinds(core.follow(BOTH._replace(run=2), 0, CLOCK)) == [(2, Rebuild), (2, Moved)]
    assert kinds(core.follow(BOTH._replace(run=2), 0, CLOCK)) == []
    assert kinds(core.follow(ALONE._replace(run=3), 0, CLOCK)) == []


@pytest.mark.parametrize("partition", sorted(OWN))
def test_a_peer_gets_answers_for_partitions_of_the_worker_only(partition: int) -> None:
    core, _ = made(BOTH)
    core.deliver(core.claims.connect(Key(partition, 1), "x", False, 1, 0, CLOCK), 0, CLOCK)
    bits = bytes([0xFF]) * (PARTITIONS // 8)
    [output] = core.received(2, Rebuild(9, BOTH.digest, bits), 0, CLOCK)
    assert isinstance(output, ToNode) and isinstance(output.message, Sessions)
    assert output.message.partitions[0] == 0b1110_0000 and not any(output.message.partitions[1:])


def test_a_claim_for_another_node_leaves_with_its_key() -> None:
    core, _ = made(BOTH)
    [output] = core.deliver(core.claims.connect(KEY, "x", False, 1, 0, CLOCK), 0, CLOCK)
    assert output == ToNode(2, Claim(output.message.number, KEY, BOTH.digest, False))  # type: ignore[union-attr]
    assert not isinstance(output.message, Done)  # type: ignore[union-attr]
