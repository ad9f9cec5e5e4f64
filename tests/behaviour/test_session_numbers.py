"""Numbers of sessions are given once: exclusive subscriptions, shared groups and journals know sessions by them."""

import socket
import time
from pathlib import Path

from acceptor.handover import encode_header, send_one
from shardbroker.config import Settings
from shardbroker.journal import open_journal
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.mqtt.packets import Connect
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.recovery.replay import Replay
from shardbroker.worker.recovery.sessions import record_sessions
from shardbroker.worker.sansio import SansIoRouter
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.sim.simulator import MemoryRoutes

STAY = {0x11: 1000}
"""Properties of a CONNECT: Session Expiry Interval, seconds."""


def test_a_worker_that_starts_in_the_second_of_its_predecessor_gives_other_numbers(tmp_path: Path) -> None:
    """Two sessions had one number, and both held an exclusive subscription, when a worker was killed twice in a second."""
    data_dir = tmp_path / "data"
    process = {"data_dir": data_dir, "workers": 1, "acceptors": 1}
    settings = Settings.model_validate({"process": process, "listeners": {"default": {"bind": "127.0.0.1:0"}}})
    topology = lay_out(settings, [0])
    try:
        counters = Counters.attach(topology.counters_name)
        routes, retained = RouteTable(topology.routes_dir), RetainedStore(topology.retained_dir)
        time.sleep(1 - time.time() % 1)  # a second has just begun: both start in it
        now_ms = int(time.time()) * 1000
        worker = assemble(
            topology, 0, counters, routes, retained, Epochs.attach(topology.epochs_name),
            Registry(topology.registry_dir(0), create=True), Inbox.attach(topology.inbox_name(0)), MemoryWatch(counters, 0, 1, 0),
        )  # fmt: skip
        predecessor = SansIoRouter(settings, MemoryRoutes(), 0, now_ms)
        journal = open_journal(tmp_path / "journal")
        predecessor.keep_journal(JournalRecorder(journal))
        for name in (b"a", b"b"):
            predecessor.connect("127.0.0.1:1").receive(Connect(5, name, clean_start=True, properties=STAY).encode(5))
        predecessor.advance(now_ms)
        journal.close()
        replay = Replay(worker, lambda client_id: True)
        replay.read(tmp_path / "journal", 0)
        record_sessions(replay)
        known = {session.key for session in worker.router.sessions.values()}
        assert len(known) == 2
        worker.serve()
        client, handed_over = socket.socketpair()
        with client, handed_over:
            handed_over.setblocking(False)
            header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
            assert send_one(topology.sending_ends("handover", 0)[0], handed_over.fileno(), b"", header)
            client.sendall(Connect(5, b"new", clean_start=True).encode(5))
            for _ in range(3):
                worker.one_pass(0)
        assert worker.router.sessions[b"new"].key not in known
        assert len({session.key for session in worker.router.sessions.values()}) == 3
        routes.close()
        retained.close()
    finally:
        tear_down(topology)
