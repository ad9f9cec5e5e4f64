"""The hand-over of a socket from an acceptor to a worker: one SOCK_SEQPACKET message with SCM_RIGHTS.

    message   = CBOR header, then the bytes already read from the socket
    ancillary = the client's socket, and a memfd with the bytes if they are more than INLINE_MAX
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Handover:
    """What a worker receives."""
    cdef readonly int fd                   # the client's socket, non-blocking
    cdef readonly bytes data               # what was read of it so far: the start of its CONNECT
    cdef readonly str peer                 # "127.0.0.1:50312"
    cdef readonly str listener
    cdef readonly uint64_t accepted_ms     # CLOCK_MONOTONIC at accept: the idle timeout runs from there
    cdef readonly bytes assigned_id        # client id made for a CONNECT that has none, else empty
    cdef readonly dict extra               # TLS subject, PROXY data, WebSocket state: room for other listeners

# Reads one message; None when there is none. Raises OSError.
cdef Handover receive(int channel)
cdef int send_socket(int channel, int fd, const uint8_t* data, size_t size, bytes header) except -1
