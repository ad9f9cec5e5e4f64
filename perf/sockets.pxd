"""Non-blocking TCP sockets towards one address, from one of several local addresses."""

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        pass

# Returns a socket that connects to `target`, from `source` unless that is empty; both are sockaddr as bytes. -1 and errno on
# failure. `ready`: whether it is already connected; may be NULL.
cdef int open_socket(int family, bytes target, bytes source, bint* ready) noexcept
