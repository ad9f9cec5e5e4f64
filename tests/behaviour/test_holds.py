"""Retention of a real broker keeps what a consumer holds, up to its limit."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbroker.journal.holds import HOLDS_DIR, Hold, release_hold, set_hold
from shardbroker.journal.layout import segment_paths, segment_start
from tests.harness import Broker, Client, until
from tests.harness.segments import journal_bytes

pytestmark = pytest.mark.own_broker
SETTINGS = {
    "journal.segment_bytes": "64KB",
    "journal.cycle_bytes": "128KB",
    "journal.retention.bytes": "1MB",
    "journal.capture": ["fed/#"],
}


def test_segments_that_a_consumer_holds_are_kept_until_it_releases_them() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(1, SETTINGS, Path(name)) as broker:
        journal = broker.data_dir / "journal" / "0"
        set_hold(broker.data_dir, Hold("rows", {"0": 0}, 1 << 30))
        with Client(broker.address, 5) as client:
            write(client, lambda: (journal / "recover-from").exists() and journal_bytes(journal) > 4 << 20)
            assert segment_start(segment_paths(journal)[0]) == 0
            set_hold(broker.data_dir, Hold("rows", {"0": 0}, 2 << 20))
            write(client, lambda: segment_start(segment_paths(journal)[0]) > 0)
            assert journal_bytes(journal) > 1500 << 10, "the hold gives way, but keeps what it may"
            release_hold(broker.data_dir, "rows")
            write(client, lambda: journal_bytes(journal) < 1500 << 10)


def test_a_damaged_hold_keeps_its_journals_and_is_named_in_the_log() -> None:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(1, SETTINGS, Path(name)) as broker:
        journal = broker.data_dir / "journal" / "0"
        set_hold(broker.data_dir, Hold("rows"))
        (broker.data_dir / HOLDS_DIR / "rows.json").write_bytes(b"{")
        with Client(broker.address, 5) as client:
            write(client, lambda: any("hold not readable consumer=rows" in line for line in broker.output))
            write(client, lambda: journal_bytes(journal) > 3 << 20)
        assert segment_start(segment_paths(journal)[0]) == 0


def write(client: Client, done: Callable[[], bool]) -> None:
    """Publishes until this is so."""

    def step() -> bool:
        for _ in range(50):
            client.publish("fed/t", bytes(5000), 1)
        return done()

    until(step)
