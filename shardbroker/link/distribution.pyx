"""Records of peers: from a frame into the rings of the workers that have a subscriber of the topic.

    frame -> check -> topic -> workers (cache over the route table) -> ArrivalHeader, RecordHeader, parts in a ring of each worker

Only destinations of kind WORKER count, so a record of a peer never leaves this node again. A record for a member of a shared group
goes to the home worker of the group. What a full ring does not take is copied (Rest) and put later, from the record at which the
ring was full.

Everything in a frame is from outside: sizes, positions, kinds and flags of all records are checked before the first one is put, and a
topic before it is looked up.
"""

import os
import zlib
from contextlib import suppress

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from shardbroker.link.lanes cimport GAP_BYTES, Gap, RecordPrefix, Slice, Walk, new_slice, step
from shardbroker.mqtt.topics cimport is_topic_name
from shm.destinations cimport WORKER, kind_of, number_of
from shm.epochs cimport Buckets, Epochs, buckets_of
from shm.posix cimport write
from shm.records cimport (
    FLAG_ORIGINATE, FLAG_QOS, FLAG_SPILLED, RECORD_KEEP, RECORD_PUBLISH, RECORD_SHARED, ArrivalHeader, RecordHeader, check_record,
    record_size,
)
from shm.ring cimport FILLER, RECORD_HEADER, Inbox, Ring, padded
from shm.text_hash cimport sb_hash

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.inbound import Keep, Placed
from shm.spill import spill_path

__all__ = ["Contents", "Distribution", "Rest", "received_slice"]

