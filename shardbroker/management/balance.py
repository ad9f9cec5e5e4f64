"""What a rebalance leaves on this node: the average of the nodes that take part, as the nodes have reported their loads.

A load is a claim of its node, so it decides how much leaves this node and nothing else. The goal of a phase is the average at its
beginning: clients that are disconnected are on no node for a moment, and an average of that moment would be too low. The goal only
rises afterwards. Even if all others claim to be empty, this node keeps its share.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["DISCONNECT_S", "OFFER_S", "Share", "UnderWay", "goal_of", "is_within"]

OFFER_S = 4.0
"""How long an offered session counts as one that leaves: an offer ends after 3 s (shardbroker/cluster/offers.py)."""
DISCONNECT_S = 1.0
"""How long a client that was disconnected may still be counted."""


class Share(NamedTuple):
    """What one other node has that takes part and accepts clients."""

    name: str
    node_id: int
    connections: int
    absent: int
    """Sessions without a client."""


def goal_of(own: int, others: Sequence[int]) -> int:
    """Returns the average, rounded up."""
    return -(-(own + sum(others)) // (1 + len(others)))


def is_within(value: int, average: float, absolute: int, relative: float) -> bool:
    """Returns whether a value is so close to an average that nothing has to leave, as in EMQX: one of both thresholds is enough."""
    return value <= average + absolute or value <= average * relative


class UnderWay:
    """Clients or sessions that are about to leave. They count twice for a moment, so that never too many leave."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._offers: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, count: int) -> None:
        """Notes some of them."""
        if count:
            self._offers.append((now_s, count))

    def count(self, now_s: float) -> int:
        """Returns how many there were within the span."""
        while self._offers and now_s - self._offers[0][0] >= self._span_s:
            self._offers.popleft()
        return sum(count for _, count in self._offers)
