"""Traces: their requests, their files, and their ends: theory of operation.

    <data>/trace/<name>.json     selection, start and end, outcome
    <data>/trace/<name>.log      a line for each event

Workers match events (worker/observers/traces.pxd), processes flows those of rules (flows/rule_traces.py), and send them through
the manager's ring. A command sets the active traces of workers; a restarted worker reads them from a file of the runtime directory,
and flows look at it each second. The manager writes: threads take its batches, and events that a
slow disk does not accept in time are counted, with the count in the file. Traces end with the broker; a restarted manager continues
them.
"""

import asyncio
import itertools
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cbor2

from shardbroker.control import ControlError
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.trace_lines import FORMATTERS
from shardbroker.management.workers import Workers
from shardbroker.stores.files import replace_file
from shardbroker.stores.trace_state import OF_RULES, read_traced, write_traced
from shm.topology import Topology

__all__ = ["TRACE_DIR", "Traces"]

TRACE_DIR = "trace"
"""Directory in the data directory."""
PENDING_MAX = 4 << 20
"""Bytes of one trace not written yet; further events are counted."""
BATCH_BYTES = 1 << 18
"""Bytes that a thread writes at once."""
DEFAULT_LIFE_MS = 600_000
"""Duration of a trace without an end: ten minutes, as in EMQX."""
READ_MAX = 1 << 20
"""Bytes of a file in one answer."""

Row = dict[str, Any]


