"""etcd as a child of the process `cluster`: started, watched, started again, and stopped with it.

Its data is in `<data_dir>/etcd`. It is killed when its parent dies, which its data outlives as it outlives a power cut.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shardbroker.config.cluster import Cluster, core_members, core_url, etcd_program
from shardbroker.config.listeners import parse_address
from shardbroker.logs.phrases import Line, log_line
from shardbroker.membership.core_file import etcd_dir, has_data, own_member, read_plan

__all__ = ["ManagedEtcd", "etcd_command"]

YOUNG_S = 5.0
"""An etcd that dies younger than this is started again with a growing delay."""
BACKOFF_S = 0.1, 5.0
"""Delay of the second start in a row, doubled up to the longest. The first one is immediate."""
STOP_S = 5.0
"""Longest time to end after SIGTERM."""
QUOTA_BYTES = 256 << 20
"""Most bytes of its database: a cluster has some KB."""
COMPACTION = "1h"
"""How long earlier revisions are kept."""
LINES_MAX, LINES_S = 20, 60.0
"""Most lines of etcd's log that are passed on in a time."""
LINE_MAX = 8192
"""Bytes of a line that are looked at."""
TEXT_MAX = 300
"""Characters of a text of etcd in a log line."""
LEVELS = {"warn": "warning", "error": "error", "dpanic": "error", "panic": "error", "fatal": "error"}
EARLY = " I | "
"""In a line about its start of an etcd whose log is not set up yet."""
REMOVED = "has been permanently removed", "member is not in the cluster", "removed from the cluster"
"""In the text of an etcd that finds itself removed."""

Report = Callable[[str, Line], None]
"""Takes the level and the text of a log line."""


def etcd_command(program: str, cluster: Cluster, node_name: str, data_dir: Path, *more: str) -> list[str]:
    """Returns the command of this node's etcd."""
    own, plan = own_member(cluster, node_name), read_plan(data_dir)
    bind_host, bind_port = parse_address(cluster.core.bind)
    peer = core_url(cluster, own.host, own.port + 1)
    first = ",".join(f"{one.name}={core_url(cluster, one.host, one.port + 1)}" for one in core_members(cluster))
    command = [
        program, "--name", node_name, "--data-dir", str(etcd_dir(data_dir)),
        "--listen-client-urls", core_url(cluster, bind_host, bind_port),
        "--advertise-client-urls", core_url(cluster, own.host, own.port),
        "--listen-peer-urls", core_url(cluster, bind_host, bind_port + 1), "--initial-advertise-peer-urls", peer,
        "--initial-cluster", plan.initial or first, "--initial-cluster-state", "existing" if plan.initial else "new",
        "--initial-cluster-token", cluster.name, "--quota-backend-bytes", str(QUOTA_BYTES),
        "--auto-compaction-mode", "periodic", "--auto-compaction-retention", COMPACTION,
        "--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn", *more,
    ]  # fmt: skip
    if cluster.tls.enable:
        tls = cluster.tls
        for prefix, trusted in ("", "--trusted-ca-file"), ("peer-", "--peer-trusted-ca-file"):
            command += [f"--{prefix}cert-file", tls.certfile, f"--{prefix}key-file", tls.keyfile or tls.certfile]
            command += [f"--{prefix}client-cert-auth", trusted, tls.cacertfile]
    return command


def _environment() -> dict[str, str]:
    """Returns etcd's environment: options that not all versions have, and no other option."""
    own = {"ETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK": "true", "ETCD_PRE_VOTE": "true", "ETCD_ENABLE_GRPC_GATEWAY": "false"}
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD")} | own


