"""The load engine: every client of a run in one thread on one epoll.

One pass: publish what the window, the acknowledgements and the rate allow -> one send per touched client -> epoll_wait -> for
each readable client one recv into the common buffer, parsed in place.

    payload = | due time, ns of CLOCK_MONOTONIC (8) | publisher (4) | sequence number (4) | filling |     machine byte order

Clients 0..publishers-1 publish, the others subscribe. A client's bytes in: a packet that is cut off is kept in `rest` until the
next recv. Its bytes out: `out[sent:size]`; a publisher with more than OUT_MAX unsent bytes waits, so memory is bounded by the plan.
"""

import socket
import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from perf.histogram cimport Histogram
from perf.timer cimport TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, itimerspec, timerfd_create, timerfd_settime
from perf.tracker cimport Tracker, tracker_free, tracker_init, tracker_see
from shm.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT,
    MSG_NOSIGNAL, clock_gettime, close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, read, recv, send, timespec,
)

from perf import wire

__all__ = ["Engine", "LoadError"]

cdef enum:
    READ_BYTES = 262144                    # one recv
    PACKET_MAX = 1179648                   # largest packet taken: a payload of 1 MiB and its topic, bytes
    OUT_MAX = 262144                       # unsent bytes of a publisher, after which it waits
    BURST = 64                             # messages of one publisher in a row
    EVENTS = 1024                          # epoll events a pass
    TIMER = -1                             # in place of a client's number
    STAMP = 16                             # bytes at the head of a payload
    SLEEP_MAX_MS = 100
    TICK_MIN_NS = 20000                    # shorter ticks cost more than the messages; those due in one go together
    OPENING_MAX = 200                      # clients on their way to CONNACK and SUBACK at a time

cdef enum State:
    CLOSED = 0
    CONNECTING = 1                         # CONNECT is sent
    SUBSCRIBING = 2
    READY = 3

STALL_S = 3.0
"""Without any message or acknowledgement for this long, what is under way is given up as lost."""
STALLS_MAX = 3
"""Give-ups after which the run ends."""
SETTLE_S = 0.05
"""How long copies are still waited for when every message is there."""
CONNECT_TIMEOUT_S = 30.0
"""For all clients together."""


class LoadError(Exception):
    """The broker did not let the clients in, or closed on them; the text says what it did."""


cdef struct Client:
    int fd
    int state
    bint dirty                             # stands in the list of those to flush
    bint writable_wanted                   # EPOLLOUT is asked for
    uint8_t* out
    size_t size, sent, capacity
    uint8_t* rest
    size_t rest_size, rest_capacity

cdef struct Publisher:
    uint32_t seq                           # next sequence number = messages published
    uint32_t inflight                      # unacknowledged
    uint32_t inflight_max
    uint64_t delivered                     # first copies at all subscribers
    uint16_t packet_id
    bint queued                            # stands in the queue of those that may publish
    bint gone


