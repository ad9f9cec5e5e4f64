"""Mistakes that the simulation has to find: each is one or a few replaced functions of the cores."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from shardbroker.cluster.claims import Claims, SessionState
from shardbroker.cluster.clock import stamp_of
from shardbroker.cluster.core import CoreNode, CoreTable
from shardbroker.cluster.inbound import Inbound, StreamPositions, _ReceiveStream
from shardbroker.cluster.merge import Appended, SeenIds, append, id_floor
from shardbroker.cluster.messages import Message, RouteAck
from shardbroker.cluster.outbound import Outbound, _SendStream
from shardbroker.cluster.outputs import Taken
from shardbroker.cluster.registry import Registry
from shardbroker.cluster.rlog import RouteReceiver, RouteSender
from shardbroker.cluster.signals import Signals
from tests.cluster.sim import sessions
from tests.cluster.sim.disk import MemoryRoutes
from tests.cluster.sim.node import Node

__all__ = ["CLOCK_MUTANTS", "CORE_MUTANTS", "MUTANTS", "SESSION_MUTANTS", "SPLIT_MUTANTS", "mutated"]


def _take_everything(self: StreamPositions, origin: int, identity: int, position: int) -> bool:
    """A worker that has forgotten the positions of streams."""
    key = origin, identity
    if position > self._positions.get(key, 0):
        self._positions[key] = self._changed[key] = position
    return True


def _acknowledge_at_once(self: Inbound, stream: _ReceiveStream) -> None:
    """A link that reports records as on disk before workers have journaled them."""
    while stream.put and not stream.put[0].waiting:
        stream.memory = stream.disk = stream.put.popleft().end


def _holds_any_log(self: RouteSender, log_id: int, position: int) -> bool:
    """A sender that continues its log for a receiver of another one."""
    return self._source.first - 1 <= position <= self._source.head


def _start_anywhere(self: RouteReceiver) -> list[Any]:
    """A receiver that believes that its position is one of the peer's log."""
    from shardbroker.cluster.messages import RoutesFrom

    _, self.position = self._store.mark(self._node_id) or (0, 0)
    return [RoutesFrom(self._log_id, self.position)]


def _resume_unchecked(self: RouteReceiver, log_id: int, position: int, head: int) -> list[Message]:
    from shardbroker.cluster.view import RouteState

    self._generation = 0
    self.state, self._target = RouteState.LOCAL_REPLAY, head
    self._store.begin(self._node_id)
    self._store.complete(self._node_id, (self._log_id, position))
    self._arrive()
    return []


def _keep_old_rows(self: RouteReceiver) -> list[Message]:
    """A receiver that leaves the rows which a dump did not renew."""
    if not self._sweeps:
        return []
    self._sweeps = False
    self._store.complete(self._node_id, (self._log_id, self.position))
    self._arrive()
    return [RouteAck(self.position)]


_recover = Node.recover
_resume = Outbound._resume
_offered = Inbound._offered


def _recover_without_routes(self: Node) -> None:
    """A broker that starts without the routes of its peers."""
    self.routes = MemoryRoutes()
    self.known.clear()
    _recover(self)


def _resume_at_sent(self: Outbound, stream: _SendStream, position: int) -> None:
    """A sender that continues where it stopped, and not where the peer is."""
    sent = stream.sent
    _resume(self, stream, position)
    stream.sent = max(sent, position)


_data = Inbound._data


def _data_with_gaps(self: Inbound, message: Any) -> list[Message]:
    """A receiver that does not compare the start of a range with its position."""
    stream = self._by_index.get(message.stream)
    if stream is not None:
        stream.received = max(stream.received, message.start)
    return _data(self, message)


def _wait_for_all(self: Signals) -> list[int]:
    """A SUBACK wait that ignores cuts: it waits for peers whose link is down."""
    acked = {connection.address: connection.sender.acked for connection in self._connections.values() if connection.sender}
    return [acked.get(address, 0) for address in self.view.links]


def _wait_for_nothing(self: Signals) -> list[int]:
    """A SUBACK that does not wait."""
    return []


_make_data = Outbound._data


def _release_sent(self: Outbound, stream: _SendStream, records: Any) -> Any:
    """A sender that gives up what it has sent."""
    data = _make_data(self, stream, records)
    stream.released = max(stream.released, data.end)
    return data


