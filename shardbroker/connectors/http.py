"""Services over HTTP, by aiohttp."""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp

from shardbroker.config.connectors import HttpConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.server import context_of

__all__ = ["Http", "SessionConnector", "read_body"]

HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name: a token of RFC 9110."""
PLAIN = {"Accept-Encoding": "identity"}
GZIP = 31
"""The wbits of zlib for a gzip header and the largest window."""
PORTS = {"http": 80, "https": 443}


class SessionConnector(Connector[aiohttp.ClientSession]):
    """Lends a session without cookies, to host and port at `address`. Bodies are decompressed by `read_body` alone."""

    def __init__(
        self,
        timeout_s: float,
        address: tuple[str, int],
        pool_size: int,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str] = PLAIN,
    ) -> None:
        super().__init__(timeout_s)
        self._address, self._pool_size, self._tls, self._headers = address, pool_size, tls, headers
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[aiohttp.ClientSession]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._pool_size, ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                auto_decompress=False,
            )
        yield self._session

    async def _ping(self, lent: aiohttp.ClientSession) -> None:
        """Opens a connection, with TLS where it is used; a request could have side effects."""
        _, writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | aiohttp.ClientConnectionError)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()


class Http(SessionConnector):
    """A service with a URL of its own. It requests bodies without compression."""

    def __init__(self, settings: HttpConnection, key: str) -> None:
        if not settings.url:
            raise ConnectionSettingError(f"{key}.url", "http://HOST/PATH or https://HOST/PATH", settings.url)
        for header in settings.headers:
            if not HEADER.fullmatch(header):
                raise ConnectionSettingError(f"{key}.headers", "a table of header = text", header)
        parts = urlsplit(settings.url)
        tls = context_of(settings, key) if parts.scheme == "https" else None
        address = parts.hostname or "", parts.port or PORTS[parts.scheme]
        super().__init__(settings.timeout, address, settings.pool_size, tls)
        self.settings = settings


async def read_body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Returns the body of an answer, decompressed.

    Raises ConnectorError if the body has more than `most` bytes, compressed or not, or if its encoding is not supported.
    """
    parts = bytearray()
    while len(parts) <= most and not answer.content.at_eof():
        parts += await answer.content.read(most + 1 - len(parts))
    body = bytes(parts)
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    if encoding in ("gzip", "x-gzip") and len(body) <= most:
        try:
            body = zlib.decompressobj(GZIP).decompress(body, most + 1)
        except zlib.error as error:
            raise ConnectorError(f"response is not valid gzip: {error}") from None
    elif encoding not in ("gzip", "x-gzip", "identity", ""):
        raise ConnectorError(f"response has the unsupported content encoding {encoding[:100]!r}")
    if len(body) > most:
        raise ConnectorError(f"response of more than {most} bytes")
    return body
