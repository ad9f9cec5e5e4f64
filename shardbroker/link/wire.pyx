"""One connection between nodes: frames in and out, as few system calls as possible.

    40 bytes, little endian:  magic u16 | type u8 | flags u8 | length u32 | lane u16 | zero u16 | crc u32 | position u64 | ack u64 | hlc u64

    DATA     lane: stream. position: start of the range. ack: its end. body: records as in link/lanes.pxd
    LARGE    lane: stream. position: that of the record. ack: bytes of the contents. body: the next part of them, up to 256 KB

The contents of a spilled record are sent before the range of the record. `crc` is that of the journal over header and body, with 0 in
its place.

A frame is bounded before it is buffered, and its checksum is compared before anything of it is used.
"""

from collections import deque

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from shardbroker.link.lanes cimport GAP_BYTES, Gap, Slice, new_slice
from shm.posix cimport MSG_NOSIGNAL, recv
from shm.ring cimport FILLER

import os
import ssl

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import FRAME_BYTES_MAX
from shardbroker.journal.checksum import crc32
from shardbroker.link.frames import HELLO_BYTES_MAX, FrameType

__all__ = ["Wire", "WireFrame"]

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)

cdef int DATA = int(FrameType.DATA), LARGE = int(FrameType.LARGE)

cdef enum:
    MAGIC = 0xC1B5
    HEADER = 40                            # bytes
    FIRST_BUFFER = 1 << 18                 # bytes
    READ_BYTES = 1 << 18                   # bytes that one call of receive() takes: they stay in the cache while they are dealt with
    PIECES = 64                            # of one sendmsg
    SEND_BYTES = 1 << 20                   # of one sendmsg
    LARGE_PART = 1 << 18                   # bytes
    TLS_BYTES = 1 << 16                    # bytes gathered for one call of ssl

cdef packed struct FrameHeader:
    uint16_t magic
    uint8_t type
    uint8_t flags
    uint32_t length
    uint16_t lane
    uint16_t zero
    uint32_t crc
    uint64_t position
    uint64_t ack
    uint64_t hlc


cdef inline object view_of(const void* data, uint64_t size):
    return PyMemoryView_FromMemory(<char*>data, <Py_ssize_t>size, PyBUF_READ)


cdef class WireFrame:
    """One received frame. `body` is valid until the next frame is taken."""
    cdef readonly int type
    cdef readonly int lane
    cdef readonly uint64_t position
    cdef readonly uint64_t ack
    cdef Wire wire
    cdef const uint8_t* data
    cdef uint64_t size

    @property
    def body(self) -> bytes:
        """Returns the body."""
        return PyBytes_FromStringAndSize(<const char*>self.data, self.size)

    def view(self) -> memoryview:
        """Returns the body without a copy."""
        return view_of(self.data, self.size)

    def records(self) -> Slice:
        """Returns the body of DATA, whose records are not checked yet."""
        return new_slice(self.wire, self.data, self.size, self.position, self.position, None)


