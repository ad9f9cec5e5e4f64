"""Sessions outlive the segments that they began in: they are written anew, and what is older is removed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.journal.layout import segment_paths, segment_start
from tests.behaviour.test_durability import stay
from tests.harness import Broker, Client, Publish, client_id_on, until
from tests.harness.segments import journal_bytes
from tests.harness.waiting import stopped
from tests.harness.wire import Puback, publish
from tests.journal.samples import checkpoints

pytestmark = pytest.mark.own_broker
WORKERS = 2
SETTINGS = {"journal.segment_bytes": "128KB", "journal.cycle_bytes": "256KB", "journal.retention.bytes": "1MB"}
SESSION = {"session_expiry_interval": 1000}
OLD = 100


def test_old_queued_messages_survive_while_segments_are_removed_and_everything_is_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, SETTINGS, Path(name)) as broker:
        old = [client_id_on(worker, WORKERS, f"old{worker}x") for worker in range(WORKERS)]
        busy = [client_id_on(worker, WORKERS, f"busy{worker}x") for worker in range(WORKERS)]
        for client_id in old:
            with Client(broker.address, 5, client_id, clean=False, properties=SESSION) as client:
                client.subscribe("old", 2)
        with Client(broker.address, 5) as publisher:
            for number in range(OLD):
                publisher.publish("old", b"%d" % number, 1 + number % 2)
        for _ in range(2):
            for client_id in busy:  # megabytes through the journal of each worker
                with Client(broker.address, 5, client_id, clean=False, properties=SESSION, timeout=10) as client:
                    client.subscribe(client_id, 1)
                    for number in range(1500):
                        client.send_raw(publish(client_id, bytes(1000), qos=1, packet_id=1 + number))
                        if number % 20 == 19:
                            for _ in range(40):  # the message, and its acknowledgement
                                assert isinstance(client.recv(), Publish | Puback)
            kill_and_start(broker)
        for worker in range(WORKERS):
            journal = broker.data_dir / "journal" / str(worker)
            assert segment_start(segment_paths(journal)[0]) > 0, "the first segment is still there"
            assert journal_bytes(journal) < 3 << 20
            assert (journal / "recover-from").exists()
        for client_id in old:
            with Client(broker.address, 5, client_id, clean=False, properties=SESSION) as client:
                assert [int(client.expect(Publish).payload) for _ in range(OLD)] == list(range(OLD))
                client.expect_none()


@pytest.fixture(params=["process", "machine"])
def short_cycles(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    settings = {"durability.level": request.param, "journal.cycle_bytes": "64KB", "journal.capture": ["captured"]}
    with Broker(WORKERS, settings, data_dir=tmp_path / "data") as broker:
        yield broker


def test_cycles_go_on(short_cycles: Broker) -> None:
    """One for each 64 KB of the journal, as long as it grows."""
    with stay(short_cycles, client_id_on(0, WORKERS, "s")) as client:
        client.subscribe("own", 1)
    with Client(short_cycles.address, 5, client_id_on(0, WORKERS, "p"), timeout=10) as publisher:
        for _ in range(100):
            publisher.publish("captured", bytes(10_000), 1)  # for no session
    assert 10 <= checkpoints(short_cycles.data_dir / "journal" / "0") <= 16


def test_a_worker_killed_behind_a_cycle_has_all_its_sessions(short_cycles: Broker) -> None:
    """What is older may go when all sessions have been written, and not when they are about to be."""
    many = 100  # a few MB, so that a cycle takes a while
    names = [client_id_on(0, WORKERS, f"s{number}x") for number in range(many)]
    for name in names:
        with stay(short_cycles, name) as client:
            client.subscribe(f"own/{name}", 1)
    with Client(short_cycles.address, 5, client_id_on(0, WORKERS, "p"), timeout=10) as publisher:
        for name in names:
            publisher.publish(f"own/{name}", bytes(40_000), 1)
        note = short_cycles.data_dir / "journal" / "0" / "recover-from"
        until(note.exists)
        (worker,) = short_cycles.child_pids("sb-worker-0")
        before = note.read_bytes()
        while note.read_bytes() == before:
            publisher.publish("captured", bytes(10_000), 1)  # for no session
        short_cycles.kill_process(worker)
    for name in names:
        with stay(short_cycles, name) as client:
            assert client.connack is not None and client.connack.session_present, name
            assert client.expect(Publish).payload == bytes(40_000)


def test_a_ring_of_before_is_not_taken_again_behind_a_cycle(short_cycles: Broker) -> None:
    """A QoS 2 message lay in it when everything was killed; then the worker that took it was killed, behind its first cycle."""
    far, long = client_id_on(1, WORKERS, "far"), client_id_on(1, WORKERS, "long")
    with stay(short_cycles, far) as client:
        client.subscribe("far", 2)
    with stay(short_cycles, long) as client:
        client.subscribe("long", 1)
    with stay(short_cycles, client_id_on(0, WORKERS, "p")) as publisher:
        publisher.publish("long", bytes(64 << 10), 1)  # so that a cycle is due when the broker is there again
        with stopped(short_cycles.child_pids("sb-worker-1")[0]):
            publisher.publish("far", b"once", 2, wait=False)
            publisher.recv(0.5)  # PUBREC, at level process
            kill_and_start(short_cycles)
    with stay(short_cycles, far) as client:
        assert client.expect_messages(b"once")
        client.ping()
    until((short_cycles.data_dir / "journal" / "1" / "recover-from").exists)
    (worker,) = short_cycles.child_pids("sb-worker-1")
    short_cycles.kill_process(worker)
    with stay(short_cycles, far) as client:
        client.expect_none()


def kill_and_start(broker: Broker) -> None:
    broker.kill()
    broker.start()
