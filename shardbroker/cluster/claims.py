"""The sessions of one node: claims of its clients, sessions it holds, sessions on their way to and from it.

    claiming -> importing -> owned -> moving -> gone        stale -> merged (gone)

A node's right to a session ends only by TAKE or REVOKE, so a client that returns to its node needs no claim. Every other CONNECT
is a claim at the registrar of its client id; the grant names the holder, from which the session is taken (takeover.py). Without an
answer, or without agreement about the members, the claim becomes provisional after `AGREE_MS`: any node answers it, and what it
grants wrongly is merged later.

A session that is GONE or STALE is kept as a queue: its messages are sent to the holder until the queue is empty, and for
`FORWARD_MS` after that, since publishers may not have known the routes of the new node.

Invariants: at most one session of a key is OWNED here; a session is GONE only after STATE_ACK or once its queue was merged; a STALE
session is merged into one other session; a GRANT counts only if the member set has not changed since its CLAIM, or is provisional.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from shardbroker.cluster.claim_figures import ClaimFigures
from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.leaving import Leaving
from shardbroker.cluster.merge import id_floor
from shardbroker.cluster.messages import (
    POSITION_MAX,
    Announce,
    Claim,
    Decline,
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
from shardbroker.cluster.offers import OFFERS_MAX, Offers
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
from shardbroker.cluster.plain import from_plain, records_of, to_plain
from shardbroker.cluster.registry import ALL_PARTITIONS, STARTING_MS, bitmap, partitions_of
from shardbroker.cluster.rendezvous import rank
from shardbroker.cluster.takeover import Parts, TakeFault

__all__ = ["EXCLUSIVE", "ClaimSettings", "Claims", "Holding", "LateQueues", "SessionState", "exclusive_holding"]

AGREE_MS = 500
"""For an answer of the registrar; the claim is then provisional, and goes to another node."""
RETRY_MS = 50
"""Pause before a claim is repeated that another member set has made void."""
CLAIM_MS = 5_000
"""From CONNECT to the grant."""
TAKE_MS = 1_000
"""For the answer to TAKE, and between two parts of the session."""
TAKE_AGAIN_MS = 200
"""Between two TAKE without an answer: the worker of the holder may be restarted at this moment."""
STALLED_MS = 400
"""Without the next part for so long, TAKE is repeated: parts are lost with a link process, or with the worker of the holder."""
RELINK_MS = 1_000
"""For a node whose link is gone: a connection that was reset, or a link process that was killed, is back by then."""
PARTS_KEPT_MAX = 64 << 20
"""Bytes of all sessions on their way that are kept to be sent again; without them a lost part makes the claim late."""
BUSY_MS = 100
"""Pause before TAKE is repeated."""
ACK_MS = 5_000
"""For STATE_ACK; then WHO goes to the new node, which may have the session."""
ASK_MS = 500
"""Between two repetitions of WHO, FIND and TAIL."""
ANNOUNCE_MS = 1_000
"""Between two repetitions of ANNOUNCE."""
HOLD_MS = 1_000
"""Direct deliveries of an imported session are held until DONE, at most so long."""
DRAIN_MS = 20
"""From END to its answer, and until the queue is empty: what publishers have sent without the new routes is on its way in other
connections."""
IDLE_MS = 1_000
"""Between two looks at a session that has moved and has nothing to send; END and messages are looked at when they arrive."""
BATCH_MS = 50
"""Between two TAIL once END is answered: publishers have the new routes by then, so most messages of a tail are known already."""
FORWARD_MS = 60_000
"""What arrives for a session that has moved is sent on for so long, and while a peer is not linked."""
SETTLE_MS = 10_000
"""After so long with all links a session whose client id has another holder has been found."""
TAIL_MESSAGES = 200
"""Messages of one TAIL."""
TAIL_BYTES = 512 << 10
"""Bytes of topics and bodies in one TAIL; a message that crosses it is the last one."""
LATE_MS = 3_000
"""How long a session that has moved may have messages that no other node has: peers have the routes of its new node 100 ms behind
its STATE_ACK, and what they sent before is on its way. Later ones are sent to both nodes."""
LEAVING_MAX = 50_000
"""Sessions that have moved and are still forwarded, above which none is offered: each is looked at once a second for 60 s,
and while a peer is not linked."""
SESSIONS_HELD = 1_000
"""Sessions of one part of the answer to REBUILD."""
LOOKED_AT = 4_000
"""Sessions looked at for one part of the answer to REBUILD: some 2 ms of a worker, which serves its clients between two parts."""
REPORTS_MAX = 1_000
"""Answers to REBUILD that are under way or wait: 250 nodes with 4 workers each. What finds no room is asked for again."""
UNAVAILABLE, TAKEN_OVER, BUSY_REASON, EXCLUSIVE = 0x88, 0x8E, 0x89, 0x97
"""Reason codes: server unavailable, session taken over, server busy, quota exceeded (of an exclusive subscription)."""


class SessionState(IntEnum):
    """State of a session at a node. One that is claimed or imported has no number yet."""

    OWNED = 0
    MOVING = 1
    STALE = 2
    GONE = 3


class Phase(IntEnum):
    """Phase of a claim."""

    CLAIMING = 0                   # at the registrar
    LOST = 1                       # the holder is not linked: `lost_session` is wait
    TAKING = 2                     # TAKE sent, no part yet
    IMPORTING = 3                  # parts arrive
    STORING = 4                    # the journal is being written
    RELINKING = 5                  # the holder was linked a moment ago


class LateQueues(Protocol):
    """Queues of sessions that are GONE or STALE."""

    def queued(self, uid: int, most: int) -> Sequence[Queued]:
        """Returns the first messages of the queue of a session, in the order of ids."""

    def delivered_of(self, uid: int) -> tuple[int, Sequence[int]]:
        """Returns `SeenIds.base` of a session, and the ids in its `SeenIds` that are not in its queue."""


@dataclass(frozen=True)
class ClaimSettings:
    """Settings of claims."""

    lost_session: str = "new"
    """`cluster.lost_session`: new, wait or refuse."""
    lost_wait_ms: int = 30_000


@dataclass
class Holding:
    """A session at this node."""

    key: Key
    uid: int
    name: str
    generation: int
    stamp: int = 0
    is_connected: bool = False
    state: SessionState = SessionState.OWNED
    is_exclusive: bool = False
    """An exclusive subscription, `name` is the client id: given to that client only, and lost if it is revoked."""
    clean_stamp: int = 0
    """Stamp at which it began with a clean start: older messages are not merged; 0: never."""
    peer: int = 0
    """OWNED: node that still sends its tail; else the node that has, or gets, the session. 0: unknown."""
    granted: int = 0
    """MOVING: generation of the TAKE."""
    parts: tuple[bytes, ...] = ()
    """MOVING: what was sent, for a TAKE that is repeated. A new export might have messages that the node has by TAIL, too."""
    sent_ms: int = 0
    """MOVING: when that was sent last."""
    wanted: int = 0
    """Latest generation of a TAKE that found the session on its way: an older TAKE is not carried out any more."""
    deadline_ms: int = 0
    """MOVING: of STATE_ACK. GONE: of the queue. OWNED: of DONE, 0: nothing is held."""
    ask_ms: int = 0
    """When WHO, FIND, TAIL or END may be sent again."""
    is_routed: bool = False
    """OWNED: END was sent."""
    end_ms: int = 0
    """GONE: END has arrived, and is answered once what the queue has from then on is taken; 0: it has not."""
    is_ended: bool = False
    """GONE: END is answered."""
    gone_ms: int = 0
    """GONE: since when; after a start, since that."""
    was_stale: bool = False
    """GONE: it was STALE before, or may have been: it is from the journal."""
    idle_ms: int = 0
    """GONE: when it is looked at again."""
    tail: int = 0
    """Number of the TAIL under way; 0: none."""
    under_way: ToNode | None = None
    """The TAIL under way. It is repeated as it is: with another number a late answer would never count."""
    sent: tuple[Queued, ...] = ()
    is_whole: bool = False
    """The TAIL under way has the whole queue."""
    is_answer: bool = False
    """GONE: END is answered once the TAIL under way is taken. What arrives behind that TAIL arrives at the new node, too."""
    is_last_sent: bool = False
    """STALE: the TAIL under way is the last one."""
    heir: int = 0
    """STALE: node to which the last TAIL was sent, 0: none. It may have merged the session, so nothing is sent to another node, and
    the session is not served again, until the heir has answered."""
    merged: frozenset[tuple[int, int]] = frozenset()
    """Node and uid of the stale sessions whose last TAIL this one has had."""

    @property
    def held(self) -> Held:
        return Held(self.key, self.generation, self.stamp, self.is_connected, self.state == SessionState.MOVING)


@dataclass
class _Claim:
    """A CONNECT without a session at this node."""

    key: Key
    name: str
    clean: bool
    ticket: int | None
    begun_ms: int
    is_exclusive: bool = False
    offered_by: int = 0
    """Node that has offered the session. Until a client connects, only a session of that node is taken, and none is created."""
    number: int = 0
    phase: Phase = Phase.CLAIMING
    digest: bytes = b""
    """Of the member set under which it was sent."""
    is_provisional: bool = False
    is_queued: bool = False
    waited_ms: int = 0
    """When the registrar said last that the claim waits."""
    due_ms: int = 0
    """When what the phase waits for is late."""
    registrar: int = 0
    tried: set[int] = field(default_factory=set)
    generation: int = 0
    holder: int = 0
    until_ms: int = 0
    """End of TAKE's repetitions."""
    take_ms: int = 0
    """TAKING: when a holder that was busy is asked again; 0: it was not."""
    again_ms: int = 0
    """TAKING: when TAKE is repeated."""
    starting_ms: int = 0
    """TAKING: until when a worker of the holder that is being started is waited for; 0: none was."""
    parts: Parts = field(default_factory=Parts)
    was_taken: bool = False


