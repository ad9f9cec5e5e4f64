"""What of one journal is done: the lowest position that is not, and where a reader finds it.

    done  done  waits  done  waits  | not evaluated yet
                ^ cursor            ^ seen

Invariants: every row below `seen` was admitted; every position below the cursor is done; the cursor never goes back.
"""

from collections import deque

from shardbroker.flows.cursors import Cursor

__all__ = ["Positions"]

PLACES_MAX = 256
"""Places that are remembered; with more, every second goes, and a reader searches a little further."""


class Positions:
    """cursor: where the action continues."""

    def __init__(self, cursor: Cursor) -> None:
        self.seen = cursor
        """The place behind everything that was evaluated."""
        self._places = deque([cursor])
        """Places in ascending order; the first is at or below the lowest position that is not done."""
        self._waiting: deque[list[int]] = deque()
        """[position, rows that are not done, Unix ms], ascending."""
        self._of: dict[int, list[int]] = {}

    def admit(self, position: int, at_ms: int = 0) -> None:
        """Notes a row that is not done. Positions do not descend."""
        entry = self._of.get(position)
        if entry is None:
            assert position >= self.seen.position and not (self._waiting and position < self._waiting[-1][0])
            self._of[position] = entry = [position, 0, at_ms]
            self._waiting.append(entry)
        entry[1] += 1

    def done(self, position: int) -> None:
        """Notes that one row of a position is done."""
        entry = self._of[position]
        entry[1] -= 1
        if entry[1] == 0:
            del self._of[position]
            while self._waiting and self._waiting[0][1] == 0:
                self._waiting.popleft()

    def passed(self, place: Cursor) -> None:
        """Notes that everything below a place was evaluated."""
        if place.position <= self.seen.position:
            return
        self.seen = place
        if not self._waiting:
            self._places.clear()
        self._places.append(place)
        if len(self._places) > PLACES_MAX:
            kept = list(self._places)
            self._places = deque(kept[::2] if len(kept) % 2 else [*kept[::2], kept[-1]])

    def passed_to(self, position: int) -> None:
        """Notes the same up to a position within the block that follows the last place."""
        if position > self.seen.position:
            self.passed(self._places[-1]._replace(position=position))

    @property
    def cursor(self) -> Cursor:
        """The place below which everything is done. Its segment and offset may be those of an earlier place."""
        position = self._waiting[0][0] if self._waiting else self.seen.position
        while len(self._places) > 1 and self._places[1].position <= position:
            self._places.popleft()
        return self._places[0]._replace(position=position)

    @property
    def oldest_ms(self) -> int | None:
        """The time of the first row that is not done, Unix ms."""
        return self._waiting[0][2] if self._waiting else None

    @property
    def waiting(self) -> int:
        """The number of rows that are not done."""
        return sum(entry[1] for entry in self._of.values())
