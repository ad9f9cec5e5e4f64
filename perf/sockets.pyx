"""Sockets of the load tool; see sockets.pxd.

A source address gives as many connections to one broker address as there are ports (ip_local_port_range). The port is chosen at
connect (IP_BIND_ADDRESS_NO_PORT), so that one port may serve several targets.
"""

import socket
import struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EINPROGRESS, errno
from shm.posix cimport close

__all__ = ["Route"]

cdef extern from "<sys/socket.h>" nogil:
    int c_socket "socket"(int family, int kind, int protocol)
    int c_connect "connect"(int fd, const sockaddr* address, unsigned int size)
    int c_bind "bind"(int fd, const sockaddr* address, unsigned int size)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int size)
    int SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY


cdef int open_socket(int family, bytes target, bytes source, bint* ready) noexcept:
    cdef int on = 1, kept
    cdef int fd = c_socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
    if fd < 0:
        return -1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
    if PyBytes_GET_SIZE(source):
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on))
        if c_bind(fd, <const sockaddr*>PyBytes_AS_STRING(source), <unsigned int>PyBytes_GET_SIZE(source)) < 0:
            kept = errno
            close(fd)
            (&errno)[0] = kept
            return -1
    on = c_connect(fd, <const sockaddr*>PyBytes_AS_STRING(target), <unsigned int>PyBytes_GET_SIZE(target)) == 0
    if ready != NULL:
        ready[0] = on
    if not on and errno != EINPROGRESS:
        kept = errno
        close(fd)
        (&errno)[0] = kept
        return -1
    return fd


class Route:
    """Target of connections, and local addresses used in turn. Raises OSError."""

    def __init__(self, str host, int port, ifaddr: tuple = ()) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise OSError(f"{host}: {error.strerror}") from None
        self.family: int = int(family)
        self.target: bytes = _pack(family, address)
        self.sources: list = [_pack(family, (own, 0, 0, 0)) for own in ifaddr] or [b""]


def _pack(family, address) -> bytes:
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack(">H", address[1]) + socket.inet_pton(family, address[0]) + bytes(8)
    packed = socket.inet_pton(family, address[0].split("%")[0])
    return struct.pack("=H", family) + struct.pack(">HI", address[1], 0) + packed + struct.pack("=I", address[3])
