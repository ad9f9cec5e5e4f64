"""The acceptor's loop: accept, read up to the client id, hand over (DESIGN: hand-over).

    accept -> [ pending: waits for bytes ] -> peek -> worker of crc32(client id) % 1024 % workers
                    | idle_timeout, counted            | worker down or channel full: [ held ], then CONNACK 0x88

A socket is taken out of epoll before it is handed over: the registration belongs to the open file, which lives on in the
worker. Mostly the CONNECT is there when the connection is, and the socket never gets into epoll.

Invariants: a socket is in `pending` or in `held`, or it is gone; only pending ones are in epoll; `kept_bytes` is the sum of
the buffers of both.
"""

import resource
from collections import OrderedDict, deque
from math import inf
from zlib import crc32

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from acceptor.handover cimport HandoverHeader, pack_header, send_socket
from acceptor.peek cimport FOUND, NEED_MORE, NOT_CONNECT, TOO_LARGE, UNCLEAR, peek, protocol_level
from acceptor.sockets cimport (
    AF_INET, AF_INET6, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, TCP_NODELAY, accept4, ntohs, setsockopt,
    sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
)
from shm.address cimport PeerAddress
from shm.counters cimport (
    BYTES_RECEIVED, BYTES_SENT, CLIENT_CLOSED_IDLE_TIMEOUT, CLIENT_CLOSED_MAX_CONNECTIONS, CLIENT_CLOSED_NOT_CONNECT,
    CLIENT_CLOSED_REFUSED, CLIENT_CLOSED_RESET, CLIENT_CLOSED_TOO_LARGE, PACKETS_CONNACK_ERROR, PACKETS_CONNACK_SENT, PACKETS_SENT,
    Counters, CounterSlot,
)
from shm.posix cimport (
    CLOCK_MONOTONIC, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, clock_gettime,
    close, epoll_create1, epoll_ctl, epoll_event, epoll_wait, recv, send, shutdown, timespec,
)

from acceptor.admission import TokenBucket, new_client_id
from shm.counters import ProcessState
from shm.topology import PARTITIONS

__all__ = ["HOLD_LIMIT_S", "PENDING_MAX", "Acceptor"]

cdef enum:
    READ_BYTES = 65536                     # one recv, bytes
    EVENTS = 512                           # epoll events a pass
    ACCEPTS = 256                          # sockets accepted from one listener a pass
    BUFFER_MIN = 256                       # first buffer of a trickling client, bytes; most CONNECTs fit
    PASS_MAX_MS = 1000                     # longest sleep: a signal that comes just before it waits this long
    IPV4 = 4                               # families of a PeerAddress
    IPV6 = 6
    MAPPED_SIZE = 12                       # bytes before the IPv4 address in a mapped one
    LAST_READS = 4                         # recv calls that empty a socket before it is closed

PENDING_MAX = 8192
"""Sockets that one acceptor holds at a time, or half of its descriptors if those are fewer. The oldest goes first."""

PENDING_BYTES_MAX = 64 << 20
"""Buffers of all sockets that one acceptor holds, bytes: 64 of the largest packets of the default limit. Whoever needs more goes."""

HOLD_LIMIT_S = 5
"""How long a socket waits for a worker that is down or busy: several times what a restart takes."""

TICK_MS = 50
"""Between two tries to hand over what is held."""

PAUSE_MS = 1000
"""How long accepting pauses when descriptors have run out, as esockd does."""

CONNECT_BURST_S = 1.0
"""Seconds of `max_conn_rate` that may come at once."""

cdef const char* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"   # ::ffff:0:0/96

cdef int READY = int(ProcessState.READY)
cdef uint64_t BYTES_MAX = PENDING_BYTES_MAX
cdef uint64_t HOLD_LIMIT_MS = HOLD_LIMIT_S * 1000


