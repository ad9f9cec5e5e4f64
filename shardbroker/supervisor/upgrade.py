"""`ctl upgrade`: the broker moves to the code that is installed now; docs/design/0016-handover.md.

    old program    Trial: the new program is run as a child, with the state of this one, and answers what would happen
                   execve, only after such an answer
    new program    Upgrade: workers are replaced, then the other processes restarted, each READY before the next

Nothing here waits: the supervisor calls `look` in each of its passes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardbroker import __version__
from shardbroker.logs.phrases import Line, log_line
from shardbroker.supervisor.child import Child
from shm.counters import Counters, ProcessState
from shm.requests import DRAINED, LEFT, MOVED, REFUSED, RESTARTED
from shm.roles import ACCEPTOR, API, FLOWS, INTEGRATIONS, LINK, MANAGER, WORKER

__all__ = ["CONTINUES", "Trial", "Upgrade", "own_program", "parts_of"]

CONTINUES = "SHARDBROKER_CONTINUES"
"""Variable of the environment: `check:` or `run:`, and the descriptor of the state. The arguments are those of the first start."""
WAITS, RUNS, DONE, FAILED = "waits", "runs", "done", "failed"
TRIAL_S = 60.0
"""Longest time in which the new program answers; it is killed then."""
ANSWER_MAX = 1 << 20
"""Most bytes of the answer, and of its errors, that are read."""
READY_S = 60.0
"""Longest time without progress of a process that ends or starts; a recovery makes progress with each block."""
ATTEMPTS, AGAIN_S = 3, 1.0
"""Attempts to move a worker, and the seconds between two."""
PASS_S = 0.1
"""Between two looks at what is under way."""
ORDER = (WORKER, ACCEPTOR, INTEGRATIONS, FLOWS, LINK)
"""Roles in the order in which they move. All others follow, then API and MANAGER, through which the progress is read."""
LAST = (API, MANAGER)


def own_program() -> list[str]:
    """Returns the command that runs the installed code with the arguments of this process.

    A script that is executed itself is executed again, since its first line names the interpreter of its version.
    """
    arguments = sys.orig_argv
    if len(arguments) == len(sys.argv) + 1 and arguments[1] == sys.argv[0] and os.access(sys.argv[0], os.X_OK):
        with suppress(OSError), open(sys.argv[0], "rb") as script:
            if script.read(2) == b"#!":
                return [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    return [sys.executable, *arguments[1:]]


def parts_of(
    children: Sequence[Child], moves_workers: bool, moves_roles: Container[str], stays: Callable[[Child], str],
    stays_behind: Callable[[Child], str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns what would happen with each process, in the order of an upgrade.

    moves_roles: roles besides workers whose processes hand over their state; stays: why a process has to be left, or empty;
    stays_behind: which clients of a process are disconnected though it is moved, or empty."""
    parts = []
    for child in sorted(children, key=_turn):
        way, reason, disconnects = RESTARTED, "", False
        if child.place.role.name == WORKER:
            way = MOVED if moves_workers else DRAINED
            reason = "" if moves_workers else "the installed version has another format of the hand-over"
        elif child.place.role.name.startswith("gateway-"):
            if not child.place.role.moves:
                way, reason = DRAINED, "clients of this gateway are connected to its process, which has no hand-over"
            elif child.place.role.name not in moves_roles:
                way, reason = DRAINED, "the installed version has another format of the hand-over"
            else:
                way, reason = MOVED, stays_behind(child)
                disconnects = bool(reason)
        elif problem := stays(child):
            way, reason = LEFT, problem
        parts.append({
            "part": child.title, "slot": child.slot, "way": way, "reason": reason, "state": WAITS, "disconnects": disconnects,
        })  # fmt: skip
    return parts


def _turn(child: Child) -> tuple[int, int]:
    name = child.place.role.name
    rank = ORDER.index(name) if name in ORDER else len(ORDER) + 1 + LAST.index(name) if name in LAST else len(ORDER)
    return rank, child.slot


