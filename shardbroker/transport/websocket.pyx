"""WebSocket frames; see websocket.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from shardbroker.transport.tls cimport iovec

import os

from shardbroker.mqtt.spec import ReasonCode

__all__ = ["Framing", "WebSocketError", "client_frame", "close_code_of"]

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int MSG_NOSIGNAL, MSG_DONTWAIT

cdef extern from *:
    """
    #include <string.h>
    /* Eight bytes at a time. target may be source or before it: what is written lies before what is still to be read. */
    static inline void sb_unmask(uint8_t* target, const uint8_t* source, size_t size, const uint8_t* mask, unsigned at) {
        uint8_t pattern[8];
        uint64_t word, value;
        size_t i;
        for (i = 0; i < 8; i++) pattern[i] = mask[(at + i) & 3];
        memcpy(&word, pattern, 8);
        for (i = 0; i + 8 <= size; i += 8) {
            memcpy(&value, source + i, 8);
            value ^= word;
            memcpy(target + i, &value, 8);
        }
        for (; i < size; i++) target[i] = source[i] ^ pattern[i & 7];
    }
    """
    void sb_unmask(uint8_t* target, const uint8_t* source, size_t size, const uint8_t* mask, unsigned at) noexcept nogil

cdef enum:
    FINAL = 0x80                           # first byte
    RESERVED = 0x70
    MASKED = 0x80                          # second byte
    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8                            # this and the following are control frames
    PING = 0x9
    PONG = 0xA
    CONTROL_MAX = 125                      # payload of a control frame, bytes
    SENT_MAX = 262144                      # payload of a frame that is sent, bytes: as much as one pass reads from one connection
    ANSWERS_MAX = 512                      # control frames that wait, bytes: beyond that, pings get no pong

cdef enum:                                 # close codes, RFC 6455 §7.4.1
    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002                  # the WebSocket's, not MQTT's
    UNSUPPORTED_DATA = 1003
    NO_STATUS = 1005
    POLICY = 1008
    TOO_BIG = 1009


CLOSE_CODES = {
    ReasonCode.SUCCESS: NORMAL,
    ReasonCode.DISCONNECT_WITH_WILL_MESSAGE: NORMAL,
    ReasonCode.SESSION_TAKEN_OVER: NORMAL,
    ReasonCode.SERVER_SHUTTING_DOWN: GOING_AWAY,
    ReasonCode.MALFORMED_PACKET: PROTOCOL_ERROR,
    ReasonCode.PROTOCOL_ERROR: PROTOCOL_ERROR,
    ReasonCode.PACKET_TOO_LARGE: TOO_BIG,
}
"""Maps a reason code of MQTT to a close code; any other is a rule of this broker."""


def close_code_of(reason_code: int) -> int:
    """Returns the close code that fits best for a reason code with which this broker ends an MQTT connection."""
    return CLOSE_CODES.get(reason_code, POLICY)


class WebSocketError(Exception):
    """A violation of WebSocket by the client; `code` is the close code for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


