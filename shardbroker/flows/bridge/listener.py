"""The driver of a source: other brokers connect, and their records go into the lanes of the workers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.config.sinks.shardbroker import ShardbrokerSource
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.shardbroker import STREAM_BYTES, Shardbroker
from shardbroker.flows.bridge.protocol import MORE, Channel, Hello, accept, stream_ids
from shardbroker.flows.bridge.records import Records
from shardbroker.flows.sources.server import Shipment
from shardbroker.flows.sources.source import Take
from shardbroker.link.frames import FrameType

__all__ = ["Listener"]

CONNECTIONS_MAX = 256
"""Of other brokers: each journal has one."""
STREAMS_MAX = 4096
"""Journals of other brokers in the life of a process: the position of each stays in the journal of a worker."""
HANDSHAKE_S = 5.0
IDLE_S = 60.0
"""Silence after which a connection ends; the sender has PING every 5 s."""
RECORD_EXTRA = 1 << 20
"""Bytes of a record besides its payload, or of a frame of smaller ones."""


class Listener:
    """admit, room, complain: of the SourceServer, which sets them before run(). payload_max: bytes of a message here."""

    def __init__(self, settings: ShardbrokerSource, connector: Shardbroker, id: str) -> None:
        self._settings, self._connector = settings, connector
        self._key = f"sources.shardbroker.{id.partition(':')[2]}.parameters"
        self.admit: Callable[[Shipment], None] = lambda shipment: None
        self.room: Callable[[], Awaitable[None]] = _always
        self.complain: Callable[[str], None] = lambda text: None
        self.payload_max = 1 << 20
        self._prefix = settings.parameters.topic_prefix.encode()
        host, _, port = settings.parameters.listen.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConnectionSettingError(f"{self._key}.listen", "HOST:PORT", settings.parameters.listen)
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = connector.server_context()
        self._connections: set[asyncio.Task[None]] = set()
        self._streams: dict[tuple[int, int], Channel] = {}
        self._known: set[tuple[int, int]] = set()

    async def probe(self) -> None:
        """There is nothing to ask: the settings were checked."""

    async def run(self, take: Take) -> None:
        """Listens until it is cancelled. Raises ConnectorError."""
        try:
            server = await asyncio.start_server(self._connected, self._host, self._port, ssl=self._tls, limit=STREAM_BYTES)
        except OSError as error:
            address = self._settings.parameters.listen
            raise ConnectorError(f"listen: {address} cannot be used: {error.strerror or type(error).__name__}") from None
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def close(self) -> None:
        """run() has ended all."""

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        channel = Channel(reader, writer)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                raise PeerFault(ByeReason.LIMIT, f"connections: must be at most {CONNECTIONS_MAX}")
            async with asyncio.timeout(HANDSHAKE_S):
                site, origin = self._connector.site.encode(), self._connector.origin
                hello = await accept(channel, reader, self._connector.secret, site, origin)
            if hello.stream is not None:
                await self._serve(channel, hello)
        except asyncio.CancelledError:
            channel.bye(ByeReason.LEAVING)
        except PeerFault as error:
            self.complain(f"connection of {_name(writer)}: {error}")
            with suppress(Exception):
                channel.bye(error.reason)
        except (ConnectorError, OSError, EOFError):
            pass  # the sender connects again
        except Exception as error:
            self.complain(f"connection of {_name(writer)}: {type(error).__name__}")
        finally:
            self._connections.discard(task)
            channel.close()

    async def _serve(self, channel: Channel, hello: Hello) -> None:
        """Takes frames of a stream until the connection ends. Raises PeerFault, ConnectorError, OSError."""
        assert hello.stream is not None
        ids = stream_ids(hello)
        if ids not in self._known and len(self._known) >= STREAMS_MAX:
            raise PeerFault(ByeReason.LIMIT, f"journals of other brokers: must be at most {STREAMS_MAX}")
        self._known.add(ids)
        if (before := self._streams.get(ids)) is not None:
            before.bye(ByeReason.REPLACED)
        self._streams[ids] = channel
        try:
            await self._take_frames(channel, hello, *ids)
        finally:
            if self._streams.get(ids) is channel:
                del self._streams[ids]

    async def _take_frames(self, channel: Channel, hello: Hello, origin: int, identity: int) -> None:
        assert hello.stream is not None
        prefix = self._prefix + hello.stream.prefix
        position, parts, size = 0, list[bytes](), 0
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    frame = await channel.frame()
            except TimeoutError:
                raise PeerFault(ByeReason.TIMEOUT, f"no frame within {IDLE_S:g} s") from None
            if frame.type is FrameType.PING:
                channel.send(FrameType.PONG)
                continue
            if frame.type is not FrameType.DATA:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"frame: must be DATA or PING, got {frame.type.name}")
            size += len(frame.body)
            if size > self.payload_max + RECORD_EXTRA:
                raise PeerFault(ByeReason.LIMIT, f"a record: must have up to {self.payload_max + RECORD_EXTRA} bytes")
            parts.append(frame.body)
            if frame.flags & MORE:
                continue
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts, size = [], 0
            records = Records(body, position, frame.position, prefix, hello.site, origin, identity, self.payload_max)
            position = frame.position
            self.admit(Shipment(records, origin, partial(self._acknowledge, channel, position)))
            await self.room()

    @staticmethod
    def _acknowledge(channel: Channel, position: int) -> None:
        channel.send(FrameType.DATA_ACK, position=position)


async def _always() -> None:
    """There is room, as in a probe."""


def _name(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"
