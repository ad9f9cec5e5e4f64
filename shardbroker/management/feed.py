"""What workers journal for rules: a route to the feed for each topic filter behind FROM."""

from collections.abc import Iterable

from shm.destinations import FEED_DESTINATION
from shm.epochs import Epochs
from shm.routes import RouteChange, RouteTable

__all__ = ["Feed"]


class Feed:
    """The only writer of routes to the feed."""

    def __init__(self, routes: RouteTable, epochs: Epochs) -> None:
        self._routes, self._epochs = routes, epochs
        self._filters: frozenset[bytes] | None = None
        """Unknown at first: an earlier manager may have set some."""

    def set(self, filters: Iterable[str]) -> None:
        """Makes these filters the ones that are fed, from the next message of each worker on. Raises RouteTableFull."""
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


def _change(add: bool, filter: bytes) -> RouteChange:
    return RouteChange(add, filter, FEED_DESTINATION)
