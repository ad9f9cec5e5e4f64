"""What of one journal is done: the lowest position that is not, and where a reader finds it.

    done  done  waits  done  waits  | not evaluated yet
                ^ cursor            ^ seen

Invariants: every row below `seen` was admitted; every position below the cursor is done; the cursor never moves back.
"""

from collections import deque

__all__ = ["Positions"]

PLACES_MAX = 256
"""Places that are remembered; with more, every second one is removed, and a reader searches a little further."""


cdef class Positions:
    """cursor: where the action continues."""

    def __init__(self, cursor):
        self.seen = cursor
        self.seen_position = cursor.position
        self._places = deque([cursor])
        self._waiting = deque()
        self._of = {}

    cpdef int admit(self, long long position, long long at_ms=0) except -1:
        """Notes a row that is not done. Positions do not descend."""
        cdef _Record entry = self._of.get(position)
        if entry is None:
            assert position >= self.seen_position
            assert not self._waiting or position >= (<_Record>self._waiting[len(self._waiting) - 1]).position
            entry = _Record.__new__(_Record)
            entry.position, entry.at_ms = position, at_ms
            self._of[position] = entry
            self._waiting.append(entry)
        entry.rows += 1
        return 0

    cpdef int done(self, long long position) except -1:
        """Notes that one row of a position is done."""
        cdef _Record entry = self._of[position]
        entry.rows -= 1
        if entry.rows == 0:
            del self._of[position]
            while self._waiting and (<_Record>self._waiting[0]).rows == 0:
                self._waiting.popleft()
        return 0

    def passed(self, place) -> None:
        """Notes that everything below a place was evaluated."""
        if place.position <= self.seen_position:
            return
        self.seen = place
        self.seen_position = place.position
        if not self._waiting:
            self._places.clear()
        self._places.append(place)
        if len(self._places) > PLACES_MAX:
            kept = list(self._places)
            self._places = deque(kept[::2] if len(kept) % 2 else [*kept[::2], kept[len(kept) - 1]])

    def passed_to(self, long long position) -> None:
        """Notes the same up to a position within the block that follows the last place."""
        if position > self.seen_position:
            self.passed(self._places[len(self._places) - 1]._replace(position=position))

    @property
    def cursor(self):
        """The place below which everything is done. Its segment and offset may be those of an earlier place."""
        position = (<_Record>self._waiting[0]).position if self._waiting else self.seen_position
        while len(self._places) > 1 and self._places[1].position <= position:
            self._places.popleft()
        return self._places[0]._replace(position=position)

    @property
    def oldest_ms(self):
        """The time of the first row that is not done, Unix ms; None: all are done."""
        return (<_Record>self._waiting[0]).at_ms if self._waiting else None

    @property
    def waiting(self) -> int:
        """The number of rows that are not done."""
        return sum([(<_Record>entry).rows for entry in self._of.values()])

    @property
    def places(self) -> int:
        """The number of places that are remembered."""
        return len(self._places)
