"""A table that is on all nodes, in link-0: drives `shardbroker.cluster.retained` with the store, in a thread of its own.

    connection -> arrived() -> queue -> thread: core and store -> loop: frames to connections

A store is LMDB or SQLite: a write waits for those of other processes, often also for the disk, and a comparison of a million topics
takes some seconds of CPU. In the loop, pings would wait. The thread does one message, or one step of the core, at a time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import RetainedMessages
from shardbroker.cluster.retained import Replication, Table
from shardbroker.logs.phrases import Line

__all__ = ["StoredTable", "TableLink"]

INPUT_MAX = 8 << 20
"""Bytes of a peer that wait for the thread: its window is 3 MB, so one above it does not keep to the protocol."""
INPUTS_A_TURN = 8
"""Messages of peers taken before changes of this node are sent."""
WORK_MS = 1_000
"""Interval of looks at what is due by the clock, and at the limits."""
SWEEP_MS = 10_000
"""Interval of looks for old deletions."""
RETRY_S = 1.0
"""Between two tries while the disk refuses."""
REPEAT_MS = 60_000
"""Interval between two log lines of the same kind."""


class StoredTable(Table, Protocol):
    """A table with its store. All but `notes` and `failed` is called in the thread."""

    @property
    def name(self) -> str:
        """Returns what the rows are, in the plural."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Returns the errors of the store, after which the driver tries again."""

    def follow_settings(self) -> None:
        """Takes limits that were changed."""

    def build(self) -> bool:
        """Stamps rows of a store that was written without stamps. Returns whether all have theirs."""

    def sweep(self, now_ms: int) -> int:
        """Forgets old deletions, a bounded number of them, and returns how many."""

    def close(self) -> None: ...

    def notes(self) -> Iterable[tuple[str, Line]]:
        """Returns lines about rows that were left out since the last call, with their levels."""

    def failed(self, reason: str, retry_s: float) -> Line:
        """Returns the line about an error."""


class TableLink:
    """send: a message to a connection. fail: ends a connection."""

    def __init__(
        self,
        table: StoredTable,
        node_id: int,
        send: Callable[[int, RetainedMessages], None],
        fail: Callable[[int, PeerFault], None],
        log: Callable[[str, Line], None],
    ) -> None:
        self._table = table
        self._core = Replication(table)
        self._node_id = node_id
        self._send, self._fail, self._log = send, fail, log
        self._pool = ThreadPoolExecutor(1, "table")
        self._due = asyncio.Event()
        self._connections: dict[int, int] = {}
        self._inputs: deque[tuple[int, int, RetainedMessages]] = deque()
        """Connection, size and message; the thread takes them from the front."""
        self._waiting: dict[int, int] = {}
        """Bytes of each connection among them."""
        self._states: dict[int, str] = {}
        self._work_ms = self._sweep_ms = 0
        self._logged: dict[str, int] = {}

    # --- called in the loop ----------------------------------------------------------------------------------------------

    def follow(self, connections: Mapping[int, int]) -> None:
        """Takes the present connections to nodes that take the table, with the ids of these."""
        if connections != self._connections:
            self._connections = dict(connections)
            self._due.set()

    def arrived(self, number: int, message: RetainedMessages, size: int) -> None:
        """Takes a message of a connection."""
        if number not in self._connections:
            return
        waiting = self._waiting[number] = self._waiting.get(number, 0) + size
        if waiting > INPUT_MAX:
            self._fail(number, PeerFault(ByeReason.LIMIT, f"{self._table.name}: at most {INPUT_MAX} bytes may be on the way"))
            return
        self._inputs.append((number, size, message))
        self._due.set()

    def wake(self) -> None:
        """Has changes of this node sent."""
        if self._connections:
            self._due.set()

    def tick(self, now_ms: int) -> None:
        if now_ms - self._work_ms >= WORK_MS:
            self._work_ms = now_ms
            self._due.set()

    def states(self) -> dict[int, str]:
        """Returns for each linked node that takes the table whether it has what this node has: synced or syncing."""
        return self._states

    async def run(self) -> None:
        """Serves until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._due.wait()
            self._due.clear()
            turn = _Turn(dict(self._connections), len(self._inputs))
            await loop.run_in_executor(self._pool, self._take_turn, turn)
            self._finish(turn)
            if turn.error is not None:
                self._repeated("error", self._table.failed(turn.error, RETRY_S))
                await asyncio.sleep(RETRY_S)
            if turn.has_more or turn.error is not None or self._inputs:
                self._due.set()

    def close(self) -> None:
        """Ends the thread, and closes the store."""
        self._pool.shutdown(cancel_futures=True)
        self._table.close()

    def _finish(self, turn: "_Turn") -> None:
        for number, size in turn.taken:
            self._waiting[number] = self._waiting.get(number, 0) - size
        self._waiting = {number: size for number, size in self._waiting.items() if size > 0}
        for number, message in turn.sent:
            self._send(number, message)
        for number, fault in turn.faults:
            self._fail(number, fault)
        self._states = turn.states
        for level, line in self._table.notes():
            self._repeated(level, line)

    def _repeated(self, level: str, line: Line) -> None:
        now_ms, phrase = time.monotonic_ns() // 1_000_000, str(line).partition("=")[0]
        if now_ms - self._logged.get(phrase, -REPEAT_MS) >= REPEAT_MS:
            self._logged[phrase] = now_ms
            self._log(level, line)

    # --- called in the thread --------------------------------------------------------------------------------------------

    def _take_turn(self, turn: "_Turn") -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        try:
            self._table.follow_settings()
            self._core.follow({number: self._node_id < node for number, node in turn.connections.items()}, now_ms)
            self._take_inputs(turn, now_ms)
            sent, turn.has_more = self._core.work(now_ms)
            turn.sent += sent
            if not self._table.is_ready():
                self._table.build()
                turn.has_more = True  # behind the last step, comparisons begin at once
            if now_ms - self._sweep_ms >= SWEEP_MS and not self._table.sweep(time.time_ns() // 1_000_000):
                self._sweep_ms = now_ms
        except self._table.errors as error:
            turn.error = str(error)
        states = {node: self._core.is_synced(number) for number, node in turn.connections.items()}
        turn.states = {node: "synced" if is_synced else "syncing" for node, is_synced in states.items()}

    def _take_inputs(self, turn: "_Turn", now_ms: int) -> None:
        for _ in range(min(INPUTS_A_TURN, turn.inputs)):
            number, size, message = self._inputs[0]
            try:
                turn.sent += self._core.received(number, message, now_ms)
            except PeerFault as fault:
                turn.faults.append((number, fault))
                self._core.drop(number)
            # Behind it: a message that the disk refuses is taken again.
            self._inputs.popleft()
            turn.taken.append((number, size))


class _Turn:
    """What the thread is given, and what it has done."""

    def __init__(self, connections: dict[int, int], inputs: int) -> None:
        self.connections = connections
        self.inputs = inputs
        """Messages that had arrived: a later one may be of a connection that `connections` does not have, and would be lost."""
        self.taken: list[tuple[int, int]] = []
        self.sent: list[tuple[int, RetainedMessages]] = []
        self.faults: list[tuple[int, PeerFault]] = []
        self.states: dict[int, str] = {}
        self.has_more = False
        self.error: str | None = None
