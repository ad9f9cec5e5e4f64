"""HTTP connections that nobody uses, or that send a request byte by byte, end: the server itself has no limit for that."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["LookedAfter"]

LOOK_S = 30.0
"""Between two looks at a connection. Within that time there must be a new request."""
REQUEST_LOOKS = 4
"""Looks that one request may take: longer than anything that is answered."""


class LookedAfter(HttpToolsProtocol):
    """Ends a connection without a request since the last look, and one whose request takes REQUEST_LOOKS."""

    look_s = LOOK_S
    _last: RequestResponseCycle | None = None
    _looks = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.look_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self.transport.get_protocol() is not self:
            return  # it is a WebSocket now, which is looked after by pings
        busy = self.cycle is not None and not self.cycle.response_complete
        self._looks = self._looks + 1 if self.cycle is self._last else 0
        if self.cycle is None or self._looks >= (REQUEST_LOOKS if busy else 1):
            self.transport.close()
            return
        self._last = self.cycle
        self._timer = self.loop.call_later(self.look_s, self._look)
