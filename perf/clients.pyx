"""Connections of the load engine: opening, reading, writing, pinging. The engine interprets the packets.

One pass: one send per touched client -> epoll_wait -> for each readable client one recv into the common buffer, parsed in place.
"""

import os
import time

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EADDRNOTAVAIL, EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from perf.histogram cimport Histogram
from perf.sockets cimport open_socket
from shm.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT,
    MSG_NOSIGNAL, clock_gettime, close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send, timespec,
)

from perf import wire
from perf.plan import ENDLESS
from perf.transport import Transport, context_for
from perf.sockets import Route

__all__ = ["Clients", "LoadError"]

cdef enum:
    READ_BYTES = 262144                    # one recv
    PACKET_MAX = 1179648                   # largest packet accepted: a payload of 1 MiB and its topic, bytes
    EVENTS = 1024                          # epoll events a pass
    SLEEP_MAX_MS = 100
    OPENING_MAX = 200                      # clients of one process between connect and SUBACK at a time
    OPENING_ALL = 4000                     # of all processes: above a backlog of 4096 the kernel would drop connections

CLOSE_TIMEOUT_S = 2.0
"""Time for the broker to close after DISCONNECT."""
CONNECT_TIMEOUT_S = 30.0
"""Longest time without any client being accepted or refused."""


class LoadError(Exception):
    """The broker did not accept the clients, or closed their connections; the text has its reaction."""


