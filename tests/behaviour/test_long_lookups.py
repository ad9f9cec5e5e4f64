"""Look-ups that take many passes: a message from another worker does not wait for those of all publishers here."""

import socket
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
from tests.overload.attacks import crossed_filters

LEVELS, PUBLISHERS, WORKERS = 11, 20, 2
TOPIC = b"/".join([b"a"] * LEVELS)
PASSES_MAX = 40
"""Of the worker of the subscriber. One look-up takes some 20 of its ring's share; all before it in the queue take 80."""


def test_a_message_from_a_ring_does_not_wait_for_all_look_ups_before_it(tmp_path: Path) -> None:
    options = [f"process.data_dir={tmp_path}", f"process.workers={WORKERS}", "process.acceptors=1", "durability.level=none"]
    options += ["listeners.default.bind=127.0.0.1:0", "mqtt.max_subscriptions=0"]
    topology = lay_out(load(None, {}, options).settings, [0])
    ends = []
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

        def connect(worker: int, name: str) -> socket.socket:
            end, handed_over = socket.socketpair()
            with handed_over:
                handed_over.setblocking(False)
                header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
                assert send_one(topology.sending_ends("handover")[worker], handed_over.fileno(), b"", header)
            end.setblocking(False)
            end.sendall(Connect(4, client_id_on(worker, WORKERS, name).encode()).encode(4))
            ends.append(end)
            return end

        subscriber, far = connect(0, "subscriber"), connect(1, "far")
        near = [connect(0, f"near{number}x") for number in range(PUBLISHERS)]
        filters = [(filter.encode(), 0) for filter in crossed_filters(LEVELS)]
        for start in range(0, len(filters), 256):
            subscriber.sendall(Subscribe(start + 1, filters[start : start + 256]).encode(4))
            for _ in range(10):
                workers[0].one_pass(0)
        workers[1].one_pass(0)
        assert subscriber.recv(1 << 20)
        for number, end in enumerate(near):
            end.sendall(Publish(TOPIC + b"/near%d" % number, b"", 0).encode(4))
        workers[0].one_pass(0)
        far.sendall(Publish(TOPIC + b"/far", b"over the ring", 0).encode(4))
        for _ in range(200):
            workers[1].one_pass(0)
        passes, received = 0, b""
        while b"over the ring" not in received and passes < 10 * PASSES_MAX:
            workers[0].one_pass(0)
            passes += 1
            try:
                received += subscriber.recv(1 << 20)
            except BlockingIOError:
                pass
        assert passes <= PASSES_MAX, f"{passes} passes"
        routes.close()
    finally:
        for end in ends:
            end.close()
        tear_down(topology)
