"""Connections between the managers of nodes: at the address of links, with the same TLS and proof of the cookie.

After the handshake both sides speak the protocol of the control socket (shardbroker.control.protocol): the side that has dialled
asks, the other one answers. Verbs never wait behind messages, nor messages behind verbs: connections and processes are others.
"""

import asyncio
import secrets
import socket
from pathlib import Path
from typing import Any

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import CALLS, NONCE_BYTES, Handshake, Identity
from shardbroker.cluster.messages import Bye, Hello, Welcome
from shardbroker.config.cluster import Cluster
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import FrameReader
from shardbroker.link.identity import own_identity, read_cookie
from shardbroker.link.sockets import check_certificate, dial, prepare, tls_contexts
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["CallConnections", "Streams"]

READ_BYTES = 1 << 18
"""Bytes read at a time, and the limit of a stream's buffer."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CallConnections:
    """Both ends of such connections. Raises CookieError, OSError, ssl.SSLError."""

    def __init__(self, topology: Topology, view: ViewSegment) -> None:
        self._view = view
        self._cluster: Cluster = topology.settings.cluster
        self._me: Identity = own_identity(topology, view)
        self._cookie = read_cookie(Path(self._cluster.cookie_file))
        self._client, self._server = tls_contexts(self._cluster.tls)

    async def dial(self, name: str, address: str) -> Streams:
        """Opens a connection to the manager of a node. Raises OSError, TimeoutError, PeerFault."""
        sock = await dial(address, CALLS, self._cluster)
        tls: dict[str, Any] = {"ssl": self._client}
        if self._client is not None:
            tls["server_hostname"] = address.rpartition(":")[0].strip("[]")
        try:
            async with asyncio.timeout(self._cluster.link.auth_timeout):
                reader, writer = await asyncio.open_connection(sock=sock, limit=READ_BYTES, **tls)
                peer = await self._prove((reader, writer), self._handshake(address))
        except BaseException:
            sock.close()
            raise
        if peer.name != name:
            writer.close()
            raise PeerFault(ByeReason.NOT_A_MEMBER, f"node at {address}: must be {name}, got {peer.name}")
        return reader, writer

    async def accept(self, sock: socket.socket) -> tuple[Streams, str]:
        """Takes a connection whose preface is read; returns the name of the node, too. Raises OSError, TimeoutError, PeerFault."""
        reader = asyncio.StreamReader(READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(self._cluster.link.auth_timeout):
                prepare(sock, self._cluster.link)
                transport: Any
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, sock, ssl=self._server)
                writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
                peer = await self._prove((reader, writer), self._handshake(""))
        except BaseException:
            sock.close()
            raise
        return (reader, writer), peer.name

    def _handshake(self, address: str) -> Handshake:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Handshake(self._me, self._cookie, nonce, CALLS, bool(address), 0, expected_address=address)

    async def _prove(self, streams: Streams, handshake: Handshake) -> Hello:
        """Returns the HELLO of the other side, a member that has proved it. The connection is closed after an error."""
        reader, writer = streams
        frames = FrameReader()
        try:
            self._send(writer, handshake.start())
            while not handshake.is_done:
                data = await reader.read(READ_BYTES)
                if not data:
                    raise ConnectionResetError("the peer has closed the connection")
                frames.feed(data)
                while (frame := frames.next()) is not None:
                    match decode(frame):
                        case Hello() as hello:
                            if hello.channel != CALLS:
                                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO channel: must be {CALLS}, got {hello.channel}")
                            if self._client is not None:
                                check_certificate(writer.get_extra_info("peercert"), hello.name)
                            self._send(writer, handshake.on_hello(hello))
                        case Welcome() as welcome:
                            answer = handshake.on_welcome(welcome)
                            assert handshake.peer is not None
                            self._check_member(handshake.peer)
                            self._send(writer, answer)
                        case Bye(reason, text):
                            known = ByeReason(reason) if reason in [*ByeReason] else ByeReason.PROTOCOL_ERROR
                            raise PeerFault(known, f"refused: {text}")
                        case _:
                            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{frame.type.name}: must not arrive before the proof")
            if frames.pending:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{frames.pending} bytes: must not arrive before the proof")
        except PeerFault as fault:
            self._send(writer, [Bye(fault.reason, fault.text)])
            writer.close()
            raise
        except BaseException:
            writer.transport.abort()
            raise
        assert handshake.peer is not None
        return handshake.peer

    def _check_member(self, peer: Hello) -> None:
        """Raises PeerFault unless the links know this very node as a member: a cookie alone is not enough after `force-leave`."""
        known = self._view.read().nodes.get(peer.node_id)
        if known is None or not known.is_member or (known.name, known.uuid) != (peer.name, peer.node_uuid):
            raise PeerFault(
                ByeReason.NOT_A_MEMBER, f"node {peer.name}, id {peer.node_id}: must be a member that was linked"
            )

    @staticmethod
    def _send(writer: asyncio.StreamWriter, messages: list[Any]) -> None:
        for message in messages:
            writer.write(encode(message))
