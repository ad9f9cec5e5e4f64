"""Pumping plaintext; see pump.pxd."""

import ssl

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, errno

from shm.posix cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, close, recv, send, shutdown

__all__ = ["Pump"]

cdef enum:
    RECORD_MAX = 16384                     # plaintext of one TLS record, bytes

cdef object WantRead = ssl.SSLWantReadError
cdef object Error = ssl.SSLError


cdef class Pump:
    def __cinit__(self):
        self.outer = self.inner = -1

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:        # no-cython-lint: a method
        if self.outer >= 0:
            close(self.outer)
        if self.inner >= 0:
            close(self.inner)
        self.outer = self.inner = -1

    cdef bint ready(self, int fd, uint32_t events, uint8_t* buffer, size_t size) except -1:
        cdef uint32_t readable = events & <uint32_t>(EPOLLIN | EPOLLERR | EPOLLHUP)
        if fd == self.outer:
            if events & <uint32_t>EPOLLOUT and self.kept_out is not None:
                self.to_client(None)
            if readable and self.kept_in is None and not self.outer_ended:
                self.from_client(buffer, size)
        else:
            if events & <uint32_t>EPOLLOUT and self.kept_in is not None:
                self.to_worker(NULL, 0)
            if readable and self.kept_out is None and not self.inner_ended:
                self.from_worker(buffer, size)
        return not self.over()

    cdef bint over(self) noexcept:
        """Returns whether both directions are over: the worker's end closes the client's, while the client's end reaches the worker
        at once."""
        return (self.inner_ended and self.kept_out is None and self.outer_ended) or (self.outer_shut and self.inner_shut)

    cdef int from_client(self, uint8_t* buffer, size_t size) except -1:
        """Decrypts the ciphertext of one recv record by record, behind it in `buffer`, and sends the plaintext to the worker in one
        send."""
        cdef size_t plain = 0, room = size // 2
        cdef bint ended = False
        cdef uint8_t* target = buffer + room
        cdef ssize_t got = recv(self.outer, buffer, room - RECORD_MAX, MSG_DONTWAIT)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            return self.end_client()
        self.incoming.write(PyMemoryView_FromMemory(<char*>buffer, got, PyBUF_READ))
        try:
            while self.incoming.pending or self.tls.pending():
                got = self.tls.read(RECORD_MAX, PyMemoryView_FromMemory(<char*>target + plain, RECORD_MAX, PyBUF_WRITE))
                if got == 0:
                    ended = True           # close_notify
                    break
                plain += <size_t>got
                if plain + RECORD_MAX > room:
                    self.to_worker(target, plain)
                    plain = 0
        except WantRead:
            pass
        except Error:
            ended = True
        if plain:
            self.to_worker(target, plain)
        if ended:
            self.end_client()              # after the bytes before it: a PUBLISH, or the DISCONNECT that suppresses the will
        return self.flush_tls()

    cdef int end_client(self) except -1:
        """Ends the input of the client; the worker sees the end after the bytes before it."""
        self.outer_ended = True
        if self.kept_in is None and not self.inner_shut:
            self.inner_shut = True
            shutdown(self.inner, SHUT_WR)
        return 0

    cdef int from_worker(self, uint8_t* buffer, size_t size) except -1:
        cdef ssize_t got = recv(self.inner, buffer, size, MSG_DONTWAIT)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return 0
        if got <= 0:
            self.inner_ended = True
            try:
                self.tls.unwrap()          # close_notify; the peer's own is not awaited
            except Error:
                pass
            return self.flush_tls()
        try:
            self.tls.write(PyMemoryView_FromMemory(<char*>buffer, got, PyBUF_READ))
        except Error:
            self.inner_ended = True        # the client has ended TLS in a way that permits no further output
            return self.end_client()
        return self.flush_tls()

    cdef int flush_tls(self) except -1:
        cdef bytes data
        if self.outgoing.pending:
            data = self.outgoing.read()
            if self.kept_out is not None:
                # Alerts and answers of TLS itself: a few bytes.
                self.kept_out = self.kept_out[self.kept_out_at:] + data
                self.kept_out_at = 0
                return 0
            return self.to_client(data)
        return self.to_client(None) if self.inner_ended and self.kept_out is None else 0

    cdef int to_client(self, bytes data) except -1:
        """Sends `data`, or the kept bytes (None), which may be absent if only the end is to be signalled."""
        cdef ssize_t sent
        if data is not None:
            self.kept_out = data
            self.kept_out_at = 0
        while self.kept_out is not None:
            sent = send(self.outer, PyBytes_AS_STRING(self.kept_out) + self.kept_out_at,
                        PyBytes_GET_SIZE(self.kept_out) - self.kept_out_at, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno == EAGAIN or errno == EINTR:
                    return 0
                self.kept_out = None
                self.outer_shut = self.inner_ended = True
                return self.end_client()
            self.kept_out_at += <size_t>sent
            if self.kept_out_at == <size_t>PyBytes_GET_SIZE(self.kept_out):
                self.kept_out = None
        if self.inner_ended and not self.outer_shut:
            self.outer_shut = True
            shutdown(self.outer, SHUT_WR)
        return 0

    cdef int to_worker(self, const uint8_t* data, size_t size) except -1:
        """Sends data, or the kept bytes (NULL). What the worker does not accept is kept."""
        cdef ssize_t sent
        if data == NULL:
            data = <const uint8_t*>PyBytes_AS_STRING(self.kept_in) + self.kept_in_at
            size = PyBytes_GET_SIZE(self.kept_in) - self.kept_in_at
        elif self.kept_in is not None:
            self.kept_in = self.kept_in[self.kept_in_at:] + PyBytes_FromStringAndSize(<const char*>data, size)
            self.kept_in_at = 0
            return 0
        sent = send(self.inner, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self.kept_in = None        # the worker has closed its end
                self.outer_ended = self.inner_shut = True
                return 0
            sent = 0
        if <size_t>sent < size:
            if self.kept_in is None:
                self.kept_in = PyBytes_FromStringAndSize(<const char*>data + sent, size - sent)
                self.kept_in_at = 0
            else:
                self.kept_in_at += <size_t>sent
            return 0
        self.kept_in = None
        if self.outer_ended:
            self.end_client()
        return 0
