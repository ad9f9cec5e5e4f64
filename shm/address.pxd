"""A client's address in messages between processes and in connections: 19 bytes instead of a text."""
from libc.stdint cimport uint8_t, uint16_t

cdef enum:
    ADDRESS_TEXT_MAX = 64                  # "[" 45 characters of IPv6 "]:65535", and NUL

cdef packed struct PeerAddress:
    uint8_t family                         # 4, 6; 0: unknown
    uint16_t port                          # host byte order
    uint8_t host[16]                       # network byte order; the first 4 bytes for IPv4

# Writes "127.0.0.1:50312" or "[::1]:50312", nothing for an unknown one; returns the size. `target` has ADDRESS_TEXT_MAX bytes.
cdef size_t write_address(char* target, const PeerAddress* address) noexcept
cdef str address_text(const PeerAddress* address)
# Parses address and port; any other text becomes an unknown address.
cdef PeerAddress parse_address(str text) except *