_pump = Outbound.pump


def _ring_before_spool(self: Outbound) -> list[Any]:
    """A sender that sends its rings before the spool is empty."""
    cursor, self._cursor = self._cursor, self._spool.head
    ring = _pump(self)
    self._cursor = cursor
    return [*ring, *_pump(self)]


def _forget_resume(self: Inbound, offer: Any) -> _ReceiveStream:
    """A receiver that takes every offer for a new stream, and ends those that it knew."""
    self._streams.pop(offer.identity, None)
    return _offered(self, offer)


def _keep_nothing(self: StreamPositions, origin: int, identities: tuple[int, ...]) -> None:
    """A worker that forgets all streams of a node whenever it connects."""
    for key in [key for key in self._positions if key[0] == origin]:
        del self._positions[key]
        self._changed[key] = None


Patches = list[tuple[type, str, Callable[..., Any]]]
MUTANTS: dict[str, Patches] = {
    "routes of peers end with the broker": [(Node, "recover", _recover_without_routes)],
    "receiver forgets dedupe": [(StreamPositions, "take", _take_everything)],
    "ack before journal": [(Inbound, "_advance", _acknowledge_at_once)],
    "log applied without checking the incarnation": [
        (RouteSender, "_holds", _holds_any_log),
        (RouteReceiver, "start", _start_anywhere),
        (RouteReceiver, "_resume", _resume_unchecked),
    ],
    "bootstrap without purge of old rows": [(RouteReceiver, "work", _keep_old_rows)],
    "resume at the sent position": [(Outbound, "_resume", _resume_at_sent), (Inbound, "_data", _data_with_gaps)],
    "SUBACK wait ignores cuts": [(Signals, "_acked", _wait_for_all)],
    "SUBACK does not wait": [(Signals, "_acked", _wait_for_nothing)],
    "released when sent": [(Outbound, "_data", _release_sent)],
    "ring before spool": [(Outbound, "pump", _ring_before_spool)],
    "positions kept for no stream": [(StreamPositions, "keep", _keep_nothing)],
}


def _forget_nothing(self: Registry, node: int, claim: Any, now_ms: int, clock_ms: int) -> Any:
    """A registrar that answers any claim, and does not wait for the answers of members."""
    known = {partition: table.known for partition, table in self._tables.items()}
    for table in self._tables.values():
        table.known = {*self.members}
    done = _claim(self, node, claim._replace(digest=self.digest), now_ms, clock_ms)
    for partition, nodes in known.items():
        self._tables[partition].known = nodes
    return done


_claim = Registry.claim


def _grant_at_once(self: Registry, node: int, claim: Any, now_ms: int, clock_ms: int) -> Any:
    """A registrar that grants a claim while another one of its key is not done."""
    lock = self._locks.pop(claim.key, None)
    done = _claim(self, node, claim, now_ms, clock_ms)
    if lock is not None and claim.key not in self._locks:
        self._locks[claim.key] = lock
    return done


def _void_nothing(self: Claims, claim: Any, now_ms: int) -> list[Any]:
    """A claimant that takes grants of another member set."""
    return []


_on_take = Claims._on_take


def _take_always(self: Claims, node: int, take: Any, now_ms: int) -> Any:
    """A holder that gives its session for a grant that is older than its own."""
    holding = self.sessions.get(take.key)
    if holding is not None and take.generation <= holding.generation:
        take = take._replace(generation=holding.generation + 1)
    return _on_take(self, node, take, now_ms)


_exported = Claims.exported


def _moved_at_once(self: Claims, uid: int, generation: int, parts: Any) -> Any:
    """A holder that has moved its session once it is sent."""
    done = _exported(self, uid, generation, parts)
    holding = self.leaving[uid]
    holding.generation = generation
    return [*done, *self._gone(holding, holding.deadline_ms)]


def _append_everything(seen: Any, queue: Any, tail: Any, is_settled: bool) -> Any:
    """A merge that appends what the session has had."""
    if tail.is_last:
        seen.base = min(seen.base, tail.base)
    return Appended(tuple(sorted(tail.queued)), ())


def _without_delivered(seen: Any, queue: Any, tail: Any, is_settled: bool) -> Any:
    """A merge that does not know what the other session has delivered."""
    return append(seen, queue, tail._replace(delivered=()), is_settled)


