"""The sources of a process flows: definitions, the way of their batches into the lanes, figures, orders.

All is called by the process's own loop, which never waits. What is received is the work of the runner, in its thread.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from shardbroker.flows.lanes import Lanes
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.sinks.definitions import Definitions, SourceDefinition
from shardbroker.flows.sinks.runner import ConnectorHandle, SinkRunner
from shardbroker.flows.sources.complaints import Complaints
from shardbroker.flows.sources.records import Encoder
from shardbroker.flows.sources.server import Batch, Shipment, SourceServer, figures_of
from shardbroker.flows.sources.source import SourceDriver

__all__ = ["Sources"]

RECORDS_A_TURN = 4096
"""Records of all sources that are put into lanes before rules have their turn: some 5 ms."""
SHORT_S = 0.002
"""Sleep of the process while batches are under way: a worker that has consumed them does not ring."""
Mark = tuple[int, int]
"""Worker and position in its lane."""


class _Entry:
    """A source in force, or one that ends and has batches under way."""

    def __init__(self, definition: SourceDefinition, connector: ConnectorHandle, server: SourceServer) -> None:
        self.definition, self.connector, self.server = definition, connector, server
        self.marks: dict[int, int] = {}
        """Of the batch that is being put."""
        self.pending: deque[tuple[Batch | Shipment, list[Mark]]] = deque()
        """Batches that workers have not consumed, in order."""

    @property
    def is_busy(self) -> bool:
        return bool(self.pending or self.server.queue)


class Sources:
    """Of process `number` of `processes`. wake: wakes the process out of its sleep. payload_max: bytes of a message."""

    def __init__(
        self, number: int, processes: int, lanes: Lanes, payload_max: int, table: RuleTable, wake: Callable[[], None]
    ) -> None:
        self._number, self._processes = number, processes
        self._lanes, self._payload_max, self._table, self._wake = lanes, payload_max, table, wake
        self.problems: dict[str, str] = {}
        """By `source` and the id of a source."""
        self._runner: SinkRunner | None = None
        self._entries: dict[str, _Entry] = {}
        self._ending: list[_Entry] = []
        """Sources that were changed or removed, with batches under way."""
        self._turns = 0

    @property
    def is_busy(self) -> bool:
        """Whether batches are under way."""
        return any(entry.is_busy for entry in self._all())

    def wait_s(self, longest_s: float) -> float:
        """Returns how long the process may sleep."""
        return min(SHORT_S, longest_s) if self.is_busy else longest_s

    def users_of(self, connector: ConnectorHandle) -> int:
        """Returns the number of sources that use a connector here."""
        return sum(entry.connector is connector for entry in self._entries.values())

    def _all(self) -> list[_Entry]:
        return [*self._ending, *self._entries.values()]

    # --- batches --------------------------------------------------------------------------------------------------------------

    def turn(self, complain: Callable[[str, Exception], None]) -> int:
        """Puts records into lanes, and reports what workers have consumed; returns how many records it has put."""
        entries, left = self._all(), RECORDS_A_TURN
        if not entries:
            return 0
        self._turns += 1
        first = self._turns % len(entries)
        for entry in entries[first:] + entries[:first]:
            try:
                left -= self._put(entry, left)
            except OSError as error:  # of the directory of spilled messages: the record is put later
                complain(f"source {entry.server.id}", error)
            self._finish(entry)
        self._ending = [entry for entry in self._ending if entry.is_busy]
        return RECORDS_A_TURN - left

    def _put(self, entry: _Entry, most: int) -> int:
        """Puts records of a source until a lane is full; returns how many. Raises OSError."""
        queue, put = entry.server.queue, 0
        while queue:
            batch = queue[0]
            if isinstance(batch, Shipment):
                done, mark = self._lanes.put_shipped(batch.origin, batch.records, most - put)
                put += done
                if mark is None:
                    return put
                queue.popleft()
                entry.pending.append((batch, [mark]))
                continue
            records, marks = batch.records, entry.marks
            while batch.at < len(records):
                worker, record, kind = records[batch.at]
                if put >= most or not self._lanes.try_put(worker, record, kind):
                    return put
                batch.at += 1
                put += 1
                marks[worker] = 0
            queue.popleft()
            entry.pending.append((batch, [self._lanes.mark(worker) for worker in marks]))
            entry.marks = {}
        return put

    def _finish(self, entry: _Entry) -> None:
        finished = []
        while entry.pending and all(map(self._lanes.is_past, entry.pending[0][1])):
            finished.append(entry.pending.popleft()[0])
        if finished and self._runner is not None:
            self._runner.call(entry.server.finished, finished)

    def follow_rules(self) -> None:
        """Looks which sources rules name, after rules have changed."""
        for entry in self._entries.values():
            entry.server.is_fed = bool(self._table.rules_of_event(entry.server.event))

    # --- definitions ----------------------------------------------------------------------------------------------------------

    def replace(
        self,
        found: Definitions,
        connectors: Mapping[str, ConnectorHandle],
        runner: SinkRunner | None,
        make: Callable[[SourceDefinition], SourceDriver],
    ) -> tuple[list[SourceServer], list[SourceServer]]:
        """Takes over definitions; returns the servers that end and those that begin. One that is what it was stays.

        make: makes the driver of a source; raises any exception.
        """
        self._runner = runner
        self.problems = {f"source {id}": problem for id, problem in found.problems_of_sources.items()}
        before, self._entries = self._entries, {}
        begun = []
        for id, definition in found.sources.items():
            if crc32(id.encode()) % self._processes != self._number:
                continue
            connector, known = connectors.get(definition.connector), before.get(id)
            if known is not None and known.definition == definition and known.connector is connector:
                self._entries[id] = before.pop(id)
                continue
            entry = self._made(definition, connector, make)
            if entry is not None:
                self._entries[id] = entry
                begun.append(entry.server)
        self._ending += before.values()
        return [entry.server for entry in before.values()], begun

    def _made(
        self, definition: SourceDefinition, connector: ConnectorHandle | None, make: Callable[[SourceDefinition], SourceDriver]
    ) -> _Entry | None:
        """Returns a new entry; None if there is a problem."""
        runner, id = self._runner, definition.id
        assert runner is not None, "there is a runner with the first definition"
        try:
            driver = make(definition)
        except Exception as error:  # of a driver: one source is not used, the process works
            self.problems[f"source {id}"] = str(error) or type(error).__name__
            return None
        assert connector is not None, "make has failed without"
        encoder = Encoder(id, len(self._lanes.workers), self._payload_max)
        health_check_s = definition.settings.resource_opts.health_check_interval
        server = SourceServer(id, driver, encoder, health_check_s, Complaints(id, runner.write), self._wake)
        server.is_fed = bool(self._table.rules_of_event(server.event))
        return _Entry(definition, connector, server)

    # --- figures and orders ---------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns the figures of sources. Called once a second."""
        found = {id: figures_of(entry.server) for id, entry in self._entries.items()}
        for key, problem in self.problems.items():
            found[key.removeprefix("source ")] = {"status": "disconnected", "error": problem}
        return found

    def order(self, verb: str, id: str) -> str:
        """Carries out `stop`, `start`, `restart`, `reset`; returns a problem, or nothing. Another process may have the source."""
        entry = self._entries.get(id)
        if entry is None or self._runner is None:
            return self.problems.get(f"source {id}", "")
        server = entry.server
        orders = {"stop": server.stop, "start": server.resume, "restart": server.restart, "reset": server.reset}
        self._runner.call(orders[verb])
        return ""

    def stop(self) -> None:
        """Ends all sources, before the process ends; see is_busy."""
        if self._runner is not None and self._entries:
            for entry in self._entries.values():
                self._runner.call(entry.server.stop)
