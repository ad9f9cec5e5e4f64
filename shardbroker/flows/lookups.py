"""Look-ups of new subscriptions in a database, for workers: `fetch` and `retain_lookup` of persistence.<db>.

    worker -> "lookup" -> [until earlier rows are written] -> query, in the thread of sinks -> records in the lane of the worker

A database is asked once it has all that was published and acknowledged before: the journals are read to their present ends, and the
actions of the preset are behind them. A worker asks for one page at a time, and again for the next one, so nothing is kept here.
A query that fails is repeated until the worker ends its request.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shardbroker.connectors.connector import retry_delay_s
from shardbroker.connectors.errors import describe
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.feed import Incarnations, JournalFeed, journal_names, read_publishers
from shardbroker.flows.lanes import Lanes
from shardbroker.flows.persistence.stored import NO_ID, Page, Stored, Wanted
from shardbroker.flows.sinks.runner import SinkRunner
from shardbroker.flows.sinks.sinks import CONSUMER, Sinks
from shardbroker.journal.follow import Place
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, segment_start
from shardbroker.logs.phrases import Line, log_line
from shm.records import FOUND_END, FOUND_MESSAGE, FOUND_NONE_RETAINED, FOUND_PAGE_END, FOUND_RETAINED, REPLAY, encode_found

__all__ = ["Lookups", "Others"]

QUERIES = 4
"""Queries to one connector at a time: its actions write meanwhile, and keep most of its pool."""
QUERY_S = 10.0
"""Longest time of one query."""
COMPLAIN_S = 10.0
"""Between two lines about databases that cannot be asked, or rows that cannot be used."""
LOOK_S = 0.02
"""Between two looks at actions that are behind."""
US = 1_000_000


class _Request(NamedTuple):
    """What a worker has asked for; see shm/replays.py."""

    number: int
    worker: int
    database: str
    connector: str
    actions: tuple[str, ...]
    wanted: Wanted
    fetches: bool
    retains: bool


class _Found(NamedTuple):
    request: _Request
    retained: Stored | None
    page: Page | None


class Lookups:
    """sinks: with the connectors. feeds: of this process. others: None if this process reads all journals."""

    def __init__(
        self,
        sinks: Sinks,
        lanes: Lanes,
        feeds: Callable[[], Mapping[str, JournalFeed]],
        others: "Others | None",
        log: Callable[[str, Line], None],
    ) -> None:
        self._sinks, self._lanes, self._feeds, self._others, self._log = sinks, lanes, feeds, others, log
        self._requests: dict[tuple[int, int], _Request] = {}
        """By worker and number."""
        self._new: list[_Request] = []
        self._behind: deque[tuple[_Request, Mapping[str, int]]] = deque()
        """Requests that wait for actions, and the positions that these have to reach, by journal."""
        self._found: deque[_Found] = deque()
        """Filled by the thread of sinks."""
        self._records: dict[int, deque[tuple[int, bytes]]] = {}
        """Worker -> number of the request and record, that have found no room in its lane."""
        self._places: dict[str, asyncio.Semaphore] = {}
        self._looked_s = self._complained_s = float("-inf")

    # --- orders of workers --------------------------------------------------------------------------------------------------------

    def take(self, worker: int, values: list[Any]) -> None:
        """Takes a request. Raises ValueError, TypeError."""
        number, database, client, topic, after, before, limit, retains, connector, actions, positions, range_s = values
        oldest = b"" if not range_s else max(time.time_ns() // 1000 - range_s * US, 0).to_bytes(8) + bytes(8)
        lowest = max(after, oldest)
        wanted = Wanted(
            client.decode(), topic.decode(), lowest.hex().upper() or NO_ID, before.hex().upper(), limit or 1, bool(positions)
        )
        request = _Request(number, worker, database, connector, tuple(actions), wanted, limit > 0, bool(retains))
        self._requests[worker, number] = request
        self._new.append(request)

    def end(self, worker: int, number: int) -> None:
        """The worker does not wait for it any more."""
        self._requests.pop((worker, number), None)

    def reset(self, worker: int) -> None:
        """No request of this worker is of interest any more."""
        for request in [one for one in self._requests.values() if one.worker == worker]:
            self.end(worker, request.number)
        self._records.pop(worker, None)

    def _is_wanted(self, request: _Request) -> bool:
        return self._requests.get((request.worker, request.number)) is request

    # --- turns --------------------------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Returns whether turns have to follow soon."""
        return bool(self._behind or self._new or self._records)

    def turn(self) -> bool:
        """Continues all requests; returns whether anything was sent."""
        if self._new:
            ends = {name: feed.end() for name, feed in self._feeds().items()} | (self._others.ends() if self._others else {})
            self._behind.extend((one, ends) for one in self._new)
            self._new = []
            self._looked_s = float("-inf")
        if self._behind and time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            self._ask_those_that_may()
        while self._found:
            self._put(self._found.popleft())
        return self._send() if self._records else False

    def _ask_those_that_may(self) -> None:
        done: dict[str, Mapping[str, int]] = {}
        for _ in range(len(self._behind)):
            request, ends = self._behind.popleft()
            if not self._is_wanted(request):
                continue
            for action in request.actions:
                if action not in done:
                    done[action] = self._sinks.positions(action) | (self._others.positions(action) if self._others else {})
            runner = self._sinks.runner
            if runner is None or any(_is_behind(done[action], ends) for action in request.actions):
                self._behind.append((request, ends))
                continue
            runner.call(self._begin, runner, request)

    # --- in the loop of sinks -----------------------------------------------------------------------------------------------------

    def _begin(self, runner: SinkRunner, request: _Request) -> None:
        runner.keep(self._ask(request))

    async def _ask(self, request: _Request) -> None:
        failures = 0
        while self._is_wanted(request):
            try:
                self._found.append(await self._answer(request))
            except Exception as error:
                failures += 1
                self._complain(log_line("lookup repeated", database=request.database, reason=describe(error)))
                await asyncio.sleep(retry_delay_s(failures))
            else:
                break
        self._sinks.wake()

    async def _answer(self, request: _Request) -> _Found:
        connector = self._sinks.connector(request.connector)
        if connector is None:
            raise ConnectionError(f"connector {request.connector}: must be one that can be used")
        database = import_module(f"shardbroker.flows.persistence.{request.database}")
        places = self._places.setdefault(request.connector, asyncio.Semaphore(QUERIES))
        async with places, asyncio.timeout(QUERY_S):
            retained = await database.retained(connector, request.wanted.topic) if request.retains else None
            page = await database.fetch(connector, request.wanted) if request.fetches else None
        return _Found(request, retained, page)

    def _complain(self, line: Line) -> None:
        if time.monotonic() - self._complained_s >= COMPLAIN_S:
            self._complained_s = time.monotonic()
            runner = self._sinks.runner
            if runner is not None:
                runner.write("warning", line)

    # --- records ------------------------------------------------------------------------------------------------------------------

    def _put(self, found: _Found) -> None:
        request, page = found.request, found.page
        if not self._is_wanted(request):
            return
        number, topic = request.number, request.wanted.topic.encode()
        records = self._records.setdefault(request.worker, deque())
        if request.retains:
            one = found.retained
            kind = FOUND_NONE_RETAINED if one is None else FOUND_RETAINED
            records.append((number, encode_found(number, kind) if one is None else _record(number, kind, topic, one)))
        last = b""
        if page is not None:
            for one in page.messages:
                records.append((number, _record(number, FOUND_MESSAGE, topic, one)))
            if page.unusable:
                self._complain(log_line("lookup rows not used", database=request.database, count=page.unusable))
            last = _id_behind(page, request.wanted)
        has_more = page is not None and page.has_more and bool(last)
        end = encode_found(number, FOUND_PAGE_END, last) if has_more else encode_found(number, FOUND_END)
        records.append((number, end))
        self.end(request.worker, number)  # the next page is another request of the same number

    def _send(self) -> bool:
        sent = False
        for worker, records in list(self._records.items()):
            while records and self._lanes.try_put(worker, records[0][1], REPLAY):
                records.popleft()
                sent = True
            if not records:
                del self._records[worker]
        if sent:
            self._lanes.ring()
        return sent


