"""The PROXY header, version 2, by which the broker knows the address of a device; acceptor/proxy.py parses it."""

import struct
from ipaddress import ip_address

__all__ = ["DATAGRAM", "STREAM", "encode_proxy_header"]

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PROXY = 0x21
FAMILY = {4: 0x10, 6: 0x20}
"""By version of IP; the transport is added."""
STREAM, DATAGRAM = 1, 2


def encode_proxy_header(peer: tuple[str, int], own: tuple[str, int], transport: int = STREAM) -> bytes:
    """Returns the header for a device; peer and own are (host, port). A mapped IPv4 address becomes IPv4."""
    hosts = [ip_address(host.partition("%")[0]) for host, _ in (peer, own)]
    hosts = [getattr(host, "ipv4_mapped", None) or host for host in hosts]
    if hosts[0].version != hosts[1].version:
        hosts[1] = ip_address("0.0.0.0" if hosts[0].version == 4 else "::")
    body = hosts[0].packed + hosts[1].packed + struct.pack("!HH", peer[1], own[1])
    return SIGNATURE + struct.pack("!BBH", PROXY, FAMILY[hosts[0].version] | transport, len(body)) + body