cdef class Wire:
    """A connected, non-blocking socket. `secure`: an ssl.SSLSocket is used for it."""
    cdef readonly object socket
    cdef readonly int fd
    cdef readonly bint secure
    cdef public uint32_t limit             # bytes of a body
    cdef readonly bint ended               # the peer has closed its side, or the connection is lost
    cdef readonly uint64_t bytes_in, bytes_out
    cdef uint8_t* buffer
    cdef size_t capacity, begin, filled    # data[begin:filled] is not taken yet
    cdef object queue                      # deque of (owner, address, size): pieces to be sent
    cdef size_t sent                       # bytes of the first piece
    cdef readonly uint64_t pending         # bytes that wait to be sent, contents of spilled records apart
    cdef readonly int unfolding            # spilled records in the queue
    cdef bytes joined                      # TLS: what ssl has refused must be offered again unchanged

    def __cinit__(self):
        self.buffer = NULL

    def __dealloc__(self):
        free(self.buffer)

    def __init__(self, socket) -> None:
        self.socket = socket
        self.fd = socket.fileno()
        self.secure = isinstance(socket, ssl.SSLSocket)
        self.queue = deque()
        self.limit = HELLO_BYTES_MAX
        self.grow(FIRST_BUFFER)

    cdef int grow(self, size_t capacity) except -1:
        cdef uint8_t* larger = <uint8_t*>realloc(self.buffer, capacity)
        if larger == NULL:
            raise MemoryError("no memory for the frames of a peer")
        self.buffer = larger
        self.capacity = capacity
        return 0

    # --- receiving ----------------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Reads what has arrived, once; returns whether there may be more. Sets `ended` at the end of the connection."""
        cdef ssize_t count
        cdef size_t room
        if self.begin:
            memmove(self.buffer, self.buffer + self.begin, self.filled - self.begin)
            self.filled -= self.begin
            self.begin = 0
        if self.capacity - self.filled < <size_t>(FIRST_BUFFER >> 1):
            self.grow(self.capacity * 2)   # at most twice the largest frame: more is taken out before
        room = min(self.capacity - self.filled, <size_t>READ_BYTES)
        if self.secure:
            return self.receive_secure(room)
        count = recv(self.fd, self.buffer + self.filled, room, 0)
        if count <= 0:
            if count == 0 or (errno != EAGAIN and errno != EINTR):
                self.ended = True
            return False
        self.filled += <size_t>count
        self.bytes_in += <uint64_t>count
        return <size_t>count == room

    cdef bint receive_secure(self, size_t room) except -1:
        cdef Py_ssize_t count
        try:
            count = self.socket.recv_into(PyMemoryView_FromMemory(<char*>self.buffer + self.filled, <Py_ssize_t>room, PyBUF_WRITE))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            count = 0
        if count == 0:
            self.ended = True
            return False
        self.filled += <size_t>count
        self.bytes_in += <uint64_t>count
        return True                        # ssl may have more that epoll does not know of

    def take(self) -> WireFrame | None:
        """Returns the next whole frame, or None. Raises PeerFault."""
        cdef FrameHeader header
        cdef WireFrame frame
        cdef size_t have = self.filled - self.begin
        cdef uint8_t* start = self.buffer + self.begin
        cdef uint32_t crc
        if have < <size_t>HEADER:
            return None
        memcpy(&header, start, HEADER)
        if header.magic != MAGIC or header.zero or header.hlc or header.flags:
            raise PeerFault(
                ByeReason.PROTOCOL_ERROR,
                f"frame: must begin with {MAGIC:#06x}, got {header.magic:#06x}, flags {header.flags}, {header.zero} and {header.hlc}")
        if header.length > min(self.limit, <uint32_t>FRAME_BYTES_MAX):
            raise PeerFault(
                ByeReason.LIMIT, f"frame: must have at most {min(self.limit, <uint32_t>FRAME_BYTES_MAX)} bytes, got {header.length}")
        if have < <size_t>HEADER + header.length:
            if self.capacity < <size_t>HEADER + header.length + (FIRST_BUFFER >> 1):
                self.grow(<size_t>HEADER + header.length + FIRST_BUFFER)
            return None
        crc = header.crc
        (<FrameHeader*>start).crc = 0
        if crc32(view_of(start, <uint64_t>HEADER + header.length)) != crc:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"frame of type {header.type}: the checksum does not match its {header.length} bytes")
        frame = WireFrame.__new__(WireFrame)
        frame.wire = self
        frame.type = header.type
        frame.lane = header.lane
        frame.position = header.position
        frame.ack = header.ack
        frame.data = start + HEADER
        frame.size = header.length
        self.begin += <size_t>HEADER + header.length
        return frame

    @property
    def has_more(self) -> bool:
        """Returns whether bytes were received that take() has not returned."""
        return self.filled > self.begin

    # --- sending --------------------------------------------------------------------------------------------------------------

    def send(self, bytes frame not None) -> None:
        """Queues a whole frame."""
        self.queue_piece(frame, <const uint8_t*>PyBytes_AS_STRING(frame), <uint64_t>PyBytes_GET_SIZE(frame))

    def send_data(self, int stream, uint64_t start, uint64_t end, Slice records) -> None:
        """Queues a range, without a copy of its records; None: a range without records."""
        cdef Gap gap
        cdef bytes lead = None
        if records is None:
            self.queue_frame(DATA, stream, start, end, None, None, NULL, 0)
            return
        if records.first > start:
            gap.size = <uint32_t>FILLER
            gap.zero = 0
            gap.bytes = records.first - start
            lead = PyBytes_FromStringAndSize(<const char*>&gap, GAP_BYTES)
        self.queue_frame(DATA, stream, start, end, lead, records, records.data, records.size)

    def send_contents(self, int stream, uint64_t position, path) -> None:
        """Queues the contents of a spilled record. Raises OSError."""
        file = open(path, "rb")
        self.queue.append((Unfolding(file, stream, position, os.fstat(file.fileno()).st_size), 0, 0))
        self.unfolding += 1

    cdef int queue_frame(
        self, int type, int lane, uint64_t position, uint64_t ack, bytes lead, object owner, const uint8_t* data, uint64_t size,
    ) except -1:
        cdef FrameHeader header
        cdef bytes head
        header.magic = MAGIC
        header.type = <uint8_t>type
        header.flags = 0
        header.length = <uint32_t>(size + (PyBytes_GET_SIZE(lead) if lead is not None else 0))
        header.lane = <uint16_t>lane
        header.zero = 0
        header.crc = 0
        header.position = position
        header.ack = ack
        header.hlc = 0
        crc = crc32(view_of(&header, HEADER))
        if lead is not None:
            crc = crc32(lead, crc)
        if size:
            crc = crc32(view_of(data, size), crc)
        header.crc = crc
        head = PyBytes_FromStringAndSize(<const char*>&header, HEADER)
        if lead is not None:
            head += lead
        self.queue_piece(head, <const uint8_t*>PyBytes_AS_STRING(head), <uint64_t>PyBytes_GET_SIZE(head))
        if size:
            self.queue_piece(owner, data, size)
        return 0

    cdef int queue_piece(self, object owner, const uint8_t* data, uint64_t size) except -1:
        self.queue.append((owner, <uint64_t>data, size))
        self.pending += size
        return 0

    cdef int unfold(self) except -1:
        """Makes the next frame of the contents of a spilled record the first piece."""
        cdef bytes part
        cdef object contents = self.queue[0][0]
        cdef object waiting = self.queue
        if contents.left == 0:
            contents.file.close()
            waiting.popleft()
            self.unfolding -= 1
            return 0
        part = contents.file.read(min(contents.left, LARGE_PART))
        if not part:
            raise OSError("a spilled record has become shorter")
        contents.left -= len(part)
        self.queue = deque()
        self.queue_frame(
            LARGE, contents.stream, contents.position, contents.size, None, part, <const uint8_t*>PyBytes_AS_STRING(part), len(part))
        self.queue.extend(waiting)
        return 0

    def flush(self) -> bool:
        """Sends what is queued; returns whether everything was taken. Sets `ended` at the end of the connection."""
        cdef iovec pieces[PIECES]
        cdef msghdr message
        cdef ssize_t count
        cdef size_t total
        cdef int number
        while self.queue or self.joined is not None:
            if self.joined is None and type(self.queue[0][0]) is Unfolding:
                try:
                    self.unfold()
                except OSError:
                    self.ended = True
                    return False
                continue
            if self.secure:
                if not self.flush_secure():
                    return False
                continue
            number = 0
            total = 0
            for owner, address, size in self.queue:
                if number == <int>PIECES or total >= <size_t>SEND_BYTES or type(owner) is Unfolding:
                    break
                pieces[number].iov_base = <void*><uint64_t>address
                pieces[number].iov_len = <size_t>size
                if number == 0:
                    pieces[0].iov_base = <uint8_t*>pieces[0].iov_base + self.sent
                    pieces[0].iov_len -= self.sent
                total += pieces[number].iov_len
                number += 1
            memset_message(&message, pieces, number)
            count = sendmsg(self.fd, &message, MSG_NOSIGNAL)
            if count < 0:
                if errno == EINTR:
                    continue
                if errno != EAGAIN:
                    self.ended = True
                return False
            self.took(<size_t>count)
            if <size_t>count < total:
                return False
        return True

    cdef int took(self, size_t count) except -1:
        cdef size_t size
        self.bytes_out += count
        self.pending -= count
        count += self.sent
        while self.queue:
            size = self.queue[0][2]
            if count < size:
                break
            count -= size
            self.queue.popleft()
            if count == 0:
                break
        self.sent = count
        return 0

    cdef bint flush_secure(self) except -1:
        cdef size_t total = 0
        cdef list parts = []
        if self.joined is None:
            while self.queue and total < <size_t>TLS_BYTES and type(self.queue[0][0]) is not Unfolding:
                _, address, size = self.queue.popleft()
                parts.append(PyBytes_FromStringAndSize(<const char*><uint64_t>address, size))
                total += <size_t>size
            self.joined = b"".join(parts)
        try:
            count = self.socket.send(self.joined)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            self.ended = True
            return False
        self.bytes_out += count
        self.pending -= count
        self.joined = self.joined[count:] or None
        return True

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing waits to be sent."""
        return not self.queue and self.joined is None

    def close(self) -> None:
        """Closes the socket; what waits is dropped."""
        self.queue.clear()
        self.joined = None
        self.socket.close()


class Unfolding:
    """The contents of a spilled record in the queue of a connection: read when they are due."""

    def __init__(self, file, stream, position, size) -> None:
        self.file, self.stream, self.position, self.size, self.left = file, stream, position, size, size


cdef inline void memset_message(msghdr* message, iovec* pieces, int count) noexcept:
    (<uint8_t*>message)[0] = 0
    from_zero(message)
    message.msg_iov = pieces
    message.msg_iovlen = <size_t>count


cdef extern from *:
    """
    #include <string.h>
    #include <sys/socket.h>
    static inline void from_zero(struct msghdr *message) { memset(message, 0, sizeof *message); }
    """
    void from_zero(msghdr* message) noexcept
