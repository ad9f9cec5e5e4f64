"""Streams with last values: which messages of the past are the newest of their keys.

    scan     journals from where the replay begins to their end -> key -> place of its newest message
    replay   the same journals again: what is not the newest of its key is left out; behind the end of the scan nothing is

So the positions of a replay are those of any other, and one that resumes scans what is left. During the scan the keys are in
memory, some 30 MB at most, for one replay at a time; behind it 8 bytes a key. Messages without a key are delivered, and those of
keys beyond KEYS_MAX, too: a client then gets more than the newest one.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Protocol

from shardbroker.flows.columns import columns_of
from shardbroker.flows.messages import ANONYMOUS
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["KEYS_MAX", "LastValues", "Scan", "key_of"]

KEYS_MAX = 100_000
"""Keys of a stream of which only the newest message is delivered."""
LONG_KEY = 64
"""Characters of a key from which on its digest is kept in its place."""
Record = tuple[Any, ...]


class Scanned(Protocol):
    """A journal as flows/replay.py reads it."""

    number: int
    records: list[Record]
    at: int
    time_us: int

    @property
    def read_to(self) -> int: ...


def key_of(parsed: Template, record: Record) -> str | None:
    """Returns the key of a message; None: a part of it is missing."""
    columns = columns_of(record, 0, ANONYMOUS, "")
    try:
        for part in parsed.parts:
            if not isinstance(part, str) and parsed.value(columns, part) in (UNDEFINED, None):
                return None
        key = parsed.render(columns)
    except EvaluationError:
        return None
    return key if len(key) < LONG_KEY else blake2b(key.encode(errors="surrogatepass")).hexdigest()[:LONG_KEY]


class Scan:
    """The first pass over these journals. wants: whether the replay has a topic."""

    def __init__(self, key: str, journals: Iterable[Scanned], wants: Callable[[bytes], bool], end_us: int | None) -> None:
        self._template, self._wants, self._end_us = template(key), wants, end_us
        self._left = [*journals]
        self._newest: dict[str, tuple[int, int, int]] = {}
        """Key -> time, journal and position of its newest message."""
        self._ends: dict[int, int] = {}
        self._is_full = self._has_keyless = False

    def step(self, look: Callable[[Any], bool], oldest_us: float) -> "LastValues | None":
        """Reads some blocks; returns the result at the end of all journals. look: Journal.look, which may have to stop early."""
        while self._left:
            journal = self._left[-1]
            if not look(journal):
                return None
            if journal.at < len(journal.records):
                if oldest_us <= journal.time_us and (self._end_us is None or journal.time_us < self._end_us):
                    self._take(journal)
                journal.at = len(journal.records)
            else:
                self._ends[journal.number] = journal.read_to
                self._left.pop()
        return self._result()

    def _take(self, journal: Scanned) -> None:
        newest, time_us, number = self._newest, journal.time_us, journal.number
        for record in journal.records[journal.at :]:
            if not self._wants(record[3]):
                continue
            key = key_of(self._template, record)
            if key is None:
                self._has_keyless = True
                continue
            before = newest.get(key)
            if before is None and len(newest) >= KEYS_MAX:
                self._is_full = True
            elif before is None or before[0] <= time_us:
                newest[key] = time_us, number, record[0]

    def _result(self) -> "LastValues":
        places: dict[int, array[int]] = {number: array("Q") for number in self._ends}
        for _, number, position in self._newest.values():
            places[number].append(position)
        sorted_places = {number: array("Q", sorted(found)) for number, found in places.items()}
        known = array("q", sorted(map(hash, self._newest))) if self._is_full else None
        return LastValues(self._template, self._ends, sorted_places, known, self._has_keyless)


class LastValues:
    """The result of a scan. ends, places: by journal. known: hashes of the keys, if there were more than KEYS_MAX of them."""

    def __init__(
        self, parsed: Template, ends: dict[int, int], places: dict[int, "array[int]"], known: "array[int] | None", has_keyless: bool
    ) -> None:
        self._template, self._ends, self._places, self._known, self._has_keyless = parsed, ends, places, known, has_keyless

    def delivers(self, journal: int, record: Record) -> bool:
        """Returns whether a message is delivered. Called in the order of each journal."""
        places = self._places.get(journal)
        if places is None:
            return True
        if record[0] >= self._ends[journal]:
            del self._places[journal]  # all that follows is delivered
            return True
        if _has(places, record[0]):
            return True
        if not self._has_keyless and self._known is None:
            return False
        key = key_of(self._template, record)
        return key is None or (self._known is not None and not _has(self._known, hash(key)))


def _has(numbers: "array[int]", wanted: int) -> bool:
    at = bisect_left(numbers, wanted)
    return at < len(numbers) and numbers[at] == wanted
