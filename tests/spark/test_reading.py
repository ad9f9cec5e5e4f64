"""The second reader of the format, which executors use, gives what the broker's own reader gives: records, and damage."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_shardbroker import decode, parquet, segments
from pyspark_shardbroker.columns import JOURNAL
from pyspark_shardbroker.errors import DamageError, OptionError, RemovedError, ShardbrokerSourceError, TooNewError
from pyspark_shardbroker.journals import FOREVER, Journal, find_journals, pieces
from pyspark_shardbroker.options import Options, Wanted, parse_time, topic_pattern
from pyspark_shardbroker.parquet import Layout, write_files
from pyspark_shardbroker.positions import Positions
from pyspark_shardbroker.reading import read_piece, scan_piece
from pyspark_shardbroker.records import FIELDS, KINDS
from pyspark_shardbroker.segments import WINDOW_BYTES, Damage, Segment
from shardbroker.journal import Block, open_journal, read
from shardbroker.journal.encode import measure
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.retired import apply_retention_to_retired
from shardbroker.journal.schema import FIELDS as BROKER_FIELDS
from shardbroker.journal.schema import Kind, Record, encode
from tests.spark.samples import PASS_US, START_US, expected, write_journal

ALL = list(JOURNAL)
TWO_BYTES = 24
"""Kinds from here on are read by nobody but a recovery: Spark leaves them out."""


def rows(
    directory: Path, wanted: Wanted | None = None, partition_bytes: int = 64 << 20, columns: list[str] = ALL,
    fail_fast: bool = True, lowest: int = 0, highest: int = FOREVER,
) -> list[dict[str, Any]]:  # fmt: skip
    """What tasks read of one worker's journal, in order."""
    wanted = wanted or Wanted()
    found: list[dict[str, Any]] = []
    for piece in pieces(Journal("0", [directory]), wanted, partition_bytes, lowest, highest):
        for batch in read_piece(piece, columns, wanted, fail_fast):
            found += batch.to_pylist()
    return found


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Wanted], int]:
    """How much of a journal is read for what is wanted, by those who plan and by those who read."""
    total = 0
    read = Segment.read

    def counted(self: Segment, offset: int, size: int) -> bytes:
        nonlocal total
        data = read(self, offset, size)
        total += len(data)
        return data

    monkeypatch.setattr(Segment, "read", counted)

    def measure(directory: Path, wanted: Wanted) -> int:
        before = total
        rows(directory, wanted, columns=["sequence"])
        return total - before

    return measure


def assert_same(found: list[dict[str, Any]], records: list[Record]) -> None:
    assert [row["sequence"] for row in found] == [record.sequence for record in records]
    for row, record in zip(found, records, strict=True):
        assert row["type"] == KINDS[record.kind]
        assert int(row["time"].timestamp() * 1_000_000 + 0.5) == record.time_us
        fields = record.fields()
        for name, column in (
            ("topic", "topic"), ("filter", "topic_filter"), ("group", "share_group"), ("publisher", "client_id"),
        ):  # fmt: skip
            value = fields.get(name)
            if name in fields:
                assert row[column] == (value.decode() if isinstance(value, bytes) else None), (name, record)
        for name, column in (("payload", "payload"), ("id", "message_id")):
            assert row[column] == fields.get(name), (name, record)
        for name, column in (
            ("session", "session"), ("packet_id", "packet_id"), ("reason", "reason"), ("options", "subscription_options"),
            ("identifier", "subscription_identifier"), ("priority", "priority"), ("version", "protocol_version"),
            ("expiry_ms", "session_expiry_ms"), ("delay_s", "will_delay_s"), ("count", "count"),
        ):  # fmt: skip
            assert row[column] == fields.get(name), (name, record)
        if fields.get("flags") is not None:
            flags = fields["flags"]
            assert isinstance(flags, int)
            assert (row["qos"], row["retain"], row["captured"]) == (flags & 3, bool(flags & 4), bool(flags & 16))
        else:
            assert row["qos"] is None
        details = fields.get("details")
        peer = details.get(1) if isinstance(details, dict) else None
        assert row["peer"] == (peer.decode() if isinstance(peer, bytes) else None)
        if "session" in fields:
            assert row["client_id"] == f"client-{row['session'] & 15}"


