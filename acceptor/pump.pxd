"""TLS behind the handshake: one Pump carries the plaintext of one connection between its socket and its worker.

    client's socket  <- ciphertext ->  [ OpenSSL, memory BIOs ]  <- plaintext ->  socketpair  -> worker

Each direction holds at most what one read gave: while it is not gone, nothing more is read, so push-back of a client reaches the
worker and push-back of the worker the client. A direction ends when its reader has seen the end and what it held is out.

Invariants: `kept_in` has plaintext that the worker's end did not take, `kept_out` ciphertext that the client's socket did not take;
only an end that can go on is asked for in epoll.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Pump:
    cdef readonly int outer                # the client's socket; -1: closed
    cdef readonly int inner                # our end of the socketpair
    cdef object tls                        # ssl.SSLObject
    cdef object incoming, outgoing         # its ssl.MemoryBIO
    cdef bytes kept_in, kept_out
    cdef size_t kept_in_at, kept_out_at    # how much of them is out
    cdef bint outer_ended, inner_ended     # nothing more comes from there
    cdef bint outer_shut, inner_shut       # nothing more goes there
    cdef uint32_t outer_interest, inner_interest
    cdef uint64_t ending_ms                # when both ends are closed at the latest; 0: not ending

    # One of its two descriptors is ready. False: both directions are over, close() is to be called.
    cdef bint ready(self, int fd, uint32_t events, uint8_t* buffer, size_t size) except -1
    cdef int from_client(self, uint8_t* buffer, size_t size) except -1
    cdef int from_worker(self, uint8_t* buffer, size_t size) except -1
    cdef int to_client(self, bytes data) except -1
    cdef int to_worker(self, const uint8_t* data, size_t size) except -1
    cdef int flush_tls(self) except -1
    cdef int end_client(self) except -1
    # Gives both descriptors back.
    cdef void close(self) noexcept
    cdef bint over(self) noexcept
