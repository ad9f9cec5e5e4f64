"""The data source in a real Spark, over journals that the broker's writer wrote."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from shardbroker.journal import open_journal
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.schema import Kind, encode
from tests.spark.samples import START_US, expected, write_journal

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for worker in range(2):
        write_journal(
            tmp_path / "data" / "journal" / str(worker), passes=20, seed=worker, segment_bytes=10_000, worker=worker, workers=2
        )
    return tmp_path / "data"


def load(spark: SparkSession, data: Path, **options: str) -> DataFrame:
    return spark.read.format("shardbroker").options(**options).load(str(data))


def sequences(data: Path, worker: int) -> list[int]:
    return [record.sequence for record in expected(data / "journal" / str(worker))]


def by_worker(frame: DataFrame, worker: int) -> list[int]:
    return sorted(row.sequence for row in frame.where(F.col("worker") == worker).select("sequence").collect())


def test_every_record_is_a_row_with_all_columns(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data)
    for worker in range(2):
        assert by_worker(frame, worker) == sequences(data, worker)
    row = frame.where("type = 'message' and size(user_properties) > 0").first()
    assert row is not None
    assert row.properties == {"content_type": "text"}
    assert [(one.name, one.value) for one in row.user_properties] == [("a", "b"), ("a", "c")]
    assert row.topic_levels == row.topic.split("/")
    assert row.message_id_text == bytes(row.message_id).hex()
    assert row.published <= row.time
    delivered = frame.where("type = 'delivered'").first()
    assert delivered is not None and delivered.latency_us == 0 and delivered.client_id.startswith("client-")


def test_filters_are_pushed_down_and_right(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data)
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    for condition, check in (
        ("type in ('message', 'dropped')", lambda row: row["type"] in ("message", "dropped")),
        ("worker = 1 and type = 'message'", lambda row: row["worker"] == 1 and row["type"] == "message"),
        ("topic like 'site/3/%'", lambda row: (row["topic"] or "").startswith("site/3/")),
        ("time >= timestamp'2026-09-21T14:13:20.010Z' and time < timestamp'2026-09-21T14:13:20.015Z'",
         lambda row: 10_000 <= row["time"].microsecond < 15_000),
    ):  # fmt: skip
        assert frame.where(condition).count() == sum(map(check, rows)) > 0, condition


def test_only_the_columns_of_a_schema_are_made(spark: SparkSession, data: Path) -> None:
    frame = spark.read.format("shardbroker").schema("topic string, sequence bigint").load(str(data))
    assert frame.columns == ["topic", "sequence"]
    assert frame.count() == len(sequences(data, 0)) + len(sequences(data, 1))
    assert load(spark, data, columns="sequence,type").first().asDict().keys() == {"sequence", "type"}  # type: ignore[union-attr]


def test_a_wrong_option_says_what_is_allowed(spark: SparkSession, data: Path) -> None:
    with pytest.raises(PySparkException, match="option tabel: allowed are"):
        load(spark, data, tabel="journal")


def damage(data: Path) -> Path:
    path = segment_paths(data / "journal" / "1")[0]
    with path.open("r+b") as file:
        file.seek(2_000)
        file.write(b"damage")
    return path


def test_damage_stops_fail_fast_and_is_told_of_with_file_and_offset(spark: SparkSession, data: Path) -> None:
    path = damage(data)
    with pytest.raises(PySparkException, match=rf"{path.name}: bytes \d+ to \d+: no valid block; records \d+ to \d+ are lost"):
        load(spark, data).count()
    assert by_worker(load(spark, data, mode="permissive"), 1) == sequences(data, 1)
    (found,) = load(spark, data, table="damage").where("not torn").collect()
    assert found.path == str(path) and found.start < 2_000 < found.end and found.lost_to > found.lost_from


# --- streams ------------------------------------------------------------------------------------------------------------------


def stream(spark: SparkSession, data: Path, tmp_path: Path, **options: str) -> list[list[tuple[int, int]]]:
    """What a run with availableNow gives: of each batch, workers and sequences."""
    batches: list[list[tuple[int, int]]] = []

    def take(frame: DataFrame, _: int) -> None:
        batches.append(sorted((row.worker, row.sequence) for row in frame.select("worker", "sequence").collect()))

    source = spark.readStream.format("shardbroker").options(**options).load(str(data))
    query = (
        source.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def all_of(data: Path) -> list[tuple[int, int]]:
    return sorted((worker, sequence) for worker in range(2) for sequence in sequences(data, worker))


def grow(data: Path, count: int = 10) -> None:
    for worker in range(2):
        writer = open_journal(data / "journal" / str(worker), worker=worker, workers=2)
        for number in range(count):
            writer.append(encode(Kind.SESSION_ENDED, session=number, reason=0))
        writer.seal(START_US * 2)
        writer.close()


def test_a_stream_reads_each_record_once_and_goes_on_where_it_was(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    first = stream(spark, data, tmp_path, maxRecordsPerTrigger="150")
    assert len(first) > 2 and all(len(batch) <= 150 for batch in first)
    assert sorted(chain(*first)) == all_of(data)
    seen = all_of(data)
    grow(data)
    second = stream(spark, data, tmp_path)
    assert sorted(chain(*second)) == sorted({*all_of(data)} - {*seen})
    assert stream(spark, data, tmp_path) == []
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert offsets[-1].read_text().splitlines()[-1].startswith('{"0":')


def test_bytes_limit_a_batch(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    batches = stream(spark, data, tmp_path, maxBytesPerTrigger="8000")
    assert len(batches) > 2 and sorted(chain(*batches)) == all_of(data)


def test_what_retention_removed_under_a_stream_is_named(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    stream(spark, data, tmp_path, maxRecordsPerTrigger="100000")
    grow(data)
    gone = segment_paths(data / "journal" / "0")
    grow(data)
    removed = [path for path in segment_paths(data / "journal" / "0") if path in gone]
    for path in removed:
        path.unlink()
    with pytest.raises(PySparkException, match=r"journal 0: records \d+ to \d+ are gone: retention removed them"):
        stream(spark, data, tmp_path)
    rest: Any = stream(spark, data, tmp_path, mode="permissive")
    assert {*chain(*rest)} >= {(0, sequence) for sequence in sequences(data, 0)}
