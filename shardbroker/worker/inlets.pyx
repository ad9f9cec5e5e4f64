"""Rings from other processes; see inlets.pxd."""

from contextlib import suppress

from cython cimport final
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from shardbroker.pubsub.message cimport fill
from shardbroker.session.session cimport Session
from shardbroker.worker.arrivals cimport Stream
from shardbroker.worker.deferred cimport Deferred, defer_for_group, defer_for_local
from shardbroker.worker.retries cimport Retries
from shm.bridged cimport BridgePlace
from shm.destinations cimport NODE, NUMBER_BITS, WORKER, kind_of
from shm.records cimport (
    FLAG_ANSWERED, FLAG_NOTED, FLAG_ORIGINATE, FLAG_QOS, FLAG_RETAIN, FLAG_SPILLED, RECORD_BRIDGED, RECORD_COMMAND, RECORD_FED, RECORD_KEEP,
    RECORD_PAUSE, RECORD_PRESSED, RECORD_PUBLISH, RECORD_REPLAY, RECORD_SHARED, ArrivalHeader, check_record,
)

from shm.spill import read_spilled, spill_path

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
        self.spent = []
        self.commands = []
        links = [place.slot for place in rings.topology.places_of("link")[1:]]     # number 0 has signals only
        if links:
            self.first_link = links[0]
            self.end_links = links[len(links) - 1] + 1

    cdef int drain_lanes(self) except -1:
        cdef int producer
        if self.durability.behind:
            return self.drain_manager()    # what the journal cannot take stays in the rings, and so with the publishers
        if self.router.retries.unresolved_count:
            self.router.deliver_unresolved()
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
        self.router.budget = DRAIN_BUDGET // <int64_t>len(self.inbox.lanes)
        self.draining_lane = producer
        while True:
            try:
                self.take_records(producer, ring, self.first_link <= producer < self.end_links, &taken)
                break
            except Exception as error:
                self.record_failed(producer, error)
        self.incoming.release()            # the borrowed record is about to be released
        if taken:
            self.durability.drained.append((producer, ring, self.inbox))
        elif ring.release():
            self.rings.ring(producer)            # it waits for room that a predecessor has released
        return 0

    cdef int take_records(self, int producer, Ring ring, bint of_nodes, int* taken) except -1:
        """Continues behind `taken` records of this pass; a record that raised is one of them. of_nodes: they come from other nodes."""
        cdef const uint8_t* record
        cdef uint32_t size
        cdef bint done
        while taken[0] < RECORDS and self.router.budget > 0:
            self.router.budget -= 1
            record = ring.next(&size)
            if record == NULL:
                return 0
            taken[0] += 1
            if of_nodes:                   # the clock of their `sent_us` is another one
                done = self.on_arrival(producer, record, size)
            else:
                if taken[0] == 1:          # the oldest of the batch
                    self.hop_times.record(<uint32_t>(<uint32_t>self.router.read_clock() - (<const RecordHeader*>record).sent_us))
                done = self.on_record(producer, record, size)
            if not done:
                ring.untake(size)          # the records behind it wait, too
                taken[0] -= 1
                return 0
        return 0

    cdef bint on_arrival(self, int producer, const uint8_t* record, uint32_t size) except -1:
        """A record of another node: dropped if it was sent again. False: as on_record(). Raises ValueError for what no node may send."""
        cdef ArrivalHeader arrival
        cdef RecordHeader header
        cdef Stream stream
        cdef uint64_t before
        cdef bint done = True
        self.incoming.topic = NULL
        if size < sizeof(arrival):
            raise ValueError(f"record of {size} bytes: must have at least {sizeof(arrival)} from a link process")
        memcpy(&arrival, record, sizeof(arrival))
        record += sizeof(arrival)
        size -= sizeof(arrival)
        check_record(record, size)
        memcpy(&header, record, sizeof(header))
        if header.kind == RECORD_KEEP:
            self.durability.streams.keep(arrival.origin, identities_of(record + sizeof(header), header.payload_size))
            return True
        if header.kind != RECORD_PUBLISH and header.kind != RECORD_SHARED or header.flags & FLAG_ORIGINATE:
            raise ValueError(f"record of kind {header.kind} and flags {header.flags}: must be a message to deliver from another node")
        stream = self.durability.streams.stream_of(arrival.origin, arrival.identity)
        if arrival.position <= stream.position:
            if header.flags & FLAG_SPILLED:
                name = PyBytes_FromStringAndSize(<const char*>record + sizeof(header), header.topic_size)
                self.spent.append(spill_path(self.spill_source, name))
            return True
        before = stream.position
        self.durability.streams.move(stream, arrival.position)     # also behind a record that fails
        self.draining_lane = <int>(NODE << NUMBER_BITS | arrival.origin)       # for traces
        self.arriving = True
        try:
            done = self.on_record(producer, record, size)
        finally:
            self.arriving = False
        if not done:
            self.durability.streams.move(stream, before)
        return done

    cdef int deliver_by_index(self, TopicEntry entry, bytes group, bytes filter, RecordHeader* header) except -1:
        """To the member with this index among those of this node, in the order of the route table; to another one if it is gone.

        All records of a group arrive at one worker, which drops what was sent again: a node that sends a second time may know other
        members, but the group gets the message once.
        """
        cdef Publication publication = self.incoming
        cdef tuple members = (), chosen = None
        cdef uint8_t attempts = header.attempts
        if entry is not None:              # else its look-up takes several passes, and any member does
            for name, found, all_members in entry.groups:
                if name == group and found == filter:
                    members = tuple([member for member in <tuple>all_members if kind_of(member[0]) == WORKER])
        publication.unrepeatable = True    # its publisher's node has it acknowledged
        if not members or not self.router.serving:
            return self.next_member(group, filter, 0, publication.keep(), attempts + 1)
        chosen = <tuple>members[header.member % <uint64_t>len(members)]
        if chosen[0] != self.rings.number:
            return self.router.forward_shared(chosen[0], chosen[1], (group, filter), publication, attempts)
        if self.router.deliver_to_member(group, filter, chosen[1], publication):
            return 0
        return self.router.deliver_shared((group, filter, members), publication, None, attempts + 1, chosen)

    cdef int record_failed(self, int producer, object error) except -1:
        """Drops a record that has failed; the position in the ring is behind it."""
        cdef bytes topic = b""
        if self.incoming.topic != NULL:
            topic = PyBytes_FromStringAndSize(<const char*>self.incoming.topic, self.incoming.topic_size)
        return self.router.drop_failed("ring", topic, error)

    cdef bint on_record(self, int producer, const uint8_t* record, uint32_t size) except -1:
        """False: too many messages wait for look-ups, and it has to be taken again in the next pass."""
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
            if self.router.serving and not self.router.retries.can_set_aside():
                return False               # before the file is read
            contents = self.take_spilled(record, &header)
            if contents is None:
                return True                # read before this worker was killed and started again
            record = <const uint8_t*>PyBytes_AS_STRING(contents)
        if header.kind >= RECORD_BRIDGED:
            if header.kind == RECORD_BRIDGED:
                return on_bridged(self, &header, record + sizeof(header))
            self.on_pressed(producer, &header, record + sizeof(header))
            return True
        return self.on_publish_record(&header, record + sizeof(header))

    cdef int on_pressed(self, int producer, const RecordHeader* header, const uint8_t* body) except -1:
        """The queue of a session of another worker is full, or not any more."""
        if self.router.overflow is None:
            return 0
        client_id = PyBytes_FromStringAndSize(<const char*>body, header.client_size)
        if header.kind == RECORD_PRESSED:
            return self.router.overflow.hold_back(client_id, producer, header.member)
        return self.router.overflow.release(client_id, producer, header.member)

    cdef bytes take_spilled(self, const uint8_t* record, RecordHeader* header):
        """Returns the whole record, and its header in `header`; None if its file is gone. Raises OSError, ValueError."""
        cdef bytes contents
        try:
            path, contents = read_spilled(
                self.spill_source, PyBytes_FromStringAndSize(<const char*>record + sizeof(header[0]), header.topic_size))
        except FileNotFoundError:
            return None
        self.spent.append(path)
        check_record(<const uint8_t*>PyBytes_AS_STRING(contents), PyBytes_GET_SIZE(contents))
        memcpy(header, PyBytes_AS_STRING(contents), sizeof(header[0]))
        return contents

    cdef bint on_publish_record(self, RecordHeader* header, const uint8_t* body) except -1:
        cdef Publication publication = self.incoming
        cdef Retries retries = self.router.retries
        cdef TopicEntry entry = None
        cdef list lookups = None
        cdef const uint8_t* names
        cdef bytes group, filter
        cdef bint is_plain = header.kind != RECORD_SHARED and not header.flags & FLAG_ORIGINATE
        names = borrow_record(publication, header, body)
        if not self.router.serving and self.router.counters_segment.serving and (header.kind == RECORD_FED or not is_plain):
            return False                              # put since the broker serves: the next pass has noticed that
        if header.kind == RECORD_REPLAY:
            if not self.router.lookups.take(header, names, publication):
                self.router.journal_replays.take(header, names, publication)
            return True
        if header.kind == RECORD_FED:
            if self.router.serving and self.router.recorder is not None:       # else its sender is gone, and it arrives again
                (<object>self.router.recorder).event(
                    PyBytes_FromStringAndSize(<const char*>body, header.topic_size), b"", self.router.now_ms,
                    PyBytes_FromStringAndSize(<const char*>publication.payload, publication.payload_size))
            return True
        if is_plain:
            if not retries.unresolved_count or publication.client_id not in retries.unresolved:
                entry = self.router.resolver.cached(body, header.topic_size)
            # Else it stays behind those of this publisher that wait.
            if entry is None:
                if self.router.serving and not retries.can_set_aside():
                    return False
                if publication.client_id not in retries.unresolved:
                    lookups = []
                    entry = self.router.resolver.resolve(body, header.topic_size, lookups)
        if self.router.passed is not None and not header.flags & FLAG_ORIGINATE:
            self.router.passed.note(header.id_high, header.id_low)
        if self.router.watch and not header.flags & FLAG_ORIGINATE:
            self.router.watcher.arrived(self.draining_lane, publication)
        if header.kind == RECORD_SHARED:
            group = PyBytes_FromStringAndSize(<const char*>names, header.group_size)
            filter = PyBytes_FromStringAndSize(<const char*>names + header.group_size, header.filter_size)
            if self.arriving:
                self.deliver_by_index(self.router.resolver.resolve(body, header.topic_size, None), group, filter, header)
            elif not self.router.deliver_to_member(group, filter, header.member, publication):
                self.next_member(group, filter, header.member, publication.keep(), header.attempts + 1)
        elif is_plain:
            if entry is None:
                self.set_aside(publication.keep(), 0 if self.arriving else header.flags & FLAG_ANSWERED, lookups)
            else:
                self.router.deliver_locally(entry, publication, None)
        elif self.arriving:
            raise ValueError("spilled record: must be a message to deliver from another node")
        elif self.router.serving:                 # else it is of a manager that is gone
            self.router.stamp(publication)
            self.router.publish_message(publication.keep(), None, 0)
        return True

    cdef int set_aside(self, Message message, uint8_t answered, list lookups) except -1:
        """Keeps a message whose look-up takes several passes, so that those of other publishers behind it in the ring do not wait."""
        cdef Deferred late = defer_for_local(message, answered)
        late.lookups = lookups
        return self.router.retries.set_aside(late)

    cdef int next_member(self, bytes group, bytes filter, uint64_t failed, Message message, int attempts) except -1:
        """The member that another worker chose is gone: this worker tries the others, once it knows who they are."""
        cdef Session member
        if self.elsewhere is not None:
            # Several workers read this ring, maybe not for the first time: another one has that member, or tries the others.
            member = self.router.by_key.get(failed)
            if failed in self.elsewhere or (not self.heir if member is None else member.ended):
                return 0
        if not self.router.serving or not self.router.hand_on(group, filter, message, attempts, failed, None):
            self.router.retries.defer(defer_for_group(message, group, filter, failed, attempts))
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


