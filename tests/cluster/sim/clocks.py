"""Clocks that are wrong by an hour: some nodes start so, and clocks jump while sessions move and links are cut.

Generations are stamps of hybrid clocks, deadlines are those of the monotonic clock. So whatever the clocks show, the
invariants of sessions hold at every step: one owner under one member set, claims in order, a CONNECT answered in time.
"""

from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import RoamingCluster

__all__ = ["HOUR_MS", "ClocksCluster"]

HOUR_MS = 3_600_000
JUMPS_MS = -HOUR_MS, 0, HOUR_MS
JUMP_SHARE = 0.05


class ClocksCluster(RoamingCluster):
    """A run in which clocks jump."""

    jumps = 0

    def make_node(self, index: int) -> Node:
        node = super().make_node(index)
        node.skew_ms = self.rng.choice(JUMPS_MS)
        return node

    def act(self) -> None:
        if self.rng.random() < JUMP_SHARE:
            self.rng.choice(self.nodes).skew_ms = self.rng.choice(JUMPS_MS)
            self.jumps += 1
        super().act()
