"""The event loop of a worker; see loop.pxd.

Everything is bounded per pass: bytes read from one socket, records taken from one ring, sockets accepted, retained messages
replayed. Nothing in here waits for another process: a publish that a full ring has no room for parks its connection, and the loop
goes on draining its own rings, so two workers with full rings cannot block each other.
"""

import os
import signal
import time
from contextlib import suppress
from threading import Thread

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strerror

from acceptor.handover cimport Handover, receive
from shardbroker.journal.writer cimport Writer
from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.mqtt.spec cimport PROTOCOL_ERROR
from shardbroker.mqtt.tls cimport RECORD_MAX
from shardbroker.pubsub.message cimport Message
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.recorder cimport Recorder
from shardbroker.worker.channel cimport CLOSING, CONNECTED, SIDE_CLIENT, SIDE_NETWORK, SIDE_SERVER
from shardbroker.worker.disk cimport DISK_AGAIN, DISK_LIMIT, DISK_WITHOUT, DiskWatch
from shardbroker.worker.gate cimport Gate, Guard
from shardbroker.worker.held cimport Held, hold_for_group
from shardbroker.worker.outlets cimport RingOutlet, RingOutlets
from shardbroker.worker.reporter cimport EVENT_DELAY_MS, Reporter
from shm.counters cimport (
    BYTES_RECEIVED, BYTES_SENT, CLIENT_CLOSED_TLS, CLIENT_CLOSED_WEBSOCKET, DELAYED_COUNT, JOURNAL_WRITE_MS, MESSAGES_RECEIVED,
    OVERLOAD_OUTPUT_STOPPED, OVERLOAD_PUBLISHERS_PAUSED, OVERLOAD_RATE_PAUSED, PACKETS_PUBLISH_QUOTA_EXCEEDED,
    RETAINED_ERRNO_COUNT, CounterSlot,
)
from shm.address cimport address_text
from shm.epochs cimport WILDCARD_BUCKET, Epochs
from shm.posix cimport (
    CLOCK_MONOTONIC, CLOCK_REALTIME, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN,
    EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, clock_gettime, close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, read,
    recv, send, shutdown, timespec,
)
from shm.records cimport (
    FLAG_NOTED, FLAG_ORIGINATE, FLAG_QOS, FLAG_RETAIN, FLAG_SPILLED, RECORD_COMMAND, RECORD_PAUSE, RECORD_SHARED, check_record,
)

from shardbroker.journal import apply_retention, set_recovery_start
from shardbroker.mqtt.tls import TlsRecordError
from shardbroker.mqtt.websocket import WebSocketError
from shardbroker.worker.access import Access
from shardbroker.worker.topics import AutoTopics, Rewriting
from shm.counters import ProcessState
from shm.destinations import worker_destination
from shm.spill import read_spilled

__all__ = ["Connection", "Loop"]

cdef enum:
    KEPT_BYTES = 268435456                 # free memory at the end of the heap that a busy worker keeps, bytes
    MAPPED_BYTES = 16777216                # an allocation of this size is mapped on its own, bytes
    KEPT_SHARE = 8                         # of the memory limit, if that is less
    CACHE_SHARE = 16                       # of the memory limit, for each generation of the topic cache, if that is less
    FIRST_VISITS = 128                     # of the route table at once: 0.3 ms. Most topics need less than twenty
    TRIM_MS = 10000                        # least time between two times that free memory is given back
    READ_BYTES = 262144                    # most that is read from one connection in a pass, bytes
    READ_LEAST = 2048                      # however many are ready
    LOGIN_READ_BYTES = 16384               # most before CONNACK: what follows the CONNECT is kept until the verdict
    PASS_BUDGET = 8192                     # units of work shared out among those who are ready: about 2 ms
    TURN_LEAST = 32                        # units that everybody gets
    UNIT_BYTES = 64                        # bytes that are read for each unit: a small PUBLISH
    STEP_US = 1000                         # for retained messages in one pass, hand-overs of one acceptor, verdicts; µs
    REST_STEP = 4096                       # least growth of an incomplete packet's buffer, bytes
    EVENTS = 1024                          # epoll events a pass
    ACCEPTS = 256                          # hand-overs taken from one acceptor a pass
    RECORDS = 4096                         # ring records taken from one lane a pass
    FLUSH_ROUNDS = 4                       # times a socket is written to in a pass, while its session has more for it
    TIMER_FAILURES = 1000                  # after which timers that are left wait for the next pass

TICK_MS = 64
"""Longest wait while timers run: the grain of the wheel."""

IDLE_MS = 1000
"""Longest wait while nothing is due."""

DRAIN_STEP_MS = 10
"""Longest wait between two looks at who is sent away next."""
LINGER_MS = 1000
"""How long a connection that we ended may take to take our last packet: closing at once could reset it away."""
REST_SHARE = 0.5
"""Of `process.drain_timeout`, for what other workers still send when the clients here are gone."""

HOLD_MS = 20
"""How long a pass waits while the journal is behind: it tries again at once when a client writes, and else after this."""

CYCLE_BYTES_A_PASS = 1 << 16
"""Bytes of sessions written anew in a pass."""

RECOVERY_SYNC_S = 60
"""How long the disk may take for what a recovery has written."""

RATE_MS = 10
"""How often it is seen whether clients that have sent too much may go on: the grain of their pauses."""

LOOK_MS = 20
"""How often memory is measured: what publishers can add to queues in this time must be less than a tenth of the limit."""

PAUSE_MS = 1500
"""How long a greedy publisher is not read after the last word about it."""


cdef extern from "<malloc.h>" nogil:
    int mallopt(int parameter, int value)
    int malloc_trim(size_t keep)
    int M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


