"""All sessions' cores of one node: its registrar and its claims, with the messages between them.

The driver passes on every message of sessions that arrives (`Arrived`), every change of the view, and time; it carries out what is
returned, in order. Messages of the node to itself never leave this module.
"""

from collections import deque
from collections.abc import Sequence

from shardbroker.cluster.claims import SESSIONS_HELD, TAIL_MESSAGES, Claims, ClaimSettings, LateQueues
from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import NODE_ID_MAX
from shardbroker.cluster.merge import SEEN_MAX
from shardbroker.cluster.messages import (
    POSITION_MAX,
    Announce,
    Claim,
    Done,
    Find,
    Here,
    Moved,
    Release,
    SessionMessage,
    Sessions,
)
from shardbroker.cluster.outputs import SessionOutput, ToNode
from shardbroker.cluster.registry import BITMAP_BYTES, Registry
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.takeover import PART_BYTES_MAX, TakeFault
from shardbroker.cluster.view import DIGEST_BYTES, LinkState, View

__all__ = ["NodeSessions", "checked"]

TEXT_BYTES_MAX = 65_535
"""Bytes of a client id and of a topic (MQTT strings)."""
MESSAGE_BYTES_MAX = PART_BYTES_MAX
"""Bytes of a message in TAIL; a larger one travels as a spilled record."""
STAMP = 0, POSITION_MAX
ID = 0, (1 << 128) - 1
NODE = 0, NODE_ID_MAX
BOUNDS = {
    "partition": (0, PARTITIONS - 1),
    "hash": (0, (1 << 64) - 1),
    "generation": STAMP,
    "stamp": STAMP,
    "number": STAMP,
    "uid": STAMP,
    "ends": STAMP,
    "id": ID,
    "base": ID,
    "delivered": ID,
    "qos": (1, 2),
    "holder": NODE,
    "winner": NODE,
    "node": NODE,
    "denied": NODE,
    "fault": (min(TakeFault), max(TakeFault)),
}
"""Least and largest value of a number by the name of its field."""
SIZES = {
    "digest": (0, DIGEST_BYTES),
    "partitions": (BITMAP_BYTES, BITMAP_BYTES),
    "name": (0, TEXT_BYTES_MAX),
    "topic": (0, TEXT_BYTES_MAX),
    "body": (0, MESSAGE_BYTES_MAX),
    "held": (0, SESSIONS_HELD),
    "queued": (0, TAIL_MESSAGES),
    "delivered": (0, SEEN_MAX),
}
"""Least and largest size of a text and of a list by the name of its field."""


def checked(message: SessionMessage) -> SessionMessage:
    """Returns a message whose fields are in range. Raises PeerFault."""
    _check(type(message).__name__, message)
    return message


def _check(name: str, value: tuple[object, ...]) -> None:
    for field, one in zip(value._fields, value, strict=True):  # type: ignore[attr-defined]
        _check_one(name, field, one)


def _check_one(name: str, field: str, one: object) -> None:
    text = f"{name} {field}: must"
    if isinstance(one, bool) or one is None:
        return
    if isinstance(one, int):
        least, most = BOUNDS[field]
        if not least <= one <= most:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{text} be {least} to {most}, got {one}")
    elif isinstance(one, str | bytes) or (isinstance(one, tuple) and not hasattr(one, "_fields")):
        size = len(one.encode()) if isinstance(one, str) else len(one)
        least, most = SIZES[field]
        if not least <= size <= most:
            raise PeerFault(ByeReason.LIMIT, f"{text} have a size of {least} to {most}, got {size}")
        if isinstance(one, tuple):
            for part in one:
                _check_one(name, field, part)
    elif isinstance(one, tuple):
        _check(name, one)


class NodeSessions:
    """The sessions of one node and the partitions that it owns."""

    def __init__(
        self, node_id: int, queues: LateQueues, clock: HybridClock | None = None, settings: ClaimSettings | None = None
    ) -> None:
        self.node_id = node_id
        self.clock = clock or HybridClock()
        self.registry = Registry(node_id, self.clock)
        self.claims = Claims(node_id, self.clock, queues, settings)
        self._epoch = 0

    def view_lost(self) -> None:
        """Takes the end of the process that keeps the view: the next view counts as changed."""
        self._epoch = 0

    def follow(self, view: View, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes the view as it is now; to be called after each call of the signal channel."""
        links = [link for link in view.links.values() if link.node is not None and link.connection is not None]
        linked = {link.node.node_id for link in links if link.node is not None}
        all_up = all(link.state == LinkState.UP for link in view.links.values())
        self.claims.set_links(linked, all_up, view.isolated)
        if view.epoch == self._epoch:
            return []
        self._epoch = view.epoch
        found: list[SessionOutput] = [*self.registry.set_view(view.members, view.digest, view.owners, now_ms)]
        found += self.claims.set_view(view.members, view.digest, view.owners, now_ms)
        return self.deliver(found, now_ms, clock_ms)

    def received(self, node: int, message: SessionMessage, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes a message of another node. Raises PeerFault."""
        return self.deliver(self._received(node, message, now_ms, clock_ms), now_ms, clock_ms)

    def _received(self, node: int, message: SessionMessage, now_ms: int, clock_ms: int) -> Sequence[SessionOutput]:
        registry = self.registry
        match message:
            case Claim():
                return registry.claim(node, message, now_ms, clock_ms)
            case Done():
                return registry.done(node, message, now_ms, clock_ms)
            case Announce(held):
                return registry.announce(node, held)
            case Release():
                registry.release(node, message)
                return []
            case Sessions():
                return registry.sessions(node, message, now_ms)
            case Moved():
                return registry.moved(node, message, now_ms)
            case Find():
                return registry.find(node, message)
            case Here(ends=0):
                return registry.here(node, message, now_ms, clock_ms)
        return self.claims.received(node, message, now_ms, clock_ms)

    def deliver(self, outputs: Sequence[SessionOutput], now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Returns the outputs of a call of `claims` without messages of the node to itself: these are delivered."""
        waiting, done = deque(outputs), []
        while waiting:
            output = waiting.popleft()
            if isinstance(output, ToNode) and output.node_id == self.node_id:
                waiting.extendleft(reversed(self._received(self.node_id, output.message, now_ms, clock_ms)))
            else:
                done.append(output)
        return done

    def tick(self, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Does what is due by the clock; to be called every 50 ms or so."""
        return self.deliver([*self.registry.tick(now_ms, clock_ms), *self.claims.tick(now_ms)], now_ms, clock_ms)
