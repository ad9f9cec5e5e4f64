"""Claims and sessions of a node: the way of a session, fencing, generations, lost holders, stale sessions, exclusive ones."""

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from shardbroker.cluster import claims as module
from shardbroker.cluster.claims import Claims, ClaimSettings, Holding, SessionState, exclusive_holding
from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.leaving import Leaving
from shardbroker.cluster.merge import ORIGINS_MAX, SEEN_MAX, SPANS_MAX, Passed, SeenIds, Spans, append, id_floor, wins
from shardbroker.cluster.messages import (
    Announce,
    Claim,
    Done,
    End,
    Ended,
    Find,
    Found,
    Grant,
    Held,
    Here,
    Key,
    Moved,
    NoState,
    Offer,
    Queued,
    Rebuild,
    Refuse,
    Release,
    Retry,
    Revoke,
    SessionMessage,
    Sessions,
    Starting,
    State,
    StateAck,
    Tail,
    TailAck,
    Take,
    Wait,
    Who,
)
from shardbroker.cluster.outputs import (
    Absorb,
    Accepted,
    Bind,
    Create,
    EndSession,
    Export,
    Flow,
    Forget,
    Import,
    Kick,
    Merge,
    MovedAway,
    Rejected,
    Restore,
    SessionOutput,
    Taken,
    ToNode,
)
from shardbroker.cluster.registry import bitmap
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.takeover import STATE_BYTES_MAX, Parts, TakeFault

CLOCK = 1_700_000_000_000
KEY, NAME = Key(7, 99), "client"
D1, D2 = b"1" * 16, b"2" * 16
MEMBERS = ((1, 11), (2, 12), (3, 13))
REGISTRAR, OTHER = 2, 3


