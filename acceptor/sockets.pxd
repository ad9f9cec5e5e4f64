"""Declares the socket calls that only an acceptor needs; shm/posix.pxd declares epoll, recv and send."""
from libc.stdint cimport uint16_t

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        unsigned short sa_family
    cdef struct sockaddr_storage:
        unsigned short ss_family
    int accept4(int fd, sockaddr* address, unsigned int* size, int flags)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int size)
    int SOCK_NONBLOCK, SOCK_CLOEXEC, AF_INET, AF_INET6

cdef extern from "<netinet/in.h>" nogil:
    cdef struct in_addr:
        pass
    cdef struct in6_addr:
        pass
    cdef struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    cdef struct sockaddr_in6:
        uint16_t sin6_port
        in6_addr sin6_addr
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY, TCP_QUICKACK

cdef extern from "<arpa/inet.h>" nogil:
    uint16_t ntohs(uint16_t value)
