"""The PROXY protocol, versions 1 and 2: the address of the client behind a load balancer. Bytes in, address out.

1:  "PROXY TCP4 192.0.2.1 192.0.2.2 50312 1883\\r\\n" 2:  12 bytes of signature | 0x2 command | family | length, 16 bits | addresses
| { type | length | value } ...
"""

import struct
from dataclasses import dataclass
from ipaddress import ip_address

from acceptor.refusal import Refused
from shm.counters import Counter

__all__ = ["HEADER_MAX", "ProxyHeader", "parse_proxy_header"]

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1_START = b"PROXY "
V1_MAX = 107
"""Longest header of version 1 according to its specification, bytes."""
HEADER_MAX = 4096
"""Longest header of version 2 that is accepted, bytes: addresses and TLVs of a client with a long certificate name."""
V2_HEAD = struct.Struct("!12sBBH")
LOCAL, PROXY = 0x20, 0x21
INET, INET6 = 0x1, 0x2
TLV_SSL, TLV_SSL_CN = 0x20, 0x22
SSL_HEAD = struct.Struct("!BI")


@dataclass(frozen=True)
class ProxyHeader:
    """`peer`: "address:port" of the client; empty for connections of the balancer itself (health checks) and unknown clients."""

    size: int
    peer: str = ""
    common_name: str = ""
    """Common name of the client's certificate, if the balancer terminated TLS."""


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Returns the header at the start of `data`, or None while it is incomplete. Raises Refused."""
    if data[:12] == SIGNATURE[: len(data)]:
        return _version_2(data)
    if data[:6] == V1_START[: len(data)]:
        return _version_1(data)
    raise _refused("no PROXY header")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_MAX)
    if end < 0:
        if len(data) >= V1_MAX:
            raise _refused(f"PROXY header of more than {V1_MAX} bytes")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(end + 2)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise _refused("PROXY header version 1: must have a protocol, two addresses and two ports")
    return ProxyHeader(end + 2, _peer(words[2].decode(errors="replace"), words[4].decode(errors="replace")))


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < V2_HEAD.size:
        return None
    _, command, family, size = V2_HEAD.unpack_from(data)
    whole = V2_HEAD.size + size
    if whole > HEADER_MAX:
        raise _refused(f"PROXY header of {whole} bytes, limit {HEADER_MAX}")
    if command not in (LOCAL, PROXY):
        raise _refused(f"PROXY header: version and command must be 0x20 or 0x21, got 0x{command:02x}")
    if len(data) < whole:
        return None
    if command == LOCAL:
        return ProxyHeader(whole)
    body = data[V2_HEAD.size : whole]
    address_size = {INET: 4, INET6: 16}.get(family >> 4, 0)
    if not address_size:
        return ProxyHeader(whole)  # unix sockets and unknown families: the balancer's address remains
    tlvs = 2 * address_size + 4
    if len(body) < tlvs:
        raise _refused("PROXY header version 2 is too short for its addresses")
    (port,) = struct.unpack_from("!H", body, 2 * address_size)
    return ProxyHeader(whole, _peer(ip_address(body[:address_size]).compressed, str(port)), _common_name(body[tlvs:]))


def _common_name(tlvs: bytes) -> str:
    for kind, value in _tlvs(tlvs):
        if kind == TLV_SSL and len(value) >= SSL_HEAD.size:
            for inner, text in _tlvs(value[SSL_HEAD.size :]):
                if inner == TLV_SSL_CN:
                    return text.decode(errors="replace")
    return ""


def _tlvs(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at + 3 <= len(data):
        kind, size = struct.unpack_from("!BH", data, at)
        if at + 3 + size > len(data):
            raise _refused("PROXY header with a TLV that exceeds it")
        found.append((kind, data[at + 3 : at + 3 + size]))
        at += 3 + size
    return found


def _peer(host: str, port: str) -> str:
    try:
        address = ip_address(host)
        number = int(port) if port.isascii() and port.isdecimal() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise _refused(f"PROXY header with the address {host!r} and the port {port!r}")
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def _refused(text: str) -> Refused:
    return Refused(text, Counter.CLIENT_CLOSED_PROXY, "proxy")
