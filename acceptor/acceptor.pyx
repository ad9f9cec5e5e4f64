"""The acceptor's loop: accept, read up to the client id, hand over (DESIGN: hand-over).

    accept -> [ pending: opening, waits for bytes ] -> peek -> worker of crc32(client id) % 1024
                    | timeouts, counted                 | worker down or channel full: [ held ], then CONNACK 0x88
                                                        `-> TLS that only OpenSSL speaks: a socketpair to the worker, [ pump ]

A socket is taken out of epoll before it is handed over: the registration belongs to the open file, which lives on in the
worker. Mostly the CONNECT is there when the connection is, and the socket never gets into epoll.

Invariants: a socket is in `pending`, in `held` or in a pump, or it is gone; only pending ones and pumps are in epoll; `kept_bytes` is
the sum of the buffers of pending and held ones.
"""

import resource
import socket
from collections import OrderedDict, deque
from math import inf
from zlib import crc32

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from acceptor.handover cimport HandoverHeader, pack_header, send_socket
from acceptor.peek cimport FOUND, NEED_MORE, NOT_CONNECT, TOO_LARGE, UNCLEAR, peek, protocol_level
from acceptor.pump cimport Pump
from acceptor.sockets cimport (
    AF_INET, AF_INET6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, TCP_NODELAY, accept4, ntohs, setsockopt,
    sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
)
from shardbroker.mqtt.packets cimport LOGIN_PACKET_MAX
from shm.address cimport PeerAddress, address_text, parse_address
from shm.counters cimport (
    BYTES_RECEIVED, BYTES_SENT, CLIENT_CLOSED_ACCESS_RULES, CLIENT_CLOSED_IDLE_TIMEOUT, CLIENT_CLOSED_MAX_CONNECTIONS, CLIENT_CLOSED_NOT_CONNECT,
    CLIENT_CLOSED_PROXY, CLIENT_CLOSED_REFUSED, CLIENT_CLOSED_RESET, CLIENT_CLOSED_TLS, CLIENT_CLOSED_TOO_LARGE, PACKETS_CONNACK_ERROR, PACKETS_CONNACK_SENT, PACKETS_SENT,
    Counters, CounterSlot,
)
from shm.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, clock_gettime,
    close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send, shutdown, timespec,
)

import cbor2

from acceptor.admission import TokenBucket, new_client_id
from acceptor.control import receive_order, send_answer
from acceptor.notices import Notices, quoted
from acceptor.opening import READY, TLS, UPGRADE, Opening
from acceptor.refusal import Refused
from acceptor.rules import AccessRules
from acceptor.secrets import KeyLog
from acceptor.tls import TlsError, build_context
from shm.counters import NAMES, ProcessState
from shm.partitions import PARTITIONS

__all__ = ["HOLD_LIMIT_S", "PENDING_MAX", "Acceptor"]

cdef enum:
    READ_BYTES = 65536                     # one recv, bytes
    PUMP_BYTES = 262144                    # ciphertext and plaintext of one round of a pump, bytes
    HANDSHAKES = 16                        # steps of TLS handshakes a pass: a signature takes up to a millisecond
    HANDSHAKES_BESIDE = 4                  # the same while there are pumps, whose clients wait meanwhile
    EVENTS = 512                           # epoll events a pass
    ACCEPTS = 256                          # sockets accepted from one listener a pass
    BUFFER_MIN = 256                       # first buffer of a trickling client, bytes; most CONNECTs fit
    LAST_CONNECT_MS = 500                  # for CONNECT of those who were accepted just before the end
    PASS_MAX_MS = 1000                     # longest sleep: a signal that comes just before it waits this long
    IPV4 = 4                               # families of a PeerAddress
    IPV6 = 6
    MAPPED_SIZE = 12                       # bytes before the IPv4 address in a mapped one
    LAST_READS = 4                         # recv calls that empty a socket before it is closed

PENDING_MAX = 8192
"""Sockets that one acceptor holds at a time, or half of its descriptors if those are fewer. The oldest goes first."""

PENDING_BYTES_MAX = 32 << 20
"""Buffers of all sockets that one acceptor holds, bytes: 64 of the largest CONNECTs. A socket that needs more is closed."""

HOLD_LIMIT_S = 5
"""How long a socket waits for a worker that is down or busy: several times what a restart takes."""

HANDSHAKES_MAX = 1024
"""TLS handshakes under way in one acceptor, at about 50 KB each. The oldest goes first."""

LAST_WORDS_MS = 2000
"""How long the ends of a TLS connection that is over stay for the peers to close theirs: twice what a worker waits."""

TICK_MS = 50
"""Between two tries to hand over what is held."""

PAUSE_MS = 1000
"""How long accepting pauses when descriptors have run out, as esockd does."""

