"""Sessions outlive the segments that they began in: they are written anew, and what is older is removed."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from shardbroker.journal.layout import segment_paths, segment_start
from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.wire import Puback, publish

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
            paths = segment_paths(journal)
            assert segment_start(paths[0]) > 0, "the first segment is still there"
            assert sum(path.stat().st_size for path in paths) < 3 << 20
            assert (journal / "recover-from").exists()
        for client_id in old:
            with Client(broker.address, 5, client_id, clean=False, properties=SESSION) as client:
                assert [int(client.expect(Publish).payload) for _ in range(OLD)] == list(range(OLD))
                client.expect_none()


def kill_and_start(broker: Broker) -> None:
    assert broker.process is not None
    os.killpg(broker.pid, signal.SIGKILL)
    broker.process.wait(15)
    broker.start()
