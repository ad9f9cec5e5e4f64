"""Clocks that are wrong by minutes to days: most nodes start so, and clocks jump while sessions move and links are cut.

Generations are stamps of hybrid clocks, deadlines are those of the monotonic clock, and ids of messages are compared only with
those of the same process. So whatever the clocks show, the invariants of sessions hold at every step (one owner under one member
set, claims in order, a CONNECT answered in time), and nothing that was acknowledged is lost. A clock that jumps moves the ids of a
process only when it is started again, as in a worker. What has moved is forwarded for a shorter time than in the broker, so that a
run is long enough to publish behind its end.
"""

from types import ModuleType
from typing import ClassVar

from shardbroker.cluster import claims
from tests.cluster.sim.cluster import SMALL_LIMITS
from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import RoamingCluster

__all__ = ["DAY_MS", "HOUR_MS", "MINUTE_MS", "ClocksCluster"]

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SKEWS_MS = -3 * DAY_MS, -HOUR_MS, -5 * MINUTE_MS, -70_000, 0, 70_000, 5 * MINUTE_MS, HOUR_MS, 3 * DAY_MS
JUMP_SHARE = 0.05
FORWARD_MS = 6_000


class ClocksCluster(RoamingCluster):
    """A run in which clocks jump."""

    limits: ClassVar[dict[tuple[ModuleType, str], int]] = {**SMALL_LIMITS, (claims, "FORWARD_MS"): FORWARD_MS}
    jumps = 0

    def make_node(self, index: int) -> Node:
        node = super().make_node(index)
        node.skew_ms = self.rng.choice(SKEWS_MS)
        return node

    def act(self) -> None:
        if self.rng.random() < JUMP_SHARE:
            self.rng.choice(self.nodes).skew_ms = self.rng.choice(SKEWS_MS)
            self.jumps += 1
        super().act()
