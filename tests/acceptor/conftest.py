"""An acceptor in a process of its own, with the test as all of its workers."""

import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from acceptor.handover import receive_one
from acceptor.main import run
from shardbroker.config.cluster import Cluster
from shardbroker.config.flows import Flows
from shardbroker.config.gateways import Gateways
from shardbroker.config.listeners import Listener, ZoneLimiter
from shardbroker.config.settings import Durability
from shm.counters import Counters, ProcessState
from shm.roles import ROLES, Cores, lay_places
from shm.topology import ListenerSockets, Topology

WAIT_S = 20.0
"""For anything that is to happen soon."""


class FakeBroker:
    """One acceptor, `workers` fake workers whose states and channels the test holds. Context manager.

    `descriptors` is the acceptor's limit of open files; below 0, how many it may open beyond those it has.
    """

    def __init__(self, workers: int = 2, listener: dict[str, Any] | None = None, descriptors: int = 0, **mqtt: Any) -> None:
        entrance = Listener(**(listener or {}))
        limits = {"idle_timeout": 15.0, "max_packet_size": 1 << 20, "limiter": ZoneLimiter()}
        process = SimpleNamespace(workers=workers, acceptors=1)
        settings = SimpleNamespace(
            process=process, mqtt=SimpleNamespace(**limits | mqtt), listeners={"default": entrance}, cluster=Cluster(),
            durability=Durability(), flows=Flows(), gateways=Gateways(),
        )
        self._stack = ExitStack()
        with ExitStack() as cleanup:
            listening = cleanup.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
            listening.setblocking(False)
            self.address: tuple[str, int] = listening.getsockname()
            self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(workers)]
            self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.notices = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for pair in (*self.pairs, self.control, self.notices):
                for end in pair:
                    cleanup.enter_context(end)
                    end.setblocking(False)
            self.topology = Topology(
                instance=f"test{uuid4().hex[:8]}",
                runtime_dir=Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="shardbroker-test-"))),
                data_dir=Path("/nonexistent"),
                places=lay_places(ROLES, settings, Cores((0,), (0,))),
                ring_bytes=1 << 16,
                doorbells=(),
                channels={
                    "handover": (tuple(ends(pair) for pair in self.pairs),),
                    "control": ((ends(self.control),),),
                    "notices": ((ends(self.notices),),),
                },
                parse_listener=Listener.model_validate,
                listeners=(ListenerSockets("default", 0, entrance, (listening.fileno(),), "", self.address[1]),),
                settings=settings,
                node_id=7,
            )
            self.counters = Counters.create(self.topology.counters_name, len(self.topology.places))
            cleanup.callback(self.counters.unlink)
            for worker in range(workers):
                self.counters.set_state(worker, ProcessState.READY)
            self.process = multiprocessing.get_context("fork").Process(target=_run, args=(self.topology, descriptors))
            self.process.start()
            cleanup.callback(self._end)
            wait_until(lambda: self.state() == ProcessState.READY)
            self._stack = cleanup.pop_all()

    def __enter__(self) -> "FakeBroker":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def state(self) -> int:
        return int(self.counters.state(self.topology.slot_of("acceptor")))

    def count(self, name: str) -> int:
        return int(self.counters.of(self.topology.slot_of("acceptor"))[name])

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, timeout=WAIT_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def receive(self, worker: int, timeout_s: float = WAIT_S) -> Any:
        """The next Handover to this worker; fails if none comes."""
        deadline = time.monotonic() + timeout_s
        while (handover := self.try_receive(worker)) is None:
            assert time.monotonic() < deadline, f"nothing was handed to worker {worker}"
            time.sleep(0.002)
        return handover

    def try_receive(self, worker: int) -> Any:
        return receive_one(self.pairs[worker][1].fileno())

    def nothing_for(self, worker: int) -> bool:
        return self.try_receive(worker) is None

    def terminate(self) -> int | None:
        """SIGTERM; the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(WAIT_S)
        return self.process.exitcode


def _run(topology: Topology, descriptors: int) -> None:
    _close_what_the_tests_have_open(topology)
    if descriptors < 0:
        # The limit is on numbers, and those of the test process have holes: so many free ones, the epoll descriptor's first.
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        free = [number for number in range(max(used) + 2 - descriptors) if number not in used]
        descriptors = free[-descriptors] + 1
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    run(topology, 0)


def _close_what_the_tests_have_open(topology: Topology) -> None:
    """An acceptor has what its supervisor gives it; this one would count all that other tests of this process left open."""
    handed = {end for senders in topology.channels.values() for pairs in senders for pair in pairs for end in pair}
    handed |= {number for sockets in topology.listeners for number in sockets.descriptors}
    for link in Path("/proc/self/fd").iterdir():
        number = int(link.name)
        with suppress(OSError):  # the directory's own is closed already
            if number > 2 and number not in handed and not os.readlink(link).startswith("pipe:"):  # multiprocessing waits at one
                os.close(number)


def ends(pair: tuple[socket.socket, socket.socket]) -> tuple[int, int]:
    return pair[0].fileno(), pair[1].fileno()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeBroker]]:
    """fake(workers=2, idle_timeout=0.3, listener={...}): a FakeBroker that ends with the test."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(FakeBroker(*args, **settings))
