"""A replay: the messages of all journals that match a filter, in the order of their blocks, from positions on or a time.

The order of each journal is kept, and so that of each publisher. Journals are merged by the time of their blocks.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardbroker.flows.feed import Incarnations
from shardbroker.flows.last_values import LastValues, Scan
from shardbroker.flows.past import FOR_READERS, place_since
from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.schema import Kind
from shardbroker.mqtt.topics import matches
from shm.records import encode_replay
from shm.replays import WINDOW_BYTES, WINDOW_RECORDS

__all__ = ["Journal", "Replay"]

READ_BYTES = 128 << 10
"""Of a journal at a time: a replay has so much of each in memory, and some three times that in objects."""
READS_A_TURN = 8
"""Of all journals of a replay: 1 MB, 2 to 5 ms, for which rules and other replays wait."""
SCAN_READS = 2
"""In a turn of a scan for last values, whose keys have to be made: some 3,000 messages, 10 ms."""
TOPICS_MAX = 4096
"""Topics of which is remembered whether they match."""
BURST_S = 0.1
"""Of the rate: so much may be sent at once."""
MARK_S, MARK_RECORDS = 1.0, 1000
"""Between two notes of how far a journal is without a message that matches, at least. A note is itself a record of a journal."""
ENDED_S = 2.0
"""After the end of a period until blocks of that time are written, at the latest."""


class Budget:
    """What a turn of a replay may read: a filter that matches little would else read all of a journal at once."""

    def __init__(self, reads: int) -> None:
        self._left = reads
        self.ended: set[Journal] = set()
        """Journals that were read to their end."""
        self.is_over = False
        """Whether a read was left out."""

    def has_room(self) -> bool:
        """Returns whether one more read is allowed."""
        self.is_over = self.is_over or self._left <= 0
        return not self.is_over

    def took(self) -> None:
        """A read has returned something; one at the end of a journal is free, since there may be many journals."""
        self._left -= 1


class Journal:
    """One journal of a replay. position: of the first record; None: that of the first block that is not older than `start_us`.

    incarnation: of the segment of the position; 0: not known.
    """

    def __init__(self, directory: Path, start_us: int, position: int | None, incarnation: int) -> None:
        self.number = int(directory.name)
        self._incarnations = Incarnations(directory)
        if position is not None and not self._incarnations.have(position, incarnation):
            position = None  # the journal was removed by hand: this one is another
        self.start_us = start_us if position is None else 0
        place = place_since(directory, start_us) if position is None and start_us else Place(0, 0, position) if position else None
        self._follower = Follower(directory, place, kinds=[int(Kind.MESSAGE)], flags=FOR_READERS, read_bytes=READ_BYTES)
        self._batches: deque[Batch] = deque()
        self.records: list[tuple[Any, ...]] = []
        """Of the current block, and `at`: the next one of them."""
        self.at = 0
        self.time_us = 0
        """Of the current block."""
        self.end = self.segment = 0
        """Position behind it, and its segment."""
        self.lost = 0
        self.passed = 0
        """Position up to which the worker knows that all was sent."""
        self.marked_s = time.monotonic()

    def look(self, budget: Budget) -> bool:
        """Makes the next block the current one, if that is used up. Returns whether there is one. Raises OSError, JournalError."""
        while self.at >= len(self.records):
            if not self._batches and (self in budget.ended or not budget.has_room()):
                return False
            if not self._batches:
                if not self._read():
                    budget.ended.add(self)
                    return False
                budget.took()
            if not self._batches:
                continue
            batch = self._batches.popleft()
            self.end, self.segment = batch.end_sequence, batch.segment
            if batch.time_us >= self.start_us:
                self.records, self.at, self.time_us = batch.records, 0, batch.time_us
        return True

    def _read(self) -> bool:
        """Reads on; returns False at the end."""
        for part in self._follower.read():
            if isinstance(part, Batch):
                self._batches.append(part)
            elif part.lost_from is not None and part.lost_to is not None:
                self.lost += part.lost_to - part.lost_from
        return bool(self._batches) or not self._follower.at_end

    @property
    def read_to(self) -> int:
        """Returns the position up to which everything was sent or does not match; 0: nothing was found yet."""
        if self.at < len(self.records):
            return int(self.records[self.at][0])
        place = self._follower.place
        return self.end if self._batches else int(place.position) if place is not None else 0

    @property
    def incarnation(self) -> int:
        """Returns that of the current block's segment; 0 if it is gone."""
        return self._incarnations.of(self.segment)

    @property
    def incarnation_read_to(self) -> int:
        """Returns that of the segment of `read_to`."""
        place = self._follower.place
        if self.at < len(self.records) or self._batches or place is None:
            return self.incarnation
        return self._incarnations.of(place.segment)

    def close(self) -> None:
        self._follower.close()


