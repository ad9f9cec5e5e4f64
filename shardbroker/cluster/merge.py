"""Two sessions of one client id become one: which of them stays, and which messages of the other one are appended.

The session that stays is the connected one, else that with the later connect, else that of the higher node. The other one is
stale: its queued messages are sent to the holder, which appends those that it has not had. The same path serves a session that
has moved and still gets messages from publishers that did not have the routes of its new node.

An id begins with a stamp by the clock of the process that took the message, and ends with that process (`origin_of`). The ids of
one process grow, and its messages are in order on each way, so they are compared with each other only: clocks of nodes may differ
by days. `passed` has the highest id of each process that an earlier node of the session had dealt with when the session was
exported: messages up to it were delivered or queued there, and are not taken from publishers. What the earlier node had not
dealt with reaches it later, and follows in its tail.

`base` is a stamp as an id (`id_floor`): ids up to it may belong to a session that is not merged yet, so late messages with such
ids wait for it. That delays them if clocks differ, and loses nothing.

Invariant: the session knows whether it or a session merged into it has had a message, unless the id is above `passed` and
within a span of `forgotten`.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from shardbroker.cluster.messages import Held, Queued, Tail

__all__ = [
    "ORIGINS_MAX", "SEEN_MAX", "SPANS_MAX", "Appended", "Passed", "SeenIds", "Spans", "append", "id_floor", "origin_of", "wins",
]  # fmt: skip

ID_BITS = 64
"""Bits of a message id below its stamp: process and sequence."""
MS_SHIFT = 80
"""Bits of a message id below the milliseconds of its stamp."""
SEQUENCE_BITS = 16
"""Bits of a message id below its process, which is a node and a number that its worker has drawn at its start."""
ORIGIN_MASK = (1 << ID_BITS - SEQUENCE_BITS) - 1
ORIGINS_MAX = 4096
"""Processes in `passed`, those with the latest messages: 23 nodes of 64 workers, and their predecessors."""
SPANS_MAX = 2_000
"""Spans of ids in `forgotten`: 64 KB, one for each process of 23 nodes of 64 workers, and some for holes."""

SEEN_MAX = 10_000
"""Ids kept for a session: 160 KB; one message a millisecond for 10 s."""


def wins(one: Held, one_node: int, other: Held, other_node: int) -> bool:
    """Returns whether one of two sessions of a key stays. A session that is being given away loses against a later grant."""
    if one.is_moving != other.is_moving:
        moving, still = (one, other) if one.is_moving else (other, one)
        if still.generation > moving.generation:
            return still is one
    return (one.is_connected, one.stamp, one_node) > (other.is_connected, other.stamp, other_node)


def id_floor(stamp: int) -> int:
    """Returns the largest id with a stamp; 0 for the stamp 0."""
    return stamp << ID_BITS | (1 << ID_BITS) - 1 if stamp else 0


def origin_of(message_id: int) -> int:
    """Returns the process that took a message from its publisher: node and number, 48 bits."""
    return message_id >> SEQUENCE_BITS & ORIGIN_MASK


class Passed:
    """The highest id of each process."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._highest: dict[int, int] = {}
        for message_id in ids:
            self.note(message_id)

    def __len__(self) -> int:
        return len(self._highest)

    def __contains__(self, message_id: int) -> bool:
        """Returns whether this id, or a higher one of its process, was noted."""
        return message_id <= self._highest.get(origin_of(message_id), -1)

    @property
    def ids(self) -> list[int]:
        return [*self._highest.values()]

    def note(self, message_id: int) -> None:
        """Takes an id; the process without a new one for the longest time is forgotten above `ORIGINS_MAX`."""
        origin = origin_of(message_id)
        highest = max(message_id, self._highest.pop(origin, -1))
        self._highest[origin] = highest
        if len(self._highest) > ORIGINS_MAX:
            del self._highest[next(iter(self._highest))]


