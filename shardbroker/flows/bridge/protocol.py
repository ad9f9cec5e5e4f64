"""A connection between two brokers: preface, handshake, frames of the links of a cluster (link/frames.py).

    dialling side                                        accepting side
    preface | HELLO(versions, site, nonce, stream)  ->
                                                    <-   HELLO(versions, site, nonce)
    WELCOME(proof)                                  ->
                                                    <-   WELCOME(proof)
    DATA(position, records)                         ->
                                                    <-   DATA_ACK(position)
    PING                                            ->
                                                    <-   PONG
                                                         BYE(reason) from either side ends the connection

A proof covers both HELLOs and the role of its sender (see cluster/handshake.py). A frame with the flag MORE is continued by
the next one.
"""

import asyncio
import hmac
import secrets
from hashlib import blake2b, sha256
from struct import Struct
from typing import Any, NamedTuple

import cbor2

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import FRAME_BYTES_MAX
from shardbroker.connectors.errors import ConnectorError
from shardbroker.link.frames import Frame, FrameReader, FrameType, pack_frame

__all__ = ["CLOSED", "MORE", "SITE_BYTES", "Channel", "Hello", "Stream", "accept", "dial", "site_of_cluster", "stream_ids"]

PROTO = 1
"""Version of the protocol; the preface has it, so that another one is refused before anything else is read."""
PREFACE = Struct("<4sB3s")
PREFACE_MAGIC = b"SBRB"
PREFACE_BYTES = PREFACE.size
NONCE_BYTES = 16
SITE_BYTES = 16
"""Characters of the id of a broker, or of a cluster: hexadecimal."""
NAME_MAX = 128
PREFIX_MAX = 4096
HELLO_MAX = 8192
READ_BYTES = 1 << 18
MORE = 1
"""Flag of a DATA frame: the next one continues its body."""
CLOSED = "the far broker has closed the connection: is a source of the type shardbroker there?"
TEXTS = {
    ByeReason.NO_COMMON_PROTOCOL: f"the far broker has another version of the bridge protocol than {PROTO}: upgrade the older one",
    ByeReason.NOT_AUTHENTICATED: "the far broker has another secret: compare `secret` of both connectors",
    ByeReason.SELF: "the far broker is this one, or a node of its cluster",
    ByeReason.LIMIT: "the far broker accepts no more bridges, or no frame of this size: compare mqtt.max_packet_size",
    ByeReason.REPLACED: "a newer connection has the same journal: another broker may have a copy of this data directory",
    ByeReason.LEAVING: "the far broker stops",
    ByeReason.TIMEOUT: "the far broker has not received a frame in time",
}


class Stream(NamedTuple):
    """What a connection is for: a journal of an action."""

    action: str
    journal: str
    prefix: bytes


class Hello(NamedTuple):
    """The first frame of a side. origin: of the data directory. stream: of the dialling side."""

    site: bytes
    origin: str
    nonce: bytes
    stream: Stream | None


