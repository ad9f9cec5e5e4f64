"""Routes of other nodes: topic filters -> nodes, in an environment of their own. One link process writes it, every worker reads it.

    keys           as in routes.py

    value          kind 0: 00 | destination u32 | generation u16                               a plain route
                   kind 2: 02 | destination u32 | group name | 00 | count u32 | generation u16     members of a shared group there

    db "nodes"     node u8 -> generation u64 | rows u64 | current u64 | is marked u8 | log id u64 | position u64
                   node u8 | 00 -> who the node is, as link-0 has noted it
                   00 -> number of the next change, as link-0 counts them (shardbroker/link/stored_routes.py)

The routes of a node are a dump and the log behind it (shardbroker.cluster.rlog). Each dump has a new generation: rows of earlier
ones stay in force until it is complete, and those that it has not renewed are then swept. `rows` counts the rows of a node,
`current` those of the current generation, so that a table without older rows needs no sweep.

Invariants: one writer; a filter has one plain row of a node, and one row of each of its groups; the mark is changed in the
transaction of the rows that it covers; the epochs of changed filters are raised behind the commit, and those of rows that were only
renewed are not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any

import lmdb

from shm.destinations import DestinationKind, destination
from shm.epochs import Epochs
from shm.keys import KEY_MAX, LONG_MARK, digest_of
from shm.routes import DATABASES, GROUP_MAX, MAP_BYTES, READERS, RouteDatabase, RouteTableFull, has_wildcard, item_at, resume_at

__all__ = ["RemoteRoutes"]

SWEEP_VISITS = 10_000
"""Rows visited in one call of sweep(): some 5 ms."""

COPY_ROWS = 50_000
"""Rows copied in one transaction by restore(): some 0.1 s."""
POSITION = b"\0"
"""Key of the number of the next change; no node has the id 0."""

_NODE = Struct(">QQQBQQ")

_Place = tuple[bytes, bytes]
_Row = tuple[bytes, bytes, int, int]
"""Filter, group, members, flags: shardbroker.cluster.messages.Route."""


@dataclass(frozen=True)
class _Node:
    """What the table has of one node."""

    generation: int = 0
    rows: int = 0
    current: int = 0
    mark: tuple[int, int] | None = None


class _Batch:
    """One transaction on the rows of one node."""

    def __init__(self, txn: lmdb.Transaction, node: _Node) -> None:
        self.txn = txn
        self.rows, self.current = node.rows, node.current
        self.changed: list[bytes] = []
        """Filters whose matches change."""
        self.exact: list[_Place] = []
        self.wild: list[_Place] = []


class RemoteRoutes(RouteDatabase):
    """Routes of all peers: shardbroker.cluster.rlog.RouteStore.

    epochs: those of the broker, for the writer; readers need none.
    """

    def __init__(
        self, path: Path, epochs: Epochs | None = None, *, map_bytes: int = MAP_BYTES, readers: int = READERS,
    ) -> None:  # fmt: skip
        super().__init__(path, map_bytes=map_bytes, readers=readers)
        self._epochs = epochs
        self._by_node: Any = self._env.open_db(b"nodes")
        self._known: dict[int, _Node] = {}
        self._sweeps: dict[int, tuple[int, _Place | None]] = {}
        """Node to the database and the place at which its sweep continues."""
        self._purging: set[int] = set()
        self.position = self._stored_position()
        """Number of the next change; stored with each transaction."""

    # --- state of a node ----------------------------------------------------------------------------------------

    def mark(self, node_id: int) -> tuple[int, int] | None:
        """Returns log id and position up to which the rows of a node are complete, or None."""
        return self._node(node_id).mark

    def count(self, node_id: int) -> int:
        """Returns the number of rows of a node."""
        return self._node(node_id).rows

    def nodes(self) -> list[int]:
        """Returns the nodes that have a mark, rows or a generation here."""
        with self._env.begin() as txn, txn.cursor(self._by_node) as cursor:
            return [key[0] for key in cursor.iternext(values=False) if len(key) == 1 and key != POSITION]

    def begin(self, node_id: int) -> int:
        """Removes the mark and returns the generation of the dump that begins; rows of older ones stay."""
        node = self._node(node_id)
        begun = _Node(node.generation + 1, node.rows, 0, None)
        if node.current:
            self._sweeps.pop(node_id, None)  # else a sweep has left no row of the node behind it
        with self._write() as txn:
            self._store(txn, node_id, begun)
        self._known[node_id] = begun
        return begun.generation

    def complete(self, node_id: int, mark: tuple[int, int]) -> None:
        """Sets the mark: all rows of the node are of this dump and of the log behind it."""
        node = replace(self._node(node_id), mark=mark)
        with self._write() as txn:
            self._store(txn, node_id, node)
        self._known[node_id] = node

    # --- rows ---------------------------------------------------------------------------------------------------

    def put(self, node_id: int, generation: int, routes: Sequence[_Row], mark: tuple[int, int] | None) -> None:
        """Stores routes, removes those with members 0, and sets the mark if there is one, in one transaction.

        The current generation is used where `generation` is 0, after a resumption. Raises RouteTableFull.
        """
        node = self._node(node_id)
        tail = ((generation or node.generation) & 0xFFFF).to_bytes(2, "big")
        head = destination(DestinationKind.NODE, node_id).to_bytes(4, "big")
        plain = b"\0" + head + tail
        with self._write() as txn:
            batch = _Batch(txn, node)
            for filter, group, members, _ in routes:
                if members and not group and node.rows == node.current and len(filter) <= KEY_MAX:
                    # No older row is to be replaced: a cursor stores many at a third of the cost.
                    if has_wildcard(filter):
                        batch.wild.append((filter.replace(b"/", b"\0"), plain))
                    else:
                        batch.exact.append((filter, plain))
                    batch.changed.append(filter)
                    continue
                self._put_all(batch)
                self._put_one(batch, head, tail, filter, group, members)
            self._put_all(batch)
            stored = _Node(node.generation, batch.rows, batch.current, node.mark if mark is None else mark)
            self._store(txn, node_id, stored)
        self._known[node_id] = stored
        self._bump(batch.changed)

    def _put_all(self, batch: _Batch) -> None:
        """Stores the gathered plain rows and clears the lists."""
        for db, places in ((self._exact, batch.exact), (self._wild, batch.wild)):
            if places:
                with batch.txn.cursor(db) as cursor:
                    _, added = cursor.putmulti(places, dupdata=False)
                batch.rows += added
                batch.current += added
                places.clear()

    def _put_one(self, batch: _Batch, head: bytes, tail: bytes, filter: bytes, group: bytes, members: int) -> None:
        """Stores or removes one row."""
        txn = batch.txn
        db, key, long_filter = self._key(filter)
        start, long_group = _start(head, group)
        old: bytes | None = None
        with txn.cursor(db) as cursor:
            if cursor.set_range_dup(key, start) and (found := bytes(cursor.value())).startswith(start):
                old = found
            if not members:
                if old is not None:
                    self._remove(txn, db, key, old)
                    batch.rows -= 1
                    batch.current -= old.endswith(tail)
                    batch.changed.append(filter)
                return
            value = start + (members.to_bytes(4, "big") if group else b"") + tail
            if old == value:
                return
            if old is not None:
                cursor.delete()
                batch.current += not old.endswith(tail)
            else:
                batch.rows += 1
                batch.current += 1
                for text in (long_filter, long_group):
                    if text:
                        self._hold(txn, text)
            txn.put(key, value, db=db)
        if old is None or old[:-2] != value[:-2]:
            batch.changed.append(filter)

    # --- removal of many ----------------------------------------------------------------------------------------

    def sweep(self, node_id: int, generation: int, most: int) -> bool:
        """Removes at most `most` rows that are not of a generation; returns True if there are no more.

        A call visits at most SWEEP_VISITS rows. The current generation is used where `generation` is 0. Raises RouteTableFull.
        """
        node = self._node(node_id)
        generation = generation or node.generation
        if node.rows == node.current:
            self._sweeps.pop(node_id, None)
            return True
        at, after = self._sweeps.get(node_id, (0, None))
        head = destination(DestinationKind.NODE, node_id).to_bytes(4, "big")
        doomed, after = self._older(self._routes[at], head, (generation & 0xFFFF).to_bytes(2, "big"), after, most)
        if after is None:
            at += 1
        changed: list[bytes] = []
        with self._write() as txn:
            for db, key, value in doomed:
                changed.append(self._filter_of(txn, key))
                self._remove(txn, db, key, value)
            is_through = at == len(self._routes)
            rows = node.current if is_through else node.rows - len(doomed)
            stored = replace(node, rows=rows)
            self._store(txn, node_id, stored)
        self._known[node_id] = stored
        self._sweeps[node_id] = at, after
        if stored.rows == stored.current:
            del self._sweeps[node_id]
        self._bump(changed)
        return stored.rows == stored.current

    def _older(
        self, db: Any, head: bytes, tail: bytes, after: _Place | None, most: int
    ) -> tuple[list[tuple[Any, bytes, bytes]], _Place | None]:
        """Returns rows of other generations among the next ones, and the place to continue at (None: the end)."""
        doomed: list[tuple[Any, bytes, bytes]] = []
        with self._env.begin() as txn, txn.cursor(db) as cursor:
            found = resume_at(cursor, after)
            for _ in range(SWEEP_VISITS):
                if not found or len(doomed) >= most:
                    break
                key, value = item_at(cursor)
                if value[1:5] == head and value[-2:] != tail:
                    doomed.append((db, key, value))
                found = cursor.next()
            return doomed, item_at(cursor) if found else None

    def purge(self, node_id: int, most: int) -> bool:
        """Removes at most `most` rows of a node that is gone, with its mark; returns True once nothing is left of it."""
        if node_id not in self._purging:
            self.begin(node_id)
            self._purging.add(node_id)
        if not self.sweep(node_id, self._node(node_id).generation, most):
            return False
        with self._write() as txn:
            txn.delete(bytes((node_id,)), db=self._by_node)
        self._purging.discard(node_id)
        self._known.pop(node_id, None)
        return True

    # --- the table as a whole -----------------------------------------------------------------------------------

    def note(self) -> None:
        """Stores the number of the next change."""
        with self._write() as txn:
            self._store_position(txn)

    def identify(self, node_id: int, identity: bytes | None) -> None:
        """Stores who a node is, or removes that. Raises RouteTableFull."""
        key = bytes((node_id, 0))
        with self._write() as txn:
            if identity is None:
                txn.delete(key, db=self._by_node)
            else:
                txn.put(key, identity, db=self._by_node)
            self._store_position(txn)

    def identities(self) -> dict[int, bytes]:
        """Returns who the nodes are."""
        with self._env.begin() as txn, txn.cursor(self._by_node) as cursor:
            return {bytes(key)[0]: bytes(value) for key, value in cursor.iternext() if len(key) == 2}

    def copy(self, descriptor: int) -> None:
        """Writes one state of the table to a file, without its free pages; from any thread. Raises lmdb.Error."""
        self._env.copyfd(descriptor, compact=True)

    def clear(self) -> None:
        """Removes everything."""
        with self._write() as txn:
            for db in (*self._routes, self._long, self._by_node):
                txn.drop(db, delete=False)
        self._known.clear()
        self._sweeps.clear()
        self._purging.clear()
        self.position = 0

    def restore(self, path: Path, beat: Callable[[], None] = lambda: None) -> None:
        """Fills an empty table from a copy. beat: called behind each transaction. Raises RouteTableFull, lmdb.Error."""
        size = int(self._env.info()["map_size"])
        with lmdb.open(str(path), map_size=size, max_dbs=DATABASES, subdir=False, readonly=True, lock=False) as copy:
            names = (b"exact", b"wild", b"wildlong", b"long", b"nodes")
            for name, db in zip(names, (*self._routes, self._long, self._by_node), strict=True):
                source: Any = copy.open_db(name, dupsort=db in self._routes, create=False)
                with copy.begin() as reading, reading.cursor(source) as cursor:
                    rows = cursor.iternext() if cursor.first() else iter(())
                    stored = COPY_ROWS
                    while stored == COPY_ROWS:
                        with self._write() as txn, txn.cursor(db) as target:
                            stored, _ = target.putmulti(islice(rows, COPY_ROWS), append=True)
                        beat()
        self.position = self._stored_position()

    # --- transactions -------------------------------------------------------------------------------------------

    @contextmanager
    def _write(self) -> Iterator[lmdb.Transaction]:
        try:
            with self._env.begin(write=True) as txn:
                yield txn
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise RouteTableFull(f"route table {self._env.path()} is full: {error}") from error

    def _node(self, node_id: int) -> _Node:
        node = self._known.get(node_id)
        if node is None:
            with self._env.begin() as txn:
                stored: Any = txn.get(bytes((node_id,)), db=self._by_node)
            if stored is None:
                return _Node()
            generation, rows, current, is_marked, log_id, position = _NODE.unpack(stored)
            node = self._known[node_id] = _Node(generation, rows, current, (log_id, position) if is_marked else None)
        return node

    def _store(self, txn: lmdb.Transaction, node_id: int, node: _Node) -> None:
        log_id, position = node.mark or (0, 0)
        stored = _NODE.pack(node.generation, node.rows, node.current, node.mark is not None, log_id, position)
        txn.put(bytes((node_id,)), stored, db=self._by_node)
        self._store_position(txn)

    def _store_position(self, txn: lmdb.Transaction) -> None:
        if self.position:
            txn.put(POSITION, self.position.to_bytes(8, "big"), db=self._by_node)

    def _stored_position(self) -> int:
        with self._env.begin() as txn:
            stored: Any = txn.get(POSITION, db=self._by_node)
        return int.from_bytes(stored or b"", "big")

    def _bump(self, filters: list[bytes]) -> None:
        """Raises the epochs of filters whose matches have changed; the transaction is committed."""
        if self._epochs is not None and filters:
            self._epochs.bump_many(filters)


def _start(head: bytes, group: bytes) -> tuple[bytes, bytes]:
    """Returns what a row begins with and no other row of its filter, and the group name if the row has its digest."""
    if not group:
        return b"\0" + head, b""
    if len(group) <= GROUP_MAX:
        return b"\2" + head + group + b"\0", b""
    return b"\2" + head + LONG_MARK + digest_of(group) + b"\0", group
