"""Clients that connect and disconnect: connect, CONNECT, CONNACK, SUBSCRIBE, SUBACK, DISCONNECT, and then the next one.

There are `plan.others` places at a time, `plan.messages` connections in all. Each waits for the broker to close first: then
TIME_WAIT is on the broker's side, which has one port, and the load tool does not run out of ports.

- reconnect: each connection has a client id of its own.
- takeover: each place has one client id and leaves its connection open until the next one with that id has taken it over. A
  takeover is complete when the new connection is subscribed and the broker has closed the old one. The last one of each place
  disconnects.
"""

import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from perf.clients cimport monotonic_ns
from perf.histogram cimport Histogram
from perf.share cimport Share, Totals
from perf.sockets cimport open_socket
from shm.posix cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, close, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait, recv, send,
)

from perf import wire
from perf.sockets import Route

__all__ = ["Arrivals"]

cdef enum:
    EVENTS = 512                           # epoll events a pass
    ANSWER_MAX = 1024                      # a CONNACK or SUBACK, bytes; a longer one counts as a failure
    SLEEP_MAX_MS = 100
    TURN_DIGITS = 8                        # hexadecimal digits of the number of a connection
    REPORT_NS = 200000000                    # interval between two progress reports of a run
    OLD = 1 << 31                          # flag in an epoll event: the connection to be taken over

cdef enum State:
    FREE = 0
    CONNECTING = 1
    CONNACK = 2
    SUBACK = 3
    SUBSCRIBED = 4                         # takeover: waiting for the old connection's end
    LEAVING = 5

cdef const char* DIGITS = b"0123456789abcdef"

CLIENT_TIMEOUT_S = 10.0
"""Limit from connect to the broker's close; a connection that takes longer has failed."""


cdef struct Slot:
    int fd
    int old                                # takeover: the previous connection, -1: none
    int state
    uint64_t started_ns, turn              # turn: number of the connection
    uint32_t size
    uint8_t answer[ANSWER_MAX]