def site_of_cluster(name: str, cookie: bytes) -> str:
    """Returns the id that all nodes of a cluster have."""
    return blake2b(name.encode(), digest_size=SITE_BYTES // 2, key=sha256(cookie).digest()).hexdigest()


def stream_ids(hello: Hello) -> tuple[int, int]:
    """Returns origin and identity of the positions of a stream (shm/bridged.pxd)."""
    assert hello.stream is not None
    text = f"{hello.origin}/{hello.stream.action}/{hello.stream.journal}".encode()
    digest = blake2b(text, digest_size=12).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF, int.from_bytes(digest[4:])


class Channel:
    """Frames over a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(HELLO_MAX)

    def allow_data(self) -> None:
        """Allows frames of the full size, once the other side is known."""
        self._frames.limit = FRAME_BYTES_MAX

    async def frame(self) -> Frame:
        """Returns the next frame. Raises ConnectorError for BYE and the end of the connection, PeerFault, OSError."""
        while (frame := self._frames.next()) is None:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectorError(CLOSED)
            self._frames.feed(data)
        if frame.type is FrameType.BYE:
            reason = frame.body[0] if frame.body else 0
            raise ConnectorError(TEXTS.get(reason, "the far broker has ended the connection"))  # type: ignore[call-overload]
        return frame

    def send(self, kind: FrameType, body: bytes = b"", position: int = 0, flags: int = 0) -> None:
        """Sends a frame; a body that is too large for one in several."""
        while len(body) > FRAME_BYTES_MAX:
            self._writer.write(pack_frame(kind, body[:FRAME_BYTES_MAX], position=position, flags=flags | MORE))
            body = body[FRAME_BYTES_MAX:]
        self._writer.write(pack_frame(kind, body, position=position, flags=flags))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits while the connection takes no more. Raises OSError."""
        await self._writer.drain()

    def bye(self, reason: ByeReason) -> None:
        """Sends the reason, and ends the connection."""
        self.send(FrameType.BYE, bytes([reason]))
        self.close()

    def close(self) -> None:
        self._writer.close()


def _pack(hello: Hello) -> bytes:
    stream = list(hello.stream) if hello.stream is not None else None
    return cbor2.dumps([hello.site, hello.origin, hello.nonce, stream])


def _unpack(body: bytes) -> Hello:
    try:
        site, origin, nonce, stream = cbor2.loads(body)
        found = Hello(site, origin, nonce, Stream(*stream) if stream is not None else None)
    except Exception:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, "HELLO: must have site, origin, nonce and stream") from None
    texts: list[tuple[str, Any, type[bytes] | type[str], int]] = [
        ("site", found.site, bytes, SITE_BYTES), ("origin", found.origin, str, NAME_MAX), ("nonce", found.nonce, bytes, NONCE_BYTES)
    ]  # fmt: skip
    if found.stream is not None:
        texts += [("action", found.stream.action, str, NAME_MAX), ("journal", found.stream.journal, str, 5)]
        texts += [("prefix", found.stream.prefix, bytes, PREFIX_MAX)]
    for name, value, kind, most in texts:
        size = len(value) if isinstance(value, kind) else most + 1
        if size > most or (name in ("site", "nonce") and size != most):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO {name}: must have up to {most} characters")
    return found


def _proof(secret: bytes, role: bytes, dialled: bytes, accepted: bytes) -> bytes:
    covered = b"".join(len(part).to_bytes(4, "big") + part for part in (role, dialled, accepted))
    return hmac.new(secret, covered, sha256).digest()


def _expect(frame: Frame, kind: FrameType) -> bytes:
    if frame.type is not kind:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, f"frame: must be {kind.name}, got {frame.type.name}")
    return frame.body


async def dial(channel: Channel, secret: bytes, site: bytes, origin: str, stream: Stream | None) -> Hello:
    """Returns the HELLO of the accepting side, once both have proved the secret. stream: None: of a probe.

    Raises ConnectorError, PeerFault, OSError.
    """
    own = _pack(Hello(site, origin, secrets.token_bytes(NONCE_BYTES), stream))
    channel.send_raw(PREFACE.pack(PREFACE_MAGIC, PROTO, bytes(3)))
    channel.send(FrameType.HELLO, own)
    body = _expect(await channel.frame(), FrameType.HELLO)
    found = _unpack(body)
    channel.send(FrameType.WELCOME, _proof(secret, b"dialer", own, body))
    if not hmac.compare_digest(_expect(await channel.frame(), FrameType.WELCOME), _proof(secret, b"acceptor", own, body)):
        raise ConnectorError(TEXTS[ByeReason.NOT_AUTHENTICATED])
    channel.allow_data()
    return found


async def accept(channel: Channel, reader: asyncio.StreamReader, secret: bytes, site: bytes, origin: str) -> Hello:
    """Returns the HELLO of the dialling side, once both have proved the secret. Raises PeerFault, ConnectorError, OSError."""
    magic, version, _ = PREFACE.unpack(await reader.readexactly(PREFACE_BYTES))
    if magic != PREFACE_MAGIC:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, "preface: must be that of a bridge between brokers")
    if version != PROTO:
        raise PeerFault(ByeReason.NO_COMMON_PROTOCOL, f"version of the bridge protocol: must be {PROTO}, got {version}")
    body = _expect(await channel.frame(), FrameType.HELLO)
    found = _unpack(body)
    own = _pack(Hello(site, origin, secrets.token_bytes(NONCE_BYTES), None))
    channel.send(FrameType.HELLO, own)
    if not hmac.compare_digest(_expect(await channel.frame(), FrameType.WELCOME), _proof(secret, b"dialer", body, own)):
        raise PeerFault(ByeReason.NOT_AUTHENTICATED, "a broker with another secret: compare `secret` of both connectors")
    if found.site == site:
        raise PeerFault(ByeReason.SELF, "the dialling broker is this one, or a node of its cluster")
    channel.send(FrameType.WELCOME, _proof(secret, b"acceptor", body, own))
    channel.allow_data()
    return found
