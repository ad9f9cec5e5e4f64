"""Answers GET /metrics for a Prometheus that scrapes, and no other HTTP request."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shardbroker.logs.phrases import Line, log_line
from shardbroker.management.prometheus import CONTENT_TYPE

__all__ = ["ScrapeServer"]

HEAD_MAX = 16384
"""Longest head of a request, bytes."""
TIMEOUT_S = 10.0
"""Longest request, seconds: a silent connection is then closed."""
CONNECTIONS_MAX = 32
"""Simultaneous connections; further ones are closed."""
RETRY_S = 5.0
"""Seconds between two attempts to listen on an address in use."""


class ScrapeServer:
    """Listens on one address; `render` makes the text. `complain` is called once if the address is in use; attempts continue."""

    def __init__(self, host: str, port: int, render: Callable[[], Awaitable[str]], complain: Callable[[Line], None]) -> None:
        self._host = host
        self._port = port
        self._render = render
        self._complain = complain
        self._open = 0

    async def serve(self) -> None:
        """Serves until it is cancelled."""
        told = False
        while True:
            try:
                server = await asyncio.start_server(self._on_connection, self._host, self._port, limit=HEAD_MAX)
            except OSError as error:
                if not told:
                    address, reason = f"{self._host}:{self._port}", error.strerror or error
                    self._complain(log_line("address not bound", setting="prometheus.bind", address=address, reason=reason))
                told = True
                await asyncio.sleep(RETRY_S)
                continue
            async with server:
                await server.serve_forever()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    await asyncio.wait_for(self._answer(reader, writer), TIMEOUT_S)
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return await _send(writer, "431 Request Header Fields Too Large", f"a head of more than {HEAD_MAX} bytes\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return await _send(writer, "404 Not Found", "path: must be /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return await _send(writer, "405 Method Not Allowed", "method: must be GET or HEAD\n", "Allow: GET, HEAD\r\n")
        await _send(writer, "200 OK", await self._render(), only_head=method == b"HEAD")


async def _send(writer: asyncio.StreamWriter, status: str, text: str, more: str = "", only_head: bool = False) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    writer.write(head.encode() + (b"" if only_head else body))
    await writer.drain()
