from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from perf.histogram cimport Histogram

cdef enum State:
    CLOSED = 0
    CONNECTING = 1                         # CONNECT is written
    SUBSCRIBING = 2
    READY = 3
    SUBSCRIBED = 4                         # churn: READY, and subscribed

# Input of a client: an incomplete packet is kept in `rest` until the next recv. Output: `out[sent:size]`.
cdef struct Client:
    int fd
    int state
    bint dirty                             # is in the list of clients to flush
    bint writable_wanted                   # EPOLLOUT is registered
    uint64_t since_ns                      # start of the current wait
    uint8_t* out
    size_t size, sent, capacity
    uint8_t* rest
    size_t rest_size, rest_capacity


cdef class Clients:
    cdef object plan, route, reason, where, host, context
    cdef list transports                   # client -> perf.transport.Transport; None over plain TCP
    cdef int epoll, count, version, unsent
    cdef Client* clients
    cdef int32_t* dirty
    cdef int dirty_count
    cdef uint8_t* buffer
    cdef int opened, failed, tolerant
    cdef uint64_t now_ns, gone, pongs
    cdef uint64_t pinged, pings_from_ns
    cdef double connect_s, connect_cpu_s
    cdef readonly Histogram opening        # from connect to CONNACK, or SUBACK if the client subscribes

    cdef int allocate_clients(self, int count) except -1
    cdef int open_client(self, int number) except -1
    cdef int drop(self, int number) noexcept
    cdef int wait_for_ends(self, int left, uint64_t until) except -1
    cdef int lose(self, int number, str why) except -1
    cdef int ready(self, int number) except -1
    cdef uint8_t* room(self, int number, size_t size) except NULL
    cdef int put_bytes(self, int number, bytes data) except -1
    cdef int put_ack(self, int number, uint8_t first, const uint8_t* packet_id) except -1
    cdef int ping_due(self) except -1
    cdef int flush(self, int number) except -1
    cdef ssize_t transmit(self, int number) except -2
    cdef ssize_t receive(self, int number, uint8_t* target) except -2
    cdef int turn_once(self, int timeout_ms) except -1
    cdef int read_some(self, int number) except -1
    cdef size_t take_packets(self, int number, uint8_t* data, size_t size) except? 0

    # For the engine built on it.
    cdef int take_message(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1
    cdef int take_answer(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1
    cdef int accepted(self, int number, const uint8_t* body, size_t size) except -1
    cdef int has_gone(self, int number) except -1
    cdef int emptied(self, int number) except -1
    cdef int report(self) except -1
    cdef int ticked(self) except -1

cdef uint64_t monotonic_ns() noexcept nogil
