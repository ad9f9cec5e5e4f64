"""WebSocket frames as MQTT travels in them (RFC 6455 §5; MQTT 3.1.1 and 5.0 §6). Opening handshakes: acceptor/upgrade.py.

    in:   frames of a client, cut anywhere -> the MQTT bytes in them, cut anywhere       nothing is buffered
    out:  MQTT bytes -> a binary frame around all of them, with control frames in between

Invariants: `left` payload bytes of the current incoming frame are outstanding; `head_size` bytes of an incomplete header wait
in `head`. Of the frame that is being sent `frame_left` payload bytes are not out yet, and its header is `header[:header_size]` of which
`header_at` are out; control frames are sent only while `header_at` is 0.
"""
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.transport.tls cimport Records


cdef class Framing:
    """The server's side of one WebSocket."""
    cdef uint64_t max_frame                # bytes
    cdef uint64_t left
    cdef uint8_t head[14]
    cdef uint8_t head_size
    cdef uint8_t opcode                    # of the current incoming frame
    cdef uint8_t mask[4]
    cdef uint8_t mask_at                   # 0..3: index of the next byte of the mask
    cdef bint fragmented                   # between two frames of one message
    cdef uint8_t control[125]              # payload of the current incoming control frame
    cdef uint8_t control_size
    cdef readonly int close_code           # of the peer's Close frame; 1005 if the frame has none, 0 before it
    cdef Buffer answers                    # control frames to be sent
    cdef bint close_sent                   # a Close frame is among `answers`, or sent
    cdef uint8_t header[10]
    cdef uint8_t header_size, header_at
    cdef uint64_t frame_left

    # Turns received bytes into MQTT bytes in place; returns their number, at `data`. Bytes after a Close frame are dropped. Raises
    # WebSocketError.
    cdef ssize_t receive(self, uint8_t* data, size_t size) except -1
    # Sends like send(2): returns the number of MQTT bytes that are out, or -1 with errno. Control frames are sent along, also with
    # size 0. `records`: the TLS layer between this WebSocket and its socket; None without TLS.
    cdef ssize_t transmit(self, int fd, Records records, const uint8_t* data, size_t size) noexcept
    # Returns whether control frames wait to be sent.
    cdef inline bint waiting(self) noexcept:
        return self.answers.end != self.answers.start
    # Queues a Close frame, once.
    cdef int close(self, int code) except -1

    cdef ssize_t begin(self, const uint8_t* data, size_t size) except -1
    cdef int check_start(self) except -1
    cdef int begin_frame(self, size_t room) except -1
    cdef int end_control(self) except -1
    cdef int answer(self, uint8_t first, const uint8_t* payload, uint8_t size) except -1