def _is_behind(positions: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    return any(positions.get(journal, 0) < end for journal, end in ends.items())


def _record(number: int, kind: int, topic: bytes, message: Stored) -> bytes:
    return bytes(encode_found(number, kind, message.id, topic, message.payload, message.qos, message.sender))


def _id_behind(page: Page, wanted: Wanted) -> bytes:
    """Returns the id behind which the next page begins; empty if rows that are no messages of this broker do not tell it."""
    try:
        last = bytes.fromhex(page.last)
    except ValueError:
        last = b""
    if len(last) == 16:
        return last
    return page.messages[-1].id if page.messages else b""


class Others:
    """The journals that processes flows besides `number` read, as far as their cursors are written: some seconds late.

    journals: the directory of all. cursors: all that are written, by (consumer, journal).
    """

    def __init__(
        self, journals: Path, number: int, processes: int, cursors: Callable[[], Mapping[tuple[str, str], Cursor]]
    ) -> None:
        self._journals, self._numbers, self._cursors = journals, set(range(processes)) - {number}, cursors
        self._processes = processes
        self._places: dict[str, Place] = {}
        self._read: Mapping[tuple[str, str], Cursor] = {}
        self._read_s = float("-inf")

    def ends(self) -> dict[str, int]:
        """Returns the position behind what is in each journal. Raises OSError, JournalError."""
        names = [name for number in self._numbers for name in journal_names(self._journals, number, self._processes)]
        return {name: self._end_of(name) for name in names}

    def _end_of(self, name: str) -> int:
        directory = self._journals / name
        start = max(map(segment_start, Incarnations(directory).paths()), default=0)
        place = self._places.get(name)
        if place is None or place.segment != start:
            place = Place(start, SEGMENT_HEADER_BYTES, start)
        self._places[name] = place = read_publishers(directory, place, {})
        return int(place.position)

    def positions(self, action: str) -> dict[str, int]:
        """Returns journal -> position up to which an action is done."""
        if time.monotonic() - self._read_s >= LOOK_S * 10:
            self._read_s, self._read = time.monotonic(), self._cursors()
        consumer = CONSUMER + action
        found = {journal: cursor.position for (name, journal), cursor in self._read.items() if name == consumer}
        return {journal: position for journal, position in found.items() if journal.isdecimal()}
