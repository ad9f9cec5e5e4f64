"""One node of the simulation: the cores as the processes of a broker would drive them, around workers that are no more than needed.

A worker takes records from its inlet, delivers them to sessions and journals both the deliveries and the positions in one block;
it publishes by putting a record into the ring to each node that has a route. Link processes, workers and disks fail separately:
`kill` ends all processes and leaves rings and files, `power_cut` leaves what was synced, `kill_link` ends one link process.
"""

import zlib
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from shardbroker.cluster.data import DataChannel
from shardbroker.cluster.handshake import Identity, cluster_uuid
from shardbroker.cluster.inbound import Keep, Placed, StreamPositions
from shardbroker.cluster.messages import Bye, Hello, Route
from shardbroker.cluster.outbound import Level, Outbound, OutboundSettings
from shardbroker.cluster.outputs import Arrived, Close, Dial, Established, Gone, Output, Refused, Send, SubackDue
from shardbroker.cluster.rlog import MemoryRouteLog, SubackWait
from shardbroker.cluster.signals import Signals
from shardbroker.cluster.view import LinkState, NodeState, ViewSettings
from tests.cluster.sim.disk import File, MemoryInlet, MemoryRing, MemoryRoutes, MemorySpool, Record, place, place_rest
from tests.cluster.sim.network import End

if TYPE_CHECKING:
    from tests.cluster.sim.cluster import Cluster

__all__ = ["Crashed", "Message", "Node", "Session"]

WORKERS = 2
SIGNALS, DATA = 0, 1
TICK_US = 50_000
TURN_US = 500
RING_BYTES = 4096
INLET_BYTES = 2048
TAKEN_AT_A_TIME = 8
LEAVE_MS = 5_000
"""A node that leaves waits so long at most for its peers."""


class Crashed(Exception):
    """The node has reached the step at which it is to crash."""


@dataclass
class Session:
    """A session that stays: what it was delivered is in the journal of its worker."""

    name: str
    topic: bytes
    worker: int
    created: int
    """Number of messages published before its SUBACK was sent; -1 until then."""
    is_late: bool = False
    known: dict[int, int] = field(default_factory=dict)
    """Nodes that had its route when its SUBACK was sent, and how often each had lost its routes of peers."""


@dataclass
class Message:
    """A message and what has to become of it."""

    number: int
    publisher: str
    sequence: int
    topic: bytes
    qos: int
    due: list[str]
    """Sessions that must get it once it is acknowledged."""
    is_acked: bool = False


@dataclass
class _Waiting:
    """A message that its publisher has not been acknowledged, with the positions that it needs in rings."""

    message: Message
    needs: list[tuple[MemoryRing, int]] = field(default_factory=list)