cdef class Connection(Channel):
    """A channel and its socket."""

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        free(self.rest)
        if self.fd >= 0:
            close(self.fd)

    cdef void touch(self) noexcept:
        if not self.dirty:
            self.dirty = True
            self.loop.dirty.append(self)

    cdef int on_readable(self) except -1:
        """One recv: into the loop's buffer, or behind what is there of an incomplete packet."""
        cdef uint8_t* target = self.loop.buffer
        cdef size_t room = self.loop.turn_bytes
        cdef size_t before = 0
        cdef ssize_t got
        if self.busy or self.must_not_add():
            return 0                       # its turn comes with what it has sent before, or when the disk is well
        if self.layers is not None:
            before = self.layers.before()
        if self.rest_size and not self.lingering:
            # Grows with what has arrived, never with what was announced.
            room = min(max(self.rest_size, <size_t>REST_STEP), <size_t>READ_BYTES)
            self.grow_rest(self.rest_size + before + room)
            target = self.rest + self.rest_size
        if self.state != CONNECTED:
            room = min(room, <size_t>LOGIN_READ_BYTES)
        got = recv(self.fd, target + before, room, MSG_DONTWAIT)
        if got < 0:
            if errno == EAGAIN or errno == EINTR:
                return 0
            self.lost((<bytes>strerror(errno)).decode())
            return self.finish()
        if got == 0:
            if not self.lingering:
                self.lost("closed by the peer")
            return self.finish()
        if self.lingering or self.state == CLOSING:
            return 0                       # what comes after the end is not read
        self.core.gauge(BYTES_RECEIVED, got)
        if self.layers is not None:
            return self.take_layered(target, before + <size_t>got, False)
        return self.take_received(target, <size_t>got)

    cdef int take_received(self, uint8_t* target, size_t got) except -1:
        """Bytes in the loop's buffer, or behind what is there of an incomplete packet."""
        if self.rates is not None:
            self.keep_rate(0, got)
        if self.rest_size:
            self.rest_size += got
            return self.take_rest()
        return self.take(target, got)

    cdef int keep_rate(self, uint64_t messages, uint64_t bytes) except -1:
        """Whoever sends faster than its listener allows is not read for a while; what was read is dealt with."""
        cdef uint64_t wait_ms = self.rates.add(self.core.now_ms, messages, bytes)
        return self.slow_down(wait_ms) if wait_ms else 0

    cdef int slow_down(self, uint64_t wait_ms) except -1:
        if self.state != CLOSING:
            self.rates.stopped_until_ms = max(self.rates.stopped_until_ms, self.core.now_ms + wait_ms)
            if not self.stops & STOP_RATE:
                self.core.count(OVERLOAD_RATE_PAUSED)
                self.paused = True
                self.stop_reading(STOP_RATE)
                self.loop.limited.append(self)
        return 0

    cdef bint over_quota(self, PublishView* view) except -1:
        """Who can be told so is refused what is too much [0x97]; others are read more slowly, so that nothing gets lost unnoticed."""
        cdef uint64_t now_ns = self.loop.pass_start_us * 1000
        cdef SharedRates shared = self.rates.shared
        cdef uint64_t wait_ns = shared.over_ns(now_ns)
        if wait_ns and self.version == 5 and view.qos and not view.dup:
            self.core.count(PACKETS_PUBLISH_QUOTA_EXCEEDED)
            return True
        shared.add(now_ns, <uint64_t>view.topic_size + view.properties_size + view.payload_size)
        if wait_ns:
            self.slow_down(wait_ns // 1000000 + 1)
        return False

    cdef int take_layered(self, uint8_t* target, size_t got, bint opened) except -1:
        """Likewise, as it came from the socket; or `opened`, which the acceptor has done."""
        cdef ssize_t mqtt
        try:
            mqtt = self.layers.receive(target, got, opened)
        except TlsRecordError as error:
            self.core.count(CLIENT_CLOSED_TLS)
            self.out.clear()
            return self.close(PROTOCOL_ERROR, SIDE_NETWORK, f"TLS: {error}", True)
        except WebSocketError as error:
            self.core.count(CLIENT_CLOSED_WEBSOCKET)
            return self.close(PROTOCOL_ERROR, SIDE_SERVER, f"WebSocket: {error}", True)
        if self.layers.waiting():
            self.touch()
        if mqtt:
            self.take_received(target, <size_t>mqtt)
        return self.end_layers()

    cdef int end_layers(self) except -1:
        """After a Close frame or close_notify nothing comes but the end; packets before it are dealt with first."""
        cdef str end
        if self.state != CLOSING and not self.busy and not self.parked and self.layers is not None:
            end = self.layers.end()
            if end is not None:
                self.out.clear()
                self.lost(end)
        return 0

    cdef int note_extra(self, dict extra) except -1:
        """What its listener knows of this connection (acceptor/opening.py)."""
        if "tls" in extra or "websocket" in extra:
            self.layers = Layers(extra)
        if "rates" in extra:
            self.rates = Rates(*extra["rates"])
        return 0

    cdef int take(self, const uint8_t* data, size_t size) except -1:
        cdef size_t used = self.feed_counted(data, size)
        if self.state != CLOSING and used < size:
            self.keep_rest(data + used, size - used)
        return self.after_feed(used < size)

    cdef int take_rest(self) except -1:
        cdef size_t used = self.feed_counted(self.rest, self.rest_size)
        self.rest_size -= used
        if self.state == CLOSING or self.rest_size == 0:
            free(self.rest)
            self.rest = NULL
            self.rest_size = 0
            self.rest_capacity = 0
        elif used:
            memmove(self.rest, self.rest + used, self.rest_size)
        return self.after_feed(self.rest_size > 0)

    cdef size_t feed_counted(self, const uint8_t* data, size_t size) except? 0:
        cdef uint64_t before
        cdef size_t used
        if self.rates is None:
            return self.feed(data, size)
        before = self.core.counters[<int>MESSAGES_RECEIVED]
        used = self.feed(data, size)
        self.keep_rate(self.core.counters[<int>MESSAGES_RECEIVED] - before, 0)
        return used

    cdef int keep_rest(self, const uint8_t* data, size_t size) except -1:
        self.grow_rest(size)
        memcpy(self.rest, data, size)
        self.rest_size = size
        return 0

    cdef int grow_rest(self, size_t size) except -1:
        cdef uint8_t* larger
        if size > self.rest_capacity:
            larger = <uint8_t*>realloc(self.rest, size)
            if larger == NULL:
                raise MemoryError(f"no memory for a packet of {size} bytes")
            self.rest = larger
            self.rest_capacity = size
        return 0

    cdef int after_feed(self, bint more) except -1:
        """Whoever could not be served to the end goes to the list that it is resumed from."""
        if self.state == CLOSING:
            return 0
        if self.parked:
            # A ring is full: this publisher is not read until there is room.
            if not self.stops & STOP_RING:
                self.loop.parked.append(self)
                self.stop_reading(STOP_RING)
        elif self.subscribing is not None or (more and self.core.budget <= 0):
            if not self.busy:
                self.busy = True
                self.loop.busy.append(self)
        return 0

    cdef int go_on(self) except -1:
        """Continues with what was read before, as far as this turn's budget goes."""
        if self.fd < 0 or self.state == CLOSING or self.stops or self.must_not_add():
            return 0
        self.core.budget = self.loop.turn_budget
        self.parked = False
        self.take_rest()
        return self.end_layers()

    cdef bint must_not_add(self) except -1:
        """Whether it is not read because the disk takes nothing of what it says."""
        if not self.core.disk_full or self.session is None or not self.session.logged or self.state == CLOSING:
            return False
        if not self.stops & STOP_DISK:
            self.paused = True
            self.stop_reading(STOP_DISK)
            self.loop.unread.append(self)
        return True

    cdef int stop_reading(self, uint8_t why) except -1:
        self.stops |= why
        return self.want(self.interest & ~<uint32_t>EPOLLIN)

    cdef int read_again(self, uint8_t why) except -1:
        """This reason is gone. What was read before comes first, in the next pass."""
        if not self.stops & why:
            return 0
        self.stops &= ~why
        if self.stops or self.fd < 0 or self.state == CLOSING:
            return 0
        if not self.busy:
            self.busy = True
            self.loop.busy.append(self)
        return self.want(self.interest | <uint32_t>EPOLLIN)

    cdef int hang(self) except -1:
        """The peer is gone while we do not read it. epoll is asked again when its turn comes."""
        cdef epoll_event event
        if not self.hung:
            self.hung = True
            epoll_ctl(self.loop.epoll, EPOLL_CTL_DEL, self.fd, &event)
            self.touch()                   # output that is left shows the error, and ends it
        return 0

    cdef int hold(self) except -1:
        Channel.hold(self)
        return self.stop_reading(STOP_ACCESS)

    cdef int resume(self) except -1:
        Channel.resume(self)
        return self.read_again(STOP_ACCESS)

    cdef dict known_before(self):
        return self.extra

    cdef str listener_name(self):
        return self.listener

    cdef int want(self, uint32_t interest) except -1:
        cdef epoll_event event
        if (interest == self.interest and not self.hung) or self.fd < 0:
            return 0
        if self.hung and not interest & <uint32_t>EPOLLIN:
            self.interest = interest
            return 0
        event.events = interest
        event.data.fd = self.fd
        if epoll_ctl(self.loop.epoll, EPOLL_CTL_ADD if self.hung else EPOLL_CTL_MOD, self.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self.interest = interest
        self.hung = False
        return 0

    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1:
        self.promised = True
        if self.guard is not None:
            self.guard.lanes |= self.loop.outlets.forwarded_to
            self.loop.outlets.forwarded_to = 0
        return Channel.ack(self, first, packet_id, reason_code, counter)

    cdef ssize_t transmit(self, size_t size) noexcept:
        """As send(2), of the first `size` bytes in `out`. A WebSocket's control frames and what TLS has kept go along."""
        if self.layers is not None:
            return self.layers.transmit(self.fd, self.out.data + self.out.start, size)
        return send(self.fd, self.out.data + self.out.start, size, MSG_NOSIGNAL | MSG_DONTWAIT)

    cdef inline bint answering(self) noexcept:
        """Something waits to be sent that is no MQTT."""
        return self.layers is not None and self.layers.waiting()

    cdef int flush(self) except -1:
        cdef ssize_t sent
        cdef Buffer out = self.out
        cdef int attempt
        cdef bint was_congested
        cdef size_t free = <size_t>-1
        if self.fd < 0:
            return 0
        if self.guard is not None:
            free = self.loop.gate.may_send(self.guard, out.pending(), self.promised or (self.session is not None and self.session.logged))
        elif self.loop.holding and self.loop.must_wait(self):
            return 0
        for attempt in range(FLUSH_ROUNDS):
            if (out.pending() == 0 or free == 0) and not self.answering():
                break
            was_congested = self.congested()
            sent = self.transmit(min(out.pending(), free))
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    break
                out.clear()
                self.lost((<bytes>strerror(errno)).decode())
                return self.finish()
            self.core.gauge(BYTES_SENT, sent)
            out.consume(<size_t>sent)
            if self.guard is not None:
                self.guard.sent += <size_t>sent
                free -= <size_t>sent
            if self.session is not None and self.session.link is self and (was_congested or self.session.queue is not None):
                self.session.pump()
                if self.session is not None and self.session.logged:
                    break                  # what was written just now is not in the journal yet
        if self.stops & STOP_OUTPUT:
            if out.pending() <= self.core.max_output_bytes:
                self.read_again(STOP_OUTPUT)
        elif out.pending() > 2 * <size_t>self.core.max_output_bytes and self.state != CLOSING:
            # Deliveries stop at half of that, so these are answers: whoever takes none gets no more.
            self.core.count(OVERLOAD_OUTPUT_STOPPED)
            self.stop_reading(STOP_OUTPUT)
        if out.pending() == 0:
            self.promised = False
        elif self.dirty:
            return 0                       # once more in this pass
        if out.pending() and free == 0 and not self.answering():
            return self.want(self.interest & ~<uint32_t>EPOLLOUT)      # the gate says when
        if out.pending() or self.answering():
            return self.want(self.interest | EPOLLOUT)
        if self.state == CLOSING:
            return self.finish_sending()
        return self.want(self.interest & ~<uint32_t>EPOLLOUT)

    cdef bint relieve(self) noexcept:
        cdef ssize_t sent
        if self.fd < 0 or self.interest & <uint32_t>EPOLLOUT or (self.guard is not None and self.guard.cleared != self.guard.marked):
            return False                   # the kernel has said that it takes no more, or the gate that it must not
        sent = self.transmit(self.out.pending())
        if sent > 0:
            self.core.gauge(BYTES_SENT, sent)
            self.out.consume(<size_t>sent)
            if self.guard is not None:
                self.guard.sent += <size_t>sent
                self.guard.cleared = self.guard.marked = max(self.guard.marked, self.guard.sent)
        return not self.congested()

    cdef int finish_sending(self) except -1:
        """All is out. A client that said goodbye is gone; one that we sent away gets the time to read why."""
        if self.lingering:
            return 0
        if self.layers is not None and self.layers.close(self.ended_with):
            return self.flush()
        if self.ended_by == SIDE_CLIENT or self.version == 0:
            return self.finish()
        self.lingering = True
        self.stops = 0
        shutdown(self.fd, SHUT_WR)
        self.want(EPOLLIN)
        self.core.timers.arm(self, self.core.now_ms + LINGER_MS)
        return 0

    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1:
        if not self.closed:
            self.ended_by = side
            self.ended_with = reason_code
            Channel.close(self, reason_code, side, detail, keep_will)
            # Unsent output of a peer that reads nothing must not keep the socket for ever.
            self.core.timers.arm(self, self.core.now_ms + LINGER_MS)
        return 0

    cdef int expire(self, uint64_t now_ms) except -1:
        if self.state == CLOSING:
            return self.finish()
        return Channel.expire(self, now_ms)

    cdef int finish(self) except -1:
        """Closes the socket. Nothing of this connection is left in the loop."""
        if self.fd < 0:
            return 0
        self.core.timers.disarm(self)
        self.loop.by_fd[self.fd] = None
        self.loop.sockets[self.listener_number].balance -= 1
        self.loop.sockets[self.listener_number].here -= 1
        close(self.fd)                     # the only reference to the open file, so epoll forgets it too
        self.fd = -1
        if self.guard is not None:
            self.guard.link = None
            self.guard = None
        self.release()
        return 0

    cdef int broken(self, object error) except -1:
        cdef bint was_closed = self.closed
        try:
            Channel.broken(self, error)
        except Exception as again:
            self.loop.log_failure(f"connection closed peer={address_text(&self.peer)!r}", again)
            was_closed = True
        return self.finish() if was_closed else 0      # there is no other way to end it

    cdef void release(self) noexcept:
        free(self.rest)
        self.rest = NULL
        self.rest_size = 0
        self.rest_capacity = 0
        self.out.clear()
        self.layers = None
        self.rates = None
        self.session = None
        self.access = None                 # it refers to us, and nobody collects cycles here
        self.verdicts = None
        self.extra = None
        self.aliases_in = None
        self.aliases_out = None


cdef class Loop(Shard):
    """topology: shm.topology.Topology; the rest are the shared parts, opened in this process. number: of this worker."""

    def __init__(self, topology, int number, counters, routes, retained, Epochs epochs, registry, Inbox inbox, MemoryWatch memory):
        cdef timespec steady, wall
        clock_gettime(CLOCK_MONOTONIC, &steady)
        clock_gettime(CLOCK_REALTIME, &wall)
        self.clock_offset_ms = (wall.tv_sec - steady.tv_sec) * 1000 + (wall.tv_nsec - steady.tv_nsec) // 1000000
        Shard.__init__(self, topology.settings, wall.tv_sec * 1000 + wall.tv_nsec // 1000000, counters.slot(number), routes, retained, epochs,
                       worker_destination(number), topology.node_id)
        self.topology = topology
        self.number = number
        self.drained = []
        self.spent = []
        self.spill_source = topology.spill_dir
        self.capture = [filter.encode() for filter in topology.settings.journal.capture]
        self.change_topics(topology.settings)
        self.retention = topology.settings.journal.retention
        self.cycle_bytes = self.cycle_due_bytes = topology.settings.journal.cycle_bytes
        self.pass_times = counters.histogram(number, "pass_us")
        self.hop_times = counters.histogram(number, "ring.hop_us")
        self.inbox = inbox
        self.outlets = self.rings = RingOutlets(self, topology, number)
        self.reporter = Reporter(self, self.rings, counters, epochs, registry, self.sessions)
        self.arrivals = {}
        self.incoming = Publication.__new__(Publication)
        self.by_fd = []
        self.dirty = []
        self.parked = []
        self.busy = []
        self.paused = []
        self.commands = []
        self.answers = []
        self.unread = []
        self.disk = DiskWatch(topology.settings.durability, counters.slot(number))
        self.rechecking = []
        self.access_fd = -1
        self.limited = []
        self.quotas = Quotas(counters, topology.settings.mqtt.limiter)
        self.memory = memory
        if memory.mark:
            self.cache.weight_limit = min(self.cache.weight_limit, memory.mark // (CACHE_SHARE * topology.workers))
        self.lane_lookups = {}
        self.share_out(1)
        self.counters_segment = counters
        self.sockets = (<CounterSlot>self.counters_owner).sockets
        self.handovers = {}
        self.buffer = <uint8_t*>malloc(READ_BYTES + RECORD_MAX)   # a TLS record that was cut short goes in front
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.buffer == NULL or self.epoll < 0:
            raise OSError(errno, "cannot set up the event loop")
        self.listen_to(self.rings.doorbells[number], EPOLLIN)

    def __dealloc__(self):
        free(self.buffer)
        if self.epoll >= 0:
            close(self.epoll)

    cdef int listen_to(self, int fd, uint32_t events) except -1:
        cdef epoll_event event
        event.events = events
        event.data.fd = fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, f"epoll_ctl for descriptor {fd}")
        return 0

    cdef uint64_t read_clock(self) noexcept:
        """Sets now_ms; returns CLOCK_MONOTONIC in µs."""
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.now_ms = <uint64_t>(now.tv_sec * 1000 + now.tv_nsec // 1000000 + self.clock_offset_ms)
        return <uint64_t>(now.tv_sec * 1000000 + now.tv_nsec // 1000)

    # --- the pass -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until `draining` is set, then sends everybody away and returns."""
        cdef int timeout_ms
        # Output buffers come and go with every pass: a heap that shrinks in between spends a third of a fan-out on page faults.
        mallopt(M_TRIM_THRESHOLD, <int>min(<uint64_t>KEPT_BYTES, self.memory.mark // (KEPT_SHARE * self.topology.workers) or <uint64_t>KEPT_BYTES))
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        while not self.draining:
            if not self.serving and self.counters_segment.serving:
                self.serve()
            timeout_ms = TICK_MS if self.timers.armed or self.reporter.changes else IDLE_MS
            if self.route_changes and self.routes_due_ms < self.now_ms + <uint64_t>timeout_ms:
                timeout_ms = <int>(self.routes_due_ms - self.now_ms) if self.routes_due_ms > self.now_ms else 0
            if self.reporter.events:
                timeout_ms = min(timeout_ms, <int>EVENT_DELAY_MS)
            if self.limited:
                timeout_ms = min(timeout_ms, RATE_MS)
            if self.dirty or self.busy or self.lookups or self.leaving or self.replays_moved or self.commands or self.late or (
                    self.telling and self.announcer.any_noted):
                timeout_ms = 0
            elif self.replaying or self.retry or self.parked or self.cycle_left or self.answers or not self.serving:
                timeout_ms = 1
            if self.holding:
                timeout_ms = HOLD_MS
            self.one_pass(timeout_ms)
        self.drain()

    def serve(self) -> None:
        """Every worker knows its sessions again, so no message can miss one of them: clients may come."""
        self.serving = True
        self.first_visits = FIRST_VISITS
        for ends in self.topology.handover:
            self.handovers[ends[self.number][1]] = True
            self.listen_to(ends[self.number][1], EPOLLIN)
        self.read_clock()
        if self.started is not None:
            self.started()
            self.started = None

    def drain(self) -> None:
        """DISCONNECT 0x8B or 0x9C to every client, spread over `process.drain_time`, and time for them to take it.

        Those who still wait for theirs are served as ever; who comes in the meantime was on the way before the acceptors stopped,
        and is sent away with the last.
        """
        cdef Connection connection
        cdef Py_ssize_t told = 0, due
        self.read_clock()
        process = self.topology.settings.process
        reference = process.drain_server_reference.encode()
        leaving = [one for one in self.by_fd if one is not None]
        cdef uint64_t began = self.now_ms, spread_ms = <uint64_t>(process.drain_time * 1000)
        while told < len(leaving):
            due = len(leaving)
            if self.now_ms < began + spread_ms:
                due = min(due, <Py_ssize_t>(<uint64_t>len(leaving) * (self.now_ms - began) // spread_ms) + 1)
            for connection in leaving[told:due]:
                self.send_away(connection, reference)
            told = due
            self.one_pass(DRAIN_STEP_MS)
        self.one_pass(0)                   # takes what acceptors have handed over last
        deadline = self.now_ms + LINGER_MS
        while self.now_ms < deadline and any(one is not None for one in self.by_fd):
            for one in self.by_fd:
                if one is not None:
                    self.send_away(<Connection>one, reference)
            self.one_pass(DRAIN_STEP_MS)
        self.take_the_rest(began + spread_ms + <uint64_t>(process.drain_timeout * 1000 * REST_SHARE))
        while self.reporter.changes:
            self.reporter.flush_registry()
        if self.gate is not None:
            if self.gate.all_arrived():
                self.recorder.arrived()    # the next start need not ask the others
            if self.gate.retained is not None:
                self.gate.retained.close()
        if self.recorder is not None:
            self.recorder.writer.close(LINGER_MS / 1000)

    cdef int send_away(self, Connection connection, bytes reference) except -1:
        try:
            if connection.fd >= 0:
                connection.shut_down(reference)
        except Exception as error:
            connection.broken(error)
        return 0

    cdef int take_the_rest(self, uint64_t deadline_ms) except -1:
        """What was acknowledged by workers that still have clients is for sessions here, too: it is in the journal before this one ends.

        It ends when all say that they have nothing more of their own, and nothing moves in any ring between them: what one takes it may
        pass on, to a member of a group or as a will. Twice the same rings, empty, have been empty at one moment.
        Rings that cannot be emptied in time are kept for the next start (supervisor.layout.tear_down).
        """
        cdef list inboxes = [Inbox.attach(self.topology.inbox_name(number)) for number in range(self.topology.workers)]
        before = None
        while self.now_ms < deadline_ms:
            self.one_pass(DRAIN_STEP_MS)
            if self.retry or self.holding or (self.gate is not None and not self.gate.is_safe()):
                continue
            self.counters_segment.set_state(self.number, ProcessState.DRAINED)
            now = self.rings_at_rest(inboxes)
            if now is not None and now == before:
                break
            before = now
        return 0

    cdef list rings_at_rest(self, list inboxes):
        """Where the rings of workers that are there stand. None if something lies in one, or somebody has still something to say."""
        cdef list positions = []
        synced = self.gate is not None
        for number, inbox in enumerate(inboxes):
            state = self.counters_segment.state(number)
            if state == ProcessState.DOWN:
                continue
            if state != ProcessState.DRAINED:
                return None
            for lane in inbox.lanes[:len(inboxes)]:
                position = lane.rest_at(synced)
                if position < 0:
                    return None
                positions.append(position)
        return positions

    cdef int one_pass(self, int timeout_ms) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count
        if timeout_ms and self.inbox is not None and not self.holding:
            self.inbox.sleep()
            if self.lanes_waiting():
                timeout_ms = 0
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout_ms)
        if self.inbox is not None:
            self.inbox.awake()
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            count = 0
        if count:
            self.trim_due = True
        elif self.trim_due and timeout_ms >= TICK_MS and self.now_ms >= self.trim_at_ms:
            self.trim_due = False
            self.trim_at_ms = self.now_ms + TRIM_MS
            malloc_trim(0)                 # nothing to do: what a burst has left goes back
        PyErr_CheckSignals()
        self.pass_start_us = self.rings.pass_us = self.read_clock()
        self.share_out(count)
        if self.access_fd >= 0 and (self.late or self.counters_segment.access_generation_c() != self.access_seen):
            self.look_at_access()          # a ban holds for whoever comes next, however long nobody came
        # Whoever has waited longest comes first.
        if self.lookups:
            self.look_up_some()
        if self.parked:
            self.resume_parked()
        if self.busy:
            self.resume_busy()
        if self.limited:
            self.resume_limited()
        self.serve_events(events, count)
        self.drain_lanes()
        self.run_timers()
        if self.retry and self.serving:
            self.run_retries()
        if self.leaving:
            try:
                self.leave_some()
            except Exception as error:
                self.log_failure("subscription not removed", error)
        self.commit(False)
        self.replays_moved = False
        if self.replaying and (self.gate is None or not self.gate.is_retaining()):
            self.step_start_us = self.read_clock()
            self.replay_some()
        if self.cycle_left is not None:
            try:
                self.take_snapshots()
            except Exception as error:     # nothing of the journal may be forgotten: the next cycle tries again
                self.cycle_left = None
                self.cycle_due_bytes = self.recorder.writer.bytes_written + self.cycle_bytes
                self.log_failure("journal cycle given up", error)
        self.settle()
        self.send_all()
        self.release_lanes()
        self.flush_sockets()
        if self.commands or self.answers:
            self.carry_out_commands()
        if self.route_changes or self.retained_changes or self.rings.touched:
            self.commit(False)             # what a lost connection left behind while flushing
            self.settle()
            self.send_all()
        try:
            self.look_around()
        except Exception as error:
            self.log_failure("registry, memory or access not looked at", error)
        self.pass_times.record(self.read_clock() - self.pass_start_us)
        return 0

    cdef int send_all(self) except -1:
        """Other processes see what this pass has written for them."""
        self.rings.commit()
        return self.reporter.commit()

    cdef int serve_events(self, epoll_event* events, int count) except -1:
        """Deals with what epoll has reported, each by itself."""
        cdef int i = 0, fd
        cdef uint64_t rung
        cdef Connection connection = None
        while i < count:
            try:                           # around the loop: it costs nothing where all goes well
                while i < count:
                    fd = events[i].data.fd
                    i += 1
                    connection = <Connection>self.by_fd[fd] if fd < len(self.by_fd) else None
                    if connection is None:
                        if fd == self.rings.doorbells[self.number]:
                            read(fd, &rung, sizeof(rung))
                        elif fd == self.access_fd:
                            self.take_verdicts()
                        elif fd in self.handovers:
                            self.accept_some(fd)
                        continue
                    if events[i - 1].events & <uint32_t>(EPOLLIN | EPOLLERR | EPOLLHUP):
                        if connection.stops:
                            if events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                                connection.hang()
                        elif connection.interest & <uint32_t>EPOLLIN or events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                            self.budget = self.turn_budget
                            connection.on_readable()
                    if events[i - 1].events & <uint32_t>EPOLLOUT:
                        connection.touch()
            except Exception as error:
                if connection is not None:
                    connection.broken(error)
                else:
                    self.log_failure("verdict or connection from an acceptor lost", error)
        return 0

    cdef int run_timers(self) except -1:
        cdef int failures
        for failures in range(TIMER_FAILURES):
            try:
                return self.timers.advance(self.now_ms)
            except Exception as error:
                if isinstance(self.timers.expiring, Connection):
                    (<Connection>self.timers.expiring).broken(error)
                else:
                    self.log_failure("timer failed", error)
        return 0

    cdef int look_around(self) except -1:
        """What is done now and then."""
        if self.now_ms >= self.reporter.registry_due_ms:
            self.reporter.flush_registry()
        if self.now_ms >= self.look_at_ms:
            self.look_at_memory()
            if self.access_fd >= 0:
                self.look_at_access()
        return 0

    cdef int resume_parked(self) except -1:
        cdef list parked = self.parked
        cdef Connection connection
        self.parked = []
        # The first takes what room there is, so each is the first in turn.
        parked.append(parked.pop(0))
        for connection in parked:
            if connection.fd < 0 or connection.state == CLOSING:
                continue
            connection.stops &= ~<uint8_t>STOP_RING
            if connection.stops:
                continue                   # another reason is left; it goes on when that is gone
            try:
                connection.go_on()
            except Exception as error:
                connection.broken(error)
            if not connection.stops and connection.fd >= 0:
                connection.want(connection.interest | EPOLLIN)
        return 0

    cdef int resume_busy(self) except -1:
        cdef list busy = self.busy
        cdef Connection connection
        self.busy = []
        for connection in busy:
            connection.busy = False
            try:
                connection.go_on()
            except Exception as error:
                connection.broken(error)
        return 0

    cdef int resume_limited(self) except -1:
        cdef list limited = self.limited
        cdef Connection connection
        self.limited = []
        for connection in limited:
            if connection.fd >= 0 and connection.rates.stopped_until_ms > self.now_ms:
                self.limited.append(connection)
            else:
                connection.paused = (connection.stops & STOP_MEMORY) != 0
                connection.read_again(STOP_RATE)
        return 0

    cdef int connection_failed(self, object channel, object error) except -1:
        return (<Connection>channel).broken(error)

    cdef int share_out(self, int ready) except -1:
        """What each connection may do in this pass: the more of them are ready, the less, so that a round stays short for those
        who want little."""
        ready += len(self.busy) + len(self.parked)
        self.turn_budget = max(PASS_BUDGET // max(ready, 1), <int>TURN_LEAST)
        self.turn_bytes = <size_t>min(max(self.turn_budget * UNIT_BYTES, <int64_t>READ_LEAST), <int64_t>READ_BYTES)
        return 0

    # --- commands of the manager --------------------------------------------------------------------------------------------------

    cdef int carry_out_commands(self) except -1:
        """As many as STEP_US allows; those left have their turn in the next pass. An answer leaves once the journal knows of it."""
        cdef bint any = bool(self.commands)
        self.step_start_us = self.read_clock()
        while self.commands:
            try:
                self.answers.append(self.on_command(self.commands.pop(0)))
            except Exception as error:     # whoever asked waits until its time is up
                self.log_failure("command not answered", error)
            if self.step_is_over():
                break
        if any:
            self.commit(False)
            self.settle()
            self.send_all()
        return 0 if self.holding else self.send_answers()

    cdef int send_answers(self) except -1:
        cdef RingOutlet outlet = self.reporter.outlet()
        while self.answers:
            if not outlet.lane.put(self.answers[0]):
                return 0
            self.answers.pop(0)
        return outlet.wake()

    def reconfigure(self, settings) -> None:
        """What can change while it runs does; see config/live.py."""
        self.configure(settings.mqtt)
        self.retainer = settings.retainer
        self.retained.max_messages = settings.retainer.max_messages
        self.retained.max_bytes = settings.retainer.max_total_bytes
        self.retention = settings.journal.retention
        capture = [filter.encode() for filter in settings.journal.capture]
        if capture != self.capture:
            self.capture = capture
            self.local_epochs[WILDCARD_BUCKET] += 1        # whether a topic is captured stands in its cache entry
        self.change_topics(settings)
        self.delays.settings = settings.delayed
        self.announce_events(settings)
        if self.watcher is not None:
            self.watcher.configure(settings)

    cdef int change_topics(self, settings) except -1:
        """rewrite.rules and auto_subscribe.topics hold from now on; subscriptions that are there stay as they are."""
        rules, topics = settings.rewrite.rules, settings.auto_subscribe.topics
        if rules or self.rewriting is not None:
            self.rewriting = Rewriting(rules) if rules else None
            self.local_epochs[WILDCARD_BUCKET] += 1        # the rule of a topic stands in its cache entry
        self.auto_topics = AutoTopics(topics) if topics else None
        return 0

    # --- memory ---------------------------------------------------------------------------------------------------------------------

    cdef int look_at_memory(self) except -1:
        cdef Connection connection
        cdef list paused
        cdef int worker
        self.look_at_ms = self.now_ms + LOOK_MS
        if self.watch:
            self.watcher.tick()
        self.memory_level = self.memory.look(self.now_ms)
        self.cache.grow_old(self.now_ms, self.memory_level > 0)
        if self.memory_level:
            for client_id in self.memory.choose(self.now_ms):
                worker = self.topology.division.worker_of(client_id)
                if worker == self.number:
                    self.pause_client(client_id)
                else:
                    self.send_pause(worker, client_id)
        if self.paused:
            paused = self.paused
            self.paused = []
            for connection in paused:
                if connection.paused_until_ms > self.now_ms and connection.fd >= 0:
                    self.paused.append(connection)
                else:
                    connection.paused = connection.stops & (STOP_DISK | STOP_RATE) != 0
                    connection.read_again(STOP_MEMORY)
        return 0

    cdef int queued_by(self, bytes client_id, uint64_t size) except -1:
        return self.memory.note(client_id, size) if client_id else 0

    cdef int pause_client(self, bytes client_id) except -1:
        """Does not read this publisher for a while. Whoever has found it greedy says so again in time."""
        cdef Session session = self.sessions.get(client_id)
        cdef Connection connection
        if session is None or session.link is None:
            return 0
        connection = <Connection>session.link
        connection.paused_until_ms = self.now_ms + PAUSE_MS
        if not connection.stops & STOP_MEMORY:
            self.count(OVERLOAD_PUBLISHERS_PAUSED)
            connection.paused = True
            connection.stop_reading(STOP_MEMORY)
            self.paused.append(connection)
        return 0

    cdef int send_pause(self, int process, bytes client_id) except -1:
        """If its ring has no room, its publishers wait already, and it is told later."""
        cdef RecordHeader header
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_PAUSE
        header.sent_us = <uint32_t>self.pass_start_us
        header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
        return self.rings.put_plain(process, &header, client_id)

    # --- access control ----------------------------------------------------------------------------------------------------------

    def check_access(self, gate) -> None:
        """Who may come and what they may do is checked from now on; `gate`: shardbroker.access.gate.Gate."""
        self.access_gate = gate
        self.auth, self.acl = gate.auth, gate.acl
        self.access_type = Access
        self.access_fd = gate.fileno()
        self.access_seen = self.counters_segment.access_generation_c()
        self.access_generation = <uint32_t>(self.access_seen >> 32)
        while len(self.by_fd) <= self.access_fd:
            self.by_fd.append(None)
        self.listen_to(self.access_fd, EPOLLIN)

    cdef object absent_channel(self):
        cdef Connection connection = Connection.__new__(Connection)
        connection.core = self
        connection.shard = self
        connection.loop = self
        connection.state = CLOSING
        connection.closed = True
        connection.listener = ""
        return connection

    cdef int take_verdicts(self) except -1:
        """As many as STEP_US allows: a login that ends takes as long as hundreds of messages."""
        self.step_start_us = self.read_clock()
        for waiter, verdict in self.access_gate.take_verdicts():
            self.give_verdict(waiter, verdict)
            if self.step_is_over():
                break
        return 0

    cdef int give_verdict(self, waiter, verdict) except -1:
        self.budget = self.turn_budget
        try:
            waiter.on_verdict(verdict)
        except Exception as error:
            self.log_failure("verdict lost", error)
        return 0

    cdef int look_at_access(self) except -1:
        """What nobody has answered in time, and what has changed since."""
        cdef Connection connection
        self.late = False
        self.step_start_us = self.read_clock()
        for waiter, verdict in self.access_gate.overdue():
            self.give_verdict(waiter, verdict)
            if self.step_is_over():
                self.late = True           # a dead back end makes many late at once
                break
        if self.counters_segment.access_generation_c() != self.access_seen:
            self.access_seen = self.counters_segment.access_generation_c()
            self.rules_moved = self.access_generation != <uint32_t>(self.access_seen >> 32) or (self.rechecking and self.rules_moved)
            self.access_generation = <uint32_t>(self.access_seen >> 32)
            self.access_gate.reload(self.rules_moved)
            self.auth, self.acl = self.access_gate.auth, self.access_gate.acl
            self.rechecking = [connection for connection in self.by_fd if connection is not None]
        if self.rechecking:
            self.step_start_us = self.read_clock()
            while self.rechecking and not self.step_is_over():
                connection = <Connection>self.rechecking.pop()
                if connection.fd >= 0 and connection.state == CONNECTED:
                    try:
                        connection.recheck(self.rules_moved)
                    except Exception as error:     # it must not go on with rights that it may not have any more
                        connection.broken(error)
        return 0

    cdef bint step_is_over(self) noexcept:
        return self.read_clock() > self.step_start_us + STEP_US

    cdef int flush_sockets(self) except -1:
        cdef list dirty
        cdef int rounds
        for rounds in range(FLUSH_ROUNDS):
            if not self.dirty:
                return 0
            if rounds:
                self.settle()              # what was taken from queues since
            dirty = self.dirty
            self.dirty = []
            self.flush_all(dirty)
        return 0

    cdef int flush_all(self, list dirty) except -1:
        cdef Py_ssize_t i = 0
        cdef Connection connection = None
        while i < len(dirty):
            try:
                while i < len(dirty):
                    connection = <Connection>dirty[i]
                    i += 1
                    connection.dirty = False
                    connection.flush()
            except Exception as error:
                connection.broken(error)
        return 0

    # --- the journal -------------------------------------------------------------------------------------------------------------

    def keep_journal(self, Recorder recorder not None, uint64_t old_bytes, dict arrivals not None) -> None:
        """What sessions must not lose goes there from now on. old_bytes, arrivals: what the journal has of before."""
        self.recorder = recorder
        self.arrivals = arrivals
        self.cycle_due_bytes = self.cycle_bytes - min(old_bytes, self.cycle_bytes)

    def guard_outputs(self) -> None:
        """Level `machine`: the journal syncs, and nothing leaves before that. What was recovered is on the disk."""
        cdef Ring ring
        self.retained.incarnation = self.recorder.writer.incarnation
        self.gate = self.rings.gate = Gate(
            self.recorder.writer, self.retained, self.rings.lanes, self.rings.inboxes, self.rings.doorbells, self.topology.workers)
        for producer, ring in enumerate(self.inbox.lanes):
            if ring.secure(ring.taken()):
                self.rings.ring(producer)

    def recover_routes(self) -> None:
        """The routes to this worker become those of the sessions that it has again, without a moment in which one is missing."""
        wanted = [(True, filter, self.own_destination, group, member) for filter, group, member in self.route_changes]
        self.route_changes = {}
        self.routes_due_ms = 0
        self.routes.replace(self.own_destination, wanted)

    def settle_now(self) -> bool:
        """Whether what was recovered stands in the journal. False: the disk refuses."""
        self.read_clock()
        self.settle()
        return not self.holding and (self.gate is None or self.recorder.writer.wait_durable(RECOVERY_SYNC_S))

    def save_sessions(self) -> None:
        """Every session goes into this journal as it is: some came from those of other workers."""
        self.recorder.next_cycle()         # the messages stand in other journals too
        for session in self.sessions.values():
            self.recorder.snapshot(<Session>session)
        for held in (*self.retry, *self.delays.waiting.values()):
            self.record_held(<Held>held)

    cdef int settle(self) except -1:
        """All that this pass has done becomes one block of the journal: it has happened, or it has not."""
        cdef Writer writer
        if self.recorder is None:
            return 0
        writer = self.recorder.writer
        if self.gate is not None:
            return self.settle_synced(writer)
        if writer.next_sequence != writer.durable or self.disk.stage:
            if not self.holding:           # else it stands in the block that waits
                self.write_consumed()
            self.cycle_if_due()
            writer.seal_c(self.now_ms * 1000)
            self.gauge(JOURNAL_WRITE_MS, writer.take_write_ms())
            if writer.error or self.disk.stage or writer.is_full():
                self.watch_disk()
        self.holding = writer.durable < writer.next_sequence and not (self.disk.goes_on and writer.error)
        if self.retained_retry_ms and self.retained_changes:
            self.holding = True            # nor may what is retained be promised
        return 0

    cdef int settle_synced(self, Writer writer) except -1:
        """The same at level `machine`: the disk is asked to take it too, and what it has taken may go."""
        if writer.next_sequence != self.settled or self.note_consumed:
            self.note_consumed = False
            self.write_consumed()
            self.recorder.synced()
            self.settled = writer.next_sequence
            self.cycle_if_due()
        if writer.next_sequence != writer.durable:
            writer.seal_c(self.now_ms * 1000)
            self.gauge(JOURNAL_WRITE_MS, writer.take_write_ms())
        if writer.error or self.disk.stage or writer.is_full():
            self.watch_disk()
        self.holding = writer.error != 0 or writer.is_full()
        return self.gate.advance()

    cdef int write_consumed(self) except -1:
        """A successor that finds the records of this pass again knows by this that they were dealt with."""
        cdef Ring ring
        for producer, ring, inbox in self.drained:
            self.recorder.consumed((<Inbox>inbox).identity, producer, ring.taken(), None)
        return 0

    cdef int cycle_if_due(self) except -1:
        """Not before it serves: until then the journal has messages for other workers that only the recovery knows."""
        if self.recorder.writer.bytes_written >= self.cycle_due_bytes and self.cycle_left is None and self.serving:
            return self.begin_cycle()
        return 0

    cdef int begin_cycle(self) except -1:
        self.recorder.next_cycle()
        self.cycle_from = self.recorder.writer.next_sequence
        self.cycle_left = [*self.sessions.values(), *self.delays.waiting.values()]
        return self.write_arrivals()

    cdef int write_arrivals(self) except -1:
        """How far rings were dealt with. Those of before included: a successor may find them, and after a power cut their producers ask."""
        cdef Ring ring
        for (rings, producer), (position, weights) in self.arrivals.items():
            self.recorder.consumed(rings, producer, position, weights)
        for producer, ring in enumerate(self.inbox.lanes):
            self.recorder.consumed(self.inbox.identity, producer, ring.taken(), None)
        return 0

    cdef int save_again(self, object left) except -1:
        """One session or delayed message, as it is now."""
        if isinstance(left, Session):
            return self.recorder.snapshot(<Session>left)
        return self.record_held(<Held>left) if self.delays.has(<Held>left) else 0

    cdef int watch_disk(self) except -1:
        """The disk does not take the journal, or did not until now."""
        cdef Connection connection
        cdef int stage = self.disk.look(self.recorder)
        if stage == DISK_WITHOUT:
            self.cycle_left = None
        elif stage == DISK_AGAIN and self.serving and self.cycle_left is None and not self.disk.written_anew:
            self.begin_cycle()
        self.disk_full = stage == DISK_LIMIT or self.retained_waiting > self.disk.limit
        if self.unread and not self.disk_full:
            for connection in self.unread:
                connection.paused = connection.stops & STOP_MEMORY != 0
                connection.read_again(STOP_DISK)
            self.unread = []
        return 0

    cdef bint hold_retained(self, bint refused, int error) except -1:
        self.counters[<int>RETAINED_ERRNO_COUNT] = <uint64_t>error
        if self.recorder is None:
            return False
        self.watch_disk()
        return refused and not self.disk.goes_on

    cdef int take_snapshots(self) except -1:
        """Writes the state of some more sessions; when all are through, what is older can go."""
        cdef Writer writer = self.recorder.writer
        cdef uint64_t begin = writer.pending_bytes(), end
        if self.holding:
            return 0
        while self.cycle_left and writer.pending_bytes() - begin < <uint64_t>CYCLE_BYTES_A_PASS:
            self.save_again(self.cycle_left.pop())
        if not self.cycle_left:
            self.cycle_left = None
            for held in self.retry:
                self.record_held(<Held>held)
            position = self.cycle_from
            self.recorder.checkpoint(position)
            if self.disk.stage:
                self.disk.through(self.recorder)
            # Before it is settled, or the next one would begin there.
            end = writer.pending_bytes()
            self.cycle_due_bytes = end + max(self.cycle_bytes, 2 * (end - min(end, self.cycle_due_bytes)))
            self.settle()
            if self.gate is not None:
                # What was forwarded before the cycle is looked for in the journal until it has arrived.
                self.gate.when_arrived(lambda: self.forget_older(position))
            elif writer.durable == writer.next_sequence:
                self.forget_older(position)
        return 0

    def forget_older(self, position) -> None:
        """What lies before this position of the journal is not needed any more."""
        arguments = (self.recorder.writer.directory, position, self.retention.age, self.retention.bytes, self.gate is not None)
        Thread(target=forget, args=arguments).start()

    cdef bint must_wait(self, Connection connection) noexcept:
        """Whether its output says something that the journal does not know yet. It stays on the flush list then."""
        if not connection.promised and (connection.session is None or not connection.session.logged):
            return False
        connection.touch()
        return True

    cdef int release_lanes(self) except -1:
        """The records taken in this pass are dealt with: their producers may have the room."""
        cdef Ring ring
        if self.holding:
            return 0
        if self.drained:
            drained = self.drained
            self.drained = []
            for producer, ring, _ in drained:
                if ring.release():
                    self.rings.ring(<int>producer)
                if self.gate is not None:
                    self.gate.taken(<int>producer, ring)
        if self.spent:
            for path in self.spent:
                with suppress(OSError):
                    path.unlink()
            self.spent = []
        return 0

    # --- new connections --------------------------------------------------------------------------------------------------------

    cdef int accept_some(self, int channel) except -1:
        cdef Handover handover
        cdef int taken
        self.step_start_us = self.read_clock()
        for taken in range(ACCEPTS):
            if taken and self.step_is_over():
                return 0                   # epoll reports the others again
            handover = receive(channel)
            if handover is None:
                return 0
            if handover.fd < 0:
                self.sockets[handover.header.listener].balance -= 1
                continue
            while len(self.by_fd) <= handover.fd:
                self.by_fd.append(None)
            try:
                self.take_over(handover)
            except Exception as error:
                if self.by_fd[handover.fd] is not None:
                    (<Connection>self.by_fd[handover.fd]).broken(error)
                    continue
                close(handover.fd)
                self.sockets[handover.header.listener].balance -= 1
                self.log_failure(f"connection closed peer={handover.peer!r}", error)
        return 0

    cdef int take_over(self, Handover handover) except -1:
        """A connection comes into being, and what was read of it is dealt with."""
        cdef Connection connection
        cdef SharedRates shared
        if handover.extra is None or "mountpoint" not in handover.extra:
            connection = Connection.__new__(Connection)
        else:
            connection = self.mounted_connection(handover.extra["mountpoint"])
        connection.core = self
        connection.shard = self
        connection.loop = self
        connection.out = Buffer.__new__(Buffer)
        connection.peer = handover.header.peer
        connection.listener = handover.listener
        connection.listener_number = handover.header.listener
        if self.gate is not None:
            connection.guard = Guard.__new__(Guard)
            connection.guard.link = connection
        connection.wanted_id = handover.assigned_id
        connection.extra = handover.extra
        connection.interest = EPOLLIN
        self.listen_to(handover.fd, EPOLLIN)
        connection.fd = handover.fd        # from here on the connection closes it
        self.by_fd[handover.fd] = connection
        self.sockets[connection.listener_number].here += 1
        # [mqtt.idle_timeout] runs from accept, whatever trickles in between.
        self.timers.arm(connection, handover.header.accepted_ms + <uint64_t>self.clock_offset_ms + self.idle_timeout_ms)
        self.gauge(BYTES_RECEIVED, PyBytes_GET_SIZE(handover.data))
        if handover.extra is not None:
            connection.note_extra(handover.extra)
        shared = self.quotas.of(connection.listener_number, None if handover.extra is None else handover.extra.get("limiter"))
        if shared is not None:
            if connection.rates is None:
                connection.rates = Rates(0.0, 0.0)
            connection.rates.shared = shared
            connection.limited = True
        if handover.data:
            self.budget = self.turn_budget
            # Nobody else has seen these bytes: they can be changed where they are, as a WebSocket's must.
            if connection.layers is None:
                connection.take_received(<uint8_t*>PyBytes_AS_STRING(handover.data), PyBytes_GET_SIZE(handover.data))
            else:
                connection.take_layered(<uint8_t*>PyBytes_AS_STRING(handover.data), PyBytes_GET_SIZE(handover.data), True)
        return 0


    cdef int64_t delayed_count(self) except? -1:
        return self.counters_segment.total_of(DELAYED_COUNT)

    # --- rings: in ----------------------------------------------------------------------------------------------------------------

    cdef bint lanes_waiting(self) except -1:
        cdef uint32_t size
        cdef Ring lane
        for lane in self.inbox.lanes:
            if lane is not None and lane.waiting():
                return True
        return False

    cdef int drain_lanes(self) except -1:
        cdef int producer
        if self.holding:
            return self.drain_manager()    # what cannot be kept stays in the rings, and so with those who publish
        for producer in range(len(self.inbox.lanes)):
            if producer != self.number:
                self.drain_lane(producer, self.inbox.lane(producer))
        return 0

    cdef int drain_manager(self) except -1:
        """What the manager says of the broker waits for no disk: it tells of that disk. None of it needs to be exact."""
        cdef Ring ring = self.inbox.lane(self.reporter.manager)
        cdef Py_ssize_t before = len(self.drained)
        self.drain_lane(self.reporter.manager, ring)
        del self.drained[before:]
        if ring.release():
            self.rings.ring(self.reporter.manager)
        return 0

    cdef int drain_lane(self, int producer, Ring ring) except -1:
        cdef int taken = 0
        self.budget = PASS_BUDGET // len(self.inbox.lanes)
        self.draining_lane = producer
        while True:
            try:
                self.take_records(producer, ring, &taken)
                break
            except Exception as error:
                self.record_failed(producer, error)
        self.incoming.release()            # what it borrowed is about to be given back
        if taken:
            self.drained.append((producer, ring, self.inbox))
        elif ring.release():
            self.rings.ring(producer)            # it waits for room that a predecessor gave back
        return 0

    cdef int take_records(self, int producer, Ring ring, int* taken) except -1:
        """Goes on behind `taken` records of this pass: one that raised is counted among them."""
        cdef const uint8_t* record
        cdef uint32_t size
        while taken[0] < RECORDS and self.budget > 0:
            self.budget -= 1
            record = ring.next(&size)
            if record == NULL:
                return 0
            taken[0] += 1
            if taken[0] == 1:              # the oldest of the batch
                self.hop_times.record(<uint32_t>(<uint32_t>self.read_clock() - (<const RecordHeader*>record).sent_us))
            if not self.on_record(producer, record, size):
                ring.untake(size)          # what is behind it waits, too
                taken[0] -= 1
                return 0
        return 0

    cdef int record_failed(self, int producer, object error) except -1:
        """A record cannot be dealt with: its position in the ring is behind it."""
        cdef bytes topic = b""
        self.lane_lookups.pop(producer, None)
        if self.incoming.topic != NULL:
            topic = PyBytes_FromStringAndSize(<const char*>self.incoming.topic, self.incoming.topic_size)
        return self.drop_failed("ring", topic, error)

    cdef bint on_record(self, int producer, const uint8_t* record, uint32_t size) except -1:
        """False: its topic is still being looked up, and it has to be taken again in the next pass."""
        cdef RecordHeader header
        cdef bytes contents
        self.incoming.topic = NULL
        memcpy(&header, record, sizeof(header))
        if header.flags & FLAG_NOTED:
            self.note_consumed = True
        if header.kind == RECORD_PAUSE:
            self.pause_client(PyBytes_FromStringAndSize(<const char*>record + sizeof(header), header.client_size))
            return True
        if header.kind == RECORD_COMMAND:
            if self.serving:               # whoever asked before that is gone
                self.commands.append(PyBytes_FromStringAndSize(<const char*>record, size))
            return True
        if header.flags & FLAG_SPILLED:
            contents = self.read_spilled(record, &header)
            if contents is None:
                return True                # read before this worker was killed and started again
            if not self.on_publish_record(producer, &header, <const uint8_t*>PyBytes_AS_STRING(contents) + sizeof(header)):
                self.spent.pop()           # it is read again
                return False
            return True
        return self.on_publish_record(producer, &header, record + sizeof(header))

    cdef bytes read_spilled(self, const uint8_t* record, RecordHeader* header):
        """The whole record, which becomes `header` too; None if its file is gone. Raises OSError, ValueError."""
        cdef bytes contents
        try:
            path, contents = read_spilled(
                self.spill_source, PyBytes_FromStringAndSize(<const char*>record + sizeof(header[0]), header.topic_size))
        except FileNotFoundError:
            return None
        self.spent.append(path)
        check_record(<const uint8_t*>PyBytes_AS_STRING(contents), PyBytes_GET_SIZE(contents))
        memcpy(header, PyBytes_AS_STRING(contents), sizeof(header[0]))
        return contents

    cdef bint on_publish_record(self, int producer, RecordHeader* header, const uint8_t* body) except -1:
        cdef Publication publication = self.incoming
        cdef TopicEntry entry = None
        cdef bytes group, filter
        cdef bint is_plain = header.kind != RECORD_SHARED and not header.flags & FLAG_ORIGINATE
        publication.topic = body
        publication.topic_size = header.topic_size
        if is_plain:
            entry = self.cached(body, header.topic_size)
            if entry is None:
                entry = self.resolve(body, header.topic_size, self.lane_lookups.setdefault(producer, []))
                if entry is None:
                    return False
                self.lane_lookups.pop(producer)
        publication.message = None
        publication.logged = 0
        body += header.topic_size
        publication.properties = body
        publication.properties_size = header.properties_size
        body += header.properties_size
        # A publisher's messages come many in a row: its id is made once for them.
        if publication.client_id is None or <uint32_t>PyBytes_GET_SIZE(publication.client_id) != header.client_size \
                or memcmp(PyBytes_AS_STRING(publication.client_id), body, header.client_size):
            publication.client_id = PyBytes_FromStringAndSize(<const char*>body, header.client_size)
        body += header.client_size
        group = PyBytes_FromStringAndSize(<const char*>body, header.group_size)
        body += header.group_size
        filter = PyBytes_FromStringAndSize(<const char*>body, header.filter_size)
        body += header.filter_size
        publication.payload = body
        publication.payload_size = header.payload_size
        publication.qos = header.flags & FLAG_QOS
        publication.retain = header.flags & FLAG_RETAIN
        publication.payload_format = header.payload_format
        publication.id_high = header.id_high
        publication.id_low = header.id_low
        publication.expires_ms = header.expires_ms
        if self.watch and not header.flags & FLAG_ORIGINATE:
            self.watcher.arrived(self.draining_lane, publication)
        if header.kind == RECORD_SHARED:
            if not self.deliver_to_member(group, filter, header.member, publication):
                self.next_member(group, filter, header.member, publication.keep(), header.attempts + 1)
        elif is_plain:
            self.deliver_locally(entry, publication, None)
        elif self.serving:                 # else it is of a manager that is gone
            self.stamp(publication)
            self.publish_message(publication.keep(), None, 0)
        return True

    cdef int next_member(self, bytes group, bytes filter, uint64_t failed, Message message, int attempts) except -1:
        """The member that another worker chose is gone: this worker tries the others, once it knows who they are."""
        cdef Session member
        if self.elsewhere is not None:
            # Several workers read this ring, maybe not for the first time: another one has that member, or tries the others.
            member = self.by_key.get(failed)
            if failed in self.elsewhere or (not self.heir if member is None else member.ended):
                return 0
        if not self.serving or not self.hand_on(group, filter, message, attempts, failed, None):
            self.hold(hold_for_group(message, group, filter, failed, attempts))
        return 0


    def tell(self, str level, str text) -> None:
        self.reporter.log(level, text)

def forget(directory, keep_from, age_s, most_bytes, sync) -> None:
    """Everything before this position of a journal is known from what follows it. In a thread: it takes the disk some ms."""
    with suppress(OSError):                # the next one tries again
        set_recovery_start(directory, keep_from, sync=sync)        # before anything is removed
        max_age_us = None if age_s == float("inf") else int(age_s * 1e6)
        apply_retention(directory, keep_from, time.time_ns() // 1000, max_age_us, most_bytes)
