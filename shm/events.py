"""Events that workers send to the manager through its inbox: clients that come and go.

struct | client id | peer | detail        sizes stand in the struct, little endian
"""

import struct
from typing import NamedTuple

__all__ = ["KIND_CONNECTED", "KIND_DISCONNECTED", "SIDES", "ClientEvent", "pack_event", "unpack_event"]

KIND_CONNECTED = 1
KIND_DISCONNECTED = 2
SIDES = ("client", "server", "network")
"""Who ended the connection."""

_HEADER = struct.Struct("<BBBBIQHHHH")
_DETAIL_MAX = 400
"""Bytes of free text in an event."""


class ClientEvent(NamedTuple):
    """One client that came or went."""

    kind: int
    reason_code: int
    side: int
    version: int
    keepalive_s: int
    at_ms: int
    client_id: bytes
    peer: str
    detail: str


def pack_event(
    kind: int,
    reason_code: int,
    side: int,
    version: int,
    keepalive_s: int,
    at_ms: int,
    client_id: bytes,
    peer: str,
    detail: str,
) -> bytes:
    """An event as it travels."""
    peer_bytes, detail_bytes = peer.encode(), detail.encode()[:_DETAIL_MAX]
    return (
        _HEADER.pack(kind, reason_code, side, version, keepalive_s, at_ms, len(client_id), len(peer_bytes), len(detail_bytes), 0)
        + client_id
        + peer_bytes
        + detail_bytes
    )


def unpack_event(data: bytes) -> ClientEvent:
    """The reverse of pack_event."""
    kind, reason_code, side, version, keepalive_s, at_ms, a, b, c, _ = _HEADER.unpack_from(data)
    start = _HEADER.size
    return ClientEvent(
        kind,
        reason_code,
        side,
        version,
        keepalive_s,
        at_ms,
        data[start : start + a],
        data[start + a : start + a + b].decode(),
        data[start + a + b : start + a + b + c].decode(errors="replace"),
    )
