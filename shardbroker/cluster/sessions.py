"""All sessions' cores of one worker: its registrar and its claims, with the messages between them.

Each worker of a node has them for the keys whose partition is its own; all nodes have the same partitions, but may have other
numbers of workers. The driver passes on every message of sessions that arrives, every change of the view, and time; it carries out
what is returned, in order. A message to the node itself is of a key of this worker, so it never leaves this module.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

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
    Held,
    Here,
    Moved,
    Release,
    SessionMessage,
    Sessions,
    Starting,
)
from shardbroker.cluster.outputs import SessionOutput, ToNode
from shardbroker.cluster.registry import ALL_PARTITIONS, BITMAP_BYTES, Registry
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.takeover import PART_BYTES_MAX, TakeFault
from shardbroker.cluster.view import DIGEST_BYTES

__all__ = ["NodeSessions", "checked"]

TEXT_BYTES_MAX = 65_535
"""Bytes of a client id and of a topic (MQTT strings)."""
MESSAGE_BYTES_MAX = PART_BYTES_MAX + (64 << 10)
"""Bytes of a message in TAIL: the largest packet with `mqtt.max_packet_size` as by default, and what its session adds to it."""
STAMP = 0, POSITION_MAX
ID = 0, (1 << 128) - 1
NODE = 0, NODE_ID_MAX
BOUNDS = {
    "partition": (0, PARTITIONS - 1),
    "hash": (0, (1 << 64) - 1),
    "generation": STAMP,
    "stamp": STAMP,
    "clean_stamp": STAMP,
    "number": STAMP,
    "part": (1, (1 << 32) - 1),
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
    name = type(message).__name__
    if isinstance(message, Sessions) and len(message.held) <= SESSIONS_HELD and all(map(_is_in_range, message.held)):
        _check(name, message._replace(held=()))
    else:
        _check(name, message)
    return message


def _is_in_range(held: Held) -> bool:
    """Returns whether `_check` accepts a session, in a tenth of its time: REBUILD is answered with millions of them."""
    (partition, number), generation, stamp, _, _ = held
    return 0 <= partition < PARTITIONS and 0 <= number < 1 << 64 and 0 <= generation <= POSITION_MAX and 0 <= stamp <= POSITION_MAX


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
    """The sessions of one worker, and the partitions that its node owns among those of the worker.

    `partitions`: those of the worker. `number`: larger than any that the cores of an earlier process of the worker have used, for
    example the time in microseconds, since answers to that process may still arrive.
    """

    def __init__(
        self,
        node_id: int,
        queues: LateQueues,
        clock: HybridClock | None = None,
        settings: Callable[[], ClaimSettings] = ClaimSettings,
        partitions: Collection[int] = ALL_PARTITIONS,
        number: int = 0,
    ) -> None:
        self.node_id = node_id
        self.clock = clock or HybridClock()
        self.registry = Registry(node_id, self.clock, partitions, number)
        self.claims = Claims(node_id, self.clock, queues, settings, partitions, number)
        self._seen = (0, 0)
        """Run and epoch of the view."""

    def shift(self, paused_ms: int) -> None:
        """Takes the end of a time in which nothing was received: it does not count as silence of nodes."""
        self.registry.shift(paused_ms)
        self.claims.shift(paused_ms)

    def image(self) -> dict[str, Any]:
        """Returns everything but OWNED sessions of clients as plain values, for the process that replaces the worker."""
        registry, claims = self.registry.image(), self.claims.image()
        return {"clock": self.clock.last, "view": list(self._seen), "registry": registry, "claims": claims}

    def take_image(self, image: dict[str, Any]) -> None:
        """Continues where another process of the worker was, behind `claims.restore` for each OWNED session of a client.

        The clock of the driver has to be the one of that process. Raises KeyError, TypeError, ValueError, struct.error.
        """
        self.clock.last = max(self.clock.last, image["clock"])
        run, epoch = image["view"]
        self._seen = run, epoch
        self.registry.take_image(image["registry"])
        self.claims.take_image(image["claims"])

    def follow(self, view: SessionView, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        """Takes a view; to be called for each one, in order with the messages."""
        self.claims.set_links({*view.linked}, view.all_up, view.isolated)
        (run, epoch), self._seen = self._seen, (view.run, view.epoch)
        if (run, epoch) == self._seen:
            return []
        is_new_run = view.run != run
        found: list[SessionOutput] = [*self.registry.set_view(view.members, view.digest, view.owners, now_ms, is_new_run)]
        found += self.claims.set_view(view.members, view.digest, view.owners, now_ms, is_new_run)
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
                return registry.announce(node, held, now_ms, clock_ms)
            case Release():
                registry.release(node, message)
                return []
            case Sessions():
                return registry.sessions(node, message, now_ms)
            case Moved():
                return registry.moved(node, message, now_ms)
            case Find():
                return registry.find(node, message)
            case Starting():
                return [*registry.starting(node, message, now_ms), *self.claims.received(node, message, now_ms, clock_ms)]
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
