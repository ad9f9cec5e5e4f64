"""Journals are kept for rows that wait, up to `max_buffer_bytes`; what is removed then is counted, and the rest is written."""

from pathlib import Path
from typing import Any

import pytest

from shardbroker.journal.layout import segment_paths, segment_start
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.flows.sinks.service import Service
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2
SETTINGS = {
    "journal.segment_bytes": "64KB",
    "journal.cycle_bytes": "128KB",
    "journal.retention.bytes": "1MB",
    "flows.processes": 1,
}


ROWS = 12_000
"""Some 3 MB of the journal."""


@pytest.mark.parametrize("kept", ["4MB", "1MB"])
def test_rows_wait_within_the_hold(place: Path, kept: str) -> None:
    options = {"max_buffer_bytes": kept, "buffer_records": 100, "health_check_interval": "1s", "batch_size": 100}
    with Service(place) as service:
        sections: dict[str, dict[str, Any]] = {
            "connectors.http.service": {"url": service.url},
            "actions.http.rows": {"connector": "service", "parameters": {"batch": True}, "resource_opts": options},
            "rules.hot": {"sql": 'SELECT payload.n as n FROM "in/#"', "actions": ["http:rows"]},
        }
        with SinksBroker(WORKERS, place / "data", sections, SETTINGS) as broker:
            publish_all(broker.address, 0, WORKERS, numbered("c", range(10)))
            until(lambda: broker.action("http:rows").get("success") == 10)
            service.kill()
            journal = broker.data_dir / "journal" / "0"
            rows = 10
            while rows < ROWS or (kept == "1MB" and segment_start(segment_paths(journal)[0]) <= 2000):
                publish_all(broker.address, 0, WORKERS, numbered("c", range(rows, rows + 1000), pad="x" * 150))
                rows += 1000
                until(lambda: broker.figures()["journals"]["0"]["position"] >= rows)  # noqa: B023
            service.start()
            until(lambda: any(row["n"] == rows - 1 for row in service.rows()), timeout_s=60)
            until(lambda: broker.action("http:rows")["lag_records"] == 0)
            figures = broker.action("http:rows")
            found = [row["n"] for row in service.rows()]
    assert found == sorted(set(found))
    assert figures["matched"] == figures["success"] + figures["dropped"]
    if kept == "4MB":
        assert found == [*range(rows)] and figures["dropped"] == 0
        return
    lost = set(range(rows)) - set(found)
    assert lost == set(range(min(lost), max(lost) + 1)), "one gap, behind what was in the buffer"
    assert figures["dropped.queue_full"] >= len(lost) > 1000
