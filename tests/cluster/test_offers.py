"""Offers of a node that is evacuated: who is asked, what it does, and what a takeover without a client may do."""

from shardbroker.cluster.claims import AGREE_MS, LATE_MS, LEAVING_MAX, TAIL_MESSAGES, Holding, SessionState
from shardbroker.cluster.messages import Claim, Decline, Done, Grant, Key, NoState, Offer, Queued, State, StateAck, Take
from shardbroker.cluster.offers import OFFER_MS, OFFERS_MAX, UNWILLING_MS, Offers
from shardbroker.cluster.outputs import Accepted, Create, Export, Import, Restore, SessionOutput, ToNode
from shardbroker.cluster.rendezvous import rank
from shardbroker.cluster.takeover import TakeFault
from tests.cluster.test_claims import CLOCK, KEY, NAME, OTHER, REGISTRAR, Node, sent

OFFER = Offer(KEY, 50, NAME)
HOLDER = OTHER


def offered(node: Node) -> Claim:
    """Has node 3 offer the session; returns the claim for it."""
    [message] = sent(node.receive(HOLDER, OFFER))
    assert isinstance(message, Claim)
    return message


def granted(node: Node, holder: int = HOLDER) -> list[SessionOutput]:
    return node.receive(REGISTRAR, Grant(offered(node).number, KEY, 100, holder, False))




def claims_nothing(node: Node) -> bool:
    """Returns whether a client of this id would begin a claim of its own."""
    return [type(one) for one in sent(node.connect())] == [Claim]


# --- the node that is asked ------------------------------------------------------------------------------------------------


def test_an_offered_session_is_claimed_taken_and_imported_without_a_client() -> None:
    node = Node()
    [take] = sent(granted(node))
    assert take == Take(KEY, 100, NAME, False)
    assert node.receive(HOLDER, State(KEY, 100, 1, b"part", True)) == [Import(KEY, NAME, 100, (b"part",))]
    done = node.claims.imported(KEY, 4, 0, 0, CLOCK)
    assert [type(one) for one in sent(done)] == [StateAck, Done]
    assert not any(isinstance(one, Accepted) for one in done)
    assert not node.claims.sessions[KEY].is_connected


def test_an_offer_is_declined_by_a_node_that_takes_none() -> None:
    node = Node()
    node.claims.refuses_offers = True
    assert node.receive(HOLDER, OFFER) == [ToNode(HOLDER, Decline(KEY, 50))]
    node.claims.refuses_offers = False
    node.claims.set_links({REGISTRAR, HOLDER}, True, True)
    assert node.receive(HOLDER, OFFER) == [ToNode(HOLDER, Decline(KEY, 50))]


def test_claims_for_offers_are_bounded() -> None:
    node = Node()
    for number in range(OFFERS_MAX):
        node.receive(HOLDER, Offer(Key(7, number), 50, f"c{number}"))
    assert sent(node.receive(HOLDER, Offer(Key(8, 0), 50, "d"))) == [Decline(Key(8, 0), 50)]


def test_an_offer_of_a_session_that_is_here_or_claimed_changes_nothing() -> None:
    node = Node()
    node.connect()
    assert node.receive(HOLDER, OFFER) == []
    node = Node()
    node.holding()
    assert node.receive(HOLDER, OFFER) == []


def test_a_session_that_is_elsewhere_by_now_or_has_ended_is_not_taken() -> None:
    for holder in (0, 1, REGISTRAR):
        node = Node()
        assert sent(granted(node, holder)) == [Done(KEY, 100, None, False)]
        assert claims_nothing(node)


def test_an_offer_never_creates_a_session() -> None:
    for fault in (TakeFault.ABSENT, TakeFault.STALE, TakeFault.TOO_LARGE):
        node = Node()
        granted(node)
        outputs = node.receive(HOLDER, NoState(KEY, 100, fault))
        assert sent(outputs) == [Done(KEY, 100, None, False)]
        assert claims_nothing(node)


def test_a_holder_that_dies_ends_the_claim() -> None:
    for refused in ("new", "wait", "refuse"):
        node = Node(refused)
        granted(node)
        node.claims.set_links({REGISTRAR}, False, False)
        assert sent(node.after(50)) == [Done(KEY, 100, None, False)]
        assert claims_nothing(node)


def test_a_claim_for_an_offer_is_given_up_without_agreement() -> None:
    node = Node()
    offered(node)
    assert node.after(AGREE_MS) == []
    assert claims_nothing(node)