@dataclass
class Trace:
    """One trace. `number` identifies it in workers' events, and is not reused during the life of the manager."""

    name: str
    type: str
    value: str
    payload_encode: str
    payload_limit: int
    formatter: str
    start_ms: int
    end_ms: int
    number: int = 0
    stopped_ms: int = 0
    """0: it has not ended."""
    stopped_by: str = ""
    events: int = 0
    lost: int = 0
    path: Path = field(default=Path(), repr=False)

    def status(self, now_ms: int) -> str:
        """Returns waiting, running or stopped."""
        if self.stopped_ms:
            return "stopped"
        return "waiting" if now_ms < self.start_ms else "running"

    def kept(self) -> dict[str, Any]:
        """Returns the content of its file."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


class _File:
    """Lines being written to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.descriptor).st_size
        """Bytes, including those not written yet."""
        self.pending = bytearray()
        self.left_out = 0
        """Lines dropped since the last one that was added."""
        self.problem = ""
        self.writing: asyncio.Task[None] | None = None

    def add(self, line: str) -> bool:
        """Adds a line; False if too many bytes are pending."""
        data = line.encode(errors="replace") + b"\n"
        if len(self.pending) + len(data) > PENDING_MAX:
            return False
        self.pending += data
        self.size += len(data)
        return True

    def flush(self) -> None:
        if self.pending and self.writing is None and not self.problem:
            self.writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self.pending:
                batch = bytes(self.pending[:BATCH_BYTES])
                del self.pending[: len(batch)]
                await asyncio.to_thread(_write_all, self.descriptor, batch)
        except OSError as error:
            self.problem = error.strerror or str(error)
        finally:
            self.writing = None

    async def close(self) -> None:
        """Closes the file after all lines are written."""
        self.flush()
        if self.writing is not None:
            await asyncio.wait([self.writing])
        os.close(self.descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Traces:
    """All traces. `now_ms` is always Unix ms."""

    def __init__(self, topology: Topology, workers: Workers, log: Log, max_file_size: int) -> None:
        self._runtime_dir = topology.runtime_dir
        self._directory = topology.data_dir / TRACE_DIR
        self._workers = workers
        self._log = log
        self._traces: dict[str, Trace] = {}
        self._by_number: dict[int, Trace] = {}
        self._files: dict[str, _File] = {}
        self._told: list[Row] = []
        """The active traces, as workers and flows know them."""
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self.max_file_size = max_file_size
        """The current `trace.max_file_size`."""

    def load(self, now_ms: int) -> None:
        """Loads existing traces: they continue if only the manager was restarted."""
        traced = read_traced(self._runtime_dir)
        self._told = traced or []
        for path in sorted(self._directory.glob("*.json")):
            try:
                trace = Trace(**json.loads(path.read_text()), path=path)
            except (OSError, ValueError, TypeError) as error:
                self._log.add("warning", log_line("trace not loaded", path=path, reason=error))
                continue
            self._traces[trace.name] = trace
            if not trace.stopped_ms and traced is None:
                self._end(trace, min(now_ms, trace.end_ms), "the broker was restarted")
        self._numbers = itertools.count(max([0, *(trace.number for trace in self._traces.values())]) + 1)
        self.look(now_ms)

    # --- requests -----------------------------------------------------------------------------------------------------------------

    def rows(self, now_ms: int) -> list[Row]:
        """Returns the traces, newest first."""
        return [self.row(trace, now_ms) for trace in reversed(self._traces.values())]

    def row(self, trace: Trace, now_ms: int) -> Row:
        known = trace.kept()
        del known["number"]
        return {
            **{name: known[name] for name in ("name", "type", "value")},
            "status": trace.status(now_ms),
            "start_at": trace.start_ms,
            "end_at": trace.stopped_ms or trace.end_ms,
            **{name: known[name] for name in ("payload_encode", "payload_limit", "formatter", "events", "lost", "stopped_by")},
            "log_size": self._size(trace),
        }

    def one(self, name: str) -> Trace:
        """Returns a trace. Raises ControlError NOT_FOUND."""
        trace = self._traces.get(name)
        if trace is None:
            raise ControlError("NOT_FOUND", f"no trace {name!r}")
        return trace

    def start(self, trace: Trace, most: int, now_ms: int) -> None:
        """Starts a trace. Raises ControlError, and nothing has changed then."""
        if trace.name in self._traces:
            raise ControlError("ALREADY_EXISTS", f"trace {trace.name!r} already exists")
        for other in self._traces.values():
            if not other.stopped_ms and (other.type, other.value) == (trace.type, trace.value):
                raise ControlError("DUPLICATE_CONDITION", f"trace {other.name!r} already records {trace.type} {trace.value!r}")
        if len(self._traces) >= most:
            raise ControlError("EXCEED_LIMIT", f"trace limit (trace.max_traces = {most}) reached; delete one")
        trace.number = next(self._numbers)
        trace.path = self._directory / f"{trace.name}.json"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._log_path(trace).unlink(missing_ok=True)
            self._keep(trace)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{trace.path}: {error.strerror}") from None
        self._traces[trace.name] = trace
        self.look(now_ms)

    def stop(self, name: str, now_ms: int) -> Trace:
        """Stops a trace; one that has ended is unchanged. Raises ControlError."""
        trace = self.one(name)
        if not trace.stopped_ms:
            self._end(trace, now_ms, "somebody")
            self.look(now_ms)
        return trace

    async def delete(self, name: str, now_ms: int) -> None:
        """Deletes a trace and its file. Raises ControlError."""
        trace = self.stop(name, now_ms)
        del self._traces[name]
        if self._closing:
            await asyncio.wait(self._closing)  # a pending write would create the file again
        for path in (trace.path, self._log_path(trace)):
            path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        return list(self._traces)

    async def read(self, name: str, position: int, most: int, now_ms: int) -> Row:
        """Returns a part of a trace's file: `data`, the `position` after it, and whether `more` may follow. Raises ControlError."""
        trace = self.one(name)
        data = await asyncio.to_thread(_read_part, self._log_path(trace), position, min(most, READ_MAX))
        end = position + len(data)
        return {
            "data": data, "position": end, "size": self._size(trace),
            "more": trace.status(now_ms) != "stopped" or end < self._size(trace), "modified_at": self._modified_ms(trace),
        }  # fmt: skip

    # --- events -------------------------------------------------------------------------------------------------------------------

    def take(self, payload: bytes) -> None:
        """Takes an event of a worker."""
        event = cbor2.loads(payload)
        for number in event[0]:
            trace = self._by_number.get(number)
            if trace is not None and trace.start_ms * 1000 <= event[1] <= trace.end_ms * 1000:
                self._add(trace, event)

    def _add(self, trace: Trace, event: list[Any]) -> None:
        file = self._files[trace.name]
        if file.left_out and file.add(_own_line(trace, event[1], "lost", {"count": file.left_out})):
            file.left_out = 0
        written = file.add(FORMATTERS[trace.formatter](event, trace.payload_encode, trace.payload_limit))
        if event[2] == "lost":
            trace.lost += event[6]["count"]
        elif written:
            trace.events += 1
        else:
            trace.lost += 1
            file.left_out += 1
        if file.size >= self.max_file_size:
            self._end(trace, event[1] // 1000, self._full())

    def flush(self) -> None:
        """Starts writing all pending lines."""
        for file in self._files.values():
            file.flush()

    def look(self, now_ms: int) -> None:
        """Starts traces that are due, and ends those that are over."""
        for trace in list(self._traces.values()):
            if trace.stopped_ms:
                continue
            file = self._files.get(trace.name)
            if now_ms >= trace.end_ms:
                self._end(trace, trace.end_ms, "its end time")
            elif file is not None and file.problem:
                self._end(trace, now_ms, f"its file: {file.problem}")
            elif file is not None and file.size >= self.max_file_size:
                self._end(trace, now_ms, self._full())  # of an earlier manager, or the limit has changed
            elif file is None and now_ms >= trace.start_ms:
                self._begin(trace, now_ms)
        running = [trace for trace in self._traces.values() if trace.name in self._files]
        wanted = [
            {"number": one.number, "type": one.type, "value": one.value,
             "payload_limit": 0 if one.payload_encode == "hidden" else one.payload_limit}
            for one in running
        ]  # fmt: skip
        if wanted != self._told:
            before, self._told = self._told, wanted
            with suppress(OSError):  # a worker that dies meanwhile need not delay the others
                write_traced(self._runtime_dir, wanted)
            of_workers = [one for one in wanted if one["type"] != OF_RULES]
            if of_workers != [one for one in before if one["type"] != OF_RULES]:
                self._workers.send_all("trace", traces=of_workers)

    async def close(self, now_ms: int) -> None:
        """Writes all pending lines before the manager ends. Whether the broker ends too is known at its next start."""
        for trace in self._traces.values():
            if trace.name in self._files:
                self._keep_quietly(trace)
        for file in list(self._files.values()):
            await file.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _begin(self, trace: Trace, now_ms: int) -> None:
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._files[trace.name] = _File(self._log_path(trace))
        except OSError as error:
            self._end(trace, now_ms, f"its file: {error.strerror}")
            return
        self._by_number[trace.number] = trace

    def _end(self, trace: Trace, now_ms: int, why: str) -> None:
        trace.stopped_ms, trace.stopped_by = now_ms, why
        self._by_number.pop(trace.number, None)
        file = self._files.pop(trace.name, None)
        if file is not None:
            file.add(_own_line(trace, now_ms * 1000, "ended", {"by": why, "events": trace.events, "lost": trace.lost}))
            closing = asyncio.create_task(file.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._log.add("info", log_line("trace ended", name=trace.name, by=why, events=trace.events, lost=trace.lost))
        self._keep_quietly(trace)

    def _full(self) -> str:
        return f"trace.max_file_size, {self.max_file_size} bytes"

    def _keep(self, trace: Trace) -> None:
        """Writes the file of a trace. Raises OSError."""
        replace_file(trace.path, json.dumps(trace.kept()).encode())

    def _keep_quietly(self, trace: Trace) -> None:
        with suppress(OSError):  # the disk is full: after a restart the outcome is unknown
            self._keep(trace)

    def _log_path(self, trace: Trace) -> Path:
        return self._directory / f"{trace.name}.log"

    def _size(self, trace: Trace) -> int:
        file = self._files.get(trace.name)
        if file is not None:
            return file.size - len(file.pending)
        try:
            return self._log_path(trace).stat().st_size
        except OSError:
            return 0

    def _modified_ms(self, trace: Trace) -> int | None:
        try:
            return self._log_path(trace).stat().st_mtime_ns // 1_000_000
        except OSError:
            return None


def _own_line(trace: Trace, at_us: int, what: str, details: dict[str, Any]) -> str:
    """Returns a line that no worker has sent."""
    return FORMATTERS[trace.formatter]([[], at_us, what, b"", None, "", details], "", 0)


def _read_part(path: Path, position: int, most: int) -> bytes:
    """Returns a part of the file; empty without a file."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(most)
    except FileNotFoundError:
        return b""