def _nothing_passed(seen: SeenIds, message_id: int) -> bool:
    """An imported session that takes messages which its earlier node has had."""
    return seen.add(message_id)


_import = sessions.RoamingNode.import_
_take = SeenIds.take


def _import_with_a_stamp(self: sessions.RoamingNode, output: Any) -> None:
    """A session that notes by the clock of its node when it was imported."""
    _import(self, output)
    for copy in self.copies.values():
        if copy.key == output.key and copy.generation == output.generation:
            copy.seen.floor = id_floor(stamp_of(self.clock_ms()))  # type: ignore[attr-defined]


def _take_above_a_stamp(seen: SeenIds, message_id: int) -> bool:
    """An imported session that leaves out what was published before its import by the clocks."""
    return message_id > getattr(seen, "floor", 0) and _take(seen, message_id)


def _revoke_nothing(self: Claims, revoke: Any, now_ms: int) -> list[Any]:
    """A node that keeps its session after a split."""
    return []


_tail = Claims._tail


def _drop_late(self: Claims, holding: Any, now_ms: int) -> list[Any]:
    """A holder that drops what publishers still send to it once its session has moved."""
    if holding.state != SessionState.GONE:
        return _tail(self, holding, now_ms)
    ids = tuple(message.id for message in self._queues.queued(holding.uid, 1_000))
    return [Taken(holding.uid, ids)] if ids else []


def _name_everything(self: sessions.RoamingNode, copy: sessions.Copy, ids: Any) -> None:
    """A session that names in its last TAIL what it handed over before as delivered."""
    for message_id in ids:
        copy.queue.pop(message_id, None)


_table_node = CoreTable._node


def _gone_without_a_lease(self: CoreTable, node_id: int) -> CoreNode | None:
    """A node without a lease is removed, as if it could not return."""
    node = _table_node(self, node_id)
    return node if node is None or node.incarnation else node._replace(is_gone=True)


def _gone_without_a_key(self: CoreTable, node_id: int) -> CoreNode | None:
    """A node without a key is removed, as by an etcd that was set up again."""
    node = _table_node(self, node_id)
    return node if node is None or self.row("ids", node_id) is not None else node._replace(is_gone=True)


CORE_MUTANTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "a node without a lease is gone": [(CoreTable, "_node", _gone_without_a_lease)],
    "a node without a key is gone": [(CoreTable, "_node", _gone_without_a_key)],
}
"""Mistakes which runs with `CoreCluster` have to find."""

SPLIT_MUTANTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "the last TAIL names what was handed over as delivered": [(sessions.RoamingNode, "hand_over", _name_everything)],
    "REVOKE ignored": [(Claims, "_on_revoke", _revoke_nothing)],
    "merge without the delivered ids": [(sessions, "append", _without_delivered)],
}
"""Mistakes which runs with `SplitsCluster` have to find."""

SESSION_MUTANTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "registrar forgets fencing": [(Registry, "claim", _forget_nothing)],
    "grant without serialisation": [(Registry, "claim", _grant_at_once)],
    "TAKE ignores the generation": [(Claims, "_on_take", _take_always)],
    "MOVED before STATE_ACK": [(Claims, "exported", _moved_at_once)],
    "merge without the seen ids": [(sessions, "append", _append_everything)],
    "merge without the delivered ids": [(sessions, "append", _without_delivered)],
    "import that takes what its earlier node has had": [(SeenIds, "take", _nothing_passed)],
    "REVOKE ignored": [(Claims, "_on_revoke", _revoke_nothing)],
    "late messages of a session that has moved are dropped": [(Claims, "_tail", _drop_late)],
    "claimant forgets fencing": [(Claims, "_void", _void_nothing)],
}
"""Mistakes of the cores of sessions, which runs with `RoamingCluster` have to find."""


CLOCK_MUTANTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "import with a floor by the clock": [
        (sessions.RoamingNode, "import_", _import_with_a_stamp),
        (SeenIds, "take", _take_above_a_stamp),
    ],
}
"""Mistakes which runs with `ClocksCluster` have to find."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Applies a mutant for the duration of a block."""
    patches = [patch.object(*one) for one in {**MUTANTS, **SESSION_MUTANTS, **SPLIT_MUTANTS, **CLOCK_MUTANTS, **CORE_MUTANTS}[name]]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
