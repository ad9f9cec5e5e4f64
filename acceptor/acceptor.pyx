"""The loop of an acceptor: accept, read up to the client id, hand over.

    accept -> [ pending: opening, waits for bytes ] -> peek -> worker of crc32(client id) % 1024
                    | timeouts, counted                 | worker down or channel full: [ held ], then CONNACK 0x88
                                                        `-> TLS that only OpenSSL speaks: a socketpair to the worker, [ pump ]

A socket is taken out of epoll before it is handed over: the registration belongs to the open file, which lives on in the worker. In
most cases the CONNECT arrives together with the connection, and the socket is never added to epoll.

Invariants: an open socket is in exactly one of `pending`, `held` and a pump; only pending sockets and pumps are in epoll;
`kept_bytes` is the sum of the buffers of pending and held sockets.
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
from acceptor.peek cimport NEED_MORE, NOT_CONNECT, TOO_LARGE, UNCLEAR, peek, protocol_level
from acceptor.pump cimport Pump
from acceptor.sockets cimport (
    AF_INET, AF_INET6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, TCP_NODELAY, TCP_QUICKACK, accept4, ntohs, setsockopt,
    sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
)
from shardbroker.mqtt.packets cimport LOGIN_PACKET_MAX
from shm.address cimport PeerAddress, address_text, parse_address
from shm.atomic cimport sb_load
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
from acceptor.notices import Notices
from acceptor.opening import READY, TLS, UPGRADE, Opening
from acceptor.refusal import Refused
from acceptor.rules import AccessRules
from acceptor.secrets import KeyLog
from acceptor.tickets import FILE as TICKET_KEYS
from acceptor.tickets import TicketKeys, label_of
from acceptor.tls import TlsError, build_context
from shm.counters import NAMES, ProcessState
from shm.in_force import InForce
from shm.partitions import PARTITIONS
from shardbroker.logs.phrases import log_line

__all__ = ["HOLD_LIMIT_S", "PENDING_MAX", "Acceptor"]

cdef enum:
    READ_BYTES = 65536                     # the buffer of recv, bytes
    LOGIN_READ_BYTES = 16384               # one recv of a pending socket: what follows the CONNECT is kept by its worker until the login ends
    PUMP_BYTES = 262144                    # ciphertext and plaintext of one round of a pump, bytes
    HANDSHAKES = 16                        # steps of TLS handshakes a pass: a signature takes up to a millisecond
    HANDSHAKES_BESIDE = 4                  # the same while there are pumps, whose clients are delayed meanwhile
    EVENTS = 512                           # epoll events a pass
    ACCEPTS = 256                          # sockets accepted from one listener a pass
    BUFFER_MIN = 256                       # first buffer of a trickling client, bytes; most CONNECTs fit
    LAST_CONNECT_MS = 500                  # for the CONNECT of clients accepted just before the end
    PASS_MAX_MS = 1000                     # longest sleep: a signal that arrives just before it is delayed this long
    IPV4 = 4                               # families of a PeerAddress
    IPV6 = 6
    MAPPED_SIZE = 12                       # bytes before the IPv4 address in a mapped one
    LAST_READS = 4                         # recv calls that empty a socket before it is closed

PENDING_MAX = 8192
"""Sockets that one acceptor holds at a time, or half of its descriptors if those are fewer. The oldest is closed first."""

PENDING_BYTES_MAX = 32 << 20
"""Buffers of all sockets that one acceptor holds, bytes: 64 of the largest CONNECTs. A socket that needs more is closed."""

HOLD_LIMIT_S = 5
"""Seconds that a socket is held for a worker that is down or busy: several times what a restart takes."""

HANDSHAKES_MAX = 1024
"""TLS handshakes under way in one acceptor, at about 50 KB each. The oldest is closed first."""

LAST_WORDS_MS = 2000
"""Time that the peers have to close their ends of a finished TLS connection: twice what a worker waits."""

TICK_MS = 50
"""Interval between two attempts to hand over held sockets."""

PAUSE_MS = 1000
"""Pause of accepting after descriptors have run out, as in esockd."""

CONNECT_BURST_S = 1.0
"""Burst size of the token buckets, in seconds of `max_conn_rate`."""

NO_LIBSSL = "OpenSSL of Python's ssl module cannot be reached"

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
    cdef dict demands                      # for the workers of its clients; mostly empty
    cdef object settings                   # shardbroker.config.listeners.Listener
    cdef object rules                      # AccessRules, None if every address is allowed
    cdef tuple buckets                     # TokenBuckets of max_conn_rate: its own, and the one of all listeners
    cdef int64_t max_connections           # 0: no limit
    cdef uint64_t paused_until_ms          # 0: in epoll
    cdef bint plain                        # MQTT and nothing else: no Opening
    cdef public object context             # ssl.SSLContext for new connections, None without TLS
    cdef object opening                    # for layers PROXY and TLS: OrderedDict fd -> Pending, oldest first
    cdef object timeouts_ms                # of these layers
    cdef object tickets                    # TicketKeys, None if its clients get no session tickets

    def context_now(self):
        if self.tickets is not None:
            self.tickets.turn()
        return self.context


cdef class Pending:
    """A socket that is not handed over yet, and the bytes read from it."""
    cdef int fd, worker                    # worker: -1 until the client id is known
    cdef uint8_t* data
    cdef size_t size, capacity
    cdef PeerAddress peer
    cdef Listener listener
    cdef uint64_t accepted_ms, held_ms
    cdef bytes header                      # of the hand-over, set once the worker is known
    cdef bint watched
    cdef object opening                    # Opening, None for plain MQTT
    cdef int layer                         # of the opening; selects the queue of the listener
    cdef size_t charged                    # bytes of the opening in kept_bytes
    cdef int inner, far                    # socketpair to the worker, for a TLS connection before its hand-over; else -1

    def __cinit__(self):
        self.data = NULL
        self.worker = self.inner = self.far = -1

    def __dealloc__(self):
        free(self.data)
        if self.inner >= 0:
            close(self.inner)
            close(self.far)

    cdef int keep(self, const uint8_t* data, size_t size) except -1:
        """Appends bytes to the buffer, which grows by doubling, so that single bytes are not copied over and over."""
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
    """One acceptor process. `number` selects its listening sockets and its ends of the hand-over channels."""

    cdef object topology
    cdef Counters counters
    cdef CounterSlot slot
    cdef int process
    cdef int number, workers, epoll, next_worker
    cdef tuple owners                      # worker of each partition of client ids
    cdef uint64_t now_ms, idle_timeout_ms, kept_bytes
    cdef object in_force                   # shm.in_force.InForce
    cdef const uint64_t* settings_wanted   # newest generation of the settings that reaches this acceptor
    cdef uint64_t settings_seen            # newest one that was looked at
    cdef tuple shared_buckets              # of all listeners
    cdef uint32_t max_packet
    cdef size_t pending_max, held_count
    cdef dict listeners                    # fd -> Listener
    cdef dict pumps                        # both of its descriptors -> Pump
    cdef object endings                    # OrderedDict: Pump -> None, pumps that are ending, by deadline
    cdef object handshaking                # OrderedDict: fd -> Pending, sockets with a TLS handshake under way, oldest first
    cdef list handover                     # by worker: channel for its connections
    cdef int control                       # channel of the supervisor's orders
    cdef object notices                    # Notices
    cdef object keylog                     # KeyLog
    cdef object tickets                    # TicketKeys, made for the first listener with session tickets
    cdef object pending                    # OrderedDict: fd -> Pending, oldest first
    cdef list held                         # by worker: deque of Pending, longest held first
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
        self.settings_wanted = counters.settings_word(self.process)
        self.in_force = InForce(topology, counters, self.process)
        self.settings_seen = self.in_force.generation
        self.configure(self.in_force.settings)
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
        """Adds a listener, or applies other settings to later connections of an existing one. Raises OSError, TlsError."""
        cdef int on = 1
        cdef Listener listener = self.find_listener(sockets.number)
        settings = sockets.settings
        # Calls that may fail precede all changes: a listener has either its old or its new settings.
        context = self.context_of(sockets.name, settings) if settings.secure else None
        if listener is None:
            listener = Listener.__new__(Listener)
            listener.opening = OrderedDict(), OrderedDict()
            listener.number = sockets.number
            listener.fd = fd
            # Acknowledgements are small and must not be delayed by Nagle's algorithm. On Linux, accepted sockets inherit the
            # option.
            if sockets.port and setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0:
                raise OSError(errno, "TCP_NODELAY")
            self.listeners[fd] = listener
            self.watch(fd)
        elif fd >= 0:
            close(fd)
        listener.context = context
        listener.tickets = self.tickets if settings.secure and settings.tls.session_tickets else None
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

    def context_of(self, str name, settings):
        """Returns the TLS context of a listener. Raises OSError, TlsError."""
        tickets = None
        if settings.tls.session_tickets:
            if self.tickets is None:
                self.tickets = TicketKeys(self.topology.runtime_dir / TICKET_KEYS)
            tickets = self.tickets.of(label_of(name, settings.tls))
        context = build_context(settings.tls, settings.over_websocket, self.keylog.path, tickets)
        if tickets is not None and tickets.refused:
            self.notices.log("warning", log_line("session tickets of one acceptor only", listener=name, reason=NO_LIBSSL), self.now_ms)
        return context

    cdef int configure(self, settings) except -1:
        """Applies all keys that reach acceptors (`Live` in shardbroker/config)."""
        self.idle_timeout_ms = <uint64_t>(settings.mqtt.idle_timeout * 1000)
        self.max_packet = min(<uint32_t>settings.mqtt.max_packet_size, <uint32_t>LOGIN_PACKET_MAX)
        return 0

    cdef int take_settings(self) except -1:
        """Loads and applies the settings in force. After a failure the manager reports this acceptor as behind."""
        self.settings_seen = sb_load(self.settings_wanted)
        try:
            self.configure(self.in_force.load())
            self.in_force.applied()
        except Exception as error:
            self.notices.log("error", log_line("settings not applied", reason=f"{type(error).__name__}: {error}"), self.now_ms)
        return 0

    def bucket_of(self, double rate) -> TokenBucket:
        """Returns a bucket with this acceptor's share of a rate: the kernel spreads connections evenly over the acceptors."""
        share = rate / self.topology.acceptors
        return TokenBucket(share, share * CONNECT_BURST_S)

    cdef Listener find_listener(self, int number):
        cdef Listener listener
        for listener in self.listeners.values():
            if listener.number == number:
                return listener
        return None

    cdef int remove_listener(self, int number) except -1:
        """Stops accepting from a listener. Its established connections remain."""
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
        """Carries out the orders of the supervisor, which waits for each answer."""
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
                    listener.context = self.context_of(listener.name.decode(), listener.settings)
                elif order.verb == "pumps":
                    problem = str(len(self.pumps) // 2)
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
        """Serves until `draining` is set. Raises OSError for errors that no client causes."""
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
        if sb_load(self.settings_wanted) > self.settings_seen:
            self.take_settings()
        for i in range(count):
            fd = events[i].data.fd
            pump = self.pumps.get(fd) if self.pumps else None
            if pump is not None:
                self.work_pump(<Pump>pump, fd, events[i].events)
                continue
            pending = self.pending.get(fd)
            if pending is not None:
                if awaits_handshake(<Pending>pending):
                    handshakes.append(pending)
                else:
                    self.read_some(<Pending>pending)
            elif fd in self.listeners:
                self.accept_some(<Listener>self.listeners[fd])
            elif fd == self.control:
                self.carry_out_orders()
        # Established connections precede handshakes, of which a pass takes only a few: epoll reports the others again.
        for pending in handshakes[:<int>HANDSHAKES_BESIDE if self.pumps else <int>HANDSHAKES]:
            if self.pending.get((<Pending>pending).fd) is pending:
                self.read_some(<Pending>pending)
        self.expire()
        return self.retry_held()

    def stop_accepting(self) -> None:
        """Begins the shutdown: hands over each CONNECT that completes within LAST_CONNECT_MS, refuses held sockets, closes the
        rest."""
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
        """Pumps the last output of workers to clients over TLS, until the workers have closed all of these connections."""
        while self.pumps:
            self.one_pass()

    cdef void read_clock(self) noexcept:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.now_ms = <uint64_t>now.tv_sec * 1000 + <uint64_t>now.tv_nsec // 1000000

    cdef int sleep_ms(self) except -1:
        """Returns the milliseconds until the next deadline, at most PASS_MAX_MS."""
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
        """Closes sockets whose CONNECT is overdue, and ends the pauses that are over."""
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
        """Closes sockets whose PROXY header or TLS handshake is overdue."""
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
        cdef int _, fd, wait_ms
        for _ in range(ACCEPTS):
            for bucket in listener.buckets:
                wait_ms = bucket.wait_ms(self.now_ms)
                if wait_ms:
                    return self.pause(listener, wait_ms)
            size = sizeof(address)
            fd = accept4(listener.fd, <sockaddr*>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    for other in self.listeners.values():
                        self.pause(<Listener>other, PAUSE_MS)   # an immediate retry would spin
                return 0                   # no connection left; any other error belongs to a connection that is already closed
            for bucket in listener.buckets:
                bucket.take()
            if listener.rules is not None and not self.may_come(listener, &address):
                close(fd)
                continue
            # The connection is counted before the check, so that acceptors together never exceed the limit; two may both refuse the
            # last.
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
            self.drop(<Pending>next(iter(self.pending.values())), CLIENT_CLOSED_REFUSED, "too many connections without CONNECT")
        if fd not in self.pending:
            return 0
        # The first bytes of TLS arrive a round trip after the connection, or with the PROXY header: steps of handshakes are for one_pass.
        return self.wait_for_more(pending) if awaits_handshake(pending) else self.read_some(pending)

    cdef bint may_come(self, Listener listener, const sockaddr_storage* address) except -1:
        cdef PeerAddress peer
        put_peer(&peer, address)
        if peer.family == 0 or listener.rules.allow(peer.host[:4] if peer.family == IPV4 else peer.host[:16]):
            return True                    # a unix socket has no address; file permissions restrict access to it
        self.count(CLIENT_CLOSED_ACCESS_RULES)
        self.log_refusal(listener, &peer, CLIENT_CLOSED_ACCESS_RULES, "")
        return False

    cdef int note_layer(self, Pending pending) except -1:
        """Moves a socket to the queue of its layer: each layer has a timeout of its own, counted from accept."""
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
                    self.drop(<Pending>next(iter(self.handshaking.values())), CLIENT_CLOSED_TLS, "too many TLS handshakes at a time")
        else:
            self.handshaking.pop(pending.fd, None)
        return 0

    cdef int log_refusal(self, Listener listener, const PeerAddress* peer, int counter, str text) except -1:
        """Logs the refusal of a connection that has no worker yet."""
        cdef dict detail = {"detail": text} if text else {}
        self.notices.log("info", log_line(
            "client refused", listener=listener.name, peer=address_text(peer), reason=NAMES[counter].removeprefix("client.closed."),
            **detail), self.now_ms)
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
        cdef ssize_t got = recv(pending.fd, self.buffer, LOGIN_READ_BYTES, MSG_DONTWAIT)
        cdef const uint8_t* client_id = NULL
        cdef const uint8_t* data = self.buffer   # a CONNECT that arrives whole is not copied
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
        """Feeds bytes to the layers below MQTT; their plaintext is treated as any CONNECT."""
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
        # A few KB into an empty socket: if they do not fit, the peer does not read.
        if output and send(pending.fd, PyBytes_AS_STRING(output), PyBytes_GET_SIZE(output), MSG_NOSIGNAL | MSG_DONTWAIT) \
                != PyBytes_GET_SIZE(output):
            return self.drop(pending, CLIENT_CLOSED_RESET)
        self.kept_bytes += <size_t>opening.kept - pending.charged
        pending.charged = <size_t>opening.kept
        if self.kept_bytes > BYTES_MAX:
            return self.drop(pending, CLIENT_CLOSED_TOO_LARGE, "too many buffered bytes without CONNECT")
        self.note_layer(pending)
        if pending.fd not in self.pending:
            return 0
        if opening.layer != READY or not opening.mqtt:
            if not output:
                acknowledge(pending.fd)
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
        """Sends the peer the refusal of its protocol layer, logs the refusal and closes the socket."""
        cdef bytes words = pending.opening.last_words(refused)
        self.speak_last(pending.fd, <const uint8_t*>PyBytes_AS_STRING(words), PyBytes_GET_SIZE(words))
        return self.drop(pending, refused.counter, str(refused))

    cdef bint speak_last(self, int fd, const uint8_t* words, size_t size) noexcept:
        """Sends the last bytes and shuts the socket down so that they arrive. Returns whether all of them were accepted."""
        cdef int _
        cdef bint taken = size > 0 and send(fd, words, size, MSG_NOSIGNAL | MSG_DONTWAIT) == <ssize_t>size
        # Closing a socket with unread bytes resets the connection, and the answer would be lost.
        shutdown(fd, SHUT_WR)
        for _ in range(LAST_READS):
            if recv(fd, self.buffer, READ_BYTES, MSG_DONTWAIT) <= 0:
                break
        return taken

    cdef int wait_for_more(self, Pending pending) except -1:
        if not pending.watched:
            self.watch(pending.fd)
            pending.watched = True
        return 0

    cdef bint keep(self, Pending pending, const uint8_t* data, size_t size) except -1:
        """Keeps bytes of a pending socket. False if all buffers together would exceed their limit."""
        cdef size_t before = pending.capacity
        if self.kept_bytes + size > BYTES_MAX:
            return False
        pending.keep(data, size)
        self.kept_bytes += pending.capacity - before
        return True

    cdef int drop(self, Pending pending, int counter, str text="") except -1:
        """Closes a pending socket and counts the reason. `text`: detail for the log; empty: no log line."""
        self.count(counter)
        self.count(BYTES_RECEIVED, pending.size)
        if text:
            self.log_refusal(pending.listener, &pending.peer, counter, text)
        self.forget(pending)
        self.closed(pending.listener.number)
        close(pending.fd)
        return 0

    cdef int forget(self, Pending pending) except -1:
        """Removes a socket from `pending` and its bytes from `kept_bytes`."""
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
            # Without a client id no worker owns the connection, and any may refuse it: the workers take turns.
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
        """Moves a pending socket to its worker, or to the queue of sockets held for that worker."""
        held = self.held[pending.worker]
        if pending.watched:
            self.unwatch(pending.fd)
            pending.watched = False
        # A connection never overtakes those held for the same worker.
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
        """Makes the socketpair of a connection whose TLS stays in this process. False if there are no descriptors left."""
        if pending.inner < 0:
            try:
                near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            except OSError:
                return False
            pending.inner = near.detach()
            pending.far = far.detach()
        return True

    # --- TLS in this process ------------------------------------------------------------------------------------------------------

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
        """Registers in epoll what a pump can proceed with. An end that is over is removed, since epoll would report it forever."""
        cdef uint32_t outer = (0 if pump.kept_in is not None or pump.outer_ended else EPOLLIN) | (EPOLLOUT if pump.kept_out is not None else 0)
        cdef uint32_t inner = (0 if pump.kept_out is not None or pump.inner_ended else EPOLLIN) | (EPOLLOUT if pump.kept_in is not None else 0)
        self.want(pump.outer, pump.outer_interest, outer)
        self.want(pump.inner, pump.inner_interest, inner)
        pump.outer_interest = outer
        pump.inner_interest = inner
        return 0

    cdef int want(self, int fd, uint32_t before, uint32_t interest) except -1:
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
        """Hands over held sockets, each worker's queue from its head up to the first that fails."""
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
        """Sends CONNACK "server unavailable" to a held connection and closes it (MQTT 5.0 §3.2.2.2, 3.1.1 §3.2.2.3)."""
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
    """Returns the settings of a listener that its workers need. `at_start`: its settings at the start of the broker, known to
    workers; None: it is newer."""
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


cdef void acknowledge(int fd) noexcept:
    """Acknowledges what was read, since no answer does: a client with Nagle's algorithm, such as one that sends CONNECT right behind the
    end of its handshake, would wait for that acknowledgement, which the kernel delays by 40 ms."""
    cdef int on = 1
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on))   # not for unix sockets, which do not need it


cdef bint awaits_handshake(Pending pending) noexcept:
    """Returns whether the next bytes may be a step of a TLS handshake: they may follow a PROXY header at once."""
    return pending.layer <= TLS_LAYER and pending.listener.context is not None


cdef void put_peer(PeerAddress* peer, const sockaddr_storage* address) noexcept:
    """Fills in the address; a mapped IPv4 address becomes IPv4."""
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
