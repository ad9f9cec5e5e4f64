"""Services over HTTP, by aiohttp."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp

from shardbroker.config.connectors import HttpConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.server import context_of

__all__ = ["Http", "read_body"]

HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name: a token of RFC 9110."""
PLAIN = {"Accept-Encoding": "identity"}
GZIP = 31
"""The wbits of zlib for a gzip header and the largest window."""
PORTS = {"http": 80, "https": 443}


class Http(Connector[aiohttp.ClientSession]):
    """Lends a session without cookies. It requests bodies without compression, and decompresses none: see `read_body`."""

    def __init__(self, settings: HttpConnection, key: str) -> None:
        super().__init__(settings.timeout)
        if not settings.url:
            raise ConnectionSettingError(f"{key}.url", "http://HOST/PATH or https://HOST/PATH", settings.url)
        for header in settings.headers:
            if not HEADER.fullmatch(header):
                raise ConnectionSettingError(f"{key}.headers", "a table of header = text", header)
        self._settings = settings
        self._tls = context_of(settings, key) if settings.url.startswith("https:") else None
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[aiohttp.ClientSession]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.pool_size, ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=PLAIN,
                auto_decompress=False,
            )
        yield self._session

    async def _ping(self, lent: aiohttp.ClientSession) -> None:
        """Opens a connection, with TLS for https; a request could have side effects."""
        parts = urlsplit(self._settings.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port or PORTS[parts.scheme], ssl=self._tls)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | aiohttp.ClientConnectionError)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()


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
