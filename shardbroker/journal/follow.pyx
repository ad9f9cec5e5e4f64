"""Follows the journal of a worker; see follow.pxd."""

import errno
import os
import time
from pathlib import Path
from typing import NamedTuple

import cython
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EIO, errno as last_errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from shardbroker.journal.decode cimport KINDS_IN_MASK, Wanted, decode_record
from shardbroker.journal.writer cimport BlockHeaderC

from shardbroker.journal.checksum import crc32
from shardbroker.journal.layout import (
    BLOCK_HEADER_BYTES, CODEC_LOST, CODEC_PLAIN, SEGMENT_HEADER_BYTES, BlockHeader, SegmentHeader, all_segment_paths, segment_start,
)
from shardbroker.journal.reader import Damage, begins_after, damage_at, incarnations, read_segment
from shardbroker.journal.schema import Kind

__all__ = ["Batch", "Follower", "Place"]

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* data, size_t size, long offset)

cdef enum:
    BLOCK_HEADER = 48
    READ_BYTES = 1 << 20                   # of one read(): some 10,000 records, 1 to 3 ms
    RACY_NS = 1_000_000_000                # age from which on a change of a directory must have got another time than the one before
    SECTOR_BYTES = 4096                    # of single reads from a disk that fails to read more

cdef int PLAIN = CODEC_PLAIN, LOST = CODEC_LOST, MESSAGE = Kind.MESSAGE


class Place(NamedTuple):
    """How far a journal was followed: `position` counts, `segment` (its first sequence) and `offset` save a search."""

    segment: int
    offset: int
    position: int


@cython.final
cdef class Batch:
    """The wanted records of one block, which has at least one: (sequence, kind, field, ...) each, fields as in schema.FIELDS."""

    @property
    def place(self) -> Place:
        """Returns the place behind the block."""
        return Place(self.segment, self.end, self.end_sequence)


