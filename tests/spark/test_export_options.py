"""What the options of an export select and shape, against what the broker's own reader finds in the same journals."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.export import Export, compact, run
from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, Record, encode
from tests.spark.samples import PASS_US, START_US, expected, message_id, write_journal

pytestmark = pytest.mark.timeout(400)

WORKERS = 2
PASSES = 60
Key = tuple[int, int]
"""Worker and sequence."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("options") / "data"
    for worker in range(WORKERS):
        write_journal(directory / "journal" / str(worker), PASSES, worker, 40_000, worker=worker, workers=WORKERS)
    return directory


def rows(spark: SparkSession, to: Path) -> list[Row]:
    return spark.read.parquet(str(to)).collect()


def keys(spark: SparkSession, to: Path) -> list[Key]:
    return sorted((row.worker, row.sequence) for row in rows(spark, to))


def wanted(data: Path, condition: Callable[[Record], bool]) -> list[Key]:
    """What the broker's reader finds, of what fulfils the condition."""
    return [
        (worker, record.sequence)
        for worker in range(WORKERS)
        for record in expected(data / "journal" / str(worker))
        if condition(record)
    ]


def moment(passes: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=START_US + passes * PASS_US)).isoformat()


def topic_of(record: Record) -> list[str]:
    topic = record["topic"] if record.kind in (Kind.MESSAGE, Kind.WILL_SET) else None
    return topic.decode().split("/") if isinstance(topic, bytes) else []


