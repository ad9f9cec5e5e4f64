"""What a rebalance leaves on a node: the average of the nodes that take part, as the nodes have reported their loads.

A load is a claim of its node, so it decides how much leaves this node and nothing else. The goal of a phase is the average at its
beginning: clients that are disconnected are on no node for a moment, and an average of that moment would be too low. The goal only
rises afterwards. Even if all others claim to be empty, this node keeps its share.

Where clients connect is not decided here, so a node that gets them may fill up while another one stays empty. Donors stop before it
has more than the thresholds allow. So no rebalance makes a node one that the next rebalance empties.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shardbroker.stores.evacuation import Thresholds

__all__ = [
    "ARRIVAL_S", "DISCONNECT_S", "OFFER_S", "Load", "Plan", "Share", "UnderWay", "goal_of", "is_within", "limit_of", "part_of",
    "plan_of",
]  # fmt: skip

OFFER_S = 4.0
"""How long an offered session counts as one that leaves: an offer ends after 3 s (shardbroker/cluster/offers.py)."""
DISCONNECT_S = 1.0
"""How long a client that was disconnected may still be counted."""
ARRIVAL_S = 5.0
"""How long a client that was disconnected counts as one that is about to connect elsewhere: until its new node has reported it."""


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
    return value <= limit_of(average, absolute, relative)


def limit_of(average: float, absolute: int, relative: float) -> int:
    """Returns the largest value that is within the thresholds of an average."""
    return int(max(average + absolute, average * relative))


def part_of(amount: int, place: int, count: int) -> int:
    """Returns the part of one of `count` nodes of an amount; the parts of all places are the amount."""
    return amount // count + (place < amount % count)


class Load(NamedTuple):
    """What a node has that takes part."""

    name: str
    connections: int
    absent: int


class Plan(NamedTuple):
    """What one command for all nodes has each of them do."""

    donors: tuple[str, ...]
    """They turn clients away, and give what they have above the goals and thresholds: maybe nothing."""
    recipients: tuple[str, ...]
    connection_goal: int
    session_goal: int


def plan_of(loads: Sequence[Load], thresholds: Thresholds, moves: bool) -> Plan | None:
    """Returns donors and recipients; None: there is nothing to balance. moves: whether sessions move.

    As in EMQX every node with the average number of clients or more is a donor while one has too many, since a client that is sent
    away would connect there, too. At least one node has less, and stays open. Once the clients are balanced, donors are the nodes
    with too many absent sessions.
    """
    goals = (
        goal_of(loads[0].connections, [load.connections for load in loads[1:]]),
        goal_of(loads[0].absent, [load.absent for load in loads[1:]]),
    )
    if any(not is_within(load.connections, goals[0], thresholds.abs_conn, thresholds.rel_conn) for load in loads):
        donors = tuple(load.name for load in loads if load.connections >= goals[0])
    elif moves:
        donors = tuple(
            load.name for load in loads if not is_within(load.absent, goals[1], thresholds.abs_sess, thresholds.rel_sess)
        )
    else:
        donors = ()
    return Plan(donors, tuple(load.name for load in loads if load.name not in donors), *goals) if donors else None


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
