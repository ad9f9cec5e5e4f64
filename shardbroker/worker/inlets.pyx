"""Rings from other processes; see inlets.pxd."""

from contextlib import suppress

from cython cimport final
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from shardbroker.pubsub.message cimport fill
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.session cimport Session
from shardbroker.worker.deferred cimport defer_for_group
from shm.records cimport (
    FLAG_NOTED, FLAG_ORIGINATE, FLAG_QOS, FLAG_RETAIN, FLAG_SPILLED, RECORD_COMMAND, RECORD_PAUSE, RECORD_SHARED, check_record,
)

from shm.spill import read_spilled

__all__ = ["Inlets"]

cdef enum:
    RECORDS = 4096                         # ring records taken from one lane a pass
    DRAIN_BUDGET = 8192                    # units of work in a pass for the records of all lanes


@final
cdef class Inlets:
    """hop_times: shm.counters.Histogram of a worker."""

    def __init__(self, Router router not None, RingOutlets rings not None, Durability durability not None, Backpressure backpressure not None,
                 Inbox inbox, Histogram hop_times not None):
        self.router = router
        self.rings = rings
        self.durability = durability
        self.backpressure = backpressure
        self.inbox = inbox
        self.hop_times = hop_times
        self.spill_source = rings.topology.spill_dir
        self.incoming = Publication.__new__(Publication)
        self.lane_lookups = {}
        self.spilled = {}
        self.spent = []
        self.commands = []

    cdef int drain_lanes(self) except -1:
        cdef int producer
        if self.durability.behind:
            return self.drain_manager()    # what the journal cannot take stays in the rings, and so with the publishers
        for producer in range(len(self.inbox.lanes)):
            if producer != self.rings.number:
                self.drain_lane(producer, self.inbox.lane(producer))
        return 0

    cdef int drain_manager(self) except -1:
        """Records of the manager do not wait for the disk: alarms about that disk are among them. They need not be exact."""
        cdef Ring ring = self.inbox.lane(self.router.reporter.manager)
        cdef Py_ssize_t before = len(self.durability.drained)
        self.drain_lane(self.router.reporter.manager, ring)
        del self.durability.drained[before:]
        if ring.release():
            self.rings.ring(self.router.reporter.manager)
        return 0

    cdef int drain_lane(self, int producer, Ring ring) except -1:
        cdef int taken = 0
        cdef int64_t share = DRAIN_BUDGET // len(self.inbox.lanes)
        self.router.budget = share
        self.draining_lane = producer
        while True:
            try:
                self.take_records(producer, ring, &taken)
                break
            except Exception as error:
                self.record_failed(producer, error)
        self.incoming.release()            # the borrowed record is about to be released
        if self.lane_lookups and producer in self.lane_lookups:
            self.router.look_further(<list>self.lane_lookups[producer], share)
        if taken:
            self.durability.drained.append((producer, ring, self.inbox))
        elif ring.release():
            self.rings.ring(producer)            # it waits for room that a predecessor has released
        return 0

    cdef int take_records(self, int producer, Ring ring, int* taken) except -1:
        """Continues behind `taken` records of this pass; a record that raised is one of them."""
        cdef const uint8_t* record
        cdef uint32_t size
        while taken[0] < RECORDS and self.router.budget > 0:
            self.router.budget -= 1
            record = ring.next(&size)
            if record == NULL:
                return 0
            taken[0] += 1
            if taken[0] == 1:              # the oldest of the batch
                self.hop_times.record(<uint32_t>(<uint32_t>self.router.read_clock() - (<const RecordHeader*>record).sent_us))
            if not self.on_record(producer, record, size):
                ring.untake(size)          # the records behind it wait, too
                taken[0] -= 1
                return 0
        return 0

    cdef int record_failed(self, int producer, object error) except -1:
        """Drops a record that has failed; the position in the ring is behind it."""
        cdef bytes topic = b""
        self.lane_lookups.pop(producer, None)
        if self.incoming.topic != NULL:
            topic = PyBytes_FromStringAndSize(<const char*>self.incoming.topic, self.incoming.topic_size)
        return self.router.drop_failed("ring", topic, error)

    cdef bint on_record(self, int producer, const uint8_t* record, uint32_t size) except -1:
        """False: its topic is still being looked up, and it has to be taken again in the next pass."""
        cdef RecordHeader header
        cdef bytes contents
        self.incoming.topic = NULL
        memcpy(&header, record, sizeof(header))
        if header.flags & FLAG_NOTED:
            self.durability.note_consumed = True
        if header.kind == RECORD_PAUSE:
            self.backpressure.pause_client(PyBytes_FromStringAndSize(<const char*>record + sizeof(header), header.client_size))
            return True
        if header.kind == RECORD_COMMAND:
            if self.router.serving:               # its sender is gone
                self.commands.append(PyBytes_FromStringAndSize(<const char*>record, size))
            return True
        if header.flags & FLAG_SPILLED:
            contents = self.take_spilled(producer, record, &header)
            if contents is None:
                return True                # read before this worker was killed and started again
            if not self.on_publish_record(producer, &header, <const uint8_t*>PyBytes_AS_STRING(contents) + sizeof(header)):
                self.spilled[producer] = (self.spent.pop(), contents)
                return False
            return True
        return self.on_publish_record(producer, &header, record + sizeof(header))

    cdef bytes take_spilled(self, int producer, const uint8_t* record, RecordHeader* header):
        """Returns the whole record, and its header in `header`; None if its file is gone. Raises OSError, ValueError."""
        cdef bytes contents
        if producer in self.spilled:
            path, contents = self.spilled.pop(producer)
            self.spent.append(path)
        else:
            try:
                path, contents = read_spilled(
                    self.spill_source, PyBytes_FromStringAndSize(<const char*>record + sizeof(header[0]), header.topic_size))
            except FileNotFoundError:
                return None
            self.spent.append(path)
            check_record(<const uint8_t*>PyBytes_AS_STRING(contents), PyBytes_GET_SIZE(contents))
        memcpy(header, PyBytes_AS_STRING(contents), sizeof(header[0]))
        return contents

    cdef bint on_publish_record(self, int producer, RecordHeader* header, const uint8_t* body) except -1:
        cdef Publication publication = self.incoming
        cdef TopicEntry entry = None
        cdef const uint8_t* names
        cdef bytes group, filter
        cdef bint is_plain = header.kind != RECORD_SHARED and not header.flags & FLAG_ORIGINATE
        publication.topic = body
        publication.topic_size = header.topic_size
        if is_plain:
            entry = self.router.cached(body, header.topic_size)
            if entry is None:
                entry = self.router.resolve(body, header.topic_size, self.lane_lookups.setdefault(producer, []))
                if entry is None:
                    return False
            if self.lane_lookups:          # what was found for this record holds for no other
                self.lane_lookups.pop(producer, None)
        names = borrow_record(publication, header, body)
        if self.router.watch and not header.flags & FLAG_ORIGINATE:
            self.router.watcher.arrived(self.draining_lane, publication)
        if header.kind == RECORD_SHARED:
            group = PyBytes_FromStringAndSize(<const char*>names, header.group_size)
            filter = PyBytes_FromStringAndSize(<const char*>names + header.group_size, header.filter_size)
            if not self.router.deliver_to_member(group, filter, header.member, publication):
                self.next_member(group, filter, header.member, publication.keep(), header.attempts + 1)
        elif is_plain:
            self.router.deliver_locally(entry, publication, None)
        elif self.router.serving:                 # else it is of a manager that is gone
            self.router.stamp(publication)
            self.router.publish_message(publication.keep(), None, 0)
        return True

    cdef int next_member(self, bytes group, bytes filter, uint64_t failed, Message message, int attempts) except -1:
        """The member that another worker chose is gone: this worker tries the others, once it knows who they are."""
        cdef Session member
        if self.elsewhere is not None:
            # Several workers read this ring, maybe not for the first time: another one has that member, or tries the others.
            member = self.router.by_key.get(failed)
            if failed in self.elsewhere or (not self.heir if member is None else member.ended):
                return 0
        if not self.router.serving or not self.router.hand_on(group, filter, message, attempts, failed, None):
            self.router.defer(defer_for_group(message, group, filter, failed, attempts))
        return 0

    cdef bint lanes_waiting(self) except -1:
        cdef Ring lane
        for lane in self.inbox.lanes:
            if lane is not None and lane.waiting():
                return True
        return False

    cdef int release_lanes(self) except -1:
        """Returns the room of the records of this pass to their producers."""
        cdef Ring ring
        if self.durability.behind:
            return 0
        if self.durability.drained:
            drained = self.durability.drained
            self.durability.drained = []
            for producer, ring, _ in drained:
                if ring.release():
                    self.rings.ring(<int>producer)
                if self.durability.gate is not None:
                    self.durability.gate.taken(<int>producer, ring)
        if self.spent:
            for path in self.spent:
                with suppress(OSError):
                    path.unlink()
            self.spent = []
        return 0


cdef const uint8_t* borrow_record(Publication publication, const RecordHeader* header, const uint8_t* body) except NULL:
    """Makes the publication one of this record, on the bytes of the record. Returns the names of group and filter in it.

    Parts of the body, in this order: see shm/records.pxd.
    """
    cdef const uint8_t* properties = body + header.topic_size
    cdef const uint8_t* client = properties + header.properties_size
    cdef const uint8_t* names = client + header.client_size
    cdef bytes client_id = publication.client_id
    # Messages of one publisher often follow each other: its id is created once for them.
    if client_id is None or <uint32_t>PyBytes_GET_SIZE(client_id) != header.client_size \
            or memcmp(PyBytes_AS_STRING(client_id), client, header.client_size):
        client_id = PyBytes_FromStringAndSize(<const char*>client, header.client_size)
    fill(
        publication, body, header.topic_size, properties, header.properties_size, names + header.group_size + header.filter_size,
        header.payload_size, client_id, header.expires_ms, header.flags & FLAG_QOS, header.flags & FLAG_RETAIN, header.payload_format)
    publication.id_high = header.id_high
    publication.id_low = header.id_low
    publication.message = None
    publication.logged = 0
    return names
