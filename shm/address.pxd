"""A client's address as it travels between processes and lies in a connection: 19 bytes instead of a text."""
from libc.stdint cimport uint8_t, uint16_t

cdef enum:
    ADDRESS_TEXT_MAX = 64                  # "[" 45 characters of IPv6 "]:65535", and the end

cdef packed struct PeerAddress:
    uint8_t family                         # 4, 6; 0: not known
    uint16_t port                          # host byte order
    uint8_t host[16]                       # network byte order; the first 4 bytes for IPv4

# Writes "127.0.0.1:50312" or "[::1]:50312", or nothing for one not known; returns the size. `target` takes ADDRESS_TEXT_MAX.
cdef size_t write_address(char* target, const PeerAddress* address) noexcept
cdef str address_text(const PeerAddress* address)
# The reverse. What is no address and port becomes one not known.
cdef PeerAddress parse_address(str text) except *
