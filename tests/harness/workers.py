"""Whole workers in the process of a test, without acceptors or a supervisor: passes are called one by one.

Rings, routes and journals are real, and sockets are handed over as acceptors do.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acceptor.handover import encode_header, send_one
from shardbroker.config import load
from shardbroker.mqtt.packets import Connect
from shardbroker.stores.registry import Registry
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.harness.broker import client_id_on

__all__ = ["Workers", "take", "workers_in_process"]

RECEIVED_MAX = 1 << 20
"""Bytes of one read of a client's socket, and of its send buffer."""


@dataclass
class Workers:
    """Workers that serve, by number."""

    topology: Any
    workers: list[Any]
    ends: list[socket.socket] = field(default_factory=list)

    def connect(self, worker: int, name: str) -> socket.socket:
        """Returns the socket of a client of a worker that has sent CONNECT; its id begins with `name`."""
        end, handed_over = socket.socketpair()
        self.ends.append(end)
        with handed_over:
            for one in (end, handed_over):
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVED_MAX)
            header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
            assert send_one(self.topology.sending_ends("handover")[worker], handed_over.fileno(), b"", header)
        end.sendall(Connect(4, client_id_on(worker, len(self.workers), name).encode()).encode(4))
        return end

    def turn(self, passes: int = 1) -> None:
        """Runs passes of all workers, in turn."""
        for _ in range(passes):
            for worker in self.workers:
                worker.one_pass(0)


def take(end: socket.socket) -> bytes:
    """Returns what a client has received, without waiting."""
    try:
        return end.recv(RECEIVED_MAX)
    except BlockingIOError:
        return b""


@contextmanager
def workers_in_process(data_dir: Path, options: Sequence[str] = (), count: int = 2, serve: bool = True) -> Iterator[Workers]:
    """Yields workers without durability that serve, unless told otherwise; `options` are settings as KEY=VALUE."""
    fixed = [f"process.data_dir={data_dir}", f"process.workers={count}", "process.acceptors=1", "durability.level=none"]
    topology = lay_out(load(None, {}, [*fixed, "listeners.default.bind=127.0.0.1:0", *options]).settings, [0])
    try:
        counters, epochs = Counters.attach(topology.counters_name), Epochs.attach(topology.epochs_name)
        routes = RouteTable(topology.routes_dir)
        together = Workers(
            topology,
            [
                assemble(
                    topology, number, counters, routes, None, epochs, Registry(topology.registry_dir(number), create=True),
                    Inbox.attach(topology.inbox_name(number)), MemoryWatch(counters, number, count, 0),
                )
                for number in range(count)
            ],
        )  # fmt: skip
        for worker in together.workers if serve else ():
            worker.serve()
        try:
            yield together
        finally:
            for end in together.ends:
                end.close()
        routes.close()
    finally:
        tear_down(topology)