class Replay:
    """A replay of one worker. positions, incarnations: by number of the journal, of what was delivered before.

    age_us: of messages; 0: any. key: only the newest message of each key is sent from the past; None: all are.
    """

    def __init__(
        self,
        number: int,
        worker: int,
        filter: bytes,
        start_us: int,
        end_us: int | None,
        positions: dict[int, int],
        incarnations: dict[int, int],
        rate: int,
        age_us: int = 0,
        key: str | None = None,
    ) -> None:
        self.number, self.worker = number, worker
        self._filter, self._start_us, self._end_us, self._positions = filter, start_us, end_us, positions
        self._incarnations = incarnations
        self._rate, self._age_us, self._key = rate, age_us, key
        self._scan: Scan | None = None
        self._scanned: list[Journal] = []
        self._last: LastValues | None = None
        if age_us:
            self._start_us = max(start_us, time.time_ns() // 1000 - age_us)
        self._allowance, self._filled_s = rate * BURST_S, time.monotonic()
        self._budget = Budget(0)
        self._matching: dict[bytes, bool] = {}
        self.records_free, self.bytes_free = WINDOW_RECORDS, WINDOW_BYTES
        self.journals: dict[str, Journal] = {}

    # --- last values --------------------------------------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        """Returns whether journals have to be scanned before messages are sent."""
        return self._key is not None and self._last is None

    def scan(self, directories: Callable[[], list[Path]]) -> None:
        """Scans some of the journals. Raises OSError, JournalError."""
        assert self._key is not None
        if self._scan is None:
            self._scanned = [self._journal(one) for one in directories()]
            self._scan = Scan(self._key, self._scanned, self.wants, self._end_us)
        budget = Budget(SCAN_READS)
        self._last = self._scan.step(lambda journal: journal.look(budget) or not budget.is_over, self._oldest_us())
        if self._last is not None:
            self._scan = None
            self._close_scanned()

    def _close_scanned(self) -> None:
        for journal in self._scanned:
            journal.close()
        self._scanned = []

    def _oldest_us(self) -> float:
        """Returns the time before which blocks are too old."""
        return time.time_ns() // 1000 - self._age_us if self._age_us else 0

    # --- messages -----------------------------------------------------------------------------------------------------------------

    def add_journals(self, directories: list[Path]) -> None:
        """Reads these, too. Raises OSError."""
        for directory in directories:
            if directory.name not in self.journals:
                self.journals[directory.name] = self._journal(directory)

    def _journal(self, directory: Path) -> Journal:
        number = int(directory.name)
        return Journal(directory, self._start_us, self._positions.get(number), self._incarnations.get(number, 0))

    def credit(self, records: int, size: int) -> None:
        """The worker has delivered so much."""
        self.records_free += records
        self.bytes_free += size

    def refill(self) -> None:
        """Lets the time since the last call count for the rate."""
        now_s = time.monotonic()
        self._allowance = min(self._allowance + (now_s - self._filled_s) * self._rate, max(self._rate * BURST_S, 1.0))
        self._filled_s = now_s

    def send(self, put: Callable[[bytes], bool], most: int) -> tuple[int, bool]:
        """Hands at most so many records to `put`, which returns False where there is no room.

        Returns how many it took, and whether it had no room. Raises OSError, JournalError.
        """
        sent, now_ms, matching = 0, time.time() * 1000, self._matching
        oldest_us, last = self._oldest_us(), self._last
        self._budget = Budget(READS_A_TURN)
        while sent < most and (journal := self._earliest()) is not None:
            if journal.time_us < oldest_us:
                journal.at = len(journal.records)
            records, at, number, incarnation = journal.records, journal.at, journal.number, journal.incarnation
            while at < len(records) and sent < most:
                record = records[at]
                topic = record[3]
                wanted = matching.get(topic)
                if wanted is None:
                    wanted = self.wants(topic)
                if not wanted or 0 < record[6] <= now_ms or (last is not None and not last.delivers(number, record)):
                    # What has expired is not sent [MQTT-3.3.2-5].
                    at += 1
                    continue
                if self._must_wait(record):
                    journal.at = at
                    return sent, False
                encoded = encode_replay(self.number, number, incarnation, record)
                if not put(encoded):
                    journal.at = at
                    return sent, True
                at += 1
                sent += 1
                journal.passed = record[0] + 1
                self.records_free -= 1
                self.bytes_free -= len(encoded)
                self._allowance -= 1
            journal.at = at
        return sent, False

    def _must_wait(self, record: tuple[Any, ...]) -> bool:
        """Returns whether the window or the rate is used up."""
        if self.records_free <= 0 or (self._rate and self._allowance < 1):
            return True
        return self.bytes_free < WINDOW_BYTES and len(record[3]) + len(record[4]) > self.bytes_free

    def _earliest(self) -> Journal | None:
        """Returns the journal whose current block is the oldest, without those behind the period."""
        found = None
        for journal in self.journals.values():
            if (
                (journal.at < len(journal.records) or journal.look(self._budget))
                and (self._end_us is None or journal.time_us < self._end_us)
                and (found is None or journal.time_us < found.time_us)
            ):
                found = journal
        return None if self._budget.is_over else found  # one that is not read may have older ones

    def marks(self) -> list[tuple[Journal, int]]:
        """Returns the journals that have advanced without a message for a while, and their positions. marked() follows."""
        now_s = time.monotonic()
        if self.records_free <= len(self.journals):
            return []
        return [
            (journal, position)
            for journal in self.journals.values()
            if now_s - journal.marked_s >= MARK_S and (position := journal.read_to) >= journal.passed + MARK_RECORDS
        ]

    def marked(self, journal: Journal, position: int, size: int) -> None:
        """The position was sent, in so many bytes."""
        journal.passed, journal.marked_s = position, time.monotonic()
        self.records_free -= 1
        self.bytes_free -= size

    @property
    def is_over(self) -> bool:
        """Returns whether everything of the period was sent. Called when send() has found nothing."""
        if self._end_us is None or self.has_more or time.time_ns() // 1000 < self._end_us + ENDED_S * 1e6:
            return False
        return all(
            journal.time_us >= self._end_us if journal.at < len(journal.records) else not journal.look(self._budget)
            for journal in self.journals.values()
        ) and not self.has_more

    @property
    def has_more(self) -> bool:
        """Returns whether the last turn has left journals unread."""
        return self._budget.is_over

    @property
    def is_limited(self) -> bool:
        """Returns whether it waits for its rate."""
        return self._rate > 0 and self._allowance < 1

    def wants(self, topic: bytes) -> bool:
        """Returns whether the filter matches."""
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) >= TOPICS_MAX:
                self._matching.clear()
            found = self._matching[topic] = matches(self._filter, topic)
        return found

    def close(self) -> None:
        self._close_scanned()
        for journal in self.journals.values():
            journal.close()
