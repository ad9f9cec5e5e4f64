"""Parquet files written by the reading tasks: only the names of the files pass through the JVM.

    piece -> Arrow batches -> rows for a row group -> directory of each partition -> <directory>/<random>-<number>.parquet

The names are random, so a task that runs twice causes no conflict. The files of successful tasks count; the driver records their
final names and moves them (`export.py`).
"""

import datetime
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

try:
    import pyspark_shardbroker._compiled as _compiled
except ImportError:
    _compiled = None

__all__ = ["FILES", "PARTITIONS", "Layout", "write_files"]

FILES = {"file": "string", "rows": "bigint"}
"""Columns of a task's result: names below its directory."""
ROW_GROUP = 1 << 18
"""Rows of a row group: 256 Ki of small records are some 100 MB before encoding."""
ROW_GROUP_BYTES = 128 << 20
"""Most bytes of a row group."""
WRITERS_MAX = 64
"""Open files of a task; above that number the least recently written one is closed."""
ENCODED_COLUMNS = (
    "type", "client_id", "topic", "payload", "payload_json", "reason_text", "packet", "topic_filter", "share_group", "peer",
    "username", "listener", "topic_levels.list.element", "properties.key_value.key", "properties.key_value.value",
    "user_properties.list.element.name", "user_properties.list.element.value",
)  # fmt: skip
"""Columns that benefit from a dictionary: text that repeats."""
COUNTED_COLUMNS = ("time", "worker", "sequence", "published", "latency_us")
"""Columns whose least and largest value let readers skip a row group. For text that repeats, the dictionary serves that better, and
statistics would make the writer five times as slow."""
GROWING_COLUMNS = {"sequence": "DELTA_BINARY_PACKED"}
"""Columns in which each value is slightly above the previous one."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = {*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"}
"""Characters that names of directories must not contain, by the convention of Hive and Spark."""


def _root(table: pa.Table) -> pa.Array:
    topics = _whole(table["topic"]).dictionary_encode()
    roots = pa.array([None if one is None else one.split("/", 1)[0] for one in topics.dictionary.to_pylist()], pa.string())
    return roots.take(topics.indices)


def _hour(table: pa.Table) -> pa.Array:
    return pc.hour(table["time"])


def _date(table: pa.Table) -> pa.Array:
    return table["time"].cast(pa.date32())


PARTITIONS: dict[str, tuple[str, Callable[[pa.Table], pa.Array]]] = {
    "date": ("time", _date),
    "hour": ("time", _hour),
    "topic_root": ("topic", _root),
    "type": ("type", lambda table: table["type"].cast(pa.string())),
    "worker": ("worker", lambda table: table["worker"]),
    "node": ("node", lambda table: table["node"]),
}
"""Partition columns: the source column, and the conversion."""


@dataclass(frozen=True)
class Layout:
    """Target, columns and partitions of the files."""

    directory: str
    columns: tuple[str, ...]
    partition_by: tuple[str, ...] = ()

    def needed(self) -> list[str]:
        """Returns the columns to read."""
        made = {"topic_levels": "topic"}
        columns = [*self.columns, *(PARTITIONS[name][0] for name in self.partition_by)]
        return list(dict.fromkeys(made.get(name, name) for name in columns))


@dataclass
class _File:
    name: str
    writer: pq.ParquetWriter
    rows: int = 0


@dataclass
class _Writers:
    """The open files, by directory, and the finished ones."""

    layout: Layout
    open: "OrderedDict[str, _File]" = field(default_factory=OrderedDict)
    done: list[_File] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def write(self, directory: str, table: pa.Table) -> None:
        file = self.open.pop(directory, None) or self._new(directory, table.schema)
        self.open[directory] = file
        file.writer.write_table(table, row_group_size=ROW_GROUP)
        file.rows += len(table)
        while len(self.open) > WRITERS_MAX:
            self._close(self.open.popitem(last=False)[1])

    def _new(self, directory: str, schema: pa.Schema) -> _File:
        name = f"{directory}/{self.token}-{len(self.open) + len(self.done)}.parquet".lstrip("/")
        path = Path(self.layout.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = pq.ParquetWriter(
            path, schema, compression="snappy", use_dictionary=list(ENCODED_COLUMNS), write_statistics=list(COUNTED_COLUMNS),
            column_encoding={name: way for name, way in GROWING_COLUMNS.items() if name in schema.names}, store_schema=False,
        )  # fmt: skip
        return _File(name, writer)

    def _close(self, file: _File) -> None:
        file.writer.close()
        self.done.append(file)

    def close(self) -> list[_File]:
        while self.open:
            self._close(self.open.popitem(last=False)[1])
        return self.done


def write_files(batches: Iterator[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    """Writes the rows; yields one batch with the names of the files and the number of rows in each. Raises OSError."""
    writers = _Writers(layout)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= ROW_GROUP or size >= ROW_GROUP_BYTES:
            _write(writers, pa.Table.from_batches(held))
            held, rows, size = [], 0, 0
    if held:
        _write(writers, pa.Table.from_batches(held))
    files = writers.close()
    if files:
        yield pa.RecordBatch.from_arrays(
            [pa.array([file.name for file in files]), pa.array([file.rows for file in files], pa.int64())], list(FILES)
        )


def _write(writers: _Writers, table: pa.Table) -> None:
    layout = writers.layout
    table = table.unify_dictionaries()
    if "topic_levels" in layout.columns:
        table = table.append_column("topic_levels", _levels(table))
    for directory, part in _divided(table, layout.partition_by):
        writers.write(directory, part.select([name for name in layout.columns if name not in layout.partition_by]))


def _levels(table: pa.Table) -> pa.Array:
    """Splits topics into levels, here, where one dictionary serves a whole row group: a column of small strings that repeat."""
    topics = _whole(table["topic"]).dictionary_encode()
    levels = pc.split_pattern(topics.dictionary, "/")
    words = levels.values.dictionary_encode()
    if _compiled is None or topics.null_count == len(topics):
        return pa.ListArray.from_arrays(levels.offsets, words).take(topics.indices)
    codes = topics.indices.fill_null(-1).to_numpy()
    offsets, places = _compiled.spread(codes, levels.offsets.to_numpy(), words.indices.to_numpy())
    values = pa.DictionaryArray.from_arrays(pa.array(places), words.dictionary)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=topics.is_null() if topics.null_count else None)


def _divided(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows of each partition, in order, with its directory."""
    if not names:
        yield "", table
        return
    columns = [_whole(PARTITIONS[name][1](table)).dictionary_encode("encode") for name in names]
    codes = np.zeros(len(table), np.int64)
    for column in columns:
        codes = codes * (len(column.dictionary) or 1) + column.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    values = [column.dictionary.to_pylist() for column in columns]
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        row = int(order[start])
        parts = (f"{name}={_named(values[place][columns[place].indices[row].as_py()])}" for place, name in enumerate(names))
        yield "/".join(parts), table if end - start == len(table) else table.take(pa.array(order[start:end]))


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _named(value: str | int | datetime.date | None) -> str:
    """Returns a value as the name of a directory."""
    text = "" if value is None else str(value)
    if not text:
        return _NO_VALUE
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in text)
