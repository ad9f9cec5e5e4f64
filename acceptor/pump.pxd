"""TLS after the handshake: one Pump carries the plaintext of one connection between its socket and its worker.

    client's socket  <- ciphertext ->  [ OpenSSL, memory BIOs ]  <- plaintext ->  socketpair  -> worker

Each direction holds at most the bytes of one read and reads no more until they are sent, so back-pressure of a client reaches the
worker, and that of the worker the client. A direction ends when its reader has seen the end and its held bytes are sent.

Invariants: `kept_in` has plaintext that the worker's end did not accept, `kept_out` ciphertext that the client's socket did not
accept; only an end that can make progress is registered in epoll.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Pump:
    cdef readonly int outer                # the client's socket; -1: closed
    cdef readonly int inner                # this process's end of the socketpair
    cdef object tls                        # ssl.SSLObject
    cdef object incoming, outgoing         # its ssl.MemoryBIO
    cdef bytes kept_in, kept_out
    cdef size_t kept_in_at, kept_out_at    # how much of them is sent
    cdef bint outer_ended, inner_ended     # end of input
    cdef bint outer_shut, inner_shut       # shut for output
    cdef uint32_t outer_interest, inner_interest
    cdef uint64_t ending_ms                # deadline for closing both ends; 0: not ending

    # Handles an event of one descriptor. False: both directions are over, the caller calls close().
    cdef bint ready(self, int fd, uint32_t events, uint8_t* buffer, size_t size) except -1
    cdef int from_client(self, uint8_t* buffer, size_t size) except -1
    cdef int from_worker(self, uint8_t* buffer, size_t size) except -1
    cdef int to_client(self, bytes data) except -1
    cdef int to_worker(self, const uint8_t* data, size_t size) except -1
    cdef int flush_tls(self) except -1
    cdef int end_client(self) except -1
    # Closes both descriptors.
    cdef void close(self) noexcept
    cdef bint over(self) noexcept