class Queues:
    """Queues of sessions, as a driver has them."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Queued]] = {}

    def queued(self, uid: int, most: int) -> Sequence[Queued]:
        return self.messages.get(uid, [])[:most]

    def delivered_of(self, uid: int) -> tuple[int, Sequence[int]]:
        return 5, [77]


class Node:
    """Node 1, with the time."""

    done: list[SessionOutput]
    """What the last change of the node has returned."""

    def __init__(self, lost_session: str = "new") -> None:
        self.queues = Queues()
        self.claims = Claims(1, HybridClock(), self.queues, partial(ClaimSettings, lost_session))
        self.now_ms = 0
        self.claims.set_links({2, 3}, True, False)
        self.claims.set_view(MEMBERS, D1, (REGISTRAR,) * PARTITIONS, 0)

    def connect(self, ticket: int = 1, clean: bool = False) -> list[SessionOutput]:
        return self.claims.connect(KEY, NAME, clean, ticket, self.now_ms, CLOCK)

    def receive(self, node: int, message: SessionMessage) -> list[SessionOutput]:
        return self.claims.received(node, message, self.now_ms, CLOCK)

    def after(self, ms: int) -> list[SessionOutput]:
        self.now_ms += ms
        return self.claims.tick(self.now_ms)

    def granted(self, holder: int, clean: bool = False) -> list[SessionOutput]:
        """Has a client claim the session, and the registrar grant it."""
        [output] = self.connect(clean=clean)
        assert isinstance(output, ToNode) and isinstance(output.message, Claim)
        return self.receive(output.node_id, Grant(output.message.number, KEY, 100, holder, False))

    def holding(self, generation: int = 50) -> Holding:
        """Has the node hold the session, as after a start."""
        holding = Holding(KEY, 9, NAME, generation, 40)
        self.claims.restore(holding, self.now_ms)
        return holding


def sent(outputs: list[SessionOutput]) -> list[SessionMessage]:
    return [output.message for output in outputs if isinstance(output, ToNode)]


def state(number: int, is_last: bool) -> State:
    return State(KEY, 100, number, b"part", is_last)


# --- the node of the client ------------------------------------------------------------------------------------------------


def test_a_session_without_holder_is_created() -> None:
    node = Node()
    assert node.granted(0) == [Create(KEY, NAME, 100, 0, False)]
    done = node.claims.created(KEY, 4, 0, 0, CLOCK)
    assert done[0] == Accepted(1, 4, False)
    [message] = sent(done)
    assert isinstance(message, Done) and message.held is not None and message.held.generation == 100


def test_a_client_that_returns_is_served_without_a_claim() -> None:
    node = Node()
    node.holding()
    assert node.connect() == [Accepted(1, 9, True)]


def test_a_session_moves_to_its_client() -> None:
    node = Node()
    assert node.granted(OTHER) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    assert node.receive(OTHER, state(1, False)) == []
    [output] = node.receive(OTHER, state(2, True))
    assert isinstance(output, Import) and output.parts == (b"part", b"part")
    done = node.claims.imported(KEY, 4, 0, 0, CLOCK)
    assert done[:2] == [ToNode(OTHER, StateAck(KEY, 100)), Accepted(1, 4, True)]
    assert node.claims.is_held(KEY)
    assert node.claims.routed(KEY, 0) == [ToNode(OTHER, End(KEY, 100))]
    assert node.receive(OTHER, Ended(KEY, 100)) == [Flow(4)]
    assert not node.claims.is_held(KEY)


def arrived() -> Node:
    """Returns a node that has taken the session from OTHER, and holds direct deliveries."""
    node = Node()
    node.granted(OTHER)
    node.receive(OTHER, state(1, True))
    node.claims.imported(KEY, 4, 0, 0, CLOCK)
    return node


def test_end_is_repeated_until_it_is_answered() -> None:
    """A link process that was killed may have had it, or the answer."""
    node = arrived()
    assert node.after(module.ASK_MS) == []
    assert node.claims.routed(KEY, node.now_ms) == [ToNode(OTHER, End(KEY, 100))]
    assert node.after(module.ASK_MS - 1) == []
    node = arrived()
    node.claims.routed(KEY, node.now_ms)
    assert node.after(module.ASK_MS) == [ToNode(OTHER, End(KEY, 100))]
    assert node.after(1) == []
    assert node.receive(OTHER, Ended(KEY, 100)) == [Flow(4)]
    assert node.after(module.ASK_MS) == []


def test_a_session_is_not_given_while_deliveries_are_held() -> None:
    """Its next node would send what is held before what the former node still has."""
    node = arrived()
    assert node.receive(OTHER, Take(KEY, 101, NAME, False)) == [ToNode(OTHER, Starting(101, KEY))]
    assert node.receive(REGISTRAR, Take(KEY, 100, NAME, False)) == [ToNode(REGISTRAR, NoState(KEY, 100, TakeFault.STALE))]
    node.claims.routed(KEY, node.now_ms)
    assert node.receive(OTHER, Ended(KEY, 100)) == [Flow(4)]
    assert node.receive(OTHER, Take(KEY, 101, NAME, False)) == [Export(4, 101)]


def test_a_clean_start_does_not_wait_for_what_is_held() -> None:
    node = arrived()
    assert node.receive(OTHER, Take(KEY, 101, NAME, True))[0] == EndSession(4)


def test_deliveries_are_held_for_a_bounded_time() -> None:
    node = arrived()
    assert node.after(module.HOLD_MS) == [Flow(4)]


def test_a_grant_for_another_member_set_does_not_count() -> None:
    node = Node()
    [output] = node.connect()
    assert isinstance(output, ToNode) and isinstance(output.message, Claim)
    again = node.claims.set_view(MEMBERS[:2], D2, (REGISTRAR,) * PARTITIONS, 0)
    [claim] = [message for message in sent(again) if isinstance(message, Claim)]
    assert claim.digest == D2
    done = node.receive(REGISTRAR, Grant(output.message.number, KEY, 100, 0, False))
    assert done == [ToNode(REGISTRAR, Done(KEY, 100, None, False))]


def test_a_void_claim_is_repeated() -> None:
    node = Node()
    [claim] = sent(node.connect())
    assert isinstance(claim, Claim)
    assert node.receive(REGISTRAR, Retry(claim.number, KEY)) == []
    [again] = sent(node.after(module.RETRY_MS))
    assert isinstance(again, Claim) and again.number > claim.number and not again.is_provisional


def test_without_agreement_a_claim_becomes_provisional_and_goes_on() -> None:
    node = Node()
    node.connect()
    asked = []
    for _ in range(3):
        [output] = node.after(module.AGREE_MS)
        assert isinstance(output, ToNode) and isinstance(output.message, Claim) and output.message.is_provisional
        asked.append(output.node_id)
    assert asked == [OTHER, 1, 1]


def test_an_isolated_node_claims_provisionally() -> None:
    node = Node()
    node.claims.set_links(set(), False, True)
    node.after(50)
    node.after(module.RELINK_MS)
    [output] = node.connect()
    assert isinstance(output, ToNode) and isinstance(output.message, Claim)
    assert (output.node_id, output.message.is_provisional) == (1, True)


def test_a_claim_waits_for_a_link_that_has_just_been_lost() -> None:
    node = Node()
    node.claims.set_links({OTHER}, False, False)
    asked = [node.connect(), *(node.after(module.TAKE_AGAIN_MS) for _ in range(4))]
    node.claims.set_links({REGISTRAR, OTHER}, True, False)
    for outputs in [*asked, node.after(module.TAKE_AGAIN_MS)]:
        [output] = outputs
        assert isinstance(output, ToNode) and isinstance(output.message, Claim)
        assert (output.node_id, output.message.is_provisional) == (REGISTRAR, False)


def test_a_claim_in_the_queue_waits_until_its_registrar_is_gone() -> None:
    node = Node()
    [claim] = sent(node.connect())
    assert isinstance(claim, Claim)
    node.receive(REGISTRAR, Wait(claim.number, KEY))
    assert node.after(module.CLAIM_MS - 1) == []
    assert node.after(1) == [Rejected(1, 0x89)]


@pytest.mark.parametrize(("policy", "expected"), [("new", Create), ("refuse", Rejected)])
def test_a_holder_without_a_link(policy: str, expected: type) -> None:
    node = Node(policy)
    node.claims.set_links({2}, False, False)
    node.after(module.RELINK_MS)
    assert node.after(module.RELINK_MS) == []
    assert isinstance(node.granted(OTHER)[0], expected)


@pytest.mark.parametrize(("policy", "expected"), [("new", Create), ("refuse", Rejected)])
def test_a_holder_whose_link_has_just_been_lost_is_waited_for(policy: str, expected: type) -> None:
    """A connection that was reset, or a link process that was killed."""
    node = Node(policy)
    node.claims.set_links({2}, False, False)
    assert node.granted(OTHER) == []
    assert node.after(module.RELINK_MS - 1) == []
    assert isinstance(node.after(1)[0], expected)


def test_a_holder_whose_link_is_back_is_asked() -> None:
    node = Node()
    node.claims.set_links({2}, False, False)
    node.granted(OTHER)
    node.after(300)
    node.claims.set_links({2, 3}, True, False)
    assert node.after(50) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]


def test_the_link_of_the_holder_is_lost_among_the_parts() -> None:
    node = Node()
    node.granted(OTHER)
    node.receive(OTHER, state(1, False))
    node.claims.set_links({2}, False, False)
    assert node.after(50) == []
    node.claims.set_links({2, 3}, True, False)
    assert node.after(50) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    assert node.receive(OTHER, state(1, False)) == []
    [output] = node.receive(OTHER, state(2, True))
    assert isinstance(output, Import) and output.parts == (b"part", b"part")


def test_a_link_process_was_replaced_while_a_session_was_taken() -> None:
    node = Node()
    node.granted(OTHER)
    assert node.after(module.TAKE_MS - 50) != []
    node.claims.set_view(MEMBERS, D1, (REGISTRAR,) * PARTITIONS, node.now_ms, is_new_run=True)
    assert node.after(50) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]


def test_a_lost_holder_is_waited_for() -> None:
    node = Node("wait")
    node.claims.set_links({2}, False, False)
    assert node.granted(OTHER) == []
    assert node.after(module.RELINK_MS) == []
    assert node.after(20_000) == []
    node.claims.set_links({2, 3}, True, False)
    assert node.after(50) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]


def test_a_holder_that_does_not_answer() -> None:
    node = Node()
    node.granted(OTHER)
    [output] = node.after(module.TAKE_MS)
    assert isinstance(output, Create) and output.base > 0


@pytest.mark.parametrize(
    ("fault", "reason"), [(TakeFault.STALE, 0x8E), (TakeFault.HELD, 0x97)]
)
def test_a_session_that_is_not_given(fault: TakeFault, reason: int) -> None:
    node = Node()
    node.granted(OTHER)
    done = node.receive(OTHER, NoState(KEY, 100, fault))
    assert done == [Rejected(1, reason), ToNode(REGISTRAR, Done(KEY, 100, None, False))]


def test_a_busy_holder_is_asked_again() -> None:
    node = Node()
    node.granted(OTHER)
    assert node.receive(OTHER, NoState(KEY, 100, TakeFault.BUSY)) == []
    assert node.after(module.BUSY_MS) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]


def test_parts_that_are_missing_are_asked_for_again() -> None:
    """They were lost with a connection, a link process, or the worker of the holder; its successor sends other ones."""
    node = Node()
    node.granted(OTHER)
    assert node.receive(OTHER, state(2, False)) == []
    assert node.after(50) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    assert node.receive(OTHER, state(1, False)) == []
    assert node.after(module.STALLED_MS - 1) == []
    assert node.after(1) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    assert node.receive(OTHER, State(KEY, 100, 1, b"one", False)) == []
    [output] = node.receive(OTHER, State(KEY, 100, 2, b"two", True))
    assert isinstance(output, Import) and output.parts == (b"one", b"two")
    assert node.receive(OTHER, State(KEY, 100, 1, b"one", False)) == [], "all of it once more"


def test_missing_parts_are_not_asked_for_forever() -> None:
    node = Node()
    node.granted(OTHER)
    node.now_ms = module.CLAIM_MS
    [output] = node.receive(OTHER, state(2, True))
    assert isinstance(output, Create)


def test_the_worker_of_the_holder_is_started_again_among_the_parts() -> None:
    node = Node()
    node.granted(OTHER)
    node.receive(OTHER, state(1, False))
    assert node.after(module.STALLED_MS) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    node.receive(OTHER, Starting(100, KEY))
    assert node.after(module.TAKE_MS - 1) == [ToNode(OTHER, Take(KEY, 100, NAME, False))]
    assert node.receive(OTHER, state(1, False)) == []
    assert isinstance(node.receive(OTHER, state(2, True))[0], Import)


def test_a_session_is_bounded() -> None:
    parts = Parts(size=STATE_BYTES_MAX)
    with pytest.raises(PeerFault) as fault:
        parts.add(state(1, True))
    assert fault.value.reason == ByeReason.LIMIT


def test_an_import_ends_when_its_holder_serves_the_session_again() -> None:
    node = Node()
    node.granted(OTHER)
    node.receive(OTHER, state(1, False))
    done = node.receive(OTHER, Who(9, KEY, b"", 100))
    assert done[:2] == [ToNode(OTHER, Here(9, KEY, None, 100)), ToNode(REGISTRAR, Done(KEY, 100, None, False))]
    assert node.receive(OTHER, state(2, True)) == []


def test_two_clients_of_one_id_at_a_node() -> None:
    node = Node()
    node.connect(1)
    assert node.connect(2) == [Rejected(1, 0x8E)]


def test_a_client_that_leaves_before_the_grant() -> None:
    node = Node()
    [claim] = sent(node.connect())
    assert isinstance(claim, Claim)
    node.claims.abandoned(KEY, 1)
    assert sent(node.receive(REGISTRAR, Grant(claim.number, KEY, 100, 0, False))) == [Done(KEY, 100, None, False)]


# --- the holder ------------------------------------------------------------------------------------------------------------


def test_the_holder_has_moved_the_session_only_after_state_ack() -> None:
    node = Node()
    node.holding()
    assert node.receive(OTHER, Take(KEY, 100, NAME, False)) == [Export(9, 100)]
    assert sent(node.claims.exported(9, 100, [b"a", b"b"])) == [State(KEY, 100, 1, b"a", False), State(KEY, 100, 2, b"b", True)]
    assert node.claims.leaving[9].state == SessionState.MOVING
    assert node.receive(OTHER, StateAck(KEY, 100)) == [MovedAway(9)]


def test_a_take_that_is_repeated_is_answered_with_the_same_parts() -> None:
    node = Node()
    node.holding()
    take = Take(KEY, 100, NAME, False)
    node.receive(OTHER, take)
    first = node.claims.exported(9, 100, [b"a", b"b"])
    assert node.receive(OTHER, take) == [], "they are on their way"
    node.after(module.TAKE_AGAIN_MS)
    assert node.receive(OTHER, take) == first
    assert node.receive(OTHER, take) == []
    assert node.receive(REGISTRAR, take) == [ToNode(REGISTRAR, NoState(KEY, 100, TakeFault.BUSY))]
    node.receive(OTHER, StateAck(KEY, 100))
    node.after(module.TAKE_AGAIN_MS)
    assert State not in map(type, sent(node.receive(OTHER, take)))


def test_parts_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTS_KEPT_MAX", 3)
    node = Node()
    for uid in (1, 2, 3):
        key = Key(7, uid)
        node.claims.restore(Holding(key, uid, NAME, 50, 40), 0)
        node.receive(OTHER, Take(key, 100, NAME, False))
        assert len(node.claims.exported(uid, 100, [b"12"])) == 1
        node.after(module.TAKE_AGAIN_MS)
        again = node.receive(OTHER, Take(key, 100, NAME, False))
        assert len(again) == (uid != 2)
        if uid == 2:
            node.receive(OTHER, StateAck(Key(7, 1), 100))


def moved() -> Node:
    """Returns a node whose session has moved to OTHER."""
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    node.receive(OTHER, StateAck(KEY, 100))
    return node


def test_end_is_answered_after_what_is_on_its_way_has_had_time_to_arrive() -> None:
    node = moved()
    assert node.receive(OTHER, End(KEY, 100)) == []
    assert node.after(module.DRAIN_MS - 1) == []
    assert node.after(1) == [ToNode(OTHER, Ended(KEY, 100))]
    assert node.after(module.DRAIN_MS) == []


def test_end_is_answered_once_no_messages_of_nodes_are_missing() -> None:
    """They wait at other nodes while a data connection is gone, and are the first ones behind it."""
    node = moved()
    lags = True
    node.claims.lags = lambda: lags
    node.receive(OTHER, End(KEY, 100))
    for _ in range(3):
        assert node.after(module.DRAIN_MS) == []
    lags = False
    assert node.after(module.DRAIN_MS) == [ToNode(OTHER, Ended(KEY, 100))]


def test_end_is_answered_once_what_was_queued_is_taken() -> None:
    node = moved()
    node.queues.messages[9] = [Queued(number, "t", 1, b"") for number in range(1, module.TAIL_MESSAGES + 2)]
    [tail] = sent(node.receive(OTHER, End(KEY, 100)))
    assert isinstance(tail, Tail)
    assert node.after(module.DRAIN_MS) == []
    done = node.receive(OTHER, TailAck(KEY, tail.number, 9, True))
    assert done == [Taken(9, tuple(range(1, module.TAIL_MESSAGES + 1)))]
    del node.queues.messages[9][: module.TAIL_MESSAGES]
    [last] = sent(node.claims.arrived(9, node.now_ms))
    assert isinstance(last, Tail) and len(last.queued) == 1
    taken = Taken(9, (module.TAIL_MESSAGES + 1,))
    assert node.receive(OTHER, TailAck(KEY, last.number, 9, True)) == [taken, ToNode(OTHER, Ended(KEY, 100))]
    node.queues.messages[9] = []
    assert node.claims.arrived(9, node.now_ms) == []


def test_end_is_answered_under_traffic() -> None:
    """With a busy node something more is in the queue whenever a TAIL is taken."""
    node = moved()
    node.receive(OTHER, End(KEY, 100))
    for number in range(2):
        node.queues.messages[9] = [Queued(number + 1, "t", 1, b"")]
        [tail] = sent(node.claims.arrived(9, node.now_ms))
        assert isinstance(tail, Tail)
        node.queues.messages[9].append(Queued(number + 2, "t", 1, b""))
        [taken, *answers] = node.receive(OTHER, TailAck(KEY, tail.number, 9, True))
        assert taken == Taken(9, (number + 1,))
        assert answers == [ToNode(OTHER, Ended(KEY, 100))] * number, "the first TAIL is before what is on its way"
        node.now_ms += module.DRAIN_MS


def test_late_messages_are_sent_in_batches_once_end_is_answered() -> None:
    node = moved()
    node.receive(OTHER, End(KEY, 100))
    node.after(module.DRAIN_MS)
    node.queues.messages[9] = [Queued(1, "t", 1, b"")]
    [tail] = sent(node.claims.arrived(9, node.now_ms))
    assert isinstance(tail, Tail)
    node.receive(OTHER, TailAck(KEY, tail.number, 9, True))
    node.queues.messages[9] = [Queued(2, "t", 1, b""), Queued(3, "t", 1, b"")]
    assert node.claims.arrived(9, node.now_ms) == []
    assert node.after(module.BATCH_MS - 1) == []
    [batch] = sent(node.after(1))
    assert isinstance(batch, Tail) and len(batch.queued) == 2


def test_end_of_a_session_that_is_forgotten_is_answered_at_once() -> None:
    assert Node().receive(OTHER, End(KEY, 100)) == [ToNode(OTHER, Ended(KEY, 100))]


def test_an_old_take_is_not_carried_out() -> None:
    node = Node()
    node.holding(generation=100)
    assert node.receive(OTHER, Take(KEY, 100, NAME, False)) == [ToNode(OTHER, NoState(KEY, 100, TakeFault.STALE))]
    assert KEY in node.claims.sessions


def test_a_hash_that_two_client_ids_share_moves_nothing() -> None:
    node = Node()
    node.holding()
    assert node.receive(OTHER, Take(KEY, 100, "another", False)) == [ToNode(OTHER, NoState(KEY, 100, TakeFault.ABSENT))]


def test_a_clean_start_elsewhere_ends_the_session() -> None:
    node = Node()
    node.holding()
    done = node.receive(OTHER, Take(KEY, 100, NAME, True))
    assert done == [EndSession(9), ToNode(OTHER, NoState(KEY, 100, TakeFault.ABSENT))]


@pytest.mark.parametrize("has_it", [True, False])
def test_without_state_ack_the_new_node_is_asked(has_it: bool) -> None:
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    assert node.after(module.ACK_MS - 1) == []
    [who] = sent(node.after(1))
    assert isinstance(who, Who) and who.ends == 100
    done = node.receive(OTHER, Here(who.number, KEY, Held(KEY, 100, 0, True) if has_it else None, 100))
    if has_it:
        assert done[0] == Kick(9) and node.claims.leaving[9].state == SessionState.STALE
    else:
        assert done[0] == Restore(9) and isinstance(sent(done)[0], Announce)


def test_a_new_node_that_is_cut_off_does_not_keep_the_session_from_its_client() -> None:
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    node.claims.set_links({2}, False, False)
    assert node.after(module.ACK_MS)[0] == Restore(9)
    assert node.connect() == [Accepted(1, 9, True)]


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_late_take_of_a_session_that_was_granted_again_is_refused(is_acknowledged: bool) -> None:
    """The answer was ABSENT, so the late node made a session, and both were owned."""
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 200, NAME, False))
    if is_acknowledged:
        node.receive(OTHER, StateAck(KEY, 200))
    assert node.receive(REGISTRAR, Take(KEY, 100, NAME, False)) == [ToNode(REGISTRAR, NoState(KEY, 100, TakeFault.STALE))]


# --- stale sessions and tails ----------------------------------------------------------------------------------------------


def test_a_stale_session_is_merged_into_that_of_the_winner() -> None:
    node = Node()
    node.holding()
    node.queues.messages[9] = [Queued(500, b"t", 1)]
    kick, bind, tail = node.receive(REGISTRAR, Revoke(KEY, 50, OTHER))
    assert (kick, bind) == (Kick(9), Bind(9, OTHER))
    assert isinstance(tail, ToNode) and isinstance(tail.message, Tail)
    assert (tail.node_id, tail.message.is_last, tail.message.base, tail.message.delivered) == (OTHER, True, 5, (77,))
    done = node.receive(OTHER, TailAck(KEY, tail.message.number, 9, True))
    assert done == [Taken(9, (500,)), MovedAway(9)]


def test_a_revoke_of_an_older_session_is_ignored() -> None:
    node = Node()
    node.holding(generation=60)
    assert node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)) == []


def test_a_tail_that_its_node_does_not_take_looks_for_the_holder() -> None:
    node = Node()
    node.holding()
    [tail] = sent(node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)))
    assert isinstance(tail, Tail)
    assert node.receive(OTHER, TailAck(KEY, tail.number, 9, False)) == [ToNode(REGISTRAR, Find(KEY, OTHER))]
    # No member has it: the session is served again.
    assert node.receive(REGISTRAR, Found(KEY, 0))[0] == Restore(9)


def test_a_stale_session_is_not_served_again_for_the_sake_of_a_later_one_that_has_moved() -> None:
    """The registrar still has the entry of the later session of this node."""
    node = Node()
    node.holding()
    [tail] = sent(node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)))
    assert isinstance(tail, Tail)
    node.receive(OTHER, TailAck(KEY, tail.number, 9, False))
    node.claims.restore(Holding(KEY, 10, NAME, 90), 0)
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    assert node.receive(REGISTRAR, Found(KEY, 1)) == [] == node.receive(REGISTRAR, Found(KEY, 0))
    node.receive(OTHER, StateAck(KEY, 100))
    assert node.receive(REGISTRAR, Found(KEY, 1)) == [ToNode(REGISTRAR, Find(KEY, 1))]
    assert Restore(9) in node.receive(REGISTRAR, Found(KEY, 0))  # no member has it


def test_a_stale_session_without_an_answer_to_its_last_tail_is_given_to_no_other_node() -> None:
    """The node that had it may have merged it."""
    node = Node()
    node.holding()
    node.receive(REGISTRAR, Revoke(KEY, 50, OTHER))
    for found in (0, 1, REGISTRAR):
        assert node.receive(REGISTRAR, Found(KEY, found)) == []
    node.claims.set_links({REGISTRAR}, False, False)
    assert node.after(module.ASK_MS) == []
    node.claims.set_links({REGISTRAR, OTHER}, True, False)
    assert [(one.node_id, type(one.message)) for one in node.after(module.ASK_MS) if isinstance(one, ToNode)] == [(OTHER, Tail)]


def test_a_stale_session_has_another_heir_once_that_of_before_is_no_member() -> None:
    node = Node()
    node.holding()
    node.receive(REGISTRAR, Revoke(KEY, 50, OTHER))
    node.claims.set_links({REGISTRAR}, True, False)
    node.after(module.ASK_MS)
    assert sent(node.after(module.SETTLE_MS)) == [Find(KEY)]
    assert Bind(9, REGISTRAR) in node.receive(REGISTRAR, Found(KEY, REGISTRAR))


def test_a_stale_session_that_a_former_session_has_merged_follows_as_one_that_is_gone() -> None:
    node = Node()
    node.holding()
    node.queues.messages[9] = [Queued(500, b"t", 2)]
    [tail] = sent(node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)))
    assert isinstance(tail, Tail) and tail.is_last
    done = node.receive(OTHER, TailAck(KEY, tail.number, 9, False, is_merged=True))
    assert done == [MovedAway(9), ToNode(REGISTRAR, Find(KEY, OTHER))]
    [tail] = sent(node.receive(REGISTRAR, Found(KEY, REGISTRAR)))
    assert isinstance(tail, Tail) and tail.queued and not tail.is_stale


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_node_remembers_which_stale_sessions_its_former_session_has_merged(is_replaced: bool) -> None:
    node = Node()
    node.holding()
    tail = Tail(KEY, 1, 0, (), 3, is_stale=True, is_last=True)
    assert node.claims.merged(OTHER, tail) == [ToNode(OTHER, TailAck(KEY, 1, 3, True))]
    assert isinstance(node.receive(OTHER, tail)[0], Merge)
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    node.receive(OTHER, StateAck(KEY, 100))
    if is_replaced:
        node.claims.restore(Holding(KEY, 10, NAME, 200), 0)
    assert node.receive(OTHER, tail) == [ToNode(OTHER, TailAck(KEY, 1, 3, False, is_merged=True))]
    assert isinstance(node.receive(OTHER, tail._replace(uid=4))[0], Merge if is_replaced else ToNode)


@pytest.mark.parametrize("heir", [0, OTHER])
def test_a_stale_session_of_the_journal_is_bound_to_its_heir(heir: int) -> None:
    node = Node()
    node.claims.restore(Holding(KEY, 9, NAME, 50, state=SessionState.STALE, heir=heir), 0)
    assert [one.node_id for one in node.after(50) if isinstance(one, ToNode)] == [heir or REGISTRAR]
    assert bool(node.receive(REGISTRAR, Found(KEY, 0))) == (not heir)


def test_what_arrives_for_a_session_that_has_moved_follows_it() -> None:
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    node.receive(OTHER, StateAck(KEY, 100))
    node.queues.messages[9] = [Queued(500, b"t", 1)]
    [tail] = sent(node.claims.arrived(9, 0))
    assert isinstance(tail, Tail) and not tail.is_stale
    assert node.receive(OTHER, TailAck(KEY, tail.number, 9, True)) == [Taken(9, (500,))]
    node.queues.messages.clear()
    assert node.after(module.FORWARD_MS) == [Forget(9)]


def changes_of_node(node: Node, count: int, first: int = 0) -> list[Holding]:
    """Has the session of a client leave the node so many times, as if it had returned in between."""
    holdings = []
    for number in range(first, first + count):
        holding = Holding(KEY, 10 + number, NAME, 100 * number + 50)
        node.claims.restore(holding, node.now_ms)
        node.receive(OTHER, Take(KEY, 100 * number + 100, NAME, False))
        node.done = node.receive(OTHER, StateAck(KEY, 100 * number + 100))
        holdings.append(holding)
    return holdings


def test_a_session_that_has_moved_takes_the_place_of_earlier_ones() -> None:
    """A client that changed its node 200 times in a minute had each message queued and forwarded 100 times."""
    node = Node()
    changes_of_node(node, 50)
    assert node.done == [MovedAway(59), Absorb(58, 59)]
    assert [*node.claims.leaving] == [59]


def test_an_earlier_session_that_has_messages_sends_them_first() -> None:
    node = Node()
    [first] = changes_of_node(node, 1)
    node.queues.messages[10] = [Queued(500, b"t", 1)]
    [tail] = sent(node.claims.arrived(10, 0))
    assert isinstance(tail, Tail)
    changes_of_node(node, 1, 1)
    assert {*node.claims.leaving} == {first.uid, 11}
    assert node.receive(OTHER, TailAck(KEY, tail.number, 10, True))[0] == Taken(10, (500,))
    node.queues.messages.clear()
    assert Absorb(10, 11) in [*node.after(50), *node.after(1000)]


@pytest.mark.parametrize("reason", ["stale", "merged", "journal"])
def test_a_session_of_another_history_is_not_absorbed(reason: str) -> None:
    """What it has had is not what a later session has had; or it knows which stale sessions were merged."""
    node = Node()
    holding = node.holding()
    if reason == "stale":
        [tail] = sent(node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)))
        assert isinstance(tail, Tail)
        node.receive(OTHER, TailAck(KEY, tail.number, 9, True))
    else:
        if reason == "merged":
            node.claims.merged(OTHER, Tail(KEY, 1, 0, (), 3, is_stale=True, is_last=True))
        node.receive(OTHER, Take(KEY, 100, NAME, False))
        node.receive(OTHER, StateAck(KEY, 100))
        if reason == "journal":
            node.claims.leaving.clear()
            node.claims.leaving._uids.clear()
            node.claims.restore(Holding(KEY, 9, NAME, 100, state=SessionState.GONE), 0)
    newer = Holding(KEY, 20, NAME, 200)
    node.claims.restore(newer, 0)
    node.receive(OTHER, Take(KEY, 300, NAME, False))
    assert node.receive(OTHER, StateAck(KEY, 300)) == [MovedAway(20)]
    assert {holding.uid, 20} == {*node.claims.leaving}
    assert not any(isinstance(one, Absorb) for one in node.after(5000))


# --- workers that are being started ------------------------------------------------------------------------------------------


def test_a_holder_whose_worker_is_being_started_is_waited_for() -> None:
    """After 1 s its session counted as lost, and the client got one without subscriptions."""
    node = Node()
    node.granted(OTHER)
    for _ in range(30):
        assert node.receive(OTHER, Starting(100, KEY)) == []
        assert [one.generation for one in sent(node.after(module.BUSY_MS)) if isinstance(one, Take)] == [100]
    [output] = node.receive(OTHER, state(1, True))
    assert isinstance(output, Import)


def test_a_worker_that_never_starts_is_given_up() -> None:
    node = Node()
    node.granted(OTHER)
    waited_ms, done = 0, []
    while not done:
        done = node.receive(OTHER, Starting(100, KEY))
        node.after(module.BUSY_MS)
        waited_ms += module.BUSY_MS
        assert waited_ms <= module.STARTING_MS + module.BUSY_MS
    assert done == [Create(KEY, NAME, 100, done[0].base, False)]
    assert waited_ms > module.STARTING_MS


def test_an_offer_does_not_wait_for_a_worker() -> None:
    node = Node()
    [output] = node.receive(OTHER, Offer(KEY, 50, NAME))
    assert isinstance(output, ToNode) and isinstance(output.message, Claim)
    node.receive(REGISTRAR, Grant(output.message.number, KEY, 100, OTHER, False))
    assert sent(node.receive(OTHER, Starting(100, KEY))) == [Done(KEY, 100, None, False)]


def test_a_claim_waits_as_long_as_its_registrar_says_so() -> None:
    node = Node()
    [claim] = sent(node.connect())
    assert isinstance(claim, Claim)
    for _ in range(14):
        assert node.receive(REGISTRAR, Wait(claim.number, KEY)) == []
        assert node.after(1_000) == []
    assert node.after(1_000) == [Rejected(1, module.BUSY_REASON)], "not for ever"


def test_a_tail_is_repeated_and_an_answer_to_any_of_its_copies_counts() -> None:
    node = Node()
    node.holding()
    node.queues.messages[9] = [Queued(500, b"t", 1)]
    [first] = sent(node.receive(REGISTRAR, Revoke(KEY, 50, OTHER)))
    assert isinstance(first, Tail)
    node.queues.messages[9].append(Queued(501, b"t", 1))
    assert sent(node.after(module.ASK_MS)) == [first]
    assert node.receive(OTHER, TailAck(KEY, first.number, 9, True)) == [Taken(9, (500,)), MovedAway(9)]


def test_a_session_that_has_nothing_to_send_is_looked_at_when_something_arrives() -> None:
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    node.receive(OTHER, StateAck(KEY, 100))
    assert node.after(50) == []
    node.queues.messages[9] = [Queued(500, b"t", 1)]
    assert node.after(50) == []
    assert sent(node.after(module.IDLE_MS)) != []
    node.queues.messages.clear()
    node.after(module.ASK_MS)
    node.after(50)
    node.queues.messages[9] = [Queued(501, b"t", 1)]
    assert [type(one) for one in sent(node.claims.arrived(9, node.now_ms))] == [Tail]
    node.queues.messages.clear()
    node.after(module.ASK_MS)
    node.after(50)
    node.receive(OTHER, End(KEY, 100))
    assert sent(node.after(module.DRAIN_MS)) == [Ended(KEY, 100)]


def test_sessions_that_are_not_owned_are_found_by_key() -> None:
    leaving: Leaving[Holding] = Leaving()
    one, other, third = (Holding(key, uid, NAME, 1) for uid, key in ((1, KEY), (2, KEY), (3, Key(8, 1))))
    for holding in (one, other, third, one):
        leaving[holding.uid] = holding
    assert leaving.of(KEY) == [one, other]
    del leaving[1]
    leaving.discard(1)
    assert leaving.of(KEY) == [other]
    leaving.discard(2)
    assert leaving.of(KEY) == [] and [*leaving] == [3]


def test_a_tail_from_before_a_clean_start_is_void() -> None:
    node = Node()
    node.granted(0, clean=True)
    node.claims.created(KEY, 4, 1_000, 0, CLOCK)
    old, new = Queued(id_floor(1_000), b"t", 1), Queued(id_floor(1_000) + 1, b"t", 1)
    [output] = node.receive(OTHER, Tail(KEY, 1, 0, (old, new), 3, is_stale=True))
    assert isinstance(output, Merge) and output.tail.queued == (new,)
    # Of a session that has begun with this clean start, whose publishers' clocks may be behind.
    [output] = node.receive(OTHER, Tail(KEY, 2, 1_000, (old, new), 3))
    assert isinstance(output, Merge) and output.tail.queued == (old, new)


# --- the registrar's questions, ends, exclusive subscriptions ---------------------------------------------------------------


def test_the_sessions_of_a_node_are_reported_under_the_same_member_set() -> None:
    node = Node()
    holding = node.holding()
    assert node.receive(REGISTRAR, Rebuild(3, D2, bitmap([7]))) == []
    assert sent(node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7])))) == [Sessions(3, 1, bitmap([7]), (holding.held,), True)]
    assert sent(node.receive(REGISTRAR, Rebuild(4, D1, bitmap([8])))) == [Sessions(4, 1, bitmap([8]), (), True)]
    assert node.receive(REGISTRAR, Who(5, KEY, D2)) == []
    assert sent(node.receive(REGISTRAR, Who(5, KEY, D1))) == [Here(5, KEY, holding.held)]


def test_a_session_that_is_moving_is_not_reported_next_to_a_newer_one_of_its_key() -> None:
    """The registrar took the older one, so that of another node was not revoked."""
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    [moving] = node.claims.leaving.values()
    assert sent(node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7])))) == [Sessions(3, 1, bitmap([7]), (moving.held,), True)]
    newer = node.holding(generation=200)
    assert sent(node.receive(REGISTRAR, Rebuild(4, D1, bitmap([7])))) == [Sessions(4, 1, bitmap([7]), (newer.held,), True)]


def test_a_change_of_the_registrar_is_reported() -> None:
    node = Node()
    done = node.claims.set_view(MEMBERS, D2, (OTHER,) * PARTITIONS, 0)
    assert done == [ToNode(OTHER, Moved(bitmap(range(PARTITIONS))))]


def test_partitions_of_other_workers_are_left_to_them() -> None:
    claims = Claims(1, HybridClock(), Queues(), partitions={7, 9}, number=500)
    assert claims.set_view(MEMBERS, D1, (REGISTRAR,) * PARTITIONS, 0) == [ToNode(REGISTRAR, Moved(bitmap([7, 9]), 500))]
    assert sent(claims.received(REGISTRAR, Rebuild(3, D1, bitmap([6, 7])), 0, CLOCK)) == [Sessions(3, 1, bitmap([7]), (), True)]
    assert claims.received(REGISTRAR, Rebuild(3, D1, bitmap([6])), 0, CLOCK) == []
    [claim] = sent(claims.connect(KEY, NAME, False, 1, 0, CLOCK))
    assert isinstance(claim, Claim) and claim.number == 501, "no answer to an earlier process has this number"


def test_many_sessions_are_reported_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_HELD", 2)
    node = Node()
    for number in range(5):
        key = Key(7, number)
        node.claims.sessions[key] = Holding(key, number, NAME, 50)
    parts = sent(node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7]))))
    assert node.receive(REGISTRAR, Rebuild(4, D1, bitmap([7]))) == [], "an answer is under way"
    other = Rebuild(9, D1, bitmap([7]))
    assert node.receive(OTHER, other) == [], "one answer at a time"
    while node.claims.reports:
        parts += sent(node.claims.report())
    assert [(one.number, one.part, len(one.held), one.is_last) for one in parts if isinstance(one, Sessions)] == [
        (number, *part) for number in (3, 9) for part in ((1, 2, False), (2, 2, False), (3, 1, True))
    ]
    assert len(sent(node.receive(REGISTRAR, Rebuild(5, D1, bitmap([7]))))) == 1


def test_sessions_of_other_partitions_take_turns_too() -> None:
    """A worker looks at so many sessions in a turn, whoever asks for them."""
    node = Node()
    node.claims.looked_at = 2
    for number in range(5):
        key = Key(6, number)
        node.claims.sessions[key] = Holding(key, number, NAME, 50)
    [first] = sent(node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7]))))
    assert first == Sessions(3, 1, bitmap([7]), (), False)
    assert sent(node.after(50)) == [Sessions(3, 2, bitmap([7]), (), False)]
    assert sent(node.after(50)) == [Sessions(3, 3, bitmap([7]), (), True)]
    assert not node.claims.reports


def test_each_part_has_sessions_as_they_are_at_its_moment() -> None:
    node = Node()
    node.claims.looked_at = 1
    for number in range(4):
        key = Key(7, number)
        node.claims.restore(Holding(key, number, NAME, 50), 0)
    [first] = sent(node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7]))))
    assert isinstance(first, Sessions) and [one.key.hash for one in first.held] == [0]
    node.claims.ended(Key(7, 1))
    node.receive(OTHER, Take(Key(7, 2), 100, NAME, False))
    node.receive(OTHER, Take(Key(7, 3), 100, NAME, False))
    node.receive(OTHER, StateAck(Key(7, 3), 100))
    parts = [sent(node.claims.report())[0] for _ in range(3)]
    held = [one for part in parts if isinstance(part, Sessions) for one in part.held]
    assert [(one.key.hash, one.is_moving) for one in held] == [(2, True)]


def test_reports_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORTS_MAX", 3)
    node = Node()
    node.claims.looked_at = 1
    for number in range(2):
        node.claims.restore(Holding(Key(7, number), number, NAME, 50), 0)
    for partition in range(7, 20):
        node.receive(REGISTRAR, Rebuild(partition, D1, bitmap([partition])))
    answered = set()
    while node.claims.reports:
        answered |= {one.number for one in sent(node.claims.report()) if isinstance(one, Sessions)}
    assert answered == {7, 8, 9}


def test_a_report_ends_with_its_member_set() -> None:
    """The registrar asks again, with another digest."""
    node = Node()
    node.claims.looked_at = 1
    for number in range(2):
        node.claims.restore(Holding(Key(7, number), number, NAME, 50), 0)
    node.receive(REGISTRAR, Rebuild(3, D1, bitmap([7])))
    assert node.claims.reports
    node.claims.set_view(MEMBERS[:2], D2, (REGISTRAR,) * PARTITIONS, 0)
    assert not node.claims.reports and node.claims.report() == []


def test_in_another_run_the_registrars_are_told_again() -> None:
    """A MOVED may be missing between two runs."""
    node = Node()
    assert node.claims.set_view(MEMBERS, D1, (REGISTRAR,) * PARTITIONS, 0) == []
    done = node.claims.set_view(MEMBERS, D1, (REGISTRAR,) * PARTITIONS, 0, is_new_run=True)
    assert done == [ToNode(REGISTRAR, Moved(bitmap(range(PARTITIONS))))]


def test_an_answer_to_another_claim_is_ignored() -> None:
    node = Node()
    [claim] = sent(node.connect())
    assert isinstance(claim, Claim)
    for other in Refuse(claim.number + 1, KEY), Refuse(claim.number, Key(7, 98)):
        assert node.receive(REGISTRAR, other) == []
    assert node.receive(OTHER, Refuse(claim.number, KEY)) == []
    assert node.receive(REGISTRAR, Refuse(claim.number, KEY)) == [Rejected(1, 0x89)]


def test_a_session_that_is_served_again_waits_for_the_latest_grant_that_wanted_it() -> None:
    """The older one of two TAKEs was carried out after the restore, and the later one answered "absent": two holders."""
    node = Node()
    node.holding()
    node.receive(OTHER, Take(KEY, 100, NAME, False))
    [busy] = node.receive(REGISTRAR, Take(KEY, 300, NAME, False))
    assert busy == ToNode(REGISTRAR, NoState(KEY, 300, TakeFault.BUSY))
    assert any(isinstance(output, Restore) for output in node.receive(OTHER, Here(9, KEY, None, 100)))
    assert node.receive(OTHER, Take(KEY, 200, NAME, False)) == [ToNode(OTHER, NoState(KEY, 200, TakeFault.STALE))]
    assert isinstance(node.receive(REGISTRAR, Take(KEY, 300, NAME, False))[0], Export)


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_tail_has_a_bounded_number_of_bytes(is_stale: bool) -> None:
    node = Node()
    holding = node.holding()
    body = b"x" * (module.TAIL_BYTES // 2)
    node.queues.messages[holding.uid] = [Queued(number, b"", 1, body) for number in range(5)]
    node.receive(REGISTRAR, Revoke(KEY, 50, OTHER))
    counts = []
    while node.queues.messages[holding.uid]:
        [tail] = [one for one in sent(node.after(module.ASK_MS)) if isinstance(one, Tail)]
        counts.append((len(tail.queued), tail.is_last))
        node.receive(OTHER, TailAck(KEY, tail.number, tail.uid, True))
        del node.queues.messages[holding.uid][: len(tail.queued)]
    assert counts == [(2, False), (2, False), (1, True)]


def test_the_end_of_a_session_is_released() -> None:
    node = Node()
    node.holding()
    assert node.claims.ended(KEY) == [ToNode(REGISTRAR, Release(KEY, 50))]


def exclusive(node: Node, client_id: str = "c") -> None:
    """Gives the node an exclusive subscription by the grant 100."""
    [claim] = sent(node.claims.subscribe_exclusive(KEY, client_id, 1, 0))
    assert isinstance(claim, Claim)
    node.receive(REGISTRAR, Grant(claim.number, KEY, 100, 0, False))
    assert node.claims.created(KEY, 4, 0, 0, CLOCK)[0] == Accepted(1, 4, False)


def test_an_exclusive_subscription_is_held_until_it_ends() -> None:
    node = Node()
    exclusive(node)
    assert node.claims.subscribe_exclusive(KEY, "c", 2, 0) == [Rejected(2, 0x97)]
    assert node.receive(OTHER, Take(KEY, 200, "d", False)) == [ToNode(OTHER, NoState(KEY, 200, TakeFault.HELD))]
    # After a split the later claim loses it.
    assert node.receive(REGISTRAR, Revoke(KEY, 100, OTHER)) == [EndSession(4)]


def test_an_exclusive_subscription_is_given_to_its_client_at_another_node() -> None:
    node = Node()
    exclusive(node)
    assert node.receive(OTHER, Take(KEY, 90, "c", False)) == [ToNode(OTHER, NoState(KEY, 90, TakeFault.STALE))]
    assert node.receive(OTHER, Take(KEY, 200, "c", False)) == [EndSession(4), ToNode(OTHER, NoState(KEY, 200, TakeFault.ABSENT))]
    assert node.receive(OTHER, Take(KEY, 300, "d", False)) == [ToNode(OTHER, NoState(KEY, 300, TakeFault.ABSENT))]


def test_of_two_holders_of_an_exclusive_subscription_the_first_one_stays() -> None:
    first, second = (exclusive_holding(KEY, 1, "c", generation).held for generation in (100, 200))
    assert wins(first, 1, second, 2) and not wins(second, 2, first, 1)


@pytest.mark.parametrize("is_linked", [True, False])
def test_an_exclusive_subscription_of_a_holder_without_answer(is_linked: bool) -> None:
    """A holder that is there has it; what is lost with its node is free."""
    node = Node()
    [claim] = sent(node.claims.subscribe_exclusive(KEY, "c", 1, 0))
    assert isinstance(claim, Claim)
    node.receive(REGISTRAR, Grant(claim.number, KEY, 100, OTHER, False))
    if not is_linked:
        node.claims.set_links({REGISTRAR}, False, False)
    done = [*node.after(module.TAKE_MS), *node.after(module.RELINK_MS)]
    assert (Rejected(1, 0x89) in done) == is_linked
    assert any(isinstance(output, Create) for output in done) != is_linked


# --- merge -----------------------------------------------------------------------------------------------------------------


def test_which_session_stays() -> None:
    absent, connected = Held(KEY, 9, 900, False), Held(KEY, 1, 100, True)
    assert wins(connected, 1, absent, 2)
    assert wins(connected._replace(stamp=101), 1, connected, 2)
    assert wins(connected, 2, connected, 1)
    assert wins(absent._replace(generation=10), 1, connected._replace(is_moving=True), 2)


def test_a_merge_appends_what_is_new_in_the_order_of_ids() -> None:
    seen = SeenIds(passed=(10,), base=10)
    assert not seen.take(10)
    assert seen.take(20)
    assert not seen.take(20)
    late = Tail(KEY, 1, 0, (Queued(5, b"t", 2),), 3)
    assert append(seen, (), late, False) is None
    stale = Tail(KEY, 1, 0, (Queued(30, b"t", 2), Queued(8, b"t", 1), Queued(20, b"t", 2)), 3, True, True, 0, (5, 25))
    result = append(seen, (20, 25), stale, False)
    assert result is not None
    assert [message.id for message in result.fresh] == [8, 30]
    assert result.removed == (25,)
    result = append(seen, (), late, False)
    assert result is not None and result.fresh == ()


def test_what_an_earlier_node_has_dealt_with_is_known_for_each_process() -> None:
    """Clocks of processes may differ by days, so ids of one say nothing about those of another."""
    behind, ahead = 1 << 70 | 1 << 48, 1 << 90 | 2 << 48
    seen = SeenIds(passed=(ahead + 5, behind + 5))
    assert not seen.take(ahead + 5) and not seen.take(ahead + 4) and not seen.take(behind + 5)
    assert seen.take(behind + 6) and not seen.take(behind + 6)
    assert seen.take(1 << 60 | 3 << 48), "of a process that the earlier node has had nothing of"


def test_the_processes_are_bounded() -> None:
    passed = Passed(number << 16 for number in range(ORIGINS_MAX))
    passed.note(1 << 16 | 5)
    passed.note(ORIGINS_MAX << 16)
    assert len(passed) == ORIGINS_MAX
    assert 1 << 16 | 5 in passed and 0 not in passed and 2 << 16 in passed


def test_ids_of_one_process_are_forgotten_without_those_of_another() -> None:
    """Else messages of a node whose clock is behind would count as seen."""
    ahead, behind = 1 << 90 | 2 << 48, 1 << 70 | 1 << 48
    seen = SeenIds()
    for number in range(SEEN_MAX + 1):
        seen.take(ahead + number)
    assert seen.knows(Queued(ahead, b"t", 2))
    assert not seen.knows(Queued(behind, b"t", 2))


def id_at(ms: int, origin: int = 1, sequence: int = 0) -> int:
    return ms << 80 | origin << 16 | sequence


def test_what_a_session_missed_for_a_while_is_not_seen_though_its_ids_are_forgotten() -> None:
    """It was away from 20 s to 25 s, when messages arrived every 30 ms; the other session has them."""
    times = [ms for ms in range(0, 60 * SEEN_MAX, 30) if not 20_000 <= ms < 25_000]
    seen = SeenIds()
    for ms in times:
        seen.take(id_at(ms))
    assert len(seen) <= SEEN_MAX and times[0] < 20_000 < 25_000 < times[-1]
    forgotten = [ms for ms in times if id_at(ms) not in seen]
    assert 25_000 < forgotten[-1] < times[-1]
    for copy in (seen, SeenIds(forgotten=seen.forgotten.ids)):
        assert all(copy.knows(Queued(id_at(ms), b"t", 2)) for ms in forgotten)
        assert not any(copy.knows(Queued(id_at(ms), b"t", 2)) for ms in range(20_100, 24_900))


def test_spans_are_bounded_and_have_every_id_that_was_noted() -> None:
    rng = Random(1)
    spans, noted = Spans(), []
    for ms in range(0, 40_000_000, 1_000):
        noted.append(id_at(ms + rng.randrange(900), rng.randrange(1, 4), rng.randrange(3)))
    late = noted[::7]
    for one in (*(one for at, one in enumerate(noted) if at % 7), *late):
        spans.note(one)
        assert len(spans) <= SPANS_MAX
    assert all(one in spans for one in noted)
    again = Spans(spans.ids)
    assert again.ids == spans.ids and len(again) == len(spans)
    assert id_at(5, 9) not in spans and id_at(50_000_000) not in spans
    many = Spans()
    for origin in range(SPANS_MAX + 1):
        many.note(id_at(7, origin))
    assert len(many) == SPANS_MAX and id_at(7, 0) not in many and id_at(7, 1) in many


def test_an_id_alone_ends_a_span_from_the_first_id_on() -> None:
    """As journals have them that were written before there were spans."""
    spans = Spans((id_at(9, 1), id_at(7, 2)))
    assert id_at(0, 1) in spans and id_at(9, 1) in spans and id_at(10, 1) not in spans
    assert id_at(7, 2) in spans and id_at(8, 2) not in spans


def test_seen_ids_are_bounded() -> None:
    seen = SeenIds()
    for number in range(1, SEEN_MAX + 2):
        seen.take(number)
    assert len(seen) <= SEEN_MAX
    assert seen.knows(Queued(1, b"t", 2)) and not seen.knows(Queued(1, b"t", 1))
