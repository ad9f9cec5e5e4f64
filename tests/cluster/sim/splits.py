"""Splits under load: cuts of all kinds, clients that reconnect on both sides, queues of several TAILs and slow clients.

No node ends here, so every session lives, and nothing that was acknowledged may be lost. Cuts are halves, one node, single pairs,
one way, and repeated; they overlap. A slow client takes a few messages at a time, so its session has a queue when it moves, is
revoked or is merged.
"""

from types import ModuleType
from typing import ClassVar

from shardbroker.cluster import claims
from shardbroker.cluster.claims import SessionState
from shardbroker.cluster.messages import Tail
from shardbroker.cluster.outbound import Level
from tests.cluster.sim.cluster import SMALL_LIMITS
from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import ROAM_TOPICS, Copy, RoamingCluster, RoamingNode

__all__ = ["LongQueuesCluster", "SplitsCluster"]

TAIL_MESSAGES = 20
"""Messages of one TAIL in most runs: a queue of some TAILs is then short."""
CUT_US = (200_000, 8_000_000)
FLAP_US = (20_000, 2_500_000)
"""Of a cut that is repeated, and of the pause behind it."""
FLAPS = 4
PAUSE_US = (1_000, 60_000)
"""Between two messages, or a few, of a slow client."""
WINDOWS = 0, 0, 1, 3, 10
LOAD_US = 2_000_000


class SplitsNode(RoamingNode):
    """A node with slow clients."""

    cluster: "SplitsCluster"

    def flush(self, copy: Copy) -> None:
        """Delivers what a client takes at once; the rest follows after a pause."""
        client = self.cluster.clients[copy.client]
        if not client.window:
            super().flush(copy)
        elif copy.uid not in self.paused:
            self.paused.add(copy.uid)
            self.cluster.events.after(self.rng.randint(*PAUSE_US), self._later, self.life, self.resume, (copy.uid,))

    def resume(self, uid: int) -> None:
        self.paused.discard(uid)
        copy = self.copies.get(uid)
        if copy is None:
            return
        before = len(copy.queue)
        super().flush(copy)
        if copy.queue and len(copy.queue) < before:
            self.flush(copy)

    def recover(self) -> None:
        super().recover()
        self.paused: set[int] = set()

    def merge(self, copy: Copy, node_id: int, tail: Tail) -> None:
        if tail.is_stale:
            self.cluster.tails.setdefault((node_id, tail.uid), set()).add(tail.number)
        super().merge(copy, node_id, tail)


class SplitsCluster(RoamingCluster):
    """A run with cuts, and without deaths."""

    limits: ClassVar[dict[tuple[ModuleType, str], int]] = {**SMALL_LIMITS, (claims, "TAIL_MESSAGES"): TAIL_MESSAGES}
    load = 5
    """Bursts of messages to one topic while its clients are slow or absent."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.tails: dict[tuple[int, int], set[int]] = {}
        """TAILs of each stale session."""
        self.cuts = 0
        super().__init__(seed, nodes)
        while self.to_join:
            self.to_join.pop().start()
        if self.level == Level.MACHINE:
            self.fsync_us = min(self.fsync_us, (1_000, 20_000))
        for client in self.clients.values():
            client.window = self.rng.choice(WINDOWS)

    def make_node(self, index: int) -> Node:
        return SplitsNode(self, index)

    @property
    def numbers(self) -> str:
        several = sum(len(numbers) > 1 for numbers in self.tails.values())
        return f"{self.cuts} cuts, {len(self.tails)} stale sessions, {several} of several TAILs, {super().numbers}"

    def act(self) -> None:
        rng = self.rng
        node, act = rng.choice(self.running()), rng.random()
        assert isinstance(node, RoamingNode)
        self.check_waiting()
        if act < 0.40:
            self.publish(node, b"r/%d" % rng.randrange(ROAM_TOPICS))
        elif act < 0.44:
            self.load_up(node)
        elif act < 0.72:
            self.connect(self.clients[rng.choice(sorted(self.clients))], node, rng.random() < 0.05)
        elif act < 0.82:
            client = self.clients[rng.choice(sorted(self.clients))]
            if client.node is not None and client.is_connected:
                client.node.core.claims.disconnected(client.key)
                self.cut_off(client)
        elif act < 0.88:
            self.churn_clients()
        elif act < 0.94:
            self.split()

    def load_up(self, node: Node) -> None:
        """Publishes to one topic on several nodes for a while."""
        topic = b"r/%d" % self.rng.randrange(ROAM_TOPICS)
        for _ in range(self.load):
            self.events.after(self.rng.randint(0, LOAD_US), self.publish, self.rng.choice(self.running()), topic)

    def split(self) -> None:
        """Cuts some nodes from others, for a while or again and again."""
        rng, nodes = self.rng, self.rng.sample(range(len(self.nodes)), len(self.nodes))
        kind = rng.choice(("halves", "halves", "one", "pair", "one way", "again"))
        size = {"one": 1, "pair": 1}.get(kind) or rng.randint(1, len(nodes) // 2)
        size = len(nodes) // 2 if kind == "halves" else size
        others = nodes[size : size + 1] if kind == "pair" else nodes[size:]
        pairs = {(one, other) for one in nodes[:size] for other in others}
        if kind != "one way":
            pairs |= {(other, one) for one, other in pairs}
        self.cuts += 1
        start = 0
        for _ in range(rng.randint(2, FLAPS) if kind == "again" else 1):
            end = start + rng.randint(*(FLAP_US if kind == "again" else CUT_US))
            self.events.after(start, self.begin_cut, pairs)
            self.events.after(end, self.network.cut.difference_update, pairs)
            start = end + rng.randint(*FLAP_US)

    def begin_cut(self, pairs: set[tuple[int, int]]) -> None:
        if not self.is_healing:
            self.network.cut |= pairs

    def unsettled(self) -> str | None:
        if (found := super().unsettled()) is not None:
            return found
        for client in self.clients.values():
            if client.node is not None and client.is_connected:
                mine = (copy for copy in client.node.copies.values() if copy.key == client.key)
                queue = next((copy.queue for copy in mine if copy.state == SessionState.OWNED), None)
                if queue:
                    return f"queue of {client.name}: {len(queue)} messages"
        return None


class LongQueuesCluster(SplitsCluster):
    """Runs in which queues have some TAILs of the broker's own size, 200 messages."""

    limits = SMALL_LIMITS
    load = 60