cdef extern from *:
    """
    #include <stdint.h>
    static inline int sb_lowest(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    int sb_lowest(uint64_t bits) noexcept

cdef enum:
    WORKERS_MAX = 64                       # bits of a mask
    SLOTS = 1 << 17                        # of the topic cache, which is emptied when it is half full
    FIRST_RECORD = 4096                    # bytes of a file that are read for its header and topic

BODY_MAX = 268_435_456 + (64 << 10)
"""Bytes of a record: the largest MQTT packet, and the header of the record."""

cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")

cdef struct TopicSlot:
    uint8_t* topic                         # NULL: free
    uint64_t hash
    uint64_t stamp
    uint64_t workers
    uint32_t size
    Buckets buckets


def received_slice(buffer, const uint8_t[::1] body, uint64_t start) -> Slice:
    """Returns the body of a DATA frame that is not checked yet; `buffer` keeps its memory alive."""
    return new_slice(buffer, &body[0] if body.shape[0] else NULL, <uint64_t>body.shape[0], start, start, None)


cdef class Contents:
    """The contents of a record that is too large for a ring: a file, which is removed with the last reference."""
    cdef readonly object path
    cdef readonly uint64_t size

    def __init__(self, path, uint64_t size) -> None:
        self.path = path
        self.size = size

    def __del__(self):
        with suppress(OSError):
            self.path.unlink()


cdef class Rest:
    """What the full ring of a worker did not take of a range."""
    cdef Slice slice                       # of a copy
    cdef Contents contents
    cdef readonly uint64_t size


cdef class Distribution:
    """Rings from this link process to the workers of its node: implements shardbroker.cluster.inbound.Inlets.

    routes: shm.routes.RouteTable. level_machine: `secured` is what is on the disk of a worker, else what the worker has taken.
    """
    cdef object routes, spill_dir, prefix
    cdef Epochs epochs
    cdef list inboxes, lanes
    cdef tuple doorbells
    cdef bint level_machine
    cdef readonly uint32_t workers_count
    cdef public uint32_t pass_us           # when the pass began, for the field `sent_us` of records
    cdef uint64_t touched                  # workers whose rings have records that are not committed
    cdef uint64_t spill_number
    cdef TopicSlot* slots
    cdef size_t topics
    cdef public object contents            # of the spilled record in the range that is put next: Contents, or None
    cdef readonly uint64_t records, unroutable

    def __cinit__(self):
        self.slots = <TopicSlot*>calloc(SLOTS, sizeof(TopicSlot))
        if self.slots == NULL:
            raise MemoryError("no memory for a topic cache")

    def __dealloc__(self):
        if self.slots != NULL:
            self.empty_cache()
            free(self.slots)

    def __init__(self, routes, Epochs epochs not None, list inboxes not None, int own_lane, doorbells, spill_dir, bint level_machine):
        if len(inboxes) > <int>WORKERS_MAX:
            raise ValueError(f"workers: must be at most {WORKERS_MAX}, got {len(inboxes)}")
        self.routes = routes
        self.epochs = epochs
        self.inboxes = inboxes
        self.lanes = [(<Inbox>inbox).lane(<uint32_t>own_lane) for inbox in inboxes]
        self.doorbells = tuple(doorbells)
        self.spill_dir = spill_dir
        self.prefix = f"link-{own_lane}-{os.getpid()}"
        self.level_machine = level_machine
        self.workers_count = <uint32_t>len(inboxes)

    # --- what the core calls ------------------------------------------------------------------------------------------------

    def workers(self) -> range:
        """Returns all workers."""
        return range(self.workers_count)

    def secured(self, int worker) -> int:
        """Returns the position in the ring of a worker up to which its disk has everything."""
        cdef Ring lane = <Ring>self.lanes[worker]
        if self.level_machine:
            lane.is_secure(lane.local_head)   # the worker rings once its disk has more
            return lane.on_disk()
        return lane.released()

    def put(self, uint64_t origin, uint64_t identity, uint64_t start, uint64_t end, Slice records not None, full) -> Placed:
        """Puts the records of a range into the rings of the workers that take them, except for `full` workers.

        Raises PeerFault for records that are malformed or not in the range.
        """
        cdef Contents contents = <Contents?>self.contents if self.contents is not None else None
        cdef Walk walk
        cdef const uint8_t* record
        cdef uint32_t size
        cdef uint64_t mask, blocked = 0, done = 0, used
        cdef uint64_t positions[WORKERS_MAX]
        cdef bytes copy = None
        cdef Rest rest
        cdef dict rests = {}
        cdef int worker
        self.contents = None
        check_range(records, start, end, contents)
        for worker in full:
            blocked |= <uint64_t>1 << worker
        walk = records.walk()
        while True:
            used = <uint64_t>(walk.at - records.data)
            record = step(&walk, &size)
            if record == NULL:
                break
            self.records += 1
            mask = self.workers_of_record(record, contents)
            if not mask:
                self.unroutable += 1
            while mask:
                worker = sb_lowest(mask)
                mask &= mask - 1
                if not blocked >> worker & 1:
                    if self.put_one(worker, origin, identity, walk.position, record, size, contents):
                        done |= <uint64_t>1 << worker
                        positions[worker] = (<Ring>self.lanes[worker]).local_head
                        continue
                    blocked |= <uint64_t>1 << worker
                if worker not in rests:
                    if copy is None:
                        copy = bytes(records)
                    rest = Rest.__new__(Rest)
                    rest.contents = contents
                    rest.slice = new_slice(
                        copy, <const uint8_t*>PyBytes_AS_STRING(copy) + used, records.size - used, walk.position - padded(size),
                        walk.position, None)
                    skip_gap(rest.slice)
                    rest.size = rest.slice.size + (contents.size if contents is not None else 0)
                    rests[worker] = rest
        if rests:
            for rest in rests.values():
                rest.slice.end = walk.position
        return Placed({worker: positions[worker] for worker in range(self.workers_count) if done >> worker & 1}, rests)

    def put_rest(self, int worker, uint64_t origin, uint64_t identity, rest) -> tuple:
        """Puts a rest, or a Keep, into the ring of a worker. Returns the position behind it, 0 if nothing was put, and what the ring
        did not take."""
        if isinstance(rest, Keep):
            return self.put_keep(worker, origin, rest)
        cdef Rest whole = <Rest?>rest, left
        cdef Walk walk = whole.slice.walk()
        cdef const uint8_t* record
        cdef uint32_t size
        cdef uint64_t position = 0
        while True:
            record = step(&walk, &size)
            if record == NULL:
                return position, None
            if not self.workers_of_record(record, whole.contents) >> worker & 1:
                continue
            if not self.put_one(worker, origin, identity, walk.position, record, size, whole.contents):
                break
            position = (<Ring>self.lanes[worker]).local_head
        left = Rest.__new__(Rest)
        left.contents = whole.contents
        record -= <int>RECORD_HEADER
        left.slice = new_slice(
            whole.slice.owner, record, whole.slice.size - <uint64_t>(record - whole.slice.data), walk.position - padded(size),
            whole.slice.end, None)
        left.size = left.slice.size + (whole.size - whole.slice.size)
        return position, left

    # --- rings ----------------------------------------------------------------------------------------------------------------

    cdef tuple put_keep(self, int worker, uint64_t origin, keep):
        cdef Ring lane = <Ring>self.lanes[worker]
        cdef RecordHeader header
        cdef ArrivalHeader arrival
        cdef uint64_t one
        cdef uint8_t* target
        cdef tuple identities = keep.identities
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_KEEP
        header.sent_us = self.pass_us
        header.payload_size = <uint32_t>(8 * len(identities))
        target = self.reserve(worker, lane, sizeof(arrival) + sizeof(header) + header.payload_size)
        if target == NULL:
            return 0, keep
        arrival.origin = <uint32_t>origin
        arrival.zero = 0
        arrival.identity = arrival.position = 0
        memcpy(target, &arrival, sizeof(arrival))
        memcpy(target + sizeof(arrival), &header, sizeof(header))
        target += sizeof(arrival) + sizeof(header)
        for identity in identities:
            one = identity
            memcpy(target, &one, sizeof(one))
            target += sizeof(one)
        return lane.local_head, None

    cdef uint8_t* reserve(self, int worker, Ring lane, uint64_t size) except? NULL:
        """Returns room in the ring of a worker, or NULL: the worker rings once there is more."""
        cdef uint8_t* target = lane.reserve(<uint32_t>size)
        if target == NULL and lane.has_room(<uint32_t>size):
            target = lane.reserve(<uint32_t>size)
        if target != NULL:
            self.touched |= <uint64_t>1 << worker
        return target

    cdef bint put_one(
        self, int worker, uint64_t origin, uint64_t identity, uint64_t position, const uint8_t* record, uint32_t size,
        Contents contents,
    ) except -1:
        cdef Ring lane = <Ring>self.lanes[worker]
        cdef ArrivalHeader* arrival
        cdef uint8_t* target
        if contents is not None or size + sizeof(ArrivalHeader) > lane.max_record():
            return self.put_spilled(worker, origin, identity, position, record, size, contents)
        target = self.reserve(worker, lane, size + sizeof(ArrivalHeader))
        if target == NULL:
            return False
        arrival = <ArrivalHeader*>target
        arrival.origin = <uint32_t>origin
        arrival.zero = 0
        arrival.identity = identity
        arrival.position = position
        target += sizeof(ArrivalHeader)
        memcpy(target, record, size)
        (<RecordHeader*>target).sent_us = self.pass_us
        return True

    cdef bint put_spilled(
        self, int worker, uint64_t origin, uint64_t identity, uint64_t position, const uint8_t* record, uint32_t size,
        Contents contents,
    ) except -1:
        """Puts a record that is too large for the ring of this worker: in a file of the worker's own."""
        cdef Ring lane = <Ring>self.lanes[worker]
        cdef RecordHeader note
        cdef ArrivalHeader arrival
        cdef uint8_t* target
        cdef bytes name
        self.spill_number += 1
        name = f"{self.prefix}-{worker}-{self.spill_number}".encode()
        path = spill_path(self.spill_dir, name)
        if not lane.has_room(<uint32_t>(sizeof(arrival) + sizeof(note) + len(name))):
            return False
        try:
            if contents is not None:
                os.link(contents.path, path)
            else:
                path.write_bytes(PyBytes_FromStringAndSize(<const char*>record, size))
        except OSError:                    # a full tmpfs counts as a full ring
            path.unlink(missing_ok=True)
            return False
        memset(&note, 0, sizeof(note))
        note.kind = (<const RecordHeader*>record).kind
        note.flags = FLAG_SPILLED | ((<const RecordHeader*>record).flags & ~<uint8_t>FLAG_SPILLED)
        note.sent_us = self.pass_us
        note.topic_size = <uint32_t>len(name)
        target = self.reserve(worker, lane, sizeof(arrival) + sizeof(note) + len(name))
        arrival.origin = <uint32_t>origin
        arrival.zero = 0
        arrival.identity = identity
        arrival.position = position
        memcpy(target, &arrival, sizeof(arrival))
        memcpy(target + sizeof(arrival), &note, sizeof(note))
        memcpy(target + sizeof(arrival) + sizeof(note), PyBytes_AS_STRING(name), len(name))
        return True

    def commit(self) -> None:
        """Makes visible what was put, and rings the workers that sleep; to be called once a pass, before acknowledgements are
        sent."""
        cdef uint64_t one = 1
        cdef int worker
        while self.touched:
            worker = sb_lowest(self.touched)
            self.touched &= self.touched - 1
            (<Ring>self.lanes[worker]).commit()
            if (<Inbox>self.inboxes[worker]).must_ring():
                if write(self.doorbells[worker], &one, sizeof(one)) < 0 and errno != EAGAIN:
                    raise OSError(errno, f"eventfd of worker {worker}")

    # --- topics ---------------------------------------------------------------------------------------------------------------

    cdef uint64_t workers_of_record(self, const uint8_t* record, Contents contents) except? 0xFFFFFFFFFFFFFFFF:
        cdef const RecordHeader* header = <const RecordHeader*>record
        cdef const uint8_t* names
        cdef bytes text
        if contents is not None:
            text = head_of(contents)
            header = <const RecordHeader*>PyBytes_AS_STRING(text)
        if header.kind == RECORD_SHARED:
            names = (
                <const uint8_t*>header + sizeof(RecordHeader) + header.topic_size + header.properties_size + header.client_size)
            group = PyBytes_FromStringAndSize(<const char*>names, header.group_size)
            filter = PyBytes_FromStringAndSize(<const char*>names + header.group_size, header.filter_size)
            return <uint64_t>1 << <int>(zlib.crc32(group + b"\0" + filter) % self.workers_count)
        return self.workers_of(<const uint8_t*>header + sizeof(RecordHeader), header.topic_size)

    cdef uint64_t workers_of(self, const uint8_t* topic, uint32_t size) except? 0xFFFFFFFFFFFFFFFF:
        """Returns the workers with a subscriber of a topic, as a mask. Raises PeerFault for an invalid topic."""
        cdef uint64_t hash = sb_hash(topic, size, SEED)
        cdef size_t i = hash & (SLOTS - 1)
        cdef TopicSlot* slot
        cdef uint64_t stamp, found = 0
        while True:
            slot = &self.slots[i]
            if slot.topic == NULL:
                break
            if slot.hash == hash and slot.size == size and memcmp(slot.topic, topic, size) == 0:
                if slot.stamp == self.epochs.current(&slot.buckets):
                    return slot.workers
                break
            i = (i + 1) & (SLOTS - 1)
        if slot.topic == NULL:
            if not is_topic_name(topic, size, 0):
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA topic: must be a topic name, got {(<const char*>topic)[:min(size, 100)]!r}")
            if 2 * self.topics >= <size_t>SLOTS:
                self.empty_cache()
                return self.workers_of(topic, size)
            slot.topic = <uint8_t*>malloc(size)
            if slot.topic == NULL:
                raise MemoryError("no memory for a topic in the cache")
            memcpy(slot.topic, topic, size)
            slot.hash = hash
            slot.size = size
            buckets_of(topic, size, &slot.buckets)
            self.topics += 1
        stamp = self.epochs.current(&slot.buckets)
        for destination in self.routes.match(PyBytes_FromStringAndSize(<const char*>topic, size)).destinations:
            if kind_of(destination) == WORKER and number_of(destination) < <long>self.workers_count:
                found |= <uint64_t>1 << <int>number_of(destination)
        slot.stamp = stamp
        slot.workers = found
        return found

    cdef void empty_cache(self) noexcept:
        cdef size_t i
        for i in range(SLOTS):
            free(self.slots[i].topic)
        memset(self.slots, 0, SLOTS * sizeof(TopicSlot))
        self.topics = 0


