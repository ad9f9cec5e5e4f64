"""What a pass lends its connections; see turn.pxd."""

from cython cimport final
from libc.errno cimport errno
from libc.stdlib cimport free, malloc

from shardbroker.transport.tls cimport RECORD_MAX
from shm.counters cimport CounterSlot
from shm.posix cimport EPOLL_CLOEXEC, EPOLL_CTL_ADD, close, epoll_create1, epoll_ctl, epoll_event

__all__ = ["Turn"]

cdef enum:
    READ_LEAST = 2048                      # bytes, however many connections are ready
    PASS_BUDGET = 8192                     # units of work shared out among those that are ready: about 2 ms
    TURN_LEAST = 32                        # units that each connection gets
    UNIT_BYTES = 64                        # bytes that are read for each unit: a small PUBLISH


@final
cdef class Turn:
    """Raises OSError if there is no memory or no descriptor for it."""

    def __init__(self, WorkerContext context not None, Outlets outlets not None, Durability durability not None):
        self.context = context
        self.outlets = outlets
        self.durability = durability
        self.sockets = (<CounterSlot>context.counters_owner).sockets
        self.by_fd = []
        self.dirty = []
        self.busy = []
        self.parked = []
        self.paused = []
        self.unread = []
        self.limited = []
        self.buffer = <uint8_t*>malloc(READ_BYTES + RECORD_MAX)   # a TLS record that was cut short is put in front
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.buffer == NULL or self.epoll < 0:
            raise OSError(errno, "cannot set up the event loop")
        self.share_out(1)

    def __cinit__(self):
        self.epoll = -1

    def __dealloc__(self):
        free(self.buffer)
        if self.epoll >= 0:
            close(self.epoll)

    cdef int share_out(self, int ready) except -1:
        ready += len(self.busy) + len(self.parked)
        self.budget = max(PASS_BUDGET // max(ready, 1), <int>TURN_LEAST)
        self.bytes = <size_t>min(max(self.budget * UNIT_BYTES, <int64_t>READ_LEAST), <int64_t>READ_BYTES)
        return 0

    cdef int listen_to(self, int fd, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.fd = fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, f"epoll_ctl for descriptor {fd}")
        return 0

    cdef int make_place(self, int fd) except -1:
        while len(self.by_fd) <= fd:
            self.by_fd.append(None)
        return 0