cdef class Follower:
    """directory: of the worker's journal; need not exist yet. place: one that was returned before; None: the oldest record.

    kinds: the kinds of records that are wanted; None: all, unknown ones too. flags: messages are wanted with any of these flags;
    0: all messages. read_bytes: of one read(), at least of a block.
    """

    def __init__(self, directory, place=None, *, kinds=None, uint8_t flags=0, size_t read_bytes=READ_BYTES):
        self.directory = Path(directory)
        self.read_bytes = read_bytes
        if place is not None:
            self.segment, self.offset, self.position = place
            self.started = True
        self.wanted.all_kinds = kinds is None
        self.wanted.flags = flags
        for kind in kinds or ():
            if not 0 <= kind < KINDS_IN_MASK:
                raise ValueError(f"kinds: must be numbers below {KINDS_IN_MASK}, got {kind}")
            self.wanted.kinds |= <uint64_t>1 << <int>kind

    def __dealloc__(self):
        free(self.data)

    def want_messages(self, bint wanted) -> None:
        """Sets whether messages are wanted, besides the other kinds, from the next read() on."""
        if wanted:
            self.wanted.kinds |= <uint64_t>1 << <int>MESSAGE
        else:
            self.wanted.kinds &= ~(<uint64_t>1 << <int>MESSAGE)

    def close(self) -> None:
        """Closes the open segment. The next read() continues at `place`."""
        if self.file is not None:
            self.file.close()
            self.file = None

    @property
    def place(self) -> Place | None:
        """Returns the place behind everything that read() has returned; None before anything was found."""
        return Place(self.segment, self.offset, self.position) if self.started else None

    def read(self) -> list[Batch | Damage]:
        """Returns what follows `place`, of at most about 1 MiB of the journal, and moves `place` behind it.

        The list is empty if nothing in it is wanted: if `at_end` is False, more follows all the same. Never waits for the writer.
        Raises OSError, JournalTooNew; `place` stays then.
        """
        cdef list found = []
        self.at_end = False
        if self.file is None and not self.enter(self.first_segment(), found):
            self.at_end = True
        elif not self.advance(found) and not self.pass_damage(found):
            following = self.following()
            if following is None:
                self.at_end = True
            elif not self.advance(found):  # its writer was done with this segment before it began the next one
                self.at_end = not self.enter(following, found)
        return found

    # --- blocks -----------------------------------------------------------------------------------------------------------

    cdef bint advance(self, list found) except -1:
        """Takes the valid blocks at `offset`. Returns False without any."""
        cdef uint64_t before = self.offset
        cdef size_t least
        if self.unreadable is not None:
            return False
        self.fill(0)
        least = self.next_bytes()
        if least > self.size and self.size >= self.read_bytes:
            self.fill(least)
        self.take_blocks(found)
        return self.offset > before

    cdef int fill(self, size_t least) except -1:
        """Reads at `offset`: `least` bytes if the file has them, or more."""
        cdef size_t wanted = self.read_bytes
        cdef ssize_t got
        if least > wanted:
            wanted = min(least, <size_t>max(os.fstat(self.fd).st_size - self.offset, 0))
        if self.capacity < wanted or self.capacity > max(wanted, self.read_bytes):
            got_memory = realloc(self.data, wanted)
            if got_memory == NULL:
                raise MemoryError(f"no memory for {wanted} bytes of a journal")
            self.data = <uint8_t*>got_memory
            self.capacity = wanted
        with nogil:
            got = pread(self.fd, self.data, wanted, <long>self.offset)
        if got < 0:
            if last_errno != EIO:
                raise OSError(last_errno, os.strerror(last_errno), str(self.path))
            got = self.read_sectors(wanted)
        self.size = <size_t>got
        return 0

    def read_sectors(self, size_t wanted) -> int:
        """Reads what a failing disk still returns, and zeros in place of the rest, which the checksums then detect."""
        cdef size_t size = <size_t>min(max(os.fstat(self.fd).st_size - self.offset, 0), wanted), at = 0
        cdef bytes part
        while at < size:
            least = min(size - at, <size_t>SECTOR_BYTES - (self.offset + at) % <size_t>SECTOR_BYTES)
            try:
                part = os.pread(self.fd, least, self.offset + at).ljust(least, b"\0")
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                part = bytes(least)
            memcpy(self.data + at, PyBytes_AS_STRING(part), least)
            at += least
        return size

    cdef size_t next_bytes(self) noexcept:
        """Returns the size that the block at `offset` appears to have."""
        cdef const BlockHeaderC* header = <const BlockHeaderC*>self.data
        if self.size < <size_t>BLOCK_HEADER or memcmp(header.magic, b"\xb1\x0cSB", 4) != 0 or header.incarnation != self.incarnation:
            return 0
        return <size_t>BLOCK_HEADER + header.length

    cdef int take_blocks(self, list found) except -1:
        cdef uint64_t position = self.position
        cdef const BlockHeaderC* header
        cdef size_t at = 0
        try:
            while self.size - at >= <size_t>BLOCK_HEADER:
                header = <const BlockHeaderC*>(self.data + at)
                if not self.is_whole(header, self.size - at):
                    break
                at += <size_t>BLOCK_HEADER + header.length
                self.take(header, self.offset + at, found)
        except BaseException:
            self.position = position
            raise
        self.offset += at
        self.size -= at
        return 0

    cdef bint is_whole(self, const BlockHeaderC* header, size_t left) except -1:
        """Whether a valid block begins here."""
        if memcmp(header.magic, b"\xb1\x0cSB", 4) != 0 or header.incarnation != self.incarnation or header.count == 0:
            return False
        if <size_t>BLOCK_HEADER + header.length > left:
            return False
        return crc32(PyMemoryView_FromMemory(<char*>header + 8, <Py_ssize_t>BLOCK_HEADER - 8 + header.length, PyBUF_READ)) == header.checksum

    cdef int take(self, const BlockHeaderC* header, uint64_t end, list found) except -1:
        """Takes the records from `position` on of the block that ends at this offset."""
        cdef uint64_t begin = end - header.length - BLOCK_HEADER, end_sequence = header.first_sequence + header.count
        cdef Batch batch
        if end_sequence <= self.position:
            return 0
        if header.first_sequence > self.position:
            found.append(Damage(self.path, begin, begin, "a gap", lost_from=self.position, lost_to=header.first_sequence))
            self.position = header.first_sequence
        records, problem = None, f"codec {header.codec} is not supported"
        if header.codec == LOST:
            problem = "records that a repair has marked as lost"
        elif header.codec == PLAIN:
            records, problem = self.decoded(header), "records that violate the schema"
        if records is None:
            found.append(Damage(self.path, begin, end, problem, lost_from=self.position, lost_to=end_sequence))
        elif records:
            batch = Batch.__new__(Batch)
            batch.segment = self.segment
            batch.end = end
            batch.end_sequence = end_sequence
            batch.time_us = header.time_us
            batch.records = records
            found.append(batch)
        self.position = end_sequence
        self.seeking = False
        return 0

    cdef list decoded(self, const BlockHeaderC* header):
        """Returns the wanted records of a block; None if they violate the schema."""
        cdef list records = []
        cdef Wanted nothing
        cdef const uint8_t* at = <const uint8_t*>header + BLOCK_HEADER
        cdef const uint8_t* end = at + header.length
        cdef uint64_t sequence
        nothing.kinds = 0
        nothing.all_kinds = False
        for sequence in range(header.first_sequence, header.first_sequence + header.count):
            at = decode_record(at, end, sequence, &self.wanted if sequence >= self.position else &nothing, records)
            if at == NULL:
                return None
        return records if at == end else None

    # --- damage, and the next segment ---------------------------------------------------------------------------------------

    def pass_damage(self, list found) -> bool:
        """Moves over damage that valid blocks follow. Returns False at the end, which may look torn."""
        size = os.fstat(self.fd).st_size
        if self.unreadable is not None or self.offset >= size or size == self.searched:
            return False
        damage = damage_at(self.path, self.file, self.incarnation, self.offset, self.position)
        if damage is None:
            return True                    # a block has been completed meanwhile
        if damage.lost_to is None:
            self.searched = size
            return False
        if damage.lost_to > self.position or not self.seeking:
            found.append(damage)
        self.offset = damage.end
        self.position = damage.lost_to
        return True

    def segments(self) -> dict[int, Path]:
        """Returns the segments by first sequence, in order, of journals of earlier workers too.

        A journal that is set aside meanwhile is found under its old name, its new one or both; the new one replaces the old one.
        """
        changed_ns = (self.changed_ns(self.directory), self.changed_ns(self.directory.parent))
        if changed_ns == self.listed_ns:
            return self.listed
        self.listed = {segment_start(path): path for path in all_segment_paths(self.directory)}
        self.listed_ns = changed_ns
        if max(changed_ns) > time.time_ns() - RACY_NS:
            self.listed_ns = None          # another change may get the same time
        return self.listed

    def changed_ns(self, directory) -> int:
        """Returns the time of the last change of the names in a directory; 0 if it does not exist."""
        try:
            return os.stat(directory).st_mtime_ns
        except FileNotFoundError:
            return 0

    def first_segment(self) -> Path | None:
        """Returns the segment to continue in, or None."""
        paths = self.segments()
        before = [start for start in paths if start <= self.position] if self.started else []
        return paths[max(before)] if before else next(iter(paths.values()), None)

    def following(self) -> Path | None:
        """Returns the segment after the open one, or None."""
        return next((path for start, path in self.segments().items() if start > self.segment), None)

    def enter(self, path, list found) -> bool:
        """Opens a segment, in place of the open one. Returns False if it cannot be read yet, or not any more."""
        cdef uint64_t start, offset = SEGMENT_HEADER_BYTES
        if path is None:
            return False
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False                   # removed, or set aside: the next call finds what there is
        entered = False
        try:
            start, header, damage = segment_start(path), None, None
            try:
                header = SegmentHeader.unpack(os.pread(file.fileno(), SEGMENT_HEADER_BYTES, 0))
                if header.first_sequence != start:
                    raise ValueError(f"the header begins with {header.first_sequence}, the name with {start}")
            except ValueError:
                paths = list(self.segments().values())
                damage = next(read_segment(path, {one.incarnation for one in incarnations(paths).values()}), None)
                if not isinstance(damage, Damage) or (damage.torn and start == max(map(segment_start, paths))):
                    return False           # its writer has just created it, and may have written the header meanwhile
            self.leave(path, start, header, found)
            self.file = file
            entered = True
        except FileNotFoundError:
            return False
        finally:
            if not entered:
                file.close()
        self.fd, self.path, self.unreadable, self.searched = file.fileno(), path, None, 0
        if damage is None:
            self.incarnation = header.incarnation
            if self.segment == start and self.is_block_boundary(self.offset):
                offset = self.offset
        elif damage.lost_from is not None and damage.lost_to is None:
            self.unreadable = damage
        else:
            offset = damage.end
            self.incarnation = BlockHeader.unpack(os.pread(self.fd, BLOCK_HEADER_BYTES, offset)).incarnation
            if damage.lost_to is not None and damage.lost_to > self.position:
                damage = Damage(path, 0, damage.end, damage.reason, lost_from=self.position, lost_to=damage.lost_to)
                self.position = damage.lost_to
            found.append(damage)
        self.segment, self.offset = start, offset
        return True

    def leave(self, path, uint64_t start, header, list found) -> None:
        """Leaves the open segment, if any, for this one: what is left in it, and what is missing in between, is lost."""
        cdef uint64_t lost_to
        if not self.started:
            self.position = start
            self.started = True
        opened = self.file is not None
        lost_to = begins_after(start, header, self.incarnation if opened else None, self.position)
        tail = self.unreadable
        if opened and tail is None:
            tail = damage_at(self.path, self.file, self.incarnation, self.offset, self.position)
        if tail is not None:
            found.append(Damage(tail.path, tail.start, tail.end, tail.reason, tail.torn, self.position, lost_to))
        elif lost_to > self.position:
            found.append(Damage(path, 0, 0, "records before this segment are missing", lost_from=self.position, lost_to=lost_to))
        self.seeking = not opened and self.position > start
        self.position = max(self.position, start)
        self.close()

    def is_block_boundary(self, uint64_t offset) -> bool:
        """Whether `position` is not below what follows this offset: the segment may have been repaired since."""
        size = os.fstat(self.fd).st_size
        if not SEGMENT_HEADER_BYTES <= offset <= size:
            return False
        header = BlockHeader.unpack(os.pread(self.fd, BLOCK_HEADER_BYTES, offset))
        return offset == size or (
            header is not None and header.incarnation == self.incarnation and header.first_sequence <= self.position
        )
