"""The data source `shardbroker` for PySpark: `spark.read.format("shardbroker")` and `spark.readStream.format("shardbroker")`.

    driver                                                      executors
    ShardbrokerSource  options, schema
    JournalReader      journals -> pieces  -- InputPartition -> read_piece -> Arrow batches
    JournalStream      positions -> pieces -- InputPartition -> the same
    SnapshotReader     manifests -> files  -- InputPartition -> read_file  -> Arrow batches

Readers are stateless and open their own files. Offsets of streams are `{key of the journal: position}`: the number of the
next record.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_shardbroker.columns import JOURNAL, ON_REQUEST
from pyspark_shardbroker.damage import DAMAGE, read_damage
from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.journals import Piece, find_journals, pieces
from pyspark_shardbroker.options import Options
from pyspark_shardbroker.parquet import FILES, Layout, write_files
from pyspark_shardbroker.positions import Positions
from pyspark_shardbroker.reading import read_piece
from pyspark_shardbroker.snapshots import SNAPSHOT_TABLES, SnapshotFile, find_files, read_file

__all__ = ["DefaultSource", "ShardbrokerSource"]


class PiecePartition(InputPartition):
    """A piece of a segment for one task."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)


class FilePartition(InputPartition):
    """A file of a snapshot for one task."""

    def __init__(self, file: SnapshotFile) -> None:
        super().__init__(file)


class ShardbrokerSource(DataSource):
    """Journals and snapshots of shardbroker. Options: docs/spark.md."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        return "shardbroker"

    def schema(self) -> str:
        if self._options.write_to:
            return ", ".join(f"`{name}` {type}" for name, type in FILES.items())
        columns = _columns(self._options.table)
        unknown = [name for name in self._options.columns if name not in columns]
        if unknown:
            raise OptionError(f"columns {unknown[0]!r}: table {self._options.table} has {', '.join(columns)}")
        named = self._options.columns or [name for name in columns if name not in ON_REQUEST]
        return ", ".join(f"`{name}` {columns[name]}" for name in named)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._options.write_to:
            raise OptionError("writeTo: only streams write files by themselves")
        if self._options.table in SNAPSHOT_TABLES:
            return SnapshotReader(self._options, _checked(schema, self._options.table))
        return JournalReader(self._options, _checked(schema, self._options.table))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._options.table != "journal":
            raise OptionError(f"table {self._options.table!r} cannot be read as a stream: allowed is journal")
        columns = list(self._options.columns or JOURNAL) if self._options.write_to else _checked(schema, "journal")
        return JournalStream(self._options, columns)


DefaultSource = ShardbrokerSource
"""The name by which Spark finds the source in packages named pyspark_*."""


def _columns(table: str) -> dict[str, str]:
    """Returns name -> type of a table's columns."""
    if table == "journal":
        return {name: column[0] for name, column in {**JOURNAL, **ON_REQUEST}.items()}
    if table in SNAPSHOT_TABLES:
        return {name: column[0] for name, column in SNAPSHOT_TABLES[table].items()}
    return DAMAGE


def _checked(schema: StructType, table: str) -> list[str]:
    """Returns the requested columns. Raises OptionError if a given schema does not fit."""
    columns = _columns(table)
    for field in schema.fields:
        if field.name not in columns:
            raise OptionError(f"schema: table {table} has no column {field.name!r}: allowed are {', '.join(columns)}")
        if field.dataType.simpleString() != columns[field.name]:
            raise OptionError(f"schema: column {field.name} is {columns[field.name]}, not {field.dataType.simpleString()}")
    return [field.name for field in schema.fields]


class JournalReader(DataSourceReader):
    """Batch: all records that exist when it is planned."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self._options = options
        self._wanted = options.wanted
        self._columns = columns

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            self._wanted = self._wanted.and_filter(condition)
        return filters  # Spark applies the remaining filters

    def partitions(self) -> list[InputPartition]:
        found: list[InputPartition] = []
        for journal in find_journals(self._options.path):
            found += [PiecePartition(piece) for piece in pieces(journal, self._wanted, self._options.partition_bytes)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())  # Spark makes a partition of none
        if self._options.table == "damage":
            return read_damage(partition.value, self._columns)
        return read_piece(partition.value, self._columns, self._wanted, self._options.fail_fast)


class SnapshotReader(DataSourceReader):
    """Batch: a table of the snapshots that exist when it is planned."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [FilePartition(file) for file in find_files(self._options.path, self._options.table, self._options.snapshot)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())  # Spark makes a partition of none
        return read_file(partition.value, self._columns, self._options.fail_fast)


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream: from position to position."""

    def __init__(self, options: Options, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._positions = Positions(options.path)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        return self._positions.latest() if self._options.from_latest else self._positions.earliest()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._positions.latest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        latest = self._positions.latest() if self._target is None else self._target
        # A position that the stream has reached never decreases.
        latest = {**start, **{key: max(position, start.get(key, 0)) for key, position in latest.items()}}
        if isinstance(limit, ReadMaxRows):
            return self._positions.limited(start, latest, limit.max_rows, None)
        if isinstance(limit, ReadMaxBytes):
            return self._positions.limited(start, latest, None, limit.max_bytes)
        return latest

    def reportLatestOffset(self) -> dict[str, int]:
        return self._positions.latest()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        found: list[InputPartition] = []
        for journal, lowest, highest in self._positions.ranges(start, end, self._options.fail_fast):
            found += [
                PiecePartition(piece)
                for piece in pieces(journal, self._options.wanted, self._options.partition_bytes, lowest, highest)
            ]
        return found

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        options = self._options
        if not options.write_to:
            return read_piece(partition.value, self._columns, options.wanted, options.fail_fast)
        layout = Layout(options.write_to, tuple(self._columns), options.partition_by)
        return write_files(read_piece(partition.value, layout.needed(), options.wanted, options.fail_fast, True), layout)
