"""The follower beside a real broker: workers and broker are killed, and there is another number of workers."""

import tempfile
from pathlib import Path

import pytest

from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.reader import Damage, journal_directories
from shardbroker.journal.schema import Kind
from tests.harness import Broker, Client, client_id_on, until

pytestmark = pytest.mark.own_broker
SETTINGS = {"journal.capture": ["fed/#"], "journal.segment_bytes": "64KB"}
MESSAGES = 300


class Consumer:
    """Stores its places as a process does that is killed after each read."""

    def __init__(self, journals: Path) -> None:
        self.journals = journals
        self.places: dict[str, Place | None] = {}
        self.payloads: list[bytes] = []
        self.damages: list[Damage] = []

    def read(self) -> None:
        names = {path.name.partition(".")[0] for path in self.journals.iterdir() if path.is_dir()}
        for name in sorted(names | {path.name for path in journal_directories(self.journals)}):
            follower = Follower(self.journals / name, self.places.get(name), kinds=[Kind.MESSAGE], flags=16)
            while not follower.at_end:
                for part in follower.read():
                    if isinstance(part, Batch):
                        self.payloads += [record[4] for record in part.records]
                    else:
                        self.damages.append(part)
            self.places[name] = follower.place

    def expect(self, payloads: list[bytes]) -> None:
        def arrived() -> bool:
            self.read()
            return len(self.payloads) >= len(payloads)

        until(arrived)
        assert sorted(self.payloads) == sorted(payloads)
        assert not [damage for damage in self.damages if damage.error]


def publish(broker: Broker, workers: int, label: str) -> list[bytes]:
    """Acknowledged messages, on each worker."""
    payloads = []
    for worker in range(workers):
        with Client(broker.address, 5, client_id_on(worker, workers, f"p{worker}x")) as client:
            for number in range(MESSAGES):
                payloads.append(f"{label} {worker} {number}".encode().ljust(100))
                client.publish("fed/t", payloads[-1], 1)
    return payloads


def test_kills_and_another_number_of_workers() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        expected: list[bytes] = []
        consumer = Consumer(Path(name) / "journal")
        with Broker(2, SETTINGS, Path(name)) as broker:
            expected += publish(broker, 2, "first")
            consumer.expect(expected)
            broker.kill_process(broker.child_pids("worker-1")[0])
            expected += publish(broker, 2, "worker killed")
            consumer.expect(expected)
            expected += publish(broker, 2, "not read before the kill")
            broker.kill()
            broker.start()
        for workers in (1, 2):
            with Broker(workers, SETTINGS, Path(name)) as broker:
                expected += publish(broker, workers, f"{workers} workers")
                consumer.expect(expected)