CONNECT_BURST_S = 1.0
"""Seconds of `max_conn_rate` that may come at once."""

cdef const char* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"   # ::ffff:0:0/96

cdef int STATE_READY = int(ProcessState.READY)
cdef int TLS_LAYER = TLS
cdef int UPGRADE_LAYER = UPGRADE
cdef uint64_t BYTES_MAX = PENDING_BYTES_MAX
cdef uint64_t HOLD_LIMIT_MS = HOLD_LIMIT_S * 1000


cdef class Listener:
    """A listening socket of this acceptor."""
    cdef int fd, number                    # number: its place in the topology
    cdef bytes name
    cdef dict demands                      # on its clients, for their workers; mostly empty
    cdef object settings                   # shardbroker.config.listeners.Listener
    cdef object rules                      # AccessRules, None if everybody may
    cdef tuple buckets                     # TokenBuckets of max_conn_rate: its own, and the one of all listeners
    cdef int64_t max_connections           # 0: no limit
    cdef uint64_t paused_until_ms          # 0: in epoll
    cdef bint plain                        # MQTT and nothing else: no Opening
    cdef public object context             # ssl.SSLContext for new connections, None without TLS
    cdef object opening                    # for layers PROXY and TLS: OrderedDict fd -> Pending, oldest first
    cdef object timeouts_ms                # of these layers

    def context_now(self):
        return self.context


cdef class Pending:
    """A socket that is not handed over yet, and what was read of it."""
    cdef int fd, worker                    # worker: -1 until the client id is known
    cdef uint8_t* data
    cdef size_t size, capacity
    cdef PeerAddress peer
    cdef Listener listener
    cdef uint64_t accepted_ms, held_ms
    cdef bytes header                      # of the hand-over, from the moment the worker is known
    cdef bint watched
    cdef object opening                    # Opening, None for plain MQTT
    cdef int layer                         # of the opening: in which queue of the listener it is
    cdef size_t charged                    # bytes of the opening in kept_bytes
    cdef int inner, far                    # socketpair to the worker, of a TLS connection that waits for the hand-over; else -1

    def __cinit__(self):
        self.data = NULL
        self.worker = self.inner = self.far = -1

    def __dealloc__(self):
        free(self.data)
        if self.inner >= 0:
            close(self.inner)
            close(self.far)

    cdef int keep(self, const uint8_t* data, size_t size) except -1:
        """Appends; the buffer grows to what is there, by doubling, so that single bytes are not copied over and over."""
        cdef size_t capacity
        cdef uint8_t* grown
        if self.size + size > self.capacity:
            capacity = max(<size_t>BUFFER_MIN, self.capacity * 2, self.size + size)
            grown = <uint8_t*>realloc(self.data, capacity)
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.capacity = capacity
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0


