"""The replays of a process flows: what workers order, and the turns in which records are sent."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shardbroker.flows.feed import journal_names
from shardbroker.flows.lanes import Lanes
from shardbroker.flows.lookups import Lookups
from shardbroker.flows.replay import Replay
from shardbroker.journal.errors import JournalError
from shardbroker.logs.phrases import Line, log_line
from shm.records import REPLAY, encode_replay_place
from shm.replays import MESSAGE_MAX, decode, encode
from shm.topology import Topology

__all__ = ["Replays"]

TURN_RECORDS = 256
"""Messages of one replay in a turn: 1 ms, for which rules and other replays wait."""
TURN_S = 0.01
"""Of all replays, for which rules wait; the others have their turn next."""
LIST_S = 1.0
"""Between two looks for new journals."""
COMPLAIN_S = 10.0
"""Between two lines about journals that cannot be read."""
LIVE_S = 0.02
"""Between two looks at journals of workers that ring another process."""
SHORT_S = 0.002
"""Wait of a replay for its rate, or for room in a ring."""


class Replays:
    """Those of process `number`. log: writes a line of a level."""

    def __init__(self, topology: Topology, number: int, lanes: Lanes, log: Callable[[str, Line], None], lookups: Lookups) -> None:
        self._journals = topology.data_dir / "journal"
        self._ends = topology.receiving_ends("replays", number)
        self._others = len(topology.places_of("flows")) > 1
        self._lanes, self._log, self._lookups = lanes, log, lookups
        self._replays: dict[tuple[int, int], Replay] = {}
        """By worker and number: two workers that have started in the same millisecond count from the same number."""
        self._unsent = [*range(len(self._ends))]
        """Workers that do not know yet that this process has started."""
        self._listed_s = float("-inf")
        self._complained_s = float("-inf")
        self._short = False
        self._scanning: Replay | None = None
        """The replay that scans for last values: one at a time, for the memory that it takes."""

    @property
    def descriptors(self) -> list[int]:
        """Returns what becomes readable with messages of workers."""
        return self._ends

    def __len__(self) -> int:
        return len(self._replays)

    def wait_s(self, longest_s: float) -> float:
        """Returns how long the process may sleep."""
        if self._short or self._unsent:
            return SHORT_S
        if self._lookups.waits:
            return LIVE_S
        return LIVE_S if self._replays and self._others else longest_s

    # --- orders -------------------------------------------------------------------------------------------------------------------

    def take_orders(self) -> None:
        """Takes the messages of workers."""
        self._unsent = [worker for worker in self._unsent if not self._send(worker, encode("hello"))]
        for worker, end in enumerate(self._ends):
            while True:
                try:
                    message = os.read(end, MESSAGE_MAX)
                except (BlockingIOError, InterruptedError):
                    break
                if not message:
                    break
                try:
                    self._take(worker, message)
                except (ValueError, TypeError, IndexError) as error:
                    self._log("error", log_line("replay message not used", reason=error))

    def _send(self, worker: int, message: bytes) -> bool:
        try:
            os.write(self._ends[worker], message)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _take(self, worker: int, message: bytes) -> None:
        verb, *values = decode(message)
        if verb == "reset":
            for replay in [one for one in self._replays.values() if one.worker == worker]:
                self._end(replay)
            self._lookups.reset(worker)
        elif verb == "lookup":
            self._lookups.take(worker, values)
        elif verb == "lookup_end":
            self._lookups.end(worker, values[0])
        elif verb == "begin":
            number, filter, start_us, end_us, positions, incarnations, rate, age_us, key = values
            replay = Replay(number, worker, filter, start_us, end_us, positions, incarnations, rate, age_us, key)
            self._replays[worker, number] = replay
            self._try(replay, lambda: replay.add_journals(self._directories()))
        elif (found := self._replays.get((worker, values[0]))) is None:
            return
        elif verb == "credit":
            found.credit(values[1], values[2])
        elif verb == "end":
            self._end(found)

    def _end(self, replay: Replay) -> None:
        replay.close()
        if self._scanning is replay:
            self._scanning = None
        del self._replays[replay.worker, replay.number]

    def _directories(self) -> list[Path]:
        return [self._journals / name for name in journal_names(self._journals, 0, 1)]

    # --- turns --------------------------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Sends some messages of each replay; returns whether any was sent."""
        if not self._replays:
            self._short = False
            return False
        listed = time.monotonic() - self._listed_s >= LIST_S
        if listed:
            self._listed_s = time.monotonic()
        self._short = False
        moved = False
        until_s = time.monotonic() + TURN_S
        for key in list(self._replays):
            replay = self._replays.pop(key)
            self._replays[key] = replay  # behind those that have not had their turn
            if listed:
                self._try(replay, lambda replay=replay: replay.add_journals(self._directories()))  # type: ignore[misc]
            moved |= self._try(replay, lambda replay=replay: self._turn_of(replay))  # type: ignore[misc]
            if time.monotonic() > until_s:
                moved = True
                break
        self._lanes.ring()
        return moved

    def _turn_of(self, replay: Replay) -> bool:
        if replay.is_scanning:
            return self._scan(replay)
        replay.refill()
        sent, full = replay.send(partial(self._lanes.try_put, replay.worker, kind=REPLAY), TURN_RECORDS)
        self._short |= full or replay.is_limited
        for journal in replay.journals.values():
            if journal.lost:
                self._log("warning", log_line("replay records missing", journal=journal.number, count=journal.lost))
                journal.lost = 0
        if sent or replay.has_more:
            return True
        for journal, position in replay.marks():
            encoded = encode_replay_place(replay.number, journal.number, position, journal.incarnation_read_to)
            if self._lanes.try_put(replay.worker, encoded, REPLAY):
                replay.marked(journal, position, len(encoded))
        if replay.is_over and replay.records_free > 0:
            if self._lanes.try_put(replay.worker, encode_replay_place(replay.number, 0, 0, over=True), REPLAY):
                self._end(replay)
            else:
                self._short = True
        return False

    def _scan(self, replay: Replay) -> bool:
        """Scans some more, if no other replay does; returns whether it did."""
        if self._scanning not in (None, replay):
            return False
        self._scanning = None  # if it fails, others have their turn
        replay.scan(self._directories)
        if replay.is_scanning:
            self._scanning = replay
        return True

    def _try(self, replay: Replay, work: Callable[[], bool | None]) -> bool:
        """Returns what `work` returns; False if journals cannot be read, which is tried again."""
        try:
            return bool(work())
        except (OSError, JournalError, ValueError) as error:
            self._short = True
            if time.monotonic() - self._complained_s >= COMPLAIN_S:
                self._complained_s = time.monotonic()
                self._log("error", log_line("replay held up", number=replay.number, reason=error))
        return False

    def close(self) -> None:
        for replay in list(self._replays.values()):
            self._end(replay)
