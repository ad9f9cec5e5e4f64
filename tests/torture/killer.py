"""Kills processes of a broker that it started itself, at random moments, and starts the broker again when the tree is gone.

Each place in the tree has a plan of its own: some kills in a row, each soon after the one before was made good (or while it is),
then a rest in which the place grows old enough to be restarted at once again. A process is known by its parent and its name, and
killed through a pidfd: no other process can be hit.

Moves (a worker is replaced, the broker is upgraded) have places, too, and some are interrupted by a kill; see mover.py.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

from tests.harness import Broker
from tests.torture.checker import REPLACE, RESIZE, UPGRADE, History, Kind
from tests.torture.mover import MOVES, Mover, children
from tests.torture.power import Power

STOP = "stop"
"""SIGTERM: all processes end one after another, with what they still have for each other."""
KINDS = ("worker", "acceptor", "manager", "supervisor", "everything", STOP)
POWER = "power"
"""The whole machine, as far as the broker can tell; at level `machine` only."""
BURSTS = (1, 1, 1, 2, 3, 4)
"""Kills in a row."""
PAUSES_S = ((0.0, 0.01), (0.0, 0.1), (0.05, 0.4), (0.4, 1.5))
"""Ranges of the pause within a burst, from the kill on: the first hit a process that is just being started."""
RESTS_S = (5.2, 8.0)
"""Range of the rest. The supervisor restarts a process at once if it was 5 s old."""
WHOLE = ("supervisor", "everything", STOP, POWER)
WHOLE_RESTS_S = (6.0, 16.0)
POWER_RESTS_S = (0.3, 2.5)
MOVE_RESTS_S = {REPLACE: (0.5, 4.0), UPGRADE: (4.0, 10.0), RESIZE: (1.0, 5.0)}
REFUSED_S = 0.2
"""Behind a move that was refused."""
FEWEST_MOVES = 2
"""Of a run with moves, however quickly its kills are done: a run without one would show nothing about them."""
TRAPPED = 0.5
"""How many kills wait for an acknowledgement, for TRAP_S at most."""
TRAP_S = 0.2
INTERRUPTED = 0.25
"""How many starts of the whole broker are killed too."""
INTERRUPTED_S = (0.05, 1.0)
POLL_S = 0.01
STOP_S = 60.0
"""For a clean stop."""
HEAL_S = 30.0
"""For all processes to be there again in the end."""


def processes(supervisor: int) -> dict[str, int]:
    """Pids of the children by name, "worker-0"; those that have no name yet are left out."""
    return dict(children(supervisor))


@contextlib.contextmanager
def aimed_at(supervisor: int, place: str) -> Iterator[Callable[[], None] | None]:
    """Gives what sends SIGKILL to the process in this place, quickly; None if there is none."""
    pid = processes(supervisor).get(place)
    try:
        handle = os.pidfd_open(pid) if pid is not None else -1
    except ProcessLookupError:
        handle = -1
    try:
        # Looked at once more: now that we have a handle on it, its number cannot become another process's unnoticed.
        there = handle >= 0 and processes(supervisor).get(place) == pid
        yield (lambda: signal.pidfd_send_signal(handle, signal.SIGKILL)) if there else None
    finally:
        if handle >= 0:
            os.close(handle)


class Killer(threading.Thread):
    """Kills and moves until `kills` are done (0: without end) or `stop` is called, then waits until the broker is whole again.

    A mover makes FEWEST_MOVES at least, so there may be more than `kills`.
    `error` holds what went wrong in this thread.
    """

    def __init__(
        self,
        broker: Broker,
        history: History,
        seed: int,
        kinds: tuple[str, ...],
        kills: int,
        acceptors: int,
        resize: bool = False,
        power: Power | None = None,
        mover: Mover | None = None,
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.broker, self.history, self.kills = broker, history, kills
        self.error: BaseException | None = None
        self._resize = resize
        self._power = power
        self._mover = mover
        self._acceptors = acceptors
        self._stopping = threading.Event()
        self._rng = random.Random(f"{seed}/killer")
        self._places = {
            place: self._rng.uniform(0.0, 3.0)
            for kind in kinds
            for place in {
                "worker": [f"worker-{number}" for number in range(broker.workers)],
                "acceptor": [f"acceptor-{number}" for number in range(acceptors)],
                REPLACE: [f"{REPLACE}-{number}" for number in range(broker.workers)],
            }.get(kind, [kind])
        }
        """Each place, and when its next kill is due."""
        self._left_in_burst = dict.fromkeys(self._places, 0)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            start = time.monotonic()
            self._places = {place: start + delay_s for place, delay_s in self._places.items()}
            while not self._stopping.is_set() and not self._is_done():
                place = min(self._places, key=self._places.__getitem__)
                self._stopping.wait(max(0.0, self._places[place] - time.monotonic()))
                if not self._stopping.is_set():
                    self._act(place)
            self._heal()
        except BaseException as error:
            self.error = error

    def _is_done(self) -> bool:
        if not self.kills or self.history.done < self.kills:
            return False
        return self._mover is None or len(self.history.moves) >= FEWEST_MOVES

    def _act(self, place: str) -> None:
        """One kill or move, if there is something to kill, and the moment of the next."""
        if place.startswith((*MOVES, RESIZE)):
            self._places[place] = time.monotonic() + self._move(place)
            return
        if not self._kill(place):
            self._places[place] = time.monotonic() + POLL_S
            return
        if place in WHOLE:
            self._start_again()
            pause_s = self._rng.uniform(*(POWER_RESTS_S if place == POWER else WHOLE_RESTS_S))
        else:
            self._left_in_burst[place] = (self._left_in_burst[place] or self._rng.choice(BURSTS)) - 1
            pause_s = self._rng.uniform(*(self._rng.choice(PAUSES_S) if self._left_in_burst[place] else RESTS_S))
        self._places[place] = time.monotonic() + pause_s

    def _move(self, place: str) -> float:
        """Replaces or upgrades; returns the rest until the next time."""
        assert self._mover is not None and self.broker.process is not None
        if self.broker.process.poll() is not None:
            self._bury()
            return REFUSED_S
        known = len(self.history.kills)
        if place == UPGRADE:
            moved = self._mover.upgrade(self._fell)
        elif place == RESIZE:
            moved = self._mover.resize(self._fell)
        else:
            moved = self._mover.replace(int(place.removeprefix(f"{REPLACE}-")), self._fell)
        if any(victim == "supervisor" for _, victim in self.history.kills[known:]):
            self._start_again()
        return self._rng.uniform(*MOVE_RESTS_S[place.partition("-")[0]]) if moved else REFUSED_S

    def _bury(self) -> None:
        """The supervisor has ended by itself."""
        assert self.broker.process is not None
        self.history.fault(Kind.CRASH, "supervisor", f"exit code {self.broker.process.returncode}: {self._last_words()}")
        self._start_again()

    def _fell(self, victim: str, kill: Callable[[], None]) -> None:
        """Kills what has the name of a victim."""
        outage = self.history.falls(victim)
        with contextlib.suppress(ProcessLookupError):
            kill()
        if victim not in WHOLE:
            self.history.fell(outage)
        self.history.killed(victim)

    def _kill(self, place: str) -> bool:
        """False if there is nothing to kill at the moment."""
        assert self.broker.process is not None
        if self.broker.process.poll() is not None:
            self._bury()
            return False
        if place == "supervisor":
            self._strike(place, self.broker.process.kill)
        elif place == STOP:
            self._strike(place, self.broker.process.terminate)
            self._await_end()
        elif place == POWER:
            assert self._power is not None
            self._strike(place, self._power.switch_off)
            self.history.killed(f"{POWER} ({self._power.cut(self._rng)})")
            return True
        elif place == "everything":
            self._strike(place, lambda: os.killpg(self.broker.pid, signal.SIGKILL))
        else:
            with aimed_at(self.broker.pid, place) as kill:
                if kill is None:
                    return False
                self._strike(place, kill)
        self.history.killed(place)
        return True

    def _await_end(self) -> None:
        assert self.broker.process is not None
        code = self.broker.process.wait(STOP_S)
        if code:
            self.history.fault(Kind.CRASH, "supervisor", f"exit code {code} of a clean stop: {self._last_words()}")

    def _strike(self, place: str, kill: Callable[[], None]) -> None:
        """Now; or when a client sees the next acknowledgement: nothing may hang on what the broker meant to do right after it."""
        done, lock = threading.Event(), threading.Lock()

        def kill_once() -> None:
            with lock:
                if not done.is_set():
                    done.set()
                    outage = self.history.falls(place)
                    with contextlib.suppress(ProcessLookupError):
                        kill()
                    if place not in WHOLE:
                        self.history.fell(outage)

        if self._rng.random() < TRAPPED:
            self.history.trap = kill_once
            done.wait(TRAP_S)
            self.history.trap = None
        kill_once()

    def _start_again(self) -> None:
        """Starts the broker on its data directory; now and then it is killed while it starts, and started once more."""
        while self._rng.random() < INTERRUPTED:
            interruption = threading.Timer(self._rng.uniform(*INTERRUPTED_S), self._interrupt)
            interruption.start()
            with contextlib.suppress(AssertionError):  # it says so if it ends before it is ready
                self._start()
            interruption.join()
            self._interrupt()  # if the first time was too early, and there was no process yet
        try:
            self._start()
        except AssertionError as error:
            self.history.fault(Kind.CRASH, "supervisor", f"does not start: {error}")
            raise

    def _start(self) -> None:
        assert self.broker.process is not None
        self.broker.process.wait()
        for outage in self.history.outages:
            self.history.fell(outage)
        if self._resize:
            self.broker.workers = self._rng.randint(1, 4)
            weights = [str(self._rng.randint(1, 3)) for _ in range(self.broker.workers)]
            self.broker.settings["process.worker_weights"] = ",".join(weights)
        self.broker.start()

    def _interrupt(self) -> None:
        process = self.broker.process
        if process is not None and process.poll() is None:
            self._fell("supervisor", process.kill)

    def _last_words(self) -> str:
        return " / ".join(line.strip() for line in self.broker.output[-5:])

    def _heal(self) -> None:
        """Until every place has a process that lives."""
        assert self.broker.process is not None
        if self.broker.process.poll() is not None:
            self._start_again()
        deadline = time.monotonic() + HEAL_S
        places = {"manager", *(f"worker-{number}" for number in range(self.broker.workers))}
        places |= {f"acceptor-{number}" for number in range(self._acceptors)}
        while missing := places - processes(self.broker.pid).keys():
            if time.monotonic() > deadline:
                self.history.fault(Kind.STUCK, "supervisor", f"not there after {HEAL_S:g} s: {', '.join(sorted(missing))}")
                return
            time.sleep(0.1)