cdef bint on_bridged(Inlets inlets, RecordHeader* header, const uint8_t* body) except -1:
    """A message of another broker: dropped if it was sent again, else published here. False: as on_record()."""
    cdef BridgePlace place
    cdef Stream stream
    cdef uint64_t before
    cdef bint done = True
    if not inlets.router.serving:
        return not inlets.router.counters_segment.serving       # else its sender is gone, and it arrives again
    if header.group_size != sizeof(place) or header.filter_size:
        raise ValueError(f"record of another broker: must have a place of {sizeof(place)} bytes, got {header.group_size}")
    memcpy(&place, body + header.topic_size + header.properties_size + header.client_size, sizeof(place))
    stream = inlets.durability.streams.stream_of(place.origin, place.identity)
    if header.member <= stream.position:
        return True
    before = stream.position
    inlets.durability.streams.move(stream, header.member)        # also behind a record that fails
    header.kind = RECORD_PUBLISH
    header.flags |= FLAG_ORIGINATE
    done = inlets.on_publish_record(header, body)
    if not done:
        inlets.durability.streams.move(stream, before)
    return done


cdef set identities_of(const uint8_t* start, uint32_t size):
    """Returns the identities in the payload of a RECORD_KEEP."""
    return {*memoryview(PyBytes_FromStringAndSize(<const char*>start, size - size % 8)).cast("Q")}


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
