"""Memory of the broker: its level, and the publishers that fill queues.

    0        pause under 70 %, at 80 %                refuse under 80 %, at 90 %        the mark: overload.memory_high_water
    |-- CALM ----------|-- PAUSE: the greediest ----------|-- REFUSE: no new sessions, ------|
                       |   publishers are not read        |   no more subscriptions, no      |
                                                          |   QoS 0 for absent clients       |

Each worker writes its own memory into the shared counters and adds up those of all workers, so all have the same level, and an
idle worker leaves its share to a busy one.
"""
from libc.stdint cimport int64_t, uint64_t

from shm.counters cimport Counters

cdef enum Level:
    CALM = 0
    PAUSE = 1
    REFUSE = 2


cdef class MemoryWatch:
    cdef Counters counters
    cdef int number, workers               # of this worker; of them all
    cdef int statm                         # descriptor of /proc/self/statm
    cdef list files                        # on tmpfs: tables whose pages no process counts
    cdef uint64_t inherited                # memory shared since the fork, bytes: it is there once for all processes
    cdef uint64_t mark                     # for all workers together, bytes; 0: no limit
    cdef uint64_t own                      # private memory of this process when it was last measured, bytes
    cdef uint64_t floor                    # the same at the start
    cdef uint64_t trim_at_ms               # when free memory may be given back again
    cdef uint64_t tidy_at_ms               # when it is to be, if nothing else leads to it
    cdef int level
    cdef bint confirmed                    # the look before came to REFUSE too
    cdef bint worked                       # since free memory was given back last in an idle moment
    cdef uint64_t idle_trim_at_ms          # when that may be done again
    cdef dict contributions                # client id -> bytes that it added to queues since the last look
    cdef readonly dict greedy              # client id -> when its worker got the last report, Unix ms

    cdef int look(self, uint64_t now_ms) except -1       # measures; the level
    cdef int judge(self, uint64_t taken) noexcept        # the level that this many bytes of all workers lead to
    cdef uint64_t measure(self) except? 0
    cdef uint64_t taken(self) except? 0                  # by all workers and the tables, bytes
    cdef int trim(self, uint64_t now_ms) except -1
    # Gives free memory back, at the start of a pass that nothing has led to.
    cdef int trim_when_idle(self, bint worked, bint idle, uint64_t now_ms) noexcept
    # Sets how much free memory a busy worker keeps at the end of its heap.
    cdef int keep_heap(self) noexcept
    cdef int note(self, bytes client_id, uint64_t size) except -1
    cdef list choose(self, uint64_t now_ms)              # client ids that are not to be read for LEASE_MS