@pytest.fixture(params=["compiled", "numpy"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decoders: executors may have no compiler."""
    if request.param == "numpy":
        monkeypatch.setattr(decode, "_compiled", None)
    else:
        assert decode._compiled is not None, "the decoder is not built: make spark"


def test_both_readers_know_the_same_records() -> None:
    assert {kind.value: kind.name.lower() for kind in Kind if kind < TWO_BYTES} == KINDS
    renamed = {"expires_at_ms": "expires_ms"}
    assert {
        kind.value: tuple(renamed.get(name, name) for name, _ in fields)
        for kind, fields in BROKER_FIELDS.items()
        if kind < TWO_BYTES
    } == FIELDS


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("partition_bytes", [64 << 20, 5_000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_record_is_read_as_the_broker_reads_it(tmp_path: Path, seed: int, partition_bytes: int) -> None:
    write_journal(tmp_path, seed=seed, segment_bytes=20_000)
    assert len(segment_paths(tmp_path)) >= 3
    assert_same(rows(tmp_path, partition_bytes=partition_bytes), expected(tmp_path))


@pytest.mark.usefixtures("decoder")
def test_a_journal_of_several_incarnations_and_blocks_larger_than_a_window(tmp_path: Path) -> None:
    for turn in range(2):
        writer = open_journal(tmp_path, block_bytes=1 << 30)
        for number in range(3):
            writer.append(
                encode(Kind.MESSAGE, id=bytes(16), topic=b"big", payload=bytes([turn]) * WINDOW_BYTES, flags=number, expires_ms=0,
                       properties=b"", publisher=None)
            )  # fmt: skip
        writer.seal(START_US)
        writer.close()
    found = rows(tmp_path, columns=["sequence", "payload", "qos"])
    assert [row["qos"] for row in found] == [0, 1, 2] * 2
    assert [row["sequence"] for row in found] == [record.sequence for record in expected(tmp_path)]
    assert found[0]["payload"] == bytes(WINDOW_BYTES) and found[5]["payload"] == b"\1" * WINDOW_BYTES


@pytest.mark.usefixtures("decoder")
def test_records_and_fields_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    import cbor2

    writer = open_journal(tmp_path)
    writer.append(cbor2.dumps([23, 1, b"x"]))
    writer.append(cbor2.dumps([99, {1: [2, 3]}, -4, "text"]))
    writer.append(encode(Kind.SESSION_ENDED, session=1, reason=0)[:1].replace(b"\x83", b"\x85") + b"\x06\x01\x00\x61x\xf5")
    writer.append(encode(Kind.SESSION_ENDED, session=2, reason=1))
    writer.seal(START_US)
    writer.close()
    found = rows(tmp_path, columns=["sequence", "type", "session", "reason"])
    assert [(row["sequence"], row["type"], row["session"], row["reason"]) for row in found] == [
        (0, "synced", None, None), (2, "session_ended", 1, 0), (3, "session_ended", 2, 1),
    ]  # fmt: skip


def test_only_what_is_wanted_comes_out(tmp_path: Path) -> None:
    write_journal(tmp_path, segment_bytes=20_000)
    every = rows(tmp_path)
    since, until = START_US + 10 * PASS_US, START_US + 20 * PASS_US

    def times(row: dict[str, Any]) -> bool:
        return since <= int(row["time"].timestamp() * 1_000_000 + 0.5) < until

    assert rows(tmp_path, Wanted(since_us=since, until_us=until)) == [row for row in every if times(row)]
    assert rows(tmp_path, Wanted(kinds=frozenset({1, 12}))) == [row for row in every if row["type"] in ("message", "dropped")]
    assert rows(tmp_path, Wanted(topic_prefix="site/3")) == [row for row in every if (row["topic"] or "").startswith("site/3")]
    wanted = Wanted(topic_prefix="site", topic_pattern=topic_pattern("site/+/device/7"))
    assert rows(tmp_path, wanted) == [row for row in every if (row["topic"] or "").endswith("/device/7")]
    assert rows(tmp_path, Wanted(workers=frozenset({7}))) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_any_range_of_positions_gives_its_records_once(tmp_path: Path, seed: int) -> None:
    write_journal(tmp_path, segment_bytes=15_000, seed=seed)
    write_journal(tmp_path, segment_bytes=15_000, seed=seed + 10)
    every = expected(tmp_path)
    chance = random.Random(seed)
    cuts = sorted({0, every[-1].sequence + 1, *(chance.choice(every).sequence for _ in range(20))})
    found = [row for low, high in itertools.pairwise(cuts) for row in rows(tmp_path, lowest=low, highest=high)]
    assert_same(found, every)


def test_one_percent_of_the_time_costs_less_than_a_twentieth_of_the_bytes(
    tmp_path: Path, bytes_read: Callable[[Path, Wanted], int]
) -> None:
    writer = open_journal(tmp_path)
    measure(writer, "MESSAGE", 2_000, 100)
    writer.close()
    size = sum(path.stat().st_size for path in segment_paths(tmp_path))
    assert bytes_read(tmp_path, Wanted()) >= size - 64
    wanted = Wanted(since_us=500, until_us=520)
    assert len(rows(tmp_path, wanted, columns=["sequence"])) == 2_000
    assert bytes_read(tmp_path, wanted) * 20 < size


def test_topic_filters_match_as_in_mqtt(tmp_path: Path) -> None:
    from shardbroker.mqtt.topics import matches

    topics = ["a", "a/b", "a/b/c", "/", "/a", "", "$SYS/a", "a/$x", "b.c", "bxc", "a/", "+".replace("+", "plus")]
    array = pa.array(topics)
    import pyarrow.compute as pc

    for topic_filter in ("#", "+", "a/#", "a/+", "+/b", "+/+", "/#", "+/#", "$SYS/#", "b.c", "a/+/c", "/+"):
        found = pc.match_substring_regex(array, topic_pattern(topic_filter)).to_pylist()
        wanted = [bool(topic) and matches(topic_filter.encode(), topic.encode()) for topic in topics]
        assert [one for one, topic in zip(found, topics, strict=True) if topic] == [
            one for one, topic in zip(wanted, topics, strict=True) if topic
        ], topic_filter


# --- damage -------------------------------------------------------------------------------------------------------------------


def damages(directory: Path, partition_bytes: int = 64 << 20) -> list[Damage]:
    return [
        item
        for piece in pieces(Journal("0", [directory]), Wanted(), partition_bytes)
        for item in scan_piece(piece)
        if isinstance(item, Damage)
    ]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("partition_bytes", [64 << 20, 3_000])
@pytest.mark.parametrize("seed", range(8))
def test_damage_is_found_where_the_broker_finds_it(tmp_path: Path, seed: int, partition_bytes: int) -> None:
    write_journal(tmp_path, segment_bytes=20_000, seed=seed)
    chance = random.Random(seed)
    paths = segment_paths(tmp_path)
    for _ in range(3):
        path = chance.choice(paths)
        size = path.stat().st_size
        overwrite(path, chance.randrange(size - 20), chance.randbytes(20))
    if seed % 2:
        path = chance.choice(paths)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 30)
    mine = rows(tmp_path, partition_bytes=partition_bytes, fail_fast=False, columns=["sequence", "type", "payload"])
    theirs = expected(tmp_path)
    assert [row["sequence"] for row in mine] == [record.sequence for record in theirs]
    reported = {(damage.path, damage.start) for damage in damages(tmp_path, partition_bytes) if damage.end > damage.start}
    for item in read(tmp_path):
        if not isinstance(item, Block) and item.end > item.start:
            assert (str(item.path), item.start) in reported
    with pytest.raises(DamageError, match=r"\.sbj: .*(bytes|byte) [0-9]+"):
        rows(tmp_path, partition_bytes=partition_bytes)


def test_a_torn_tail_is_no_damage_until_records_behind_it_show_that_some_are_missing(tmp_path: Path) -> None:
    write_journal(tmp_path, passes=5)
    (path,) = segment_paths(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    kept = rows(tmp_path)
    assert [row["sequence"] for row in kept] == [record.sequence for record in expected(tmp_path)]
    assert [damage.torn for damage in damages(tmp_path)] == [True]
    writer = open_journal(tmp_path)  # knows where the journal ended: what was torn had never been acknowledged
    writer.append(encode(Kind.SESSION_ENDED, session=1, reason=0))
    writer.seal(START_US)
    writer.close()
    assert len(rows(tmp_path)) == len(kept) + 1
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 2_000)
    with pytest.raises(DamageError, match="are lost"):
        rows(tmp_path)


def test_a_segment_of_a_later_format_is_refused(tmp_path: Path) -> None:
    from shardbroker.journal.checksum import crc32

    write_journal(tmp_path, passes=2)
    (path,) = segment_paths(tmp_path)
    header = bytearray(path.read_bytes()[:60])
    header[12] = 9  # schema
    overwrite(path, 0, bytes(header) + crc32(bytes(header)).to_bytes(4, "little"))
    with pytest.raises(TooNewError, match="schema 9"):
        rows(tmp_path)


# --- positions ----------------------------------------------------------------------------------------------------------------


def test_positions_follow_a_journal_that_grows(tmp_path: Path) -> None:
    journal = tmp_path / "journal" / "0"
    positions = Positions(str(tmp_path))
    writer = open_journal(journal, segment_bytes=3_000)
    for number in range(100):
        writer.append(encode(Kind.SESSION_ENDED, session=number, reason=0))
        writer.append(encode(Kind.SESSION_ENDED, session=number, reason=1))
        writer.seal(START_US + number)
        assert positions.latest() == {"0": 2 * number + 2}
    writer.close()
    assert positions.earliest() == {"0": 0}
    assert Positions(str(tmp_path)).limited({"0": 17}, {"0": 200}, 50, None) == {"0": 67}
    reached = Positions(str(tmp_path)).limited({"0": 17}, {"0": 200}, None, 500)["0"]
    assert 17 < reached < 60


def test_journals_are_found_below_whatever_directory_holds_them(tmp_path: Path) -> None:
    for node in ("a", "b"):
        for worker in (0, 1):
            write_journal(tmp_path / node / "journal" / str(worker), passes=1)
    assert [journal.key for journal in find_journals(str(tmp_path))] == ["a/0", "a/1", "b/0", "b/1"]
    assert [journal.key for journal in find_journals(str(tmp_path / "a"))] == ["0", "1"]
    assert [journal.key for journal in find_journals(str(tmp_path / "a" / "journal"))] == ["0", "1"]
    assert [journal.key for journal in find_journals(str(tmp_path / "a" / "journal" / "1"))] == ["1"]


def test_a_journal_goes_on_where_a_retired_one_of_its_number_ended(tmp_path: Path) -> None:
    journal = tmp_path / "journal" / "2"
    write_journal(journal, passes=3)
    retired = expected(journal)
    positions = Positions(str(tmp_path))
    before = positions.latest()
    journal.rename(journal.with_name("2.retired-1790000000"))
    assert positions.latest() == before
    write_journal(journal, passes=3)
    (found,) = find_journals(str(tmp_path))
    assert found.key == "2" and positions.latest()["2"] > before["2"]
    sequences = [
        row["sequence"]
        for piece in pieces(found, Wanted(), 64 << 20)
        for batch in read_piece(piece, ["sequence"], Wanted(), True)
        for row in batch.to_pylist()
    ]
    assert sequences == [record.sequence for record in [*retired, *expected(journal)]]


def test_the_end_of_a_retired_journal_outlives_its_records(tmp_path: Path) -> None:
    """A stream that has read all goes on, also in what a later worker of the number writes; another one misses nothing silently."""
    journal = tmp_path / "journal" / "2"
    write_journal(journal, passes=3)
    positions = Positions(str(tmp_path))
    begin, before = positions.earliest(), positions.latest()
    journal.rename(journal.with_name("2.retired-1790000000"))
    apply_retention_to_retired(journal, 1 << 63, 1 << 60, max_age_us=0)
    assert positions.latest() == positions.earliest() == before
    write_journal(journal, passes=3)
    apply_retention_to_retired(journal, 1 << 63, 1 << 60)
    after = positions.latest()
    (one,) = positions.ranges(before, after, fail_fast=True)
    assert one[1:] == (before["2"], after["2"])
    with pytest.raises(RemovedError, match=f"records {begin['2']} to {before['2'] - 1} are gone"):
        list(positions.ranges(begin, after, fail_fast=True))


def test_times_are_moments_of_utc_or_ages() -> None:
    assert parse_time("since", "2026-01-31T12:00") == 1_769_860_800_000_000
    assert parse_time("since", "2026-01-31T13:00+01:00") == 1_769_860_800_000_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tabel": "journal"}, "option tabel: allowed are"),
        ({"table": "journals"}, "allowed is journal or damage"),
        ({"mode": "lenient"}, "allowed is failFast or permissive"),
        ({"since": "yesterday"}, "allowed is a time such as"),
        ({"topics": "a/#/b"}, "is not a topic filter"),
        ({"types": "messages"}, "types 'messages'"),
        ({"workers": "one"}, "allowed are whole numbers"),
        ({"maxBytesPerTrigger": "0"}, "allowed is a whole number from 1 on"),
        ({"path": ""}, "no path"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Options.parse({"path": "/", **options})


def test_a_directory_without_journals_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShardbrokerSourceError, match="there is no journal in it"):
        find_journals(str(tmp_path))
    with pytest.raises(ShardbrokerSourceError, match="no such directory"):
        find_journals(str(tmp_path / "nowhere"))


# --- files that tasks write -------------------------------------------------------------------------------------------------------


def files_of(directory: Path, to: Path, layout: Layout, wanted: Wanted | None = None) -> list[tuple[str, list[dict[str, Any]]]]:
    """Names of the files that a task says it wrote, and their rows."""
    wanted = wanted or Wanted()
    found = []
    for piece in pieces(Journal("0", [directory]), wanted, 64 << 20):
        for batch in write_files(read_piece(piece, layout.needed(), wanted, True), layout):
            for file, count in zip(batch["file"].to_pylist(), batch["rows"].to_pylist(), strict=True):
                table = pq.ParquetFile(to / file).read()
                assert len(table) == count
                found.append((file.rpartition("/")[0], table.to_pylist()))
    return found


def test_files_have_the_rows_that_a_dataframe_has(tmp_path: Path) -> None:
    write_journal(tmp_path / "journal", segment_bytes=20_000)
    written = files_of(tmp_path / "journal", tmp_path / "out", Layout(str(tmp_path / "out"), tuple(ALL)))
    assert len(written) >= 3
    assert [row for _, part in written for row in part] == rows(tmp_path / "journal")


def test_files_are_divided_by_what_rows_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "WRITERS_MAX", 2)
    monkeypatch.setattr(parquet, "ROW_GROUP", 100)
    monkeypatch.setattr(segments, "WINDOW_BYTES", 4096)
    write_journal(tmp_path / "journal")
    layout = Layout(str(tmp_path / "out"), ("sequence", "topic"), ("date", "hour", "type", "topic_root"))
    written = files_of(tmp_path / "journal", tmp_path / "out", layout)
    found = {
        (directory, row["sequence"], row["topic"]) for directory, part in written for row in part
    }  # fmt: skip
    expected_rows = set()
    for row in rows(tmp_path / "journal", columns=["time", "type", "sequence", "topic"]):
        root = (row["topic"] or "").split("/")[0] or "__HIVE_DEFAULT_PARTITION__"
        where = f"date={row['time'].date()}/hour={row['time'].hour}/type={row['type']}/topic_root={root}"
        expected_rows.add((where, row["sequence"], row["topic"]))
    assert found == expected_rows
    assert len(written) > len({directory for directory, _ in written}), "no file was closed early"


def test_names_of_directories_are_escaped_as_spark_does(tmp_path: Path) -> None:
    writer = open_journal(tmp_path / "journal")
    for topic in (b"a=b%/c", b"", "ä b".encode()):
        writer.append(
            encode(Kind.MESSAGE, id=bytes(16), topic=topic, payload=b"", flags=0, expires_ms=0, properties=b"", publisher=None)
        )
    writer.seal(START_US)
    writer.close()
    layout = Layout(str(tmp_path / "out"), ("topic",), ("topic_root",))
    found = {directory for directory, _ in files_of(tmp_path / "journal", tmp_path / "out", layout)}
    assert found == {"topic_root=a%3Db%25", "topic_root=__HIVE_DEFAULT_PARTITION__", "topic_root=ä b"}
