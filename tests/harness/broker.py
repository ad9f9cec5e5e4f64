"""Brokers to test: one that is started here with its own data directory, or one that runs elsewhere."""

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import ClassVar

import psutil

from tests.harness.client import Address, Client
from tests.harness.faults import faults
from tests.harness.fork_server import ForkServer
from tests.harness.idle import never_asleep
from tests.harness.wire import Publish

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 110.0
"""Longer than the broker allows itself (`broker stops ... longest=105s`). A process that hangs is killed before, after
`process.drain_timeout`, and that line of the output fails the test."""
GOODBYE_S = 0.05
"""For clients that have just been closed: the broker notices."""
PARTITIONS = 1024
"""Virtual session partitions: partition = crc32(client_id) % 1024, worker = partition % workers."""
SHARED_DIR = Path("/dev/shm")
PROGRAM = (str(Path(sys.executable).with_name("shardbroker")),)
FIRST_PORT, PORTS, PORT_RANGES = 10_000, 5_000, 4
"""Of brokers and of the servers that they are tested with."""


def worker_of(client_id: str, workers: int) -> int:
    """Number of the worker that owns this client id."""
    return zlib.crc32(client_id.encode()) % PARTITIONS % workers


def client_id_on(worker: int, workers: int, prefix: str = "c") -> str:
    """A client id that starts with `prefix` and lands on this worker."""
    return next(name for n in itertools.count() if worker_of(name := f"{prefix}{n}", workers) == worker)


