"""Another broker of this kind: its address, the secret, TLS of both sides."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from shardbroker.config.connectors import ShardbrokerConnection
from shardbroker.connectors.connector import Connector, Identity
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.server import address_of, context_of, tls_of

__all__ = ["SECRET_MIN", "Shardbroker"]

SECRET_MIN = 16
"""Characters of a secret."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
STREAM_BYTES = 1 << 20
"""Bytes that are read ahead on a connection."""


class Shardbroker(Connector[Streams]):
    """`identity` and `site` are set before the first use of a connector in service. greet: says hello on a new connection."""

    def __init__(self, settings: ShardbrokerConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self.settings, self._key = settings, key
        self.identity: Identity | None = None
        self.site = ""
        self.greet: Callable[[Streams], Awaitable[object]] | None = None
        if len(settings.secret) < SECRET_MIN:
            raise ConnectionSettingError(f"{key}.secret", f"a text of at least {SECRET_MIN} characters", "*" * len(settings.secret))
        self.secret = settings.secret.encode()
        self._address = address_of(settings, key) if settings.server else None
        self._tls = tls_of(settings, key)

    @property
    def origin(self) -> str:
        return self.identity.origin if self.identity is not None else ""

    async def open(self) -> Streams:
        """Opens a connection. Raises ConnectorError, OSError, TimeoutError."""
        if self._address is None:
            raise ConnectorError(f"{self._key}.server: must be HOST:PORT for an action")
        host, port = self._address
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.open_connection(host, port, ssl=self._tls, limit=STREAM_BYTES)
        except ConnectionRefusedError:
            text = "connection refused: is a source of the type shardbroker there?"
            raise ConnectorError(f"{self.settings.server}: {text}") from None

    def server_context(self) -> ssl.SSLContext | None:
        """Returns the TLS of what others connect to; with `tls_ca` they need a certificate. Raises ConnectionSettingError."""
        settings = self.settings
        if not settings.tls:
            return None
        if not settings.tls_cert:
            raise ConnectionSettingError(f"{self._key}.tls_cert", "a PEM file of a certificate, for a source with tls", "")
        context_of(settings, self._key)  # names the file that is wrong
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None, password="")
        if settings.tls_ca:
            context.load_verify_locations(settings.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Streams]:
        streams = await self.open()
        try:
            yield streams
        finally:
            streams[1].close()

    async def probe(self) -> None:
        """Checks that the other broker answers; without an address there is nothing to check."""
        if self._address is None:
            self.health.reached()
            return
        await super().probe()

    async def _ping(self, lent: Streams) -> None:
        if self.greet is not None:
            await self.greet(lent)

    def _is_lost(self, error: Exception) -> bool:
        return True

    async def _close(self) -> None:
        await asyncio.sleep(0)
