"""Events of clients; see events.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from shm.address cimport address_text, parse_address

from typing import NamedTuple

__all__ = [
    "EXPIRY_NEVER", "KIND_CONNECTED", "KIND_DENIED", "KIND_DISCONNECTED", "KIND_FLAPPING", "KIND_REFUSED",
    "SIDES", "ClientEvent", "EventError", "clients_prefix", "kind_of", "pack_event", "unpack_event",
]

KIND_CONNECTED = int(EVENT_CONNECTED)
KIND_DISCONNECTED = int(EVENT_DISCONNECTED)
KIND_DENIED = int(EVENT_DENIED)
KIND_FLAPPING = int(EVENT_FLAPPING)
KIND_REFUSED = int(EVENT_REFUSED)
EXPIRY_NEVER = int(<uint32_t>EVENT_EXPIRY_NEVER)
"""Seconds, MQTT 5.0 §3.1.2.11.2."""
SIDES = ("client", "server", "network")
"""The side that ended the connection."""

_SIZE_MAX = 65535
"""Limit of the 16-bit sizes of client id and user name, bytes."""


def clients_prefix(str node not None) -> bytes:
    """Returns the prefix of the `$SYS` topics of a node's clients; the client id and a word such as `connected` follow."""
    return f"$SYS/brokers/{node}/clients/".encode()


class EventError(ValueError):
    """The bytes do not contain a whole event."""


class ClientEvent(NamedTuple):
    """An event of one client."""

    kind: int
    reason_code: int
    side: int
    version: int
    keepalive_s: int
    at_ms: int
    client_id: bytes
    peer: str
    detail: str
    username: bytes = b""
    expiry_s: int = 0
    """Session Expiry Interval in force; EXPIRY_NEVER: it does not expire."""
    listener: int = 0
    """Its place in the topology."""
    clean_start: bool = False


def pack_event(int kind, int reason_code, int side, int version, int keepalive_s, uint64_t at_ms, bytes client_id not None,
               str peer not None, str detail not None, bytes username=b"", uint32_t expiry_s=0, uint16_t listener=0,
               bint clean_start=False) -> bytes:
    """Encodes an event. Texts are cut: detail to DETAIL_MAX bytes, the others to the limit of their sizes."""
    cdef EventHeader header
    cdef bytes text = cut(detail.encode(errors="replace"))
    client_id, username = client_id[:_SIZE_MAX], username[:_SIZE_MAX]
    memset(&header, 0, sizeof(header))
    header.kind = <uint8_t>kind
    header.reason_code = <uint8_t>reason_code
    header.side = <uint8_t>side
    header.version = <uint8_t>version
    header.keepalive_s = <uint32_t>keepalive_s
    header.at_ms = at_ms
    header.peer = parse_address(peer)
    header.clean_start = clean_start
    header.client_size = <uint16_t>len(client_id)
    header.detail_size = <uint16_t>len(text)
    header.username_size = <uint16_t>len(username)
    header.expiry_s = expiry_s
    header.listener = listener
    return (<char*>&header)[:sizeof(header)] + client_id + text + username


def kind_of(bytes data not None) -> int:
    """Returns the kind of an event; 0 for no bytes."""
    return data[0] if data else 0


cdef int check(const uint8_t* data, size_t size, EventHeader* header) except -1:
    cdef size_t whole
    if size < sizeof(EventHeader):
        raise EventError(f"{size} bytes, an event has {sizeof(EventHeader)} or more")
    memcpy(header, data, sizeof(EventHeader))
    whole = sizeof(EventHeader) + header.client_size + header.detail_size + header.username_size
    if size < whole:
        raise EventError(f"{size} bytes, its sizes say {whole}")
    return 0


def unpack_event(bytes data not None) -> ClientEvent:
    """Decodes an event, ignoring bytes after it. Raises EventError if it is truncated."""
    cdef EventHeader header
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef size_t detail_at, username_at
    check(start, PyBytes_GET_SIZE(data), &header)
    detail_at = sizeof(EventHeader) + header.client_size
    username_at = detail_at + header.detail_size
    return ClientEvent(
        header.kind, header.reason_code, header.side, header.version, header.keepalive_s, header.at_ms,
        data[sizeof(EventHeader):detail_at], address_text(&header.peer),
        data[detail_at:username_at].decode(errors="replace"), data[username_at:username_at + header.username_size],
        header.expiry_s, header.listener, bool(header.clean_start),
    )


cdef bytes cut(bytes text):
    """Returns at most DETAIL_MAX bytes of UTF-8, without half a character at the end."""
    return text if len(text) <= <int>DETAIL_MAX else text[:<int>DETAIL_MAX].decode(errors="ignore").encode()
