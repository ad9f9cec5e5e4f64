"""Rows of rules in files, over a real broker with two workers."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name) / "data"


def sections(path: str = "rows.log", **connector: Any) -> dict[str, dict[str, Any]]:
    return {
        "connectors.disk_log.file": {"filepath": path, **connector},
        "actions.disk_log.rows": {"connector": "file"},
        "rules.hot": {"sql": 'SELECT payload.c as c, payload.n as n FROM "in/#"', "actions": ["disk_log:rows"]},
    }


def lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a file and of those that it was rotated to, the oldest first."""
    numbers = sorted((int(one.suffix[1:]) for one in path.parent.glob(f"{path.name}.[0-9]*")), reverse=True)
    files = [path.with_name(f"{path.name}.{number}") for number in numbers] + [path]
    return [json.loads(line) for one in files if one.exists() for line in one.read_bytes().splitlines()]


def numbers(rows: list[dict[str, Any]], client: str) -> list[int]:
    return [row["n"] for row in rows if row["c"] == client]


def test_rows_arrive_in_order_for_each_client(data_dir: Path) -> None:
    with SinksBroker(WORKERS, data_dir, sections(max_file_size=20_000, max_file_number=5)) as broker:
        for worker in range(WORKERS):
            publish_all(broker.address, worker, WORKERS, numbered(f"c{worker}", range(3000)))
        path = data_dir / "disk_log" / "rows.log"
        until(lambda: broker.action("disk_log:rows").get("success") == 6000)
        figures = broker.action("disk_log:rows")
        found = lines(path)
    assert figures["status"] == "connected"
    assert figures["matched"] == 6000
    for worker in range(WORKERS):
        last = numbers(found, f"c{worker}")
        assert last == [*range(3000 - len(last), 3000)], "the oldest were removed"
    assert len({row["position"] for row in found}) == len(found)
    assert len(list(path.parent.glob("rows.log.[0-9]*"))) == 4
    assert all(one.stat().st_size <= 20_000 for one in path.parent.glob("rows.log*"))
