"""Hand-over of a socket from an acceptor to a worker; see handover.pxd.

    | HandoverHeader | listener | assigned id | extra | bytes read, unless in the memfd |     with SCM_RIGHTS: socket [, memfd]

Parts too large for a message are in the memfd: the bytes read or, with a long chain of certificates, all but the HandoverHeader.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport (
    EAGAIN, ECONNREFUSED, ECONNRESET, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, EPIPE, errno,
)
from libc.string cimport memcpy, memset

from shm.address cimport address_text, parse_address

import cbor2

from shardbroker.logs.phrases import log_line, print_line

__all__ = ["Handover", "encode_header", "receive_one", "send_one"]

cdef extern from "<sys/socket.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        void* msg_name
        unsigned int msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    cdef struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recvmsg(int fd, msghdr* message, int flags)
    cmsghdr* CMSG_FIRSTHDR(msghdr* message)
    unsigned char* CMSG_DATA(cmsghdr* header)
    size_t CMSG_LEN(size_t size)
    size_t CMSG_SPACE(size_t size)
    int SOL_SOCKET, SCM_RIGHTS, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_TRUNC

cdef extern from "<sys/mman.h>" nogil:
    int memfd_create(const char* name, unsigned int flags)
    unsigned int MFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t write(int fd, const void* buffer, size_t size)

cdef extern from "<errno.h>" nogil:
    int ETOOMANYREFS

cdef enum:
    INLINE_MAX = 32768                     # bytes read that travel in the message; more go through a memfd
    MESSAGE_MAX = 131072                   # header and inline bytes; the header may contain a client id of 64 KiB
    DESCRIPTORS = 2
    CONTROL_WORDS = 8                      # room for DESCRIPTORS and the header before them, in 8 bytes each


cdef class Handover:
    """A client's socket and its origin."""

    @property
    def peer(self) -> str:
        """Returns the peer as "127.0.0.1:50312"."""
        return address_text(&self.header.peer)

    @property
    def accepted_ms(self) -> int:
        """Returns CLOCK_MONOTONIC at accept, ms."""
        return self.header.accepted_ms


def encode_header(str peer, str listener, uint64_t accepted_ms, bytes assigned_id, dict extra=None) -> bytes:
    """Encodes a header in Python (slow path). `extra` has TLS subject, PROXY data and WebSocket state."""
    cdef HandoverHeader header
    memset(&header, 0, sizeof(header))
    header.accepted_ms = accepted_ms
    header.peer = parse_address(peer)
    return pack_header(&header, listener.encode(), assigned_id, cbor2.dumps(extra) if extra else b"")


cdef bytes pack_header(const HandoverHeader* header, bytes listener, bytes assigned_id, bytes extra):
    """Returns the header with its sizes filled in, followed by its texts."""
    cdef HandoverHeader whole = header[0]
    cdef bytes packed
    cdef char* target
    whole.listener_size = <uint8_t>PyBytes_GET_SIZE(listener)
    whole.assigned_size = <uint16_t>PyBytes_GET_SIZE(assigned_id)
    whole.extra_size = <uint32_t>PyBytes_GET_SIZE(extra)
    packed = PyBytes_FromStringAndSize(NULL, sizeof(whole) + texts_size(&whole))
    target = PyBytes_AS_STRING(packed)
    memcpy(target, &whole, sizeof(whole))
    target += sizeof(whole)
    memcpy(target, PyBytes_AS_STRING(listener), whole.listener_size)
    target += whole.listener_size
    memcpy(target, PyBytes_AS_STRING(assigned_id), whole.assigned_size)
    memcpy(target + whole.assigned_size, PyBytes_AS_STRING(extra), whole.extra_size)
    return packed


cdef inline size_t texts_size(const HandoverHeader* header) noexcept:
    return <size_t>header.listener_size + header.assigned_size + header.extra_size


cdef inline bint passing(int error) noexcept:
    """Returns whether an error is transient: full channel, no descriptors or memory left, worker under replacement.

    ETOOMANYREFS: without privileges, no more descriptors may be in flight than a process may have open.
    """
    return error in (EAGAIN, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, ETOOMANYREFS, EPIPE, ECONNRESET, ECONNREFUSED)


cdef int in_memory(const uint8_t* texts, size_t texts_size, const uint8_t* data, size_t size) noexcept:
    """Returns a memfd that holds these bytes, or a negative errno."""
    cdef int fd = memfd_create("handover", MFD_CLOEXEC)
    cdef int error
    if fd < 0:
        return -errno
    error = write_whole(fd, texts, texts_size) or write_whole(fd, data, size)
    if error:
        close(fd)
        return -error
    return fd


cdef int write_whole(int fd, const uint8_t* data, size_t size) noexcept:
    """Writes all bytes; returns 0 or an errno."""
    cdef size_t done = 0
    cdef ssize_t written
    while done < size:
        written = write(fd, data + done, size - done)
        if written <= 0:
            return errno if written < 0 else ENOSPC
        done += written
    return 0


