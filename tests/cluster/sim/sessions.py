"""Sessions that move: clients which connect at any node, with or without clean start, while nodes die and links are cut.

A session's queue and state are in the journal of its worker, in the same blocks as the positions of streams. Packets between client
and node are not simulated: a delivery to a client is one step, journaled and synced. A client without its newest connection takes
nothing, so what is delivered to an old connection stays in the queue.

Invariants at every step: at most one session of a client id is owned by nodes that got it under one member set; a session has MOVED
only once another node has it in its journal; grants of a key are in the order of its claims while the member set is the same, and
each names the holder that the last one made. A CONNECT at a node that goes on is answered within `CONNECT_MS`. At the end, healed:
one session per client id within 5 s of the links, nothing stale, and after all clients have connected once more each acknowledged
message has reached every client whose session had a route, QoS 2 once.
"""

import pickle
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from shardbroker.cluster.claims import ClaimSettings, Holding, SessionState
from shardbroker.cluster.clock import HybridClock, stamp_of
from shardbroker.cluster.handshake import cluster_uuid
from shardbroker.cluster.merge import Passed, SeenIds, append, id_floor
from shardbroker.cluster.messages import Key, Queued, Route, Tail
from shardbroker.cluster.outbound import Level
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
    Send,
    Taken,
    ToNode,
)
from shardbroker.cluster.registry import client_key
from shardbroker.cluster.sessions import NodeSessions
from tests.cluster.sim.cluster import Cluster
from tests.cluster.sim.network import End
from tests.cluster.sim.node import SIGNALS, WORKERS, Message, Node

__all__ = ["RoamingCluster", "RoamingNode"]

CLIENTS = 8
ROAM_TOPICS = 4
CONNECT_MS = 6_000
AGREED_MS = 5_000
"""From the moment at which all nodes have the same member set to one session per id."""
STORE_US = 3_000
PARTS_MAX = 3
ID_BITS, ORIGIN_BITS, SEQUENCE_BITS = 64, 48, 16
LOOKED_AT = 4000, 1, 3
"""Sessions that a node looks at for a part of its answer to REBUILD."""
COPY = "~"
"""Begins the names of sessions that move, in the journal."""


class Stamped(NamedTuple):
    """A frame with the stamp of its sender."""

    stamp: int
    message: Any


@dataclass
class Copy:
    """The session of a client at one node."""

    uid: int
    client: str
    key: Key
    topic: bytes
    worker: int
    generation: int
    seen: SeenIds
    clean_stamp: int = 0
    queue: dict[int, int] = field(default_factory=dict)
    """Id of each message to its number."""
    state: SessionState = SessionState.OWNED
    given: set[int] = field(default_factory=set)
    """MOVING: ids in STATE."""
    stamp: int = 0
    owned_us: int = 0
    """Since when its node owns it, in this life of the node."""
    lineage: int = 0
    """Number of the session. An import is a new one until its origin has MOVED, since the origin may be served again."""
    parent: int = 0
    heir: int = 0
    merged: frozenset[tuple[int, int]] = frozenset()
    voids: int = 0
    """`Client.voids` when it began."""
    digest: bytes | None = None
    """Member set of the grant by which it is owned; None: provisional, restored, or its holder was lost."""


@dataclass
class Client:
    """A client: its newest connection, and what it got."""

    name: str
    topic: bytes
    key: Key
    node: "RoamingNode | None" = None
    ticket: int = 0
    is_connected: bool = False
    window: int = 0
    """Messages that it takes at a time; 0: any number."""
    since_ms: int = 0
    clean: bool = False
    received: dict[int, list[int]] = field(default_factory=dict)
    """Messages to the lineages of the sessions from which it got them."""
    voids: int = 0
    """Clean starts, each of which voids the sessions before it."""
    void_before: int = 0
    """Messages below this number need not reach it: its session was ended."""
    void_ids: int = 0
    """Likewise ids up to this one, if the last clean start was beside another session: which of two sessions on two sides of a
    split was there first is known by their clocks only."""


@dataclass
class Granted:
    """A claim that has made its node the owner under an agreed member set."""

    asked_us: int
    done_us: int
    generation: int
    holder: int
    digest: bytes
    era: int


