"""Clients that come and go: connect, CONNECT, CONNACK, SUBSCRIBE, SUBACK, DISCONNECT, and then the next one.

`plan.subscribers` of them at a time, `plan.messages` in all, each with a client id of its own. The broker's close is waited for:
so its side, which has one port, keeps TIME_WAIT, and ours does not run out of ports.
"""

import socket
import struct
import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINPROGRESS, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from perf.histogram cimport Histogram
from shm.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, clock_gettime,
    close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send, timespec,
)

from perf import wire

__all__ = ["Churn"]

cdef extern from "<sys/socket.h>" nogil:
    int c_socket "socket"(int family, int kind, int protocol)
    cdef struct sockaddr:
        pass
    int c_connect "connect"(int fd, const sockaddr* address, unsigned int size)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int size)
    int AF_INET, AF_INET6, SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY

cdef enum:
    EVENTS = 512                           # epoll events a pass
    ANSWER_MAX = 1024                      # a CONNACK or SUBACK, bytes; a longer one counts as a failure
    SLEEP_MAX_MS = 100

cdef enum State:
    FREE = 0
    CONNECTING = 1
    CONNACK = 2
    SUBACK = 3
    LEAVING = 4

CLIENT_TIMEOUT_S = 10.0
"""From connect to the broker's close; one that takes longer has failed."""


cdef struct Slot:
    int fd
    int state
    uint64_t started_ns
    uint32_t size
    uint8_t answer[ANSWER_MAX]


cdef class Churn:
    """The clients of one plan of scenario `conn`."""

    cdef object plan
    cdef bytes address
    cdef int family, epoll, slots_count, free_count
    cdef Slot* slots
    cdef int* unused                       # numbers of the free slots
    cdef uint64_t now_ns, started, finished, failed, limit
    cdef readonly Histogram latency

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, plan, str host, int port):
        cdef int i
        self.plan = plan
        self.family, self.address = _socket_address(host, port)
        self.slots_count = self.free_count = plan.subscribers
        self.limit = plan.messages
        self.latency = Histogram()
        self.slots = <Slot*>calloc(self.slots_count, sizeof(Slot))
        self.unused = <int*>calloc(self.slots_count, sizeof(int))
        if self.slots == NULL or self.unused == NULL:
            raise MemoryError
        for i in range(self.slots_count):
            self.unused[i] = i
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        cdef int i
        if self.slots != NULL:
            for i in range(self.slots_count):
                if self.slots[i].state != FREE:
                    close(self.slots[i].fd)
        free(self.slots)
        free(self.unused)
        if self.epoll >= 0:
            close(self.epoll)

    def run(self) -> dict:
        """Lets all clients come and go; counts, seconds, latency from connect to SUBACK. Raises OSError."""
        cdef uint64_t begin, until
        cpu = time.process_time()
        self.read_clock()
        begin = self.now_ns
        until = begin + <uint64_t>(self.plan.seconds * 1e9)
        while True:
            while self.free_count and self.started < self.limit and self.now_ns < until:
                self.start_one()
            if self.free_count == self.slots_count:
                break
            self.turn_once()
        seconds = (self.now_ns - begin) / 1e9
        return {
            "connections": self.finished,
            "failed": self.failed,
            "seconds": seconds,
            "connections_per_s": self.finished / seconds if seconds else 0.0,
            "latency": self.latency.summary(),
            "own_cpu_s": time.process_time() - cpu,
        }

    cdef void read_clock(self) noexcept:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.now_ns = <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec

    cdef int start_one(self) except -1:
        cdef int number, on = 1
        cdef Slot* slot
        cdef epoll_event event
        cdef int fd = c_socket(self.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
        if fd < 0:
            raise OSError(errno, "socket")
        self.started += 1
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        if c_connect(fd, <const sockaddr*>PyBytes_AS_STRING(self.address), <unsigned int>PyBytes_GET_SIZE(self.address)) < 0 \
                and errno != EINPROGRESS:
            close(fd)
            self.failed += 1
            return 0
        self.free_count -= 1
        number = self.unused[self.free_count]
        slot = &self.slots[number]
        slot.fd = fd
        slot.state = CONNECTING
        slot.size = 0
        self.read_clock()
        slot.started_ns = self.now_ns
        event.events = EPOLLOUT
        event.data.u64 = <uint64_t>number
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef int turn_once(self) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count, i
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, SLEEP_MAX_MS)
        if count < 0 and errno != EINTR:
            raise OSError(errno, "epoll_wait")
        PyErr_CheckSignals()
        self.read_clock()
        for i in range(count):
            self.step(<int>events[i].data.u64)
        if count == 0:
            for i in range(self.slots_count):
                if self.slots[i].state != FREE and self.now_ns - self.slots[i].started_ns > <uint64_t>(CLIENT_TIMEOUT_S * 1e9):
                    self.end(i, False)
        return 0

    cdef int step(self, int number) except -1:
        cdef Slot* slot = &self.slots[number]
        cdef epoll_event event
        cdef ssize_t got
        if slot.state == CONNECTING:
            slot.state = CONNACK
            event.events = EPOLLIN
            event.data.u64 = <uint64_t>number
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, slot.fd, &event)
            return self.say(number, wire.connect(f"perf-{self.plan.run}-{self.started}-{number}", self.plan.version))
        got = recv(slot.fd, slot.answer + slot.size, ANSWER_MAX - slot.size, MSG_DONTWAIT)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            return self.end(number, slot.state == LEAVING)
        slot.size += <uint32_t>got
        while slot.state in (CONNACK, SUBACK) and slot.size >= 2 and slot.size >= 2 + <uint32_t>slot.answer[1]:
            self.answered(number)
        return 0

    cdef int answered(self, int number) except -1:
        """A whole packet stands at the head of the slot's bytes."""
        cdef Slot* slot = &self.slots[number]
        cdef uint32_t length = 2 + <uint32_t>slot.answer[1]
        cdef uint8_t first = slot.answer[0], code = slot.answer[3 if slot.state == CONNACK else length - 1]
        memmove(slot.answer, slot.answer + length, slot.size - length)
        slot.size -= length
        if length < 4 or first != (0x20 if slot.state == CONNACK else 0x90) or (code if slot.state == CONNACK else code & 0x80):
            return self.end(number, False)
        if slot.state == CONNACK:
            slot.state = SUBACK
            return self.say(number, wire.subscribe(f"perf/{self.plan.run}/{number}", self.plan.qos, self.plan.version))
        self.read_clock()
        self.latency.add(self.now_ns - slot.started_ns)
        slot.state = LEAVING
        return self.say(number, wire.DISCONNECT)

    cdef int say(self, int number, bytes data) except -1:
        """A few bytes into an empty socket buffer: they go, or the connection has failed."""
        if send(self.slots[number].fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT) < 0:
            return self.end(number, False)
        return 0

    cdef int end(self, int number, bint well) except -1:
        close(self.slots[number].fd)
        self.slots[number].state = FREE
        self.unused[self.free_count] = number
        self.free_count += 1
        if well:
            self.finished += 1
        else:
            self.failed += 1
        return 0


def _socket_address(str host, int port):
    """(family, sockaddr as bytes). Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if family == socket.AF_INET:
        return <int>AF_INET, struct.pack("=H", family) + struct.pack(">H", port) + socket.inet_aton(address[0]) + bytes(8)
    packed = socket.inet_pton(family, address[0].split("%")[0])
    return <int>AF_INET6, struct.pack("=H", family) + struct.pack(">HI", port, 0) + packed + struct.pack("=I", address[3])