cdef inline uint64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef class Engine:
    """The clients of one plan. connect(), then run() once, then close(); a context manager that closes."""

    cdef object plan, address
    cdef int epoll, timer
    cdef int publishers, subscribers, clients_count, qos, version
    cdef uint32_t quota, window, payload, receivers, topics
    cdef Client* clients
    cdef Publisher* sources
    cdef Tracker* trackers                 # of each subscriber
    cdef list heads                        # of each publisher: PUBLISH up to the payload, one per topic
    cdef int32_t* queue                    # ring of publishers that may publish; each at most once
    cdef int queue_head, queue_size
    cdef int32_t* dirty
    cdef int dirty_count
    cdef uint8_t* buffer
    cdef int opened
    cdef bint publishing
    cdef uint64_t now_ns, progress_ns, started_ns, last_ns, interval_ns, turn
    cdef uint64_t published, delivered, unique, misrouted, refused, gone, acked
    cdef int stalls
    cdef readonly Histogram latency

    def __cinit__(self):
        self.epoll = self.timer = -1

    def __init__(self, plan, str host, int port):
        cdef int i
        self.plan = plan
        self.address = (host, port)
        self.publishers = plan.publishers
        self.subscribers = plan.subscribers
        self.clients_count = self.publishers + self.subscribers
        self.qos = plan.qos
        self.version = plan.version
        self.quota = plan.quota
        self.window = plan.window
        self.payload = plan.payload
        self.receivers = plan.receivers
        self.interval_ns = <uint64_t>(1e9 / plan.rate) if plan.rate else 0
        self.latency = Histogram()
        self.heads = [
            [wire.publish_head(topic, self.qos, plan.payload, self.version) for topic in plan.topics_of(publisher)]
            for publisher in range(self.publishers)
        ]
        self.topics = len(self.heads[0])
        self.allocate()
        for i in range(self.subscribers):
            tracker_init(&self.trackers[i], self.window)
        for i in range(self.publishers):
            self.sources[i].inflight_max = plan.inflight
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")

    cdef int allocate(self) except -1:
        cdef int i
        self.clients = <Client*>calloc(self.clients_count, sizeof(Client))
        self.sources = <Publisher*>calloc(self.publishers, sizeof(Publisher))
        self.trackers = <Tracker*>calloc(self.subscribers, sizeof(Tracker))
        self.queue = <int32_t*>calloc(self.publishers, sizeof(int32_t))
        self.dirty = <int32_t*>calloc(self.clients_count, sizeof(int32_t))
        self.buffer = <uint8_t*>malloc(READ_BYTES + PACKET_MAX)
        if not (self.clients and self.sources and self.trackers and self.queue and self.dirty and self.buffer):
            raise MemoryError
        for i in range(self.clients_count):
            self.clients[i].fd = -1
        return 0

    def __dealloc__(self):
        cdef int i
        if self.clients != NULL:
            for i in range(self.clients_count):
                if self.clients[i].fd >= 0:
                    close(self.clients[i].fd)
                free(self.clients[i].out)
                free(self.clients[i].rest)
        if self.trackers != NULL:
            for i in range(self.subscribers):
                tracker_free(&self.trackers[i])
        for pointer in (<size_t>self.clients, <size_t>self.sources, <size_t>self.trackers, <size_t>self.queue,
                        <size_t>self.dirty, <size_t>self.buffer):
            free(<void*><size_t>pointer)
        if self.epoll >= 0:
            close(self.epoll)
        if self.timer >= 0:
            close(self.timer)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- opening and closing --------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connects and subscribes every client; subscribers first. Raises LoadError, OSError."""
        cdef int number
        cdef int started = 0
        self.opened = 0
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        # Subscribers have the higher numbers.
        for number in range(self.clients_count - 1, -1, -1):
            self.open_client(number)
            started += 1
            while started - self.opened >= OPENING_MAX:
                self.connect_pass(deadline)
        while self.opened < self.clients_count:
            self.connect_pass(deadline)

    cdef int connect_pass(self, deadline) except -1:
        if time.monotonic() > deadline:
            raise LoadError(f"{self.clients_count - self.opened} of {self.clients_count} clients are not connected in time")
        self.turn_once(SLEEP_MAX_MS)
        if self.gone:
            raise LoadError("the broker closed a connection before the run")
        return 0

    cdef int open_client(self, int number) except -1:
        cdef epoll_event event
        cdef Client* client = &self.clients[number]
        connection = socket.create_connection(self.address, CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        client.fd = connection.detach()
        client.state = CONNECTING
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>number
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, client.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return self.put_bytes(number, wire.connect(f"perf-{self.plan.run}-{number}", self.version))

    def close(self) -> None:
        """DISCONNECT and close for all."""
        cdef int number
        for number in range(self.clients_count):
            if self.clients[number].fd >= 0:
                if self.clients[number].state != CLOSED:
                    send(self.clients[number].fd, PyBytes_AS_STRING(wire.DISCONNECT), 2, MSG_NOSIGNAL | MSG_DONTWAIT)
                close(self.clients[number].fd)
                self.clients[number].fd = -1
                self.clients[number].state = CLOSED

    cdef int lose(self, int number) except -1:
        """The broker closed this one."""
        cdef Client* client = &self.clients[number]
        if client.state == CLOSED:
            return 0
        self.gone += 1
        client.state = CLOSED
        close(client.fd)
        client.fd = -1
        client.size = client.sent = 0
        if number < self.publishers:
            self.sources[number].gone = True
        return 0

    # --- the run --------------------------------------------------------------------------------------------------------------

    def run(self) -> dict:
        """Publishes all, waits for all, and says what came of it; see `results`. Raises OSError, LoadError."""
        cdef uint64_t until, settle = 0, stall = <uint64_t>(STALL_S * 1e9)
        cdef int number
        cpu = time.process_time()
        self.started_ns = self.now_ns = self.progress_ns = self.last_ns = monotonic_ns()
        if self.interval_ns:
            self.start_timer()
        until = self.started_ns + <uint64_t>(self.plan.seconds * 1e9)
        self.publishing = True
        for number in range(self.publishers):
            self.may_publish(number)
        while True:
            if self.publishing:
                self.publish_paced() if self.interval_ns else self.publish_ready()
                if self.now_ns >= until or self.published >= <uint64_t>self.quota * self.publishers:
                    self.publishing = False
            self.turn_once(0 if self.publishing and self.queue_size and not self.interval_ns else SLEEP_MAX_MS if not settle else 5)
            if not self.publishing and self.complete():
                settle = settle or self.now_ns + <uint64_t>(SETTLE_S * 1e9)
                if self.now_ns >= settle:
                    break
            elif self.complete():
                self.progress_ns = self.now_ns   # nothing is under way: that nothing comes is no stall
            elif self.now_ns - self.progress_ns > stall and not self.give_up():
                break
        return self.results(time.process_time() - cpu)

    cdef bint complete(self) noexcept:
        return self.unique >= self.published * self.receivers and (self.qos == 0 or self.acked >= self.published)

    cdef bint give_up(self) except -1:
        """Nothing moves any more: False if the run is over."""
        cdef Publisher* source
        cdef int number
        self.stalls += 1
        if not self.publishing or self.stalls >= STALLS_MAX:
            return False
        for number in range(self.publishers):
            source = &self.sources[number]
            source.delivered = <uint64_t>source.seq * self.receivers
            source.inflight = 0
            self.may_publish(number)
        self.progress_ns = self.now_ns
        return True

    def results(self, double own_cpu_s) -> dict:
        """Counts of messages, seconds from the first PUBLISH to the last delivery, latency."""
        cdef uint64_t duplicates = 0, disordered = 0
        cdef int number
        for number in range(self.subscribers):
            duplicates += self.trackers[number].duplicates
            disordered += self.trackers[number].disordered
        expected = self.published * self.receivers
        seconds = (self.last_ns - self.started_ns) / 1e9
        return {
            "published": self.published,
            "expected": expected,
            "delivered": self.delivered,
            "lost": expected - self.unique,
            "duplicates": duplicates,
            "disordered": disordered,
            "misrouted": self.misrouted,
            "refused": self.refused,
            "disconnected": self.gone,
            "stalls": self.stalls,
            "seconds": seconds,
            "delivered_per_s": self.delivered / seconds if seconds else 0.0,
            "latency": self.latency.summary(),
            "own_cpu_s": own_cpu_s,
        }

    cdef int start_timer(self) except -1:
        """Ticks when a message is due."""
        cdef epoll_event event
        cdef itimerspec ticks
        cdef uint64_t interval = max(self.interval_ns, <uint64_t>TICK_MIN_NS)
        cdef uint64_t first = self.started_ns + interval
        ticks.it_interval.tv_sec = interval // 1000000000
        ticks.it_interval.tv_nsec = interval % 1000000000
        ticks.it_value.tv_sec = first // 1000000000
        ticks.it_value.tv_nsec = first % 1000000000
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>TIMER
        if self.timer < 0 or timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &ticks, NULL) < 0 \
                or epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.timer, &event) < 0:
            raise OSError(errno, "timerfd")
        return 0

    # --- publishing -----------------------------------------------------------------------------------------------------------

    cdef bint has_room(self, int number) noexcept:
        cdef Publisher* source = &self.sources[number]
        return (source.seq < self.quota and not source.gone
                and <uint64_t>source.seq * self.receivers - source.delivered < <uint64_t>self.window * self.receivers
                and (self.qos == 0 or source.inflight < source.inflight_max)
                and self.clients[number].size - self.clients[number].sent < OUT_MAX)

    cdef void may_publish(self, int number) noexcept:
        """Something changed for this publisher."""
        cdef int tail
        if self.sources[number].queued or not self.has_room(number):
            return
        tail = self.queue_head + self.queue_size
        self.queue[tail if tail < self.publishers else tail - self.publishers] = number
        self.queue_size += 1
        self.sources[number].queued = True

    cdef int publish_ready(self) except -1:
        """Each publisher in the queue gets one turn."""
        cdef int turns = self.queue_size, number, i
        cdef uint64_t stamp = monotonic_ns()
        while turns:
            turns -= 1
            number = self.queue[self.queue_head]
            self.queue_head = self.queue_head + 1 if self.queue_head + 1 < self.publishers else 0
            self.queue_size -= 1
            self.sources[number].queued = False
            for i in range(<int>BURST):
                if not self.has_room(number):
                    break
                self.publish(number, stamp)
            self.may_publish(number)
        return 0

    cdef int publish_paced(self) except -1:
        """All that is due by now, publishers in turn; one without room makes the others wait, and latency tells of it."""
        cdef uint64_t due
        cdef int number
        self.now_ns = monotonic_ns()
        while True:
            due = self.started_ns + self.turn * self.interval_ns
            number = <int>(self.turn % <uint64_t>self.publishers)
            if due > self.now_ns:
                return 0
            if not self.has_room(number):
                if self.sources[number].gone or self.sources[number].seq >= self.quota:
                    self.publishing = False
                return 0                   # an acknowledgement or a delivery will wake us
            self.publish(number, due)
            self.turn += 1

    cdef int publish(self, int number, uint64_t stamp) except -1:
        cdef Publisher* source = &self.sources[number]
        cdef list heads = <list>self.heads[number]
        cdef bytes head = <bytes>heads[source.seq % self.topics]
        cdef size_t head_size = PyBytes_GET_SIZE(head)
        cdef uint32_t words[2]
        cdef size_t id_at
        cdef uint8_t* target = self.room(number, head_size + self.payload)
        memcpy(target, PyBytes_AS_STRING(head), head_size)
        if self.qos:
            source.packet_id = source.packet_id + 1 if source.packet_id < 65535 else 1
            id_at = head_size - (3 if self.version == 5 else 2)
            target[id_at] = source.packet_id >> 8
            target[id_at + 1] = source.packet_id & 0xFF
            source.inflight += 1
        words[0] = number
        words[1] = source.seq
        target += head_size
        memcpy(target, &stamp, 8)
        memcpy(target + 8, words, 8)
        memset(target + STAMP, 0x78, self.payload - STAMP)
        source.seq += 1
        self.published += 1
        return 0

    # --- out ------------------------------------------------------------------------------------------------------------------

    cdef uint8_t* room(self, int number, size_t size) except NULL:
        """Where to write the next `size` bytes for this client; they are sent at the end of the pass."""
        cdef Client* client = &self.clients[number]
        cdef uint8_t* grown
        cdef size_t at
        if client.size + size > client.capacity:
            grown = <uint8_t*>realloc(client.out, (client.size + size) * 2)
            if grown == NULL:
                raise MemoryError
            client.out = grown
            client.capacity = (client.size + size) * 2
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

    cdef int flush(self, int number) except -1:
        cdef Client* client = &self.clients[number]
        cdef epoll_event event
        cdef ssize_t done
        client.dirty = False
        if client.state == CLOSED or client.size == client.sent:
            return 0
        done = send(client.fd, client.out + client.sent, client.size - client.sent, MSG_NOSIGNAL | MSG_DONTWAIT)
        if done < 0:
            if errno != EAGAIN and errno != EINTR:
                return self.lose(number)
            done = 0
        client.sent += done
        if client.sent == client.size:
            client.sent = client.size = 0
        if (client.size != 0) != client.writable_wanted:
            client.writable_wanted = client.size != 0
            event.events = EPOLLIN | EPOLLOUT if client.writable_wanted else EPOLLIN
            event.data.u64 = <uint64_t>number
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, client.fd, &event)
            if number < self.publishers and not client.writable_wanted and self.publishing:
                self.may_publish(number)
        return 0

    # --- in -------------------------------------------------------------------------------------------------------------------

    cdef int turn_once(self, int timeout_ms) except -1:
        """Flush, wait, read: one pass without its publishing."""
        cdef epoll_event events[EVENTS]
        cdef uint64_t ticks
        cdef int count, i, number
        for i in range(self.dirty_count):
            self.flush(self.dirty[i])
        self.dirty_count = 0
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout_ms)
        if count < 0 and errno != EINTR:
            raise OSError(errno, "epoll_wait")
        PyErr_CheckSignals()
        self.now_ns = monotonic_ns()
        for i in range(count):
            number = <int>events[i].data.u64
            if number == TIMER:
                read(self.timer, &ticks, sizeof(ticks))   # a timer that is not read does not tick on
                continue
            if events[i].events & EPOLLOUT:
                self.room(number, 0)       # only marks it for the flush
            if events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) and self.clients[number].state != CLOSED:
                self.read_some(number)
        return 0

    cdef int read_some(self, int number) except -1:
        cdef Client* client = &self.clients[number]
        cdef uint8_t* grown
        cdef size_t have = client.rest_size, left
        cdef ssize_t got
        memcpy(self.buffer, client.rest, have)
        got = recv(client.fd, self.buffer + have, READ_BYTES, MSG_DONTWAIT)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            return self.lose(number)
        self.now_ns = monotonic_ns()
        have += got
        left = have - self.take_packets(number, self.buffer, have)
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
        """Bytes of whole packets that were taken."""
        cdef size_t at = 0, header, length
        cdef int shift
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
            if data[at] & 0xF0 == 0x30:
                self.take_message(number, data[at], data + at + header, length)
            else:
                self.take_answer(number, data[at], data + at + header, length)
            at += header + length
        return at

    cdef int take_message(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        cdef int subscriber = number - self.publishers
        cdef uint8_t qos = (first >> 1) & 3
        cdef size_t at = 2, properties = 0
        cdef int shift = 0
        cdef uint64_t stamp
        cdef uint32_t words[2]
        if size >= 2:
            at += (<size_t>body[0] << 8) | body[1]
        if qos and at + 2 <= size:
            self.put_ack(number, 0x40 if qos == 1 else 0x50, body + at)
            at += 2
        if self.version == 5:
            while at < size:
                properties |= <size_t>(body[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not body[at - 1] & 0x80 or shift > 21:
                    break
            at += properties
        self.delivered += 1
        if at + STAMP > size or subscriber < 0:
            self.misrouted += 1
            return 0
        memcpy(&stamp, body + at, 8)
        memcpy(words, body + at + 8, 8)
        if words[0] != <uint32_t>(subscriber % self.publishers) or words[1] >= self.sources[words[0]].seq:
            self.misrouted += 1
            return 0
        self.latency.add(self.now_ns - stamp if self.now_ns > stamp else 0)
        self.last_ns = self.progress_ns = self.now_ns
        if tracker_see(&self.trackers[subscriber], words[1]):
            self.unique += 1
            self.sources[words[0]].delivered += 1
            if self.publishing:
                self.may_publish(<int>words[0])
        return 0

    cdef int take_answer(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        cdef uint8_t kind = first >> 4
        cdef bint failed = self.version == 5 and size >= 3 and body[2] >= 0x80
        if size < 2:
            if kind == 14:
                raise LoadError("the broker sent DISCONNECT")
            return 0
        if kind == 4 or kind == 7 or kind == 5 and failed:
            self.acknowledged(number, failed)
        elif kind == 5:
            self.put_ack(number, 0x62, body)
        elif kind == 6:
            self.put_ack(number, 0x70, body)
        elif kind == 2:
            self.connected(number, PyBytes_FromStringAndSize(<const char*>body, size))
        elif kind == 9:
            if body[size - 1] >= 0x80:
                raise LoadError(f"SUBACK with reason code {body[size - 1]:#04x}")
            self.clients[number].state = READY
            self.opened += 1
        elif kind == 14:
            raise LoadError(f"the broker sent DISCONNECT with reason code {body[0]:#04x}")
        return 0

    cdef int acknowledged(self, int number, bint failed) except -1:
        cdef Publisher* source = &self.sources[number]
        if number >= self.publishers:
            return 0
        self.progress_ns = self.now_ns
        self.acked += 1
        self.refused += failed
        if source.inflight:
            source.inflight -= 1
        if self.publishing:
            self.may_publish(number)
        return 0

    cdef int connected(self, int number, bytes body) except -1:
        cdef Client* client = &self.clients[number]
        if body[1]:
            raise LoadError(f"CONNACK with return code {body[1]:#04x}")
        if number >= self.publishers:
            client.state = SUBSCRIBING
            return self.put_bytes(number, wire.subscribe(self.plan.filter_of(number - self.publishers), self.qos, self.version))
        if self.version == 5:
            # [MQTT-3.3.4-7]. The length before the properties has one byte, or two if they are long.
            properties = body[4:] if body[2] & 0x80 else body[3:]
            self.sources[number].inflight_max = min(self.sources[number].inflight_max, <uint32_t>wire.receive_maximum(properties))
        client.state = READY
        self.opened += 1
        return 0