cdef int send_socket(int channel, int fd, const uint8_t* data, size_t size, bytes header) except -1:
    """Sends one socket. 1: handed over, the caller closes its copy; 0: transient error (see passing), nothing was sent. Raises
    OSError."""
    cdef iovec parts[2]
    cdef msghdr message
    cdef uint64_t control[CONTROL_WORDS]
    cdef int fds[DESCRIPTORS]
    cdef int count = 1, error
    cdef ssize_t sent
    cdef size_t head = PyBytes_GET_SIZE(header)
    memset(&message, 0, sizeof(message))
    fds[0] = fd
    if size > INLINE_MAX or head + size > MESSAGE_MAX:
        if head > MESSAGE_MAX:
            head = sizeof(HandoverHeader)
        fds[1] = in_memory(
            <const uint8_t*>PyBytes_AS_STRING(header) + head, PyBytes_GET_SIZE(header) - head, data, size)
        if fds[1] < 0:
            if passing(-fds[1]):
                return 0
            raise OSError(-fds[1], "memfd for a hand-over")
        count = 2
        size = 0
    parts[0].iov_base = <void*>PyBytes_AS_STRING(header)
    parts[0].iov_len = head
    parts[1].iov_base = <void*>data
    parts[1].iov_len = size
    message.msg_iov = parts
    message.msg_iovlen = 2
    message.msg_control = control
    message.msg_controllen = CMSG_SPACE(count * sizeof(int))
    cdef cmsghdr* rights = CMSG_FIRSTHDR(&message)
    rights.cmsg_level = SOL_SOCKET
    rights.cmsg_type = SCM_RIGHTS
    rights.cmsg_len = CMSG_LEN(count * sizeof(int))
    memcpy(CMSG_DATA(rights), fds, count * sizeof(int))
    sent = sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    error = errno
    if count == 2:
        close(fds[1])
    if sent < 0:
        if passing(error):
            return 0
        raise OSError(error, "hand-over to a worker")
    return 1


cdef uint8_t buffer[MESSAGE_MAX]


cdef Handover receive(int channel):
    cdef iovec part
    cdef msghdr message
    cdef uint64_t control[CONTROL_WORDS]
    cdef int fds[DESCRIPTORS]
    cdef HandoverHeader header
    cdef size_t count = 0, i
    cdef ssize_t got
    cdef bint whole
    cdef size_t texts
    cdef cmsghdr* rights
    memset(&message, 0, sizeof(message))
    part.iov_base = buffer
    part.iov_len = MESSAGE_MAX
    message.msg_iov = &part
    message.msg_iovlen = 1
    message.msg_control = control
    message.msg_controllen = sizeof(control)
    got = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
    if got < 0:
        if errno == EAGAIN or errno == EINTR:
            return None
        raise OSError(errno, "hand-over from an acceptor")
    rights = CMSG_FIRSTHDR(&message)
    if rights != NULL and rights.cmsg_level == SOL_SOCKET and rights.cmsg_type == SCM_RIGHTS:
        count = min((rights.cmsg_len - CMSG_LEN(0)) // sizeof(int), <size_t>DESCRIPTORS)
        memcpy(fds, CMSG_DATA(rights), count * sizeof(int))
    memset(&header, 0, sizeof(header))
    if got < <ssize_t>sizeof(header):
        for i in range(count):
            close(fds[i])
        return None                        # not from an acceptor
    memcpy(&header, buffer, sizeof(header))
    # Without free descriptors in this process the kernel withholds some of them: the client's connection is closed.
    whole = not message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) and count > 0
    texts = texts_size(&header)
    if whole and count == 2 and <size_t>got == sizeof(header):
        texts = 0                          # in the memfd
    if whole and <size_t>got >= sizeof(header) + texts:
        try:
            return unpack(fds, <int>count, &header, <const char*>buffer + sizeof(header), texts, got - sizeof(header) - texts)
        except Exception as error:
            print_line("error", "worker", log_line("hand-over lost", reason=repr(error)))
    for i in range(count):
        close(fds[i])
    return lost_handover(&header, got - sizeof(header))


cdef Handover lost_handover(const HandoverHeader* header, size_t texts):
    """Returns a Handover without a socket, which is closed, so that the connection count of its listener stays exact."""
    cdef Handover handover = Handover.__new__(Handover)
    cdef bytes name = PyBytes_FromStringAndSize(<const char*>buffer + sizeof(header[0]), min(texts, <size_t>header.listener_size))
    handover.fd = -1
    handover.header = header[0]
    handover.listener = name.decode(errors="replace")
    handover.assigned_id = handover.data = b""
    return handover


cdef dict listener_names = {}              # so that a name is one object, however many connections use it


cdef Handover unpack(const int* fds, int count, const HandoverHeader* header, const char* texts, size_t inline_texts, size_t inline_size):
    """Builds a Handover and closes the memfd. Raises OSError, ValueError, and leaves all descriptors open then."""
    cdef Handover handover = Handover.__new__(Handover)
    cdef bytes name, memory = b""
    if count == 2:
        with os.fdopen(fds[1], "rb", closefd=False) as file:
            file.seek(0)                   # the position is shared with the sender's copy and is at its end
            memory = file.read()
        if not inline_texts:
            if <size_t>len(memory) < texts_size(header):
                raise ValueError(f"{len(memory)} bytes, header announces {texts_size(header)}")
            texts = PyBytes_AS_STRING(memory)
    name = PyBytes_FromStringAndSize(texts, header.listener_size)
    handover.fd = fds[0]
    handover.header = header[0]
    handover.listener = listener_names.get(name)
    if handover.listener is None:
        handover.listener = listener_names[name] = name.decode()
    texts += header.listener_size
    handover.assigned_id = PyBytes_FromStringAndSize(texts, header.assigned_size)
    texts += header.assigned_size
    if header.extra_size:
        handover.extra = cbor2.loads(PyBytes_FromStringAndSize(texts, header.extra_size))
        texts += header.extra_size
    if count == 1:
        handover.data = PyBytes_FromStringAndSize(texts, inline_size)
    else:
        handover.data = memory if inline_texts else memory[texts_size(header):]
        close(fds[1])
    return handover


def send_one(int channel, int fd, bytes data not None, bytes header not None) -> bool:
    """Sends one socket from Python (slow path): False for a transient error. Raises OSError."""
    return send_socket(channel, fd, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), header) == 1


def receive_one(int channel):
    """Receives a Handover from Python (slow path), or None. Raises OSError."""
    return receive(channel)
