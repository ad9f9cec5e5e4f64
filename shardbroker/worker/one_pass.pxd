"""The event loop of a worker: one thread, one context, level-triggered epoll.

    wait -> read sockets, hand-overs and rings -> timers -> commit (routes, retained, SUBACK) -> journal -> rings -> flush sockets

Worker owns the parts and the order in which a pass calls them; it routes nothing itself. Each part has one task:

    Router        sessions, subscriptions, routing, commits             MemoryWatch     memory of the broker
    Turn          buffer, budget and lists that connections share       Intake          sockets that acceptors hand over
    Outlets       destinations, rings out                               Inlets          rings in
    Durability    journal, cycles, syncs                                Backpressure    connections that are not read for a while
    Reporter      events, log lines, registry                           AccessChecks    answers of the access gate
    PushBack      publishers that wait for full queues
    CommandQueue  commands of the manager                               Observers       traces, topic metrics, slow subscriptions

assembly.pyx creates the parts.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.worker.access_checks cimport AccessChecks
from shardbroker.worker.backpressure cimport Backpressure
from shardbroker.worker.command_queue cimport CommandQueue
from shardbroker.worker.durability cimport Durability
from shardbroker.worker.inlets cimport Inlets
from shardbroker.worker.intake cimport Intake
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.push_back cimport PushBack
from shardbroker.worker.reporter cimport Reporter
from shardbroker.worker.router cimport Router
from shardbroker.worker.turn cimport Turn
from shm.counters cimport Histogram
from shm.posix cimport epoll_event


@final
cdef class Worker:
    cdef readonly object topology          # shm.topology.Topology, a plain Python class
    cdef readonly int number
    cdef readonly Router router
    cdef RingOutlets rings                 # the router's outlets
    cdef Reporter reporter
    cdef MemoryWatch memory
    cdef Turn turn
    cdef readonly Durability durability
    cdef Backpressure backpressure
    cdef Inlets inlets
    cdef PushBack push_back
    cdef readonly Intake intake
    cdef readonly AccessChecks access_checks
    cdef readonly CommandQueue command_queue
    cdef readonly object cluster           # shardbroker.worker.cluster_sessions.ClusterSessions; None: sessions never move
    cdef public object evacuation          # shardbroker.worker.evacuation.Evacuation
    cdef public bint draining
    cdef public bint holds_clients         # it has clients from the start: no pass before all workers serve
    cdef Histogram pass_times
    cdef public object started             # called once all workers serve; a Python closure of the recovery, used once
    cdef public object in_force            # shm.in_force.InForce; None: the settings do not change
    cdef const uint64_t* settings_wanted   # newest generation of the settings that reaches this worker
    cdef uint64_t settings_seen            # newest one that was looked at

    cdef int next_wait_ms(self) except -1
    cpdef int one_pass(self, int timeout_ms) except -1
    cdef int settle_and_send(self) except -1
    cdef int serve_events(self, epoll_event* events, int count) except -1
    cdef int run_timers(self) except -1
    cdef int look_around(self) except -1
    cdef int flush_sockets(self) except -1
    cdef int flush_all(self, list dirty) except -1
    cdef int take_settings(self) except -1