cdef void skip_gap(Slice slice) noexcept:
    """A rest begins with its first record."""
    while (<const Gap*>slice.data).size == <uint32_t>FILLER:
        slice.data += <int>GAP_BYTES
        slice.size -= <int>GAP_BYTES


cdef bytes head_of(Contents contents):
    """Returns the start of a spilled record, up to its last name."""
    cdef RecordHeader header
    with open(contents.path, "rb") as file:
        head = file.read(FIRST_RECORD)
        memcpy(&header, PyBytes_AS_STRING(head), sizeof(header))
        rest = record_size(&header) - header.payload_size
        return head if rest <= len(head) else head + file.read(rest - len(head))


cdef int check_range(Slice slice, uint64_t start, uint64_t end, Contents contents) except -1:
    """Checks the records of a frame, and sets the end of the slice. Raises PeerFault."""
    cdef const uint8_t* at = slice.data
    cdef uint64_t left = slice.size, position = start, span
    cdef uint32_t size
    cdef const RecordHeader* header
    cdef bytes head
    cdef bint spilled = False
    while left:
        if left < <uint64_t>RECORD_HEADER:
            return fault(f"{left} bytes behind the last record")
        size = (<const RecordPrefix*>at).size
        if size == <uint32_t>FILLER:
            if left < <uint64_t>GAP_BYTES:
                return fault(f"a gap of {left} bytes, must have {GAP_BYTES}")
            span = (<const Gap*>at).bytes
            if span & 7 or span > end - position:
                return fault(f"a gap of {span} at position {position} of a range that ends at {end}")
            position += span
            at += <int>GAP_BYTES
            left -= <uint64_t>GAP_BYTES
            continue
        span = padded(size)
        if span > left or span > end - position:
            return fault(f"a record of {size} bytes at position {position}: {left} bytes are left, the range ends at {end}")
        header = <const RecordHeader*>(at + <int>RECORD_HEADER)
        try:
            check_record(<const uint8_t*>header, size)
        except ValueError as error:
            return fault(str(error))
        if header.flags & FLAG_SPILLED:
            if contents is None or span != left:
                return fault("a spilled record: must be alone and behind its contents")
            spilled = True
        check_kind(header, not spilled)
        position += span
        at += span
        left -= span
    if contents is not None:
        if not spilled:
            return fault("contents without a spilled record")
        head = head_of_checked(contents)
        header = <const RecordHeader*>PyBytes_AS_STRING(head)
        check_kind(header, True)
    slice.end = position
    return 0