class ManagedEtcd:
    """The etcd of this node."""

    def __init__(self, cluster: Cluster, node_name: str, data_dir: Path, report: Report) -> None:
        self._cluster, self._node_name, self._data_dir, self._report = cluster, node_name, data_dir, report
        self._process: Process | None = None
        self._reason = ""
        """Last error in its log."""
        self._heard_of_removal = False
        self._lines: list[float] = []
        """When lines of its log were passed on."""
        self._left_out = 0
        self.problem = ""
        """Why it does not run; empty while it does."""
        self.is_removed = False
        """It has ended since the core has removed it."""

    @property
    def is_wanted(self) -> bool:
        """Returns whether this node runs etcd."""
        plan = read_plan(self._data_dir)
        if plan.is_removed:
            return False
        named = self._node_name in {one.name for one in core_members(self._cluster)}
        return named or bool(plan.initial) or has_data(self._data_dir)

    @property
    def pid(self) -> int:
        """Returns the process id; 0: it does not run."""
        return self._process.pid if self._process is not None else 0

    async def run(self, *more: str) -> None:
        """Keeps etcd running until this is cancelled or etcd finds that the core has removed it, and ends it then. `more`:
        further arguments."""
        delay_s, self.is_removed = 0.0, False
        while True:
            begun = time.monotonic()
            cause = await self._once(*more)
            if self._heard_of_removal:
                self.is_removed = True
                return
            age_s = time.monotonic() - begun
            delay_s = delay_s if age_s < YOUNG_S else 0.0
            self.problem = f"{cause}: {self._reason}" if self._reason else cause
            fields = {"cause": cause, "reason": self._reason or "none", "age": f"{age_s:.1f}s", "restart_in": f"{delay_s:g}s"}
            self._report("error", log_line("etcd died", **fields))
            await asyncio.sleep(delay_s)
            delay_s = min(BACKOFF_S[1], max(BACKOFF_S[0], 2 * delay_s))

    async def _once(self, *more: str) -> str:
        """Runs etcd to its end, and returns how it ended."""
        self._reason, self._heard_of_removal = "", False
        program = etcd_program()
        if program is None:
            return "the program etcd is not installed: apt install etcd-server"
        launcher = str(Path(__file__).with_name("under_parent.py"))
        command = etcd_command(program, self._cluster, self._node_name, self._data_dir, *more)
        try:
            etcd_dir(self._data_dir).mkdir(mode=0o700, exist_ok=True)
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", launcher, str(os.getpid()), *command,
                stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=_environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return str(error.strerror or error)
        self.problem = ""
        try:
            await self._forward(process)
            code = await process.wait()
            return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        finally:
            await self._end(process)
            self._process = None

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        rest = asyncio.ensure_future(self._forward(process))  # or it would wait for its log to be read
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            self._report("warning", log_line("etcd killed", pid=process.pid, reason="it did not end in time"))
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            rest.cancel()

    # --- its log ----------------------------------------------------------------------------------------------------------

    async def _forward(self, process: Process) -> None:
        """Passes its log on, up to the end of its output."""
        assert process.stdout is not None
        rest = b""
        while block := await process.stdout.read(LINE_MAX):
            *lines, rest = (rest + block).split(b"\n")
            rest = rest[:LINE_MAX]
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").strip()
        if not text or EARLY in text:
            return
        try:
            found = json.loads(text)
            level, message = LEVELS.get(found["level"], "info"), str(found["msg"])
        except (ValueError, KeyError, TypeError):
            found, level, message = {}, "warning", text  # before its log is set up, or of a panic
        error = str(found.get("error", ""))
        self._heard_of_removal |= any(one in f"{message} {error}" for one in REMOVED)
        if level == "error" or not found:
            self._reason = (f"{message}: {error}" if error else message)[:TEXT_MAX]
        if level == "info":
            return
        now = time.monotonic()
        self._lines = [at for at in self._lines if now - at < LINES_S]
        if len(self._lines) >= LINES_MAX:
            self._left_out += 1
            return
        self._lines.append(now)
        if self._left_out:
            self._report("warning", log_line("etcd reports left out", count=self._left_out))
            self._left_out = 0
        self._report(level, log_line("etcd reports", message=message[:TEXT_MAX], error=error[:TEXT_MAX] or "none"))
