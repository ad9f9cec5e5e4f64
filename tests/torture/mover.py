"""Replaces workers of a broker, changes their number, and upgrades it, with kills in the middle of some: no client may notice but
by such a kill.

A kill in the middle is drawn over a time in which the last move of its kind has ended, so that it hits any step of it.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardbroker.control import Control, ControlError
from tests.handoff.installation import Installation
from tests.harness import Broker
from tests.torture.checker import REPLACE, RESIZE, UPGRADE, History, Kind

__all__ = ["MOVES", "Mover", "children"]

MOVES = (REPLACE, UPGRADE)
"""Of a number of workers that stays: a connection that ends is known to be of a certain worker. RESIZE is beside them."""
WORKERS = range(1, 5)
"""Numbers of workers that are set."""
INTERRUPTED = 0.4
"""How many moves are interrupted by a kill."""
BEYOND = 1.1
"""Kills are drawn up to so many times the length of the last move."""
REPLACES_S, UPGRADES_S, RESIZES_S = 0.5, 5.0, 1.0
"""Length of a move, before one was seen."""
APPEARS_S = 3.0
"""For a successor to be there, once it was asked for."""
LONGEST_S = 120.0
"""For a move to end, one way or the other."""
POLL_S = 0.001
ANOTHER_VERSION = 0.5
"""How many upgrades find another version installed."""
HARMLESS = (
    "not every process of the broker is ready", "does not serve", "is being replaced", "is being reloaded", "is under way",
    "rings of a killed broker are still being read", "are being replayed", "not finished within", "another upgrade has begun",
    "the successor did not start in time", "clients would be disconnected", "a worker does not serve", "have not ended yet",
)  # fmt: skip
"""Reasons that the documentation has for a refusal: they depend on the moment."""


def children(supervisor: int) -> list[tuple[str, int]]:
    """Names, "worker-0", and pids of the children, the oldest first; those that have no name yet are left out."""
    found = []
    with contextlib.suppress(OSError):  # the supervisor has ended
        for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith("sb-"):
                    found.append((name.removeprefix("sb-"), pid))
    return found


class Mover:
    """Of one broker, which has to run from `code`."""

    def __init__(self, broker: Broker, history: History, rng: random.Random, directory: Path) -> None:
        """directory: empty, for an installation that is changed in place."""
        self.broker, self.history = broker, history
        self._rng = rng
        self._code = Installation(directory, "0.1.1")
        self._versions = 1
        self._length_s = {REPLACE: REPLACES_S, UPGRADE: UPGRADES_S, RESIZE: RESIZES_S}
        broker.program = (str(self._code.program),)
        broker.environment = self._code.environment | {
            name: value for name, value in broker.environment.items() if name not in self._code.environment
        }

    def replace(self, worker: int, strike: Callable[[str, Callable[[], None]], None]) -> bool:
        """Replaces a worker. strike: kills a named victim by a call. Returns whether something has happened."""
        title = f"worker-{worker}"
        before = [pid for name, pid in children(self.broker.pid) if name == title]
        if len(before) != 1:
            return False
        begin_s, kills = self.history.clock(), len(self.history.kills)
        successor = -1
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._call, "workers replace", worker=worker)
            if self._rng.random() < INTERRUPTED:
                victim = self._rng.choices(("predecessor", "successor", "supervisor", "manager"), (4, 4, 1, 1))[0]
                successor = self._await_successor(title, before[0], call)
                if successor >= 0:
                    self._pause(REPLACE)
                    if victim in ("predecessor", "successor"):
                        pid = before[0] if victim == "predecessor" else successor
                        self._strike(f"{victim}-{worker}", pid, strike)
                    else:
                        self._strike(victim, dict(children(self.broker.pid)).get(victim, 0), strike)
            problem = call.result()
        struck = len(self.history.kills) > kills
        if self.broker.process is None or self.broker.process.poll() is not None:
            self.history.tried(begin_s)
            return struck
        self._await(lambda: sum(name == title for name, _ in children(self.broker.pid)) < 2, f"{title}: still being replaced")
        self.history.tried(begin_s)
        if not problem:
            self.history.moved(f"{REPLACE}-{worker}", begin_s)
            if not struck:
                self._length_s[REPLACE] = self.history.clock() - begin_s
        else:
            self._note(problem, struck, begin_s)
        return struck or not problem

    def upgrade(self, strike: Callable[[str, Callable[[], None]], None]) -> bool:
        """Upgrades the broker, to what is installed or to another version. Returns whether something has happened."""
        if self._rng.random() < ANOTHER_VERSION:
            self._versions += 1
            self._code.install(f"0.1.{self._versions}")
        begin_s, kills = self.history.clock(), len(self.history.kills)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._upgrade)
            if self._rng.random() < INTERRUPTED:
                self._pause(UPGRADE)
                if not call.done():
                    name, pid = self._rng.choice([*children(self.broker.pid), ("supervisor", 0)])
                    self._strike(name, pid, strike)
            problem = call.result()
        self.history.tried(begin_s)
        struck = len(self.history.kills) > kills
        if not problem:
            self.history.moved(UPGRADE, begin_s)
            if not struck:
                self._length_s[UPGRADE] = self.history.clock() - begin_s
        else:
            self._note(problem, struck, begin_s)
        return struck or not problem

    def resize(self, strike: Callable[[str, Callable[[], None]], None]) -> bool:
        """Changes the number of workers. Returns whether something has happened."""
        wanted = self._rng.choice([number for number in WORKERS if number != self._workers()])
        begin_s, kills = self.history.clock(), len(self.history.kills)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._set_workers, wanted)
            if self._rng.random() < INTERRUPTED:
                self._pause(RESIZE)
                if not call.done():
                    name, pid = self._rng.choice([*children(self.broker.pid), ("supervisor", 0)])
                    self._strike(name, pid, strike)
            problem = call.result()
        self.history.tried(begin_s)
        struck = len(self.history.kills) > kills
        if not problem:
            self.broker.workers = wanted
            self.history.moved(RESIZE, begin_s)
            if not struck:
                self._length_s[RESIZE] = self.history.clock() - begin_s
        else:
            self._note(problem, struck, begin_s)
        return struck or not problem

    def _workers(self) -> int:
        return len({name for name, _ in children(self.broker.pid) if name.startswith("worker-")})

    def _set_workers(self, workers: int) -> str:
        return self._call("workers set", workers=workers) or self._followed("workers setting")

    def _upgrade(self) -> str:
        return self._call("upgrade", drain=False) or self._followed("upgrade-state")

    def _followed(self, verb: str) -> str:
        """Returns the problem, or an empty text, once what was begun has ended."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            if self.broker.process is None or self.broker.process.poll() is not None:
                return "the supervisor has ended"
            with contextlib.suppress(ControlError, OSError):  # the manager starts again
                with Control(self.broker.data_dir, timeout_s=LONGEST_S) as control:
                    state: dict[str, Any] = control.call(verb)
                if state["phase"] != "moving":
                    return "" if state["phase"] == "done" else f"{verb} {state['phase']}: {state.get('problem', '')}"
            time.sleep(0.05)
        return f"{verb}: it does not end"

    def _call(self, verb: str, **given: Any) -> str:
        """Returns the problem, or an empty text."""
        try:
            with Control(self.broker.data_dir, timeout_s=LONGEST_S) as control:
                control.call(verb, **given)
        except (ControlError, OSError) as error:
            return str(error)
        return ""

    def _note(self, problem: str, struck: bool, begin_s: float) -> None:
        """A move that has not been made: for a kill, for a reason of the moment, or by a fault."""
        if "was not replaced" in problem:
            reasons = [line for line in self.broker.output if " worker not replaced " in line]
            problem = reasons[-1].partition("worker not replaced ")[2].strip() if reasons else problem
        if struck:
            self.history.unmoved["a kill in the middle"] += 1
        elif harmless := next((reason for reason in HARMLESS if reason in problem), ""):
            self.history.unmoved[harmless] += 1
        elif self._tree_was_torn(begin_s):
            self.history.unmoved["a kill just before"] += 1
        else:
            self.history.fault(Kind.MOVE, "supervisor", problem)

    def _tree_was_torn(self, begin_s: float) -> bool:
        """Whether a process was killed so short a time before that it need not be there again."""
        return any(outage.end_s > begin_s - LONGEST_S / 8 for outage in self.history.outages)

    def _await_successor(self, title: str, before: int, call: "Future[str]") -> int:
        """Returns the pid of a second process of the place, or -1."""
        deadline = time.monotonic() + APPEARS_S
        while time.monotonic() < deadline and not call.done():
            for name, pid in children(self.broker.pid):
                if name == title and pid != before:
                    return pid
            time.sleep(POLL_S)
        return -1

    def _pause(self, kind: str) -> None:
        time.sleep(self._rng.uniform(0.0, BEYOND * self._length_s[kind]))

    def _strike(self, victim: str, pid: int, strike: Callable[[str, Callable[[], None]], None]) -> None:
        """Kills that child, or the supervisor."""
        assert self.broker.process is not None
        if victim == "supervisor":
            strike(victim, self.broker.process.kill)
        else:
            with _handle(self.broker.pid, pid) as handle:
                if handle < 0:
                    return
                strike(victim, lambda: signal.pidfd_send_signal(handle, signal.SIGKILL))
        self.history.cut_short += 1

    def _await(self, done: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not done():
            if time.monotonic() > deadline:
                self.history.fault(Kind.STUCK, "supervisor", problem)
                return
            time.sleep(POLL_S)


@contextlib.contextmanager
def _handle(supervisor: int, pid: int) -> Iterator[int]:
    """Gives a pidfd of a child; -1 if it is none any more."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield -1
        return
    try:
        yield handle if any(pid == one for _, one in children(supervisor)) else -1
    finally:
        os.close(handle)
