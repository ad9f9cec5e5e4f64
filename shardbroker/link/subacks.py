"""SUBACKs that wait for other nodes: messages of the channel `subacks`, of 16 bytes each.

    worker -> link-0      ticket u64 | position u64       hold until all peers that are up have the route log up to the position
    link-0 -> worker      ticket u64 | late u64           send it; late 1: the limit was reached before

A ticket is chosen by the worker and means nothing to others. The order of answers may differ from that of requests. A worker gives
up by itself if link-0 does not answer, since it may have died.
"""

from struct import Struct

__all__ = ["MESSAGE_BYTES", "decode_answer", "decode_request", "encode_answer", "encode_request"]

_PAIR = Struct("<QQ")
MESSAGE_BYTES = _PAIR.size


def encode_request(ticket: int, position: int) -> bytes:
    return _PAIR.pack(ticket, position)


def decode_request(message: bytes) -> tuple[int, int]:
    """Returns (ticket, position)."""
    ticket, position = _PAIR.unpack(message)
    return ticket, position


def encode_answer(ticket: int, is_late: bool) -> bytes:
    return _PAIR.pack(ticket, is_late)


def decode_answer(message: bytes) -> tuple[int, bool]:
    """Returns (ticket, whether the limit was reached)."""
    ticket, is_late = _PAIR.unpack(message)
    return ticket, bool(is_late)