class Node:
    """A machine with a broker."""

    def __init__(self, cluster: "Cluster", index: int) -> None:
        self.cluster, self.index = cluster, index
        self.rng = Random(cluster.rng.getrandbits(64))
        self.node_id = index + 1
        self.name = f"n{self.node_id:03}"
        self.address = f"{self.name}:5370"
        self.node_uuid = self.rng.randbytes(16)
        self.skew_ms = self.rng.randint(-2000, 2000)
        self.runs = False
        self.has_left = False
        self.joined = False
        self.countdown = 0
        self.life = 0
        # Disk.
        self.incarnation = 0
        self.journals = [File() for _ in range(WORKERS)]
        self.spools: dict[int, MemorySpool] = {}
        self.routes = MemoryRoutes()
        self.known: dict[int, Hello] = {}
        """Peers as they last proved themselves."""
        self.routes_lost = 0
        # Shared memory.
        self.rings: dict[tuple[int, int], MemoryRing] = {}
        self.left_over: dict[int, list[MemoryRing]] = {}
        self.inlets = [MemoryInlet(INLET_BYTES) for _ in range(WORKERS)]
        # Counted over all lives.
        self.dropped: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.late = 0

    def clock_ms(self) -> int:
        return 1_700_000_000_000 + self.cluster.events.now_ms + self.skew_ms

    # --- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the broker: sessions and positions from the journals, rings of the last broker, a new incarnation."""
        cluster = self.cluster
        cluster.network.reset_host(self)
        self.runs, self.joined, self.has_left = True, True, False
        self.life += 1
        self.incarnation += self.rng.randint(1, 1000)
        self.ends: dict[int, End] = {}
        self.countdown = 0
        self.turn_is_due = False
        self.parked: deque[Message] = deque()
        self.waiting: list[_Waiting] = []
        self.tickets: dict[int, tuple[Session, int]] = {}
        self.next_ticket = 0
        self.recover()
        if self.rng.random() < 0.1:
            self.lose_routes()
        self.log = MemoryRouteLog(cluster.log_entries)
        self.extra: set[tuple[bytes, bytes]] = set()
        self.log.update(Route(session.topic) for session in self.sessions.values())
        for (peer, worker), ring in sorted(self.rings.items()):
            self.left_over.setdefault(peer, []).append(ring)
            del self.rings[peer, worker]
        self.left_over = self.unread(self.left_over)
        self.start_signals()
        self.start_data()
        cluster.events.after(self.rng.randint(0, TICK_US), self.tick, self.life)

    def lose_routes(self) -> None:
        """Has the disk damage what it has of peers."""
        self.routes, self.known = MemoryRoutes(), {}
        self.routes_lost += 1

    def recover(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.positions = []
        for worker, journal in enumerate(self.journals):
            positions: dict[tuple[int, int], int] = {}
            for created, ended, _, moved in journal.records:
                if created is not None:
                    self.sessions[created.name] = created
                if ended is not None:
                    self.sessions.pop(ended, None)
                for key, position in moved.items():
                    if position is None:
                        positions.pop(key, None)
                    else:
                        assert position > positions.get(key, 0), f"{self.name} worker {worker}: position of {key} went back"
                        positions[key] = position
            self.positions.append(StreamPositions(positions))

    def identity(self) -> Identity:
        cluster = cluster_uuid("sim")
        return Identity(self.node_id, self.name, self.address, cluster, self.node_uuid, self.incarnation)

    def start_signals(self) -> None:
        cluster = self.cluster
        now_ms, settings = cluster.events.now_ms, ViewSettings(first_dial_ms=500, join_timeout_ms=cluster.join_timeout_ms)
        cookie, seeds = b"cookie", cluster.seeds
        nonce = self.rng.randbytes
        rng = Random(self.rng.getrandbits(64))
        suback = SubackWait()
        self.signals = self.make_signals(
            self.identity(), cookie, seeds, self.log, self.routes, rng, lambda: nonce(16), now_ms, settings, suback
        )
        for node_id, one in self.known.items():
            self.signals.view.restore(node_id, one.name, one.address, one.node_uuid, one.incarnation, is_proved=False)

    def make_signals(self, *arguments: Any) -> Signals:
        return Signals(*arguments)

    def start_data(self) -> None:
        """Starts the link process of the data: with the spools and the rings of the last one."""
        now_ms = self.cluster.events.now_ms
        rng, nonce = Random(self.rng.getrandbits(64)), self.rng.randbytes
        self.data = DataChannel(self.identity(), b"cookie", DATA, self.make_outbound, self, rng, lambda: nonce(16))
        known = {*self.spools, *self.left_over, *(peer for peer, _ in self.rings), *self.known}
        for peer in sorted(known):
            self.data.add_peer(peer, self.cluster.nodes[peer - 1].address)
        for link in self.signals.view.links.values():
            if link.node is not None and link.is_connected:
                self.execute(self.data.set_peer(link.node.node_id, link.address, link.node.incarnation, False, now_ms))

    def make_outbound(self, peer: int) -> Outbound:
        cluster = self.cluster
        settings = OutboundSettings(cluster.level, spool_bytes=cluster.spool_bytes)
        spool = self.spools.setdefault(peer, MemorySpool(cluster.level == Level.MACHINE))
        spool.is_full = self.disk_is_full
        outbound = Outbound(spool, settings, cluster.events.now_ms)
        for ring in self.left_over.get(peer, ()):
            outbound.add_ring(ring, is_left_over=True)
        for worker in range(WORKERS):
            ring = self.rings.get((peer, worker))
            if ring is None:
                ring = self.rings[peer, worker] = MemoryRing(worker, self.rng.getrandbits(62) + 1, RING_BYTES)
            outbound.add_ring(ring)
        return outbound

    disk_is_full = False

    def fill_disk(self, is_full: bool) -> None:
        self.disk_is_full = is_full
        for spool in self.spools.values():
            spool.is_full = is_full

    def kill(self, power_cut: bool = False) -> None:
        """Ends all processes, or the power of the machine."""
        if not self.runs:
            return
        self.runs = False
        for message in [one.message for one in self.waiting]:
            self.cluster.unacked += not message.is_acked
        self.count_dropped()
        self.late += self.signals.suback.late
        for peer, spool in self.spools.items():
            self.spools[peer] = spool.reopened(self.rng, power_cut)
        if power_cut:
            for journal in self.journals:
                journal.power_cut(self.rng)
            self.rings.clear()
            self.left_over.clear()
            self.inlets = [MemoryInlet(INLET_BYTES) for _ in range(WORKERS)]
            if self.cluster.level == Level.PROCESS:
                self.lose_routes()
        else:
            self.cluster.network.reset_host(self)

    @staticmethod
    def unread(left_over: dict[int, list[MemoryRing]]) -> dict[int, list[MemoryRing]]:
        """Returns the rings that have records."""
        found = {peer: [ring for ring in rings if ring.head > ring.released] for peer, rings in left_over.items()}
        return {peer: rings for peer, rings in found.items() if rings}

    def count_dropped(self) -> None:
        for peer in self.data.peers.values():
            self.dropped += peer.outbound.dropped
            peer.outbound.dropped.clear()

    def kill_link(self, channel: int) -> None:
        """Ends one link process; the next one begins at once."""
        if channel == SIGNALS:
            self.late += self.signals.suback.late
            self.start_signals()
            for ticket, (_, position) in [*self.tickets.items()]:
                self.execute(self.signals.hold_suback(ticket, position, self.cluster.events.now_ms))
        else:
            self.count_dropped()
            for peer, spool in self.spools.items():
                self.spools[peer] = spool.reopened(self.rng, False)
            self.left_over = self.unread(self.left_over)
            self.start_data()
        self.cluster.network.reset_host(self, channel)

    # --- network -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A step at which the node may crash."""
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                raise Crashed

    def guarded(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except Crashed:
            self.cluster.crashed(self)

    def accept(self, end: End, channel: int) -> None:
        self.guarded(self._opened, end, channel, "")

    def _opened(self, end: End, channel: int, address: str) -> None:
        self.ends[end.number] = end
        core = self.signals if channel == SIGNALS else self.data
        self.execute(core.opened(end.number, address, self.cluster.events.now_ms))

    def deliver(self, end: End, message: Any) -> None:
        self.guarded(self._received, end, message)

    def _received(self, end: End, message: Any) -> None:
        self.step()
        now_ms = self.cluster.events.now_ms
        if end.channel == SIGNALS:
            self.execute(self.signals.received(end.number, message, now_ms, self.clock_ms()))
        else:
            self.execute(self.data.received(end.number, message, now_ms))
        self.due()

    def reads(self, end: End) -> bool:
        return end.channel == SIGNALS or self.data.is_reading(end.number)

    def lost(self, end: End) -> None:
        if self.ends.pop(end.number, None) is None:
            return
        now_ms = self.cluster.events.now_ms
        if end.channel == SIGNALS:
            self.guarded(self.execute, self.signals.closed(end.number, now_ms))
        else:
            self.data.closed(end.number, now_ms)

    def execute(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self.step()
            match output:
                case Send(number, message):
                    if number in self.ends:
                        self.cluster.network.send(self.ends[number], self.stamped(message))
                case Close(number, reason, text):
                    self.cluster.refused(self, reason, text)
                    if (end := self.ends.pop(number, None)) is not None:
                        self.cluster.network.close(end, Bye(reason, text))
                case Dial(address, channel):
                    self.dial(address, channel)
                case Established(node_id, incarnation, address, is_new):
                    link = self.signals.view.link_of(node_id)
                    assert link is not None and link.node is not None
                    self.known[node_id] = link.node
                    self.execute(self.data.set_peer(node_id, address, incarnation, is_new, self.cluster.events.now_ms))
                case Gone(node_id):
                    self.known.pop(node_id, None)
                    self.execute(self.data.gone(node_id, self.cluster.events.now_ms))
                case SubackDue(ticket, is_late):
                    self.suback(ticket, is_late)
                case Refused(_, reason, text):
                    self.refused[reason] += 1
                    self.cluster.refused(self, reason, text)
                case Arrived(node_id, message):
                    self.arrived(node_id, message)

    def stamped(self, message: Any) -> Any:
        """Returns what is sent for a message."""
        return message

    def arrived(self, node_id: int, message: Any) -> None:
        """Takes a message of sessions."""

    def dial(self, address: str, channel: int) -> None:
        life, core = self.life, self.signals if channel == SIGNALS else self.data

        def result(end: End | None) -> None:
            if life != self.life or core not in (self.signals, self.data):
                if end is not None:
                    self.cluster.network.reset(end)
            elif end is None:
                core.failed(address, self.cluster.events.now_ms)
            else:
                self.guarded(self._opened, end, channel, address)

        self.cluster.network.connect(self, self.cluster.by_address.get(address), channel, result)

    # --- passes --------------------------------------------------------------------------------------------------------

    def tick(self, life: int) -> None:
        if life == self.life and self.runs:
            self.guarded(self._tick)
            self.cluster.events.after(TICK_US, self.tick, life)

    def _tick(self) -> None:
        now_ms = self.cluster.events.now_ms
        self.execute(self.signals.tick(now_ms, self.clock_ms()))
        self.execute(self.data.tick(now_ms, self.writable))
        self._turn()
        if self.signals.view.state == NodeState.DRAINING:
            done = self.signals.is_drained and self.data.is_drained
            if done or now_ms >= self.leaves_ms:
                self.execute(self.signals.farewell())

    def due(self) -> None:
        """Has a pass made soon."""
        if not self.turn_is_due:
            self.turn_is_due = True
            self.cluster.events.after(TURN_US, self.turn, self.life)

    def turn(self, life: int) -> None:
        if life == self.life and self.runs:
            self.turn_is_due = False
            self.guarded(self._turn)

    def _turn(self) -> None:
        for worker in range(WORKERS):
            self.take(worker)
        self.publish_parked()
        self.execute(self.data.turn(self.cluster.events.now_ms, self.writable))
        self.sync_spools()
        self.acknowledge()

    def writable(self, number: int) -> bool:
        return number in self.ends and self.cluster.network.is_writable(self.ends[number])

    # --- the worker as subscriber --------------------------------------------------------------------------------------

    def workers(self) -> Sequence[int]:
        return range(WORKERS)

    def workers_of(self, record: Record) -> Sequence[int]:
        topic = self.cluster.messages[int(record.body.split(b" ")[0])].topic
        return sorted({session.worker for session in self.sessions.values() if session.topic == topic})

    def put(self, origin: int, identity: int, start: int, end: int, records: Any, full: Collection[int]) -> Placed:
        last = start
        for record in records.records:
            assert last < record.position <= end, f"{self.name}: a record at {record.position} in a range from {start} to {end}"
            last = record.position

        def put(worker: int, record: Record) -> int | None:
            return self.put_item(worker, origin, identity, record)

        return place(put, self.workers_of, records.records, full)

    def put_rest(self, worker: int, origin: int, identity: int, rest: Any) -> tuple[int, Any]:
        return place_rest(lambda item: self.put_item(worker, origin, identity, item), rest)

    def put_item(self, worker: int, origin: int, identity: int, item: Record | Keep) -> int | None:
        if origin in self.data.peers:
            self.data.touch(origin)
        self.due()
        return self.inlets[worker].put(origin, identity, item)

    def secured(self, worker: int) -> int:
        return self.inlets[worker].secured

    def take(self, worker: int) -> None:
        """Takes some records, and journals what they bring and their positions in one block."""
        inlet, positions = self.inlets[worker], self.positions[worker]
        taken = [inlet.items[number] for number in range(min(TAKEN_AT_A_TIME, len(inlet.items)))]
        if not taken:
            return
        deliveries: list[tuple[str, int]] = []
        for _, origin, identity, item in taken:
            if isinstance(item, Keep):
                positions.keep(origin, item.identities)
            elif positions.take(origin, identity, item.position):
                number = int(item.body.split(b" ")[0])
                topic = self.cluster.messages[number].topic
                deliveries += [(name, number) for name in self.takers(worker, topic, number)]
        self.step()
        journal = self.journals[worker]
        journal.append((None, None, deliveries, positions.changed()))
        self.took(worker, deliveries)
        self.step()
        for end, _, _, _ in taken:
            inlet.items.popleft()
            inlet.taken = end
        if self.cluster.level == Level.MACHINE:
            delay_us = self.rng.randint(*self.cluster.fsync_us)
            self.cluster.events.after(delay_us, self.journal_synced, self.life, worker, len(journal.records), inlet.taken)
        else:
            inlet.secured = inlet.taken
        self.due()

    def takers(self, worker: int, topic: bytes, number: int) -> list[str]:
        """Returns the names of the sessions that take a message."""
        return [session.name for session in self.sessions.values() if session.worker == worker and session.topic == topic]

    def took(self, worker: int, deliveries: list[tuple[str, int]]) -> None:
        """Takes deliveries that have been journaled."""

    def journal_synced(self, life: int, worker: int, records: int, position: int) -> None:
        if life == self.life and self.runs:
            self.journals[worker].sync(records)
            self.inlets[worker].secured = max(self.inlets[worker].secured, position)
            self.due()

    def sync_spools(self) -> None:
        for spool in self.spools.values():
            if spool.synced < spool.head:
                self.cluster.events.after(self.rng.randint(*self.cluster.fsync_us), self.spool_synced, self.life, spool, spool.head)

    def spool_synced(self, life: int, spool: MemorySpool, head: int) -> None:
        if life == self.life and self.runs:
            spool.synced = max(spool.synced, head)

    # --- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, topic: bytes) -> None:
        worker = zlib.crc32(name.encode()) % WORKERS
        session = Session(name, topic, worker, -1)
        self.sessions[name] = session
        self.cluster.created[name] = len(self.cluster.messages)
        self.journals[worker].append((session, None, [], {}))
        self.journals[worker].sync()
        self.step()
        position = self.log.update([Route(topic)])
        now_ms = self.cluster.events.now_ms
        self.tickets[self.next_ticket] = session, position
        self.next_ticket += 1
        self.execute(self.signals.routes_changed(now_ms))
        self.execute(self.signals.hold_suback(self.next_ticket - 1, position, now_ms))

    def suback(self, ticket: int, is_late: bool) -> None:
        session, position = self.tickets.pop(ticket)
        session.created, session.is_late = len(self.cluster.messages), is_late
        self.cluster.created[session.name] = session.created
        up = [link for link in self.signals.view.links.values() if link.state == LinkState.UP and link.node is not None]
        behind = []
        for link in up:
            peer = self.cluster.nodes[link.node.node_id - 1]
            mark = peer.routes.mark(self.node_id) if peer.runs and peer.incarnation == link.node.incarnation else None
            if mark is None or mark[0] != self.incarnation or mark[1] < position:
                behind.append(peer)
            else:
                session.known[peer.node_id] = peer.routes_lost
        if not is_late:
            alive = [peer.name for peer in behind if peer.runs and self.index_is_linked(peer)]
            assert not alive, f"{self.name}: SUBACK before {alive} had the route"
        else:
            known = [one for one in self.signals._connections.values() if one.sender is not None]
            acked = [one.sender.acked for one in known if self.signals.view.links[one.address].state == LinkState.UP]
            assert any(one < position for one in acked), f"{self.name}: SUBACK late without a peer to wait for"

    def index_is_linked(self, peer: "Node") -> bool:
        """Whether the peer has a link too: a restarted link process learns of it later."""
        link = peer.signals.view.link_of(self.node_id)
        known = link is not None and link.node is not None and link.node.incarnation == self.incarnation
        return known and link.state == LinkState.UP

    def unsubscribe(self, name: str) -> None:
        session = self.sessions.pop(name)
        self.journals[session.worker].append((None, name, [], {}))
        self.journals[session.worker].sync()
        self.cluster.ended.add(name)
        if not any(one.topic == session.topic for one in self.sessions.values()):
            self.log.update([Route(session.topic, members=0)])
        self.execute(self.signals.routes_changed(self.cluster.events.now_ms))

    def churn(self, count: int) -> None:
        """Adds and removes routes of sessions that do not stay, shared groups among them."""
        for _ in range(count):
            key = b"u/%d/%d" % (self.node_id, self.rng.randint(0, 40)), self.rng.choice((b"", b"g"))
            members = self.rng.randint(0, 3)
            self.log.update([Route(*key, members=members)])
        self.execute(self.signals.routes_changed(self.cluster.events.now_ms))

    # --- the worker as publisher ---------------------------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        self.parked.append(message)
        self.publish_parked()
        self.due()

    def publish_parked(self) -> None:
        while self.parked and self.forward(self.parked[0]):
            self.parked.popleft()

    def forward(self, message: Message) -> bool:
        """Puts a message into the ring to each node with a route; False: a publisher of QoS 1 or 2 waits."""
        worker = zlib.crc32(message.publisher.encode()) % WORKERS
        body = b"%d " % message.number + b"x" * self.rng.choice((0, 20, 200))
        nodes = sorted(self.routes.by_filter.get(message.topic, ()))
        rings: list[MemoryRing] = []
        for node in nodes:
            outbound = self.data.add_peer(node, self.cluster.nodes[node - 1].address).outbound
            ring = self.rings[node, worker]
            if ring.has_room(len(body)) and (message.qos or outbound.takes_qos0):
                rings.append(ring)
            elif message.qos:
                return False
        self.cluster.expect(self, message, nodes)
        waiting = _Waiting(message)
        for ring in rings:
            self.step()
            waiting.needs.append((ring, ring.put(message.qos, body)))
        for node in nodes:
            self.data.touch(node)
        if message.qos:
            self.waiting.append(waiting)
        return True

    def acknowledge(self) -> None:
        """Acknowledges publishers: at level process what is in rings, at level machine what is on disks."""
        still: list[_Waiting] = []
        for one in self.waiting:
            if self.cluster.level == Level.PROCESS or all(ring.secured >= position for ring, position in one.needs):
                one.message.is_acked = True
            else:
                still.append(one)
        self.waiting = still

    # --- the end -------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leaves the cluster: no sessions and no routes any more."""
        for name in [*self.sessions]:
            self.unsubscribe(name)
        self.log.update([Route(*key, members=0) for key in [*self.log.routes]])
        self.leaves_ms = self.cluster.events.now_ms + LEAVE_MS
        self.execute(self.signals.leave(self.cluster.events.now_ms))

    def check_left(self) -> None:
        """Stops a broker that has left."""
        if self.runs and self.signals.view.state == NodeState.LEFT:
            self.has_left = True
            self.count_dropped()
            for peer in self.data.peers.values():
                self.dropped += peer.outbound.drop_all()
            self.cluster.left(self)
            self.kill()
            self.spools.clear()
            self.rings.clear()
            self.left_over.clear()
            self.lose_routes()

    def delivered(self) -> dict[str, list[int]]:
        """Returns the messages of each session, from the journals."""
        found: dict[str, list[int]] = {}
        for journal in self.journals:
            for _, _, deliveries, _ in journal.records:
                for name, number in deliveries:
                    found.setdefault(name, []).append(number)
        return found
