"""Connections of brokers that are to become nodes: at the address of links, as channel 10 of the preface.

The member's end is in its manager, like that of calls. One request, one answer, and the connection is closed.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import JOIN, NONCE_BYTES
from shardbroker.cluster.joining import ADMIT_BYTES_MAX, JOIN_BYTES_MAX, Admission, Joining, JoinRequest, check_versions
from shardbroker.cluster.messages import Bye
from shardbroker.config.cluster import Cluster
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import Frame, FrameReader, FrameType, pack_frame
from shardbroker.link.identity import read_cookie
from shardbroker.link.sockets import check_certificate, dial, prepare, tls_contexts

__all__ = ["answer_join", "ask_to_join"]

READ_BYTES = 1 << 18
"""Bytes read at a time, and the limit of a stream's buffer."""
TLS_ALERT = b"\x15\x03"
"""What a node with TLS answers to a connection without it."""
NO_LINK = "the address must be that of cluster.link.bind of a member, and cluster.tls.enable has to be the same on all nodes"
"""What it may mean if the other side does not begin with a frame."""


class _Wire:
    """Frames of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int, hint: str) -> None:
        """hint: what it may mean if the other side does not begin with a frame."""
        self._reader, self._writer, self._hint = reader, writer, hint
        self._frames = FrameReader(limit)

    def send(self, kind: FrameType, body: bytes) -> None:
        self._writer.write(pack_frame(kind, body))

    async def take(self, kind: FrameType) -> bytes:
        """Returns the body of the next frame. Raises OSError, PeerFault."""
        try:
            while (frame := self._frames.next()) is None:
                self._frames.feed(await self._read())
        except PeerFault as fault:
            raise PeerFault(fault.reason, f"{fault.text}{self._hint}") from None
        self._hint = ""
        return self._checked(frame, kind)

    async def _read(self) -> bytes:
        """Raises OSError."""
        data = b""
        with suppress(ConnectionError):
            data = await self._reader.read(READ_BYTES)
        if not data or (self._hint and data.startswith(TLS_ALERT)):
            raise ConnectionResetError(f"the other side has closed the connection{self._hint}")
        return data

    @staticmethod
    def _checked(frame: Frame, kind: FrameType) -> bytes:
        if frame.type is FrameType.BYE:
            message = decode(frame)
            assert isinstance(message, Bye)
            text = message.text if message.text.isprintable() else ascii(message.text)
            reason = ByeReason(message.reason) if message.reason in [*ByeReason] else ByeReason.PROTOCOL_ERROR
            raise PeerFault(reason, f"refused: {text}")
        if frame.type is not kind:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{frame.type.name}: must be {kind.name}")
        return frame.body

    @property
    def certificate(self) -> Any:
        return self._writer.get_extra_info("peercert")

    def refuse(self, fault: PeerFault) -> None:
        self._writer.write(encode(Bye(fault.reason, fault.text)))

    async def close(self) -> None:
        """Sends what is left, and closes the connection."""
        with suppress(OSError, TimeoutError):
            await self._writer.drain()
        self._writer.close()


async def ask_to_join(address: str, cluster: Cluster, request: JoinRequest) -> Admission:
    """Asks the member at an address of links. Raises CookieError, OSError, TimeoutError, PeerFault."""
    cookie, (client, _) = read_cookie(Path(cluster.cookie_file)), tls_contexts(cluster.tls)
    joining = Joining(cookie, secrets.token_bytes(NONCE_BYTES), is_member=False)
    sock = await dial(address, JOIN, cluster)
    async with asyncio.timeout(cluster.link.auth_timeout):
        wire = await _opened(sock, address, client)
        try:
            wire.send(FrameType.CHALLENGE, joining.nonce)
            joining.on_challenge(await wire.take(FrameType.CHALLENGE))
            wire.send(FrameType.JOIN, joining.request(request))
            admission = joining.on_admit(await wire.take(FrameType.ADMIT))
            if client is not None:
                check_certificate(wire.certificate, admission.node)
            return admission
        finally:
            await wire.close()


async def _opened(sock: socket.socket, address: str, client: ssl.SSLContext | None) -> _Wire:
    """Returns the connection, with TLS if this side uses it. Raises OSError."""
    tls: dict[str, Any] = {"ssl": client}
    if client is not None:
        tls["server_hostname"] = address.rpartition(":")[0].strip("[]")
    try:
        streams = await asyncio.open_connection(sock=sock, limit=READ_BYTES, **tls)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError | ConnectionError) and not isinstance(error, ssl.SSLCertVerificationError):
            raise ConnectionAbortedError(f"{str(error) or type(error).__name__}: {NO_LINK}") from None
        raise
    return _Wire(*streams, ADMIT_BYTES_MAX, f": {NO_LINK}")


async def answer_join(sock: socket.socket, cluster: Cluster, admit: Callable[[JoinRequest], Awaitable[Admission]]) -> JoinRequest:
    """Answers a broker whose preface is read; returns its request. `admit` raises PeerFault for one that cannot be a node.

    Raises CookieError, OSError, TimeoutError, PeerFault.
    """
    reader = asyncio.StreamReader(READ_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport: Any = None
    try:
        cookie, (_, server) = read_cookie(Path(cluster.cookie_file)), tls_contexts(cluster.tls)
        joining = Joining(cookie, secrets.token_bytes(NONCE_BYTES), is_member=True)
        async with asyncio.timeout(cluster.link.auth_timeout):
            prepare(sock, cluster.link)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=server)
            wire = _Wire(reader, asyncio.StreamWriter(transport, protocol, reader, loop), JOIN_BYTES_MAX, "")
            try:
                joining.on_challenge(await wire.take(FrameType.CHALLENGE))
                wire.send(FrameType.CHALLENGE, joining.nonce)
                request = joining.on_join(await wire.take(FrameType.JOIN))
                if server is not None:
                    check_certificate(wire.certificate, request.name)
                check_versions(request.proto_min, request.proto_max, request.name)
                wire.send(FrameType.ADMIT, joining.admission(await admit(request)))
                return request
            except PeerFault as fault:
                wire.refuse(fault)
                raise
            finally:
                await wire.close()
    finally:
        if transport is None:
            sock.close()