cdef uint64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef class Clients:
    """The connections of one load process. A context manager that closes them."""

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, plan, str host, int port):
        self.plan = plan
        self.version = plan.version
        self.tolerant = plan.scenario in ENDLESS
        self.route = Route(host, port, plan.ifaddr)
        self.reason = ""
        self.where = f"{host}:{port}"
        self.host = host
        self.opening = Histogram()

    cdef int allocate_clients(self, int count) except -1:
        cdef int i
        self.count = count
        self.clients = <Client*>calloc(count + 1, sizeof(Client))
        self.dirty = <int32_t*>calloc(count + 1, sizeof(int32_t))
        self.buffer = <uint8_t*>malloc(2 * READ_BYTES + PACKET_MAX)   # TLS may return more at once than was read
        if self.plan.transport != "tcp":
            self.transports = [None] * count
            self.context = context_for(self.plan.cafile) if self.plan.transport in ("ssl", "wss") else None
        if not (self.clients and self.dirty and self.buffer):
            raise MemoryError
        for i in range(count):
            self.clients[i].fd = -1
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        return 0

    def __dealloc__(self):
        cdef int i
        if self.clients != NULL:
            for i in range(self.count):
                if self.clients[i].fd >= 0:
                    close(self.clients[i].fd)
                free(self.clients[i].out)
                free(self.clients[i].rest)
        free(self.clients)
        free(self.dirty)
        free(self.buffer)
        if self.epoll >= 0:
            close(self.epoll)

    def __enter__(self):
        return self

    def __exit__(self, kind, *exc):
        self.close(0 if kind else CLOSE_TIMEOUT_S)

    # --- opening and closing --------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connects and subscribes every client; publishers, which have the lowest numbers, last. Raises LoadError, OSError."""
        cdef int started = 0, moved = 0, due
        cdef int opening_max = max(1, min(<int>OPENING_MAX, <int>OPENING_ALL // <int>self.plan.processes))
        cdef uint64_t begin = monotonic_ns()
        cdef double rate = self.plan.connect_rate / self.plan.processes
        cpu = time.process_time()
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        self.pings_from_ns = begin
        while self.opened + self.failed < self.count:
            due = self.count if not rate else min(self.count, <int>((monotonic_ns() - begin) / 1e9 * rate) + 1)
            while started < due and (started - self.opened - self.failed < opening_max or rate):
                started += 1
                self.open_client(self.count - started)
            self.turn_once(1 if rate and started < self.count else SLEEP_MAX_MS)
            self.ping_due()
            if moved != self.opened + self.failed or started == self.opened + self.failed:
                moved = self.opened + self.failed
                deadline = time.monotonic() + CONNECT_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise LoadError(f"{self.count - moved} of {self.count} clients are not connected in time")
        self.connect_s = (monotonic_ns() - begin) / 1e9
        self.connect_cpu_s = time.process_time() - cpu
        if self.failed == self.count:
            raise LoadError(f"{self.where}: the broker let no client in: {self.reason}")

    cdef int open_client(self, int number) except -1:
        cdef epoll_event event
        cdef Client* client = &self.clients[number]
        sources = self.route.sources
        client.fd = open_socket(self.route.family, self.route.target, sources[number % len(sources)], NULL)
        client.state = CONNECTING
        client.since_ns = monotonic_ns()
        if client.fd < 0:
            return self.lose(number, self.why_not(errno))
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>number
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, client.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        if self.transports is not None:
            self.transports[number] = Transport(self.context, self.plan.transport in ("ws", "wss"), self.host)
        return self.put_bytes(number, self.greeting(number))

    def why_not(self, int code) -> str:
        """Returns the reason why a socket could not be opened."""
        own = f" ({', '.join(self.plan.ifaddr) or 'the own address'}: not of this machine, or its ports are all in use)"
        return os.strerror(code) + (own if code == EADDRNOTAVAIL else "")

    def greeting(self, int number) -> bytes:
        """Returns the CONNECT packet of a client."""
        raise NotImplementedError

    cdef int ready(self, int number) except -1:
        self.clients[number].state = READY
        self.opened += 1
        self.opening.add(self.now_ns - self.clients[number].since_ns)
        return 0

    def close(self, double timeout_s=0) -> None:
        """Disconnects and closes all clients. The broker closes first, so that TIME_WAIT takes no port from the next run."""
        cdef int number, left = 0
        for number in range(self.count):
            if self.clients[number].fd >= 0:
                if self.transports is not None:
                    self.transports[number].send(wire.DISCONNECT)
                    self.transmit(number)
                else:
                    send(self.clients[number].fd, PyBytes_AS_STRING(wire.DISCONNECT), 2, MSG_NOSIGNAL | MSG_DONTWAIT)
                left += 1
        try:
            if left and timeout_s:
                self.wait_for_ends(left, monotonic_ns() + <uint64_t>(timeout_s * 1e9))
        except KeyboardInterrupt:
            pass
        for number in range(self.count):
            self.drop(number)

    cdef int drop(self, int number) noexcept:
        if self.clients[number].fd >= 0:
            close(self.clients[number].fd)
        self.clients[number].fd = -1
        self.clients[number].state = CLOSED
        return 0

    cdef int wait_for_ends(self, int left, uint64_t until) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count, i, number
        while left and monotonic_ns() < until:
            with nogil:
                count = epoll_wait(self.epoll, events, EVENTS, SLEEP_MAX_MS)
            PyErr_CheckSignals()
            for i in range(count):
                number = <int>events[i].data.u64
                if number < 0:
                    continue
                if self.clients[number].fd >= 0 and recv(self.clients[number].fd, self.buffer, READ_BYTES, MSG_DONTWAIT) == 0 \
                        or events[i].events & (EPOLLHUP | EPOLLERR):
                    self.drop(number)
                    left -= 1
        return 0

    cdef int lose(self, int number, str why) except -1:
        """Handles a connection that the broker closed or refused."""
        cdef Client* client = &self.clients[number]
        if client.state == CLOSED:
            return 0
        if client.state < READY:
            self.failed += 1
            self.reason = self.reason or why
            if not self.tolerant:
                raise LoadError(f"{self.where}: the broker did not let a client in: {why}")
        else:
            self.gone += 1
        client.state = CLOSED
        if client.fd >= 0:
            close(client.fd)
        client.fd = -1
        client.size = client.sent = 0
        self.unsent -= client.writable_wanted
        client.writable_wanted = False
        return self.has_gone(number)

    # --- output -------------------------------------------------------------------------------------------------------------------

    cdef uint8_t* room(self, int number, size_t size) except NULL:
        """Returns the place for the next `size` bytes to this client, which are sent at the end of the pass."""
        cdef Client* client = &self.clients[number]
        cdef uint8_t* grown
        cdef size_t at
        if client.size + size > client.capacity or client.out == NULL:
            grown = <uint8_t*>realloc(client.out, (client.size + size + 8) * 2)
            if grown == NULL:
                raise MemoryError
            client.out = grown
            client.capacity = (client.size + size + 8) * 2
        if not client.dirty:
            client.dirty = True
            self.dirty[self.dirty_count] = number
            self.dirty_count += 1
        at = client.size
        client.size += size
        return client.out + at

    cdef int put_bytes(self, int number, bytes data) except -1:
        memcpy(self.room(number, PyBytes_GET_SIZE(data)), PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return 0

    cdef int put_ack(self, int number, uint8_t first, const uint8_t* packet_id) except -1:
        cdef uint8_t* target = self.room(number, 4)
        target[0] = first
        target[1] = 2
        target[2] = packet_id[0]
        target[3] = packet_id[1]
        return 0

    cdef int ping_due(self) except -1:
        """Pings each client twice per keepalive, spread evenly over the time."""
        cdef uint64_t due, number
        if not self.plan.keepalive:
            return 0
        due = <uint64_t>((self.now_ns - self.pings_from_ns) / (self.plan.keepalive * 5e8) * self.count)
        if due > self.pinged + self.count:
            self.pinged = due - self.count
        while self.pinged < due:
            number = self.pinged % <uint64_t>self.count
            self.pinged += 1
            if self.clients[number].state >= READY:
                self.put_bytes(<int>number, wire.PINGREQ)
        return 0

    cdef int flush(self, int number) except -1:
        cdef Client* client = &self.clients[number]
        cdef epoll_event event
        cdef ssize_t done
        cdef bint waits
        client.dirty = False
        if client.state == CLOSED:
            return 0
        if client.size != client.sent or (self.transports is not None and self.transports[number].raw):
            done = self.transmit(number)
            if done < 0:
                if errno != EAGAIN and errno != EINTR:
                    return self.lose(number, os.strerror(errno))
                done = 0
            client.sent += done
            if client.sent == client.size:
                client.sent = client.size = 0
        waits = client.size != 0 or (self.transports is not None and len(self.transports[number].raw) != 0)
        if waits != client.writable_wanted:
            client.writable_wanted = waits
            self.unsent += 1 if client.writable_wanted else -1
            event.events = EPOLLIN | EPOLLOUT if client.writable_wanted else EPOLLIN
            event.data.u64 = <uint64_t>number
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, client.fd, &event)
            if not client.writable_wanted:
                return self.emptied(number)
        return 0

    # --- input --------------------------------------------------------------------------------------------------------------------

    cdef ssize_t transmit(self, int number) except -2:
        """Sends the output of a client, as send(2). Bytes accepted by a transport count as sent; it sends them when the socket
        permits."""
        cdef Client* client = &self.clients[number]
        cdef ssize_t size = <ssize_t>(client.size - client.sent), done
        cdef bytearray raw
        if self.transports is None:
            return send(client.fd, client.out + client.sent, size, MSG_NOSIGNAL | MSG_DONTWAIT)
        transport = self.transports[number]
        raw = transport.raw
        if len(raw):
            size = 0                       # first the part that is already there
        elif size:
            transport.send(client.out[client.sent:client.size])
        if len(raw):
            done = send(client.fd, PyByteArray_AS_STRING(raw), len(raw), MSG_NOSIGNAL | MSG_DONTWAIT)
            if done < 0 and errno != EAGAIN and errno != EINTR:
                return -1
            if done > 0:
                del raw[:done]
        return size

    cdef ssize_t receive(self, int number, uint8_t* target) except -2:
        """Receives as recv(2); -1 with EAGAIN if the bytes contain no MQTT yet."""
        global errno
        cdef ssize_t got = recv(self.clients[number].fd, target, READ_BYTES, MSG_DONTWAIT)
        cdef bytes plain
        if self.transports is None or got <= 0:
            return got
        try:
            plain = self.transports[number].receive(target[:got])
        except OSError as error:           # ssl.SSLError too
            self.lose(number, str(error))
            plain = b""
        if self.clients[number].state != CLOSED and len(self.transports[number].raw):
            self.room(number, 0)           # output of a handshake
        if not plain:
            errno = EAGAIN                 # no-cython-lint: of C
            return -1
        memcpy(target, PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
        return PyBytes_GET_SIZE(plain)

    cdef int turn_once(self, int timeout_ms) except -1:
        """Performs one pass without its publishing: flush, wait, read."""
        cdef epoll_event events[EVENTS]
        cdef int count, i, number
        i = 0
        while i < self.dirty_count:
            self.flush(self.dirty[i])
            i += 1
        self.dirty_count = 0
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout_ms)
        if count < 0 and errno != EINTR:
            raise OSError(errno, "epoll_wait")
        PyErr_CheckSignals()
        self.now_ns = monotonic_ns()
        for i in range(count):
            number = <int>events[i].data.u64
            if number < 0:
                self.ticked()
                continue
            if events[i].events & EPOLLOUT:
                self.room(number, 0)       # only marks it for the flush
            if events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) and self.clients[number].state != CLOSED:
                self.read_some(number)
        return self.report()

    cdef int read_some(self, int number) except -1:
        cdef Client* client = &self.clients[number]
        cdef uint8_t* grown
        cdef size_t have = client.rest_size, left
        cdef ssize_t got
        memcpy(self.buffer, client.rest, have)
        got = self.receive(number, self.buffer + have)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            return self.lose(number, os.strerror(errno) if got < 0 else "it closed the connection")
        self.now_ns = monotonic_ns()
        have += got
        left = have - self.take_packets(number, self.buffer, have)
        if client.state == CLOSED:
            client.rest_size = 0
            return 0
        if left > PACKET_MAX:
            raise LoadError(f"the broker sent a packet of more than {PACKET_MAX} bytes")
        if left > client.rest_capacity:
            grown = <uint8_t*>realloc(client.rest, left)
            if grown == NULL:
                raise MemoryError
            client.rest = grown
            client.rest_capacity = left
        memcpy(client.rest, self.buffer + have - left, left)
        client.rest_size = left
        return 0

    cdef size_t take_packets(self, int number, uint8_t* data, size_t size) except? 0:
        """Handles whole packets; returns their size in bytes."""
        cdef size_t at = 0, header, length
        cdef int shift
        cdef uint8_t kind
        while at + 2 <= size:
            header = 1
            length = 0
            shift = 0
            while at + header < size and shift < 28:
                length |= <size_t>(data[at + header] & 0x7F) << shift
                shift += 7
                header += 1
                if not data[at + header - 1] & 0x80:
                    break
            if data[at + header - 1] & 0x80 or at + header + length > size:
                break
            kind = data[at] >> 4
            if kind == 3:
                self.take_message(number, data[at], data + at + header, length)
            elif kind == 2:
                self.take_connack(number, data[at + header:at + header + length])
            elif kind == 13:
                self.pongs += 1
            elif kind == 14:
                self.take_disconnect(number, data[at + header] if length else 0)
            else:
                self.take_answer(number, data[at], data + at + header, length)
            if self.clients[number].state == CLOSED:
                return size
            at += header + length
        return at

    def take_connack(self, int number, bytes body) -> None:
        if len(body) < 2 or self.clients[number].state != CONNECTING:
            raise LoadError("the broker sent a CONNACK that makes no sense")
        if body[1]:
            self.lose(number, f"CONNACK with return code {body[1]:#04x}")
        else:
            self.accepted(number, <const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))

    def take_disconnect(self, int number, int code) -> None:
        why = f"DISCONNECT with reason code {code:#04x}"
        if not self.tolerant:
            raise LoadError(f"the broker sent {why}")
        self.reason = self.reason or why
        self.lose(number, why)

    # --- hooks for the engine -----------------------------------------------------------------------------------------------------

    cdef int take_message(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        """Handles a PUBLISH without its fixed header."""
        return 0

    cdef int take_answer(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        """Handles an acknowledgement of any kind."""
        return 0

    cdef int accepted(self, int number, const uint8_t* body, size_t size) except -1:
        """Handles a CONNACK with code 0."""
        return self.ready(number)

    cdef int has_gone(self, int number) except -1:
        return 0

    cdef int emptied(self, int number) except -1:
        """Handles the end of a client's output: all of it has been sent."""
        return 0

    cdef int report(self) except -1:
        """Handles the end of a pass."""
        return 0

    cdef int ticked(self) except -1:
        """Handles a due timer of the engine."""
        return 0
