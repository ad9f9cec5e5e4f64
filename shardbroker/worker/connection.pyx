"""A channel and its socket; see connection.pxd."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, strerror

from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.mqtt.codec cimport write_ack
from shardbroker.mqtt.spec cimport PROTOCOL_ERROR, PUBACK_FIRST, PUBREC_FIRST, SUCCESS
from shardbroker.session.overflow cimport FULL, PressedQueue
from shardbroker.session.watcher cimport unlikely
from shardbroker.worker.channel cimport CLOSING, CONNECTED, SIDE_CLIENT, SIDE_NETWORK, SIDE_SERVER
from shardbroker.worker.held_acks cimport HELD_MAX, HeldAck
from shardbroker.worker.protocol cimport feed
from shm.address cimport address_text
from shm.counters cimport (
    BYTES_RECEIVED, BYTES_SENT, CLIENT_CLOSED_TLS, CLIENT_CLOSED_WEBSOCKET, MESSAGES_RECEIVED, OVERLOAD_OUTPUT_STOPPED,
    OVERLOAD_ACKS_HELD, OVERLOAD_RATE_PAUSED, PACKETS_PUBACK_SENT, PACKETS_PUBLISH_QUOTA_EXCEEDED, PACKETS_PUBREC_SENT, PACKETS_SENT,
)
from shm.posix cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, close, epoll_ctl, epoll_event,
    recv, send, shutdown,
)

from shardbroker.logs.phrases import log_line
from shardbroker.transport.tls import TlsRecordError
from shardbroker.transport.websocket import WebSocketError

__all__ = ["Connection"]

cdef enum:
    LOGIN_READ_BYTES = 16384               # most before CONNACK: what follows the CONNECT is kept until the result
    REST_STEP = 4096                       # least growth of an incomplete packet's buffer, bytes
    FLUSH_ROUNDS = 4                       # times a socket is written to in a pass, while its session has more for it


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
            self.turn.dirty.append(self)

    cdef int on_readable(self) except -1:
        """One recv: into the turn's buffer, or behind what is there of an incomplete packet."""
        cdef uint8_t* target = self.turn.buffer
        cdef size_t room = self.turn.bytes
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
        self.context.gauge(BYTES_RECEIVED, got)
        if self.layers is not None:
            return self.take_layered(target, before + <size_t>got, False)
        return self.take_received(target, <size_t>got)

    cdef int take_received(self, uint8_t* target, size_t got) except -1:
        """Bytes in the turn's buffer, or behind what is there of an incomplete packet."""
        if self.rates is not None:
            self.keep_rate(0, got)
        if self.rest_size:
            self.rest_size += got
            return self.take_rest()
        return self.take(target, got)

    cdef int keep_rate(self, uint64_t messages, uint64_t bytes) except -1:
        """Suspends reading from a client that sends faster than its listener allows; bytes already read are processed."""
        cdef uint64_t wait_ms = self.rates.add(self.context.now_ms, messages, bytes)
        return self.slow_down(wait_ms) if wait_ms else 0

    cdef int slow_down(self, uint64_t wait_ms) except -1:
        if self.state != CLOSING:
            self.rates.stopped_until_ms = max(self.rates.stopped_until_ms, self.context.now_ms + wait_ms)
            if not self.stops & STOP_RATE:
                self.context.count(OVERLOAD_RATE_PAUSED)
                self.paused = True
                self.stop_reading(STOP_RATE)
                self.turn.limited.append(self)
        return 0

    cdef bint over_quota(self, PublishView* view) except -1:
        """Who can be told so is refused what is too much [0x97]; others are read more slowly, so that nothing gets lost unnoticed."""
        cdef uint64_t now_ns = self.turn.start_us * 1000
        cdef SharedRates shared = self.rates.shared
        cdef uint64_t wait_ns = shared.over_ns(now_ns)
        if wait_ns and self.version == 5 and view.qos and not view.dup:
            self.context.count(PACKETS_PUBLISH_QUOTA_EXCEEDED)
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
            self.context.count(CLIENT_CLOSED_TLS)
            self.out.clear()
            return self.close(PROTOCOL_ERROR, SIDE_NETWORK, f"TLS: {error}", True)
        except WebSocketError as error:
            self.context.count(CLIENT_CLOSED_WEBSOCKET)
            return self.close(PROTOCOL_ERROR, SIDE_SERVER, f"WebSocket: {error}", True)
        if self.layers.waiting():
            self.touch()
        if mqtt:
            self.take_received(target, <size_t>mqtt)
        return self.end_layers()

    cdef int end_layers(self) except -1:
        """Ends the connection after a Close frame or close_notify; packets before it are processed first."""
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
            return feed(self, data, size)
        before = self.context.counters[<int>MESSAGES_RECEIVED]
        used = feed(self, data, size)
        self.keep_rate(self.context.counters[<int>MESSAGES_RECEIVED] - before, 0)
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
        """Adds a connection with work left to the list that it is resumed from."""
        if self.state == CLOSING:
            return 0
        if self.parked:
            # A ring is full: this publisher is not read until there is room.
            if not self.stops & STOP_RING:
                self.turn.parked.append(self)
                self.stop_reading(STOP_RING)
        elif self.subscribing is not None or (more and self.context.budget <= 0):
            if not self.busy:
                self.busy = True
                self.turn.busy.append(self)
        return 0

    cdef int go_on(self) except -1:
        """Continues with bytes that were read before, within the budget of this turn."""
        if self.fd < 0 or self.state == CLOSING or self.stops or self.must_not_add():
            return 0
        self.context.budget = self.turn.budget
        self.parked = False
        self.take_rest()
        return self.end_layers()

    cdef bint must_not_add(self) except -1:
        """Whether it is not read because the disk takes nothing of what it says."""
        if not self.context.disk_full or self.session is None or not self.session.logged or self.state == CLOSING:
            return False
        if not self.stops & STOP_DISK:
            self.paused = True
            self.stop_reading(STOP_DISK)
            self.turn.unread.append(self)
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
            self.turn.busy.append(self)
        return self.want(self.interest | <uint32_t>EPOLLIN)

    cdef int hang(self) except -1:
        """Notes that the peer has closed while reading is suspended; epoll reports it again once reading resumes."""
        cdef epoll_event event
        if not self.hung:
            self.hung = True
            epoll_ctl(self.turn.epoll, EPOLL_CTL_DEL, self.fd, &event)
            self.touch()                   # output that is left shows the error, and ends it
        return 0

    cdef int suspend_reading(self) except -1:
        Channel.suspend_reading(self)
        return self.stop_reading(STOP_ACCESS)

    cdef int resume_reading(self) except -1:
        Channel.resume_reading(self)
        return self.read_again(STOP_ACCESS)

    cdef dict listener_facts(self):
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
        if epoll_ctl(self.turn.epoll, EPOLL_CTL_ADD if self.hung else EPOLL_CTL_MOD, self.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self.interest = interest
        self.hung = False
        return 0

    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1:
        if self.guard is not None:
            self.guard.forwarded_to |= self.turn.outlets.forwarded_to
            self.turn.outlets.forwarded_to = 0
        if unlikely(self.held is not None) and (first == PUBACK_FIRST or first == PUBREC_FIRST):
            return self.hold(first, packet_id, reason_code)
        self.promised = True
        write_ack(self.out, first, packet_id, reason_code, self.version)       # as Channel.ack: a call less for each message
        self.context.count(PACKETS_SENT)
        self.context.count(counter)
        if not self.dirty:
            self.touch()
        return 0

    cdef int report_failure(self, object kind, int packet_id, object outcome, int counter, str reason) except -1:
        if self.held is not None and (counter == PACKETS_PUBACK_SENT or counter == PACKETS_PUBREC_SENT):
            return self.hold(
                PUBACK_FIRST if counter == PACKETS_PUBACK_SENT else PUBREC_FIRST, <uint16_t>packet_id,
                <uint8_t>outcome if self.version == 5 else <uint8_t>SUCCESS)   # behind those that wait, without a Reason String
        return Channel.report_failure(self, kind, packet_id, outcome, counter, reason)

    cdef int hold(self, uint8_t first, uint16_t packet_id, uint8_t reason_code) except -1:
        cdef HeldAcks held = self.held
        held.add(self.context.now_ms, first, packet_id, reason_code)
        self.context.count(OVERLOAD_ACKS_HELD)
        if held.count() <= HELD_MAX:
            return 0
        if self.is_full():
            return self.send_held()        # it has to be read: other clients wait for what it acknowledges
        if not self.stops & STOP_HELD and self.state != CLOSING:
            self.paused = True
            self.stop_reading(STOP_HELD)
        return 0

    cdef bint is_full(self) noexcept:
        """Whether acknowledgements of other clients, or its own, wait for its queue."""
        return (
            self.session is not None and isinstance(self.session.queue, PressedQueue)
            and (<PressedQueue>self.session.queue).state == FULL)

    cdef int send_held(self) except -1:
        cdef HeldAck one = self.held.take()
        self.promised = True
        return Channel.ack(
            self, one.first, one.packet_id, one.reason_code, PACKETS_PUBACK_SENT if one.first == PUBACK_FIRST else PACKETS_PUBREC_SENT)

    cdef int let_go_older(self, uint64_t before_ms) except -1:
        while self.held.count() and self.held.slots[self.held.first].since_ms <= before_ms:
            self.send_held()
        return self.read_held() if self.held.count() <= HELD_MAX else 0

    cdef int let_go(self, HeldAcks held) except -1:
        if self.held is not held:
            return 0                       # it has ended
        while held.count() and self.state != CLOSING:
            self.send_held()
        self.held = None
        return self.read_held()

    cdef int read_held(self) except -1:
        if self.stops & STOP_HELD:
            self.paused = self.stops & (STOP_MEMORY | STOP_DISK | STOP_RATE) != 0
            self.read_again(STOP_HELD)
        return 0

    cdef bint must_wait(self) noexcept:
        """Whether its output says something that the journal does not know yet. It stays on the flush list then."""
        if not self.promised and (self.session is None or not self.session.logged):
            return False
        self.touch()
        return True

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
        cdef int _
        cdef bint was_congested
        cdef size_t sendable = <size_t>-1
        if self.fd < 0:
            return 0
        if self.guard is not None:
            sendable = self.turn.durability.gate.may_send(
                self.guard, out.pending(), self.promised or (self.session is not None and self.session.logged))
        elif self.turn.durability.behind and self.must_wait():
            return 0
        for _ in range(FLUSH_ROUNDS):
            if (out.pending() == 0 or sendable == 0) and not self.answering():
                break
            was_congested = self.congested()
            sent = self.transmit(min(out.pending(), sendable))
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    break
                out.clear()
                self.lost((<bytes>strerror(errno)).decode())
                return self.finish()
            self.context.gauge(BYTES_SENT, sent)
            out.consume(<size_t>sent)
            if self.guard is not None:
                self.guard.sent += <size_t>sent
                sendable -= <size_t>sent
            if self.session is not None and self.session.link is self and (was_congested or self.session.queue is not None):
                self.session.pump()
                if self.session is not None and self.session.logged:
                    break                  # what was written just now is not in the journal yet
        if self.stops & STOP_OUTPUT:
            if out.pending() <= self.context.max_output_bytes:
                self.read_again(STOP_OUTPUT)
        elif out.pending() > 2 * <size_t>self.context.max_output_bytes and self.state != CLOSING:
            # Deliveries stop at half of that, so these are answers: a client that reads none gets no more.
            self.context.count(OVERLOAD_OUTPUT_STOPPED)
            self.stop_reading(STOP_OUTPUT)
        if out.pending() == 0:
            self.promised = False
        elif self.dirty:
            return 0                       # once more in this pass
        if out.pending() and sendable == 0 and not self.answering():
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
            self.context.gauge(BYTES_SENT, sent)
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
        self.context.timers.arm(self, self.context.now_ms + LINGER_MS)
        return 0

    cdef int close(self, int reason_code, int side, str detail, bint keep_will) except -1:     # no-cython-lint: a method
        if not self.closed:
            self.ended_by = side
            self.ended_with = reason_code
            Channel.close(self, reason_code, side, detail, keep_will)
            # Unsent output of a peer that reads nothing must not keep the socket for ever.
            self.context.timers.arm(self, self.context.now_ms + LINGER_MS)
        return 0

    cdef int expire(self, uint64_t now_ms) except -1:
        if self.state == CLOSING:
            return self.finish()
        return Channel.expire(self, now_ms)

    cdef int finish(self) except -1:
        """Closes the socket. Nothing of this connection is left in the turn."""
        if self.fd < 0:
            return 0
        self.context.timers.disarm(self)
        self.turn.by_fd[self.fd] = None
        self.turn.sockets[self.listener_number].balance -= 1
        self.turn.sockets[self.listener_number].here -= 1
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
            self.context.log_failure(log_line("internal error while a connection was closing", peer=address_text(&self.peer)), again)
            was_closed = True
        return self.finish() if was_closed else 0      # there is no other way to end it

    cdef int failed(self, object error) except -1:
        return self.broken(error)

    cdef void release(self) noexcept:
        free(self.rest)
        self.rest = NULL
        self.rest_size = 0
        self.rest_capacity = 0
        self.out.clear()
        self.layers = None
        self.held = None
        self.rates = None
        self.session = None
        self.access = None                 # it refers to us, and cycles are not collected here
        self.acl_cache = None
        self.extra = None
        self.aliases_in = None
        self.aliases_out = None
