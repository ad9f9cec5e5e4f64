"""Messages of the signal channel to frames and back. Every field has a fixed size or its length in front, so a body takes no more
memory than its bytes, whatever a peer sends.

    HELLO     channel u16, node id u16, incarnation u64, proto min and max u16, features u64, cluster, uuid, nonce 16 bytes each,
              sizes of name and address u16, name, address
    LOAD      connections, sessions, messages received and sent a second, uptime in s, load in hundredths u32 each,
              whether clients are turned away u8, version
    PART, LOG numbers u64, then routes: count u32 | flags u8... | members u32... | sizes of filters u16... |
              sizes of groups u16... | filters and groups one after the other

Those of sessions are in session_codec.py, those of tables that are on all nodes, such as retained messages, in retained_codec.py;
the lane of their frames is the number of the table. Ranges of values are checked by the core that receives a message.
"""

from collections.abc import Callable, Sequence
from struct import Struct, calcsize, pack, unpack_from
from struct import error as StructError
from typing import Any, cast

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    Bye,
    Hello,
    Leaving,
    Load,
    Message,
    OfTable,
    Ping,
    Pong,
    RetainedMessages,
    Route,
    RouteAck,
    RouteEntries,
    RoutePartAck,
    RoutesBegin,
    RoutesEnd,
    RoutesFrom,
    RoutesPart,
    RoutesResume,
    SessionMessage,
    TableNumber,
    Welcome,
)
from shardbroker.cluster.rlog import BATCH_ROUTES
from shardbroker.link.frames import Frame, FrameType, pack_frame
from shardbroker.link.retained_codec import RETAINED_FRAMES, decode_retained, encode_retained
from shardbroker.link.session_codec import SESSION_FRAMES, decode_session, encode_session

__all__ = ["decode", "decode_routes", "encode", "encode_routes"]

HELLO = Struct("<HHQHHQ16s16s16sHH")
PROOF_BYTES = 32
PING = Struct("<QqB")
DIGEST_BYTES_MAX = 16
LOAD = Struct("<IIIIII?")
LOAD_NUMBER_MAX = (1 << 32) - 1
VERSION_BYTES_MAX = 64
REASON = Struct("<H")
BYE_BYTES_MAX = 1_000
COUNT = Struct("<I")
NUMBERS: dict[FrameType, tuple[type[Any], Struct]] = {
    FrameType.PONG: (Pong, Struct("<Qq")),
    FrameType.LEAVING: (Leaving, Struct("<")),
    FrameType.ROUTES_FROM: (RoutesFrom, Struct("<QQ")),
    FrameType.ROUTES_RESUME: (RoutesResume, Struct("<QQQ")),
    FrameType.ROUTES_BEGIN: (RoutesBegin, Struct("<QQ")),
    FrameType.ROUTES_END: (RoutesEnd, Struct("<QQ")),
    FrameType.ROUTE_PART_ACK: (RoutePartAck, Struct("<Q")),
    FrameType.ROUTE_ACK: (RouteAck, Struct("<Q")),
}
"""Messages that are only numbers."""
BATCHES: dict[FrameType, tuple[type[Any], Struct]] = {
    FrameType.ROUTES_PART: (RoutesPart, Struct("<Q")),
    FrameType.ROUTE_LOG: (RouteEntries, Struct("<QQ")),
}
"""Messages with routes behind their numbers."""
TABLES = frozenset(TableNumber)
_TYPE_OF = {kind: number for table in (NUMBERS, BATCHES) for number, (kind, _) in table.items()}


def encode(message: Message) -> bytes:
    """Returns the frame of a message of the signal channel."""
    match message:
        case Hello():
            name, address = message.name.encode(), message.address.encode()
            first = message.channel, message.node_id, message.incarnation, message.proto_min, message.proto_max, message.features
            head = HELLO.pack(*first, message.cluster, message.node_uuid, message.nonce, len(name), len(address))
            return pack_frame(FrameType.HELLO, head + name + address)
        case Welcome(proof):
            return pack_frame(FrameType.WELCOME, proof)
        case Bye(reason, text):
            return pack_frame(FrameType.BYE, REASON.pack(reason) + text.encode()[:BYE_BYTES_MAX])
        case Ping(number, clock_ms, digest, state):
            return pack_frame(FrameType.PING, PING.pack(number, clock_ms, state) + digest)
        case Load():
            *numbers, turns_away, version = message
            numbers = [min(max(0, number), LOAD_NUMBER_MAX) for number in numbers]
            return pack_frame(FrameType.LOAD, LOAD.pack(*numbers, turns_away) + version.encode()[:VERSION_BYTES_MAX])
    if isinstance(message, SessionMessage):
        return pack_frame(*encode_session(message))
    if isinstance(message, RetainedMessages):
        return pack_frame(*encode_retained(message))
    if isinstance(message, OfTable):
        return pack_frame(*encode_retained(message.message), lane=message.table)
    kind = _TYPE_OF[type(message)]
    if kind in NUMBERS:
        return pack_frame(kind, NUMBERS[kind][1].pack(*message))
    *numbers, routes = cast(tuple[Any, ...], message)
    return pack_frame(kind, BATCHES[kind][1].pack(*numbers) + encode_routes(routes))


