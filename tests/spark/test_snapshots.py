"""Snapshots of a real broker: what its clients did is in them, and Spark reads it; what is damaged is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_shardbroker.errors import DamageError, OptionError, ShardbrokerSourceError
from pyspark_shardbroker.snapshots import SNAPSHOT_TABLES, find_files, read_file
from shardbroker.control import Control
from tests.harness.broker import Broker, client_id_on
from tests.harness.client import Client

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]

WORKERS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(WORKERS, {"snapshot.keep": "2"}, data_dir=tmp_path / "data") as own:
        yield own


def snapshot(broker: Broker) -> dict[str, Any]:
    with Control(broker.data_dir) as control:
        answer: dict[str, Any] = control.call("snapshot")
    return answer


def rows(path: Path, table: str, which: str = "latest", fail_fast: bool = True) -> list[dict[str, Any]]:
    """Without Spark."""
    files = find_files(str(path), table, which)
    return [
        row for file in files for batch in read_file(file, list(SNAPSHOT_TABLES[table]), fail_fast) for row in batch.to_pylist()
    ]


def test_a_snapshot_has_what_clients_did(spark: SparkSession, broker: Broker) -> None:
    clients = [client_id_on(worker, WORKERS, "snap") for worker in range(WORKERS)]
    filters = {name: [f"{name}/{number}/+" for number in range(number * 150)] for number, name in enumerate(clients, 1)}
    stay = {"session_expiry_interval": 3600}
    with Client(broker.address, 5, clients[0], properties=stay) as first:
        for filter in filters[clients[0]]:
            first.subscribe(filter, 1)
        first.subscribe("$share/group/jobs/#", 2)
        first.publish("kept/a", b"\x00\xff", 1, retain=True, properties={"content_type": "text"})
        for name in clients[1:]:
            with Client(broker.address, 5, name, properties=stay) as other:
                for filter in filters[name]:
                    other.subscribe(filter, 0)
        first.publish(filters[clients[1]][0].replace("+", "x"), b"waits", 1)
        answer = snapshot(broker)
        assert answer["done"] and answer["sessions"] == WORKERS

        def load(table: str) -> DataFrame:
            return spark.read.format("shardbroker").option("table", table).load(str(broker.data_dir))

        sessions = {row.client_id: row for row in load("sessions").collect()}
        assert sessions.keys() == {*clients}
        assert [sessions[name].connected for name in clients] == [True, False, False]
        assert [sessions[name].worker for name in clients] == [0, 1, 2]
        assert sessions[clients[0]].session_expiry_s == 3600 and sessions[clients[0]].protocol_version == 5
        assert sessions[clients[0]].disconnected_at is None and sessions[clients[1]].disconnected_at is not None
        found: dict[str, set[str]] = {name: set() for name in clients}
        for row in load("subscriptions").where("share_group is null").collect():
            found[row.client_id].add(row.topic_filter)
        assert found == {name: {*texts} for name, texts in filters.items()}
        shared = load("subscriptions").where("share_group = 'group'").first()
        assert shared is not None and (shared.client_id, shared.topic_filter, shared.qos) == (clients[0], "jobs/#", 2)
        kept = load("retained").where("topic = 'kept/a'").first()
        assert kept is not None and bytes(kept.payload) == b"\x00\xff" and kept.properties == {"content_type": "text"}
        assert kept.client_id == clients[0]
        routes = {(row.topic_filter, row.destination) for row in load("routes").where("share_group is null").collect()}
        assert routes == {(filter, f"worker-{worker}") for worker, name in enumerate(clients) for filter in filters[name]}


def test_old_snapshots_go_and_a_wrong_name_says_which_there_are(broker: Broker) -> None:
    names = [snapshot(broker)["snapshot"] for _ in range(3)]
    left = sorted(path.name for path in (broker.data_dir / "snapshots").iterdir())
    assert left == names[1:]
    assert len({row["snapshot"] for row in rows(broker.data_dir, "retained", "all")}) in (0, 2)
    with pytest.raises(OptionError, match=f"allowed are latest, all, {names[1]}, {names[2]}"):
        rows(broker.data_dir, "sessions", names[0])


def test_what_was_left_of_a_snapshot_that_was_not_finished_goes(broker: Broker) -> None:
    left = broker.data_dir / "snapshots" / ".new-20260101T000000.000000Z"
    left.mkdir(parents=True)
    (left / "routes.jsonl").write_text("half a line")
    with pytest.raises(ShardbrokerSourceError, match="there is no snapshot in it"):
        rows(broker.data_dir, "routes")
    snapshot(broker)
    assert not left.exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "manifest"])
def test_damage_is_named_with_its_file(spark: SparkSession, broker: Broker, damage: str) -> None:
    with Client(broker.address, 5, "one") as client:
        client.subscribe("a/b", 0)
        directory = broker.data_dir / "snapshots" / snapshot(broker)["snapshot"]
    path = directory / ("manifest.json" if damage == "manifest" else "routes.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] if damage != "changed" else whole.replace(b"a/b", b"a/c"))
    says = {"cut": "it has .* bytes, the manifest says", "changed": "its checksum is", "manifest": "it is damaged"}[damage]
    with pytest.raises(DamageError, match=f"{path.name}: {says}"):
        rows(broker.data_dir, "routes")
    if damage == "cut":
        with pytest.raises(PySparkException, match=f"{path.name}: {says}"):
            spark.read.format("shardbroker").option("table", "routes").load(str(broker.data_dir)).count()
    if damage != "manifest":
        assert rows(broker.data_dir, "routes", fail_fast=False) == []


def test_snapshots_are_taken_by_themselves(tmp_path: Path) -> None:
    with Broker(1, {"snapshot.interval": "1s", "snapshot.keep": "2"}, data_dir=tmp_path / "data") as broker:
        seen: set[str] = set()
        while len(seen) < 3:
            if (broker.data_dir / "snapshots").is_dir():
                seen |= {path.name for path in (broker.data_dir / "snapshots").iterdir() if not path.name.startswith(".")}
