"""A fixed load on two whole workers in one process, for counting instructions: `python -m tests.perf.worker_load QOS BATCHES`.

    publisher -- socket -- worker 0 -- ring -- worker 1 -- socket -- subscriber

Sockets are handed over as acceptors do, rings and routes are real. Passes are called in turn, and Unix sockets deliver at once
where TCP may leave it to another thread of the kernel, so that every run does the same. Each batch is MESSAGES messages of 64 bytes
with their acknowledgements. Durability is `none`: tests.perf.core_load counts the journal. System calls are not counted,
since valgrind counts a process and not the kernel.
"""

import socket
import sys
import tempfile
import time
from pathlib import Path

from acceptor.handover import encode_header, send_one
from shardbroker.config import load
from shardbroker.mqtt.packets import Connect, Publish, Subscribe
from shardbroker.stores.registry import Registry
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.harness import client_id_on
from tests.perf.core_load import ANSWERS, MESSAGES, acknowledgements

WORKERS = 2
TURNS = 4
"""Passes of both workers for each step of an exchange: all that a step leads to has arrived after three."""
RECEIVED_MAX = 1 << 20


class Ends:
    """A client's socket, and what it has received."""

    def __init__(self, channel: int) -> None:
        self.socket, handed_over = socket.socketpair()
        with handed_over:
            for end in (self.socket, handed_over):
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVED_MAX)
            header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
            assert send_one(channel, handed_over.fileno(), b"", header)

    def take(self) -> bytes:
        try:
            return self.socket.recv(RECEIVED_MAX)
        except BlockingIOError:
            return b""


def main(qos: int, batches: int, data_dir: Path) -> None:
    """Publishes and delivers MESSAGES messages a batch."""
    options = [f"process.data_dir={data_dir}", f"process.workers={WORKERS}", "process.acceptors=1", "durability.level=none"]
    options += ["listeners.default.bind=127.0.0.1:0", "mqtt.max_inflight=1000", "mqtt.max_awaiting_rel=1000"]
    topology = lay_out(load(None, {}, options).settings, [0])
    try:
        counters, epochs = Counters.attach(topology.counters_name), Epochs.attach(topology.epochs_name)
        routes = RouteTable(topology.routes_dir)
        workers = [
            assemble(
                topology, number, counters, routes, None, epochs, Registry(topology.registry_dir(number), create=True),
                Inbox.attach(topology.inbox_name(number)), MemoryWatch(counters, number, WORKERS, 0),
            )
            for number in range(WORKERS)
        ]  # fmt: skip
        for worker in workers:
            worker.serve()

        def turn() -> None:
            for _ in range(TURNS):
                for worker in workers:
                    worker.one_pass(0)

        publisher, subscriber = (Ends(channel) for channel in topology.sending_ends("handover", 0))
        for end, client_id in (
            (publisher, client_id_on(0, WORKERS, "publisher")),
            (subscriber, client_id_on(1, WORKERS, "subscriber")),
        ):
            end.socket.sendall(Connect(4, client_id.encode()).encode(4))
        turn()
        subscriber.socket.sendall(Subscribe(1, [(b"bench/topic", qos)]).encode(4))
        turn()
        assert subscriber.take() and publisher.take()
        published = b"".join(
            Publish(b"bench/topic", b"x" * 64, qos, packet_id=i + 1 if qos else 0).encode(4) for i in range(MESSAGES)
        )
        released = acknowledgements(0x62)[: 4 * MESSAGES] * (qos == 2)
        prepared = {first_byte: acknowledgements(first_byte) for first_byte in (0x40, 0x50, 0x70)}
        answers = [prepared[first_byte] for first_byte in ANSWERS[qos]]
        for batch in range(batches):
            publisher.socket.sendall(published)
            turn()
            if released:
                publisher.socket.sendall(released)
                turn()
            got = len(subscriber.take())
            assert got >= MESSAGES * 64, f"{got} bytes of {MESSAGES} messages"
            start = batch * MESSAGES % 65_535 * 4
            for answer in answers:
                subscriber.socket.sendall(answer[start : start + 4 * MESSAGES])
                turn()
            publisher.take()
            subscriber.take()
        routes.close()
    finally:
        tear_down(topology)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(directory))