cdef bint may_be_sent(int code) noexcept:
    """Returns whether RFC 6455 §7.4 or IANA's registry allow a close code in frames; 3000 to 4999 are for applications."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


cdef class Framing:
    def __init__(self, uint64_t max_frame):
        self.max_frame = max_frame
        self.answers = Buffer.__new__(Buffer)

    # --- in -------------------------------------------------------------------------------------------------------------------

    cdef ssize_t receive(self, uint8_t* data, size_t size) except -1:
        cdef size_t at = 0, kept = 0, count
        while at < size and not self.close_code:
            if not self.left:
                at += <size_t>self.begin(data + at, size - at)
                if self.left or self.head_size:
                    continue
            else:
                count = <size_t>min(self.left, <uint64_t>(size - at))
                if self.opcode >= CLOSE:
                    sb_unmask(self.control + self.control_size, data + at, count, self.mask, self.mask_at)
                    self.control_size += <uint8_t>count
                else:
                    sb_unmask(data + kept, data + at, count, self.mask, self.mask_at)
                    kept += count
                self.mask_at = (self.mask_at + count) & 3
                self.left -= count
                at += count
                if self.left:
                    break
            if self.opcode >= CLOSE:
                self.end_control()
        return <ssize_t>kept

    cdef ssize_t begin(self, const uint8_t* data, size_t size) except -1:
        """Takes bytes of a header until it is complete (`head_size` is 0 again) or `data` ends; returns the bytes taken."""
        cdef size_t used = 0
        cdef int need = 2
        while used < size:
            self.head[self.head_size] = data[used]
            self.head_size += 1
            used += 1
            if self.head_size == 2:
                self.check_start()
            if self.head_size >= 2:
                need = 2 + 4 + (2 if self.head[1] & 0x7F == 126 else 8 if self.head[1] & 0x7F == 127 else 0)
                if self.head_size == need:
                    self.begin_frame(need)
                    break
        return <ssize_t>used

    cdef int check_start(self) except -1:
        """Checks the first two bytes, which show most errors."""
        cdef uint8_t first = self.head[0], size = self.head[1] & 0x7F
        cdef uint8_t opcode = first & 0x0F
        if first & RESERVED:
            raise WebSocketError(PROTOCOL_ERROR, "a reserved bit is set without a negotiated extension (compression)")
        if not self.head[1] & MASKED:
            raise WebSocketError(PROTOCOL_ERROR, "a frame without mask")                      # RFC 6455 §5.1
        if opcode in (CLOSE, PING, PONG):
            if size > CONTROL_MAX or not first & FINAL:
                raise WebSocketError(PROTOCOL_ERROR, "a control frame that is too long or fragmented")   # RFC 6455 §5.5
        elif opcode == TEXT:
            raise WebSocketError(UNSUPPORTED_DATA, "a text frame; MQTT needs binary frames")   # [MQTT-6.0.0-1]
        elif opcode not in (CONTINUATION, BINARY):
            raise WebSocketError(PROTOCOL_ERROR, f"a frame with the unknown opcode {opcode}")
        elif (opcode == CONTINUATION) != self.fragmented:
            raise WebSocketError(PROTOCOL_ERROR, "a continuation without a message, or a message within another")
        return 0

    cdef int begin_frame(self, size_t size) except -1:
        """Begins a frame from the complete header of `size` bytes in `head`."""
        cdef uint64_t length = self.head[1] & 0x7F, announced = length
        cdef size_t i
        if length >= 126:
            length = 0
            for i in range(2, size - 4):
                length = length << 8 | self.head[i]
            if length < 126 or (announced == 127 and length <= 0xFFFF) or length >> 63:
                raise WebSocketError(PROTOCOL_ERROR, "a length that is not in its shortest form")   # RFC 6455 §5.2
        if length > self.max_frame:
            raise WebSocketError(TOO_BIG, f"a frame of {length} bytes exceeds websocket.max_frame_size ({self.max_frame})")
        memcpy(self.mask, self.head + size - 4, 4)
        self.mask_at = 0
        self.head_size = 0
        self.left = length
        self.opcode = self.head[0] & 0x0F
        self.control_size = 0
        if self.opcode < CLOSE:
            self.fragmented = not self.head[0] & FINAL
        return 0

    cdef int end_control(self) except -1:
        """Handles a complete control frame."""
        cdef int code = NO_STATUS
        if self.opcode == PING:
            if self.answers.pending() < ANSWERS_MAX and not self.close_sent:
                self.answer(FINAL | PONG, self.control, self.control_size)     # RFC 6455 §5.5.2
        elif self.opcode == CLOSE:
            if self.control_size == 1:
                raise WebSocketError(PROTOCOL_ERROR, "a close code of one byte")
            if self.control_size:
                code = self.control[0] << 8 | self.control[1]
                if not may_be_sent(code):
                    raise WebSocketError(PROTOCOL_ERROR, f"close code {code} is not allowed in a frame")   # RFC 6455 §7.4
            self.close(NORMAL if code == NO_STATUS else code)
            self.close_code = code
        self.opcode = BINARY
        return 0

    # --- out ------------------------------------------------------------------------------------------------------------------

    cdef int answer(self, uint8_t first, const uint8_t* payload, uint8_t size) except -1:
        cdef uint8_t* target = self.answers.reserve(2 + <size_t>size)
        target[0] = first
        target[1] = size
        memcpy(target + 2, payload, size)
        return 0

    cdef int close(self, int code) except -1:
        cdef uint8_t[2] payload
        if self.close_sent:
            return 0
        self.close_sent = True
        payload[0] = <uint8_t>(code >> 8)
        payload[1] = <uint8_t>(code & 0xFF)
        return self.answer(FINAL | CLOSE, payload, 2)

    cdef ssize_t transmit(self, int fd, Records records, const uint8_t* data, size_t size) noexcept:
        cdef iovec[3] parts
        cdef msghdr message
        cdef size_t count = 0, answers = 0, header
        cdef ssize_t sent
        if size and not self.frame_left:
            self.frame_left = min(size, <size_t>SENT_MAX)
            self.header_size = <uint8_t>write_header(self.header, self.frame_left)
            self.header_at = 0
        if not self.header_at and self.answers.pending():
            answers = self.answers.pending()
            parts[count].iov_base = self.answers.data + self.answers.start
            parts[count].iov_len = answers
            count += 1
        header = self.header_size - self.header_at if self.frame_left else 0
        if self.frame_left:
            parts[count].iov_base = self.header + self.header_at
            parts[count].iov_len = header
            parts[count + 1].iov_base = <void*>data
            parts[count + 1].iov_len = min(size, <size_t>self.frame_left)
            count += 2
        if records is not None:
            sent = records.send(fd, parts, count)
        elif not count:
            return 0
        else:
            memset(&message, 0, sizeof(message))
            message.msg_iov = parts
            message.msg_iovlen = count
            sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            return -1
        if answers:
            answers = min(answers, <size_t>sent)
            self.answers.consume(answers)
            sent -= <ssize_t>answers
            if self.answers.pending():
                return 0                   # the rest of a control frame must be sent before anything else
        header = min(header, <size_t>sent)
        self.header_at += <uint8_t>header
        sent -= <ssize_t>header
        self.frame_left -= <uint64_t>sent
        if not self.frame_left:
            self.header_at = 0
        return sent

    # --- from one process to another ------------------------------------------------------------------------------------------

    def image(self) -> list:
        """Returns the whole state for `from_image`."""
        return [
            self.max_frame, self.left, self.head[:self.head_size], self.opcode, self.mask[:4], self.mask_at, self.fragmented,
            self.control[:self.control_size], self.close_code, bytes(self.answers), self.close_sent, self.header[:self.header_size],
            self.header_at, self.frame_left,
        ]

    @staticmethod
    def from_image(list image not None) -> Framing:
        """Raises ValueError, TypeError, OverflowError."""
        cdef Framing framing
        (max_frame, left, head, opcode, mask, mask_at, fragmented, control, close_code, answers, close_sent, header, header_at,
         frame_left) = image
        framing = Framing(max_frame)
        if (<size_t>len(head) > sizeof(framing.head) or len(mask) != 4 or not 0 <= mask_at < 4 or len(control) > CONTROL_MAX
                or <size_t>len(header) > sizeof(framing.header) or header_at > len(header)):
            raise ValueError("not the state of a WebSocket")
        framing.left, framing.opcode, framing.mask_at, framing.fragmented = left, opcode, mask_at, fragmented
        framing.close_code, framing.close_sent, framing.header_at, framing.frame_left = close_code, close_sent, header_at, frame_left
        memcpy(framing.head, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        framing.head_size = <uint8_t>PyBytes_GET_SIZE(head)
        memcpy(framing.mask, PyBytes_AS_STRING(mask), 4)
        memcpy(framing.control, PyBytes_AS_STRING(control), PyBytes_GET_SIZE(control))
        framing.control_size = <uint8_t>PyBytes_GET_SIZE(control)
        if answers:
            framing.answers.append(PyBytes_AS_STRING(answers), PyBytes_GET_SIZE(answers))
        memcpy(framing.header, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        framing.header_size = <uint8_t>PyBytes_GET_SIZE(header)
        return framing

    # --- slow-path forms ------------------------------------------------------------------------------------------------------

    def decode(self, bytes data not None) -> bytes:
        """Returns the MQTT bytes of the bytes that a client sent next. Raises WebSocketError."""
        cdef bytearray own = bytearray(data)
        cdef ssize_t kept = self.receive(<uint8_t*>own, len(own))
        return bytes(own[:kept])

    def frame(self, bytes data not None) -> bytes:
        """Returns a binary frame."""
        cdef uint8_t[10] header
        return header[:write_header(header, <uint64_t>PyBytes_GET_SIZE(data))] + data

    def close_frame(self, int code) -> bytes:
        """Returns a Close frame, after the other frames that wait to be sent."""
        self.close(code)
        return bytes(self.answers)


cdef size_t write_header(uint8_t* target, uint64_t size) noexcept:
    """Writes the header of an unfragmented binary frame; returns its size."""
    cdef int i
    target[0] = FINAL | BINARY
    if size < 126:
        target[1] = <uint8_t>size
        return 2
    if size <= 0xFFFF:
        target[1] = 126
        target[2] = <uint8_t>(size >> 8)
        target[3] = <uint8_t>(size & 0xFF)
        return 4
    target[1] = 127
    for i in range(8):
        target[2 + i] = <uint8_t>((size >> (56 - 8 * i)) & 0xFF)
    return 10


def client_frame(bytes payload not None, int first=FINAL | BINARY, bytes mask=None) -> bytes:
    """Returns a frame as a client sends it; for tests and the load tool."""
    cdef bytearray frame = bytearray(14 + len(payload))
    cdef uint8_t* target = <uint8_t*>frame
    cdef bytes key = os.urandom(4) if mask is None else mask
    cdef size_t size = write_header(target, <uint64_t>PyBytes_GET_SIZE(payload))
    target[0] = <uint8_t>first
    target[1] |= MASKED
    memcpy(target + size, PyBytes_AS_STRING(key), 4)
    sb_unmask(target + size + 4, <const uint8_t*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
              <const uint8_t*>PyBytes_AS_STRING(key), 0)
    return bytes(frame[:size + 4 + <size_t>PyBytes_GET_SIZE(payload)])
