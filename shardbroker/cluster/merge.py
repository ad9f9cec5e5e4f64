"""Two sessions of one client id become one: which of them stays, and which messages of the other one are appended.

The session that stays is the connected one, else that with the later connect, else that of the higher node. The other one is
stale: its queued messages are sent to the holder, which appends those that it has not had. The same path serves a session that
has moved and still gets messages from publishers that did not have the routes of its new node.

Ids begin with a stamp (`id_floor`). A session takes from publishers what is above its `floor`: what was published before it was
created or imported is part of an earlier session's queue, or was delivered there. `base` is below the floor once a session was
imported or merged: ids up to it belong to a session that is not merged yet, so late messages with such ids wait for it.

Invariant: of an id above `base`, the session knows whether it or a session merged into it has had the message, as long as the id
is above `forgotten`.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from shardbroker.cluster.messages import Held, Queued, Tail

__all__ = ["SEEN_MAX", "Appended", "SeenIds", "append", "id_floor", "wins"]

ID_BITS = 64
"""Bits of a message id below its stamp."""

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


class SeenIds:
    """The ids of the messages that a session took, the latest ones."""

    def __init__(self, floor: int, base: int = 0, ids: Iterable[int] = (), forgotten: int = 0) -> None:
        self.floor, self.base = floor, base
        self.forgotten = forgotten
        """Ids up to here are not known any more: of QoS 2 they count as seen."""
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
        return message_id > self.floor and self.add(message_id)

    def add(self, message_id: int) -> bool:
        """Notes an id; returns False if it was known."""
        if message_id in self._ids:
            return False
        self._ids[message_id] = None
        if len(self._ids) > SEEN_MAX:
            self.forget(sorted(self._ids)[SEEN_MAX // 10])
        return True

    def discard(self, message_id: int) -> None:
        """Forgets one id: its message is taken once more."""
        self._ids.pop(message_id, None)

    def forget(self, up_to: int) -> None:
        """Forgets ids up to one, for example of 10 s ago while all links are up."""
        self.forgotten = max(self.forgotten, up_to)
        self._ids = dict.fromkeys(number for number in self._ids if number > up_to)

    def knows(self, message: Queued) -> bool:
        """Returns whether a message of another session was taken."""
        return message.id in self._ids or (message.qos == 2 and message.id <= self.forgotten)


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
