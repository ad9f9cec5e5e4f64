"""Servers with an API over HTTP at HOST:PORT, by aiohttp."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp

from shardbroker.config.connectors import Connection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.http import PLAIN, read_body
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["HttpServer"]

ANSWER_MAX = 1 << 20
"""Most bytes of an answer."""


class HttpServer(Connector[aiohttp.ClientSession]):
    """Lends a session. Redirects are not followed: credentials go to the server of the settings only."""

    def __init__(self, settings: Connection, key: str, headers: Mapping[str, str]) -> None:
        super().__init__(settings.timeout)
        self.settings = settings
        self._address = address_of(settings, key)
        self._tls = tls_of(settings, key)
        self._headers = {**PLAIN, **headers}
        self._base = f"{'https' if settings.tls else 'http'}://{settings.server}"
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, path: str, body: bytes, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Returns status and body of an answer. Raises OSError, aiohttp.ClientError, ConnectorError, TimeoutError."""
        async with self.connection() as session:
            url = f"{self._base}{path}"
            async with session.post(url, data=body, params=query, headers=headers, allow_redirects=False) as answer:
                return answer.status, await read_body(answer, ANSWER_MAX)

    async def get(self, path: str) -> tuple[int, bytes]:
        """As post()."""
        async with self.connection() as session, session.get(f"{self._base}{path}", allow_redirects=False) as answer:
            return answer.status, await read_body(answer, ANSWER_MAX)

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[aiohttp.ClientSession]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self.settings.pool_size, ssl=self._tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                auto_decompress=False,
            )
        yield self._session

    async def _ping(self, lent: aiohttp.ClientSession) -> None:
        """Opens a connection."""
        _, writer = await asyncio.open_connection(*self._address, ssl=self._tls)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | aiohttp.ClientConnectionError)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
