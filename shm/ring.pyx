"""Rings between processes; see ring.pxd.

    inbox segment:  | header page | lane 0 | lane 1 | ...
    header page:    magic, lanes, lane bytes, identity; at SLEEPING_AT the consumer's sleep flag
    lane:           | head | consumed | durable | wanted | awaited |  (a cache line each, in one page)  | data area |

Attaching reads the header page and one page of each lane; a page of a data area takes memory when a record first reaches it.

Sleep protocol: the consumer sets SLEEPING, fences, checks every lane again and only then waits; the producer commits, fences and
takes the flag by exchange. One of the two sees the other, so no wake-up is lost, and the bell is rung once per sleep. The same
holds for `wanted`: a producer without room sets it, fences and reads `consumed` again; and for `awaited` and `durable`.

A process killed between taking a flag and ringing loses that one wake-up, so every wait for a bell is bounded. `wanted` outlives
its consumer, so the successor's first `release` rings even if it releases nothing.
"""

import secrets

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from shm.atomic cimport sb_exchange, sb_fence, sb_load, sb_store

from shm import segment

__all__ = ["Inbox", "Ring"]

cdef enum:
    PAGE = 4096                            # bytes
    LINE = 64                              # a cache line, bytes
    SLEEPING_AT = 2048                     # offset of the sleep flag in the header page
    MAGIC = 0x31474E4952425300             # "\0SBRING1"
    LANES_MAX = 65536                      # far more than there are processes

cdef uint64_t LANE_LEAST = 65536, LANE_MOST = 1 << 32      # bytes

cdef enum LaneField:
    HEAD = 0
    CONSUMED = 1
    DURABLE = 2
    WANTED = 3
    AWAITED = 4


cdef inline uint64_t* word(uint8_t* base, int field) noexcept:
    return <uint64_t*>(base + field * LINE)