class Trial:
    """The new program, run with the state of this one."""

    def __init__(self, program: Sequence[str], memory: int, environment: Mapping[str, str]) -> None:
        """Starts it. Raises OSError. The memfd stays the caller's."""
        self._deadline = time.monotonic() + TRIAL_S
        self._output, self._errors = os.memfd_create("answer", os.MFD_CLOEXEC), os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors, pass_fds=(memory,),
                env={**environment, CONTINUES: f"check:{memory}"},
            )  # fmt: skip
        except BaseException:
            self._close()
            raise

    def answer(self) -> dict[str, Any] | None:
        """Returns the answer, or None: it is not there yet. {"way", "reason", "version", ...}"""
        code = self._process.poll()
        if code is None and time.monotonic() < self._deadline:
            return None
        if code is None:
            self.end()
            return {"way": REFUSED, "reason": f"the installed program does not answer within {TRIAL_S:g} s", "version": ""}
        output, errors = _text(self._output), _text(self._errors)
        self._close()
        with suppress(ValueError, IndexError):
            found = json.loads(output.splitlines()[-1])
            if isinstance(found, dict) and {"way", "reason", "version", "moves_workers"} <= found.keys():
                return found
        last = (errors.strip().splitlines() or ["no output"])[-1]
        return {"way": REFUSED, "reason": f"the installed program fails with exit code {code}: {last}"[:500], "version": ""}

    def end(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        os.close(self._output)
        os.close(self._errors)


def _text(memory: int) -> str:
    return os.pread(memory, ANSWER_MAX, 0).decode(errors="replace")


@dataclass
class Upgrade:
    """The part of an upgrade that follows execve, in the new program. `parts` is in the order of the upgrade."""

    before: str
    """Version of the earlier program."""
    parts: list[dict[str, Any]]
    pids: Mapping[int, int]
    """Slot to the pid of the process that still has the earlier code."""
    problem: str = ""
    ended: bool = False
    _at: int = 0
    _begun: float = -1.0
    """When the current part was begun; negative: it is not."""
    _again_at: float = 0.0
    _attempts: int = 0
    _obstacle: str = ""
    _beat: int = 0
    _progress_at: float = 0.0
    _lines: list[tuple[str, Line]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Returns the progress for display."""
        phase = "moving" if not self.ended else "failed" if self.problem else "done"
        return {"phase": phase, "before": self.before, "version": __version__, "problem": self.problem, "parts": self.parts}

    def take_lines(self) -> list[tuple[str, Line]]:
        """Returns (level, line) for the log, each once."""
        lines, self._lines = self._lines, []
        return lines

    def look(
        self, children: Sequence[Child], counters: Counters, replace: Callable[[Child], str], stays: Callable[[Child], str],
        longest_drain_s: float,
    ) -> None:  # fmt: skip
        """Proceeds with the current part.

        replace: starts a successor of a process, and returns a problem or an empty text; stays: as of parts_of().
        """
        now = time.monotonic()
        by_slot = {child.slot: child for child in children}
        while not self.ended:
            part = self.parts[self._at] if self._at < len(self.parts) else None
            if part is None:
                self._end("")
                return
            child = by_slot.get(part["slot"])
            if child is None or part["way"] == LEFT:
                self._next(part, DONE)
                continue
            if self._begun < 0:
                if part["way"] == RESTARTED and (reason := stays(child)):
                    part |= {"way": LEFT, "reason": reason}
                    self._next(part, DONE)
                    continue
                self._begun, self._attempts, part["state"] = now, 0, RUNS
            if self._is_done(child, counters):
                self._next(part, DONE)
                continue
            problem = self._go_on(part, child, counters, now, replace, longest_drain_s)
            if problem:
                part["reason"] = problem
                self._next(part, FAILED)
                self._end(f"{part['part']}: {problem}")
            return

    def _is_done(self, child: Child, counters: Counters) -> bool:
        """Whether a process with the new code serves in the place, however it came to be there."""
        return (
            child.process is not None and child.successor is None and child.process.pid != self.pids.get(child.slot)
            and counters.state(child.slot) == ProcessState.READY
        )  # fmt: skip

    def _go_on(
        self, part: dict[str, Any], child: Child, counters: Counters, now: float, replace: Callable[[Child], str], drain_s: float
    ) -> str:
        """Returns why the part has failed, or an empty text."""
        if child.process is None or child.process.pid != self.pids.get(child.slot):
            # It has ended, and the tree starts another one.
            beat = counters.heartbeat(child.slot)
            if beat != self._beat:
                self._beat, self._progress_at = beat, now
            late = now > max(self._begun + drain_s, self._progress_at) + READY_S
            return f"not ready, and without progress for {READY_S:g} s; see the log" if late else ""
        if part["way"] == MOVED:
            if child.successor is not None or now < self._again_at:
                return ""
            if self._attempts == ATTEMPTS:
                return f"it continues with the earlier code: {self._obstacle or 'the log has the reason'}"
            self._attempts += 1
            self._again_at = now + AGAIN_S
            self._obstacle = replace(child)
            return ""
        if self._attempts == 0:
            self._attempts = 1
            child.terminate()
        elif self._attempts == 1 and now > self._begun + drain_s:
            self._attempts = 2
            child.kill()
        return "does not end" if now > self._begun + drain_s + READY_S else ""

    def _next(self, part: dict[str, Any], state: str) -> None:
        part["state"] = state
        self._at, self._begun, self._again_at = self._at + 1, -1.0, 0.0
        level = "INFO" if state == DONE else "ERROR"
        fields = {"reason": part["reason"]} if part["reason"] else {}
        self._lines.append((level, log_line("upgrade of a process", process=part["part"], way=part["way"], state=state, **fields)))

    def _end(self, problem: str) -> None:
        self.ended, self.problem = True, problem
        versions = {"before": self.before, "version": __version__}
        if problem:
            self._lines.append(("ERROR", log_line("upgrade not complete", reason=problem, **versions)))
        else:
            self._lines.append(("INFO", log_line("upgrade complete", **versions)))
