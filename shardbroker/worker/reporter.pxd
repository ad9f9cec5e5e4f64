"""Reports of a worker to the management plane: events, log lines, and the registry of clients.

    event or line -> a record in the manager's ring; the manager is woken after EVENT_BATCH records or EVENT_DELAY_MS
    a session that began, changed or ended -> `changes` -> the LMDB registry of this worker, a page at a time

A full ring drops events: a worker waits for no other process.
"""
from cython cimport final
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session
from shardbroker.worker.outlets cimport RingOutlet, RingOutlets
from shm.counters cimport Counters
from shm.epochs cimport Buckets, Epochs
from shm.events cimport EventHeader


cdef enum:
    EVENT_DELAY_MS = 50                    # longest time that an event lies in the ring before the manager is woken: that costs more


@final
cdef class Reporter:
    """The base, which has no manager, drops everything: __new__ without __init__ makes one."""
    cdef WorkerContext context
    cdef RingOutlets outlets               # None: there is no manager
    cdef int manager                       # its process number
    cdef Counters counters
    cdef Epochs epochs
    cdef Buckets sys_buckets               # what subscriptions to messages about clients concern
    cdef uint32_t events                   # that the manager was not woken for yet
    cdef uint64_t events_due_ms
    cdef object registry                   # shardbroker.stores.registry.Registry: an LMDB table, in Python
    cdef dict sessions                     # client id -> Session; the router's
    cdef dict changes                      # client id -> Session that began, changed or ended since the last flush
    cdef uint64_t registry_due_ms

    cdef RingOutlet outlet(self)
    # Fills in time and sizes; `detail` is cut at DETAIL_MAX bytes.
    cdef int send(self, EventHeader* event, bytes client_id, bytes username, str detail) except -1
    # A record was put into the manager's ring: the manager is woken before long.
    cdef void note_event(self) noexcept
    # End of a pass: wakes the manager if it is due.
    cdef int commit(self) except -1
    # The registry shows something of the session that has changed.
    cdef int note_session(self, Session session) except -1
    cdef dict record_of(self, Session session)
