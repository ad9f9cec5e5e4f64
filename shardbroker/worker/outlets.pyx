"""Messages that leave a worker; see outlets.pxd."""

import os

from cython cimport final
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset

from shardbroker.worker.outlet cimport NO_ROOM, lane_bit
from shm.counters cimport MESSAGES_DROPPED_UNREACHABLE, MESSAGES_FORWARD
from shm.destinations cimport NODE, RETAINED_STORE
from shm.posix cimport write
from shm.view cimport VIEW_ROWS, ViewRow
from shm.records cimport FLAG_NOTED, FLAG_RETAIN, FLAG_SPILLED, RECORD_PUBLISH, RECORD_SHARED, record_size

from shm.destinations import destination_name
from shm.spill import spill_path
from shardbroker.logs.phrases import log_line

__all__ = ["Outlets", "RingOutlet", "RingOutlets", "StoreOutlet"]

cdef enum:
    CLIENT_ID_ROOM = 65536                 # bytes that the publisher's client id may add to a record
    UNKNOWN_MAX = 1000                     # destinations that are logged
    LINK_UP = 3                            # LinkState of shardbroker/cluster/view.py


cdef class Outlets:
    cdef bint has_all(self, TopicEntry entry) except -1:
        return True

    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1:
        return True

    cdef bint room_for_qos0(self, TopicEntry entry, uint64_t size) except -1:
        return self.room_for(entry, size)

    cdef bint put(self, long destination, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1:
        raise NotImplementedError("Outlets.put")

    cdef int put_retained(self, Publication publication) except -1:
        return 0

    cdef bint forward(self, long destination, Publication publication) except -1:
        cdef RecordHeader header
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_PUBLISH
        return self.put(destination, &header, publication, b"", b"")

    cdef bint forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1:
        cdef RecordHeader header
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_SHARED
        header.member = member
        header.attempts = attempts
        return self.put(destination, &header, publication, <bytes>group[0], <bytes>group[1])

    cdef bint put_deferred(self, Deferred deferred) except -1:
        cdef RecordHeader header
        cdef Publication publication = Publication.__new__(Publication)
        memset(&header, 0, sizeof(header))
        header.kind = <uint8_t>deferred.record
        header.attempts = <uint8_t>deferred.attempts
        header.member = deferred.member
        publication.borrow(deferred.message)
        publication.unrepeatable = True
        publication.answered = deferred.answered
        return self.put(deferred.destination, &header, publication, deferred.group, deferred.filter)


@final
cdef class RingOutlets(Outlets):
    """topology: shm.topology.Topology. number: of this worker."""

    def __init__(self, WorkerContext context not None, topology, int number):
        self.context = context
        self.topology = topology
        self.number = number
        self.workers = topology.workers
        self.by_process = [None] * topology.processes
        self.doorbells = tuple(topology.doorbells)
        self.nodes = {}
        self.touched = []
        self.unknown = set()

    def join(self, ViewSegment view not None) -> None:
        """Makes the nodes of a cluster destinations."""
        self.view = view
        self.view_version = view.version()

    cdef RingOutlet of_process(self, int process):
        cdef RingOutlet outlet = <RingOutlet>self.by_process[process]
        if outlet is None:
            outlet = RingOutlet.__new__(RingOutlet)
            outlet.outlets = self
            outlet.destination = outlet.process = process
            outlet.bit = lane_bit(process)
            outlet.inbox = Inbox.attach(self.topology.inbox_name(process))
            outlet.lane = outlet.inbox.lane(self.number)
            self.by_process[process] = outlet
        return outlet

    cdef RingOutlet of_node(self, long destination):
        cdef RingOutlet outlet
        cdef ViewRow* row
        cdef int node = <int>number_of(destination)
        if kind_of(destination) != NODE or self.view is None or not 0 < node < VIEW_ROWS:
            return None
        outlet = <RingOutlet>self.nodes.get(node)
        if outlet is not None:
            return outlet
        link = self.topology.link_of(self.number)
        outlet = RingOutlet.__new__(RingOutlet)
        outlet.outlets = self
        outlet.destination = destination
        outlet.bit = lane_bit(destination)
        outlet.process = self.topology.slot_of("link", link)
        outlet.node = node
        row = self.view.row(self.view.version(), node)
        outlet.is_new, outlet.gone = row.is_new, row.gone
        try:
            outlet.inbox = Inbox.attach(self.topology.peer_inbox_name(node, link))
        except FileNotFoundError:
            return None
        outlet.lane = outlet.inbox.lane(self.number)
        self.nodes[node] = outlet
        return outlet

    cdef int look_at_view(self) except -1:
        cdef RingOutlet outlet
        cdef ViewRow* row
        self.view_version = self.view.version()
        for outlet in list(self.nodes.values()):
            row = self.view.row(self.view_version, outlet.node)
            if (row.is_new != outlet.is_new or row.gone != outlet.gone) and not outlet.touched:
                del self.nodes[outlet.node]    # its rings may have been removed
        return 0

    cdef bint is_reachable(self, RingOutlet outlet) noexcept:
        return outlet.node == 0 or self.view.link_state(outlet.node) == LINK_UP

    cdef bint has_all(self, TopicEntry entry) except -1:
        cdef long destination
        for destination in entry.destinations:
            if self.outlet_of(destination) is None:
                self.note_unknown(destination)
                return False
        for group in entry.groups:
            for destination, _ in <tuple>group[2]:
                if destination != self.number and self.outlet_of(destination) is None:
                    self.note_unknown(destination)
                    return False
        return True

    cdef int note_unknown(self, long destination) except -1:
        if destination not in self.unknown and len(self.unknown) < UNKNOWN_MAX:
            self.unknown.add(destination)
            self.context.log("error", log_line("destination unknown", destination=destination_name(destination)))
        return 0

    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1:
        return self.has_room(entry, size, False)

    cdef bint room_for_qos0(self, TopicEntry entry, uint64_t size) except -1:
        return self.has_room(entry, size, True)

    cdef bint has_room(self, TopicEntry entry, uint64_t size, bint droppable) except -1:
        cdef RingOutlet outlet
        cdef long destination
        cdef uint64_t whole
        for destination in entry.destinations:
            outlet = self.outlet_of(destination)
            if outlet is not None and not outlet.room_for(size) and not (droppable and not self.is_reachable(outlet)):
                return False
        for group in entry.groups:
            # Every group may choose a member on the same worker: room for all their records, beside the plain one.
            whole = (size + len(group[0]) + len(group[1]) + CLIENT_ID_ROOM) * (len(entry.groups) + 1)
            for destination, _ in <tuple>group[2]:
                if destination == self.number:
                    continue
                outlet = self.outlet_of(destination)
                if outlet is not None and not outlet.room_for(whole) and not (droppable and not self.is_reachable(outlet)):
                    return False
        return True

    cdef bint put(self, long destination, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1:
        cdef RingOutlet outlet = self.outlet_of(destination)
        cdef int64_t position
        cdef bint noted = publication.unrepeatable and publication.qos and self.context.recorder is not None
        if outlet is None:                 # from a journal, or from a shared group that has changed since has_all()
            self.note_unknown(destination)
            self.context.count_unroutable()
            return True
        header.flags |= publication.qos | publication.answered | (FLAG_RETAIN if publication.retain else 0) | (FLAG_NOTED if noted else 0)
        header.sent_us = <uint32_t>self.pass_us
        header.payload_format = publication.payload_format
        header.topic_size = publication.topic_size
        header.properties_size = publication.properties_size
        header.payload_size = publication.payload_size
        header.client_size = <uint32_t>PyBytes_GET_SIZE(publication.client_id) if publication.client_id is not None else 0
        header.group_size = <uint32_t>PyBytes_GET_SIZE(group)
        header.filter_size = <uint32_t>PyBytes_GET_SIZE(filter)
        header.id_high = publication.id_high
        header.id_low = publication.id_low
        header.expires_ms = publication.expires_ms
        position = outlet.put(header, publication, group, filter)
        if position == NO_ROOM:
            if publication.qos or self.is_reachable(outlet):
                return False
            self.context.count(MESSAGES_DROPPED_UNREACHABLE)
            return True
        if self.context.watch:
            self.context.watcher.forwarded(destination, publication)
        if noted:
            if self.gate is not None:
                self.gate.noted.add(outlet)
            self.note_forward(outlet, <uint64_t>position, header, publication, group, filter)
        self.forwarded_to |= outlet.bit
        self.touch(outlet)
        self.context.count(MESSAGES_FORWARD)
        return True

    cdef int note_forward(
        self, Outlet outlet, uint64_t position, RecordHeader* header, Publication publication, bytes group, bytes filter,
    ) except -1:
        """The publisher would not send this message again: if it does not leave, the journal has its destination."""
        return self.context.recorder.forwarded(
            outlet.identity(), outlet.destination, position, publication.keep(), header.kind, header.member, header.attempts, group,
            filter, self.gate is not None)

    cdef int put_retained(self, Publication publication) except -1:
        cdef RecordHeader header
        if self.store is not None:
            memset(&header, 0, sizeof(header))
            header.kind = RECORD_PUBLISH
            self.note_forward(
                self.store, <uint64_t>self.store.put(&header, publication, b"", b""), &header, publication, b"", b"")
        return 0

    cdef int touch(self, RingOutlet outlet) except -1:
        """Adds it to `touched`; many messages in a row go to the same worker."""
        if outlet is not self.last_touched:
            self.last_touched = outlet
            if not outlet.touched:
                outlet.touched = True
                self.touched.append(outlet)
        return 0

    cdef int commit(self) except -1:
        cdef RingOutlet outlet
        cdef list touched = self.touched
        if touched:
            self.touched = []
            self.last_touched = None
            for outlet in touched:
                outlet.touched = False
                outlet.commit()
        if self.view is not None and self.view.version() != self.view_version:
            self.look_at_view()
        return 0

    cdef int put_plain(self, int process, RecordHeader* header, bytes text) except -1:
        cdef RingOutlet outlet = self.of_process(process)
        cdef uint64_t size = record_size(header)
        cdef uint8_t* target = outlet.lane.reserve(<uint32_t>size) if size <= outlet.lane.max_record() else NULL
        if target != NULL:
            memcpy(target, header, sizeof(header[0]))
            memcpy(target + sizeof(header[0]), PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
            self.touch(outlet)
        return 0

    cdef int ring(self, int process) except -1:
        cdef uint64_t one = 1
        if write(self.doorbells[process], &one, sizeof(one)) < 0 and errno != EAGAIN:
            raise OSError(errno, f"eventfd of process {process}")
        return 0


@final
cdef class RingOutlet(Outlet):
    cdef bint room_for(self, uint64_t size) except -1:
        """Never requires more than the lane can hold, or a publisher would wait forever. A record too large for a lane is spilled and
        takes little."""
        return self.lane.has_room(<uint32_t>min(size + sizeof(RecordHeader) + CLIENT_ID_ROOM, <uint64_t>self.lane.max_record()))

    cdef int64_t put(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2:
        cdef uint64_t size = record_size(header), position = self.lane.local_head
        cdef uint8_t* target
        if size > self.lane.max_record():
            return self.spill(header, publication, group, filter)
        target = self.lane.reserve(<uint32_t>size)
        if target == NULL:
            return NO_ROOM
        fill_record(target, header, publication, group, filter)
        return <int64_t>position

    cdef int64_t spill(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2:
        """A record larger than the ring takes goes to a file on tmpfs; its reader unlinks it."""
        cdef RecordHeader note
        cdef bytes name
        cdef bytes contents = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>record_size(header))
        cdef uint8_t* target
        cdef uint64_t position = self.lane.local_head
        cdef RingOutlets outlets = self.outlets
        fill_record(<uint8_t*>PyBytes_AS_STRING(contents), header, publication, group, filter)
        outlets.spill_number += 1
        name = f"{outlets.number}-{self.destination}-{os.getpid()}-{outlets.spill_number}".encode()
        path = spill_path(outlets.topology.spill_dir, name)
        try:
            path.write_bytes(contents)
        except OSError as error:           # a full tmpfs counts as a full ring
            path.unlink(missing_ok=True)
            outlets.context.log_failure(log_line("message not spilled", bytes=len(contents)), error)
            return NO_ROOM
        memset(&note, 0, sizeof(note))
        note.kind = header.kind
        note.flags = FLAG_SPILLED | (header.flags & FLAG_NOTED)
        note.sent_us = header.sent_us
        note.topic_size = <uint32_t>len(name)
        target = self.lane.reserve(<uint32_t>record_size(&note))
        if target == NULL:
            path.unlink()
            return NO_ROOM
        memcpy(target, &note, sizeof(note))
        memcpy(target + sizeof(note), PyBytes_AS_STRING(name), len(name))
        return <int64_t>position

    cdef int commit(self) except -1:
        if self.outlets.gate is not None and self.outlets.gate.holds(self):
            return 0                       # at level `machine` the journal has to be on the disk before
        self.lane.commit()
        return self.wake()

    cdef int commit_to(self, uint64_t end) except -1:
        self.lane.commit_to(end)
        return self.wake()

    cdef uint64_t end(self) except? 0:
        return self.lane.local_head

    cdef bint secured(self, uint64_t end) except -1:
        return self.lane.is_secure(end)

    cdef uint64_t identity(self) noexcept:
        return self.inbox.identity

    cdef int wake(self) except -1:
        if self.inbox.must_ring():
            self.outlets.ring(self.process)
        return 0


@final
cdef class StoreOutlet(Outlet):
    def __init__(self, JournalRecorder recorder not None, retained not None) -> None:
        self.destination = RETAINED_STORE
        self.recorder = recorder
        self.retained = retained

    cdef bint room_for(self, uint64_t size) except -1:
        return True                        # Router.retained_waiting has the bound

    cdef int64_t put(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2:
        self.retained.noted += 1
        return <int64_t>self.retained.noted

    cdef int commit(self) except -1:
        return 0                           # the batch of the pass is in the queue of the store's thread

    cdef int commit_to(self, uint64_t end) except -1:
        return 0

    cdef uint64_t end(self) except? 0:
        return self.retained.asked

    cdef bint secured(self, uint64_t end) except -1:
        return <uint64_t>self.retained.done >= end

    cdef uint64_t identity(self) noexcept:
        return self.recorder.writer.incarnation


cdef void fill_record(uint8_t* target, RecordHeader* header, Publication publication, bytes group, bytes filter) noexcept:
    memcpy(target, header, sizeof(RecordHeader))
    target += sizeof(RecordHeader)
    memcpy(target, publication.topic, header.topic_size)
    target += header.topic_size
    if header.properties_size:
        memcpy(target, publication.properties, header.properties_size)
        target += header.properties_size
    if header.client_size:
        memcpy(target, PyBytes_AS_STRING(publication.client_id), header.client_size)
        target += header.client_size
    memcpy(target, PyBytes_AS_STRING(group), header.group_size)
    target += header.group_size
    memcpy(target, PyBytes_AS_STRING(filter), header.filter_size)
    target += header.filter_size
    if header.payload_size:
        memcpy(target, publication.payload, header.payload_size)