class RoamingNode(Node):
    """A node with sessions that move."""

    cluster: "RoamingCluster"

    def __init__(self, cluster: "RoamingCluster", index: int) -> None:
        self.clock = HybridClock()
        self.copies: dict[int, Copy] = {}
        self.next_uid = 1
        self.run = 1
        """Of the view: number of the link process."""
        super().__init__(cluster, index)

    # --- life ----------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        super().recover()
        self.copies = {}
        # As in a worker: its clock is that of its start and the monotonic one, and it draws a number.
        self.id_offset_ms, self.id_process, self.id_sequence = self.skew_ms, self.rng.getrandbits(32), 0
        self.passed = [Passed() for _ in range(WORKERS)]
        self.routed: list[tuple[Key, int]] = []
        self.view_us = 0
        for journal in self.journals:
            for _, _, deliveries, _ in journal.records:
                for name, value in deliveries:
                    if name.startswith(COPY):
                        self.replay(name, value)
        self.core = self.make_core()
        for copy in self.copies.values():
            copy.owned_us = self.cluster.events.now_us
            state = copy.state = SessionState.OWNED if copy.state == SessionState.MOVING else copy.state
            holding = Holding(copy.key, copy.uid, copy.client, copy.generation, copy.stamp, state=state)
            holding.clean_stamp, holding.heir, holding.merged = copy.clean_stamp, copy.heir, copy.merged
            if state == SessionState.OWNED and copy.key in self.core.claims.sessions:
                # A crash between an import and the end of a stale session: the older one is stale again.
                first = self.core.claims.sessions[copy.key]
                older, newer = sorted((first, holding), key=lambda one: one.generation)
                self.core.claims.sessions[copy.key] = newer
                older.state, self.copies[older.uid].state, older.peer = SessionState.STALE, SessionState.STALE, self.node_id
                self.core.claims.leaving[older.uid] = older
                continue
            self.core.claims.restore(holding, self.cluster.events.now_ms)
        self.next_uid = max(self.copies, default=0) + 1000

    def claim_settings(self) -> ClaimSettings:
        return ClaimSettings(self.cluster.lost_session, 3_000)

    def make_core(self) -> Any:
        """Returns the cores of sessions: those of one worker for all."""
        core = NodeSessions(self.node_id, self, self.clock, self.claim_settings)
        core.claims.looked_at = LOOKED_AT[self.node_id % len(LOOKED_AT)]
        return core

    def start_signals(self) -> None:
        self.log.update([Route(topic) for topic in sorted({copy.topic for copy in self.copies.values()})])
        super().start_signals()
        self.run += 1

    def replay(self, name: str, value: Any) -> None:
        """Takes a record of the journal."""
        if isinstance(value, int):
            copy = self.copies.get(int(name[1:]))
            if copy is not None and value not in copy.queue.values():
                message_id = self.cluster.ids[value]
                copy.seen.add(message_id)
                copy.queue[message_id] = value
            if copy is not None:
                self.passed[copy.worker].note(self.cluster.ids[value])
            return
        match value:
            case ("create", state):
                copy = pickle.loads(state)
                self.copies[copy.uid] = copy
            case ("removed", uid, ids):
                for message_id in ids:
                    self.copies[uid].queue.pop(message_id, None)
            case ("taken", uid, ids):
                self.hand_over(self.copies[uid], ids)
            case ("merged", uid, node_id, tail, is_settled, lineage):
                self.append(self.copies[uid], node_id, tail, is_settled)
                self.copies[uid].lineage = lineage
            case ("gone", uid, generation):
                self.copies[uid].state, self.copies[uid].generation = SessionState.GONE, generation
            case ("stamp", uid, stamp):
                self.copies[uid].stamp = stamp
            case ("stale", uid):
                self.copies[uid].state, self.copies[uid].heir = SessionState.STALE, 0
            case ("bound", uid, node_id):
                self.copies[uid].heir = node_id
            case ("absorbed", uid, passed):
                self.copies[uid].seen.passed = Passed(passed)
            case ("restored", uid):
                self.copies[uid].state = SessionState.OWNED
            case ("end", uid):
                self.copies.pop(uid, None)

    def write(self, copy: Copy, *record: Any, then: Callable[[], None] | None = None) -> None:
        """Writes a record about a session, and syncs it; `then` is called before the node may crash."""
        self.step()
        journal = self.journals[copy.worker]
        journal.append((None, None, [(f"{COPY}{copy.uid}", record)], {}))
        journal.sync()
        if then is not None:
            then()
        self.step()

    def kill(self, power_cut: bool = False) -> None:
        super().kill(power_cut)
        for client in self.cluster.clients.values():
            if client.node is self:
                self.cluster.cut_off(client)

    def kill_link(self, channel: int) -> None:
        super().kill_link(channel)
        if channel == SIGNALS:
            self.execute([])

    def delivered(self) -> dict[str, list[int]]:
        return {name: numbers for name, numbers in super().delivered().items() if not name.startswith(COPY)}

    # --- network -------------------------------------------------------------------------------------------------------

    def stamped(self, message: Any) -> Any:
        return Stamped(self.clock.now(self.clock_ms()), message)

    def _received(self, end: End, message: Any) -> None:
        if isinstance(message, Stamped):
            self.clock.witness(message.stamp, self.clock_ms())
            message = message.message
        super()._received(end, message)

    def execute(self, outputs: Any) -> None:
        super().execute(outputs)
        seen, view = self.core._seen, self.signals.view.sessions()._replace(run=self.run)
        self.perform(self.core.follow(view, self.cluster.events.now_ms, self.clock_ms()))
        if seen != self.core._seen:
            self.cluster.era += 1
            self.view_us = self.cluster.events.now_us

    def arrived(self, node_id: int, message: Any) -> None:
        self.perform(self.core.received(node_id, message, self.cluster.events.now_ms, self.clock_ms()))

    def later(self, call: Any, *arguments: Any) -> None:
        self.cluster.events.after(self.rng.randint(0, STORE_US), self._later, self.life, call, arguments)

    def _later(self, life: int, call: Any, arguments: Any) -> None:
        if life == self.life and self.runs:
            self.guarded(call, *arguments)

    def claims(self, outputs: Any) -> None:
        """Carries out what a call of the claims has returned."""
        self.perform(self.core.deliver(outputs, self.cluster.events.now_ms, self.clock_ms()))

    def _tick(self) -> None:
        super()._tick()
        self.perform(self.core.tick(self.cluster.events.now_ms, self.clock_ms()))
        acked = self.signals._acked()
        for key, position in [*self.routed]:
            if all(one >= position for one in acked):
                self.routed.remove((key, position))
                self.claims(self.core.claims.routed(key, self.cluster.events.now_ms))

    # --- outputs -------------------------------------------------------------------------------------------------------

    def perform(self, outputs: Any) -> None:
        for output in outputs:
            self.step()
            match output:
                case ToNode(node_id, message):
                    link = self.signals.view.link_of(node_id)
                    if link is not None and link.connection is not None:
                        Node.execute(self, [Send(link.connection, message)])
                case Accepted(ticket, uid, present):
                    self.accepted(ticket, uid, present)
                case Rejected(ticket, reason):
                    self.cluster.rejected(self, ticket, reason)
                case Create():
                    self.later(self.create, output)
                case Export(uid, generation):
                    self.export(self.copies[uid], generation)
                case Import():
                    self.later(self.import_, output)
                case MovedAway(uid):
                    self.moved_away(self.copies[uid])
                case Restore(uid):
                    copy = self.copies[uid]
                    copy.state, copy.digest, copy.given = SessionState.OWNED, None, set()
                    copy.owned_us = self.cluster.events.now_us
                    self.write(copy, "restored", uid)
                case Kick(uid):
                    self.copies[uid].state = SessionState.STALE
                    self.cluster.kicked(self, self.copies[uid].client)
                    self.write(self.copies[uid], "stale", uid)
                case EndSession(uid) | Forget(uid):
                    if isinstance(output, EndSession):
                        self.cluster.kicked(self, self.copies[uid].client)
                        self.cluster.void(self.copies[uid].client, id_floor(self.clock.now(self.clock_ms())), self.copies[uid])
                    self.end(self.copies[uid])
                case Absorb(uid, later):
                    passed = self.copies[uid].seen.passed.ids
                    self.write(self.copies[later], "absorbed", later, passed)
                    self.copies[later].seen.passed = Passed(passed)
                    self.cluster.absorbed += 1
                    self.end(self.copies[uid])
                case Bind(uid, node_id):
                    self.write(self.copies[uid], "bound", uid, node_id)
                case Merge(uid, node_id, tail):
                    self.merge(self.copies[uid], node_id, tail)
                case Taken(uid, ids):
                    self.write(self.copies[uid], "taken", uid, ids)
                    self.hand_over(self.copies[uid], ids)
                    self.claims(self.core.claims.arrived(uid, self.cluster.events.now_ms))
                case Flow():
                    pass
                case _:
                    raise AssertionError(f"output {output}")

    def queued(self, uid: int, most: int) -> list[Queued]:
        copy = self.copies[uid]
        found = [(one, copy.queue[one]) for one in sorted(copy.queue)[:most]]
        return [Queued(one, copy.topic, self.cluster.messages[number].qos, b"%d" % number) for one, number in found]

    def delivered_of(self, uid: int) -> tuple[int, list[int]]:
        copy = self.copies[uid]
        return copy.seen.base, [one for one in copy.seen.ids if one not in copy.queue]

    def append(self, copy: Copy, node_id: int, tail: Tail, is_settled: bool) -> bool:
        result = append(copy.seen, copy.queue, tail, is_settled)
        if result is None:
            return False
        for message_id in result.removed:
            del copy.queue[message_id]
        copy.queue.update({one.id: int(one.body) for one in result.fresh})
        if tail.is_last:
            copy.merged |= {(node_id, tail.uid)}
        return True

    def merge(self, copy: Copy, node_id: int, tail: Tail) -> None:
        is_settled, lineage = self.core.claims.is_settled(self.cluster.events.now_ms), copy.lineage
        before = len(copy.queue)
        if not self.append(copy, node_id, tail, is_settled):
            return
        self.write(copy, "merged", copy.uid, node_id, tail, is_settled, lineage)
        if tail.is_last:
            other = self.cluster.nodes[node_id - 1].copies.get(tail.uid)
            if other is not None:
                self.cluster.join(lineage, other.lineage)
        self.cluster.merges += max(0, len(copy.queue) - before)
        self.claims(self.core.claims.merged(node_id, tail))
        self.flush(copy)

    def new_copy(self, key: Key, name: str, generation: int, seen: SeenIds) -> Copy:
        self.next_uid += 1
        client = self.cluster.clients[name]
        return Copy(self.next_uid, name, key, client.topic, zlib.crc32(name.encode()) % WORKERS, generation, seen)

    def store(self, copy: Copy) -> None:
        self.write(copy, "create", pickle.dumps(copy))
        self.copies[copy.uid] = copy
        self.log.update([Route(copy.topic)])
        self.execute(self.signals.routes_changed(self.cluster.events.now_ms))

    def create(self, output: Create) -> None:
        copy = self.new_copy(output.key, output.name, output.generation, SeenIds((), id_floor(output.base)))
        self.cluster.lineages += 1
        copy.lineage = self.cluster.lineages
        if output.clean:
            copy.clean_stamp = self.clock.now(self.clock_ms())
            self.cluster.void(output.name, id_floor(copy.clean_stamp), None)
        copy.voids = self.cluster.clients[output.name].voids
        self.own(copy, False)

    def import_(self, output: Import) -> None:
        copy = self.new_copy(output.key, output.name, output.generation, SeenIds())
        copy.queue, seen, copy.parent, copy.clean_stamp, copy.voids = pickle.loads(b"".join(output.parts))
        self.cluster.lineages += 1
        copy.lineage = self.cluster.lineages
        copy.seen = SeenIds(*seen)
        self.own(copy, True)

    def own(self, copy: Copy, is_import: bool) -> None:
        claim = self.core.claims._claims[copy.key]
        is_strict = not claim.is_provisional and claim.registrar != 0 and (claim.was_taken or is_import or not claim.holder)
        copy.stamp, copy.owned_us = self.clock.now(self.clock_ms()), self.cluster.events.now_us
        self.store(copy)
        if is_strict:
            copy.digest = claim.digest
            self.cluster.owned(self, copy, claim)
        else:
            # Its holder was lost: what others have is theirs until they are revoked.
            for node in self.cluster.nodes:
                for other in node.copies.values():
                    if other.key == copy.key:
                        other.digest = None
        if is_import:
            self.cluster.imported[copy.key, copy.generation] = copy.lineage
            self.routed.append((copy.key, self.log.head))
        core, now_ms = self.core.claims, self.cluster.events.now_ms
        if is_import:
            self.claims(core.imported(copy.key, copy.uid, copy.clean_stamp, now_ms, self.clock_ms()))
        else:
            self.claims(core.created(copy.key, copy.uid, copy.clean_stamp, now_ms, self.clock_ms()))

    def export(self, copy: Copy, generation: int) -> None:
        self.cluster.kicked(self, copy.client)
        copy.state, copy.given = SessionState.MOVING, {*copy.queue}
        seen, passed = copy.seen, Passed(copy.seen.passed.ids)
        for message_id in (*self.passed[copy.worker].ids, self.make_id()):
            passed.note(message_id)
        text = pickle.dumps((
            dict(copy.queue), (passed.ids, seen.base, seen.ids, seen.forgotten.ids), copy.lineage, copy.clean_stamp, copy.voids
        ))  # fmt: skip
        count = self.rng.randint(1, PARTS_MAX)
        size = len(text) // count + 1
        parts = [text[first : first + size] for first in range(0, len(text), size)]
        self.later(lambda: self.claims(self.core.claims.exported(copy.uid, generation, parts)))

    def moved_away(self, copy: Copy) -> None:
        holding = self.core.claims.leaving[copy.uid]
        if copy.state == SessionState.MOVING and copy.given is not None and holding.generation == holding.granted:
            imported = self.cluster.imported.get((copy.key, holding.granted))
            assert imported is not None, f"{copy.client}: MOVED without STATE_ACK"
            lineage = copy.lineage
            self.write(copy, "gone", copy.uid, holding.generation, then=lambda: self.cluster.join(imported, lineage))
            self.remove(copy, [*copy.given])
        else:
            self.write(copy, "gone", copy.uid, holding.generation)
        copy.state, copy.given = SessionState.GONE, set()
        self.claims(self.core.claims.arrived(copy.uid, self.cluster.events.now_ms))

    def end(self, copy: Copy) -> None:
        self.write(copy, "end", copy.uid)
        del self.copies[copy.uid]
        if not any(one.topic == copy.topic for one in self.copies.values()):
            self.log.update([Route(copy.topic, members=0)])
            self.execute(self.signals.routes_changed(self.cluster.events.now_ms))

    def remove(self, copy: Copy, ids: Any) -> None:
        self.write(copy, "removed", copy.uid, tuple(ids))
        for message_id in ids:
            copy.queue.pop(message_id, None)

    def hand_over(self, copy: Copy, ids: Any) -> None:
        """Forgets messages that the holder has: they were handed over, not delivered."""
        for message_id in ids:
            copy.queue.pop(message_id, None)
            copy.seen.discard(message_id)

    # --- clients -------------------------------------------------------------------------------------------------------

    def connect(self, client: Client, clean: bool) -> None:
        now_ms = self.cluster.events.now_ms
        if client.key not in self.core.claims._claims:
            self.cluster.asked[client.key, self.node_id] = self.cluster.events.now_us, self.cluster.era
        self.claims(self.core.claims.connect(client.key, client.name, clean, client.ticket, now_ms, self.clock_ms()))

    def accepted(self, ticket: int, uid: int, present: bool) -> None:
        client = self.cluster.accepted(self, ticket)
        copy = self.copies[uid]
        if (holding := self.core.claims.sessions.get(copy.key)) is not None:
            self.write(copy, "stamp", uid, holding.stamp)
            copy.stamp = holding.stamp
        if client is None:
            # The connection has ended meanwhile, or is half open.
            if self.rng.random() < 0.5:
                self.core.claims.disconnected(copy.key)
            return
        self.flush(copy)

    def flush(self, copy: Copy) -> None:
        """Delivers the queue of a session to its client."""
        client = self.cluster.clients[copy.client]
        if copy.state != SessionState.OWNED or client.node is not self or not client.is_connected or not copy.queue:
            return
        holding = self.core.claims.sessions.get(copy.key)
        if holding is None or holding.uid != copy.uid:
            return
        ids = sorted(copy.queue)[: client.window or None]
        numbers = [copy.queue[one] for one in ids]
        self.write(copy, "removed", copy.uid, tuple(ids), then=lambda: self.receive(copy, client, numbers))
        for message_id in ids:
            copy.queue.pop(message_id, None)

    def receive(self, copy: Copy, client: Client, numbers: list[int]) -> None:
        for number in numbers:
            lineages = client.received.setdefault(number, [])
            is_known = self.cluster.root(copy.lineage) in map(self.cluster.root, lineages)
            is_twice = self.cluster.messages[number].qos == 2 and is_known
            assert not is_twice, f"{client.name}: message {number} of QoS 2 twice, now at {self.name}"
            lineages.append(copy.lineage)

    # --- messages ------------------------------------------------------------------------------------------------------

    def takers(self, worker: int, topic: bytes, number: int) -> list[str]:
        found = super().takers(worker, topic, number)
        if (message_id := self.cluster.ids.get(number)) is None:
            return found
        self.passed[worker].note(message_id)
        if not self.cluster.messages[number].qos:
            return found
        mine = [copy for copy in self.copies.values() if copy.worker == worker and copy.topic == topic]
        return found + [f"{COPY}{copy.uid}" for copy in mine if copy.seen.take(message_id)]

    def took(self, worker: int, deliveries: list[tuple[str, int]]) -> None:
        mine = [(int(name[1:]), number) for name, number in deliveries if name.startswith(COPY)]
        for uid, number in mine:
            self.copies[uid].queue[self.cluster.ids[number]] = number
        if mine and self.cluster.level == Level.MACHINE:
            # The client's acknowledgement is in the journal behind the delivery.
            self.journals[worker].sync()
        # What is in `seen` and not in the queue counts as delivered, so all are in the queue first.
        for uid in dict.fromkeys(uid for uid, _ in mine):
            if (copy := self.copies.get(uid)) is not None:
                self.flush(copy)
                if copy.state in (SessionState.GONE, SessionState.STALE):
                    self.claims(self.core.claims.arrived(uid, self.cluster.events.now_ms))

    def workers_of(self, record: Any) -> Any:
        topic = self.cluster.messages[int(record.body.split(b" ")[0])].topic
        return sorted({*super().workers_of(record), *(copy.worker for copy in self.copies.values() if copy.topic == topic)})

    def publish(self, message: Message) -> None:
        if message.topic.startswith(b"r/"):
            self.cluster.ids[message.number] = self.make_id()
        super().publish(message)

    def make_id(self) -> int:
        """Returns the id of a message as Router.stamp does: clock of this life, node, process, sequence."""
        self.id_sequence = (self.id_sequence + 1) % (1 << SEQUENCE_BITS)
        stamp = stamp_of(1_700_000_000_000 + self.cluster.events.now_ms + self.id_offset_ms)
        return stamp << ID_BITS | self.node_id << ORIGIN_BITS | self.id_process << SEQUENCE_BITS | self.id_sequence

    def forward(self, message: Message) -> bool:
        if not super().forward(message):
            return False
        for worker in range(WORKERS):
            names = self.takers(worker, message.topic, message.number) if message.number in self.cluster.ids else []
            local = [(name, message.number) for name in names if name.startswith(COPY)]
            if local:
                self.journals[worker].append((None, None, local, {}))
                self.journals[worker].sync()
                self.took(worker, local)
        return True


