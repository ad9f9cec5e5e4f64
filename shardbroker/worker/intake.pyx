"""New connections; see intake.pxd."""

from cython cimport final
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t

from acceptor.handover cimport Handover, receive
from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.rates cimport Rates, SharedRates
from shm.counters cimport BYTES_RECEIVED
from shm.posix cimport EPOLLIN, close

from shardbroker.logs.phrases import log_line

__all__ = ["Intake"]

cdef enum:
    ACCEPTS = 256                          # hand-overs taken from one acceptor a pass


@final
cdef class Intake:
    def __init__(self, Router router not None, Turn turn not None, Quotas quotas not None):
        self.router = router
        self.turn = turn
        self.quotas = quotas
        self.channels = {}

    cdef int accept_some(self, int channel) except -1:
        cdef Handover handover
        cdef int taken
        react = self.channels[channel]
        if react is not True:
            react(channel)
            return 0
        self.router.begin_step()
        for taken in range(ACCEPTS):
            if taken and self.router.step_is_over():
                return 0                   # epoll reports the others again
            handover = receive(channel)
            if handover is None:
                return 0
            if handover.fd < 0:
                self.turn.sockets[handover.header.listener].balance -= 1
                continue
            self.turn.make_place(handover.fd)
            try:
                self.take_over(handover)
            except Exception as error:
                if self.turn.by_fd[handover.fd] is not None:
                    (<Connection>self.turn.by_fd[handover.fd]).broken(error)
                    continue
                close(handover.fd)
                self.turn.sockets[handover.header.listener].balance -= 1
                self.router.log_failure(log_line("connection failed", peer=handover.peer), error)
        return 0

    cdef int take_over(self, Handover handover) except -1:
        """Creates a connection and feeds it the bytes that the acceptor has read."""
        cdef Connection connection
        cdef SharedRates shared
        if handover.extra is None or "mountpoint" not in handover.extra:
            connection = Connection.__new__(Connection)
        else:
            connection = self.mounted_connection(handover.extra["mountpoint"])
        connection.context = self.router
        connection.router = self.router
        connection.turn = self.turn
        connection.out = Buffer.__new__(Buffer)
        connection.peer = handover.header.peer
        connection.listener = handover.listener
        connection.listener_number = handover.header.listener
        if self.turn.durability.gate is not None:
            connection.guard = self.turn.durability.gate.fence(connection)
        connection.wanted_id = handover.assigned_id
        connection.extra = handover.extra
        connection.interest = EPOLLIN
        self.turn.listen_to(handover.fd, EPOLLIN)
        connection.fd = handover.fd        # from here on the connection closes it
        self.turn.by_fd[handover.fd] = connection
        self.turn.sockets[connection.listener_number].here += 1
        # [mqtt.idle_timeout] runs from accept, whatever trickles in between.
        self.router.timers.arm(connection, handover.header.accepted_ms + <uint64_t>(self.router.clock_offset_ns // 1000000) + self.router.idle_timeout_ms)
        self.router.gauge(BYTES_RECEIVED, PyBytes_GET_SIZE(handover.data))
        if handover.extra is not None:
            connection.note_extra(handover.extra)
        shared = self.quotas.of(connection.listener_number, None if handover.extra is None else handover.extra.get("limiter"))
        if shared is not None:
            if connection.rates is None:
                connection.rates = Rates(0.0, 0.0)
            connection.rates.shared = shared
            connection.limited = True
        if handover.data:
            self.router.budget = self.turn.budget
            # No other process uses these bytes: a WebSocket unmasks them in place.
            if connection.layers is None:
                connection.take_received(<uint8_t*>PyBytes_AS_STRING(handover.data), PyBytes_GET_SIZE(handover.data))
            else:
                connection.take_layered(<uint8_t*>PyBytes_AS_STRING(handover.data), PyBytes_GET_SIZE(handover.data), True)
        return 0
