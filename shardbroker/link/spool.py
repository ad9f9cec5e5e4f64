"""The spool for one peer: records that wait on disk until the peer is reachable again.

    data_dir/spool/<node id>/<link>/<first sequence>.sbj    segments of blocks, in the format of docs/journal-format.md
                                    <sequence>.large        contents of the spilled record of an entry
                                    released                sequence of the oldest entry, u64

A block is an entry, with one body instead of records: `lane u16 | zero u16 | size of the contents u32 | identity u64 | first u64 |
end u64`, then records as in link/lanes.pxd. Its sequence is that of the block.

Whole segments are removed. `released` is written at once and never synced, so after a power cut some entries may be back. A segment
that ends in the middle of a block, as a kill or a power cut leaves it, is cut there.
"""

import os
import queue
import shutil
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits
from struct import Struct

from shardbroker.cluster.handshake import NODE_ID_MAX
from shardbroker.cluster.outbound import SpoolEntry, SpoolFull
from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.layout import (
    BLOCK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    SegmentHeader,
    segment_name,
    segment_paths,
)
from shardbroker.link.lanes import Slice, slice_of
from shardbroker.logs.phrases import Line, log_line
from shardbroker.stores.files import sync_path

__all__ = ["DiskSpool", "SyncThread", "spooled_nodes", "write_at"]

ENTRY = Struct("<HHIQQQ")
SEGMENT_BYTES = 16 << 20
"""A segment that is at least so large is followed by another one."""
PARENTS = 3
"""Of the directory of a spool: that of its node, that of all spools, and `data_dir`."""
RELEASED = "released"
LARGE = ".large"

Log = Callable[[str, Line], None]


def spooled_nodes(directory: Path, link: int) -> list[int]:
    """Returns the ids of the nodes for which a link process has a spool."""
    found = [path.parent.name for path in directory.glob(f"*/{link}") if path.is_dir()]
    return sorted(int(name) for name in found if name.isdecimal() and 0 < int(name) <= NODE_ID_MAX)


