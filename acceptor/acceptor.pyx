"""The acceptor's loop: accept, read up to the client id, hand over (DESIGN: hand-over).

    accept -> [ pending: waits for bytes ] -> peek -> worker of crc32(client id) % 1024 % workers
                    | idle_timeout, counted            | worker down or channel full: [ held ], then CONNACK 0x88

A socket is taken out of epoll before it is handed over: the registration belongs to the open file, which lives on in the worker.
"""

import errno as errors
import os
import secrets
import socket
from collections import OrderedDict
from zlib import crc32

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from acceptor.handover cimport send_socket
from acceptor.peek cimport FOUND, NEED_MORE, NOT_CONNECT, TOO_LARGE, peek
from shardbroker.worker.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, clock_gettime, close,
    epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send, timespec,
)
from shm.counters cimport (
    CLIENT_CLOSED_IDLE_TIMEOUT, CLIENT_CLOSED_NOT_CONNECT, CLIENT_CLOSED_REFUSED, CLIENT_CLOSED_RESET, CLIENT_CLOSED_TOO_LARGE,
    CounterSlot,
)

from acceptor.handover import encode_header
from shm.counters import ProcessState
from shm.topology import PARTITIONS

__all__ = ["Acceptor"]

cdef enum:
    READ_BYTES = 65536                     # one recv, bytes
    EVENTS = 512                           # epoll events a pass
    ACCEPTS = 256                          # sockets accepted from one listener a pass

PENDING_MAX = 8192
"""Sockets that may wait for their CONNECT in one acceptor: half of what its descriptors allow. The oldest goes first."""

HOLD_LIMIT_MS = 5000
"""How long a socket waits for a worker that is down: several times what a restart takes."""

TICK_MS = 50
"""Grain of time-outs and of the retries of held sockets."""

PAUSE_MS = 1000
"""How long accepting pauses when descriptors have run out, as esockd does."""


cdef class Pending:
    """A socket that is not handed over yet."""
    cdef int fd
    cdef bytes data
    cdef str peer, listener
    cdef uint64_t accepted_ms
    cdef bytes client_id, assigned_id      # client_id: None until it is known