def decode(frame: Frame) -> Message:
    """Returns the message of a frame of the signal channel. Raises PeerFault."""
    is_of_table = frame.lane in TABLES and frame.type in RETAINED_FRAMES
    if frame.flags or (frame.lane and not is_of_table) or frame.position or frame.ack:
        raise _malformed(frame, "flags, lane, position and ack must be 0")
    if frame.type in SESSION_FRAMES:
        return decode_session(frame.type, frame.body)
    if frame.stamp:
        raise _malformed(frame, "hlc must be 0")
    if frame.type in RETAINED_FRAMES:
        found = decode_retained(frame.type, frame.body)
        return OfTable(TableNumber(frame.lane), found) if frame.lane else found
    decoder = _DECODERS.get(frame.type)
    if decoder is None:
        raise _malformed(frame, "not allowed on the signal channel")
    try:
        return decoder(frame)
    except (StructError, UnicodeDecodeError) as error:
        raise _malformed(frame, str(error)) from None


def _malformed(frame: Frame, text: str) -> PeerFault:
    return PeerFault(ByeReason.PROTOCOL_ERROR, f"{frame.type.name} of {len(frame.body)} bytes: {text}")


def _hello(frame: Frame) -> Hello:
    *numbers, cluster, uuid, nonce, name_size, address_size = HELLO.unpack_from(frame.body)
    texts = frame.body[HELLO.size :]
    if len(texts) != name_size + address_size:
        raise _malformed(frame, f"name and address must have {name_size + address_size} bytes, got {len(texts)}")
    channel, node_id, *rest = numbers
    incarnation, proto_min, proto_max, features = rest
    name, address = texts[:name_size].decode(), texts[name_size:].decode()
    return Hello(channel, node_id, name, address, cluster, uuid, incarnation, proto_min, proto_max, features, nonce)


def _welcome(frame: Frame) -> Welcome:
    if len(frame.body) != PROOF_BYTES:
        raise _malformed(frame, f"must have {PROOF_BYTES} bytes")
    return Welcome(frame.body)


def _bye(frame: Frame) -> Bye:
    text = frame.body[REASON.size :][:BYE_BYTES_MAX]
    return Bye(REASON.unpack_from(frame.body)[0], text.decode(errors="replace"))


def _ping(frame: Frame) -> Ping:
    number, clock_ms, state = PING.unpack_from(frame.body)
    digest = frame.body[PING.size :]
    if len(digest) > DIGEST_BYTES_MAX:
        raise _malformed(frame, f"digest must have at most {DIGEST_BYTES_MAX} bytes, got {len(digest)}")
    return Ping(number, clock_ms, digest, state)


def _load(frame: Frame) -> Load:
    *numbers, turns_away = LOAD.unpack_from(frame.body)
    version = frame.body[LOAD.size :]
    if len(version) > VERSION_BYTES_MAX or not version.decode().isprintable():
        raise _malformed(frame, f"version must be printable and have at most {VERSION_BYTES_MAX} bytes")
    return Load._make((*numbers, turns_away, version.decode()))


def _numbers(frame: Frame) -> Message:
    kind, layout = NUMBERS[frame.type]
    message: Message = kind(*layout.unpack(frame.body))
    return message


def _batch(frame: Frame) -> Message:
    kind, layout = BATCHES[frame.type]
    try:
        message: Message = kind(*layout.unpack_from(frame.body), decode_routes(frame.body, layout.size))
    except ValueError as error:
        raise _malformed(frame, str(error)) from None
    return message


def encode_routes(routes: Sequence[Route]) -> bytes:
    """Returns routes as PART and LOG have them behind their numbers."""
    count = len(routes)
    filters, groups, members, flags = zip(*routes, strict=True) if routes else ((), (), (), ())
    sizes = [len(filter) for filter in filters]
    group_sizes = [len(group) for group in groups]
    columns = pack(f"<I{count}B{count}I{count}H{count}H", count, *flags, *members, *sizes, *group_sizes)
    return b"".join([columns, *(text for pair in zip(filters, groups, strict=True) for text in pair)])


def decode_routes(body: bytes, at: int) -> tuple[Route, ...]:
    """Returns the routes from an offset to the end. Raises ValueError, struct.error."""
    (count,) = COUNT.unpack_from(body, at)
    if not 0 < count <= BATCH_ROUTES:
        raise ValueError(f"must have 1 to {BATCH_ROUTES} routes, got {count}")
    layout = f"<{count}B{count}I{count}H{count}H"
    columns = unpack_from(layout, body, at + COUNT.size)
    at += COUNT.size + calcsize(layout)
    if len(body) - at != sum(columns[2 * count :]):
        raise ValueError(f"filters and groups must have {sum(columns[2 * count :])} bytes, got {len(body) - at}")
    routes = []
    for flags, members, size, group_size in zip(
        columns[:count], columns[count : 2 * count], columns[2 * count : 3 * count], columns[3 * count :], strict=True
    ):
        middle = at + size
        end = middle + group_size
        routes.append(Route(body[at:middle], body[middle:end], members, flags))
        at = end
    return tuple(routes)


_DECODERS: dict[FrameType, Callable[[Frame], Message]] = {
    FrameType.HELLO: _hello,
    FrameType.WELCOME: _welcome,
    FrameType.BYE: _bye,
    FrameType.PING: _ping,
    FrameType.LOAD: _load,
    **dict.fromkeys(NUMBERS, _numbers),
    **dict.fromkeys(BATCHES, _batch),
}
