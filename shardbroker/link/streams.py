"""Messages of the data channel to frames and back; DATA and LARGE, whose bodies are records, are in wire.pyx.

    STREAMS     complete u8, then for each offer:   stream u32 | lane u16 | identity u64 | start u64
    RESUME      for each stream:                    stream u32 | position u64
    DATA_ACK    for each stream:                    stream u32 | memory u64 | disk u64

Ranges of values are checked by the core that receives a message.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import STREAMS_MAX, DataAck, Message, Resume, StreamAck, StreamOffer, StreamResume, Streams
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import Frame, FrameType, pack_frame

__all__ = ["decode_message", "encode_message"]

_OFFER, _RESUME, _ACK = Struct("<IHQQ"), Struct("<IQ"), Struct("<IQQ")


def encode_message(message: Message) -> bytes:
    """Returns the frame of a message other than Data."""
    match message:
        case Streams(offers, complete):
            return pack_frame(FrameType.STREAMS, bytes([complete]) + b"".join([_OFFER.pack(*offer) for offer in offers]))
        case Resume(positions):
            return pack_frame(FrameType.RESUME, b"".join([_RESUME.pack(*one) for one in positions]))
        case DataAck(positions):
            return pack_frame(FrameType.DATA_ACK, b"".join([_ACK.pack(*one) for one in positions]))
    return encode(message)


def decode_message(kind: int, body: bytes) -> Message:
    """Returns the message of a frame other than DATA and LARGE. Raises PeerFault."""
    try:
        found = FrameType(kind)
    except ValueError:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, f"type of a frame: must be one of a data channel, got {kind}") from None
    if found == FrameType.STREAMS:
        if body[:1] not in (b"\0", b"\1"):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"STREAMS complete: must be 0 or 1, got {body[:1]!r}")
        return Streams(_items(found, _OFFER, StreamOffer, body[1:]), body[0] == 1)
    if found == FrameType.RESUME:
        return Resume(_items(found, _RESUME, StreamResume, body))
    if found == FrameType.DATA_ACK:
        return DataAck(_items(found, _ACK, StreamAck, body))
    return decode(Frame(found, body))


def _items(kind: FrameType, layout: Struct, make: Callable[..., Any], body: bytes) -> tuple[Any, ...]:
    if len(body) % layout.size or len(body) > STREAMS_MAX * layout.size:
        text = f"{kind.name}: must have at most {STREAMS_MAX} times {layout.size} bytes, got {len(body)}"
        raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
    return tuple(make(*values) for values in layout.iter_unpack(body))
