"""What workers journal for rules: a route to the feed for each topic filter behind FROM, and the events."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardbroker.control import ControlError
from shardbroker.management.workers import Workers
from shardbroker.stores.fed_events import write_fed_events
from shm.destinations import FEED_DESTINATION
from shm.epochs import Epochs
from shm.routes import RouteChange, RouteTable

__all__ = ["Feed"]


class Feed:
    """The only writer of routes to the feed."""

    def __init__(self, routes: RouteTable, epochs: Epochs, workers: Workers, runtime_dir: Path) -> None:
        self._routes, self._epochs, self._workers, self._runtime_dir = routes, epochs, workers, runtime_dir
        self._filters: frozenset[bytes] | None = None
        """Unknown at first: an earlier manager may have set some."""
        self.events: frozenset[str] = frozenset()
        """The events that workers journal."""

    @property
    def route_count(self) -> int:
        """Routes to the feed, which statistics leave out: they lead to no subscriber."""
        return len(self._filters or ())

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
        """Makes these filters the ones that are fed. Raises RouteTableFull."""
        wanted = frozenset(filter.encode() for filter in filters)
        if self._filters is None:
            self._routes.replace(FEED_DESTINATION, [_change(True, filter) for filter in sorted(wanted)])
            self._epochs.bump_all()
        else:
            removed, added = sorted(self._filters - wanted), sorted(wanted - self._filters)
            if removed or added:
                self._routes.update([_change(False, filter) for filter in removed] + [_change(True, filter) for filter in added])
                self._epochs.bump_many(removed + added)
        self._filters = wanted

    def send_events(self, events: Iterable[str]) -> None:
        """Sends the events to workers; one that is down reads them when it starts. Raises OSError."""
        self.events = frozenset(events)
        write_fed_events(self._runtime_dir, self.events)
        self._workers.send_all("feed", events=sorted(self.events))

    def note(self, event: str, columns: dict[str, Any], at_ms: int) -> None:
        """Has an event of the manager journalled, if a rule names it."""
        if event in self.events:
            self._workers.send_one("event", event=event, columns=columns, at_ms=at_ms)


def _change(add: bool, filter: bytes) -> RouteChange:
    return RouteChange(add, filter, FEED_DESTINATION)