def _ports() -> Iterator[int]:
    """Below those that the kernel gives to outgoing connections, and a range for each process of a parallel run: nobody else takes
    one between two starts of a broker."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % PORT_RANGES
    first = FIRST_PORT + number * PORTS
    at = random.SystemRandom().randrange(PORTS)
    while True:
        yield first + at
        at = (at + 1) % PORTS


_some_ports = _ports()
_fork_server = ForkServer()


def free_port() -> int:
    """One on which nobody listens."""
    for port in itertools.islice(_some_ports, PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port of {PORTS} is free")


class ExternalBroker:
    """A broker that someone else runs. `known` names it if it has a table of known differences."""

    external = True
    workers = 1

    def __init__(self, address: Address) -> None:
        self.address = address
        self.known = self._identify()

    def _identify(self) -> str:
        with Client(self.address, 4, f"identify{os.getpid()}") as probe:
            probe.subscribe("$SYS/broker/version", check=False)
            answer = probe.recv(0.5)
        text = answer.payload.decode() if isinstance(answer, Publish) else ""
        return text.replace(" version ", "-")


class Broker:
    """A shardbroker of its own: a free port, a temporary data directory, a ready line to wait for.

    Context manager. On exit its workers and acceptors must be idle, unless clients are still connected. It is stopped by SIGTERM
    and must exit with code 0, leave no child alive and nothing of its own in /dev/shm. `data_dir` given from outside is kept, for
    restarts.

    Its output must say of no crash (tests.harness.faults), after each test and at the end: a process that a test kills is killed by
    `kill_process`, and other faults that are meant are announced by `expects`.
    """

    started: ClassVar[weakref.WeakSet["Broker"]] = weakref.WeakSet()
    """All that a test may look at; conftest.py does so after each."""

    by_fork: ClassVar[bool] = True
    """Started by the fork server where that makes no difference, not by exec."""

    external = False
    known = ""

    def __init__(
        self,
        workers: int = 3,
        settings: Mapping[str, object] | None = None,
        data_dir: Path | None = None,
        port: int | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.workers = workers
        self.settings = dict(settings or {})
        self.address: Address = ("127.0.0.1", port or free_port())
        self.ready_line = ""
        self.output: list[str] = []
        self.environment = dict(os.environ)
        self.program: tuple[str, ...] = PROGRAM
        self.descriptors: tuple[int, ...] = ()
        """Open in the broker too."""
        self._arguments = arguments
        self._own_dir = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="shardbroker-test-"))
        self.process: subprocess.Popen[str] | None = None
        self._instances: set[str] = set()
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        """Those of the output that are still to be searched for crashes."""
        self._terminated = False
        self._killed: set[int] = set()
        self._expected: list[str] = []

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def command(self) -> list[str]:
        host, port = self.address
        settings = {"api.bind": "disabled", **self.settings}  # only tests of dashboard and REST API have them
        options = [f"--set={key}={value}" for key, value in settings.items()]
        return [
            *self.program,
            "serve",
            f"--listen=tcp://{host}:{port}",
            f"--workers={self.workers}",
            f"--data-dir={self.data_dir}",
            *options,
            *self._arguments,
        ]

    def start(self) -> None:
        """Starts the process and waits for its ready line; raises with its output if it does not come."""
        self.ready_line = ""
        self._terminated = False
        self.process = self._launch()
        lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._collect, args=(self.process, lines), daemon=True)
        self._reader.start()
        Broker.started.add(self)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ready_line:
            try:
                line = lines.get(timeout=0.05)
            except Empty:
                if self.process.poll() is None and time.monotonic() < deadline:
                    continue
                self.kill()
                text = "".join(self.output)
                raise AssertionError(f"broker is not ready: {self.command()}\n{text}") from None
            if " ready: " in line:
                self.ready_line = line.rstrip()
        self._note_shared()

    def _launch(self) -> "subprocess.Popen[str]":
        if self.by_fork and self.program == PROGRAM and _fork_server.forks(self.environment):
            return _fork_server.start(self.command(), self.environment, self.descriptors)
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=self.environment,
            pass_fds=self.descriptors,
        )

    def _collect(self, process: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line)
            self._lines.append(line)
            lines.put(line)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[psutil.Process]:
        """All processes below the supervisor."""
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def child_pids(self, title: str = "") -> list[int]:
        """Pids of the children whose process name contains `title`, such as "worker"."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in child.name():
                    found.append(child.pid)
        return sorted(found)

    def _note_shared(self) -> None:
        """Remembers what this instance has in /dev/shm, by looking at what its processes have mapped."""
        instances: set[str] = set()
        for pid in [self.pid, *(child.pid for child in self.children())]:
            try:
                maps = Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
            instances.update(re.findall(rf"{SHARED_DIR}/(?:.*/)?shardbroker-([0-9a-f]+)", maps))
        self._instances = instances

    def leftovers(self) -> list[Path]:
        """What there is in /dev/shm of this instance."""
        return [path for instance in self._instances for path in SHARED_DIR.glob(f"*{instance}*")]

    def kill_process(self, pid: int) -> None:
        """SIGKILL for a process of the broker; that it died of this is no fault. One that was killed before may be gone by now."""
        with contextlib.suppress(*([ProcessLookupError] if pid in self._killed else [])):
            self._killed.add(pid)
            os.kill(pid, signal.SIGKILL)

    def expects(self, pattern: str) -> None:
        """Faults with this in their text are what the test wants to see."""
        self._expected.append(pattern)

    def check(self) -> None:
        """Asserts that the output says of no crash since the last time."""
        lines = self._lines[:]
        found = [*faults(lines, self._killed, self._expected)]
        del self._lines[: len(lines)]
        assert not found, "the broker's output tells of crashes that the test did not announce:\n" + "".join(found)

    def terminate(self) -> None:
        """SIGTERM, once: a second one, such as from `stop`, would tell the broker to hurry, and to kill what has not ended."""
        if self.process is not None and not self._terminated:
            self._terminated = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM; asserts a clean end. Cleans up in any case."""
        if self.process is None:
            self._clean()
            return
        children = self.children()
        early = self.process.poll()
        spinning: list[str] = []
        try:
            if early is None:
                spinning = [] if self._terminated else self._spinning(children)
                self.terminate()
            code = self.process.wait(STOP_TIMEOUT_S)
            text = "".join(self.output[-50:])
            assert early is None, f"the broker had ended by itself with code {early}\n{text}"
            assert code == 0, f"exit code {code}\n{text}"
            _, alive = psutil.wait_procs(children, timeout=2)
            assert not alive, f"children left behind: {alive}"
            left = {path: self._files(path) for path in self.leftovers() if not self._keeps_records(path)}
            assert not left, f"left in /dev/shm: {left}"
            self._await_output()
            self.check()
            assert not spinning, f"never idle, although no client is connected: {spinning}"
        finally:
            self.kill()
            self._clean()

    def _keeps_records(self, path: Path) -> bool:
        """Whether this is nothing but rings that a node keeps for its next start: its links end behind its workers, and may have
        put a record for one of them there since (`tear_down`)."""
        names = self._files(path)
        return "cluster.enable" in self.settings and bool(names) and all(name.startswith("left-") for name in names)

    @staticmethod
    def _files(path: Path) -> list[str]:
        return [one.name for one in path.iterdir()] if path.is_dir() else [path.name]

    def _spinning(self, children: list[psutil.Process]) -> list[str]:
        """Names of workers and acceptors that never sleep. None while clients are connected: they may have work for them."""
        deadline = time.monotonic() + GOODBYE_S
        while self._connections() != 0:
            if time.monotonic() > deadline:
                return []
            time.sleep(0.005)
        names: dict[int, str] = {}
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if re.match("sb-(worker|acceptor)", child.name()):
                    names[child.pid] = child.name()
        return [names[pid] for pid in never_asleep(names)]

    def _connections(self) -> int | None:
        """Clients that are connected, by the counters of all processes; None if these cannot be read."""
        from shm.counters import Counters

        for instance in self._instances:
            for path in SHARED_DIR.glob(f"shardbroker-{instance}*/counters"):
                with contextlib.suppress(OSError, ValueError):
                    return int(Counters.attach(str(path)).totals()["connections.count"])
        return None

    def kill(self) -> None:
        """SIGKILL for the whole process group that was started here."""
        if self.process is None:
            return
        children = self.children()
        self._killed.update(child.pid for child in children)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(children, STOP_TIMEOUT_S)  # while one is ending, it has the lock of the data directory

    def _await_output(self) -> None:
        """What the process has written is in `output`."""
        if self._reader is not None:
            self._reader.join(STOP_TIMEOUT_S)

    def clear_shared(self) -> None:
        """Nothing of this instance is left in /dev/shm: after `kill`, as if the machine had been switched off."""
        for path in self.leftovers():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _clean(self) -> None:
        self.clear_shared()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)


AnyBroker = Broker | ExternalBroker