cdef class Ring:
    cdef uint32_t max_record(self) noexcept:
        return <uint32_t>(self.capacity // 4 - RECORD_HEADER)

    cdef uint64_t span(self, uint32_t size) noexcept:
        """Returns the bytes that a record takes from local_head on, a filler before it included."""
        cdef uint64_t offset = self.local_head & (self.capacity - 1)
        cdef uint64_t whole = padded(size)
        return whole if offset + whole <= self.capacity else self.capacity - offset + whole

    cdef bint fits(self, uint64_t span) noexcept:
        return self.local_head + span - self.seen_consumed <= self.capacity

    cdef bint has_room(self, uint32_t size) noexcept:
        # The filler may be as large as the record: its size counts twice, so that the next reserve cannot fail.
        cdef uint64_t span = 2 * padded(size)
        if self.fits(span):
            return True
        self.seen_consumed = sb_load(word(self.base, CONSUMED))
        if self.fits(span):
            return True
        sb_store(word(self.base, WANTED), 1)
        sb_fence()
        self.seen_consumed = sb_load(word(self.base, CONSUMED))
        return self.fits(span)

    cdef uint8_t* reserve(self, uint32_t size) noexcept:
        cdef uint64_t span = self.span(size), whole = padded(size), offset
        if size > self.capacity // 2:
            return NULL
        if not self.fits(span):
            self.seen_consumed = sb_load(word(self.base, CONSUMED))
            if not self.fits(span):
                return NULL
        offset = self.local_head & (self.capacity - 1)
        if span != whole:
            (<uint32_t*>(self.base + PAGE + offset))[0] = FILLER
            offset = 0
        (<uint32_t*>(self.base + PAGE + offset))[0] = size
        self.local_head += span
        return self.base + PAGE + offset + RECORD_HEADER

    cdef void commit(self) noexcept:
        sb_store(word(self.base, HEAD), self.local_head)

    cdef void commit_to(self, uint64_t position) noexcept:
        sb_store(word(self.base, HEAD), position)

    cdef bint is_secure(self, uint64_t position) noexcept:
        if sb_load(word(self.base, DURABLE)) >= position:
            return True
        sb_store(word(self.base, AWAITED), 1)
        sb_fence()
        return sb_load(word(self.base, DURABLE)) >= position

    cdef uint64_t on_disk(self) noexcept:
        return sb_load(word(self.base, DURABLE))

    cdef uint64_t released(self) noexcept:
        return sb_load(word(self.base, CONSUMED))

    cdef const uint8_t* at(self, uint64_t position) noexcept:
        return self.base + PAGE + (position & (self.capacity - 1))

    cdef bint secure(self, uint64_t position) noexcept:
        if sb_load(word(self.base, DURABLE)) < position:
            sb_store(word(self.base, DURABLE), position)
            sb_fence()
        return sb_load(word(self.base, AWAITED)) != 0 and sb_exchange(word(self.base, AWAITED), 0) != 0

    cdef bint waiting(self) noexcept:
        self.seen_head = sb_load(word(self.base, HEAD))
        return self.seen_head != self.local_tail

    cdef const uint8_t* next(self, uint32_t* size) noexcept:
        cdef uint64_t offset
        cdef uint32_t found
        while True:
            if self.local_tail == self.seen_head:
                if not self.waiting():
                    return NULL
            offset = self.local_tail & (self.capacity - 1)
            found = (<uint32_t*>(self.base + PAGE + offset))[0]
            if found != FILLER:
                self.local_tail += padded(found)
                size[0] = found
                return self.base + PAGE + offset + RECORD_HEADER
            self.local_tail += self.capacity - offset

    cdef void untake(self, uint32_t size) noexcept:
        self.local_tail -= padded(size)

    cdef bint release(self) noexcept:
        if sb_load(word(self.base, CONSUMED)) != self.local_tail:
            sb_store(word(self.base, CONSUMED), self.local_tail)
            sb_fence()
        return sb_load(word(self.base, WANTED)) != 0 and sb_exchange(word(self.base, WANTED), 0) != 0

    cdef uint64_t committed(self) noexcept:
        return sb_load(word(self.base, HEAD))

    cdef uint64_t taken(self) noexcept:
        return self.local_tail

    cdef void skip_to(self, uint64_t position) noexcept:
        if position > self.local_tail and position <= self.committed():
            self.local_tail = position
            self.seen_head = self.committed()      # the one read before may be behind the position, and next() would miss the end

    def fill(self) -> int:
        """Returns the bytes that are committed and not consumed, for observers."""
        cdef uint64_t consumed = sb_load(word(self.base, CONSUMED))
        return sb_load(word(self.base, HEAD)) - consumed

    def rest_at(self, bint synced) -> int:
        """Returns the position of both ends; -1 if the lane has records or, with `synced`, bytes not on the consumer's disk."""
        cdef uint64_t behind = sb_load(word(self.base, DURABLE if synced else CONSUMED))
        return behind if sb_load(word(self.base, HEAD)) == behind else -1

    def capacity_of_records(self) -> int:
        """Returns the most bytes of a record; larger ones are spilled."""
        return self.max_record()

    def head_at(self) -> int:
        """Returns the position behind the last record that its producer has committed."""
        return sb_load(word(self.base, HEAD))

    def is_past(self, uint64_t position, bint synced) -> bool:
        """Returns whether the consumer is done with all records before a position, with `synced` on its disk too. For the producer."""
        return self.is_secure(position) if synced else self.released() >= position

    def damage(self) -> str:
        """Returns the fault in the cursors or in the sizes of the remaining records; "" if there is no fault.

        Only for rings without a live producer: the rings of a running broker are written by its own processes.
        """
        cdef uint64_t head = self.committed(), tail = self.local_tail, offset, span
        cdef uint32_t found
        if head < tail or head - tail > self.capacity or head % 8 or tail % 8:
            return f"head must be up to {self.capacity} bytes from what was taken, got {head} and {tail}"
        while tail != head:
            offset = tail & (self.capacity - 1)
            found = (<uint32_t*>(self.base + PAGE + offset))[0]
            span = self.capacity - offset if found == FILLER else padded(found)
            if offset + span > self.capacity or span > head - tail:
                return f"record at {tail} must end by {head}, got {found} bytes"
            tail += span
        return ""

    def put(self, bytes payload not None, *, bint commit=True) -> bool:
        """Appends one record (slow path). False if there is no room; ValueError if it is too large for the ring.

        With `commit` false the record becomes visible with a later commit.
        """
        cdef uint8_t* target
        if PyBytes_GET_SIZE(payload) > self.max_record():
            raise ValueError(f"record of {len(payload)} bytes, a lane of {self.capacity} takes up to {self.max_record()}")
        if not self.has_room(<uint32_t>PyBytes_GET_SIZE(payload)):
            return False
        target = self.reserve(<uint32_t>PyBytes_GET_SIZE(payload))
        memcpy(target, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        if commit:
            self.commit()
        return True

    def take(self):
        """Returns the next record as bytes, or None (slow path). Call `give_back` after a batch."""
        cdef uint32_t size
        cdef const uint8_t* payload = self.next(&size)
        return None if payload == NULL else PyBytes_FromStringAndSize(<const char*>payload, size)

    def take_many(self, int limit) -> list[bytes]:
        """Returns up to `limit` payloads, like as many calls of take()."""
        cdef list taken = []
        cdef uint32_t size
        cdef const uint8_t* payload
        while len(taken) < limit:
            payload = self.next(&size)
            if payload == NULL:
                break
            taken.append(PyBytes_FromStringAndSize(<const char*>payload, size))
        return taken

    def give_back(self) -> bool:
        """Releases the records returned by `take`; True if the producer waits for room and must be rung."""
        return self.release()


cdef class Inbox:
    """All lanes into one process. One process creates the inbox, every process that uses it attaches to it."""

    @staticmethod
    def create(str name not None, int producers, uint64_t lane_bytes) -> Inbox:
        """Creates an inbox with a lane of `lane_bytes` (a power of two, 64 KiB at least) for each of `producers` processes.

        Raises FileExistsError if the name is taken, OSError.
        """
        if not LANE_LEAST <= lane_bytes <= LANE_MOST or lane_bytes & (lane_bytes - 1):
            raise ValueError(f"lane of {lane_bytes} bytes: allowed is a power of two from {LANE_LEAST} to {LANE_MOST}")
        cdef Inbox inbox = Inbox.__new__(Inbox)
        inbox.map(name, segment.create(name, PAGE + producers * (PAGE + lane_bytes)))
        cdef uint64_t* header = <uint64_t*>inbox.base
        header[1] = <uint64_t>producers
        header[2] = lane_bytes
        header[3] = <uint64_t>secrets.randbits(63)
        sb_store(header, MAGIC)
        inbox.open_lanes()
        return inbox

    @staticmethod
    def attach(str name not None) -> Inbox:
        """Attaches to an inbox. Cursors continue where this process's predecessor left them.

        Raises FileNotFoundError, PermissionError if the file is accessible to other users, ValueError if it is not an inbox.
        """
        cdef Inbox inbox = Inbox.__new__(Inbox)
        inbox.map(name, segment.attach(name, PAGE))
        cdef uint64_t* header = <uint64_t*>inbox.base
        # Each factor is bounded separately, so that the product is exact.
        if (sb_load(header) != MAGIC or not 0 < header[1] <= <uint64_t>LANES_MAX or not LANE_LEAST <= header[2] <= LANE_MOST
                or header[2] & (header[2] - 1) or <uint64_t>len(inbox.mapping) != PAGE + header[1] * (PAGE + header[2])):
            raise ValueError(f"segment {name} is no inbox of this version")
        inbox.open_lanes()
        return inbox

    def close(self) -> None:
        """Releases the segment. Rings taken from `lanes` stay usable and keep it mapped; the inbox does not."""
        self.lanes = []
        self.base = NULL
        self.mapping = None

    cdef int map(self, str name, object mapping) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(mapping, &view, PyBUF_WRITABLE)
        self.base = <uint8_t*>view.buf
        PyBuffer_Release(&view)            # the mapping remains: it is closed with this object
        self.mapping = mapping
        self.name = name
        return 0

    cdef int open_lanes(self) except -1:
        cdef uint64_t* header = <uint64_t*>self.base
        cdef uint64_t lane_bytes = header[2]
        cdef Ring ring
        self.identity = header[3]
        self.lanes = []
        for i in range(header[1]):
            ring = Ring.__new__(Ring)
            ring.base = self.base + PAGE + <uint64_t>i * (PAGE + lane_bytes)
            ring.capacity = lane_bytes
            ring.owner = self.mapping
            ring.local_head = sb_load(word(ring.base, HEAD))
            ring.seen_head = ring.local_head
            ring.seen_consumed = sb_load(word(ring.base, CONSUMED))
            ring.local_tail = ring.seen_consumed
            self.lanes.append(ring)
        return 0

    cdef void sleep(self) noexcept:
        sb_exchange(<uint64_t*>(self.base + SLEEPING_AT), 1)
        sb_fence()                         # an exchange alone does not order the loads after it on every architecture

    cdef void awake(self) noexcept:
        sb_store(<uint64_t*>(self.base + SLEEPING_AT), 0)

    cdef bint must_ring(self) noexcept:
        sb_fence()
        return sb_load(<uint64_t*>(self.base + SLEEPING_AT)) != 0 and sb_exchange(<uint64_t*>(self.base + SLEEPING_AT), 0) != 0

    cdef bint must_ring_for(self, uint8_t events) noexcept:
        sb_fence()
        return sb_load(<uint64_t*>(self.base + SLEEPING_AT)) & events != 0 and self.must_ring()

    def go_to_sleep(self, uint8_t events=255) -> bool:
        """Sets the sleep flag of the consumer (slow path); False if a record arrived meanwhile, and the consumer must not sleep.

        events: bits of what it wakes up for, of producers that ring by must_ring_for().
        """
        cdef Ring ring
        if self.base == NULL:
            raise ValueError(f"inbox {self.name} is closed")
        sb_exchange(<uint64_t*>(self.base + SLEEPING_AT), events)
        sb_fence()
        for ring in self.lanes:
            if ring.waiting():
                self.awake()
                return False
        return True

    def take_bell(self) -> bool:
        """Returns whether the consumer's doorbell must be rung after put() (slow path)."""
        if self.base == NULL:
            raise ValueError(f"inbox {self.name} is closed")
        return self.must_ring()

    def unlink(self) -> None:
        """Removes the name of the segment."""
        segment.unlink(self.name)
