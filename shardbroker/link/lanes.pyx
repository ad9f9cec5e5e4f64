"""The reading end of rings to a peer; see lanes.pxd."""

from collections import deque
from contextlib import suppress

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, errno
from libc.string cimport memcpy

from shm.posix cimport write
from shm.records cimport FLAG_QOS, FLAG_SPILLED, RecordHeader

from shm.spill import spill_path

__all__ = ["PeerInbox", "PeerRing", "Slice", "slice_of"]

cdef enum:
    LANE_BITS = 12                         # of a stream's identity


cdef inline int qos_of(const uint8_t* record) noexcept:
    return (<const RecordHeader*>record).flags & FLAG_QOS


cdef Slice new_slice(object owner, const uint8_t* data, uint64_t size, uint64_t first, uint64_t end, object file):
    cdef Slice slice = Slice.__new__(Slice)
    slice.owner = owner
    slice.data = data
    slice.size = size
    slice.first = first
    slice.end = end
    slice.file = file
    return slice


def slice_of(bytes owner not None, uint64_t offset, uint64_t first, uint64_t end, file=None) -> Slice:
    """Returns the records in trusted bytes from an offset on."""
    return new_slice(owner, <const uint8_t*>PyBytes_AS_STRING(owner) + offset, PyBytes_GET_SIZE(owner) - offset, first, end, file)


cdef class Slice:
    """Records of one stream: implements shardbroker.cluster.messages.Records."""

    cdef Walk walk(self) noexcept:
        return Walk(self.data, self.data + self.size, self.first)

    def __bytes__(self) -> bytes:
        return PyBytes_FromStringAndSize(<const char*>self.data, self.size)

    def counts(self) -> dict[int, int]:
        """Returns the number of records by QoS."""
        cdef uint64_t found[4]
        cdef uint32_t size
        cdef const uint8_t* record
        cdef Walk walk = self.walk()
        found[0] = found[1] = found[2] = found[3] = 0
        while True:
            record = step(&walk, &size)
            if record == NULL:
                return {qos: found[qos] for qos in range(4) if found[qos]}
            found[qos_of(record)] += 1

    def behind(self, uint64_t position) -> Slice | None:
        """Returns the records behind a position; None: all are before it."""
        cdef uint32_t size
        cdef const uint8_t* record
        cdef Walk walk = self.walk()
        if position <= self.first:
            return self
        while True:
            record = step(&walk, &size)
            if record == NULL:
                return None
            if walk.position > position:
                record -= <int>RECORD_HEADER
                return new_slice(
                    self.owner, record, self.size - <uint64_t>(record - self.data), walk.position - padded(size), self.end, self.file)

    def kept(self) -> Slice | None:
        """Returns the records without those of QoS 0, which become gaps; None if there are no others."""
        cdef uint32_t size
        cdef uint64_t begin, first = 0, last = 0
        cdef const uint8_t* record
        cdef uint8_t* target
        cdef uint8_t* start
        cdef bytes copy
        cdef Gap gap
        cdef Walk walk = self.walk()
        while True:
            record = step(&walk, &size)
            if record == NULL:
                return self
            if qos_of(record) == 0:
                break
        # A gap is smaller than any record, so what is kept has room.
        copy = PyBytes_FromStringAndSize(NULL, self.size)
        start = target = <uint8_t*>PyBytes_AS_STRING(copy)
        gap.size = <uint32_t>FILLER
        gap.zero = 0
        walk = self.walk()
        while True:
            record = step(&walk, &size)
            if record == NULL:
                break
            if qos_of(record) == 0:
                continue
            begin = walk.position - padded(size)
            if target == start:
                first = begin
            elif begin > last:
                gap.bytes = begin - last
                memcpy(target, &gap, GAP_BYTES)
                target += <int>GAP_BYTES
            memcpy(target, record - <int>RECORD_HEADER, padded(size))
            target += padded(size)
            last = walk.position
        if target == start:
            return None
        return new_slice(copy, start, <uint64_t>(target - start), first, last, self.file)


