"""Nodes of one worker each, with real sessions and journals and a network in memory: what drives session cores, without
processes."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from zlib import crc32

from shardbroker.cluster.claims import ClaimSettings, LateQueues
from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.handshake import cluster_uuid
from shardbroker.cluster.messages import SessionMessage
from shardbroker.cluster.rendezvous import owners
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import NodeSessions
from shardbroker.config import load
from shardbroker.journal import open_journal
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.link.session_codec import decode_session, encode_session
from shardbroker.stores.exclusive import ExclusiveTable
from shardbroker.worker.cluster_sessions import ClusterSessions
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.harness import wire
from tests.sim.simulator import MemoryRoutes

NOW_MS = 1_700_000_000_000
UUID = cluster_uuid("test")
PASS_MS = 5
PASSES = 40
"""Passes until everything that needs no timer is done."""


class Link:
    """The channel to link-0 of one node."""

    waits = False

    def __init__(self, net: "Net", node: int) -> None:
        self.net, self.node = net, node
        self.arrived: deque[SessionView | tuple[int, SessionMessage]] = deque()

    def send(self, node: int, message: SessionMessage) -> bool:
        self.net.send(self.node, node, message)
        return True

    def receive(self) -> list[SessionView | tuple[int, SessionMessage]]:
        found = [*self.arrived]
        self.arrived.clear()
        return found

    def flush(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1


class LoggingRouter(SansIoRouter):
    """A router that keeps its log."""

    lines: list[tuple[str, str]]

    def log(self, level: str, text: str) -> None:
        self.lines.append((level, text))


class Node:
    """One worker of one node."""

    def __init__(self, net: "Net", number: int, directory: Path, first: int = 1) -> None:
        self.net, self.number, self.first = net, number, first
        self.router = LoggingRouter(net.settings, net.routes, number, self.clock_ms(), seed=1, node_id=number)
        self.router.lines = []
        self.clock = HybridClock()
        self.link = Link(net, number)
        self.table = ExclusiveTable(directory.with_suffix(".exclusive"))
        self.router.subscriptions.keep_exclusive(self.table, self.router.sessions)
        self.sessions = ClusterSessions(self.router, self.link, self._core, UUID)
        writer = open_journal(directory, worker=0, workers=1, node_id=number)
        self.router.keep_journal(JournalRecorder(writer))
        self.sessions.restore()

    def _core(self, queues: LateQueues) -> NodeSessions:
        return NodeSessions(self.number, queues, self.clock, partial(ClaimSettings, self.net.lost_session), number=self.first)

    def clock_ms(self) -> int:
        return self.net.now_ms + self.net.skews_ms.get(self.number, 0)

    def connect(self, name: str, clean: bool = False, expiry: int = 300, will: wire.Will | None = None) -> "Session":
        return Session(self, name, clean, expiry, will)

    def step(self) -> None:
        self.sessions.receive()
        self.sessions.due()
        self.router.advance(self.clock_ms())
        self.sessions.flush()


class Session:
    """A client of one node, version 5. Acknowledges what it receives if it is told to."""

    def __init__(self, node: Node, name: str, clean: bool, expiry: int = 300, will: wire.Will | None = None) -> None:
        self.node = node
        self.channel: SansIoChannel = node.router.connect("127.0.0.1:1")
        self.packets: list[wire.Packet] = []
        self._rest = b""
        self._handled = 0
        properties = {"session_expiry_interval": expiry}
        self.channel.receive(wire.connect(name, clean=clean, keepalive=0, properties=properties, will=will))
        node.net.run()

    def send(self, data: bytes) -> None:
        self.channel.receive(data)
        self.node.net.run()

    def subscribe(self, topic: str, qos: int) -> None:
        self.send(wire.subscribe(1, [(topic, qos)]))

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int = 1) -> None:
        self.send(wire.publish(topic, payload, qos=qos, packet_id=packet_id))
        if qos == 2:
            self.send(wire.pubrel(packet_id))

    def take(self) -> list[wire.Packet]:
        """Returns what has arrived since the last call."""
        self._rest += self.channel.take_output()
        found = []
        while (parsed := wire.parse(self._rest, 5)) is not None:
            found.append(parsed[0])
            self._rest = self._rest[parsed[1] :]
        self.packets += found
        return found

    def connack(self) -> tuple[bool, int]:
        """Returns session present and reason code of the first packet."""
        first = (self.packets or self.take())[0]
        assert isinstance(first, wire.Connack)
        return first.session_present, first.code

    def drain(self) -> list[bytes]:
        """Returns the payloads that have arrived since the last call, and acknowledges them."""
        found: list[bytes] = []
        for _ in range(20):
            self.take()
            packets = self.packets[self._handled :]
            self._handled = len(self.packets)
            for packet in packets:
                if isinstance(packet, wire.Publish):
                    found.append(packet.payload)
                    if packet.qos:
                        self.send((wire.puback if packet.qos == 1 else wire.pubrec)(packet.packet_id))
                elif isinstance(packet, wire.Pubrel):
                    self.send(wire.pubcomp(packet.packet_id))
            if not packets:
                break
        return found


class Net:
    """Nodes, the links between them, and time."""

    def __init__(
        self, directory: Path, count: int = 2, lost_session: str = "new", skews_ms: Mapping[int, int] | None = None
    ) -> None:
        self.settings = load(None, {}, ["mqtt.exclusive_subscription=true"]).settings
        self.routes = MemoryRoutes()
        self.now_ms = NOW_MS
        self.lost_session = lost_session
        self.skews_ms = skews_ms or {}
        """By which the clocks of nodes are wrong."""
        self.cut: set[frozenset[int]] = set()
        self.epoch = 0
        self.sent: list[tuple[int, int, SessionMessage]] = []
        self.drops: Callable[[int, int, SessionMessage], bool] = lambda *_: False
        self.directory = directory
        self.nodes = {number: Node(self, number, directory / f"n{number}") for number in range(1, count + 1)}
        self.routes.shards = [node.router for node in self.nodes.values()]
        self.views()
        self.run()

    def replace(self, number: int) -> None:
        """Ends the worker of a node that has stored nothing yet, and starts another one."""
        first = self.now_ms * 1000
        self.nodes[number] = Node(self, number, self.directory / f"n{number}-{first}", first)
        self.routes.shards = [node.router for node in self.nodes.values()]
        self.views()

    def linked(self, one: int, other: int) -> bool:
        return one != other and frozenset((one, other)) not in self.cut

    def views(self) -> None:
        """Gives each node its view."""
        self.epoch += 1
        for number, node in self.nodes.items():
            linked = frozenset(other for other in self.nodes if self.linked(number, other))
            members = tuple((one, 1) for one in sorted({number, *linked}))
            found = bytes(owners([one for one, _ in members]))
            all_up = len(linked) == len(self.nodes) - 1
            digest = b"%d" % crc32(repr(members).encode())
            isolated = (len(linked) + 1) * 2 < len(self.nodes)
            node.link.arrived.append(SessionView(1, self.epoch, members, digest, found, linked, all_up, isolated))

    def split(self, one: int, other: int) -> None:
        self.cut.add(frozenset((one, other)))
        self.views()
        self.run()

    def heal(self) -> None:
        self.cut.clear()
        self.views()
        self.run()

    def send(self, sender: int, receiver: int, message: SessionMessage) -> None:
        self.sent.append((sender, receiver, message))
        if self.linked(sender, receiver) and not self.drops(sender, receiver, message):
            self.nodes[receiver].link.arrived.append((sender, decode_session(*encode_session(message))))

    def carry(self) -> None:
        """Carries messages between nodes that are linked; those to others stay in the spool."""
        for number, node in self.nodes.items():
            waiting, node.router.outgoing = node.router.outgoing, []
            kept = []
            for destination, record in waiting:
                if self.linked(number, destination):
                    self.nodes[destination].router.deliver(record)
                else:
                    kept.append((destination, record))
            node.router.outgoing += kept

    def run(self, ms: int = PASSES * PASS_MS) -> None:
        for _ in range(ms // PASS_MS):
            self.now_ms += PASS_MS
            for node in self.nodes.values():
                node.step()
            self.carry()

    def errors(self) -> list[str]:
        """Returns what was logged."""
        return [text for node in self.nodes.values() for _, text in node.router.lines]

    def count(self, kind: type[SessionMessage]) -> int:
        return sum(isinstance(message, kind) for _, _, message in self.sent)
