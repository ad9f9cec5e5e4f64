"""A cluster of simulated nodes, the acts that trouble it, and the invariants.

At every step: no node sends what the protocol forbids; positions of rings, journals and route tables never go back; a SUBACK that
is not late was sent after all peers that are up had the route, and one that is late had a peer to wait for; between two nodes
whose link is up on both sides, a publish finds each route whose SUBACK was sent.

At the end, healed: all links are up, the routes of each node in each table equal those that it has, every acknowledged message has
reached every session that existed (less what spools dropped and counted), none twice, in the order of each publisher, and no
record is left in a ring or a spool.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from types import ModuleType
from typing import ClassVar
from unittest.mock import patch

from shardbroker.cluster import inbound, outbound, rlog
from shardbroker.cluster.faults import ByeReason
from shardbroker.cluster.outbound import Level
from shardbroker.cluster.view import LinkState
from tests.cluster.sim.events import Events
from tests.cluster.sim.network import Network
from tests.cluster.sim.node import Message, Node

__all__ = ["Cluster", "run"]

TOPICS = 12
SESSIONS_MAX = 60
DOWN_US = (10_000, 4_000_000)
CUT_US = (20_000, 6_000_000)
HEAL_MS = 60_000
"""Fake time in which everything must be quiet after the last fault."""
BURST = 12
"""Messages of one act at most: more than fit a ring."""
SPOOL_SMALL = 4_000
"""Bytes of a spool that drops records."""
STORM = 30
"""Bursts of a storm."""
STORM_US = 1_000_000
POLL_US = 1_000
SMALL_LIMITS = {
    (rlog, "BATCH_ROUTES"): 5,
    (rlog, "WINDOW_BATCHES"): 3,
    (outbound, "DATA_BYTES"): 500,
    (outbound, "PUMP_BYTES"): 1_500,
    (outbound, "SPOOL_WINDOW_BYTES"): 1_000,
    (inbound, "OVERFLOW_BYTES"): 1_000,
}
"""Limits that a run has to reach."""
FAULTS = {ByeReason.WRONG_CLUSTER, ByeReason.DUPLICATE_ID, ByeReason.NOT_AUTHENTICATED, ByeReason.PROTOCOL_ERROR, ByeReason.LIMIT}
"""Reasons that no correct node gives another."""


class Cluster:
    """One seeded run."""

    limits: ClassVar[dict[tuple[ModuleType, str], int]] = SMALL_LIMITS

    def __init__(self, seed: int, nodes: int) -> None:
        self.rng = Random(seed)
        rng = self.rng
        self.events = Events()
        self.network = Network(self.events, rng, rng.choice((100, 1_000, 20_000)), rng.choice((0, 500, 5_000)))
        self.level = rng.choice((Level.PROCESS, Level.MACHINE))
        self.spool_bytes = rng.choice((1 << 30, 1 << 30, 1 << 30, SPOOL_SMALL))
        self.log_entries = rng.choice((20, 200, 10_000))
        self.fsync_us = rng.choice(((1_000, 20_000), (20_000, 300_000)))
        self.join_timeout_ms = rng.choice((1_500, 5_000))
        self.messages: list[Message] = []
        self.sequences: Counter[str] = Counter()
        self.ended: set[str] = set()
        self.created: dict[str, int] = {}
        """Number of messages before the SUBACK of each session."""
        self.unacked = 0
        self.names = 0
        self.faults = 0
        self.is_healing = False
        self.checked = 0
        self.convergence_checks = 0
        self.nodes = [self.make_node(index) for index in range(nodes)]
        self.seeds = [node.address for node in self.nodes]
        self.by_address = {node.address: node for node in self.nodes}
        late = rng.randint(0, nodes // 5)
        self.to_join = self.nodes[nodes - late :]
        for node in self.nodes[: nodes - late]:
            self.events.after(rng.randint(0, 200_000), node.start)

    def make_node(self, index: int) -> Node:
        return Node(self, index)

    # --- what nodes report ---------------------------------------------------------------------------------------------

    def refused(self, node: Node, reason: int, text: str) -> None:
        assert reason not in FAULTS, f"{node.name}: {ByeReason(reason).name}: {text}"

    def crashed(self, node: Node) -> None:
        """Ends a node at the step that it has reached."""
        if not node.runs or self.is_healing:
            return
        node.kill(power_cut=self.level == Level.MACHINE and self.rng.random() < 0.5)
        self.faults += 1
        self.events.after(self.rng.randint(*DOWN_US), self.restart, node)

    def restart(self, node: Node) -> None:
        if not node.runs and not node.has_left:
            node.start()

    def left(self, node: Node) -> None:
        assert not any(node.delivered().keys() - self.ended), "a session outlived its node"

    def expect(self, publisher: Node, message: Message, nodes: list[int]) -> None:
        """Notes who has to get a message that is about to be put into rings, and checks the routes that its publisher found."""
        for node in self.nodes:
            if node is publisher or not node.joined or node.has_left:
                continue
            due = [session for session in node.sessions.values() if session.topic == message.topic and session.created >= 0]
            if node.node_id in nodes:
                message.due += [session.name for session in due]
            elif publisher.runs and (
                missed := [session.name for session in due if session.known.get(publisher.node_id) == publisher.routes_lost]
            ):
                raise AssertionError(f"{publisher.name} had the routes of {node.name} for {missed}")
            elif publisher.runs and node.runs and self.is_up(publisher, node) and self.is_up(node, publisher):
                missed = [session.name for session in due if not session.is_late]
                assert not missed, f"{publisher.name} has no route to {node.name} for {missed}"
            self.convergence_checks += len(due)

    def is_up(self, one: Node, other: Node) -> bool:
        link = one.signals.view.link_of(other.node_id)
        known = link is not None and link.node is not None and link.node.incarnation == other.incarnation
        return known and link.state == LinkState.UP

    # --- acts ----------------------------------------------------------------------------------------------------------

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.runs]

    def guarded(self, node: Node, call: Callable[..., None], *arguments: object) -> None:
        node.guarded(call, *arguments)

    def act(self) -> None:
        rng, running = self.rng, self.running()
        for node in running:
            node.check_left()
        running = self.running()
        if not running:
            return
        node, act = rng.choice(running), rng.random()
        if act < 0.65:
            self.publish(node)
        elif act < 0.83:
            self.subscribe_or_not(node)
        elif act < 0.90:
            self.guarded(node, node.churn, rng.randint(1, 30))
        elif act < 0.93:
            self.storm(node, STORM)
        elif act < 0.99:
            self.trouble(node)
        else:
            self.join_or_leave(node)

    def publish(self, node: Node, topic: bytes = b"") -> None:
        if not node.runs or not node.signals.view.serves:
            return
        publisher = f"{node.name}p{self.rng.randint(0, 3)}"
        topic, qos = topic or b"t/%d" % self.rng.randrange(TOPICS), self.rng.choice((0, 1, 2))
        for _ in range(self.rng.randint(1, BURST)):
            if not node.runs:
                return
            self.sequences[publisher] += 1
            message = Message(len(self.messages), publisher, self.sequences[publisher], topic, qos, [])
            self.messages.append(message)
            self.guarded(node, node.publish, message)

    def storm(self, node: Node, count: int) -> None:
        """Publishes to a session for a while, whatever else happens; its node may crash or be cut off in the middle of it."""
        sessions = [(one, session) for one in self.nodes if one.joined and one is not node for session in one.sessions.values()]
        if not sessions:
            return
        target, session = self.rng.choice(sessions)
        for _ in range(count):
            self.events.after(self.rng.randint(0, STORM_US), self.publish, node, session.topic)
        fault = self.rng.randrange(3)
        if fault == 0:
            self.events.after(self.rng.randint(1, STORM_US), self.crash_busy, target, STORM_US // POLL_US)
        elif fault == 1:
            self.cut([node, target], False)

    def crash_busy(self, node: Node, tries: int) -> None:
        """Ends a node once some of its workers have records that are not on disk."""
        if any(inlet.secured < inlet.head for inlet in node.inlets):
            self.crashed(node)
        elif tries:
            self.events.after(POLL_US, self.crash_busy, node, tries - 1)

    def subscribe_or_not(self, node: Node) -> None:
        if not node.signals.view.serves:
            return
        if node.sessions and (self.rng.random() < 0.3 or sum(len(one.sessions) for one in self.running()) > SESSIONS_MAX):
            session = node.sessions[self.rng.choice(sorted(node.sessions))]
            if session.created >= 0:
                self.guarded(node, node.unsubscribe, session.name)
            return
        self.names += 1
        self.guarded(node, node.subscribe, f"s{self.names}", b"t/%d" % self.rng.randrange(TOPICS))

    def trouble(self, node: Node) -> None:
        rng = self.rng
        match rng.randrange(9):
            case 0 | 7 | 8:
                node.countdown = rng.randint(1, 60)
            case 1:
                self.cut([node], rng.random() < 0.4)
            case 2:
                side = rng.sample(self.nodes, rng.randint(1, len(self.nodes) // 2))
                self.cut(side, rng.random() < 0.2)
            case 3:
                ends = [end for end in self.network.ends.values() if end.host is node]
                if ends:
                    self.network.reset(rng.choice(ends))
            case 4:
                self.guarded(node, node.kill_link, rng.choice((0, 1)))
            case 5:
                node.fill_disk(True)
                self.events.after(rng.randint(*CUT_US), node.fill_disk, False)
            case 6:
                node.skew_ms = rng.randint(-2000, 2000)
        self.faults += 1

    def cut(self, side: list[Node], one_way: bool) -> None:
        """Cuts the nodes of one side from some or all others, for a while."""
        others = [node for node in self.nodes if node not in side]
        if self.rng.random() < 0.3 and others:
            others = self.rng.sample(others, 1)
        pairs = {(one.index, other.index) for one in side for other in others}
        if not one_way:
            pairs |= {(other, one) for one, other in pairs}
        self.network.cut |= pairs
        self.events.after(self.rng.randint(*CUT_US), self.network.cut.difference_update, pairs)

    def join_or_leave(self, node: Node) -> None:
        if self.to_join and self.rng.random() < 0.7:
            self.to_join.pop().start()
        elif len(self.running()) > len(self.nodes) // 2 and node.signals.view.serves and not node.has_left:
            self.guarded(node, node.leave)

    # --- the run -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults, and waits until nothing moves any more."""
        self.is_healing = True
        self.network.cut.clear()
        for node in self.nodes:
            node.countdown = 0
            node.fill_disk(False)
            if not node.runs and (node.joined or node in self.to_join) and not node.has_left:
                node.start()
        waited = 0
        while waited < HEAL_MS:
            self.events.run(500)
            waited += 500
            for node in self.nodes:
                node.check_left()
            if (restless := self.restless()) is None:
                return
        raise AssertionError(f"not quiet {HEAL_MS} ms after the last fault: {restless}")

    def restless(self) -> str | None:
        """Returns what is not quiet, or None."""
        for node in self.running():
            for other in self.running():
                if other is not node and not self.is_up(node, other):
                    link = node.signals.view.link_of(other.node_id)
                    return f"link of {node.name} to {other.name}: {link}"
                if other is not node and node.routes.routes_of(other.node_id) != other.log.routes:
                    return f"routes of {other.name} on {node.name}"
            if node.parked or (node.waiting and self.level == Level.MACHINE) or any(inlet.items for inlet in node.inlets):
                return f"messages on {node.name}: {len(node.parked)} parked, {len(node.waiting)} not acknowledged"
            for peer, channel in node.data.peers.items():
                if not self.nodes[peer - 1].has_left and self.nodes[peer - 1].joined and not channel.outbound.is_empty:
                    return f"streams of {node.name} to {self.nodes[peer - 1].name}: {channel.outbound.state}"
            if len(node.signals.suback):
                return f"SUBACKs of {node.name}"
        return None

    def check(self) -> int:
        """Checks what must hold at the end; returns the number of deliveries that were checked."""
        delivered: dict[str, list[int]] = {}
        dropped: Counter[int] = Counter()
        for node in self.nodes:
            if node.runs:
                node.count_dropped()
                views = {one.signals.view.digest for one in self.running()}
                assert len(views) == 1, "nodes have different member sets"
                assert not node.signals.view.isolated or len(self.running()) * 2 < len(self.nodes), f"{node.name} is isolated"
            dropped += node.dropped
            for name, numbers in node.delivered().items():
                delivered.setdefault(name, []).extend(numbers)
        checked = lost = 0
        left = {node.name for node in self.nodes if node.has_left}
        for name, numbers in delivered.items():
            twice = [number for number, count in Counter(numbers).items() if count > 1]
            assert not twice, f"{name}: message {twice[0]} (QoS {self.messages[twice[0]].qos}) twice"
            last: dict[str, int] = {}
            for number in numbers:
                message = self.messages[number]
                if self.level == Level.MACHINE and number < self.created.get(name, 0):
                    # Older than the subscription: released by its sender, and back in the spool after a power cut.
                    continue
                assert message.sequence > last.get(message.publisher, 0), f"{name}: message {number} out of order"
                last[message.publisher] = message.sequence
            checked += len(numbers)
        for message in self.messages:
            # A node that leaves drops what peers have not taken after a while.
            if message.is_acked and message.publisher.partition("p")[0] not in left:
                for name in message.due:
                    if name not in self.ended and message.number not in delivered.get(name, ()):
                        lost += 1
                        may_drop = dropped[1] + dropped[2] and self.spool_bytes == SPOOL_SMALL
                        assert may_drop, f"{name}: message {message.number} of {message.publisher} is lost"
        assert lost <= (dropped[1] + dropped[2]) * SESSIONS_MAX, "more is lost than spools have dropped"
        return checked


def run(seed: int, nodes: int = 23, steps: int = 300, kind: type[Cluster] = Cluster) -> Cluster:
    """Makes one run. Raises AssertionError with the seed in it."""
    with ExitStack() as stack:
        for (module, name), value in kind.limits.items():
            stack.enter_context(patch.object(module, name, value))
        return _run(seed, nodes, steps, kind)


def _run(seed: int, nodes: int, steps: int, kind: type[Cluster]) -> Cluster:
    try:
        cluster = kind(seed, nodes)
        cluster.events.run(3_000)
        for _ in range(steps):
            cluster.act()
            cluster.events.run(cluster.rng.choice((0, 1, 10, 50, 200)))
        cluster.heal()
        cluster.checked = cluster.check()
        return cluster
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {nodes} nodes, {steps} steps: {error}") from error