class RoamingCluster(Cluster):
    """A run with clients that move between nodes."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.clients: dict[str, Client] = {}
        self.ids: dict[int, int] = {}
        self.due: dict[int, list[str]] = {}
        self.imported: dict[tuple[Key, int], int] = {}
        self.asked: dict[tuple[Key, int], tuple[int, int]] = {}
        self.grants: dict[tuple[Key, bytes], list[Granted]] = {}
        self.tickets: dict[int, Client] = {}
        self.lineages = 0
        self.roots: dict[int, int] = {}
        """Lineages that were merged into others."""
        self.era = 0
        """Grows with each change of a member set at any node."""
        self.refusals: Counter[int] = Counter()
        self.connects = self.merges = self.takeovers = self.pairs = self.absorbed = 0
        self.slowest_ms = 0
        self.agreed_ms: int | None = None
        self.lost_session = "new"
        super().__init__(seed, nodes)
        self.spool_bytes = 1 << 30
        self.lost_session = self.rng.choice(("new", "new", "wait"))
        uuid = cluster_uuid("sim")
        for number in range(CLIENTS):
            name = f"c{number}"
            self.clients[name] = Client(name, b"r/%d" % (number % ROAM_TOPICS), client_key(uuid, name))

    def make_node(self, index: int) -> Node:
        return RoamingNode(self, index)

    # --- what nodes report ---------------------------------------------------------------------------------------------

    def expect(self, publisher: Node, message: Message, nodes: list[int]) -> None:
        super().expect(publisher, message, nodes)
        if message.number not in self.ids or not message.qos:
            return
        names: set[str] = set()
        alive: set[str] = set()
        """Clients with a session; what is gone only serves those, and a node may crash between a clean start and its session."""
        for node in self.nodes:
            assert isinstance(node, RoamingNode)
            alive |= {copy.client for copy in node.copies.values() if copy.state != SessionState.GONE}
            if node is publisher or node.node_id in nodes:
                mine = [copy for copy in node.copies.values() if copy.topic == message.topic]
                names |= {copy.client for copy in mine if copy.voids == self.clients[copy.client].voids}
        self.due[message.number] = sorted(names & alive)

    def owned(self, node: RoamingNode, copy: Copy, claim: Any) -> None:
        """Checks that a session has one owner, and that a claim has found it; notes the grant."""
        asked_us, era = self.asked[copy.key, node.node_id]
        given = self.nodes[claim.holder - 1] if claim.holder else node
        assert isinstance(given, RoamingNode)
        moving = [one for one in given.copies.values() if one.key == copy.key and one.state == SessionState.MOVING]
        # By a provisional grant, so there may be two sessions, and the registrar revokes the other one behind DONE (seed 3345).
        is_contested = any(one.digest is None for one in moving)
        for other in self.nodes:
            assert isinstance(other, RoamingNode)
            if other is node or not other.runs or is_contested:
                continue
            holding = other.core.claims.sessions.get(copy.key)
            if holding is not None and other.core.claims._digest == node.core.claims._digest == copy.digest:
                known = other.copies[holding.uid]
                # A member set that comes back is another one: who was cut off meanwhile has its session until DONE.
                registrar = self.nodes[claim.registrar - 1]
                assert isinstance(registrar, RoamingNode)
                changed_us = max(one.view_us for one in (node, other, registrar))
                is_same = known.digest == copy.digest and known.owned_us >= changed_us
                assert not is_same, f"{copy.client}: owned by {node.name} and {other.name} under one member set"
                # A session from a provisional grant may not be known to the registrar.
                is_old = known.digest is not None and known.owned_us < asked_us
                is_missed = era == self.era and not claim.holder and is_old
                assert not is_missed, f"{copy.client}: session at {other.name} was not found by the claim of {node.name}"
        self.takeovers += bool(claim.holder)
        if era == self.era:
            granted = Granted(asked_us, self.events.now_us, claim.generation, claim.holder, claim.digest, era)
            self.grants.setdefault((copy.key, claim.digest), []).append(granted)

    def check_claims(self) -> None:
        """Checks that the grants of each key are linearisable while no member set changes."""
        for key, grants in self.grants.items():
            for one, other in pairwise(grants):
                if (one.era, one.digest) != (other.era, other.digest) or other.asked_us < one.done_us:
                    continue
                self.pairs += 1
                assert other.generation > one.generation, f"{key}: generation {other.generation} after {one.generation}"

    # --- clients -------------------------------------------------------------------------------------------------------

    def connect(self, client: Client, node: RoamingNode, clean: bool) -> None:
        """Opens a connection of a client; an older one is half open from now on, or ends."""
        if not node.runs or not node.signals.view.serves:
            return
        old = client.node
        if old is not None and old.runs and self.rng.random() < 0.5:
            if not client.is_connected:
                old.core.claims.abandoned(client.key, client.ticket)
            else:
                old.core.claims.disconnected(client.key)
        self.connects += 1
        client.node, client.ticket, client.is_connected = node, self.connects, False
        client.since_ms, client.clean = self.events.now_ms, clean
        self.tickets[client.ticket] = client
        self.guarded(node, node.connect, client, clean)

    def accepted(self, node: RoamingNode, ticket: int) -> Client | None:
        client = self.tickets.pop(ticket)
        if client.ticket != ticket or client.node is not node:
            return None
        self.slowest_ms = max(self.slowest_ms, self.events.now_ms - client.since_ms)
        client.is_connected = True
        return client

    def rejected(self, node: RoamingNode, ticket: int, reason: int) -> None:
        client = self.tickets.pop(ticket)
        if client.ticket == ticket:
            self.refusals[reason] += 1
            assert reason != 0x88, f"{client.name}: CONNECT refused"
            self.cut_off(client)

    def kicked(self, node: RoamingNode, name: str) -> None:
        client = self.clients[name]
        if client.node is node and client.is_connected:
            self.cut_off(client)

    def cut_off(self, client: Client) -> None:
        client.node, client.is_connected = None, False

    def void(self, name: str, up_to: int, ended: Copy | None) -> None:
        """Takes a clean start: nothing before it is owed to the client, and what it had before counts no more."""
        client = self.clients[name]
        client.voids += 1
        client.void_before = len(self.messages)
        others = (copy for node in self.nodes if isinstance(node, RoamingNode) for copy in node.copies.values())
        is_beside = any(copy.client == name and copy is not ended and copy.state != SessionState.GONE for copy in others)
        client.void_ids = max(client.void_ids, up_to) if is_beside else 0
        client.received.clear()

    def root(self, lineage: int) -> int:
        while lineage in self.roots:
            lineage = self.roots[lineage]
        return lineage

    def join(self, one: int, other: int) -> None:
        """Takes the end of a merge: from now on the two sessions must not deliver a message of QoS 2 twice."""
        if self.root(one) != self.root(other):
            self.roots[self.root(other)] = self.root(one)

    # --- acts ----------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        rng, running = self.rng, self.running()
        if not running:
            return
        node, act = rng.choice(running), rng.random()
        assert isinstance(node, RoamingNode)
        self.check_waiting()
        if act < 0.45:
            self.publish(node, b"r/%d" % rng.randrange(ROAM_TOPICS))
        elif act < 0.85:
            client = self.clients[rng.choice(sorted(self.clients))]
            self.connect(client, node, rng.random() < 0.1)
        elif act < 0.89:
            client = self.clients[rng.choice(sorted(self.clients))]
            if client.node is not None and client.is_connected:
                client.node.core.claims.disconnected(client.key)
                self.cut_off(client)
        elif act < 0.95:
            self.churn_clients()
        elif self.to_join:
            self.to_join.pop().start()
        else:
            self.trouble(node)

    def churn_clients(self) -> None:
        """Has one client connect at several nodes at once, or nearly so."""
        client = self.clients[self.rng.choice(sorted(self.clients))]
        for node in self.rng.sample(self.running(), min(3, len(self.running()))):
            assert isinstance(node, RoamingNode)
            self.events.after(self.rng.randint(0, 20_000), self.connect, client, node, False)

    def check_waiting(self) -> None:
        limit = CONNECT_MS + (3_000 if self.lost_session == "wait" else 0)
        for client in self.clients.values():
            if client.node is not None and not client.is_connected and client.node.runs:
                waited = self.events.now_ms - client.since_ms
                assert waited <= limit, f"{client.name}: CONNECT at {client.node.name} unanswered for {waited} ms"

    # --- the end -------------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> str:
        found = f"{self.connects} connects, {self.takeovers} takeovers, {self.pairs} pairs of grants, {self.merges} merged"
        found += f", {self.absorbed} absorbed"
        return f"{found}, slowest CONNECT {self.slowest_ms} ms, refused {dict(self.refusals)}"

    def restless(self) -> str | None:
        self.check_waiting()
        agreed = len({node.signals.view.digest for node in self.running()}) == 1
        agreed = agreed and all(self.is_up(one, other) for one in self.running() for other in self.running() if one is not other)
        self.agreed_ms = (self.agreed_ms or self.events.now_ms) if agreed else None
        found = self.unsettled()
        if found and agreed and self.agreed_ms is not None:
            is_due = self.events.now_ms - self.agreed_ms > AGREED_MS
            assert not is_due or not found.startswith("owners"), f"after {AGREED_MS} ms: {found}"
        return found or super().restless()

    def unsettled(self) -> str | None:
        """Returns what is not settled about sessions, or None."""
        owners: dict[str, list[str]] = {}
        for node in self.running():
            assert isinstance(node, RoamingNode)
            for holding in node.core.claims.sessions.values():
                owners.setdefault(holding.name, []).append(node.name)
        for name, nodes in sorted(owners.items()):
            if len(nodes) > 1:
                return f"owners of {name}: {nodes}"
        for node in self.running():
            assert isinstance(node, RoamingNode)
            if node.core.claims._claims:
                return f"claims of {node.name}: {[*node.core.claims._claims.values()]}"
            for holding in node.core.claims.leaving.values():
                if holding.state != SessionState.GONE or node.copies[holding.uid].queue:
                    return f"{holding.state.name} session of {holding.name} at {node.name}: {holding}"
        return None

    def heal(self) -> None:
        super().heal()
        for _ in range(3):
            # All clients connect once more, and get what is left.
            for client in self.clients.values():
                if client.node is None or not client.is_connected:
                    node = self.rng.choice([node for node in self.running() if node.signals.view.serves])
                    assert isinstance(node, RoamingNode)
                    self.connect(client, node, False)
            self.events.run(3_000)
            super().heal()

    def check(self) -> int:
        checked = super().check()
        self.check_claims()
        for number, names in self.due.items():
            message = self.messages[number]
            for name in names:
                client = self.clients[name]
                if number >= client.void_before and message.is_acked and self.ids[number] > client.void_ids:
                    checked += 1
                    assert number in client.received, f"{name}: message {number} (QoS {message.qos}) of {message.publisher} is lost"
        return checked