class SyncThread:
    """A thread for calls that wait for the disk; `bell` is an eventfd that is written after each. The thread has a descriptor of
    its own for it: a call may last longer than the one that was given, whose number may then be that of another file."""

    def __init__(self, bell: int) -> None:
        self._bell = os.dup(bell)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Has a function called; it must not raise."""
        self._calls.put(function)

    def close(self, timeout_s: float) -> None:
        """Ends the thread behind what was called, and waits at most so long: a disk may not answer."""
        self._calls.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (function := self._calls.get()) is not None:
                function()
                os.eventfd_write(self._bell, 1)
        finally:
            os.close(self._bell)


@dataclass
class _Segment:
    path: Path
    first: int
    fd: int = -1
    """Open for writing and reading; the descriptor of a segment that is not written any more is opened when it is read."""
    size: int = SEGMENT_HEADER_BYTES
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("Q"))
    """Bytes of each entry: of its block and of the contents of its spilled record."""
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    """Lane and identity to a number, in the order of their first entries."""
    stream_of: "array[int]" = field(default_factory=lambda: array("H"))
    larges: list[int] = field(default_factory=list)
    """Sequences of entries with a spilled record, ascending."""

    @property
    def end(self) -> int:
        return self.first + len(self.offsets)


class DiskSpool:
    """Implements shardbroker.cluster.outbound.Spool. Raises OSError if the directory cannot be read."""

    def __init__(self, directory: Path, sync: SyncThread | None, log: Log, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory, self._sync, self._log, self._segment_bytes = directory, sync, log, segment_bytes
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incarnation = randbits(64)
        self._released_fd = os.open(directory / RELEASED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._segments: list[_Segment] = []
        self._fading: dict[tuple[int, int], None] = {}
        """Streams of removed segments that may be back after a power cut."""
        self._open = False
        """Whether the last segment takes further entries."""
        self._is_syncing = False
        self._sync_failed = False
        self._unsynced_files: list[Path] = []
        self._unsynced_parents: Sequence[Path] = directory.parents[:PARENTS]
        """Directories that may have been made for this one: without them a power cut takes the spool with its name."""
        self.bytes = 0
        self.synced = 0
        stored = os.pread(self._released_fd, 8, 0)
        self.first = self.head = int.from_bytes(stored, "little") if len(stored) == 8 else 0
        self._load()
        self._directory_changed = True
        if sync is None:
            self.synced = self.head

    # --- opening -------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        released = self.first
        paths = segment_paths(self._directory)
        for path in paths:
            segment = self._scan(path, path == paths[-1])
            if segment is None or segment.end <= released:
                path.unlink()
                continue
            self._segments.append(segment)
            self._unsynced_files.append(path)
        if self._segments:
            self.head = max(released, self._segments[-1].end)
            self.first = min(self.head, max(released, self._segments[0].first))
        for segment in self._segments:
            self.bytes += sum(segment.sizes[max(0, self.first - segment.first) :])
        kept = {sequence for segment in self._segments for sequence in segment.larges if sequence >= self.first}
        for path in self._directory.glob(f"*{LARGE}"):
            if path.stem.isdecimal() and int(path.stem) not in kept:
                path.unlink()

    def _scan(self, path: Path, is_last: bool) -> _Segment | None:
        """Returns the intact entries of a segment; None without a header."""
        with path.open("rb") as file:
            try:
                header = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
            except (ValueError, JournalTooNew) as error:
                self._log("warning" if is_last else "error", log_line("spool segment dropped", path=path, reason=error))
                return None
            segment = _Segment(path, header.first_sequence)
            size = path.stat().st_size
            while segment.size < size:
                packed = file.read(BLOCK_HEADER_BYTES)
                block = BlockHeader.unpack(packed)
                body = b"" if block is None or block.length > size - segment.size else file.read(block.length)
                if block is None or block.first_sequence != segment.end or not block.holds(packed, body) or len(body) < ENTRY.size:
                    self._log("warning" if is_last else "error", log_line("spool cut", path=path, at=segment.size, bytes=size))
                    if is_last:
                        os.truncate(path, segment.size)
                    break
                lane, _, contents, identity, _, end = ENTRY.unpack_from(body)
                self._add(segment, BLOCK_HEADER_BYTES + len(body), contents, lane, identity, end)
        return segment

    @staticmethod
    def _add(segment: _Segment, size: int, contents: int, lane: int, identity: int, end: int) -> None:
        if contents:
            segment.larges.append(segment.end)
        segment.offsets.append(segment.size)
        segment.sizes.append(size + contents)
        segment.ends.append(end)
        segment.stream_of.append(segment.streams.setdefault((lane, identity), len(segment.streams)))
        segment.size += size

    # --- entries -------------------------------------------------------------------------------------------------------

    def append(self, lane: int, identity: int, records: Slice) -> None:
        """Appends an entry. Raises SpoolFull."""
        sequence, contents = self.head, 0
        large = self._large(sequence)
        try:
            if records.file is not None:
                with suppress(FileNotFoundError):  # a predecessor has sent it: the peer has it, or its position is lost with it
                    shutil.copyfile(records.file, large)
                    contents = large.stat().st_size
                    self._unsynced_files.append(large)
            body = ENTRY.pack(lane, 0, contents, identity, records.first, records.end) + bytes(records)
            header = BlockHeader(len(body), 1, sequence, time.time_ns() // 1000, self._incarnation, raw_length=len(body))
            segment = self._segment_for(sequence)
            write_at(segment.fd, header.pack(body), segment.size)
        except OSError as error:
            large.unlink(missing_ok=True)
            raise SpoolFull(str(error)) from error
        self._add(segment, BLOCK_HEADER_BYTES + len(body), contents, lane, identity, records.end)
        self.bytes += segment.sizes[-1]
        self.head += 1
        if self._sync is None:
            self.synced = self.head

    def _segment_for(self, sequence: int) -> _Segment:
        if self._open and self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        path = self._directory / segment_name(sequence)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_at(fd, SegmentHeader(self._incarnation, sequence, sequence, time.time_ns() // 1000).pack(), 0)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        segment = _Segment(path, sequence, fd)
        self._segments.append(segment)
        self._open = self._directory_changed = True
        return segment

    def read(self, first: int, most_bytes: int) -> Sequence[SpoolEntry]:
        """Returns entries from a sequence on, at least one if there is one."""
        found: list[SpoolEntry] = []
        size = 0
        at = max(0, bisect_right(self._segments, first, key=lambda segment: segment.first) - 1)
        for segment in self._segments[at:]:
            for number in range(max(0, first - segment.first), len(segment.offsets)):
                if found and size >= most_bytes:
                    return found
                found.append(self._entry(segment, number))
                size += found[-1].records.size
        return found

    def _entry(self, segment: _Segment, number: int) -> SpoolEntry:
        if segment.fd < 0:
            segment.fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        begin = segment.offsets[number]
        end = segment.offsets[number + 1] if number + 1 < len(segment.offsets) else segment.size
        block = os.pread(segment.fd, end - begin, begin)
        header, body = BlockHeader.unpack(block), block[BLOCK_HEADER_BYTES:]
        sequence = segment.first + number
        if header is None or not header.holds(block, body):
            self._log("error", log_line("spool entry damaged", path=segment.path, at=begin))
            (lane, identity), position = list(segment.streams)[segment.stream_of[number]], segment.ends[number]
            return SpoolEntry(sequence, lane, identity, slice_of(b"", 0, position, position))
        lane, _, contents, identity, start, position = ENTRY.unpack_from(body)
        file = self._large(sequence) if contents else None
        return SpoolEntry(sequence, lane, identity, slice_of(body, ENTRY.size, start, position, file))

    def _large(self, sequence: int) -> Path:
        return self._directory / f"{sequence:020d}{LARGE}"

    # --- release -------------------------------------------------------------------------------------------------------

    def release(self, first: int) -> None:
        """Removes the entries before a sequence. That outlives the process; after a power cut some of them may be back."""
        first = min(first, self.head)
        if first <= self.first:
            return
        for segment in self._segments:
            if segment.first >= first:
                break
            begin, end = max(0, self.first - segment.first), min(first, segment.end) - segment.first
            self.bytes -= sum(segment.sizes[begin:end])
            while segment.larges and segment.larges[0] < first:
                self._large(segment.larges.pop(0)).unlink(missing_ok=True)
        self.first = first
        os.pwrite(self._released_fd, first.to_bytes(8, "little"), 0)
        while self._segments and self._segments[0].end <= first and (len(self._segments) > 1 or self._is_worn(self._segments[0])):
            self._remove(self._segments.pop(0))

    def _is_worn(self, segment: _Segment) -> bool:
        return not self._open or segment.size >= self._segment_bytes // 16

    def _remove(self, segment: _Segment) -> None:
        if not self._segments:
            self._open = False
        if segment.fd >= 0:
            os.close(segment.fd)
        with suppress(ValueError):
            self._unsynced_files.remove(segment.path)
        segment.path.unlink(missing_ok=True)
        if self._sync is not None:
            self._fading.update(dict.fromkeys(segment.streams))
        self._directory_changed = True

    def clear(self) -> None:
        """Removes all entries, for ever."""
        self.release(self.head)
        while self._segments:
            self._remove(self._segments.pop(0))
        if self._sync is not None:
            sync_path(self._directory)
        self._fading.clear()

    def streams(self) -> Iterable[tuple[int, int]]:
        """Returns lane and identity of all streams with entries, or with released ones that may be back after a power cut."""
        return dict.fromkeys([*self._fading, *(stream for segment in self._segments for stream in segment.streams)])

    def close(self) -> None:
        """Closes the files; nothing else may be called afterwards."""
        for fd in [self._released_fd, *(segment.fd for segment in self._segments if segment.fd >= 0)]:
            os.close(fd)

    # --- syncing -------------------------------------------------------------------------------------------------------

    def start_sync(self) -> None:
        """Begins to sync what is not synced; to be called every pass."""
        if self._sync is None or self._is_syncing or (self.synced >= self.head and not self._directory_changed):
            return
        if self._sync_failed and self.first < self.head:
            return  # the kernel may have dropped what it could not write: a further sync would prove nothing
        self._sync_failed = False
        self._is_syncing, self._directory_changed = True, False
        files, self._unsynced_files = self._unsynced_files, []
        if self._segments:
            files.append(self._segments[-1].path)
        for segment in self._segments[:-1]:
            if self.synced < segment.end and segment.path not in files:
                files.append(segment.path)
        head, fading = self.head, {**self._fading}
        self._sync.call(lambda: self._sync_files(files, head, fading))

    def _sync_files(self, files: list[Path], head: int, fading: dict[tuple[int, int], None]) -> None:
        """Runs in the thread."""
        try:
            for path in files:
                with suppress(FileNotFoundError):  # released meanwhile
                    sync_path(path)
            for path in (self._directory, *self._unsynced_parents):
                sync_path(path)
            self._unsynced_parents = ()
        except OSError as error:
            self._sync_failed = True
            self._log("error", log_line("spool not synced", path=self._directory, reason=error))
        if not self._sync_failed:
            self.synced = head
            for stream in fading:
                self._fading.pop(stream, None)
        self._is_syncing = False


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Writes all of the data. After an error nothing of it counts: the next write begins at the same offset."""
    view = memoryview(data)
    try:
        while view:
            count = os.pwrite(fd, view, offset)
            view, offset = view[count:], offset + count
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, offset - (len(data) - len(view)))
        raise
