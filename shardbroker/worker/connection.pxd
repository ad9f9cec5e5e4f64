"""A channel and its socket: bytes from the kernel into the channel, and its output back.

A connection is read while `stops` is 0. Each reason to stop has a flag, and with it the connection goes into the list of Turn
from which it is resumed.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.transport.layers cimport Layers
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.held_acks cimport HeldAcks
from shardbroker.worker.sync_gate cimport OutputFence
from shardbroker.worker.rates cimport Rates, SharedRates
from shardbroker.worker.turn cimport READ_BYTES, Turn

cdef enum:
    LINGER_MS = 1000                       # that a connection ended by us may take to take our last packet: closing could reset it away

cdef enum Stop:                            # why a connection is not read
    STOP_RING = 1                          # a PUBLISH waits for room in a ring
    STOP_OUTPUT = 2                        # it does not take what it has asked for
    STOP_MEMORY = 4                        # memory is short, and it is among the clients that fill it
    STOP_DISK = 8                          # its session stays, and the disk does not take what happens to it
    STOP_ACCESS = 16                       # a result is waited for
    STOP_RATE = 32                         # it has sent more than its listener allows
    STOP_HELD = 64                         # more acknowledgements to it wait than are kept


cdef class Connection(Channel):
    cdef Turn turn
    cdef readonly int fd                   # -1: closed
    cdef uint32_t interest                 # epoll events asked for
    cdef uint8_t* rest                     # bytes of an incomplete packet; NULL most of the time
    cdef size_t rest_size, rest_capacity
    cdef uint8_t dirty                     # in Turn.dirty
    cdef uint8_t busy                      # in Turn.busy: bytes or filters are left for the next pass
    cdef uint8_t hung                      # out of epoll, since it would report the peer's end again and again
    cdef uint8_t stops                     # Stop flags; 0: the connection is read
    cdef uint8_t lingering                 # all is sent and the write side shut: waiting for the peer's end
    cdef uint8_t ended_by                  # Side
    cdef uint8_t ended_with                # reason code
    cdef uint64_t paused_until_ms          # unless it is told again that this one is greedy
    cdef Rates rates                       # of its listener, None without
    cdef Layers layers                     # TLS, WebSocket; None for plain TCP
    cdef readonly str listener
    cdef OutputFence guard                       # level `machine`: how far its output may go; else None
    cdef HeldAcks held                     # acknowledgements that wait for queues of subscribers; None: none does
    cdef dict extra                        # what the listener knows beyond the address, see acceptor.handover; mostly None

    cdef int failed(self, object error) except -1
    cdef int on_readable(self) except -1
    cdef int note_extra(self, dict extra) except -1
    cdef int take_received(self, uint8_t* target, size_t got) except -1
    cdef int keep_rate(self, uint64_t messages, uint64_t bytes) except -1
    cdef int slow_down(self, uint64_t wait_ms) except -1
    cdef bint over_quota(self, PublishView* view) except -1
    cdef int take_layered(self, uint8_t* target, size_t got, bint opened) except -1
    cdef int end_layers(self) except -1
    cdef bint must_wait(self) noexcept
    cdef ssize_t transmit(self, size_t size) noexcept
    cdef bint answering(self) noexcept
    cdef int take(self, const uint8_t* data, size_t size) except -1
    cdef int take_rest(self) except -1
    cdef int grow_rest(self, size_t size) except -1
    cdef int after_feed(self, bint more) except -1
    cdef int go_on(self) except -1
    cdef int stop_reading(self, uint8_t why) except -1
    cdef int read_again(self, uint8_t why) except -1
    cdef int hang(self) except -1
    cdef bint must_not_add(self) except -1
    cdef int finish_sending(self) except -1
    cdef size_t feed_counted(self, const uint8_t* data, size_t size) except? 0
    cdef int keep_rest(self, const uint8_t* data, size_t size) except -1
    cdef int flush(self) except -1
    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1
    cdef int hold(self, uint8_t first, uint16_t packet_id, uint8_t reason_code) except -1
    cdef bint is_full(self) noexcept
    cdef int send_held(self) except -1     # the oldest of them
    # Sends those that have waited since before; all, and later ones do not wait.
    cdef int let_go_older(self, uint64_t before_ms) except -1
    cdef int let_go(self, HeldAcks held) except -1
    cdef int read_held(self) except -1     # is read, however many wait
    cdef int finish(self) except -1
    cdef void release(self) noexcept
    cdef int want(self, uint32_t interest) except -1
