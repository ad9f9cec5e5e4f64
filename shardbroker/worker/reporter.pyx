"""Reports of a worker to the management plane; see reporter.pxd."""

from cython cimport final
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memcpy, memset

from shm.counters cimport EVENTS_DROPPED
from shm.epochs cimport buckets_of
from shm.events cimport DETAIL_MAX, EVENT_CONNECTED, EVENT_EXPIRY_NEVER, EventHeader
from shm.records cimport RECORD_EVENT, RecordHeader

from shm.events import clients_prefix
from shm.records import encode_note

__all__ = ["Reporter"]

cdef enum:
    EVENT_BATCH = 256                      # events that wake the manager at once
    REGISTRY_MS = 200                      # least time between two writes of the registry
    REGISTRY_PAGE = 500                    # records written in one pass: more would hold the worker for ms, and memory for them


@final
cdef class Reporter:
    def __init__(self, WorkerContext context not None, RingOutlets outlets not None, Counters counters not None, Epochs epochs, registry,
                 dict sessions not None):
        cdef bytes prefix = clients_prefix(outlets.topology.node_name)
        self.context = context
        self.outlets = outlets
        self.manager = outlets.topology.manager
        self.counters = counters
        self.epochs = epochs
        self.registry = registry
        self.sessions = sessions
        self.changes = {}
        buckets_of(<const uint8_t*>PyBytes_AS_STRING(prefix), <size_t>len(prefix), &self.sys_buckets)

    cdef RingOutlet outlet(self):
        return self.outlets.of_process(self.manager)

    cdef int send(self, EventHeader* event, bytes client_id, bytes username, str detail) except -1:
        cdef RingOutlet outlet
        cdef RecordHeader* header
        cdef uint8_t* target = NULL
        cdef bytes cut
        cdef uint64_t texts, size
        if self.outlets is None or (
                event.kind == EVENT_CONNECTED and not self.counters.connected_wanted(self.epochs.current(&self.sys_buckets))):
            return 0
        cut = detail.encode(errors="replace")[:<int>DETAIL_MAX] if detail else b""
        username = username or b""
        event.at_ms = self.context.now_ms
        event.client_size = <uint16_t>PyBytes_GET_SIZE(client_id)
        event.detail_size = <uint16_t>PyBytes_GET_SIZE(cut)
        event.username_size = <uint16_t>PyBytes_GET_SIZE(username)
        texts = PyBytes_GET_SIZE(client_id) + PyBytes_GET_SIZE(cut) + PyBytes_GET_SIZE(username)
        size = sizeof(RecordHeader) + sizeof(EventHeader) + texts
        outlet = self.outlet()
        if size <= outlet.lane.max_record():
            target = outlet.lane.reserve(<uint32_t>size)
        if target == NULL:
            self.context.count(EVENTS_DROPPED)
            return 0
        header = <RecordHeader*>target
        memset(header, 0, sizeof(header[0]))
        header.kind = RECORD_EVENT
        header.payload_size = <uint32_t>(sizeof(EventHeader) + texts)
        memcpy(target + sizeof(header[0]), event, sizeof(EventHeader))
        target += sizeof(header[0]) + sizeof(EventHeader)
        memcpy(target, PyBytes_AS_STRING(client_id), PyBytes_GET_SIZE(client_id))
        target += PyBytes_GET_SIZE(client_id)
        memcpy(target, PyBytes_AS_STRING(cut), PyBytes_GET_SIZE(cut))
        memcpy(target + PyBytes_GET_SIZE(cut), PyBytes_AS_STRING(username), PyBytes_GET_SIZE(username))
        outlet.lane.commit()
        self.note_event()
        return 0

    cdef void note_event(self) noexcept:
        if not self.events:
            self.events_due_ms = self.context.now_ms + EVENT_DELAY_MS
        self.events += 1

    cdef int commit(self) except -1:
        if self.events and (self.events >= EVENT_BATCH or self.context.now_ms >= self.events_due_ms):
            self.events = 0
            self.outlet().wake()
        return 0

    def log(self, str level, str text) -> None:
        """Sends a line for the manager's log; it is counted as dropped if the ring has no room."""
        cdef RingOutlet outlet
        if self.outlets is None:
            return
        outlet = self.outlet()
        if outlet.lane.put(encode_note(level, f"worker-{self.outlets.number}: {text}")):
            outlet.wake()
        else:
            self.context.count(EVENTS_DROPPED)

    cdef int note_session(self, Session session) except -1:
        cdef Session previous
        if self.registry is None:
            return 0
        previous = self.changes.get(session.client_id)
        if previous is not None and previous.registered:
            session.registered = True      # there is a record under this client id
        self.changes[session.client_id] = session
        return 0

    def flush_registry(self) -> None:
        """Writes the changes of the last REGISTRY_MS, a page in each pass. A session that began and ended in between is not written."""
        cdef Session session
        cdef int left = REGISTRY_PAGE
        self.registry_due_ms = self.context.now_ms + REGISTRY_MS
        if not self.changes:
            return
        puts, deletes = {}, []
        while self.changes and left:
            client_id, session = self.changes.popitem()
            left -= 1
            if self.sessions.get(client_id) is session:
                puts[client_id] = self.record_of(session)
                session.registered = True
            elif session.registered and client_id not in self.sessions:
                deletes.append(client_id)
        if self.changes:
            self.registry_due_ms = self.context.now_ms
        else:
            self.changes = {}              # an emptied dict keeps its table
        if puts or deletes:
            self.registry.update(puts, deletes)

    cdef dict record_of(self, Session session):
        record = {
            "connected": session.link is not None, "session": session.key, "created_ms": session.created_ms,
            "expiry_s": min(session.expiry_ms // 1000, <uint64_t>EVENT_EXPIRY_NEVER), "since_ms": self.context.now_ms,
        }
        if session.link is not None:
            record |= session.link.registry_fields()
        return record