cdef class Acceptor:
    """One acceptor process. `number` chooses its listening sockets and its ends of the hand-over channels."""

    cdef object topology, counters
    cdef CounterSlot slot
    cdef int number, epoll
    cdef uint64_t now_ms, paused_until_ms, idle_timeout_ms, refused_turn
    cdef uint32_t max_packet
    cdef dict listeners                    # descriptor -> name
    cdef object pending                    # fd -> Pending, oldest first
    cdef list held
    cdef public bint draining
    cdef uint8_t buffer[READ_BYTES]

    def __init__(self, topology, int number, counters):
        self.topology = topology
        self.number = number
        self.counters = counters
        self.slot = counters.slot(topology.processes + number)
        self.idle_timeout_ms = <uint64_t>(topology.settings.mqtt.idle_timeout * 1000)
        self.max_packet = topology.settings.mqtt.max_packet_size
        self.listeners = {}
        self.pending = OrderedDict()
        self.held = []
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        for listener in topology.listeners:
            fd = listener.descriptors[number]
            sock = socket.socket(fileno=os.dup(fd))
            sock.setblocking(False)
            self.listeners[fd] = (listener.name, sock)
            self.watch(fd)

    cdef int watch(self, int fd) except -1:
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.fd = fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef int unwatch(self, int fd) except -1:
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)
        return 0

    def run(self) -> None:
        """Serves until `draining` is set."""
        cdef epoll_event events[EVENTS]
        cdef int count, i, fd
        cdef timespec now
        while not self.draining:
            timeout = TICK_MS if self.pending or self.held or self.paused_until_ms else 1000
            count = self.wait(events, timeout)
            PyErr_CheckSignals()
            clock_gettime(CLOCK_MONOTONIC, &now)
            self.now_ms = <uint64_t>(now.tv_sec * 1000 + now.tv_nsec // 1000000)
            for i in range(count):
                fd = events[i].data.fd
                if fd in self.listeners:
                    self.accept_some(fd)
                else:
                    pending = self.pending.get(fd)
                    if pending is not None:
                        self.read_some(<Pending>pending)
            self.expire()
            if self.held:
                self.retry_held()
        for pending in list(self.pending.values()) + self.held:
            close((<Pending>pending).fd)

    cdef int wait(self, epoll_event* events, int timeout) except -1:
        cdef int count
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout)
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            return 0
        return count

    cdef int accept_some(self, int listener) except -1:
        cdef Pending pending
        cdef int i
        name, sock = self.listeners[listener]
        for i in range(ACCEPTS):
            try:
                connection, address = sock.accept()
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno in (errors.EMFILE, errors.ENFILE, errors.ENOBUFS, errors.ENOMEM):
                    self.pause()
                return 0                   # what else accept reports belongs to a connection that is gone
            connection.setblocking(False)
            try:
                # Acknowledgements are small and must not wait for each other.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                pass                       # the peer is gone already; reading will say so
            fd = connection.detach()
            pending = Pending.__new__(Pending)
            pending.fd = fd
            pending.data = b""
            pending.listener = name
            pending.peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
            pending.accepted_ms = self.now_ms
            self.pending[fd] = pending
            self.watch(fd)
            if len(self.pending) > PENDING_MAX:
                self.drop(next(iter(self.pending.values())), CLIENT_CLOSED_IDLE_TIMEOUT)
            self.read_some(pending)        # CONNECT mostly comes right behind the handshake
        return 0

    cdef int pause(self) except -1:
        """No descriptors left: accepting would spin."""
        if not self.paused_until_ms:
            for fd in self.listeners:
                self.unwatch(fd)
        self.paused_until_ms = self.now_ms + PAUSE_MS
        return 0

    cdef int read_some(self, Pending pending) except -1:
        cdef ssize_t got = recv(pending.fd, self.buffer, READ_BYTES, MSG_DONTWAIT)
        cdef const uint8_t* client_id = NULL
        cdef uint32_t size = 0
        cdef int outcome
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            return self.drop(pending, CLIENT_CLOSED_RESET)
        pending.data += PyBytes_FromStringAndSize(<const char*>self.buffer, got)
        outcome = peek(<const uint8_t*>PyBytes_AS_STRING(pending.data), PyBytes_GET_SIZE(pending.data), self.max_packet,
                       &client_id, &size)
        if outcome == NEED_MORE:
            return 0
        if outcome == NOT_CONNECT:
            return self.drop(pending, CLIENT_CLOSED_NOT_CONNECT)   # [MQTT-3.1.0-1]
        if outcome == TOO_LARGE:
            return self.drop(pending, CLIENT_CLOSED_TOO_LARGE)
        self.unwatch(pending.fd)
        del self.pending[pending.fd]
        pending.assigned_id = b""
        if outcome == FOUND and size:
            pending.client_id = PyBytes_FromStringAndSize(<const char*>client_id, size)
        else:
            # [MQTT-3.1.3-6]; what cannot be understood gets one too, so that the refusing workers take turns.
            pending.assigned_id = pending.client_id = b"auto-" + secrets.token_hex(8).encode()
        if not self.hand_over(pending):
            self.held.append(pending)
        return 0

    cdef bint hand_over(self, Pending pending) except -1:
        cdef int worker = crc32(pending.client_id) % PARTITIONS % self.topology.workers
        if self.counters.state(worker) != READY:
            return False
        header = encode_header(pending.peer, pending.listener, pending.accepted_ms, pending.assigned_id)
        if not send_socket(self.topology.handover[self.number][worker][0], pending.fd,
                           <const uint8_t*>PyBytes_AS_STRING(pending.data), PyBytes_GET_SIZE(pending.data), header):
            return False
        close(pending.fd)
        return True

    cdef int retry_held(self) except -1:
        cdef Pending pending
        cdef list held = self.held
        self.held = []
        for pending in held:
            if self.hand_over(pending):
                continue
            if self.now_ms - pending.accepted_ms < <uint64_t>HOLD_LIMIT_MS:
                self.held.append(pending)
            else:
                self.slot.values[<int>CLIENT_CLOSED_REFUSED] += 1
                refusal = unavailable(pending.data)
                send(pending.fd, PyBytes_AS_STRING(refusal), PyBytes_GET_SIZE(refusal), MSG_NOSIGNAL | MSG_DONTWAIT)
                close(pending.fd)
        return 0

    cdef int expire(self) except -1:
        cdef Pending pending
        while self.pending:
            pending = <Pending>next(iter(self.pending.values()))
            if pending.accepted_ms + self.idle_timeout_ms > self.now_ms:
                break
            self.drop(pending, CLIENT_CLOSED_IDLE_TIMEOUT)
        if self.paused_until_ms and self.paused_until_ms <= self.now_ms:
            self.paused_until_ms = 0
            for fd in self.listeners:
                self.watch(fd)
        return 0

    cdef int drop(self, Pending pending, int counter) except -1:
        self.slot.values[counter] += 1
        del self.pending[pending.fd]
        close(pending.fd)
        return 0


cdef int READY = int(ProcessState.READY)


cdef bytes unavailable(bytes connect):
    """CONNACK 0x88, or its return code 3 in 3.x (MQTT 5.0 §3.2.2.2)."""
    at = connect.find(b"MQTT")
    if at >= 0 and connect[at + 4:at + 5] == b"\x05":
        return b"\x20\x03\x00\x88\x00"
    return b"\x20\x02\x00\x03"
