"""Closes HTTP connections that are idle or send a request too slowly, since uvicorn has no limit for either."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["TimeoutProtocol"]

CHECK_INTERVAL_S = 30.0
"""Between two checks of a connection; a new request has to arrive in between."""
REQUEST_CHECKS = 4
"""Checks that one request may last: longer than any response takes."""


class TimeoutProtocol(HttpToolsProtocol):
    """Closes a connection without a new request since the last check, or with a request under way for REQUEST_CHECKS."""

    check_interval_s = CHECK_INTERVAL_S
    _last: RequestResponseCycle | None = None
    _checks = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.check_interval_s, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        if self.transport.get_protocol() is not self:
            return  # a WebSocket by now, which pings supervise
        busy = self.cycle is not None and not self.cycle.response_complete
        self._checks = self._checks + 1 if self.cycle is self._last else 0
        if self.cycle is None or self._checks >= (REQUEST_CHECKS if busy else 1):
            self.transport.close()
            return
        self._last = self.cycle
        self._timer = self.loop.call_later(self.check_interval_s, self._check)