@dataclass
class _Report:
    """An answer to REBUILD."""

    node: int
    number: int
    wanted: set[int]
    """Partitions."""
    partitions: bytes
    """Their bitmap."""
    keys: list[Key] | None = None
    """Keys at its beginning; None: it has not begun."""
    next: int = 0
    """Index of the next key."""
    part: int = 0


RECORDS = records_of(Key, Held, Queued, Tail, ToNode, Holding, Parts, ClaimFigures, _Claim, _Report)
"""What an image of the claims has."""
TIMES_OF_CLAIM = "begun_ms", "waited_ms", "due_ms", "until_ms", "take_ms", "again_ms", "starting_ms"
TIMES_OF_HOLDING = "sent_ms", "deadline_ms", "ask_ms", "end_ms", "gone_ms", "idle_ms"
"""Moments on the clock of the driver; 0: none."""
IMAGE_OF_VIEW = "_digest", "_members", "_owners", "_linked", "_unlinked", "_all_linked", "_linked_ms", "_is_isolated"
IMAGE_PLAIN = "figures", "_claims", "_reports", "_unsure", "_first", "_number", *IMAGE_OF_VIEW
"""Attributes that an image has as they are."""


def _shift(one: Holding | _Claim, times: Sequence[str], ms: int) -> None:
    for name in times:
        if at := getattr(one, name):
            setattr(one, name, at + ms)


def exclusive_holding(key: Key, uid: int, client_id: str, generation: int) -> Holding:
    """Returns an exclusive subscription of this node. Of two in a merge the one that was granted first stays, unlike sessions."""
    return Holding(key, uid, client_id, generation, POSITION_MAX - generation, is_exclusive=True)


def _within(queued: Sequence[Queued], size: int) -> tuple[Queued, ...]:
    """Returns the first messages, up to the one with which they have so many bytes."""
    for count, one in enumerate(queued, 1):
        size -= len(one.topic) + len(one.body)
        if size <= 0:
            return tuple(queued[:count])
    return tuple(queued)


