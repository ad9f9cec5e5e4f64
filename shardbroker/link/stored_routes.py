"""Routes of peers on disk: a node that starts while a peer is away has the routes that the peer had sent before.

    data_dir/cluster/routes/<sequence>.table    a copy of the table of remote routes (LMDB) | trailer
                            <sequence>.log      changes from a sequence on: blocks of the journal's format with a change each

    trailer     magic 8 bytes | version u32 | zero u32 | size of the copy u64 | BLAKE2b of the copy, 32 bytes
    change      kind u8 | node u8 | is marked u8 | zero u8 | log id u64 | position u64 | routes as in ROUTES_PART, or an identity

Changes are numbered. Each one is written before it is made in the table, whose transaction has the number of the next one. So what
is on disk is never behind the table, except while the disk takes nothing: the numbers then have a gap, which a further copy closes.
A copy is made in a thread, from one state of the table, when the logs have outgrown the last one; logs before it are then removed.

Invariants: the mark of a node is in the change with the last of its rows, so that it is never ahead of them; what follows a damaged
block or a gap does not count, nor does a table whose digest is wrong: the peers send their routes again.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import BinaryIO, NamedTuple

import lmdb

from shardbroker.cluster.messages import Hello, Route
from shardbroker.journal.layout import BLOCK_HEADER_BYTES, BlockHeader
from shardbroker.link.codec import decode_routes, encode_routes
from shardbroker.link.spool import SyncThread, write_at
from shardbroker.logs.phrases import Line, log_line
from shardbroker.stores.files import replacing, sync_path
from shm.remote_routes import RemoteRoutes
from shm.routes import RouteTableFull

__all__ = ["KnownPeer", "StoredRoutes"]

FORMAT = 1
"""Version of both files; that of a log is in the incarnation of its blocks."""
TRAILER = Struct("<8sIIQ32s")
MAGIC = b"\0SBPEERS"
CHANGE = Struct("<BBBBQQ")
CHANGE_BYTES_MAX = 4 << 20
"""Size of a change: a batch has at most some 1.2 MB."""
TABLE, LOG = ".table", ".log"
LOG_BYTES_MIN = 16 << 20
"""A copy of the table is made once the logs have more than the last one, and at least so much."""
LOGS_MAX = 16
"""Files of logs above which a copy is made: each start begins one."""
PURGE_ROUTES = 10_000
"""Routes of a former member that one transaction removes."""
READ_BYTES = 16 << 20
"""Bytes of a copy that are read at a time."""
RETRY_MS = 10_000
"""Interval of attempts to write after the disk has failed."""

Log = Callable[[str, Line], None]


class _Kind(IntEnum):
    BEGIN = 1
    PUT = 2
    COMPLETE = 3
    PEER = 4
    GONE = 5


class KnownPeer(NamedTuple):
    """A peer as it last proved itself."""

    name: str
    address: str
    uuid: bytes
    incarnation: int

    def pack(self) -> bytes:
        return json.dumps([self.name, self.address, self.uuid.hex(), self.incarnation]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "KnownPeer":
        """Raises ValueError."""
        name, address, uuid, incarnation = json.loads(data)
        return cls(str(name), str(address), bytes.fromhex(uuid), int(incarnation))


class StoredRoutes:
    """Implements shardbroker.cluster.rlog.RouteStore over a table in shared memory.

    is_new: the table is that of a broker that starts, and is filled from the disk. members: addresses of the cluster; what is
    stored of others is dropped, unless it is None. waits: changes count as secured once they are synced (durability level
    `machine`). beat: called at least once a second or so while it reads. Raises OSError if the directory cannot be used.
    """

    def __init__(
        self, table: RemoteRoutes, directory: Path, log: Log, bell: int, *, members: Collection[str] | None, is_new: bool,
        waits: bool, beat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._table, self._directory, self._log, self._waits, self._beat = table, directory, log, waits, beat
        self._sync, self._copier = SyncThread(bell), SyncThread(bell)
        self._fd = -1
        self._path = directory
        """Of the log that is written."""
        self._size = 0
        self._unsynced: list[Path] = []
        """Logs with changes that are not synced."""
        self._is_syncing = self._is_copying = False
        self._sync_error = self._copy_error = ""
        self._copied: tuple[int, int] | None = None
        """First change behind a copy that is complete, and its size."""
        self._failing = False
        """The disk has taken nothing since some change."""
        self._behind = False
        """The disk lacks changes until a copy is complete."""
        self._retry_ms = 0
        self._table_bytes = self._log_bytes = self._log_count = 0
        """Sizes of the last copy and of the logs behind it, and the number of these."""
        self._covered = 0, 0
        """Size and number of the logs that a copy under way replaces."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (directory.parent, directory.parent.parent):
            sync_path(path)
        for path in directory.glob("*.new"):
            path.unlink()
        if is_new:
            self._load()
        else:
            self._continue()
        self.synced = 0
        """Number up to which (exclusive) changes are synced."""
        self._unsynced.extend(self._logs())
        self.peers: dict[int, KnownPeer] = {
            node_id: KnownPeer.unpack(identity) for node_id, identity in table.identities().items()
        }  # fmt: skip
        if is_new and members is not None:
            self._drop_former(members)

    # --- opening -------------------------------------------------------------------------------------------------------

    def _files(self, suffix: str) -> list[Path]:
        return sorted(path for path in self._directory.glob(f"*{suffix}") if path.stem.isdecimal())

    def _logs(self) -> list[Path]:
        """Returns the logs behind the last copy, oldest first."""
        tables = self._files(TABLE)
        return [path for path in self._files(LOG) if not tables or int(path.stem) >= int(tables[-1].stem)]

    def _load(self) -> None:
        """Fills the table from the disk."""
        tables = self._files(TABLE)
        self._table.clear()
        try:
            if tables:
                self._check(tables[-1])
                self._table.restore(tables[-1], self._beat)
                self._table_bytes = tables[-1].stat().st_size
            self.sequence = self._table.position
            for sequence, body in self._changes(self.sequence):
                self._apply(body)
                self.sequence = self._table.position = sequence + 1
                self._beat()
            self._table.note()
        except (OSError, ValueError, StructError, RouteTableFull, lmdb.Error) as error:
            self._log("error", log_line("routes of peers dropped", path=self._directory, reason=error))
            self._table.clear()
            for path in [*self._files(TABLE), *self._files(LOG)]:
                path.unlink()
            self.sequence = self._table.position = self._table_bytes = self._log_bytes = self._log_count = 0
            return
        kept = {*tables[-1:], *self._logs()}
        for path in [*tables, *self._files(LOG)]:
            if path not in kept or (path.suffix == LOG and int(path.stem) >= self.sequence):
                path.unlink()

    def _check(self, path: Path) -> None:
        """Raises ValueError for a copy that is damaged."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - TRAILER.size
            if size < 0:
                raise ValueError(f"{path.name} has {size + TRAILER.size} bytes")
            digest = _digest(file, size, self._beat)
            magic, version, _, stored, found = TRAILER.unpack(file.read(TRAILER.size))
        if magic != MAGIC or (version == FORMAT and (stored, found) != (size, digest)):
            raise ValueError(f"{path.name} fails its checksum")
        if version != FORMAT:
            raise ValueError(_unsupported(path, version))

    def _changes(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yields the changes from a number on, without a gap."""
        for path in self._logs():
            with path.open("rb") as file:
                size, at = os.fstat(file.fileno()).st_size, 0
                self._log_bytes += size
                self._log_count += 1
                while at < size:
                    packed = file.read(BLOCK_HEADER_BYTES)
                    block = BlockHeader.unpack(packed)
                    body = file.read(block.length) if block is not None and block.length <= CHANGE_BYTES_MAX else b""
                    if block is None or not block.holds(packed, body):
                        self._log("warning", log_line("routes of peers cut", path=path, at=at, bytes=size))
                        break
                    if block.incarnation != FORMAT:
                        raise ValueError(_unsupported(path, block.incarnation))
                    at += BLOCK_HEADER_BYTES + len(body)
                    if block.first_sequence > first:
                        return
                    if block.first_sequence == first:
                        yield first, body
                        first += 1

    def _apply(self, body: bytes) -> None:
        """Makes a change again. Raises ValueError, StructError, RouteTableFull."""
        kind, node_id, is_marked, _, log_id, position = CHANGE.unpack_from(body)
        table, mark = self._table, (log_id, position)
        match _Kind(kind):
            case _Kind.BEGIN:
                table.begin(node_id)
            case _Kind.PUT:
                table.put(node_id, 0, decode_routes(body, CHANGE.size), mark if is_marked else None)
            case _Kind.COMPLETE:
                while not table.sweep(node_id, 0, PURGE_ROUTES):
                    self._beat()
                table.complete(node_id, mark)
            case _Kind.PEER:
                KnownPeer.unpack(body[CHANGE.size :])
                table.identify(node_id, body[CHANGE.size :])
            case _Kind.GONE:
                self._purge(node_id)

    def _purge(self, node_id: int) -> None:
        while not self._table.purge(node_id, PURGE_ROUTES):
            self._beat()
        self._table.identify(node_id, None)

    def _continue(self) -> None:
        """Finds the end of the logs; the table is that of a process before this one."""
        tables, position = self._files(TABLE), self._table.position
        end = int(tables[-1].stem) if tables else 0
        for sequence, _ in self._changes(end):
            end = sequence + 1
            self._beat()
        self._table_bytes = tables[-1].stat().st_size if tables else 0
        # Of a process that was killed between the two, the disk may have a change that the table lacks; peers send it again.
        self.sequence = max(end, position)
        self._behind = self._failing = end < position
        self._table.position = self.sequence

    def _drop_former(self, members: Collection[str]) -> None:
        """Drops what is stored of nodes that are no members any more."""
        for node_id in {*self.peers, *self._table.nodes()}:
            peer = self.peers.get(node_id)
            if peer is None or peer.address not in members:
                routes = self._table.count(node_id)
                self.forget(node_id)
                self._purge(node_id)
                self._log("info", log_line("routes of former member dropped", node_id=node_id, routes=routes))

    # --- changes -------------------------------------------------------------------------------------------------------

    def _note(self, kind: _Kind, node_id: int, mark: tuple[int, int] | None = None, rest: bytes = b"") -> None:
        """Writes a change that is made next."""
        sequence = self.sequence
        self.sequence = self._table.position = sequence + 1
        if self._failing:
            return
        body = CHANGE.pack(kind, node_id, mark is not None, 0, *(mark or (0, 0))) + rest
        block = BlockHeader(len(body), 1, sequence, time.time_ns() // 1000, FORMAT, raw_length=len(body)).pack(body)
        try:
            if self._fd < 0:
                self._path = self._directory / f"{sequence:020d}{LOG}"
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                self._size = 0
                self._log_count += 1
            write_at(self._fd, block, self._size)
        except OSError as error:
            self._fail(str(error))
            return
        self._size += len(block)
        self._log_bytes += len(block)
        if self._path not in self._unsynced:
            self._unsynced.append(self._path)

    def mark(self, node_id: int) -> tuple[int, int] | None:
        """Returns log id and position up to which the rows of a node are complete, or None."""
        return self._table.mark(node_id)

    def count(self, node_id: int) -> int:
        """Returns the number of rows of a node."""
        return self._table.count(node_id)

    def begin(self, node_id: int) -> int:
        """Removes the mark and returns the generation of the dump that begins; rows of older ones stay."""
        self._note(_Kind.BEGIN, node_id)
        return self._table.begin(node_id)

    def put(self, node_id: int, generation: int, routes: Sequence[Route], mark: tuple[int, int] | None) -> None:
        """Stores routes, removes those with members 0, and sets the mark if there is one. Raises RouteTableFull."""
        self._note(_Kind.PUT, node_id, mark, encode_routes(routes))
        self._table.put(node_id, generation, routes, mark)

    def sweep(self, node_id: int, generation: int, most: int) -> bool:
        """Removes at most `most` rows older than a generation; returns True if there are no more."""
        return self._table.sweep(node_id, generation, most)

    def complete(self, node_id: int, mark: tuple[int, int]) -> None:
        """Sets the mark: all rows of the node are of this dump and of the log behind it."""
        self._note(_Kind.COMPLETE, node_id, mark)
        self._table.complete(node_id, mark)

    def identify(self, hello: Hello) -> None:
        """Takes a peer that has proved itself."""
        peer = KnownPeer(hello.name, hello.address, hello.node_uuid, hello.incarnation)
        if self.peers.get(hello.node_id) != peer:
            identity = peer.pack()
            self._note(_Kind.PEER, hello.node_id, None, identity)
            self._table.identify(hello.node_id, identity)
            self.peers[hello.node_id] = peer

    def forget(self, node_id: int) -> None:
        """Takes the end of a membership; the routes of the node are being removed from the table."""
        self._note(_Kind.GONE, node_id)
        self._table.identify(node_id, None)
        self.peers.pop(node_id, None)

    # --- the disk ------------------------------------------------------------------------------------------------------

    def is_secured(self, sequence: int) -> bool:
        """Returns whether changes before a number are as durable as the level demands; they count as such while the disk fails."""
        return not self._waits or self._behind or self.synced >= sequence

    def work(self, now_ms: int) -> None:
        """Starts what is due in the threads; to be called every 100 ms or so, and when acknowledgements wait."""
        if self._sync_error:
            error, self._sync_error = self._sync_error, ""
            if not self._failing:
                self._fail(error)
        if self._copy_error:
            error, self._copy_error = self._copy_error, ""
            self._log("error", log_line("routes of peers not stored", path=self._directory, reason=error))
            self._retry_ms = now_ms + RETRY_MS
            self._log_bytes += self._covered[0]
            self._log_count += self._covered[1]
        if self._copied is not None:
            (first, self._table_bytes), self._copied = self._copied, None
            self.synced = max(self.synced, first)
            self._behind = self._failing
        if self._unsynced and not self._is_syncing and not self._behind:
            self._is_syncing = True
            paths, self._unsynced = self._unsynced, []
            sequence = self.sequence
            self._sync.call(partial(self._sync_logs, paths, sequence))
        if self._is_copying or now_ms < self._retry_ms:
            return
        is_grown = self._log_bytes > max(LOG_BYTES_MIN, self._table_bytes) or self._log_count > LOGS_MAX
        if self._behind or is_grown:
            self._start_copy()

    def _fail(self, reason: str) -> None:
        self._log("error", log_line("routes of peers not stored", path=self._directory, reason=reason))
        self._failing = self._behind = True
        self._retry_ms = time.monotonic_ns() // 1_000_000 + RETRY_MS
        self._close_log()

    def _close_log(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _sync_logs(self, paths: list[Path], sequence: int) -> None:
        """Runs in a thread."""
        try:
            for path in paths:
                with suppress(FileNotFoundError):  # a copy has replaced it
                    sync_path(path)
            sync_path(self._directory)
            self.synced = max(self.synced, sequence)
        except OSError as error:
            self._sync_error = str(error)
        self._is_syncing = False

    def _start_copy(self) -> None:
        """Begins a copy of the table; changes from now on are in a log of their own."""
        self._close_log()
        self._failing = False
        self._covered = self._log_bytes, self._log_count
        self._is_copying, self._log_bytes, self._log_count = True, 0, 0
        old = [*self._files(TABLE), *self._files(LOG)]
        self._copier.call(partial(self._copy, self.sequence, old))

    def _copy(self, first: int, old: list[Path]) -> None:
        """Runs in a thread."""
        path = self._directory / f"{first:020d}{TABLE}"
        try:
            with replacing(path) as file:
                self._table.copy(file.fileno())
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                digest = _digest(file, size)
                file.write(TRAILER.pack(MAGIC, FORMAT, 0, size, digest))
            for one in old:
                if one != path:
                    one.unlink(missing_ok=True)
        except (OSError, lmdb.Error) as error:
            self._copy_error = str(error)
        else:
            self._copied = first, size
        self._is_copying = False

    def close(self, timeout_s: float = 2.0) -> None:
        """Syncs what is not synced, for at most so long, and closes the files."""
        self._close_log()
        if self._unsynced and not self._behind:
            paths, sequence = self._unsynced, self.sequence
            self._sync.call(partial(self._sync_logs, paths, sequence))
        for thread in (self._sync, self._copier):
            thread.close(timeout_s)


def _unsupported(path: Path, version: int) -> str:
    return f"version {version} of {path.name} is not supported, this version reads {FORMAT}"


def _digest(file: BinaryIO, size: int, beat: Callable[[], None] = lambda: None) -> bytes:
    """Returns the digest of the next bytes of a file."""
    digest = hashlib.blake2b(digest_size=32)
    while size > 0 and (part := file.read(min(size, READ_BYTES))):
        digest.update(part)
        size -= len(part)
        beat()
    return digest.digest()
