"""Addresses of clients; see address.pxd."""

from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.string cimport memcpy, memset, strlen

from ipaddress import IPv6Address, ip_address

__all__ = ["pack_address", "unpack_address"]

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* source, char* target, unsigned int size)
    int AF_INET6

cdef enum:
    IPV4 = 4
    IPV6 = 6


cdef char* write_number(char* target, unsigned int number) noexcept:
    """Writes the decimal digits of a number below 100,000; returns the position after them."""
    cdef char digits[8]
    cdef int count = 0
    while True:
        digits[count] = <char>(c"0" + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        target[0] = digits[count]
        target += 1
    return target


cdef size_t write_address(char* target, const PeerAddress* address) noexcept:
    cdef char* end = target
    cdef int i
    if address.family == IPV4:
        for i in range(4):
            end = write_number(end, address.host[i])
            end[0] = c"." if i < 3 else c":"
            end += 1
    elif address.family == IPV6:
        end[0] = c"["
        if inet_ntop(AF_INET6, address.host, end + 1, ADDRESS_TEXT_MAX - 1) == NULL:
            return 0
        end += 1 + strlen(end + 1)
        memcpy(end, <const char*>b"]:", 2)
        end += 2
    else:
        return 0
    return write_number(end, address.port) - target


cdef str address_text(const PeerAddress* address):
    cdef char text[ADDRESS_TEXT_MAX]
    return PyUnicode_DecodeASCII(text, write_address(text, address), NULL)


cdef PeerAddress parse_address(str text) except *:
    cdef PeerAddress address
    cdef bytes packed
    memset(&address, 0, sizeof(address))
    host, _, port = text.rpartition(":")
    try:
        known = ip_address(host.strip("[]"))
        address.port = int(port)
    except (ValueError, OverflowError):
        memset(&address, 0, sizeof(address))
        return address
    if isinstance(known, IPv6Address) and known.ipv4_mapped is not None:
        known = known.ipv4_mapped
    packed = known.packed
    address.family = <uint8_t>known.version
    memcpy(address.host, <const char*>packed, len(packed))
    return address


def pack_address(str text not None) -> bytes:
    """Returns the 19 bytes of "127.0.0.1:50312" or "[::1]:50312". A mapped IPv4 address becomes IPv4, any other text unknown."""
    cdef PeerAddress address = parse_address(text)
    return (<char*>&address)[:sizeof(address)]


def unpack_address(bytes packed not None) -> str:
    """Returns the text of a packed address; empty for an unknown one. Raises ValueError for another size."""
    cdef PeerAddress address
    if len(packed) != sizeof(address):
        raise ValueError(f"{len(packed)} bytes, an address has {sizeof(address)}")
    memcpy(&address, <const char*>packed, sizeof(address))
    return address_text(&address)
