"""What a pass of the event loop lends its connections: a buffer, a share of the work, and lists of those that have to wait.

A connection that cannot go on puts itself into a list; the pass (one_pass.pyx) or Backpressure takes it out again.
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.durability cimport Durability
from shardbroker.worker.outlets cimport Outlets
from shm.counters cimport ListenerSockets

cdef enum:
    READ_BYTES = 262144                    # most that is read from one connection in a pass, bytes


@final
cdef class Turn:
    cdef WorkerContext context
    cdef Outlets outlets
    cdef Durability durability
    cdef int epoll
    cdef list by_fd                        # descriptor -> Connection or None
    cdef ListenerSockets* sockets          # our counts, by listener
    cdef uint8_t* buffer                   # what every socket is read into
    cdef int64_t budget                    # units of work for each connection in this pass
    cdef size_t bytes                      # bytes read from each connection in this pass
    cdef uint64_t start_us                 # of the pass, CLOCK_MONOTONIC
    cdef list dirty                        # connections with output
    cdef list busy                         # connections whose budget was too small for what they had sent
    cdef list parked                       # connections with STOP_RING
    cdef list paused                       # connections with STOP_MEMORY
    cdef list unread                       # connections with STOP_DISK
    cdef list limited                      # connections with STOP_RATE

    # What each connection may do in this pass: the more of them are ready, the less, so that a round stays short for those that want
    # little.
    cdef int share_out(self, int ready) except -1
    # epoll reports these events of a descriptor from now on.
    cdef int listen_to(self, int fd, uint32_t events) except -1
    # `by_fd` has a place for this descriptor.
    cdef int make_place(self, int fd) except -1
