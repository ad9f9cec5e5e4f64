"""Has the figures of the broker sent by OTLP at intervals, by a process of its own (shardbroker/telemetry).

The process is started with the first export, and again after each change of `opentelemetry`. At most one export is under way; a
process that does not answer in time, or that has ended, is replaced at the next one.
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import cbor2

from shardbroker import __version__
from shardbroker.config.opentelemetry import OpenTelemetry
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
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


class Telemetry:
    """gather: returns the figures as lists and tables. `counts`: exports by result, since the manager was started."""

    def __init__(
        self, topology: Topology, settings: OpenTelemetry, gather: Callable[[], Awaitable[list[dict[str, Any]]]], log: Log
    ) -> None:
        self._topology = topology
        self._settings = settings
        self._gather = gather
        self._log = log
        self._changed = asyncio.Event()
        self.counts = {"success": 0, "failure": 0}
        self._failures = 0
        """One after another."""
        self._problem = ""
        self._told_s = 0.0

    @property
    def alarm(self) -> str:
        """What is wrong with exports for some time; empty if nothing is."""
        return self._problem if self._failures >= FAILURES_ALARM else ""

    def configure(self, settings: OpenTelemetry) -> None:
        """Applies settings; an export under way is given up if they differ."""
        if settings != self._settings:
            self._settings = settings
            self._changed.set()

    async def run(self) -> None:
        """Exports until it is cancelled."""
        while True:
            self._changed.clear()
            self._failures, self._problem = 0, ""
            exports = asyncio.create_task(self._export(self._settings))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait((exports, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (exports, changed):
                    task.cancel()
                await asyncio.gather(exports, changed, return_exceptions=True)
            if not self._changed.is_set():
                exports.result()  # an error of this module

    async def _export(self, settings: OpenTelemetry) -> None:
        """Exports with these settings until it is cancelled."""
        if not settings.metrics.enable:
            await asyncio.Event().wait()
        interval_s = settings.metrics.interval
        timeout_s = min(interval_s, EXPORT_S)
        child = _Child(frame_of(self._first_frame(settings, timeout_s)), timeout_s + GRACE_S)
        due_s = time.monotonic()
        try:
            while True:
                due_s = max(due_s + interval_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
                self._note(settings, await self._export_once(child))
        finally:
            await child.end()

    async def _export_once(self, child: "_Child") -> str:
        """Returns what went wrong; empty if nothing did."""
        at_ns = time.time_ns()
        try:
            return await child.export(frame_of({"at_ns": at_ns, "families": await self._gather()}))
        except (OSError, FrameError) as error:
            return str(error)
        except Exception as error:  # of a figure: the manager has other tasks
            return f"{type(error).__name__}: {error}"

    def _first_frame(self, settings: OpenTelemetry, timeout_s: float) -> dict[str, Any]:
        exporter = settings.exporter
        return {
            "url": exporter.metrics_url,
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

    def _note(self, settings: OpenTelemetry, problem: str) -> None:
        """Counts an export; logs a failure, the first and then at intervals, and the success after failures."""
        self.counts["failure" if problem else "success"] += 1
        url = settings.exporter.metrics_url
        if not problem:
            if self._failures:
                self._log.add("info", log_line("metrics exported again", url=url, failures=self._failures))
                self._log.flush()
            self._failures, self._problem = 0, ""
            return
        reason = problem[:REASON_MAX]
        self._failures += 1
        self._problem = f"metrics are not exported to {url}: {reason}"
        if self._failures == 1 or time.monotonic() - self._told_s >= REPEAT_S:
            self._told_s = time.monotonic()
            self._log.add("error", log_line("metrics not exported", url=url, failures=self._failures, reason=reason))
            self._log.flush()


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