class Spans:
    """Ids of each process as spans: (lowest, highest) of ids that follow each other closely.

    An id between two of a span counts as one of them. How close that is follows from the number of spans: the distance is doubled
    whenever there are more than SPANS_MAX, so what a session missed for a while stays a hole.
    """

    def __init__(self, ends: Iterable[int] = ()) -> None:
        """ends: as `ids` returns them. An id without another one of its process beside it ends a span from the first on."""
        self._lows: dict[int, list[int]] = {}
        self._highs: dict[int, list[int]] = {}
        self._count, self._distance_ms = 0, 0
        given = [*ends]
        at = 0
        while at < len(given):
            origin = origin_of(given[at])
            is_pair = at + 1 < len(given) and origin_of(given[at + 1]) == origin
            low, high = (given[at], given[at + 1]) if is_pair else (0, given[at])
            self._lows.setdefault(origin, []).append(low)
            self._highs.setdefault(origin, []).append(high)
            self._count += 1
            at += 1 + is_pair
        if self._count > SPANS_MAX:
            self._widen()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, message_id: int) -> bool:
        origin = origin_of(message_id)
        at = bisect_right(self._lows.get(origin, ()), message_id) - 1
        return at >= 0 and message_id <= self._highs[origin][at]

    @property
    def ids(self) -> list[int]:
        """Returns the ends of all spans, (lowest, highest) one after the other."""
        return [
            end for origin, lows in self._lows.items() for span in zip(lows, self._highs[origin], strict=True) for end in span
        ]

    def note(self, message_id: int) -> None:
        """Takes an id; above SPANS_MAX processes, the one without a new id for the longest time is dropped."""
        origin = origin_of(message_id)
        lows = self._lows[origin] = self._lows.pop(origin, [])
        highs = self._highs.setdefault(origin, [])
        at = bisect_right(lows, message_id)
        if at and message_id <= highs[at - 1]:
            return
        lows.insert(at, message_id)
        highs.insert(at, message_id)
        self._count += 1
        self._join(lows, highs, at)
        self._join(lows, highs, at - 1)
        if self._count > SPANS_MAX:
            self._widen()

    def _join(self, lows: list[int], highs: list[int], at: int) -> None:
        """Makes one span of this one and the next one, if they are close."""
        if 0 <= at < len(lows) - 1 and (lows[at + 1] >> MS_SHIFT) - (highs[at] >> MS_SHIFT) <= self._distance_ms:
            del lows[at + 1], highs[at]
            self._count -= 1

    def _widen(self) -> None:
        """Leaves half of the spans, or one for each process."""
        while self._count > max(SPANS_MAX // 2, len(self._lows)):
            self._distance_ms = 2 * self._distance_ms + 1
            for origin, lows in self._lows.items():
                highs = self._highs[origin]
                for at in reversed(range(len(lows) - 1)):
                    self._join(lows, highs, at)
        while self._count > SPANS_MAX:
            origin = next(iter(self._lows))
            self._count -= len(self._lows.pop(origin))
            del self._highs[origin]


class SeenIds:
    """The ids of the messages that a session took, the latest ones."""

    def __init__(self, passed: Iterable[int] = (), base: int = 0, ids: Iterable[int] = (), forgotten: Iterable[int] = ()) -> None:
        self.passed, self.base = Passed(passed), base
        self.forgotten = Spans(forgotten)
        """Ids within these are not known any more: of QoS 2 they count as seen."""
        self._ids = dict.fromkeys(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, message_id: int) -> bool:
        return message_id in self._ids

    @property
    def ids(self) -> list[int]:
        return [*self._ids]

    def take(self, message_id: int) -> bool:
        """Takes a message from a publisher; returns whether it is to be delivered."""
        return message_id not in self.passed and self.add(message_id)

    def add(self, message_id: int) -> bool:
        """Notes an id; returns False if it was known."""
        if message_id in self._ids:
            return False
        self._ids[message_id] = None
        if len(self._ids) > SEEN_MAX:
            self.forget(SEEN_MAX // 10)
        return True

    def discard(self, message_id: int) -> None:
        """Forgets one id: its message is taken once more."""
        self._ids.pop(message_id, None)

    def forget(self, count: int) -> None:
        """Forgets the ids that were noted first."""
        for message_id in [*islice(self._ids, count)]:
            del self._ids[message_id]
            self.forgotten.note(message_id)

    def knows(self, message: Queued) -> bool:
        """Returns whether a message of another session was taken."""
        return message.id in self._ids or (message.qos == 2 and message.id in self.forgotten)


class Appended(NamedTuple):
    """Result of a merge, to be journaled in one block."""

    fresh: tuple[Queued, ...]      # to be appended, in the order of ids
    removed: tuple[int, ...]       # ids in the queue that the other session has delivered


def append(seen: SeenIds, queue: Collection[int], tail: Tail, is_settled: bool) -> Appended | None:
    """Merges a part of another session into one with this queue (ids); None: the part is too early and is sent again.
    `is_settled`: all seeds have been linked for some time, so there is no session that is not merged yet."""
    if is_settled:
        seen.base = 0
    if not tail.is_stale and any(message.id <= seen.base for message in tail.queued):
        return None
    fresh = [message for message in sorted(tail.queued) if not seen.knows(message)]
    for message in fresh:
        seen.add(message.id)
    removed = [message_id for message_id in tail.delivered if message_id in queue]
    for message_id in tail.delivered:
        seen.add(message_id)
    if tail.is_last:
        seen.base = min(seen.base, tail.base)
    return Appended(tuple(fresh), tuple(removed))
