"""acceptor/proxy.py: a header is found with its last byte and not earlier, and results in an address or in Refused."""

import struct
from collections.abc import Iterable
from ipaddress import ip_address

from acceptor.proxy import HEADER_MAX, parse_proxy_header
from acceptor.refusal import Refused

MAX_LEN = 400
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def seeds() -> Iterable[bytes]:
    yield b"PROXY TCP4 192.0.2.1 192.0.2.2 50312 1883\r\n\x10"
    yield b"PROXY TCP6 2001:db8::1 2001:db8::2 50312 1883\r\n"
    yield b"PROXY UNKNOWN\r\n"
    name = struct.pack("!BH", 0x22, 6) + b"client"
    certificate = struct.pack("!BHBI", 0x20, 5 + len(name), 1, 0) + name
    for command, family, addresses in (
        (0x21, 0x11, bytes(range(12))),
        (0x21, 0x21, bytes(range(36))),
        (0x21, 0x31, bytes(216)),
        (0x20, 0, b""),
    ):
        for body in (addresses, addresses + certificate):
            yield SIGNATURE + struct.pack("!BBH", command, family, len(body)) + body + b"\x10\x0c"


def _parse(data: bytes) -> object:
    """Returns the header, None for more bytes, or the reason for the refusal."""
    try:
        return parse_proxy_header(data)
    except Refused as error:
        return str(error)


def check(data: bytes) -> None:
    whole = _parse(data)
    if whole is None:
        assert len(data) < HEADER_MAX
        return
    if isinstance(whole, str):
        return
    size = whole.size  # type: ignore[attr-defined]
    assert 0 < size <= min(len(data), HEADER_MAX), whole
    assert _parse(data[:size]) == whole, "what follows a header changes it"
    for cut in range(size):
        assert _parse(data[:cut]) is None, f"{cut} of {size} bytes"
    if whole.peer:  # type: ignore[attr-defined]
        host, _, port = whole.peer.rpartition(":")  # type: ignore[attr-defined]
        ip_address(host.strip("[]"))
        assert 0 <= int(port) <= 65535
