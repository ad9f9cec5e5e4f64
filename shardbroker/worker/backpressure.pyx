"""Connections that are not read for a while; see backpressure.pxd."""

from cython cimport final
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport CLOSING
from shardbroker.worker.connection cimport STOP_DISK, STOP_HELD, STOP_MEMORY, STOP_RATE, STOP_RING, Connection
from shm.counters cimport OVERLOAD_PUBLISHERS_PAUSED
from shm.posix cimport EPOLLIN
from shm.records cimport RECORD_PAUSE, RecordHeader

from shm.counters import ProcessState

__all__ = ["Backpressure"]

cdef enum:
    LOOK_MS = 20                           # between two measurements of memory: what publishers can add in this time is < 10 % of the limit
    PAUSE_MS = 1500                        # that a greedy publisher is not read after the last report


@final
cdef class Backpressure:
    def __init__(self, Router router not None, Turn turn not None, RingOutlets rings not None, MemoryWatch memory not None):
        self.router = router
        self.turn = turn
        self.rings = rings
        self.memory = memory

    cdef int resume_parked(self) except -1:
        cdef list parked = self.turn.parked
        cdef Connection connection
        self.turn.parked = []
        # The first one takes the room there is, so each is first in turn.
        parked.append(parked.pop(0))
        for connection in parked:
            if connection.fd < 0 or connection.state == CLOSING:
                continue
            connection.stops &= ~<uint8_t>STOP_RING
            if connection.stops:
                continue                   # it continues when the other reasons have ended
            try:
                connection.go_on()
            except Exception as error:
                connection.broken(error)
            if not connection.stops and connection.fd >= 0:
                connection.want(connection.interest | EPOLLIN)
        return 0

    cdef int resume_busy(self) except -1:
        cdef list busy = self.turn.busy
        cdef Connection connection
        self.turn.busy = []
        for connection in busy:
            connection.busy = False
            try:
                connection.go_on()
            except Exception as error:
                connection.broken(error)
        return 0

    cdef int resume_limited(self) except -1:
        cdef list limited = self.turn.limited
        cdef Connection connection
        self.turn.limited = []
        for connection in limited:
            if connection.fd >= 0 and connection.rates.stopped_until_ms > self.router.now_ms:
                self.turn.limited.append(connection)
            else:
                connection.paused = connection.stops & (STOP_MEMORY | STOP_HELD) != 0
                connection.read_again(STOP_RATE)
        return 0

    cdef int look_at_memory(self) except -1:
        cdef Connection connection
        cdef list paused
        cdef int worker
        self.look_at_ms = self.router.now_ms + LOOK_MS
        if self.router.watch:
            self.router.watcher.tick()
        self.router.memory_level = self.memory.look(self.router.now_ms)
        self.router.resolver.cache.grow_old(self.router.now_ms, self.router.memory_level > 0)
        if self.router.memory_level:
            for client_id in self.memory.choose(self.router.now_ms):
                worker = self.rings.topology.division.worker_of(client_id)
                if worker == self.rings.number:
                    self.pause_client(client_id)
                else:
                    self.send_pause(worker, client_id)
        if self.turn.paused:
            paused = self.turn.paused
            self.turn.paused = []
            for connection in paused:
                if connection.paused_until_ms > self.router.now_ms and connection.fd >= 0:
                    self.turn.paused.append(connection)
                else:
                    connection.paused = connection.stops & (STOP_DISK | STOP_RATE | STOP_HELD) != 0
                    connection.read_again(STOP_MEMORY)
        return 0

    cdef int pause_client(self, bytes client_id) except -1:
        """Stops reading this publisher for PAUSE_MS. The worker that found it greedy repeats that in time."""
        cdef Session session = self.router.sessions.get(client_id)
        cdef Connection connection
        if session is None or session.link is None:
            return 0
        connection = <Connection>session.link
        connection.paused_until_ms = self.router.now_ms + PAUSE_MS
        if not connection.stops & STOP_MEMORY:
            self.router.count(OVERLOAD_PUBLISHERS_PAUSED)
            connection.paused = True
            connection.stop_reading(STOP_MEMORY)
            self.turn.paused.append(connection)
        return 0

    cdef int send_pause(self, int process, bytes client_id) except -1:
        """Sends the pause to another worker. If its ring has no room, its publishers wait already; it is repeated later.

        One that has no clients, or has ended while this one is drained, is sent none: what is unread in its ring stays for the next start.
        """
        cdef RecordHeader header
        if self.router.counters_segment.state(process) != ProcessState.READY:
            return 0
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_PAUSE
        header.sent_us = <uint32_t>self.turn.start_us
        header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
        return self.rings.put_plain(process, &header, client_id)

    cdef int resume_unread(self) except -1:
        cdef Connection connection
        cdef list unread = self.turn.unread
        self.turn.unread = []
        for connection in unread:
            connection.paused = connection.stops & (STOP_MEMORY | STOP_HELD) != 0
            connection.read_again(STOP_DISK)
        return 0
