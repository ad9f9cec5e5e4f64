"""What workers journal for rules and streams: a route for each topic filter, and the events of rules."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.control import ControlError
from shardbroker.management.workers import Workers
from shardbroker.stores.fed_events import write_fed_events
from shm.destinations import FEED_DESTINATION, KEPT_DESTINATION
from shm.epochs import Epochs
from shm.routes import RouteChange, RouteTable

__all__ = ["Feed"]

STARTED = "sys.broker_started"
START_S = 1.0
"""Longest wait for the worker that journals it; a worker that starts drops earlier commands."""


class Feed:
    """The only writer of routes to rules and streams."""

    def __init__(self, routes: RouteTable, epochs: Epochs, workers: Workers, runtime_dir: Path) -> None:
        self._routes, self._epochs, self._workers, self._runtime_dir = routes, epochs, workers, runtime_dir
        self._filters: dict[int, frozenset[bytes]] = {}
        """Destination -> filters; unknown at first: an earlier manager may have set some."""
        self._has_noted_start = False
        self.events: frozenset[str] = frozenset()
        """The events that workers journal."""

    @property
    def route_count(self) -> int:
        """Routes that statistics leave out: they lead to no subscriber."""
        return sum(map(len, self._filters.values()))

    async def set(self, filters: Iterable[str], events: Iterable[str]) -> None:
        """Makes these filters and events the ones that are fed, from the next one of each worker on.

        Raises RouteTableFull, ControlError WORKER_TIMEOUT, OSError.
        """
        self.set_filters(filters)
        wanted = frozenset(events)
        if wanted != self.events:
            self.send_events(wanted)
            if late := await self._workers.caught_up():
                raise ControlError("WORKER_TIMEOUT", f"worker {late[0]} did not respond")

    def set_filters(self, filters: Iterable[str]) -> None:
        """Makes these filters the ones that are fed to rules. Raises RouteTableFull."""
        self._set_routes(FEED_DESTINATION, filters)

    def keep(self, filters: Iterable[str]) -> None:
        """Makes these filters the ones whose messages are kept for streams. Raises RouteTableFull."""
        self._set_routes(KEPT_DESTINATION, filters)

    def _set_routes(self, destination: int, filters: Iterable[str]) -> None:
        wanted, before = frozenset(filter.encode() for filter in filters), self._filters.get(destination)
        if before is None:
            self._routes.replace(destination, [RouteChange(True, filter, destination) for filter in sorted(wanted)])
            self._epochs.bump_all()
        else:
            removed, added = sorted(before - wanted), sorted(wanted - before)
            if removed or added:
                changes = [RouteChange(False, filter, destination) for filter in removed]
                self._routes.update(changes + [RouteChange(True, filter, destination) for filter in added])
                self._epochs.bump_many(removed + added)
        self._filters[destination] = wanted

    def send_events(self, events: Iterable[str]) -> None:
        """Sends the events to workers; one that is down reads them when it starts. Raises OSError."""
        self.events = frozenset(events)
        write_fed_events(self._runtime_dir, self.events)
        self._workers.send_all("feed", events=sorted(self.events))

    async def note_start(self, started_ms: int, now_ms: int) -> None:
        """Has the start of the broker journalled when a rule first names it and a worker serves. Each manager does so."""
        if STARTED not in self.events:
            self._has_noted_start = False
        elif not self._has_noted_start:
            columns = {"started_at": started_ms}
            with suppress(ControlError, TimeoutError):  # of a worker that does not serve yet
                async with asyncio.timeout(START_S):
                    self._has_noted_start = await self._workers.call(0, "event", event=STARTED, columns=columns, at_ms=now_ms)

    def note(self, event: str, columns: dict[str, Any], at_ms: int) -> None:
        """Has an event of the manager journalled, if a rule names it."""
        if event in self.events:
            self._workers.send_one("event", event=event, columns=columns, at_ms=at_ms)
