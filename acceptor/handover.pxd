"""The hand-over of a socket from an acceptor to a worker: one SOCK_SEQPACKET message with SCM_RIGHTS.

    message   = HandoverHeader | listener | assigned id | extra, CBOR | the bytes already read from the socket
    ancillary = the client's socket, and a memfd with the bytes if they exceed INLINE_MAX or the parts before them are too large
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shm.address cimport PeerAddress

cdef packed struct HandoverHeader:
    uint64_t accepted_ms                   # CLOCK_MONOTONIC at accept: the idle timeout runs from there
    PeerAddress peer
    uint16_t listener                      # its number
    uint8_t listener_size
    uint16_t assigned_size
    uint32_t extra_size                    # 0: no extra


cdef class Handover:
    """A connection as a worker receives it."""
    cdef readonly int fd                   # the client's socket, non-blocking; -1: lost on the way, descriptors or memory ran out
    cdef readonly bytes data               # bytes read from it so far: the start of its CONNECT
    cdef HandoverHeader header
    cdef readonly str listener
    cdef readonly bytes assigned_id        # client id made for a CONNECT that has none, else empty
    cdef readonly dict extra               # Opening.extra(), and what the listener requires of its clients; mostly None

# Reads one message; None without one. Raises OSError.
cdef Handover receive(int channel)
cdef bytes pack_header(const HandoverHeader* header, bytes listener, bytes assigned_id, bytes extra)
cdef int send_socket(int channel, int fd, const uint8_t* data, size_t size, bytes header) except -1
