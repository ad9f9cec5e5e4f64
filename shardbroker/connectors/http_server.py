"""Servers with an API over HTTP at HOST:PORT, by aiohttp."""

from collections.abc import Mapping

from shardbroker.config.connectors import Connection
from shardbroker.connectors.http import PLAIN, SessionConnector, read_body
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["HttpServer"]

ANSWER_MAX = 1 << 20
"""Most bytes of an answer."""


class HttpServer(SessionConnector):
    """Redirects are not followed: credentials go to the server of the settings only."""

    def __init__(self, settings: Connection, key: str, headers: Mapping[str, str]) -> None:
        address, tls = address_of(settings, key), tls_of(settings, key)
        super().__init__(settings.timeout, address, settings.pool_size, tls, {**PLAIN, **headers})
        self.settings = settings
        self._base = f"{'https' if settings.tls else 'http'}://{settings.server}"

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