def test_a_client_that_connects_meanwhile_has_the_rights_of_any_client() -> None:
    node = Node()
    claim = offered(node)
    assert node.connect(ticket=5) == []
    [take] = sent(node.receive(REGISTRAR, Grant(claim.number, KEY, 100, HOLDER, False)))
    assert isinstance(take, Take)
    assert [type(one) for one in node.receive(HOLDER, NoState(KEY, 100, TakeFault.ABSENT))] == [Create]
    assert Accepted(5, 4, False) in node.claims.created(KEY, 4, 0, 0, CLOCK)


# --- the node that is evacuated --------------------------------------------------------------------------------------------


def test_a_session_is_offered_to_one_node_at_a_time() -> None:
    node = Node()
    node.holding()
    asked = rank((2, 3), KEY.partition)[0]
    assert node.claims.offer(KEY, None, 0) == [ToNode(asked, OFFER)]
    assert node.claims.offer(KEY, None, 0) == []
    assert node.claims.offers_left == OFFERS_MAX - 1


def test_a_node_that_declines_or_does_not_answer_is_not_asked_for_a_while() -> None:
    for answers in (True, False):
        node = Node()
        node.holding()
        first, second = rank((2, 3), KEY.partition)
        node.claims.offer(KEY, None, node.now_ms)
        if answers:
            node.receive(first, Decline(KEY, 50))
        else:
            node.after(OFFER_MS)
        assert node.claims.offer(KEY, None, node.now_ms) == [ToNode(second, OFFER)]
        node.receive(second, Decline(KEY, 50))
        assert node.claims.offer(KEY, None, node.now_ms) == []
        node.now_ms += UNWILLING_MS
        assert node.claims.offer(KEY, None, node.now_ms) == [ToNode(first, OFFER)]


def test_only_linked_members_among_the_wanted_nodes_are_asked() -> None:
    node = Node()
    node.holding()
    assert node.claims.offer(KEY, [9], 0) == []
    assert node.claims.offer(KEY, [3], 0) == [ToNode(3, OFFER)]
    node = Node()
    node.holding()
    node.claims.set_links({2}, False, False)
    assert node.claims.offer(KEY, None, 0) == [ToNode(2, OFFER)]


def test_a_session_of_a_connected_client_is_not_offered() -> None:
    node = Node()
    node.holding().is_connected = True
    assert node.claims.offer(KEY, None, 0) == []


def test_a_session_departs_until_its_late_messages_are_sent() -> None:
    node = Node()
    node.holding()
    node.claims.offer(KEY, [2], 0)
    assert node.receive(2, Take(KEY, 100, NAME, False)) == [Export(9, 100)]
    assert len(node.claims.offers) == 0
    assert node.claims.departing(0) == (1, 0)
    node.claims.exported(9, 100, [b"part"])
    node.receive(2, StateAck(KEY, 100))
    assert node.claims.departing(LATE_MS - 1) == (0, 1)
    assert node.claims.departing(LATE_MS) == (0, 0)
    node.queues.messages[9] = [Queued(number, b"t", 1) for number in range(TAIL_MESSAGES + 1)]
    node.claims.arrived(9, LATE_MS)
    assert node.claims.departing(LATE_MS) == (0, 1), "more than one TAIL waits"


def test_a_session_that_is_too_large_is_noted_and_served_again() -> None:
    node = Node()
    node.holding()
    node.receive(2, Take(KEY, 100, NAME, False))
    outputs = node.claims.not_exported(9, 100, TakeFault.TOO_LARGE, 0)
    assert Restore(9) in outputs
    assert node.claims.offers.too_large == {KEY}
    node.claims.offers.clear()
    assert not node.claims.offers.too_large


def test_nothing_is_offered_while_many_sessions_are_forwarded() -> None:
    node = Node()
    for uid in range(LEAVING_MAX):
        node.claims.leaving[uid] = Holding(Key(1, uid), uid, "c", 1, state=SessionState.GONE, is_ended=True)
    assert node.claims.offers_left == 0


def test_an_offer_of_a_session_that_has_gone_blames_no_node() -> None:
    offers = Offers()
    assert offers.make(KEY, [2], 0) == 2
    offers.tick((), OFFER_MS)
    assert not len(offers)
    assert offers.make(KEY, [2], OFFER_MS) == 2