cdef class Listener:
    """A listening socket of this acceptor."""
    cdef int fd, number                    # number: its place in the topology
    cdef bytes name
    cdef object bucket                     # TokenBucket of max_conn_rate, or None
    cdef int64_t max_connections           # 0: no limit
    cdef uint64_t paused_until_ms          # 0: in epoll


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

    def __cinit__(self):
        self.data = NULL
        self.worker = -1

    def __dealloc__(self):
        free(self.data)

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
    cdef int number, workers, epoll, next_worker
    cdef uint64_t now_ms, idle_timeout_ms, kept_bytes
    cdef uint32_t max_packet
    cdef size_t pending_max, held_count
    cdef dict listeners                    # fd -> Listener
    cdef object pending                    # OrderedDict: fd -> Pending, oldest first
    cdef list held                         # of each worker: deque of Pending, longest held first
    cdef public bint draining
    cdef uint8_t buffer[READ_BYTES]

    def __init__(self, topology, int number, Counters counters):
        cdef uint64_t descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.topology = topology
        self.number = number
        self.workers = topology.workers
        self.counters = counters
        self.slot = counters.slot(topology.processes + number)
        self.idle_timeout_ms = <uint64_t>(topology.settings.mqtt.idle_timeout * 1000)
        self.max_packet = topology.settings.mqtt.max_packet_size
        self.pending_max = min(<uint64_t>PENDING_MAX, descriptors // 2)
        self.pending = OrderedDict()
        self.held = [deque() for _ in range(self.workers)]
        self.listeners = {}
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        for place, sockets in enumerate(topology.listeners):
            self.add_listener(place, sockets)

    def __dealloc__(self):
        close(self.epoll)

    cdef int add_listener(self, int place, sockets) except -1:
        cdef int on = 1
        cdef Listener listener = Listener.__new__(Listener)
        settings = self.topology.settings.listeners[sockets.name]
        rate = settings.max_conn_rate
        listener.number = place
        listener.fd = sockets.descriptors[self.number]
        listener.name = sockets.name.encode()
        # Acknowledgements are small and must not wait for each other. Linux hands the option down to what is accepted.
        if setsockopt(listener.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0:
            raise OSError(errno, "TCP_NODELAY")
        listener.max_connections = settings.max_connections
        if rate != inf:
            # The kernel spreads connections evenly over the acceptors, so each gets its share of the rate.
            share = rate / self.topology.acceptors
            listener.bucket = TokenBucket(share, share * CONNECT_BURST_S)
        self.listeners[listener.fd] = listener
        self.watch(listener.fd)
        return 0

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
        cdef epoll_event events[EVENTS]
        cdef int count, i, fd
        self.read_clock()
        while not self.draining:
            count = self.wait(events, self.sleep_ms())
            PyErr_CheckSignals()
            self.read_clock()
            for i in range(count):
                fd = events[i].data.fd
                pending = self.pending.get(fd)
                if pending is not None:
                    self.read_some(<Pending>pending)
                elif fd in self.listeners:
                    self.accept_some(<Listener>self.listeners[fd])
            self.expire()
            self.retry_held()

    def finish(self) -> None:
        """The end: hands over what is complete, refuses what is held, closes the rest."""
        cdef Pending pending
        for listener in self.listeners:
            self.unwatch(listener)
        self.read_clock()
        for pending in list(self.pending.values()):
            self.read_some(pending)
        self.retry_held()
        for held in self.held:
            while held:
                self.refuse(<Pending>held.popleft())
        for pending in list(self.pending.values()):
            self.drop(pending, CLIENT_CLOSED_REFUSED)

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
        return 0

    # --- accepting ------------------------------------------------------------------------------------------------------------

    cdef int accept_some(self, Listener listener) except -1:
        cdef sockaddr_storage address
        cdef unsigned int size
        cdef int i, fd, wait_ms
        for i in range(ACCEPTS):
            if listener.bucket is not None:
                wait_ms = listener.bucket.wait_ms(self.now_ms)
                if wait_ms:
                    return self.pause(listener, wait_ms)
            size = sizeof(address)
            fd = accept4(listener.fd, <sockaddr*>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    for other in self.listeners.values():
                        self.pause(<Listener>other, PAUSE_MS)   # trying on would spin
                return 0                   # nobody there; any other error belongs to a connection that is gone already
            if listener.bucket is not None:
                listener.bucket.take()
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
        self.pending[fd] = pending
        if len(self.pending) + self.held_count > self.pending_max:
            self.drop(<Pending>next(iter(self.pending.values())), CLIENT_CLOSED_REFUSED)
        if fd in self.pending:
            self.read_some(pending)
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

    cdef int drop(self, Pending pending, int counter) except -1:
        """Closes a pending socket."""
        self.count(counter)
        self.count(BYTES_RECEIVED, pending.size)
        del self.pending[pending.fd]
        self.kept_bytes -= pending.capacity
        self.closed(pending.listener.number)
        close(pending.fd)
        return 0

    # --- handing over ---------------------------------------------------------------------------------------------------------

    cdef int choose_worker(self, Pending pending, int outcome, const uint8_t* client_id, uint32_t size) except -1:
        cdef bytes assigned_id = b""
        cdef HandoverHeader header
        if outcome == UNCLEAR:
            # Whose it is cannot be known, nor does it matter who refuses it: the workers take turns.
            self.next_worker = (self.next_worker + 1) % self.workers
            pending.worker = self.next_worker
        else:
            if not size:
                assigned_id = new_client_id(self.topology.node_id)   # [MQTT-3.1.3-6]
                client_id = <const uint8_t*>PyBytes_AS_STRING(assigned_id)
                size = <uint32_t>PyBytes_GET_SIZE(assigned_id)
            pending.worker = crc32(PyBytes_FromStringAndSize(<const char*>client_id, size)) % PARTITIONS % self.workers
        header.accepted_ms = pending.accepted_ms
        header.peer = pending.peer
        pending.header = pack_header(&header, pending.listener.name, assigned_id, b"")
        return 0

    cdef int leave(self, Pending pending, const uint8_t* data, size_t size) except -1:
        """From pending to the worker, or to those that are held for it."""
        held = self.held[pending.worker]
        if pending.watched:
            self.unwatch(pending.fd)
            pending.watched = False
        # Nobody overtakes those who already wait for this worker.
        if not held and self.hand_over(pending, data, size):
            del self.pending[pending.fd]
            self.kept_bytes -= pending.capacity
            return 0
        if not pending.size and not self.keep(pending, data, size):
            return self.drop(pending, CLIENT_CLOSED_REFUSED)
        del self.pending[pending.fd]
        pending.held_ms = self.now_ms
        held.append(pending)
        self.held_count += 1
        return 0

    cdef bint hand_over(self, Pending pending, const uint8_t* data, size_t size) except -1:
        if self.counters.state(pending.worker) != READY:
            return False
        if not send_socket(self.topology.handover[self.number][pending.worker][0], pending.fd, data, size, pending.header):
            return False
        self.slot.sockets[pending.listener.number].here -= 1
        close(pending.fd)
        return True

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
        cdef const uint8_t* answer = <const uint8_t*>b"\x20\x02\x00\x03"
        cdef size_t size = 4
        cdef int i
        if protocol_level(pending.data, pending.size) >= 5:
            answer = <const uint8_t*>b"\x20\x03\x00\x88\x00"
            size = 5
        if send(pending.fd, answer, size, MSG_NOSIGNAL | MSG_DONTWAIT) == <ssize_t>size:
            self.count(PACKETS_SENT)
            self.count(PACKETS_CONNACK_SENT)
            self.count(PACKETS_CONNACK_ERROR)
            self.count(BYTES_SENT, size)
        # Closing a socket with unread bytes resets the connection, and the answer would be lost with it.
        shutdown(pending.fd, SHUT_WR)
        for i in range(LAST_READS):
            if recv(pending.fd, self.buffer, READ_BYTES, MSG_DONTWAIT) <= 0:
                break
        self.closed(pending.listener.number)
        close(pending.fd)
        self.count(CLIENT_CLOSED_REFUSED)
        self.count(BYTES_RECEIVED, pending.size)
        self.held_count -= 1
        self.kept_bytes -= pending.capacity
        return 0


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