cdef class Acceptor:
    """One acceptor process. `number` chooses its listening sockets and its ends of the hand-over channels."""

    cdef object topology
    cdef Counters counters
    cdef CounterSlot slot
    cdef int process
    cdef int number, workers, epoll, next_worker
    cdef tuple owners                      # worker of each partition of client ids
    cdef uint64_t now_ms, idle_timeout_ms, kept_bytes
    cdef tuple shared_buckets              # of all listeners
    cdef uint32_t max_packet
    cdef size_t pending_max, held_count
    cdef dict listeners                    # fd -> Listener
    cdef dict pumps                        # both of its descriptors -> Pump
    cdef object endings                    # OrderedDict: Pump -> None, those that are ending, in the order of their times
    cdef object handshaking                # OrderedDict: fd -> Pending, those whose TLS handshake has begun, oldest first
    cdef list handover                     # of each worker: where its connections go
    cdef int control                       # where the supervisor's orders come from
    cdef object notices                    # Notices
    cdef object keylog                     # KeyLog
    cdef object pending                    # OrderedDict: fd -> Pending, oldest first
    cdef list held                         # of each worker: deque of Pending, longest held first
    cdef public bint draining
    cdef uint8_t buffer[READ_BYTES]
    cdef uint8_t pump_buffer[PUMP_BYTES]

    def __init__(self, topology, int number, Counters counters):
        cdef uint64_t descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.topology = topology
        self.number = number
        self.workers = topology.workers
        self.owners = topology.division.owners
        self.counters = counters
        self.process = topology.slot_of("acceptor", number)
        self.slot = counters.slot(self.process)
        self.idle_timeout_ms = <uint64_t>(topology.settings.mqtt.idle_timeout * 1000)
        self.max_packet = min(<uint32_t>topology.settings.mqtt.max_packet_size, <uint32_t>LOGIN_PACKET_MAX)
        everywhere = topology.settings.mqtt.limiter.max_conn_rate
        self.shared_buckets = () if everywhere == inf else (self.bucket_of(everywhere),)
        self.pending_max = min(<uint64_t>PENDING_MAX, descriptors // 2)
        self.pending = OrderedDict()
        self.held = [deque() for _ in range(self.workers)]
        self.listeners = {}
        self.pumps = {}
        self.endings = OrderedDict()
        self.handshaking = OrderedDict()
        self.handover = topology.sending_ends("handover", number)
        self.control, = topology.receiving_ends("control", number)
        self.notices = Notices(topology.sending_ends("notices", number)[0])
        self.keylog = KeyLog()
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        self.watch(self.control)
        for sockets in topology.listeners:
            self.put_listener(sockets, sockets.descriptors[number])

    def __dealloc__(self):
        close(self.epoll)

    # --- listeners ------------------------------------------------------------------------------------------------------------

    cdef int put_listener(self, sockets, int fd) except -1:
        """A new listener, or other settings for connections that come from now on. Raises OSError, TlsError."""
        cdef int on = 1
        cdef Listener listener = self.find_listener(sockets.number)
        settings = sockets.settings
        # What may fail comes first: a listener is as it was, or as it shall be.
        context = build_context(settings.tls, settings.over_websocket, self.keylog.path) if settings.secure else None
        if listener is None:
            listener = Listener.__new__(Listener)
            listener.opening = OrderedDict(), OrderedDict()
            listener.number = sockets.number
            listener.fd = fd
            # Acknowledgements are small and must not wait for each other. Linux hands the option down to what is accepted.
            if sockets.port and setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0:
                raise OSError(errno, "TCP_NODELAY")
            self.listeners[fd] = listener
            self.watch(fd)
        elif fd >= 0:
            close(fd)
        listener.context = context
        listener.settings = settings
        listener.demands = demands_of(settings, self.topology.settings.listeners.get(sockets.name))
        listener.name = sockets.name.encode()
        listener.plain = settings.type == "tcp" and not settings.proxy_protocol
        listener.timeouts_ms = int(settings.proxy_protocol_timeout * 1000), int(settings.tls.handshake_timeout * 1000)
        rules = AccessRules(settings.access_rules)
        listener.rules = None if rules.open else rules
        listener.max_connections = settings.max_connections
        listener.buckets = self.shared_buckets
        if settings.max_conn_rate != inf:
            listener.buckets += (self.bucket_of(settings.max_conn_rate),)
        return 0

    def bucket_of(self, double rate) -> TokenBucket:
        """The kernel spreads connections evenly over the acceptors, so each gets its share of the rate."""
        share = rate / self.topology.acceptors
        return TokenBucket(share, share * CONNECT_BURST_S)

    cdef Listener find_listener(self, int number):
        cdef Listener listener
        for listener in self.listeners.values():
            if listener.number == number:
                return listener
        return None

    cdef int remove_listener(self, int number) except -1:
        """Nobody new comes by it. Who has come stays."""
        cdef Listener listener = self.find_listener(number)
        cdef Pending pending
        if listener is None:
            return 0
        for pending in list(self.pending.values()):
            if pending.listener is listener:
                self.drop(pending, CLIENT_CLOSED_REFUSED)
        if not listener.paused_until_ms:
            self.unwatch(listener.fd)
        del self.listeners[listener.fd]
        close(listener.fd)
        return 0

    def carry_out_orders(self) -> None:
        """Of the supervisor, which waits for the answer."""
        cdef Listener listener
        received = receive_order(self.control, self.topology.parse_listener)
        while received is not None:
            order, fd = received
            problem = ""
            try:
                if order.verb == "remove":
                    self.remove_listener(order.listener.number)
                elif order.verb == "reload":
                    listener = self.find_listener(order.listener.number)
                    settings = listener.settings
                    listener.context = build_context(settings.tls, settings.over_websocket, self.keylog.path)
                else:
                    self.put_listener(order.listener, fd)
            except (TlsError, OSError) as error:
                problem = str(error)
            send_answer(self.control, problem)
            received = receive_order(self.control, self.topology.parse_listener)

    cdef int watch(self, int fd) except -1:
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.fd = fd
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef void unwatch(self, int fd) noexcept:
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, fd, NULL)

    cdef void count(self, int counter, uint64_t change=1) noexcept:
        self.slot.values[counter] += change

    # --- the loop -------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until `draining` is set. Raises OSError for what is no client's doing."""
        self.read_clock()
        while not self.draining:
            self.one_pass()

    cdef int one_pass(self) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count, i, fd
        cdef list handshakes = []
        count = self.wait(events, self.sleep_ms())
        PyErr_CheckSignals()
        self.read_clock()
        self.counters.beat(self.process, self.now_ms)
        for i in range(count):
            fd = events[i].data.fd
            pump = self.pumps.get(fd) if self.pumps else None
            if pump is not None:
                self.work_pump(<Pump>pump, fd, events[i].events)
                continue
            pending = self.pending.get(fd)
            if pending is not None:
                if (<Pending>pending).layer == TLS_LAYER:
                    handshakes.append(pending)
                else:
                    self.read_some(<Pending>pending)
            elif fd in self.listeners:
                self.accept_some(<Listener>self.listeners[fd])
            elif fd == self.control:
                self.carry_out_orders()
        # Established connections first, and a few handshakes a pass: epoll reports the others again.
        for pending in handshakes[:<int>HANDSHAKES_BESIDE if self.pumps else <int>HANDSHAKES]:
            if self.pending.get((<Pending>pending).fd) is pending:
                self.read_some(<Pending>pending)
        self.expire()
        return self.retry_held()

    def stop_accepting(self) -> None:
        """The beginning of the end: hands over what is complete within a moment, refuses what is held, closes the rest."""
        cdef Pending pending
        cdef Listener listener
        cdef uint64_t deadline
        for listener in self.listeners.values():
            if not listener.paused_until_ms:
                self.unwatch(listener.fd)
        self.listeners.clear()
        self.read_clock()
        deadline = self.now_ms + LAST_CONNECT_MS
        while self.pending and self.now_ms < deadline:
            self.one_pass()
        for pending in list(self.pending.values()):
            self.read_some(pending)
        self.retry_held()
        for held in self.held:
            while held:
                self.refuse(<Pending>held.popleft())
        for pending in list(self.pending.values()):
            self.drop(pending, CLIENT_CLOSED_REFUSED)

    def see_off(self) -> None:
        """Carries what workers still say to clients over TLS; ends when none is left, which the workers see to."""
        while self.pumps:
            self.one_pass()

    cdef void read_clock(self) noexcept:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.now_ms = <uint64_t>now.tv_sec * 1000 + <uint64_t>now.tv_nsec // 1000000

    cdef int sleep_ms(self) except -1:
        """Until the next thing to do by itself, at most PASS_MAX_MS."""
        cdef uint64_t wake = self.now_ms + PASS_MAX_MS
        cdef Listener listener
        if self.held_count:
            wake = self.now_ms + <uint64_t>TICK_MS
        if self.pending:
            wake = min(wake, (<Pending>next(iter(self.pending.values()))).accepted_ms + self.idle_timeout_ms)
        for listener in self.listeners.values():
            if listener.paused_until_ms:
                wake = min(wake, listener.paused_until_ms)
            if not listener.plain:
                for queue, timeout_ms in zip(listener.opening, listener.timeouts_ms):
                    if queue:
                        wake = min(wake, <uint64_t>((<Pending>next(iter(queue.values()))).accepted_ms + timeout_ms))
        if self.endings:
            wake = min(wake, (<Pump>next(iter(self.endings))).ending_ms)
        return <int>(wake - self.now_ms) if wake > self.now_ms else 0

    cdef int wait(self, epoll_event* events, int timeout_ms) except -1:
        cdef int count
        with nogil:
            count = epoll_wait(self.epoll, events, EVENTS, timeout_ms)
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            return 0
        return count

    cdef int expire(self) except -1:
        """Ends what has waited too long for its CONNECT, and the pauses that are over."""
        cdef Pending pending
        cdef Listener listener
        while self.pending:
            pending = <Pending>next(iter(self.pending.values()))
            if pending.accepted_ms + self.idle_timeout_ms > self.now_ms:
                break
            self.drop(pending, CLIENT_CLOSED_IDLE_TIMEOUT)
        for listener in self.listeners.values():
            if listener.paused_until_ms and listener.paused_until_ms <= self.now_ms:
                listener.paused_until_ms = 0
                self.watch(listener.fd)
            if not listener.plain:
                self.expire_openings(listener)
        while self.endings and (<Pump>next(iter(self.endings))).ending_ms <= self.now_ms:
            self.end_pump(<Pump>next(iter(self.endings)))
        return 0

    cdef int expire_openings(self, Listener listener) except -1:
        """Ends those whose PROXY header or TLS handshake takes too long."""
        cdef Pending pending
        for queue, timeout_ms, counter, words in zip(
            listener.opening, listener.timeouts_ms, (CLIENT_CLOSED_PROXY, CLIENT_CLOSED_TLS),
            ("no PROXY header in time", "no TLS handshake in time"),
        ):
            while queue:
                pending = <Pending>next(iter(queue.values()))
                if pending.accepted_ms + <uint64_t>timeout_ms > self.now_ms:
                    break
                self.drop(pending, counter, words)
        return 0

    # --- accepting ------------------------------------------------------------------------------------------------------------

    cdef int accept_some(self, Listener listener) except -1:
        cdef sockaddr_storage address
        cdef unsigned int size
        cdef int i, fd, wait_ms
        for i in range(ACCEPTS):
            for bucket in listener.buckets:
                wait_ms = bucket.wait_ms(self.now_ms)
                if wait_ms:
                    return self.pause(listener, wait_ms)
            size = sizeof(address)
            fd = accept4(listener.fd, <sockaddr*>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    for other in self.listeners.values():
                        self.pause(<Listener>other, PAUSE_MS)   # trying on would spin
                return 0                   # nobody there; any other error belongs to a connection that is gone already
            for bucket in listener.buckets:
                bucket.take()
            if listener.rules is not None and not self.may_come(listener, &address):
                close(fd)
                continue
            # Counted first, then looked at, so that acceptors together never let in one too many; they may both refuse the last.
            self.opened(listener.number)
            if listener.max_connections and self.counters.sockets(listener.number) > listener.max_connections:
                self.count(CLIENT_CLOSED_MAX_CONNECTIONS)
                self.closed(listener.number)
                close(fd)
                continue
            self.admit(fd, &address, listener)
        return 0

    cdef int admit(self, int fd, const sockaddr_storage* address, Listener listener) except -1:
        cdef Pending pending = Pending.__new__(Pending)
        pending.fd = fd
        pending.listener = listener
        put_peer(&pending.peer, address)
        pending.accepted_ms = self.now_ms
        pending.layer = READY
        self.pending[fd] = pending
        if not listener.plain:
            pending.opening = Opening(listener.settings, listener.context_now if listener.context is not None else None, self.keylog)
            self.note_layer(pending)
        if len(self.pending) + self.held_count > self.pending_max:
            self.drop(<Pending>next(iter(self.pending.values())), CLIENT_CLOSED_REFUSED, "too many connections wait here")
        if fd not in self.pending:
            return 0
        # Of TLS nothing is there yet: its first bytes come a round trip later.
        return self.wait_for_more(pending) if pending.layer == TLS_LAYER else self.read_some(pending)

    cdef bint may_come(self, Listener listener, const sockaddr_storage* address) except -1:
        cdef PeerAddress peer
        put_peer(&peer, address)
        if peer.family == 0 or listener.rules.allow(peer.host[:4] if peer.family == IPV4 else peer.host[:16]):
            return True                    # a unix socket has no address; who may open it says the file system
        self.count(CLIENT_CLOSED_ACCESS_RULES)
        self.tell(listener, &peer, CLIENT_CLOSED_ACCESS_RULES, "")
        return False

    cdef int note_layer(self, Pending pending) except -1:
        """Each layer has a timeout of its own, from accept, and so its own queue."""
        cdef int layer = pending.opening.layer
        if layer != pending.layer:
            if pending.layer < UPGRADE_LAYER:
                del pending.listener.opening[pending.layer][pending.fd]
            if layer < UPGRADE_LAYER:
                pending.listener.opening[layer][pending.fd] = pending
            pending.layer = layer
        if layer == TLS_LAYER and pending.opening.tls is not None:
            if pending.fd not in self.handshaking:
                self.handshaking[pending.fd] = pending
                if len(self.handshaking) > HANDSHAKES_MAX:
                    self.drop(<Pending>next(iter(self.handshaking.values())), CLIENT_CLOSED_TLS, "too many handshakes at a time")
        else:
            self.handshaking.pop(pending.fd, None)
        return 0

    cdef int tell(self, Listener listener, const PeerAddress* peer, int counter, str text) except -1:
        """A line for the log about one that goes before it has a worker."""
        cdef str line = f"client refused listener={listener.name.decode()} peer={address_text(peer) or chr(34) * 2} reason={NAMES[counter].removeprefix('client.closed.')}"
        self.notices.say("info", f"{line} detail={quoted(text)}" if text else line, self.now_ms)
        return 0

    cdef int pause(self, Listener listener, int pause_ms) except -1:
        if not listener.paused_until_ms:
            self.unwatch(listener.fd)
        listener.paused_until_ms = max(listener.paused_until_ms, self.now_ms + <uint64_t>pause_ms)
        return 0

    cdef void opened(self, int listener) noexcept:
        self.slot.sockets[listener].here += 1
        self.slot.sockets[listener].balance += 1

    cdef void closed(self, int listener) noexcept:
        self.slot.sockets[listener].balance -= 1
        self.slot.sockets[listener].here -= 1

    # --- reading --------------------------------------------------------------------------------------------------------------

    cdef int read_some(self, Pending pending) except -1:
        cdef ssize_t got = recv(pending.fd, self.buffer, READ_BYTES, MSG_DONTWAIT)
        cdef const uint8_t* client_id = NULL
        cdef const uint8_t* data = self.buffer   # of one that is complete at once nothing is copied
        cdef size_t size = <size_t>max(got, 0)
        cdef uint32_t id_size = 0
        cdef int outcome
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return self.wait_for_more(pending)
        if got <= 0:
            return self.drop(pending, CLIENT_CLOSED_RESET)
        if pending.opening is not None:
            return self.open_some(pending, self.buffer[:got])
        if pending.size:
            if not self.keep(pending, data, size):
                return self.drop(pending, CLIENT_CLOSED_TOO_LARGE)
            data = pending.data
            size = pending.size
        outcome = peek(data, size, self.max_packet, &client_id, &id_size)
        if outcome == NOT_CONNECT:
            return self.drop(pending, CLIENT_CLOSED_NOT_CONNECT)   # [MQTT-3.1.0-1]
        if outcome == TOO_LARGE:
            return self.drop(pending, CLIENT_CLOSED_TOO_LARGE)
        if outcome == NEED_MORE:
            if not pending.size and not self.keep(pending, data, size):
                return self.drop(pending, CLIENT_CLOSED_TOO_LARGE)
            return self.wait_for_more(pending)
        self.choose_worker(pending, outcome, client_id, id_size)
        return self.leave(pending, data, size)

    cdef int open_some(self, Pending pending, bytes data) except -1:
        """Bytes for the layers below MQTT; what comes out of them is looked at as any CONNECT."""
        cdef bytes mqtt, output
        cdef const uint8_t* client_id = NULL
        cdef uint32_t id_size = 0
        cdef int outcome
        opening = pending.opening
        self.count(BYTES_RECEIVED, PyBytes_GET_SIZE(data))
        try:
            opening.receive(data)
        except Refused as refused:
            return self.turn_away(pending, refused)
        output = opening.take_output()
        # A few KB into an empty socket: what does not fit goes to somebody who takes nothing.
        if output and send(pending.fd, PyBytes_AS_STRING(output), PyBytes_GET_SIZE(output), MSG_NOSIGNAL | MSG_DONTWAIT) \
                != PyBytes_GET_SIZE(output):
            return self.drop(pending, CLIENT_CLOSED_RESET)
        self.kept_bytes += <size_t>opening.kept - pending.charged
        pending.charged = <size_t>opening.kept
        if self.kept_bytes > BYTES_MAX:
            return self.drop(pending, CLIENT_CLOSED_TOO_LARGE, "too many bytes wait here")
        self.note_layer(pending)
        if pending.fd not in self.pending:
            return 0
        if opening.layer != READY or not opening.mqtt:
            return self.wait_for_more(pending)
        mqtt = bytes(opening.mqtt)
        outcome = peek(<const uint8_t*>PyBytes_AS_STRING(mqtt), PyBytes_GET_SIZE(mqtt), self.max_packet, &client_id, &id_size)
        if outcome == NOT_CONNECT:
            return self.drop(pending, CLIENT_CLOSED_NOT_CONNECT)   # [MQTT-3.1.0-1]
        if outcome == TOO_LARGE:
            return self.drop(pending, CLIENT_CLOSED_TOO_LARGE)
        if outcome == NEED_MORE:
            return self.wait_for_more(pending)
        if opening.peer:
            pending.peer = parse_address(opening.peer)
        self.choose_worker(pending, outcome, client_id, id_size)
        data = opening.for_worker
        return self.leave(pending, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int turn_away(self, Pending pending, refused) except -1:
        """Tells the peer why, as far as its protocol can, and the log."""
        cdef bytes words = pending.opening.last_words(refused)
        self.speak_last(pending.fd, <const uint8_t*>PyBytes_AS_STRING(words), PyBytes_GET_SIZE(words))
        return self.drop(pending, refused.counter, str(refused))

    cdef bint speak_last(self, int fd, const uint8_t* words, size_t size) noexcept:
        """Sends, and shuts the socket so that what was sent arrives. Whether it was taken."""
        cdef int i
        cdef bint taken = size > 0 and send(fd, words, size, MSG_NOSIGNAL | MSG_DONTWAIT) == <ssize_t>size
        # Closing a socket with unread bytes resets the connection, and the answer would be lost with it.
        shutdown(fd, SHUT_WR)
        for i in range(LAST_READS):
            if recv(fd, self.buffer, READ_BYTES, MSG_DONTWAIT) <= 0:
                break
        return taken

    cdef int wait_for_more(self, Pending pending) except -1:
        if not pending.watched:
            self.watch(pending.fd)
            pending.watched = True
        return 0

    cdef bint keep(self, Pending pending, const uint8_t* data, size_t size) except -1:
        """False when all buffers together would be over their limit."""
        cdef size_t before = pending.capacity
        if self.kept_bytes + size > BYTES_MAX:
            return False
        pending.keep(data, size)
        self.kept_bytes += pending.capacity - before
        return True

    cdef int drop(self, Pending pending, int counter, str text="") except -1:
        """Closes a pending socket. `text`: what the log shall say."""
        self.count(counter)
        self.count(BYTES_RECEIVED, pending.size)
        if text:
            self.tell(pending.listener, &pending.peer, counter, text)
        self.forget(pending)
        self.closed(pending.listener.number)
        close(pending.fd)
        return 0

    cdef int forget(self, Pending pending) except -1:
        """It is pending no more."""
        del self.pending[pending.fd]
        self.kept_bytes -= pending.capacity + pending.charged
        pending.charged = 0
        if pending.opening is not None:
            self.handshaking.pop(pending.fd, None)
            if pending.layer < UPGRADE_LAYER:
                del pending.listener.opening[pending.layer][pending.fd]
        return 0

    # --- handing over ---------------------------------------------------------------------------------------------------------

    cdef int choose_worker(self, Pending pending, int outcome, const uint8_t* client_id, uint32_t size) except -1:
        cdef bytes assigned_id = b"", forced
        cdef HandoverHeader header
        extra = pending.listener.demands
        if pending.opening is not None:
            extra = extra | pending.opening.extra()
        if extra and "client_id" in extra:
            forced = extra["client_id"]
            client_id = <const uint8_t*>PyBytes_AS_STRING(forced)
            size = <uint32_t>PyBytes_GET_SIZE(forced)
        if outcome == UNCLEAR:
            # Whose it is cannot be known, nor does it matter who refuses it: the workers take turns.
            self.next_worker = (self.next_worker + 1) % self.workers
            pending.worker = self.next_worker
        else:
            if not size:
                assigned_id = new_client_id(self.topology.node_id)   # [MQTT-3.1.3-6]
                client_id = <const uint8_t*>PyBytes_AS_STRING(assigned_id)
                size = <uint32_t>PyBytes_GET_SIZE(assigned_id)
            pending.worker = self.owners[crc32(PyBytes_FromStringAndSize(<const char*>client_id, size)) % PARTITIONS]
        header.accepted_ms = pending.accepted_ms
        header.peer = pending.peer
        header.listener = <uint16_t>pending.listener.number
        pending.header = pack_header(&header, pending.listener.name, assigned_id, cbor2.dumps(extra) if extra else b"")
        return 0

    cdef int leave(self, Pending pending, const uint8_t* data, size_t size) except -1:
        """From pending to the worker, or to those that are held for it."""
        held = self.held[pending.worker]
        if pending.watched:
            self.unwatch(pending.fd)
            pending.watched = False
        # Nobody overtakes those who already wait for this worker.
        if not held and self.hand_over(pending, data, size):
            self.forget(pending)
            return 0
        if not pending.size and not self.keep(pending, data, size):
            return self.drop(pending, CLIENT_CLOSED_REFUSED)
        self.forget(pending)
        self.kept_bytes += pending.capacity
        pending.held_ms = self.now_ms
        held.append(pending)
        self.held_count += 1
        return 0

    cdef bint hand_over(self, Pending pending, const uint8_t* data, size_t size) except -1:
        cdef int channel = self.handover[pending.worker]
        if self.counters.state(pending.worker) != STATE_READY:
            return False
        if pending.opening is not None and pending.opening.tls is not None:
            if not self.make_pair(pending) or not send_socket(channel, pending.far, data, size, pending.header):
                return False
            self.slot.sockets[pending.listener.number].here -= 1
            close(pending.far)
            return self.start_pump(pending)
        if not send_socket(channel, pending.fd, data, size, pending.header):
            return False
        self.slot.sockets[pending.listener.number].here -= 1
        close(pending.fd)
        return True

    cdef bint make_pair(self, Pending pending) except -1:
        """The worker's end and ours, of a connection whose TLS stays here. False if there are no descriptors for it now."""
        if pending.inner < 0:
            try:
                near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError:
                return False
            pending.inner = near.detach()
            pending.far = far.detach()
        return True

    # --- TLS that stays here --------------------------------------------------------------------------------------------------

    cdef bint start_pump(self, Pending pending) except -1:
        cdef Pump pump = Pump.__new__(Pump)
        opening = pending.opening
        pump.outer = pending.fd
        pump.inner = pending.inner
        pending.inner = pending.far = -1
        pump.tls = opening.tls
        pump.incoming = opening.incoming
        pump.outgoing = opening.outgoing
        self.pumps[pump.outer] = self.pumps[pump.inner] = pump
        self.watch_pump(pump)
        return True

    cdef int work_pump(self, Pump pump, int fd, uint32_t events) except -1:
        if not pump.ready(fd, events, self.pump_buffer, PUMP_BYTES):
            return self.end_pump(pump)
        if (pump.inner_ended or pump.outer_ended) and not pump.ending_ms:
            pump.ending_ms = self.now_ms + <uint64_t>LAST_WORDS_MS
            self.endings[pump] = None
        return self.watch_pump(pump)

    cdef int watch_pump(self, Pump pump) except -1:
        """Asks for what it can go on with. An end that is over is out of epoll: it would report its end again and again."""
        cdef uint32_t outer = (0 if pump.kept_in is not None or pump.outer_ended else EPOLLIN) | (EPOLLOUT if pump.kept_out is not None else 0)
        cdef uint32_t inner = (0 if pump.kept_out is not None or pump.inner_ended else EPOLLIN) | (EPOLLOUT if pump.kept_in is not None else 0)
        self.ask(pump.outer, pump.outer_interest, outer)
        self.ask(pump.inner, pump.inner_interest, inner)
        pump.outer_interest = outer
        pump.inner_interest = inner
        return 0

    cdef int ask(self, int fd, uint32_t before, uint32_t interest) except -1:
        cdef epoll_event event
        if before == interest:
            return 0
        event.events = interest
        event.data.fd = fd
        if epoll_ctl(self.epoll, EPOLL_CTL_DEL if not interest else EPOLL_CTL_MOD if before else EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef int end_pump(self, Pump pump) except -1:
        del self.pumps[pump.outer], self.pumps[pump.inner]
        self.endings.pop(pump, None)
        pump.close()
        return 0

    cdef int retry_held(self) except -1:
        """Each worker's queue is tried from its head until one does not go through."""
        cdef Pending pending
        if not self.held_count:
            return 0
        for held in self.held:
            while held:
                pending = <Pending>held[0]
                if self.hand_over(pending, pending.data, pending.size):
                    held.popleft()
                    self.held_count -= 1
                    self.kept_bytes -= pending.capacity
                elif self.now_ms - pending.held_ms >= HOLD_LIMIT_MS:
                    self.refuse(<Pending>held.popleft())
                else:
                    break
        return 0

    cdef int refuse(self, Pending pending) except -1:
        """CONNACK "server unavailable" to one that was held, and the end of it (MQTT 5.0 §3.2.2.2, 3.1.1 §3.2.2.3)."""
        cdef bytes answer = b"\x20\x02\x00\x03", mqtt
        if pending.opening is None:
            level = protocol_level(pending.data, pending.size)
        else:
            mqtt = bytes(pending.opening.mqtt)
            level = protocol_level(<const uint8_t*>PyBytes_AS_STRING(mqtt), PyBytes_GET_SIZE(mqtt))
        if level >= 5:
            answer = b"\x20\x03\x00\x88\x00"
        if pending.opening is not None:
            answer = pending.opening.wrap(answer)
        if self.speak_last(pending.fd, <const uint8_t*>PyBytes_AS_STRING(answer), PyBytes_GET_SIZE(answer)):
            self.count(PACKETS_SENT)
            self.count(PACKETS_CONNACK_SENT)
            self.count(PACKETS_CONNACK_ERROR)
            self.count(BYTES_SENT, PyBytes_GET_SIZE(answer))
        self.closed(pending.listener.number)
        close(pending.fd)
        self.count(CLIENT_CLOSED_REFUSED)
        self.count(BYTES_RECEIVED, pending.size)
        self.held_count -= 1
        self.kept_bytes -= pending.capacity
        return 0


def demands_of(settings, at_start) -> dict:
    """What a worker must know of a listener. `at_start`: its settings when the broker started, which workers know; None without."""
    demands = {}
    if at_start is None or (settings.enable_authn, settings.auth_chain) != (at_start.enable_authn, at_start.auth_chain):
        demands["authn"] = [settings.enable_authn, settings.auth_chain]
    for name, rated in (("rates", settings), ("limiter", settings.limiter)):
        rates = [0.0 if rate == inf else rate for rate in (rated.messages_rate, rated.bytes_rate)]
        if any(rates):
            demands[name] = rates
    if settings.mountpoint:
        demands["mountpoint"] = settings.mountpoint
    return demands


cdef void put_peer(PeerAddress* peer, const sockaddr_storage* address) noexcept:
    """A mapped IPv4 address becomes IPv4."""
    cdef const sockaddr_in* four = <const sockaddr_in*>address
    cdef const sockaddr_in6* six = <const sockaddr_in6*>address
    cdef const uint8_t* host = <const uint8_t*>&six.sin6_addr
    memset(peer, 0, sizeof(peer[0]))
    if address.ss_family == AF_INET:
        peer.family = IPV4
        peer.port = ntohs(four.sin_port)
        memcpy(peer.host, &four.sin_addr, 4)
    elif address.ss_family == AF_INET6:
        peer.port = ntohs(six.sin6_port)
        if memcmp(host, MAPPED, MAPPED_SIZE) == 0:
            peer.family = IPV4
            memcpy(peer.host, host + MAPPED_SIZE, 4)
        else:
            peer.family = IPV6
            memcpy(peer.host, host, 16)
