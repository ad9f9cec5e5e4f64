"""Has figures of the broker and spans of its messages sent by OTLP, each by a process of its own (shardbroker/telemetry).

A process is started with the first export, and again after each change of its settings. At most one export of each signal is under
way; a process that does not answer in time, or that has ended, is replaced at the next one.

    figures   gathered at each export                       a failed export is made good by the next one
    spans     taken from the workers at each export         those of a failed export are lost, and counted
"""

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import cbor2

from shardbroker import __version__
from shardbroker.config.opentelemetry import OpenTelemetry
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line
from shardbroker.telemetry.frames import HEAD_BYTES, FrameError, frame_of, length_in
from shm.topology import Topology

__all__ = ["Telemetry"]

EXPORT_S = 10.0
"""Longest export, seconds, with its retries, as in the library; less with a shorter interval."""
GRACE_S = 2.0
"""Beyond that, seconds, in which the process encodes figures; then it is killed."""
START_S = 30.0
"""Longest start of the process, seconds: it loads 20 MB of code, on a machine that may be busy."""
REPEAT_S = 600.0
"""Between two log lines about exports that fail one after another."""
FAILURES_ALARM = 3
"""Failures one after another from which on the alarm is active: a collector that restarts is no alarm."""
REASON_MAX = 500
"""Most characters of a reason."""
BATCH_BYTES = 1 << 20
"""Spans of one export, as workers write them, in bytes: some 5,000, which are 2 MB in a request."""
BATCH_BYTES_OF_ONE = 1 << 14
"""Least part of that for one of many workers."""

Taken = tuple[bytes, int, bool, int, int]
"""What a worker answers: spans, their number, whether more wait; how many were over the limit, how many without room."""