SELECTIONS: dict[str, tuple[dict[str, Any], Callable[[Record], bool]]] = {
    "since": ({"since": moment(20)}, lambda record: record.time_us >= START_US + 20 * PASS_US),
    "until": ({"until": moment(20)}, lambda record: record.time_us < START_US + 20 * PASS_US),
    "both": (
        {"since": moment(20), "until": moment(21)},
        lambda record: START_US + 20 * PASS_US <= record.time_us < START_US + 21 * PASS_US,
    ),
    "topics": ({"topics": "site/+/device/7"}, lambda record: topic_of(record)[2:] == ["device", "7"]),
    "types": ({"types": "delivered,dropped"}, lambda record: record.kind in (Kind.DELIVERED, Kind.DROPPED)),
    "all-of-them": (
        {"since": moment(10), "topics": "site/1/#", "types": "message"},
        lambda record: (
            record.kind == Kind.MESSAGE and record.time_us >= START_US + 10 * PASS_US and topic_of(record)[:2] == ["site", "1"]
        ),
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_only_what_is_selected_is_exported(spark: SparkSession, data: Path, tmp_path: Path, name: str) -> None:
    options, condition = SELECTIONS[name]
    to = tmp_path / "out"
    right = wanted(data, condition)
    assert 0 < len(right) < len(wanted(data, lambda _: True))
    assert run(spark, Export(str(data), str(to), **options)) == len(right)
    assert keys(spark, to) == right


PARTITIONS: dict[str, Callable[[Row], Any]] = {
    "date": lambda row: row.time.date(),
    "hour": lambda row: row.time.hour,
    "topic_root": lambda row: None if row.topic is None else row.topic.split("/")[0],
    "type": lambda row: row.type,
    "worker": lambda row: row.worker,
    "node": lambda row: row.node,
}


@pytest.mark.parametrize("payload", ["raw", "json"])
def test_directories_are_named_after_what_is_in_them(spark: SparkSession, data: Path, tmp_path: Path, payload: str) -> None:
    """`raw`: the tasks write. `json`: Spark writes."""
    some = {"types": "message,dropped", "until": moment(20)}
    everything = run(spark, Export(str(data), str(tmp_path / "all"), **some))
    whole = {(row.worker, row.sequence): row for row in rows(spark, tmp_path / "all")}
    assert len(whole) == everything
    to = tmp_path / "parts"
    assert run(spark, Export(str(data), str(to), partition_by=tuple(PARTITIONS), payload=payload, **some)) == everything
    found = rows(spark, to)
    assert {(row.worker, row.sequence) for row in found} == whole.keys()
    for row in found:
        of = whole[row.worker, row.sequence]
        assert {name: row[name] for name in PARTITIONS} == {name: make(of) for name, make in PARTITIONS.items()}


PAYLOADS: list[tuple[bytes, bool]] = [
    (b'{"v": 21.5, "unit": "C"}', True), (b' {"v": 1, "more": [1, {"a": null}]} ', True), (b'{"v": "no number"}', True),
    (b"[1, 2]", True), (b"21.5", True), (b'"text"', True), (b"true", True), (b"null", True),
    (b'{"v": 1, "v": 2}', True), (b"[" * 300 + b"]" * 300, True), (b"9" * 5000, True), (b"NaN", False), (b"[1,]", False),
    ('{"unit": "°C"}'.encode(), True), (b"", False), (b"no json", False), (b'{"v": 1', False), (b"{'v': 1}", False),
    (b'{"v": 1} and more', False), (b"\xff\xfe", False), (b'{"unit": "\xff"}', False), (b"\0", False),
]  # fmt: skip
"""And whether that is JSON (RFC 8259)."""


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("payloads")
    writer = open_journal(directory / "journal" / "0")
    for number, (payload, _) in enumerate(PAYLOADS):
        id = message_id(START_US, number)
        fields = {"id": id, "topic": b"t", "payload": payload, "flags": 0x11, "expires_ms": 0, "properties": b"", "publisher": b"c"}
        writer.append(encode(Kind.MESSAGE, **fields))
    writer.seal(START_US)
    writer.close()
    return directory


def by_sequence(spark: SparkSession, to: Path, column: str) -> list[Any]:
    return [row[column] for row in sorted(rows(spark, to), key=lambda row: row.sequence)]


def test_payload_json_is_the_text_of_what_is_json(spark: SparkSession, payloads: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    assert run(spark, Export(str(payloads), str(to), payload="json")) == len(PAYLOADS)
    assert by_sequence(spark, to, "payload_json") == [payload.decode() if good else None for payload, good in PAYLOADS]
    assert by_sequence(spark, to, "payload") == [payload for payload, _ in PAYLOADS]


def test_payload_schema_makes_columns_of_fields(spark: SparkSession, payloads: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    export = Export(str(payloads), str(to), payload="v DOUBLE, unit STRING", columns=("sequence", "time"), partition_by=("worker",))
    assert run(spark, export) == len(PAYLOADS)
    parsed = [None if one is None else (one.v, one.unit) for one in by_sequence(spark, to, "payload_json")]
    assert parsed[:3] == [(21.5, "C"), (1.0, None), (None, None)]
    assert parsed[[payload for payload, _ in PAYLOADS].index('{"unit": "°C"}'.encode())] == (None, "°C")
    assert all(len(one or (1, 2)) == 2 for one in parsed)
    assert set(pq.read_schema(next(to.rglob("*.parquet"))).names) == {"sequence", "time", "payload_json"}


def test_a_schema_that_is_none_leaves_the_target_as_it_was(spark: SparkSession, payloads: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--payload 'v DOUBEL': allowed are raw, json and a schema"):
        run(spark, Export(str(payloads), str(tmp_path / "out"), payload="v DOUBEL"))
    assert not (tmp_path / "out").exists()
    assert run(spark, Export(str(payloads), str(tmp_path / "out"), payload="v DOUBLE")) == len(PAYLOADS)


def test_small_files_become_few_and_say_the_same(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    run(spark, Export(str(data), str(to), partition_by=("worker",), batch_bytes=30_000))
    before = keys(spark, to)
    files = sorted(to.rglob("part-*.parquet"))
    assert before == wanted(data, lambda _: True)
    assert compact(spark, str(to)) == (len(files), WORKERS)
    assert len(sorted(to.rglob("part-*.parquet"))) == WORKERS
    assert keys(spark, to) == before
    assert compact(spark, str(to)) == (0, 0)
    assert run(spark, Export(str(data), str(to), partition_by=("worker",), batch_bytes=30_000)) == 0