cdef class Arrivals:
    """The clients of one plan of scenario `reconnect` or `takeover`, or the share of one process."""

    cdef object plan, route, tick
    cdef list packets                      # by place: its CONNECT and SUBSCRIBE
    cdef list turn_places                  # by place: offset of the number in its CONNECT
    cdef int epoll, slots_count, free_count, process
    cdef bint takes_over, interrupted
    cdef Slot* slots
    cdef int* unused                       # numbers of the free slots
    cdef uint64_t now_ns, report_ns, started, finished, failed, limit, interval_ns, begin
    cdef Share share
    cdef Totals* totals
    cdef readonly Histogram latency

    def __cinit__(self):
        self.epoll = -1

    def __init__(self, plan, str host, int port, Share share=None, int process=0, tick=None):
        cdef int i
        self.plan = plan
        self.route = Route(host, port, plan.ifaddr)
        self.process = process
        self.share = share if share is not None else Share(1, 0)
        self.totals = &self.share.totals[process]
        self.tick = tick
        self.takes_over = plan.scenario == "takeover"
        self.slots_count = self.free_count = (plan.others + plan.processes - 1 - process) // plan.processes
        self.limit = (plan.messages + plan.processes - 1 - process) // plan.processes
        self.interval_ns = <uint64_t>(1e9 / plan.connect_rate * plan.processes) if plan.connect_rate else 0
        self.latency = Histogram()
        self.slots = <Slot*>calloc(self.slots_count, sizeof(Slot))
        self.unused = <int*>calloc(self.slots_count, sizeof(int))
        if self.slots == NULL or self.unused == NULL:
            raise MemoryError
        for i in range(self.slots_count):
            self.unused[i] = i
            self.slots[i].old = -1
        self.turn_places = []
        self.packets = [self.greetings(i) for i in range(self.slots_count)]
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        self.close()
        free(self.slots)
        free(self.unused)
        if self.epoll >= 0:
            close(self.epoll)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def connect(self) -> None:
        """takeover: opens the connections that will be taken over first. Raises OSError."""
        cdef uint64_t limit = self.limit
        if not self.takes_over:
            return
        self.limit = self.slots_count
        self.run_connections(<uint64_t>-1)
        self.limit = limit
        self.latency = Histogram()
        self.started = self.finished = 0

    def prepare(self) -> None:
        """Does nothing: there is nothing to prepare."""

    def clear(self) -> None:
        """Does nothing: there is nothing to clear."""

    def close(self) -> None:
        """Closes the open connections."""
        cdef int i
        if self.slots == NULL:
            return
        for i in range(self.slots_count):
            if self.slots[i].state != FREE:
                close(self.slots[i].fd)
                self.slots[i].state = FREE
            if self.slots[i].old >= 0:
                send(self.slots[i].old, PyBytes_AS_STRING(wire.DISCONNECT), 2, MSG_NOSIGNAL | MSG_DONTWAIT)
                close(self.slots[i].old)
                self.slots[i].old = -1

    def run(self) -> dict:
        """Runs all connections; returns counts and latency from connect to SUBACK or to the end of the takeover. Raises OSError."""
        cpu = time.process_time()
        self.begin = self.now_ns = monotonic_ns()
        try:
            self.run_connections(self.begin + <uint64_t>(self.plan.seconds * 1e9))
        except KeyboardInterrupt:
            self.interrupted = True
        self.now_ns = monotonic_ns()
        self.totals.finished = 1
        self.report()
        return {
            "connections": self.finished,
            "failed": self.failed,
            "interrupted": self.interrupted,
            "started_ns": self.begin,
            "last_ns": self.now_ns,
            "latency": self.latency,
            "own_cpu_s": time.process_time() - cpu,
        }

    cdef int run_connections(self, uint64_t until) except -1:
        cdef uint64_t due = self.limit
        while True:
            if self.interval_ns and self.begin:
                due = min(self.limit, (monotonic_ns() - self.begin) // self.interval_ns + 1)
            while self.free_count and self.started < due and self.now_ns < until:
                self.start_one()
            if self.free_count == self.slots_count and (self.started >= self.limit or self.now_ns >= until):
                return 0
            self.turn_once(1 if due < self.limit else SLEEP_MAX_MS)

    cdef int report(self) except -1:
        self.report_ns = self.now_ns + REPORT_NS
        self.totals.opened, self.totals.failed, self.totals.changes = self.finished, self.failed, self.finished
        self.totals.p99_ns = self.latency.percentile(99)
        if self.tick is not None:
            self.tick()
        return 0

    cdef int start_one(self) except -1:
        cdef int number
        cdef Slot* slot
        cdef epoll_event event
        cdef int fd
        cdef bint ready = False
        sources = self.route.sources
        fd = open_socket(self.route.family, self.route.target, sources[self.started % <uint64_t>len(sources)], &ready)
        self.started += 1
        self.now_ns = monotonic_ns()
        if fd < 0:
            self.failed += 1
            return 0
        self.free_count -= 1
        number = self.unused[self.free_count]
        slot = &self.slots[number]
        slot.fd = fd
        slot.state = CONNECTING
        slot.size = 0
        slot.turn = self.started
        slot.started_ns = self.now_ns
        event.events = EPOLLIN if ready else EPOLLOUT
        event.data.u64 = <uint64_t>number
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        if ready:                          # as with a broker on the same machine
            slot.state = CONNACK
            return self.greet(number)
        return 0

    cdef int turn_once(self, int timeout_ms) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count, i
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout_ms)
        if count < 0 and errno != EINTR:
            raise OSError(errno, "epoll_wait")
        PyErr_CheckSignals()
        self.now_ns = monotonic_ns()
        for i in range(count):
            if events[i].data.u64 & OLD:
                self.old_ended(<int>(events[i].data.u64 & ~<uint64_t>OLD))
            else:
                self.step(<int>events[i].data.u64)
        if self.now_ns >= self.report_ns:
            self.report()
            for i in range(self.slots_count):
                if self.slots[i].state != FREE and self.now_ns > self.slots[i].started_ns + <uint64_t>(CLIENT_TIMEOUT_S * 1e9):
                    self.end(i, False)
        return 0

    def greetings(self, int number) -> tuple:
        """Returns CONNECT and SUBSCRIBE of a place. At reconnect the client id ends in TURN_DIGITS of zeros, which greet()
        replaces."""
        cdef int place = number * self.plan.processes + self.process
        plan = self.plan
        client_id = plan.id_of("o", place) + ("" if self.takes_over else "-" + "0" * TURN_DIGITS)
        clean = plan.clean and not (self.takes_over and plan.version == 5)
        greeting = wire.connect(
            client_id, plan.version, clean, plan.keepalive, plan.user_of("o", place), plan.password, plan.session_expiry
        )
        if not self.takes_over:
            self.turn_places.append(greeting.index(client_id.encode()) + len(client_id.encode()) - TURN_DIGITS)
        return greeting, wire.subscribe(plan.filters_of_other(place), plan.qos, plan.version)

    cdef int greet(self, int number) except -1:
        """Sends CONNECT, with the number of the connection in its client id."""
        cdef bytes greeting = <bytes>(<tuple>self.packets[number])[0]
        cdef uint8_t* at
        cdef uint64_t turn = self.slots[number].turn
        cdef int digit
        if not self.takes_over:
            # These bytes have no other reference, so they may be changed in place.
            at = <uint8_t*>PyBytes_AS_STRING(greeting) + <int>self.turn_places[number]
            for digit in range(TURN_DIGITS - 1, -1, -1):
                at[digit] = DIGITS[turn & 15]
                turn >>= 4
        return self.send_all(number, greeting)

    cdef int step(self, int number) except -1:
        cdef Slot* slot = &self.slots[number]
        cdef epoll_event event
        cdef ssize_t got
        if slot.state == FREE:
            return 0                       # ended earlier in this pass
        if slot.state == CONNECTING:
            slot.state = CONNACK
            event.events = EPOLLIN
            event.data.u64 = <uint64_t>number
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, slot.fd, &event)
            return self.greet(number)
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
        """Handles a whole packet at the head of the slot's bytes."""
        cdef Slot* slot = &self.slots[number]
        cdef uint32_t length = 2 + <uint32_t>slot.answer[1]
        cdef uint8_t first = slot.answer[0], code = slot.answer[3 if slot.state == CONNACK else length - 1]
        memmove(slot.answer, slot.answer + length, slot.size - length)
        slot.size -= length
        if length < 4 or first != (0x20 if slot.state == CONNACK else 0x90) or (code if slot.state == CONNACK else code & 0x80):
            return self.end(number, False)
        if slot.state == CONNACK:
            slot.state = SUBACK
            return self.send_all(number, <bytes>(<tuple>self.packets[number])[1])
        if self.takes_over:
            slot.state = SUBSCRIBED
            return self.taken_over(number) if slot.old < 0 else 0
        self.latency.add(monotonic_ns() - slot.started_ns)
        slot.state = LEAVING
        return self.send_all(number, wire.DISCONNECT)

    cdef int old_ended(self, int number) except -1:
        """Handles bytes or the end of the connection to be taken over."""
        cdef Slot* slot = &self.slots[number]
        cdef uint8_t ignored[256]
        cdef ssize_t got
        if slot.old < 0:
            return 0
        got = recv(slot.old, ignored, sizeof(ignored), MSG_DONTWAIT)
        if got > 0 or got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        close(slot.old)
        slot.old = -1
        return self.taken_over(number) if slot.state == SUBSCRIBED else 0

    cdef int taken_over(self, int number) except -1:
        """Makes the new connection the old one, and frees its place."""
        cdef Slot* slot = &self.slots[number]
        cdef epoll_event event
        self.latency.add(monotonic_ns() - slot.started_ns)
        slot.old = slot.fd
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>number | OLD
        if epoll_ctl(self.epoll, EPOLL_CTL_MOD, slot.old, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return self.release(number, True)

    cdef int send_all(self, int number, bytes data) except -1:
        """Sends a few bytes into an empty socket buffer; if they do not fit, the connection has failed."""
        if send(self.slots[number].fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT) < 0:
            return self.end(number, False)
        return 0

    cdef int end(self, int number, bint well) except -1:
        close(self.slots[number].fd)
        return self.release(number, well)

    cdef int release(self, int number, bint well) except -1:
        self.slots[number].state = FREE
        self.unused[self.free_count] = number
        self.free_count += 1
        if well:
            self.finished += 1
        else:
            self.failed += 1
        return 0
