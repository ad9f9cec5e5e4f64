"""Non-blocking TCP sockets towards one address, from one of several own addresses."""

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        pass

# A socket on its way to `target`, from `source` unless that is empty: both are sockaddr as bytes. -1 and errno if it cannot be.
# `ready`: whether it is connected already; may be NULL.
cdef int open_socket(int family, bytes target, bytes source, bint* ready) noexcept