class Claims:
    """The claims and sessions of one node, for keys in `partitions`. `settings` returns those in force. `number`: larger than any
    that an earlier object of these partitions has used here."""

    def __init__(
        self,
        node_id: int,
        clock: HybridClock,
        queues: LateQueues,
        settings: Callable[[], ClaimSettings] = ClaimSettings,
        partitions: Collection[int] = ALL_PARTITIONS,
        number: int = 0,
    ) -> None:
        self.node_id = node_id
        self.clock = clock
        self.partitions = frozenset(partitions)
        self._settings = settings
        self.sessions: dict[Key, Holding] = {}
        """OWNED."""
        self.leaving: Leaving[Holding] = Leaving()
        """MOVING, STALE and GONE, by uid."""
        self.offers = Offers()
        self.refuses_offers = False
        """Whether this node takes no sessions of nodes that are evacuated."""
        self.figures = ClaimFigures()
        self.looked_at = LOOKED_AT
        self.lags: Callable[[], bool] = lambda: False
        """Whether messages of other nodes may be missing here, as a data connection is gone or has just been opened again."""
        self._queues = queues
        self._claims: dict[Key, _Claim] = {}
        self._held: list[Holding] = []
        """Imported sessions, of which direct deliveries may still be held."""
        self._reports: deque[_Report] = deque()
        self._unsure: dict[Key, int] = {}
        """Sessions that their registrar may not know, with the time of the next ANNOUNCE."""
        self._first = self._number = number
        self._digest = b""
        self._members: set[int] = set()
        self._owners: Sequence[int] = ()
        self._linked: set[int] = set()
        self._unlinked: dict[int, int] = {}
        """Nodes whose link is gone, with the time at which that was seen; 0: at the next tick."""
        self._parts_kept = 0
        """Bytes of `Holding.parts`."""
        self._all_linked = False
        self._linked_ms: int | None = None
        """Since when all seeds have been linked."""
        self._is_isolated = False

    # --- views and the journal -----------------------------------------------------------------------------------------

    def restore(self, holding: Holding, now_ms: int) -> None:
        """Takes a session of the journal, before the first view."""
        if holding.state == SessionState.OWNED:
            self.sessions[holding.key] = holding
        else:
            holding.gone_ms, holding.deadline_ms, holding.was_stale = now_ms, now_ms + FORWARD_MS, True
            self.leaving[holding.uid] = holding

    def shift(self, paused_ms: int) -> None:
        """Takes the end of a time in which nothing was received: it does not count as silence of nodes."""
        for claim in self._claims.values():
            _shift(claim, TIMES_OF_CLAIM, paused_ms)
        for holding in (*self.leaving.values(), *self._held):
            _shift(holding, TIMES_OF_HOLDING, paused_ms)
        self._unlinked = {node: since_ms and since_ms + paused_ms for node, since_ms in self._unlinked.items()}
        self.offers.shift(paused_ms)

    def image(self) -> dict[str, Any]:
        """Returns everything but OWNED sessions of clients, which `restore` takes from the journal, as plain values.

        They are for the process that replaces the worker, and continues its clock.
        """
        owned = self.sessions.values()
        return {
            "plain": {name: to_plain(getattr(self, name)) for name in IMAGE_PLAIN},
            "offers": to_plain(self.offers.image()),
            "leaving": [to_plain(one) for one in self.leaving.values()],
            "exclusive": [to_plain(one) for one in owned if one.is_exclusive],
            "of_owned": [
                to_plain((one.key, one.peer, one.deadline_ms, one.wanted, one.is_routed, one.ask_ms))
                for one in owned if one.deadline_ms or one.wanted
            ],
        }

    def take_image(self, image: dict[str, Any]) -> None:
        """Continues where another process was, with OWNED sessions that are here already. Clients that wait for a session are not:
        their connections have ended. Raises KeyError, TypeError, ValueError."""
        for name in IMAGE_PLAIN:
            setattr(self, name, from_plain(image["plain"][name], RECORDS))
        self.offers.take_image(from_plain(image["offers"], RECORDS))
        self.leaving = Leaving()
        for plain in image["leaving"]:
            holding = from_plain(plain, RECORDS)
            self.leaving[holding.uid] = holding
            self._parts_kept += sum(map(len, holding.parts))
        for plain in image["exclusive"]:
            holding = from_plain(plain, RECORDS)
            self.sessions[holding.key] = holding
        for plain in image["of_owned"]:
            key, peer, deadline_ms, wanted, is_routed, ask_ms = from_plain(plain, RECORDS)
            owned = self.sessions.get(key)
            if owned is not None:
                owned.peer, owned.deadline_ms, owned.wanted = peer, deadline_ms, wanted
                owned.is_routed, owned.ask_ms = is_routed, ask_ms
                if deadline_ms:
                    self._held.append(owned)
        for claim in [*self._claims.values()]:
            if claim.ticket is not None and not claim.is_exclusive:
                self.abandoned(claim.key, claim.ticket)

    def set_links(self, linked: set[int], all_linked: bool, is_isolated: bool) -> None:
        """Takes the nodes whose signal link is connected. `all_linked`: no seed is missing."""
        for node in self._linked - linked:
            self._unlinked.setdefault(node, 0)
        for node in linked:
            self._unlinked.pop(node, None)
        self._linked, self._all_linked, self._is_isolated = linked | {self.node_id}, all_linked, is_isolated
        if not all_linked:
            self._linked_ms = None

    def set_view(
        self,
        members: Sequence[tuple[int, int]],
        digest: bytes,
        owners: Sequence[int],
        now_ms: int,
        is_new_run: bool = False,
    ) -> list[SessionOutput]:
        """Takes a change of the member set; to be called for each one, even if the next one takes it back. `is_new_run`: messages
        to the registrars may be missing since the last one."""
        changed: dict[int, set[int]] = {}
        known = () if is_new_run else self._owners
        for partition, node in enumerate(owners):
            is_moved = partition in self.partitions and (not known or known[partition] != node)
            if node != self.node_id and is_moved:
                changed.setdefault(node, set()).add(partition)
        self._members, self._digest, self._owners = {node for node, _ in members}, digest, owners
        self._reports.clear()              # their registrars ask again
        done: list[SessionOutput] = [ToNode(node, Moved(bitmap(partitions), self._first)) for node, partitions in changed.items()]
        for claim in [*self._claims.values()]:
            done += self._void(claim, now_ms)
            if is_new_run and claim.phase in (Phase.TAKING, Phase.IMPORTING):
                # TAKE and its answer may be lost.
                claim.again_ms, claim.due_ms, claim.until_ms = now_ms, now_ms + TAKE_MS, now_ms + TAKE_MS
        return done

    def _is_back_soon(self, node: int, now_ms: int) -> bool:
        """Returns whether the link of a node is gone, and has not been for long."""
        since_ms = self._unlinked.get(node)
        return since_ms is not None and now_ms - (since_ms or now_ms) < RELINK_MS

    def is_settled(self, now_ms: int) -> bool:
        """Returns whether all seeds have been linked for so long that all sessions are merged."""
        return self._linked_ms is not None and now_ms - self._linked_ms >= SETTLE_MS

    def _void(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        """Repeats a claim that was not granted before the member set changed."""
        return self._ask(claim, now_ms) if claim.phase == Phase.CLAIMING and not claim.is_provisional else []

    def _registrar(self, key: Key) -> int:
        return self._owners[key.partition] if self._owners else self.node_id

    # --- clients -------------------------------------------------------------------------------------------------------

    def subscribe_exclusive(self, key: Key, client_id: str, ticket: int, now_ms: int) -> list[SessionOutput]:
        """Claims an exclusive subscription that this node does not hold. The result is Create and Accepted, or Rejected: EXCLUSIVE
        while another client has it, else it is unknown."""
        if key in self.sessions or key in self._claims:
            return [Rejected(ticket, EXCLUSIVE)]
        claim = self._claims[key] = _Claim(key, client_id, False, ticket, now_ms, is_exclusive=True)
        return self._ask(claim, now_ms)

    def connect(self, key: Key, name: str, clean: bool, ticket: int, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes the CONNECT of an authenticated client; the result is Accepted or Rejected. An earlier client of the same id that
        still waits is rejected."""
        holding, claim = self.sessions.get(key), self._claims.get(key)
        if claim is not None:
            done: list[SessionOutput] = [] if claim.ticket is None else [Rejected(claim.ticket, TAKEN_OVER)]
            if clean and claim.phase != Phase.CLAIMING:
                return [*done, *self._refuse(claim, ticket)]
            claim.ticket, claim.clean = ticket, claim.clean or clean
            return done
        if holding is not None and not clean:
            holding.is_connected, holding.stamp = True, self.clock.now(clock_ms)
            return [Accepted(ticket, holding.uid, True)]
        claim = self._claims[key] = _Claim(key, name, clean, ticket, now_ms)
        if holding is not None:
            del self.sessions[key]
            claim.generation = holding.generation
            return [EndSession(holding.uid), *self._create(claim)]
        return self._ask(claim, now_ms)

    @staticmethod
    def _refuse(claim: _Claim, ticket: int) -> list[SessionOutput]:
        """Refuses a clean start that would end a session on its way to this node."""
        claim.ticket = None
        return [Rejected(ticket, BUSY_REASON)]

    def abandoned(self, key: Key, ticket: int) -> None:
        """Takes the end of a connection that waits. A granted claim is carried out nevertheless."""
        claim = self._claims.get(key)
        if claim is None or claim.ticket != ticket:
            return
        claim.ticket = None
        if claim.phase == Phase.CLAIMING:
            del self._claims[key]

    def disconnected(self, key: Key) -> None:
        """Takes the end of the connection of a session."""
        if (holding := self.sessions.get(key)) is not None:
            holding.is_connected = False

    def ended(self, key: Key) -> list[SessionOutput]:
        """Takes the end of a session that this node holds: by its client, or by expiry."""
        holding = self.sessions.pop(key, None)
        return [] if holding is None else [ToNode(self._registrar(key), Release(key, holding.generation))]

    # --- evacuation ----------------------------------------------------------------------------------------------------

    @property
    def offers_left(self) -> int:
        """Returns how many sessions may be offered now."""
        if len(self.leaving) >= LEAVING_MAX:
            return 0
        return OFFERS_MAX - len(self.offers) - sum(one.state != SessionState.GONE for one in self.leaving.values())

    def departing(self, now_ms: int) -> tuple[int, int]:
        """Returns how many sessions are on their way or not merged, and how many have moved and may have late messages."""
        moving = forwarding = 0
        for holding in self.leaving.values():
            if holding.state != SessionState.GONE:
                moving += 1
            elif now_ms - holding.gone_ms < LATE_MS or (holding.under_way is not None and not holding.is_whole):
                forwarding += 1
        return moving, forwarding

    def offer(self, key: Key, nodes: Collection[int] | None, now_ms: int) -> list[SessionOutput]:
        """Offers the session of an absent client to one of these nodes, or with None to any; to none while none takes it."""
        holding = self.sessions.get(key)
        if holding is None or holding.is_connected:
            return []
        peers = (self._members & self._linked) - {self.node_id}
        node = self.offers.make(key, peers if nodes is None else peers.intersection(nodes), now_ms)
        return [ToNode(node, Offer(key, holding.generation, holding.name))] if node else []

    def _on_offer(self, node: int, offer: Offer, now_ms: int) -> list[SessionOutput]:
        """Claims a session as for a client, unless this node has one or claims it."""
        key = offer.key
        if key in self.sessions or key in self._claims:
            return []
        if self.refuses_offers or self._is_isolated or len(self._claims) >= OFFERS_MAX:
            return [ToNode(node, Decline(key, offer.generation))]
        claim = self._claims[key] = _Claim(key, offer.name, False, None, now_ms, offered_by=node)
        return self._ask(claim, now_ms)

    @staticmethod
    def _is_offered(claim: _Claim) -> bool:
        """Returns whether a claim is for an offer alone: no client waits for the session."""
        return claim.offered_by > 0 and claim.ticket is None

    # --- claims --------------------------------------------------------------------------------------------------------

    def _ask(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        """Sends a claim, to the registrar or, if it is provisional, to the next node that may answer."""
        waited_ms = now_ms - claim.begun_ms
        is_late = self._is_isolated or waited_ms >= AGREE_MS
        if waited_ms < AGREE_MS + RELINK_MS and any(self._is_back_soon(node, now_ms) for node in self._unlinked):
            is_late = False                          # the registrar, or the holder, may be back in a moment
        if is_late and self._is_offered(claim):
            return self._end(claim, BUSY_REASON)     # the offer is repeated; nothing is won by a claim without agreement
        self._number += 1
        claim.number, claim.phase, claim.is_queued, claim.is_provisional = self._number, Phase.CLAIMING, False, is_late
        if claim.is_provisional:
            nodes = [node for node in rank((self._members & self._linked) | {self.node_id}, claim.key.partition)]
            left = [node for node in nodes if node not in claim.tried and node != self.node_id]
            claim.registrar = left[0] if left else self.node_id
        else:
            claim.registrar = self._registrar(claim.key)
        claim.tried.add(claim.registrar)
        claim.due_ms = now_ms + (AGREE_MS if claim.registrar in self._linked else TAKE_AGAIN_MS)
        claim.digest = self._digest
        return [ToNode(claim.registrar, Claim(claim.number, claim.key, self._digest, claim.is_provisional))]

    def _end(self, claim: _Claim, reason: int) -> list[SessionOutput]:
        """Ends a claim without a session."""
        del self._claims[claim.key]
        self.figures.ended(reason)
        done: list[SessionOutput] = [] if claim.ticket is None else [Rejected(claim.ticket, reason)]
        if claim.phase != Phase.CLAIMING:
            done.append(ToNode(claim.registrar, Done(claim.key, claim.generation, None, False)))
        return done

    def _on_grant(self, node: int, grant: Grant, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        claim = self._claims.get(grant.key)
        self.clock.witness(grant.generation, clock_ms)
        if claim is None or claim.number != grant.number or claim.phase != Phase.CLAIMING or claim.registrar != node:
            return [ToNode(node, Done(grant.key, grant.generation, None, False))]
        claim.generation, claim.holder = grant.generation, grant.holder
        claim.is_provisional = claim.is_provisional or grant.is_provisional
        claim.until_ms = now_ms + TAKE_MS
        return self._take(claim, now_ms)

    def _take(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        """Takes the session from its holder."""
        if self._is_offered(claim) and claim.holder != claim.offered_by:
            claim.phase = Phase.TAKING               # it was granted
            return self._end(claim, 0)               # it has moved since, or ended
        if claim.holder in (0, self.node_id):
            return self._create(claim)
        if claim.holder not in self._linked:
            return self._unreachable(claim, now_ms)
        claim.phase, claim.parts, claim.due_ms, claim.take_ms = Phase.TAKING, Parts(), now_ms + TAKE_MS, 0
        claim.again_ms = now_ms + TAKE_AGAIN_MS
        return [ToNode(claim.holder, Take(claim.key, claim.generation, claim.name, claim.clean))]

    def _unreachable(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        """Waits for a holder whose link has just been lost, before its session counts as lost."""
        is_young = now_ms - claim.begun_ms < CLAIM_MS
        if is_young and self._is_back_soon(claim.holder, now_ms) and not self._is_offered(claim):
            claim.phase, claim.due_ms = Phase.RELINKING, now_ms + RELINK_MS
            return []
        return self._lost(claim, now_ms)

    def _lost(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        """Applies `lost_session` to a client whose session is unreachable."""
        settings, is_late = self._settings(), claim.phase == Phase.LOST
        claim.phase = Phase.LOST
        if self._is_offered(claim):
            return self._end(claim, BUSY_REASON)
        if claim.is_exclusive:
            # A holder that is there and does not answer has it.
            return self._end(claim, BUSY_REASON) if claim.holder in self._linked else self._create(claim)
        if settings.lost_session == "refuse":
            return self._end(claim, UNAVAILABLE)
        if settings.lost_session == "wait" and not is_late:
            claim.due_ms = now_ms + settings.lost_wait_ms
            return []
        return self._create(claim)

    def _create(self, claim: _Claim) -> list[SessionOutput]:
        claim.phase = Phase.STORING
        # There may be another session of the key.
        is_alone = claim.is_provisional or (claim.holder and not claim.was_taken) or not self._all_linked
        base = self.clock.now(0) if is_alone else 0
        return [Create(claim.key, claim.name, claim.generation, base, claim.clean)]

    def created(self, key: Key, uid: int, clean_stamp: int, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes a session that was created into use. `clean_stamp`: of its journal record if it began clean, else 0."""
        done = self._own(key, uid, False, now_ms, clock_ms)
        self.sessions[key].clean_stamp = clean_stamp
        return done

    def imported(self, key: Key, uid: int, clean_stamp: int, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes a session that was imported into use; `clean_stamp` is a part of it."""
        claim = self._claims[key]
        claim.was_taken = True
        done: list[SessionOutput] = [ToNode(claim.holder, StateAck(key, claim.generation))]
        done += self._own(key, uid, True, now_ms, clock_ms)
        holding = self.sessions[key]
        holding.clean_stamp = clean_stamp
        holding.peer, holding.deadline_ms = claim.holder, now_ms + HOLD_MS
        self._held.append(holding)
        return done

    def import_failed(self, key: Key, now_ms: int) -> list[SessionOutput]:
        """Takes a session that cannot be imported: what its holder has sent is damaged, or of a later version."""
        claim = self._claims.get(key)
        return [] if claim is None or claim.phase != Phase.STORING else self._lost(claim, now_ms)

    def _own(self, key: Key, uid: int, present: bool, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        claim = self._claims.pop(key)
        self.figures.owned(now_ms - claim.begun_ms, claim.is_provisional, present)
        stamp = self.clock.now(clock_ms)
        if claim.is_exclusive:
            holding = exclusive_holding(key, uid, claim.name, claim.generation)
        else:
            holding = Holding(key, uid, claim.name, claim.generation, stamp, claim.ticket is not None)
        self.sessions[key] = holding
        done: list[SessionOutput] = [] if claim.ticket is None else [Accepted(claim.ticket, uid, present)]
        if claim.registrar:
            done.append(ToNode(claim.registrar, Done(key, claim.generation, holding.held, claim.was_taken)))
        if claim.is_provisional or claim.registrar != self._registrar(key):
            self._unsure[key] = 0
            done.append(ToNode(self._registrar(key), Announce(holding.held)))
        return done

    def routed(self, key: Key, now_ms: int) -> list[SessionOutput]:
        """Takes the moment at which all peers that are up have the routes of an imported session."""
        holding = self.sessions.get(key)
        if holding is None or not holding.deadline_ms:
            return []
        holding.is_routed = True
        return self._send_end(holding, now_ms)

    @staticmethod
    def _send_end(holding: Holding, now_ms: int) -> list[SessionOutput]:
        holding.ask_ms = now_ms + ASK_MS
        return [ToNode(holding.peer, End(holding.key, holding.generation))]

    def is_held(self, key: Key) -> bool:
        """Returns whether direct deliveries of a session are held."""
        holding = self.sessions.get(key)
        return holding is not None and holding.deadline_ms > 0

    @property
    def is_holding(self) -> bool:
        """Returns whether direct deliveries of any session are held."""
        return any(holding.deadline_ms for holding in self._held)

    # --- messages ------------------------------------------------------------------------------------------------------

    def received(self, node: int, message: object, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes a message of a node. Raises PeerFault."""
        match message:
            case Grant():
                return self._on_grant(node, message, now_ms, clock_ms)
            case Wait() | Retry() | Refuse():
                return self._on_answer(node, message, now_ms)
            case Take():
                return self._on_take(node, message, now_ms)
            case NoState():
                return self._on_no_state(node, message, now_ms)
            case Starting():
                return self._on_starting(node, message, now_ms)
            case Offer():
                return self._on_offer(node, message, now_ms)
            case Decline(key, _):
                self.offers.declined(key, node, now_ms)
            case State():
                return self._on_state(node, message, now_ms)
            case StateAck(key, generation):
                return self._on_state_ack(node, key, generation, now_ms)
            case End():
                return self._on_end(node, message, now_ms)
            case Ended(key, generation):
                return self._on_ended(node, key, generation)
            case Tail():
                return self._on_tail(node, message)
            case TailAck():
                return self._on_tail_ack(node, message, now_ms)
            case Revoke():
                return self._on_revoke(message, now_ms)
            case Rebuild():
                return self._on_rebuild(node, message)
            case Who():
                return self._on_who(node, message, now_ms)
            case Here():
                return self._on_here(node, message, now_ms)
            case Found():
                return self._on_found(message, now_ms)
        return []

    def _on_answer(self, node: int, message: Wait | Retry | Refuse, now_ms: int) -> list[SessionOutput]:
        claim = self._claims.get(message.key)
        if claim is None or (claim.number, claim.phase, claim.registrar) != (message.number, Phase.CLAIMING, node):
            return []
        match message:
            case Wait():
                claim.is_queued, claim.waited_ms = True, now_ms
            case Retry():
                claim.due_ms, claim.is_queued = now_ms + RETRY_MS, False
            case Refuse():
                return self._end(claim, BUSY_REASON)
        return []

    # --- the node of the client ----------------------------------------------------------------------------------------

    def _taking(self, node: int, key: Key, generation: int) -> _Claim | None:
        """Returns the claim that waits for a session of a node."""
        claim = self._claims.get(key)
        if claim is None or claim.phase not in (Phase.TAKING, Phase.IMPORTING):
            return None
        return claim if (claim.holder, claim.generation) == (node, generation) else None

    def _on_no_state(self, node: int, message: NoState, now_ms: int) -> list[SessionOutput]:
        claim = self._taking(node, message.key, message.generation)
        if claim is None:
            return []
        match message.fault:
            case TakeFault.ABSENT:
                claim.was_taken = True
                return self._end(claim, 0) if self._is_offered(claim) else self._create(claim)
            case TakeFault.STALE:
                return self._end(claim, TAKEN_OVER)
            case TakeFault.HELD:
                return self._end(claim, EXCLUSIVE)
            case TakeFault.BUSY if now_ms < claim.until_ms:
                claim.take_ms = now_ms + BUSY_MS
                return []
        return self._lost(claim, now_ms)

    def _on_starting(self, node: int, starting: Starting, now_ms: int) -> list[SessionOutput]:
        """Waits for a worker of the holder that is being started."""
        claim = self._taking(node, starting.key, starting.number)
        if claim is None:
            return []
        claim.phase = Phase.TAKING
        claim.starting_ms = claim.starting_ms or now_ms + STARTING_MS
        if now_ms >= claim.starting_ms or self._is_offered(claim):
            return self._lost(claim, now_ms)
        claim.take_ms = now_ms + BUSY_MS
        claim.due_ms = claim.until_ms = now_ms + TAKE_MS
        return []

    def _on_state(self, node: int, state: State, now_ms: int) -> list[SessionOutput]:
        claim = self._taking(node, state.key, state.generation)
        if claim is None:
            return []
        if state.number == 1:
            claim.parts = Parts()                # the first ones, or all of them once more
        if not claim.parts.add(state):
            if now_ms - claim.begun_ms >= CLAIM_MS:
                return self._lost(claim, now_ms)
            claim.phase, claim.parts, claim.due_ms, claim.again_ms = Phase.TAKING, Parts(), now_ms + TAKE_MS, now_ms
            return []
        claim.phase, claim.due_ms, claim.again_ms = Phase.IMPORTING, now_ms + TAKE_MS, now_ms + STALLED_MS
        if not state.is_last:
            return []
        claim.phase = Phase.STORING
        return [Import(claim.key, claim.name, claim.generation, tuple(claim.parts.bodies))]

    def _on_ended(self, node: int, key: Key, generation: int) -> list[SessionOutput]:
        holding = self.sessions.get(key)
        if holding is None or (holding.peer, holding.generation) != (node, generation) or not holding.deadline_ms:
            return []
        holding.deadline_ms = 0
        return [Flow(holding.uid)]

    def _on_tail(self, node: int, tail: Tail) -> list[SessionOutput]:
        holding = self.sessions.get(tail.key)
        if holding is None:
            # While it is being stored, the sender repeats it.
            return [] if tail.key in self._claims else [ToNode(node, self._not_holder(node, tail))]
        if tail.is_stale and (answer := self._not_holder(node, tail)).is_merged:
            return [ToNode(node, answer)]
        # What was published before a clean start is void, unless the queue has begun with it.
        floor = id_floor(holding.clean_stamp) if tail.clean_stamp < holding.clean_stamp else 0
        return [Merge(holding.uid, node, tail._replace(queued=tuple(one for one in tail.queued if one.id > floor)))]

    def _not_holder(self, node: int, tail: Tail) -> TailAck:
        """Returns the answer to a TAIL that is not for the session at this node."""
        former = self._leaving(tail.key, SessionState.MOVING, SessionState.GONE, SessionState.STALE)
        return TailAck(tail.key, tail.number, tail.uid, False, any((node, tail.uid) in one.merged for one in former))

    def merged(self, node: int, tail: Tail) -> list[SessionOutput]:
        """Takes the end of a merge: the messages are in the journal."""
        self.figures.merges["kept"] += tail.is_last
        if tail.is_last and (holding := self.sessions.get(tail.key)) is not None:
            holding.merged |= {(node, tail.uid)}
        return [ToNode(node, TailAck(tail.key, tail.number, tail.uid, True))]

    # --- the holder ----------------------------------------------------------------------------------------------------

    def _leaving(self, key: Key, *states: SessionState) -> Iterator[Holding]:
        return (one for one in self.leaving.of(key) if one.state in states)

    def _on_take(self, node: int, take: Take, now_ms: int) -> list[SessionOutput]:
        key, generation = take.key, take.generation
        holding = self.sessions.get(key)
        if holding is not None and holding.is_exclusive:
            return self._on_take_exclusive(node, take, holding)
        if holding is None or holding.name != take.name:
            fault = TakeFault.ABSENT
            for moving in self._leaving(key, SessionState.MOVING):
                if moving.peer == node and moving.granted >= generation:
                    return self._send_again(moving, now_ms) if moving.granted == generation else []
                moving.deadline_ms, fault = now_ms, TakeFault.BUSY
                moving.wanted = max(moving.wanted, generation)
            given = self._leaving(key, SessionState.MOVING, SessionState.GONE)
            if any(generation < max(one.granted, one.generation) for one in given):
                # Another node was granted it later, and this TAKE was late.
                fault = TakeFault.STALE
            elif (claim := self._claims.get(key)) is not None and claim.phase == Phase.STORING:
                fault = TakeFault.BUSY
            return [ToNode(node, NoState(key, generation, fault))]
        if generation <= holding.generation or generation < holding.wanted:
            return [ToNode(node, NoState(key, generation, TakeFault.STALE))]
        if holding.deadline_ms and not take.clean:
            # Its next node would send at once what is held here.
            holding.wanted = generation
            return [ToNode(node, Starting(generation, key))]
        del self.sessions[key]
        self.offers.taken(key)
        if take.clean:
            return [EndSession(holding.uid), ToNode(node, NoState(key, generation, TakeFault.ABSENT))]
        holding.state, holding.peer, holding.granted = SessionState.MOVING, node, generation
        holding.is_connected, holding.deadline_ms, holding.ask_ms, holding.sent_ms = False, now_ms + ACK_MS, 0, now_ms
        self.leaving[holding.uid] = holding
        return [Export(holding.uid, generation)]

    def _on_take_exclusive(self, node: int, take: Take, holding: Holding) -> list[SessionOutput]:
        """Gives an exclusive subscription to its client, whose session is at the other node by now, and to no other one."""
        fault = TakeFault.HELD
        if take.name == holding.name:
            fault = TakeFault.STALE if take.generation <= holding.generation else TakeFault.ABSENT
        answer = ToNode(node, NoState(take.key, take.generation, fault))
        if fault != TakeFault.ABSENT:
            return [answer]
        del self.sessions[take.key]
        return [EndSession(holding.uid), answer]

    def exported(self, uid: int, generation: int, parts: Sequence[bytes]) -> list[SessionOutput]:
        """Sends a session of which the driver has made the parts."""
        holding = self.leaving.get(uid)
        if holding is None or (holding.state, holding.granted) != (SessionState.MOVING, generation):
            return []
        size = sum(map(len, parts))
        if self._parts_kept + size <= PARTS_KEPT_MAX:
            holding.parts = (*parts,)
            self._parts_kept += size
        return self._states(holding, parts)

    @staticmethod
    def _states(holding: Holding, parts: Sequence[bytes]) -> list[SessionOutput]:
        last = len(parts)
        states = (State(holding.key, holding.granted, number, part, number == last) for number, part in enumerate(parts, 1))
        return [ToNode(holding.peer, state) for state in states]

    def _send_again(self, holding: Holding, now_ms: int) -> list[SessionOutput]:
        """Sends a session again whose TAKE is repeated: its parts may be lost."""
        if now_ms - holding.sent_ms < TAKE_AGAIN_MS:
            return []
        holding.sent_ms = now_ms
        return self._states(holding, holding.parts)

    def _drop_parts(self, holding: Holding) -> None:
        """To be called when a session is no longer MOVING."""
        self._parts_kept -= sum(map(len, holding.parts))
        holding.parts = ()

    def not_exported(self, uid: int, generation: int, fault: TakeFault, now_ms: int) -> list[SessionOutput]:
        """Takes a session that cannot be exported: it has ended with its connection (ABSENT), or stays here (TOO_LARGE)."""
        holding = self.leaving.get(uid)
        if holding is None or (holding.state, holding.granted) != (SessionState.MOVING, generation):
            return []
        answer = ToNode(holding.peer, NoState(holding.key, generation, fault))
        if fault != TakeFault.ABSENT:
            if fault == TakeFault.TOO_LARGE:
                self.offers.too_large.add(holding.key)
            return [*self._return(holding, now_ms), answer]
        del self.leaving[uid]
        return [answer]

    def vanished(self, uid: int) -> None:
        """Takes the end of a session that is STALE: it has ended with its connection, and nothing of it is merged."""
        self.leaving.discard(uid)

    def _on_state_ack(self, node: int, key: Key, generation: int, now_ms: int) -> list[SessionOutput]:
        for holding in self._leaving(key, SessionState.MOVING):
            if (holding.peer, holding.granted) == (node, generation):
                holding.generation = generation
                return self._gone(holding, now_ms)
        return []

    def _gone(self, holding: Holding, now_ms: int) -> list[SessionOutput]:
        self._drop_parts(holding)
        holding.state, holding.deadline_ms, holding.ask_ms = SessionState.GONE, now_ms + FORWARD_MS, 0
        holding.gone_ms = now_ms
        holding.is_last_sent, holding.end_ms, holding.is_answer, holding.is_ended, holding.heir = False, 0, False, False, 0
        return [MovedAway(holding.uid), *self._absorb(holding.key, holding)]

    def _absorb(self, key: Key, but: Holding | None = None) -> list[SessionOutput]:
        """Ends earlier sessions of a client that have moved from here and have nothing to send: the latest one takes what they
        would take. Without it a client that changes its node all the time has each message queued once for each change. `but`: one
        that the driver does not know as GONE yet."""
        gone = [one for one in self._leaving(key, SessionState.GONE) if not one.was_stale]
        if len(gone) < 2:
            return []
        latest = max(gone, key=lambda one: one.generation)
        done: list[SessionOutput] = []
        for one in gone:
            if one is latest or one is but or one.merged or one.under_way is not None or self._queues.queued(one.uid, 1):
                continue
            del self.leaving[one.uid]
            done.append(Absorb(one.uid, latest.uid))
        return done

    def _stale(self, holding: Holding, winner: int, now_ms: int) -> list[SessionOutput]:
        self._drop_parts(holding)
        holding.state, holding.peer, holding.is_connected, holding.ask_ms = SessionState.STALE, winner, False, 0
        holding.was_stale = True
        holding.tail, holding.is_last_sent, holding.heir = 0, False, 0
        self.leaving[holding.uid] = holding
        self.figures.merges["given_up"] += 1
        return [Kick(holding.uid), *self._tail(holding, now_ms)]

    def _return(self, holding: Holding, now_ms: int) -> list[SessionOutput]:
        """Serves a session again that no other node has."""
        if holding.key in self.sessions:
            return self._stale(holding, self.node_id, now_ms)
        claim = self._claims.get(holding.key)
        if claim is not None and claim.phase == Phase.STORING:
            return self._stale(holding, self.node_id, now_ms)
        self._drop_parts(holding)
        del self.leaving[holding.uid]
        holding.state, holding.peer, holding.deadline_ms, holding.tail = SessionState.OWNED, 0, 0, 0
        self.sessions[holding.key] = holding
        done: list[SessionOutput] = [Restore(holding.uid)]
        if claim is not None:
            holding.is_connected = claim.ticket is not None
            holding.stamp = self.clock.now(0)
            done += [] if claim.ticket is None else [Accepted(claim.ticket, holding.uid, True)]
            claim.ticket = None
            done += self._end(claim, 0)
        self._unsure[holding.key] = 0
        return [*done, ToNode(self._registrar(holding.key), Announce(holding.held))]

    def _on_revoke(self, revoke: Revoke, now_ms: int) -> list[SessionOutput]:
        holding = self.sessions.get(revoke.key)
        if holding is None or holding.generation > revoke.generation or revoke.winner == self.node_id:
            return []
        del self.sessions[revoke.key]
        if holding.is_exclusive:
            return [EndSession(holding.uid)]
        return self._stale(holding, revoke.winner, now_ms)

    def _on_here(self, node: int, here: Here, now_ms: int) -> list[SessionOutput]:
        """Takes the answer to the question whether the new node has the session. What it has is enough to give up the right."""
        for holding in self._leaving(here.key, SessionState.MOVING):
            if (holding.peer, holding.granted) == (node, here.ends):
                return self._return(holding, now_ms) if here.held is None else self._stale(holding, node, now_ms)
        return []

    # --- tails ---------------------------------------------------------------------------------------------------------

    def arrived(self, uid: int, now_ms: int) -> list[SessionOutput]:
        """Takes a change of the queue of a session that is GONE or STALE."""
        holding = self.leaving.get(uid)
        if holding is None or holding.state == SessionState.MOVING:
            return []
        holding.idle_ms = 0
        return self._tail(holding, now_ms)

    def _on_end(self, node: int, end: End, now_ms: int) -> list[SessionOutput]:
        for holding in self._leaving(end.key, SessionState.GONE):
            if (holding.peer, holding.generation) == (node, end.generation):
                holding.end_ms, holding.idle_ms = holding.end_ms or now_ms + DRAIN_MS, 0
                return self._tail(holding, now_ms)
        return [ToNode(node, Ended(end.key, end.generation))]

    def _tail(self, holding: Holding, now_ms: int) -> list[SessionOutput]:
        """Sends the first messages of a queue to the holder, or looks for the holder."""
        if now_ms < holding.ask_ms:
            return []
        queued = self._queues.queued(holding.uid, TAIL_MESSAGES)
        if holding.key in self.sessions:
            holding.peer = self.node_id
        is_stale = holding.state == SessionState.STALE
        is_due = 0 < holding.end_ms <= now_ms
        if is_due and self.lags():
            holding.end_ms, is_due = now_ms + DRAIN_MS, False
        if not queued and not is_stale:
            holding.tail, holding.sent, holding.under_way = 0, (), None
            return self._answer_end(holding) if is_due else []
        holding.ask_ms = now_ms + ASK_MS
        if holding.heir not in self._linked and self.is_settled(now_ms):
            holding.heir = 0               # it is a member no longer
        holding.peer = holding.heir or holding.peer
        if holding.peer not in self._linked:
            # Unknown, or it may have moved on.
            return [] if holding.heir else [ToNode(self._registrar(holding.key), Find(holding.key))]
        if holding.tail and holding.under_way is not None and holding.under_way.node_id == holding.peer:
            return [holding.under_way]
        self._number += 1
        holding.tail, holding.sent = self._number, _within(queued, TAIL_BYTES)
        tail = Tail(holding.key, holding.tail, holding.clean_stamp, holding.sent, holding.uid, is_stale)
        holding.is_whole = len(holding.sent) == len(queued) < TAIL_MESSAGES
        holding.is_answer = is_due and holding.is_whole
        holding.is_last_sent = is_stale and holding.is_whole
        if holding.is_last_sent:
            base, delivered = self._queues.delivered_of(holding.uid)
            tail = tail._replace(is_last=True, base=base, delivered=tuple(delivered))
        done: list[SessionOutput] = []
        if holding.is_last_sent and holding.heir != holding.peer:
            holding.heir = holding.peer
            done = [Bind(holding.uid, holding.heir)]
        holding.under_way = ToNode(holding.peer, tail)
        return [*done, holding.under_way]

    @staticmethod
    def _answer_end(holding: Holding) -> list[SessionOutput]:
        holding.end_ms, holding.is_ended = 0, True
        return [ToNode(holding.peer, Ended(holding.key, holding.generation))]

    def _on_tail_ack(self, node: int, ack: TailAck, now_ms: int) -> list[SessionOutput]:
        holding = self.leaving.get(ack.uid)
        if holding is None or (holding.peer, holding.tail) != (node, ack.number):
            return []
        holding.tail, holding.under_way = 0, None
        if not ack.is_holder:
            # What was merged by a session that has left the node follows it as the tail of a session that is gone.
            is_merged = ack.is_merged and holding.state == SessionState.STALE
            gone = self._gone(holding, now_ms) if is_merged else []
            holding.peer, holding.heir, holding.ask_ms = 0, 0, now_ms + ASK_MS
            return [*gone, ToNode(self._registrar(holding.key), Find(holding.key, node))]
        done: list[SessionOutput] = [Taken(holding.uid, tuple(message.id for message in holding.sent))]
        if holding.is_answer and holding.end_ms:
            done += self._answer_end(holding)
        holding.ask_ms = now_ms + BATCH_MS if holding.is_ended and holding.is_whole else 0
        # What has arrived meanwhile follows as the tail of a session that is gone.
        return [*done, *self._gone(holding, now_ms)] if holding.is_last_sent else done

    def _on_found(self, found: Found, now_ms: int) -> list[SessionOutput]:
        done: list[SessionOutput] = []
        for holding in self._leaving(found.key, SessionState.GONE, SessionState.STALE):
            if holding.heir:
                continue
            if found.node in (0, self.node_id) and found.key not in self.sessions:
                if holding.state == SessionState.STALE:
                    done += self._return_stale(holding, found.node, now_ms)
                elif not found.node and self.is_settled(now_ms):
                    # The session has ended.
                    del self.leaving[holding.uid]
                    done.append(Forget(holding.uid))
            elif found.node and found.node != holding.peer:
                holding.peer, holding.ask_ms = found.node, 0
                done += self._tail(holding, now_ms)
        return done

    def _return_stale(self, holding: Holding, holder: int, now_ms: int) -> list[SessionOutput]:
        """Serves a stale session again, unless what the registrar knows is a later session of this node, which has moved since."""
        moved = self._leaving(holding.key, SessionState.MOVING, SessionState.GONE)
        later = {one.state for one in moved if one.generation > holding.generation}
        if SessionState.MOVING in later:
            return []
        if holder and later:
            return [ToNode(self._registrar(holding.key), Find(holding.key, self.node_id))]
        return self._return(holding, now_ms)

    # --- questions of registrars ---------------------------------------------------------------------------------------

    def _storing(self, claim: _Claim) -> Held:
        return Held(claim.key, claim.generation, self.clock.last, claim.ticket is not None, True)

    def _on_rebuild(self, node: int, rebuild: Rebuild) -> list[SessionOutput]:
        """Begins to report sessions. One that is asked for again meanwhile goes on: its registrar takes a late answer."""
        wanted = partitions_of(rebuild.partitions) & self.partitions
        if rebuild.digest != self._digest or not wanted or len(self._reports) >= REPORTS_MAX:
            return []
        if any(one.node == node and wanted <= one.wanted for one in self._reports):
            return []
        self._reports.append(_Report(node, rebuild.number, wanted, bitmap(wanted)))
        return self.report() if len(self._reports) == 1 else []

    @property
    def reports(self) -> bool:
        """Returns whether `report` has more to say."""
        return bool(self._reports)

    def report(self) -> list[SessionOutput]:
        """Returns the next part of an answer to REBUILD.

        Each part has the sessions as they are at its moment, in order with all else that is sent. A session that began behind the
        first part was granted, or is announced, as one that began behind the whole answer.
        """
        if not self._reports:
            return []
        report = self._reports[0]
        if report.keys is None:
            moving = {one.key for one in self.leaving.values() if one.state == SessionState.MOVING}
            others = [key for key in moving | self._claims.keys() if key not in self.sessions]
            report.keys = [*self.sessions, *others]
        held: list[Held] = []
        for key in report.keys[report.next : report.next + self.looked_at]:
            report.next += 1
            if key.partition in report.wanted and (one := self._reported(key)) is not None:
                held.append(one)
                if len(held) == SESSIONS_HELD:
                    break
        is_last = report.next >= len(report.keys)
        if is_last:
            self._reports.popleft()
        report.part += 1
        return [ToNode(report.node, Sessions(report.number, report.part, report.partitions, tuple(held), is_last))]

    def _reported(self, key: Key) -> Held | None:
        """Returns the session of a key that this node has: a newer one takes the place of one on its way to another node."""
        if (holding := self.sessions.get(key)) is not None:
            return holding.held
        claim = self._claims.get(key)
        if claim is not None and claim.phase == Phase.STORING:
            return self._storing(claim)
        moving = max(self._leaving(key, SessionState.MOVING), key=lambda one: one.generation, default=None)
        return None if moving is None else moving.held

    def _on_who(self, node: int, who: Who, now_ms: int) -> list[SessionOutput]:
        if who.digest and who.digest != self._digest:
            return []
        held: Held | None = None
        claim = self._claims.get(who.key)
        if (holding := self.sessions.get(who.key)) is not None:
            held = holding.held
        elif claim is not None and claim.phase == Phase.STORING:
            held = self._storing(claim)
        else:
            states = (SessionState.MOVING, SessionState.GONE, SessionState.STALE) if who.ends else (SessionState.MOVING,)
            held = next((one.held for one in self._leaving(who.key, *states) if one.generation >= who.ends), None)
        done: list[SessionOutput] = [ToNode(node, Here(who.number, who.key, held, who.ends))]
        if held is None and claim is not None and who.ends == claim.generation and claim.phase in (Phase.TAKING, Phase.IMPORTING):
            # The holder serves the session again, so it is claimed again.
            done.append(ToNode(claim.registrar, Done(claim.key, claim.generation, None, False)))
            done += self._ask(claim, now_ms)
        return done

    # --- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[SessionOutput]:
        """Does what is due by the clock; to be called every 50 ms or so."""
        if self._all_linked and self._linked_ms is None:
            self._linked_ms = now_ms
        self._unlinked = {node: since_ms or now_ms for node, since_ms in self._unlinked.items()}
        done: list[SessionOutput] = []
        for claim in [*self._claims.values()]:
            done += self._tick_claim(claim, now_ms)
        for holding in [one for one in self.leaving.values() if one.idle_ms <= now_ms]:
            done += self._tick_leaving(holding, now_ms)
        done += self._announce(now_ms)
        done += self.report()
        self.offers.tick(self.sessions, now_ms)
        self._held = [one for one in self._held if self.sessions.get(one.key) is one and one.deadline_ms]
        for holding in self._held:
            if now_ms >= holding.deadline_ms:
                holding.deadline_ms = 0
                done.append(Flow(holding.uid))
            elif holding.is_routed and now_ms >= holding.ask_ms:
                done += self._send_end(holding, now_ms)        # it, or its answer, was lost with a link process
        return done

    def _announce(self, now_ms: int) -> list[SessionOutput]:
        """Repeats ANNOUNCE for what was granted without agreement, until all seeds have been linked for some time."""
        done: list[SessionOutput] = []
        for key, due_ms in [*self._unsure.items()]:
            holding = self.sessions.get(key)
            if holding is None or (due_ms and self.is_settled(now_ms)):
                del self._unsure[key]
            elif now_ms >= due_ms:
                self._unsure[key] = now_ms + ANNOUNCE_MS
                done.append(ToNode(self._registrar(key), Announce(holding.held)))
        return done

    def _tick_claim(self, claim: _Claim, now_ms: int) -> list[SessionOutput]:
        match claim.phase:
            case Phase.CLAIMING:
                since_ms = min(max(claim.begun_ms, claim.waited_ms), claim.begun_ms + STARTING_MS)
                if now_ms - since_ms >= CLAIM_MS:
                    return self._end(claim, BUSY_REASON)
                if claim.is_queued:
                    is_gone = claim.registrar not in self._linked
                    return self._ask(claim, now_ms) if is_gone else []
                return self._ask(claim, now_ms) if now_ms >= claim.due_ms else []
            case Phase.LOST | Phase.RELINKING:
                if claim.holder in self._linked:
                    claim.until_ms = now_ms + TAKE_MS
                    return self._take(claim, now_ms)
                return self._lost(claim, now_ms) if now_ms >= claim.due_ms else []
            case Phase.TAKING | Phase.IMPORTING:
                if claim.holder not in self._linked:
                    return self._unreachable(claim, now_ms)
                if now_ms >= claim.due_ms:
                    return self._lost(claim, now_ms)
                if claim.take_ms and now_ms >= claim.take_ms:
                    return self._take(claim, now_ms)
                if not claim.take_ms and now_ms >= claim.again_ms:
                    claim.again_ms = now_ms + (TAKE_AGAIN_MS if claim.phase == Phase.TAKING else STALLED_MS)
                    return [ToNode(claim.holder, Take(claim.key, claim.generation, claim.name, claim.clean))]
        return []

    def _tick_leaving(self, holding: Holding, now_ms: int) -> list[SessionOutput]:
        match holding.state:
            case SessionState.MOVING:
                if now_ms >= max(holding.deadline_ms, holding.ask_ms):
                    if holding.peer not in self._linked:
                        return self._return(holding, now_ms)
                    holding.ask_ms = now_ms + ASK_MS
                    return [ToNode(holding.peer, Who(holding.uid, holding.key, b"", holding.granted))]
                return []
            case SessionState.GONE:
                if not self._all_linked:
                    holding.deadline_ms = max(holding.deadline_ms, now_ms + FORWARD_MS)
                if now_ms >= holding.deadline_ms and not self._queues.queued(holding.uid, 1):
                    del self.leaving[holding.uid]
                    return [Forget(holding.uid)]
                done = self._tail(holding, now_ms)
                if not done and not holding.sent and not holding.end_ms and now_ms >= holding.ask_ms:
                    holding.idle_ms = now_ms + IDLE_MS
                    done = self._absorb(holding.key)
                return done
        return self._tail(holding, now_ms)