cdef class PeerRing:
    """One ring from a worker to a peer: implements shardbroker.cluster.outbound.LaneRing.

    The identity of a stream is that of its inbox with the lane in the low bits.
    """

    def __init__(self, Inbox inbox not None, int lane, spill_dir, int doorbell=-1) -> None:
        self.ring = inbox.lane(lane)
        self.lane = lane
        self.identity = inbox.identity >> <int>LANE_BITS << <int>LANE_BITS | <uint64_t>lane
        self.capacity = self.ring.capacity
        self.spill_dir = spill_dir
        self.doorbell = doorbell
        self.files = deque()
        self.walked = self.ring.taken()

    @property
    def head(self) -> int:
        """Returns the position behind the last committed record."""
        return self.ring.committed()

    @property
    def released(self) -> int:
        """Returns the position before which the room has been given back."""
        return self.ring.taken()

    def records(self, uint64_t after, uint64_t most_bytes) -> Slice | None:
        """Returns records behind a position, at least one if there is one, else None. Valid until they are released."""
        cdef uint64_t head = self.ring.committed(), offset = after & (self.capacity - 1), taken = 0, limit
        cdef bint walks = after == self.walked     # else some of it was walked before, or something is left out
        cdef uint32_t size
        cdef const uint8_t* data
        cdef const RecordHeader* header
        cdef bytes name
        if after == head:
            return None
        data = self.ring.at(after)
        if (<const RecordPrefix*>data).size == <uint32_t>FILLER:
            after += self.capacity - offset
            offset = 0
            data = self.ring.at(after)
        limit = min(head - after, self.capacity - offset)
        while taken < limit and taken < most_bytes:
            size = (<const RecordPrefix*>(data + taken)).size
            if size == <uint32_t>FILLER:
                break
            header = <const RecordHeader*>(data + taken + RECORD_HEADER)
            if header.flags & FLAG_SPILLED:
                if taken:
                    break
                name = PyBytes_FromStringAndSize(<const char*>header + sizeof(RecordHeader), header.topic_size)
                path = spill_path(self.spill_dir, name)
                if walks:
                    self.walked = after + padded(size)
                    self.files.append((self.walked, path))
                return new_slice(self, data, padded(size), after, after + padded(size), path)
            taken += padded(size)
        if walks:
            self.walked = after + taken
        return new_slice(self, data, taken, after, after + taken, None)

    cdef int note_files(self, uint64_t position) except -1:
        """Notes the files of spilled records up to a position."""
        cdef uint64_t offset
        cdef uint32_t size
        cdef const uint8_t* data
        cdef const RecordHeader* header
        while self.walked < position:
            data = self.ring.at(self.walked)
            size = (<const RecordPrefix*>data).size
            if size == <uint32_t>FILLER:
                offset = self.walked & (self.capacity - 1)
                self.walked += self.capacity - offset
                continue
            self.walked += padded(size)
            header = <const RecordHeader*>(data + <int>RECORD_HEADER)
            if header.flags & FLAG_SPILLED:
                name = PyBytes_FromStringAndSize(<const char*>header + sizeof(RecordHeader), header.topic_size)
                self.files.append((self.walked, spill_path(self.spill_dir, name)))
        return 0

    def release(self, uint64_t position) -> None:
        """Gives the room before a position back to the worker."""
        self.note_files(position)
        while self.files and self.files[0][0] <= position:
            with suppress(OSError):
                self.files.popleft()[1].unlink()
        self.ring.skip_to(position)
        if self.ring.release():
            self.wake()

    def secure(self, uint64_t position) -> None:
        """Reports that records before a position outlive the machine: the worker may acknowledge them."""
        if self.ring.secure(position):
            self.wake()

    cdef int wake(self) except -1:
        cdef uint64_t one = 1
        if self.doorbell >= 0 and write(self.doorbell, &one, sizeof(one)) < 0 and errno != EAGAIN:
            raise OSError(errno, f"eventfd of worker {self.lane}")
        return 0


cdef class PeerInbox:
    """All rings to one peer."""

    def __init__(self, str name not None, spill_dir, doorbells=None) -> None:
        """Raises FileNotFoundError, PermissionError, ValueError. `doorbells`: of the workers; None: a killed broker has left the
        rings."""
        self.inbox = Inbox.attach(name)
        self.rings = [
            PeerRing(self.inbox, lane, spill_dir, -1 if doorbells is None else doorbells[lane])
            for lane in range(len(self.inbox.lanes))
        ]

    @property
    def name(self) -> str:
        """Returns the path of the inbox."""
        return self.inbox.name

    cdef bint fresh_c(self) noexcept:
        cdef PeerRing ring
        cdef uint64_t head
        cdef bint fresh = False
        for ring in self.rings:
            head = ring.ring.committed()
            if head != ring.seen:
                ring.seen = head
                fresh = True
        return fresh

    def fresh(self) -> bool:
        """Returns whether workers have put records since the last call."""
        return self.fresh_c()

    def sleep(self) -> None:
        """Announces a wait: the next record rings the doorbell. To be followed by fresh()."""
        self.inbox.sleep()

    def awake(self) -> None:
        """Ends a wait."""
        self.inbox.awake()