cdef int check_kind(const RecordHeader* header, bint whole) except -1:
    if header.kind != RECORD_PUBLISH and header.kind != RECORD_SHARED:
        return fault(f"kind: must be {RECORD_PUBLISH} or {RECORD_SHARED}, got {header.kind}")
    if header.flags & FLAG_ORIGINATE or (header.flags & FLAG_QOS) == 3:
        return fault(f"flags: out of range, got {header.flags}")
    if whole and (header.kind == RECORD_SHARED) != (header.group_size > 0 and header.filter_size > 0):
        return fault(f"group of {header.group_size} bytes and filter of {header.filter_size} in a record of kind {header.kind}")
    if whole and (header.flags & FLAG_SPILLED or header.topic_size == 0):
        return fault(f"flags {header.flags} and topic of {header.topic_size} bytes: must be those of a whole record")
    return 0


cdef bytes head_of_checked(Contents contents):
    """Returns the start of a spilled record whose sizes match its file. Raises PeerFault."""
    cdef RecordHeader header
    if contents.size < sizeof(header):
        fault(f"contents of {contents.size} bytes")
    with open(contents.path, "rb") as file:
        head = file.read(sizeof(header))
    memcpy(&header, PyBytes_AS_STRING(head), sizeof(header))
    if record_size(&header) != contents.size or record_size(&header) - header.payload_size > 1 << 20:
        fault(f"contents of {contents.size} bytes: the header must have the same size, and names of at most 1 MB")
    return head_of(contents)


cdef int fault(str text) except -1:
    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA: {text}")
