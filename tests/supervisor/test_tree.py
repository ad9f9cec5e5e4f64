"""The process tree, with processes that do nothing: start, restart, back-off, drain, and what is left behind."""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from shardbroker.config import load
from shardbroker.supervisor import StartError
from shardbroker.supervisor.child import BACKOFF_MAX_S, YOUNG_S, Child
from shardbroker.supervisor.layout import lay_out, lock_data_dir, tear_down
from shardbroker.supervisor.signals import StopSignals
from shm.cleanup import forget_left_over
from shm.roles import ROLES, Place
from shm.topology import ROLES_FILE

pytestmark = pytest.mark.own_broker

SHARED_DIR = Path("/dev/shm")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 15.0
USUAL = ("clients can connect", "dashboard is disabled", "sessions kept", "documentation", "broker stops", "broker stopped")


def leftovers(data_dir: Path) -> list[Path]:
    instance = sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    return list(SHARED_DIR.glob(f"shardbroker-{instance}*"))


class Tree:
    """tests.supervisor.dummy as a process of its own, or a program like it; a context manager that cleans up in any case."""

    def __init__(self, settings: tuple[str, ...] = (), program: str = "tests.supervisor.dummy", **behaviour: str) -> None:
        self._program = program
        self.data_dir = Path(tempfile.mkdtemp(prefix="shardbroker-test-"))
        self._given = {
            "data_dir": str(self.data_dir),
            "set": ["listeners.default.bind=127.0.0.1:0", "process.workers=2", "process.acceptors=2", *settings],
            "behaviour": {title.replace("_", "-"): what for title, what in behaviour.items()},
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def __enter__(self) -> "Tree":
        self.process = subprocess.Popen(
            [sys.executable, "-m", self._program, json.dumps(self._given)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        for path in leftovers(self.data_dir):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert " ready: " in line, self.errors()
        return line

    def errors(self) -> str:
        """All lines, without those of a start and a stop that go well."""
        lines = os.pread(self._errors.fileno(), 1 << 20, 0).decode().splitlines(keepends=True)
        return "".join(line for line in lines if not any(f" INFO supervisor: {phrase} " in line for phrase in USUAL))

    def events(self, *words: str) -> list[list[str]]:
        """Noted lines with these words, split."""
        file = self.data_dir / "events"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if all(word in line for word in words)]

    def pid(self, title: str) -> int:
        return int(self.events(title, "start")[-1][2])

    def until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.01)

    def end(self, number: int | None = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Sends a signal and waits; asserts that nothing is left. Returns the exit code."""
        children = psutil.Process(self.process.pid).children() if self.process.poll() is None else []
        if number is not None:
            self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=timeout_s)
        assert "descriptors left: {}" in output, output + self.errors()
        assert not leftovers(self.data_dir)
        assert not any(child.is_running() for child in children)
        return self.process.returncode


@pytest.fixture
def tree() -> Iterator[Callable[..., Tree]]:
    with ExitStack() as stack:
        yield lambda *settings, **behaviour: stack.enter_context(Tree(settings, **behaviour))


def test_ready_line_and_pinning(tree: Callable[..., Tree]) -> None:
    running = tree("listeners.six.bind=[::1]:0", "process.workers=3")
    line = running.ready()
    pattern = r"shardbroker \S+ ready: tcp://127\.0\.0\.1:\d+, tcp://\[::1\]:\d+, workers 3, acceptors 2, pid (\d+)\n"
    match = re.fullmatch(pattern, line)
    assert match and int(match[1]) == running.process.pid
    usable = sorted(os.sched_getaffinity(0))
    for number in range(3):
        assert running.events(f"worker-{number}", "start")[0][3:] == [str(usable[number % len(usable)])]
    assert running.events("manager", "start")[0][3:] == [str(core) for core in usable]
    assert psutil.Process(running.pid("worker-1")).name() == "sb-worker-1"
    assert (running.data_dir / "lock").read_text() == f"{running.process.pid}\n"
    assert leftovers(running.data_dir)
    assert running.end() == 0
    assert running.errors() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_drain_takes_acceptors_then_workers_then_the_manager(tree: Callable[..., Tree], terminal: bool) -> None:
    running = tree()
    running.ready()
    if terminal:  # an interrupt from the keyboard reaches every process of the group
        os.killpg(running.process.pid, signal.SIGINT)
    assert running.end(None if terminal else signal.SIGTERM) == 0
    assert [line[0].split("-")[0] for line in running.events("stop")] == ["acceptor"] * 2 + ["worker"] * 2 + ["manager"]
    assert running.errors() == ""


@pytest.mark.parametrize("title", ["worker-1", "acceptor-0", "manager"])
def test_a_killed_process_is_restarted_and_the_others_go_on(tree: Callable[..., Tree], title: str) -> None:
    running = tree()
    running.ready()
    pids = {name: running.pid(name) for name in ("worker-0", "worker-1", "acceptor-0", "acceptor-1", "manager")}
    os.kill(pids[title], signal.SIGKILL)
    running.until(lambda: len(running.events(title, "start")) == 2, 2.0)
    assert {name for name, pid in pids.items() if running.pid(name) != pid} == {title}
    assert f'ERROR supervisor: process died process={title} pid={pids[title]} cause="signal SIGKILL" age=' in running.errors()
    assert running.end() == 0
    assert len(running.errors().splitlines()) == 1


@pytest.mark.parametrize("title", ["worker-1", "acceptor-0", "manager"])
def test_a_process_that_is_ordered_to_end_has_not_died(tree: Callable[..., Tree], title: str) -> None:
    running = tree()
    running.ready()
    pid = running.pid(title)
    os.kill(pid, signal.SIGTERM)
    running.until(lambda: len(running.events(title, "start")) == 2)
    line = rf"\S+ INFO supervisor: process ended process={title} pid={pid} age=\S+s restart_in=0s\n"
    assert re.fullmatch(line, running.errors())
    assert running.end() == 0
    assert len(running.errors().splitlines()) == 1


def test_a_process_that_ends_without_an_order_has_died(tree: Callable[..., Tree]) -> None:
    running = tree(worker_0="deserter")
    running.until(lambda: len(running.events("worker-0", "start")) > 2)
    assert "ERROR supervisor: process died process=worker-0 pid=" in running.errors() and "exit code 0" in running.errors()
    assert "process ended" not in running.errors()
    assert running.end() == 0


def test_a_process_that_dies_again_and_again_waits_longer_each_time(tree: Callable[..., Tree]) -> None:
    running = tree()
    running.ready()
    for count in range(1, 6):
        os.kill(running.pid("worker-0"), signal.SIGKILL)
        running.until(lambda count=count: len(running.events("worker-0", "start")) == count + 1)  # type: ignore[misc]
    delays = re.findall(r"restart_in=(\S+)s", running.errors())
    assert delays == ["0", "0.1", "0.2", "0.4", "0.8"]
    assert len(running.events("worker-1", "start")) == 1
    assert running.end() == 0


def test_a_process_that_is_ready_and_dies_is_restarted_for_ever(tree: Callable[..., Tree]) -> None:
    running = tree(worker_0="lame")
    running.until(lambda: len(running.events("worker-0", "start")) > 5)
    assert "exit code 4" in running.errors()
    assert running.process.poll() is None
    assert running.end() == 0


def test_a_process_that_never_starts_ends_the_broker(tree: Callable[..., Tree]) -> None:
    running = tree(worker_1="stillborn")
    assert running.end(None) == 1
    assert len(running.events("worker-1", "start")) == 5
    assert running.errors().count("process=worker-1 pid=") == 5
    assert running.errors().endswith("cannot start: worker-1 failed 5 times before it was ready; see the log lines above\n")
    assert len(running.events("stop")) == len(running.events("start")) - 5


def test_a_process_that_does_not_stop_is_killed(tree: Callable[..., Tree]) -> None:
    running = tree("process.drain_timeout=300ms", worker_0="stubborn")
    running.ready()
    pid = running.pid("worker-0")
    assert running.end() == 0
    assert running.errors().endswith(f"supervisor: process killed after drain timeout process=worker-0 pid={pid}\n")
    assert len(running.errors().splitlines()) == 1
    assert running.events("manager", "stop")


def test_a_second_signal_hurries(tree: Callable[..., Tree]) -> None:
    running = tree("process.drain_timeout=1h", worker_0="stubborn", worker_1="stubborn")
    running.ready()
    running.process.send_signal(signal.SIGTERM)
    running.until(lambda: len(running.events("stop")) == 2)
    time.sleep(0.2)
    assert running.process.poll() is None
    assert running.end(timeout_s=5) == 0


def test_a_signal_while_it_starts_is_a_clean_end(tree: Callable[..., Tree]) -> None:
    for _ in range(3):
        running = tree()
        running.until(lambda running=running: bool(running.events("start")))  # type: ignore[misc]
        assert running.end() == 0


def test_backoff_ends_at_its_longest_and_begins_anew_after_a_long_life() -> None:
    child = Child(Place(ROLES[0], 0, 0))
    delays = [child.plan_restart(0.1) for _ in range(10)]
    assert delays == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])
    assert delays[-1] == BACKOFF_MAX_S
    assert child.plan_restart(YOUNG_S) == 0
    assert child.plan_restart(0.1) == pytest.approx(0.1)


def descriptors() -> int:
    gc.collect()  # those of earlier tests, which would go while this one runs
    return len(os.listdir("/proc/self/fd"))


def test_layout_that_fails_leaves_nothing(tmp_path: Path) -> None:
    binds = ["listeners.a.bind=127.0.0.1:0", "listeners.b.bind=no-such-host.invalid:1883"]
    settings = load(None, None, binds, {"process.data_dir": str(tmp_path)}).settings
    before = descriptors()
    with pytest.raises(StartError, match=r"listener b: cannot listen on no-such-host\.invalid:1883"):
        lay_out(settings, [0])
    assert descriptors() == before
    assert not leftovers(tmp_path)


def test_layout_cleans_up_after_a_broker_that_was_killed_but_keeps_its_rings(tmp_path: Path) -> None:
    """What was under way in them goes into the journals first; at level `none` there are none."""
    options = {"process.data_dir": str(tmp_path), "listeners.default.bind": "127.0.0.1:0"}
    settings = load(None, None, ["process.workers=1"], options).settings
    before = descriptors()
    first = lay_out(settings, [0])
    second = lay_out(settings, [0])  # as after kill -9: nobody tore the first one down
    try:
        assert second.instance == first.instance
        mode = second.runtime_dir.stat().st_mode & 0o777
        assert mode == 0o700
        assert all(path.stat().st_mode & 0o077 == 0 for path in leftovers(tmp_path))
        assert not first.left_over
        (old,) = second.left_over
        assert len(old.inboxes) == 3
        assert old.roles == ("worker", "manager", "flows")
    finally:
        tear_down(second)
        tear_down(first)
    assert leftovers(tmp_path) == [second.runtime_dir] and [*second.runtime_dir.iterdir()] == [old.directory]
    assert {str(path) for path in old.directory.iterdir()} == {*old.inboxes, str(old.spill_dir), str(old.directory / ROLES_FILE)}
    third = lay_out(settings, [0])
    tear_down(third)
    assert third.left_over == (old,)
    forget_left_over(third.left_over)
    tear_down(lay_out(settings, [0]))
    assert not leftovers(tmp_path)
    assert descriptors() == before


def test_layout_at_level_none_keeps_no_rings(tmp_path: Path) -> None:
    options = {"process.data_dir": str(tmp_path), "listeners.default.bind": "127.0.0.1:0"}
    settings = load(None, None, ["process.workers=1", "durability.level=none"], options).settings
    first, second = lay_out(settings, [0]), lay_out(settings, [0])
    tear_down(second)
    tear_down(first)
    assert not second.left_over and not leftovers(tmp_path)


def test_data_directory_is_locked_and_named(tmp_path: Path) -> None:
    lock = lock_data_dir(tmp_path / "new" / "dir")
    try:
        with pytest.raises(StartError, match=f"in use by the broker with pid {os.getpid()}"):
            lock_data_dir(tmp_path / "new" / "dir")
        assert [(tmp_path / "new" / name).stat().st_mode & 0o777 for name in ("dir", "dir/lock")] == [0o700, 0o600]
    finally:
        os.close(lock)
    os.close(lock_data_dir(tmp_path / "new" / "dir"))
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="file"):
        lock_data_dir(tmp_path / "file")


@pytest.mark.parametrize("holds_s", [0.3, 5.0])
def test_what_a_killed_supervisor_leaves_is_waited_for_but_not_for_ever(
    holds_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbroker.supervisor.layout.ENDING_S", 2.0)
    program = f"""if True:
        import os, sys, time
        from pathlib import Path
        from shardbroker.supervisor.layout import lock_data_dir
        lock_data_dir(Path({str(tmp_path)!r}))
        if os.fork():
            os._exit(0)
        time.sleep({holds_s})
    """
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        process.wait()
        try:
            if holds_s < 2.0:
                os.close(lock_data_dir(tmp_path))
            else:
                with pytest.raises(StartError, match=f"in use by the broker with pid {process.pid}"):
                    lock_data_dir(tmp_path)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_signals_count_and_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), descriptors()
    with StopSignals() as signals:
        signals.clear()
        with signals.held():
            # To this thread: those that collect the output of other tests' brokers have nothing blocked.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            assert signals.count == 0
        assert signals.count == 1
        signals.clear()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.count == 2
        assert os.read(signals.fileno(), 1)
    assert before == (signal.getsignal(signal.SIGTERM), descriptors())