class Telemetry:
    """gather: returns the figures as lists and tables. take: returns about so many bytes of spans of each worker, or None of one
    that does not answer."""

    def __init__(
        self,
        topology: Topology,
        settings: OpenTelemetry,
        gather: Callable[[], Awaitable[list[dict[str, Any]]]],
        log: Log,
        take: Callable[[int], Awaitable[list[Taken | None]]],
    ) -> None:
        self._metrics = _Metrics(topology, settings, log, gather)
        self._traces = _Traces(topology, settings, log, take)
        self.counts = self._metrics.counts
        """Exports of metrics by result, since the manager was started."""
        self.spans = self._traces.spans
        """Spans by what has become of them, since then."""

    @property
    def alarm(self) -> str:
        """What is wrong with exports for some time; empty if nothing is."""
        return "; ".join(text for text in (self._metrics.alarm, self._traces.alarm) if text)

    def configure(self, settings: OpenTelemetry) -> None:
        """Applies settings; an export under way is given up if those of its signal differ."""
        self._metrics.configure(settings)
        self._traces.configure(settings)

    async def run(self) -> None:
        """Exports until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._metrics.run())
            tasks.create_task(self._traces.run())


class _Signal(ABC):
    """Exports of one signal."""

    name: str
    """As in settings: metrics, traces."""

    def __init__(self, topology: Topology, settings: OpenTelemetry, log: Log) -> None:
        self._topology = topology
        self._settings = settings
        self._log = log
        self._changed = asyncio.Event()
        self.counts = {"success": 0, "failure": 0}
        self._failures = 0
        """One after another."""
        self._problem = ""
        self._told_s = 0.0

    @abstractmethod
    async def _export_once(self, child: "_Child") -> bool:
        """Makes one export, if there is anything to send. Returns whether another one should follow at once."""

    @abstractmethod
    def _line(self, fails: bool, **fields: Any) -> Line:
        """Returns the log line about exports that fail, or do so no more."""

    @abstractmethod
    def _times(self) -> tuple[float, float]:
        """Returns the interval between exports and the longest export, seconds."""

    @property
    def alarm(self) -> str:
        """What is wrong with exports for some time; empty if nothing is."""
        return self._problem if self._failures >= FAILURES_ALARM else ""

    def configure(self, settings: OpenTelemetry) -> None:
        """Applies settings; an export under way is given up if they differ."""
        before, self._settings = self._settings, settings
        if settings.exporter != before.exporter or getattr(settings, self.name) != getattr(before, self.name):
            self._changed.set()

    async def run(self) -> None:
        """Exports until it is cancelled."""
        while True:
            self._changed.clear()
            self._failures, self._problem = 0, ""
            exports = asyncio.create_task(self._export())
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait((exports, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (exports, changed):
                    task.cancel()
                await asyncio.gather(exports, changed, return_exceptions=True)
            if not self._changed.is_set():
                exports.result()  # an error of this module

    async def _export(self) -> None:
        """Exports with the settings of this moment until it is cancelled."""
        if self.name not in self._settings.enabled:
            await asyncio.Event().wait()
        interval_s, timeout_s = self._times()
        child = _Child(frame_of(self._first_frame(timeout_s)), timeout_s + GRACE_S)
        due_s, at_once = time.monotonic(), False
        try:
            while True:
                if not at_once:
                    due_s = max(due_s + interval_s, time.monotonic())
                    await asyncio.sleep(due_s - time.monotonic())
                at_once = await self._export_once(child)
        finally:
            await child.end()

    def _first_frame(self, timeout_s: float) -> dict[str, Any]:
        exporter = self._settings.exporter
        return {
            "signal": self.name,
            "url": exporter.url(self.name),
            "headers": exporter.headers,
            "timeout_s": timeout_s,
            **{name: getattr(exporter, name) for name in ("tls_ca", "tls_cert", "tls_key", "tls_verify")},
            "attributes": {
                "service.name": exporter.service_name,
                "service.instance.id": self._topology.node_name,
                "service.version": __version__,
            },
            "started_ns": self._topology.started_ms * 1_000_000,
        }

    def _note(self, problem: str) -> None:
        """Counts an export; logs a failure, the first and then at intervals, and the success after failures."""
        self.counts["failure" if problem else "success"] += 1
        url = self._settings.exporter.url(self.name)
        if not problem:
            if self._failures:
                self._log.add("info", self._line(False, url=url, failures=self._failures))
                self._log.flush()
            self._failures, self._problem = 0, ""
            return
        reason = problem[:REASON_MAX]
        self._failures += 1
        self._problem = f"{self.name} are not exported to {url}: {reason}"
        if self._failures == 1 or time.monotonic() - self._told_s >= REPEAT_S:
            self._told_s = time.monotonic()
            self._log.add("error", self._line(True, url=url, failures=self._failures, reason=reason))
            self._log.flush()


class _Metrics(_Signal):
    name = "metrics"

    def __init__(
        self, topology: Topology, settings: OpenTelemetry, log: Log, gather: Callable[[], Awaitable[list[dict[str, Any]]]]
    ) -> None:
        super().__init__(topology, settings, log)
        self._gather = gather

    def _line(self, fails: bool, **fields: Any) -> Line:
        return log_line("metrics not exported", **fields) if fails else log_line("metrics exported again", **fields)

    def _times(self) -> tuple[float, float]:
        interval_s = self._settings.metrics.interval
        return interval_s, min(interval_s, EXPORT_S)

    async def _export_once(self, child: "_Child") -> bool:
        at_ns = time.time_ns()
        try:
            problem = await child.export(frame_of({"at_ns": at_ns, "families": await self._gather()}))
        except (OSError, FrameError) as error:
            problem = str(error)
        except Exception as error:  # of a figure: the manager has other tasks
            problem = f"{type(error).__name__}: {error}"
        self._note(problem)
        return False


class _Traces(_Signal):
    name = "traces"

    def __init__(
        self, topology: Topology, settings: OpenTelemetry, log: Log, take: Callable[[int], Awaitable[list[Taken | None]]]
    ) -> None:
        super().__init__(topology, settings, log)
        self._take = take
        self._taken: asyncio.Future[list[Taken | None]] | None = None
        """What workers are giving, or have given to an export that settings have ended before."""
        self.spans = {"success": 0, "failure": 0, "over_limit": 0, "queue_full": 0}
        self._dropped = {"over_limit": 0, "queue_full": 0}
        """Since the last log line about them."""
        self._dropped_told_s = -REPEAT_S

    def _line(self, fails: bool, **fields: Any) -> Line:
        return log_line("spans not exported", **fields) if fails else log_line("spans exported again", **fields)

    def _times(self) -> tuple[float, float]:
        return self._settings.traces.scheduled_delay, EXPORT_S

    async def _export_once(self, child: "_Child") -> bool:
        if self._taken is None:
            self._taken = asyncio.ensure_future(self._take(max(BATCH_BYTES_OF_ONE, BATCH_BYTES // self._topology.workers)))
        taken = await asyncio.shield(self._taken)
        self._taken = None
        found = [one for one in taken if one is not None]
        texts = [text for text, *_ in found if text]
        self._note_dropped(sum(one[3] for one in found), sum(one[4] for one in found))
        if not texts:
            return False
        result = "failure"
        try:
            problem = await child.export(frame_of(texts))
            result = "failure" if problem else "success"
        except (OSError, FrameError) as error:
            problem = str(error)
        finally:  # also if it is given up
            self.spans[result] += sum(one[1] for one in found)
        self._note(problem)
        return not problem and any(one[2] for one in found)

    def _note_dropped(self, over_limit: int, queue_full: int) -> None:
        """Counts spans that workers have dropped; logs them, at first and then at intervals."""
        for name, count in (("over_limit", over_limit), ("queue_full", queue_full)):
            self.spans[name] += count
            self._dropped[name] += count
        if any(self._dropped.values()) and time.monotonic() - self._dropped_told_s >= REPEAT_S:
            self._dropped_told_s = time.monotonic()
            self._log.add("warning", log_line("spans dropped", **self._dropped))
            self._log.flush()
            self._dropped = dict.fromkeys(self._dropped, 0)


class _Child:
    """The process that exports. first: the frame with its settings. limit_s: of one export."""

    def __init__(self, first: bytes, limit_s: float) -> None:
        self._first = first
        self._limit_s = limit_s
        self._process: Process | None = None

    async def export(self, frame: bytes) -> str:
        """Returns what went wrong; empty if nothing did. Raises OSError, FrameError."""
        if self._process is None and (problem := await self._start()):
            return problem
        return await self._send(frame, self._limit_s)

    async def _start(self) -> str:
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shardbroker.telemetry", stdin=PIPE, stdout=PIPE)
        return await self._send(self._first, START_S)

    async def _send(self, frame: bytes, limit_s: float) -> str:
        """Sends a frame and returns the answer. The process is killed without one."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                self._process.stdin.write(frame)
                await self._process.stdin.drain()
                head = await self._process.stdout.readexactly(HEAD_BYTES)
                return str(cbor2.loads(await self._process.stdout.readexactly(length_in(head))))
        except TimeoutError:
            await self.end()
            return f"no outcome within {limit_s:g} s; the process that exports was ended"
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):  # the last of uvloop: its end of the pipe is closed
            await self.end()
            return "the process that exports has ended; see standard error"

    async def end(self) -> None:
        """Kills the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
