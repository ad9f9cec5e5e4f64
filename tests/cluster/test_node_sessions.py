"""The cores of one worker together: views, and messages of a node to itself."""

from collections.abc import Sequence

import cbor2
import pytest

from shardbroker.cluster.claims import TAKE_MS, Holding, SessionState
from shardbroker.cluster.messages import Claim, Done, Grant, Held, Key, Moved, Queued, Rebuild, Sessions, State, StateAck, Take
from shardbroker.cluster.outputs import Accepted, Create, Export, Import, MovedAway, SessionOutput, ToNode
from shardbroker.cluster.registry import IMAGE_ENTRIES_MAX
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


def replaced(core: NodeSessions, at_ms: int, paused_ms: int = 0) -> NodeSessions:
    """Returns the core of the process that replaces the worker, `paused_ms` later."""
    image = cbor2.loads(cbor2.dumps(core.image()))
    new = NodeSessions(1, Queues(), partitions=OWN, number=10_000)
    for one in core.claims.sessions.values():
        if not one.is_exclusive:
            new.claims.restore(Holding(one.key, one.uid, one.name, one.generation, one.stamp, one.is_connected), at_ms)
    new.take_image(image)
    new.shift(paused_ms)
    return new


def taking(core: NodeSessions) -> Take:
    """Returns the TAKE of a claim at node 2, where the session is."""
    [asked] = core.deliver(core.claims.connect(Key(6, 99), "x", False, -1, 0, CLOCK), 0, CLOCK)
    assert isinstance(asked, ToNode) and isinstance(asked.message, Claim)
    [take] = core.received(2, Grant(asked.message.number, Key(6, 99), 500, 2, False), 10, CLOCK)
    assert isinstance(take, ToNode) and isinstance(take.message, Take)
    return take.message


def linked() -> NodeSessions:
    core, _ = made(SessionView(1, 2, BOTH.members, BOTH.digest, bytes([2]) * PARTITIONS, frozenset({2}), True, False))
    return core


def test_a_claim_goes_on_in_the_process_that_replaces_the_worker() -> None:
    core = linked()
    take = taking(core)
    core = replaced(core, 20)
    [imported] = core.received(2, State(take.key, take.generation, 1, b"state", True), 30, CLOCK)
    assert imported == Import(take.key, "x", take.generation, (b"state",))


def test_a_pause_is_no_silence_of_the_holder() -> None:
    """Without the shift the session counts as lost with the first tick, and its client gets a new one."""
    core = linked()
    taking(core)
    core = replaced(core, 20, 5 * TAKE_MS)
    done = core.tick(20 + 5 * TAKE_MS, CLOCK)
    assert not [one for one in done if isinstance(one, Create)], done


def test_a_client_that_waits_does_not_move_and_its_claim_does() -> None:
    core = linked()
    [asked] = core.deliver(core.claims.connect(KEY, "x", False, 1, 0, CLOCK), 0, CLOCK)
    assert isinstance(asked, ToNode) and isinstance(asked.message, Claim)
    core = replaced(core, 10)
    [answer] = core.received(2, Grant(asked.message.number, KEY, 500, 2, False), 20, CLOCK)
    assert answer == ToNode(2, Done(KEY, 500, None, False)), "what was only asked for is given up"


def test_a_session_on_its_way_is_given_up_once() -> None:
    core = linked()
    core.claims.restore(Holding(KEY, 7, "x", 100), 0)
    [export] = core.received(2, Take(KEY, 500, "x", False), 10, CLOCK)
    assert export == Export(7, 500)
    [state] = core.deliver(core.claims.exported(7, 500, (b"state",)), 10, CLOCK)
    core = replaced(core, 20)
    [again] = core.received(2, Take(KEY, 500, "x", False), 1_000, CLOCK)
    assert again == state, "the same parts as before"
    assert core.received(2, StateAck(KEY, 500), 1_010, CLOCK) == [MovedAway(7)]
    assert core.claims.leaving[7].state == SessionState.GONE


def test_a_registrar_keeps_its_table_and_locks() -> None:
    core, _ = made(SessionView(1, 2, BOTH.members, BOTH.digest, bytes([1]) * PARTITIONS, frozenset({2}), True, False))
    [rebuild] = [one.message for one in core.tick(200, CLOCK) if isinstance(one, ToNode) and isinstance(one.message, Rebuild)]
    core.received(2, Sessions(rebuild.number, 1, rebuild.partitions, (Held(KEY, 5, 6, True, False),), True), 210, CLOCK)
    other = Key(6, 1)
    [grant] = core.received(2, Claim(3, other, BOTH.digest, False), 220, CLOCK)
    assert isinstance(grant, ToNode) and isinstance(grant.message, Grant)
    core = replaced(core, 230)
    assert core.registry.entry(KEY) == (2, Held(KEY, 5, 6, True, False))
    [waits] = core.received(3, Claim(4, other, BOTH.digest, False), 240, CLOCK)
    assert isinstance(waits, ToNode) and not isinstance(waits.message, Grant), "the key is locked"
    held = Held(other, grant.message.generation, 7, True, False)
    granted = core.received(2, Done(other, grant.message.generation, held, False), 250, CLOCK)
    assert [one.message.holder for one in granted if isinstance(one, ToNode) and isinstance(one.message, Grant)] == [2]


def test_a_table_that_is_too_large_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert IMAGE_ENTRIES_MAX > 1
    monkeypatch.setattr("shardbroker.cluster.registry.IMAGE_ENTRIES_MAX", 0)
    core, _ = made(SessionView(1, 2, BOTH.members, BOTH.digest, bytes([1]) * PARTITIONS, frozenset({2}), True, False))
    [rebuild] = [one.message for one in core.tick(200, CLOCK) if isinstance(one, ToNode) and isinstance(one.message, Rebuild)]
    core.received(2, Sessions(rebuild.number, 1, rebuild.partitions, (Held(KEY, 5, 6, True, False),), True), 210, CLOCK)
    core = replaced(core, 230)
    assert core.registry.entry(KEY) is None
    [again] = [one.message for one in core.tick(240, CLOCK) if isinstance(one, ToNode) and isinstance(one.message, Rebuild)]
    assert again.partitions == rebuild.partitions
