"""Events that workers send to the manager through its inbox: clients that come and go.

struct | client id | peer | detail        sizes stand in the struct, little endian
"""

import struct
from typing import NamedTuple

__all__ = ["KIND_CONNECTED", "KIND_DISCONNECTED", "SIDES", "ClientEvent", "EventError", "pack_event", "unpack_event"]

KIND_CONNECTED = 1
KIND_DISCONNECTED = 2
SIDES = ("client", "server", "network")
"""Who ended the connection."""

_HEADER = struct.Struct("<BBBBIQHHHH")
_DETAIL_MAX = 400
"""Bytes of free text in an event."""
_SIZE_MAX = 65535
"""What the 16-bit sizes of the header can say, bytes."""


class EventError(ValueError):
    """Bytes that are no event."""


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
    """An event as it travels. Texts are cut: detail at _DETAIL_MAX bytes, client id and peer at what their sizes can say."""
    client_id = client_id[:_SIZE_MAX]
    peer_bytes, detail_bytes = peer.encode(errors="replace")[:_SIZE_MAX], _cut(detail.encode(errors="replace"), _DETAIL_MAX)
    return (
        _HEADER.pack(kind, reason_code, side, version, keepalive_s, at_ms, len(client_id), len(peer_bytes), len(detail_bytes), 0)
        + client_id
        + peer_bytes
        + detail_bytes
    )


def unpack_event(data: bytes | memoryview) -> ClientEvent:
    """The reverse of pack_event; bytes behind the event are no part of it. Raises EventError if it is cut short."""
    data = bytes(data)
    if len(data) < _HEADER.size:
        raise EventError(f"{len(data)} bytes, an event has {_HEADER.size} or more")
    kind, reason_code, side, version, keepalive_s, at_ms, client_size, peer_size, detail_size, _ = _HEADER.unpack_from(data)
    peer_at = _HEADER.size + client_size
    detail_at = peer_at + peer_size
    end = detail_at + detail_size
    if len(data) < end:
        raise EventError(f"{len(data)} bytes, its sizes say {end}")
    return ClientEvent(
        kind,
        reason_code,
        side,
        version,
        keepalive_s,
        at_ms,
        data[_HEADER.size : peer_at],
        data[peer_at:detail_at].decode(errors="replace"),
        data[detail_at:end].decode(errors="replace"),
    )


def _cut(text: bytes, size: int) -> bytes:
    """At most `size` bytes of UTF-8, without half a character at the end."""
    return text if len(text) <= size else text[:size].decode(errors="ignore").encode()
