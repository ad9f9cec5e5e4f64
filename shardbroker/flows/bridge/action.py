"""The core of an action that ships journals: positions that the other broker has, counts, state. See sinks/action.py."""

import time
from collections.abc import Callable

from shardbroker.flows.cursors import Cursor
from shardbroker.flows.sinks.action import SinkAction
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sinks.server import ActionServer

__all__ = ["BridgeAction", "BridgeServer"]


class BridgeAction(SinkAction):  # type: ignore[misc]
    """It takes no rows: readers of its own follow the journals. woken: is called, in any thread, when a journal has more."""

    def __init__(self, id: str, limits: Limits) -> None:
        super().__init__(id, limits)
        self._live: dict[str, int] = {}
        self._even_ms: dict[str, int] = {}
        """When the other broker had all of a journal."""

    def open_journal(self, journal: str, cursor: Cursor, behind: bool) -> None:
        """Begins a journal."""
        super().open_journal(journal, cursor, False)
        self._live[journal] = cursor.position
        self._even_ms[journal] = time.time_ns() // 1_000_000

    def wants(self, journal: str, position: int) -> bool:
        return False

    def admit_live(self, row: Row, now_s: float) -> bool:
        return False

    def passed_live(self, journal: str, place: Cursor) -> None:
        """Notes that a journal has more."""
        self._note_even(journal)
        self._live[journal] = max(place.position, self._live[journal])

    def acknowledged(self, journal: str, place: Cursor, count: int) -> None:
        """Notes that the other broker has everything below a place, with so many messages."""
        self._streams[journal].positions.passed(place)
        self.figures.inflight -= count
        self.figures.success += count
        self._note_even(journal)

    def sent(self, count: int) -> None:
        """Notes messages under way."""
        self.figures.matched += count
        self.figures.inflight += count

    def returned(self, count: int) -> None:
        """Notes that messages under way will be sent again."""
        self.figures.matched -= count
        self.figures.inflight -= count
        self.figures.retried += count

    def _note_even(self, journal: str) -> None:
        if self._streams[journal].positions.seen.position >= self._live[journal]:
            self._even_ms[journal] = time.time_ns() // 1_000_000

    def oldest_ms(self) -> int | None:
        """Returns since when the other broker does not have all, Unix ms; None if it has."""
        late = [at for name, at in self._even_ms.items() if self._streams[name].positions.seen.position < self._live[name]]
        return min(late, default=None)


class BridgeServer(ActionServer):
    """Wakes the readers of journals, and ends their connections when it stops."""

    def __init__(self, *args: object, moved: Callable[[], None], leave: Callable[[], None]) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._moved, self._leave = moved, leave

    def wake(self) -> None:
        super().wake()
        self._moved()

    def stop(self) -> None:
        """Ends the connections; what the other broker has not acknowledged is sent again."""
        super().stop()
        self._leave()

    def restart(self) -> None:
        """Connects again."""
        self._leave()
        super().restart()

    def lost(self, reason: str) -> None:
        """Notes that a connection has ended."""
        self._lose(reason)
