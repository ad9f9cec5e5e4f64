"""Snapshots of a broker (docs/snapshot-format.md) as tables: sessions, subscriptions, retained, routes.

    load(path)                          snapshots found
    <data>/snapshots/<time>             that one
    <data>/snapshots or <data>          those of a broker
    <shared>, with <node>/snapshots     those of each node

Each file is read by one task, which verifies its size and checksum before it uses any line.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_shardbroker.errors import DamageError, OptionError, RemovedError, ShardbrokerSourceError, TooNewError
from pyspark_shardbroker.properties import decode_properties
from pyspark_shardbroker.segments import crc32

__all__ = ["SNAPSHOT_TABLES", "SnapshotFile", "find_files", "read_file"]

FORMAT = 1
MANIFEST, DIRECTORY = "manifest.json", "snapshots"
ROWS = 20_000
"""Rows of one Arrow batch."""
CHUNK = 1 << 20
_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())


def _same(value: Any) -> Any:
    return value


def _ms(value: Any) -> Any:
    return None if value is None else value * 1000


_STRING = ("string", pa.string(), _same)
_INT = ("int", pa.int32(), _same)
_LONG = ("bigint", pa.int64(), _same)
_BOOLEAN = ("boolean", pa.bool_(), _same)
_MOMENT = ("timestamp", _TIME, _ms)
_BINARY = ("binary", pa.binary(), base64.b64decode)

Column = tuple[str, pa.DataType, Callable[[Any], Any]]
_COMMON: dict[str, Column] = {
    "snapshot": ("timestamp", _TIME, _same), "node": _STRING,
}  # fmt: skip
"""Columns of all tables: the time of the snapshot, and its broker."""
SNAPSHOT_TABLES: dict[str, dict[str, Column]] = {
    "sessions": {
        **_COMMON, "worker": _INT, "client_id": _STRING, "connected": _BOOLEAN, "username": _STRING, "peer": _STRING,
        "listener": _STRING, "protocol_version": _INT, "keepalive_s": _INT, "clean_start": _BOOLEAN, "session_expiry_s": _LONG,
        "created": _MOMENT, "connected_at": _MOMENT, "disconnected_at": _MOMENT, "expires": _MOMENT, "subscriptions": _LONG,
        "inflight": _LONG, "queued": _LONG, "awaiting_release": _LONG, "will": _BOOLEAN, "durable": _BOOLEAN,
    },
    "subscriptions": {
        **_COMMON, "worker": _INT, "client_id": _STRING, "topic_filter": _STRING, "share_group": _STRING, "qos": _INT,
        "no_local": _BOOLEAN, "retain_as_published": _BOOLEAN, "retain_handling": _INT, "subscription_identifier": _LONG,
    },
    "retained": {
        **_COMMON, "topic": _STRING, "payload": _BINARY, "qos": _INT,
        "properties": ("map<string,string>", _MAP, lambda text: dict(decode_properties(base64.b64decode(text))[0])),
        "message_id": _STRING, "client_id": _STRING, "published": _MOMENT, "expires": _MOMENT,
    },
    "routes": {**_COMMON, "topic_filter": _STRING, "destination": _STRING, "share_group": _STRING, "members": _LONG},
}  # fmt: skip
"""Table -> column -> its type in Spark and in Arrow, and the conversion of the value in the file."""


@dataclass(frozen=True)
class SnapshotFile:
    """A file of a snapshot, and its entry in the manifest."""

    path: str
    size: int
    checksum: int
    table: str
    node: str
    taken_us: int


def find_files(path: str, table: str, which: str) -> list[SnapshotFile]:
    """Returns the files of a table. which: `latest` of each broker, `all`, or a name. Raises ShardbrokerSourceError."""
    root = Path(path.removeprefix("file://").removeprefix("file:"))
    if not root.is_dir():
        raise ShardbrokerSourceError(f"{path}: there is no such directory on this machine; snapshots are read as files")
    found: list[SnapshotFile] = []
    names: list[str] = []
    for directory in _brokers(root):
        chosen = _whole(directory)
        names += [one.name for one in chosen]
        if which == "latest":
            chosen = chosen[-1:]
        elif which != "all":
            chosen = [one for one in chosen if one.name == which]
        for one in chosen:
            found += _of_manifest(one, table)
    if not names:
        raise ShardbrokerSourceError(
            f"{path}: there is no snapshot in it: `shardbroker ctl snapshot` takes one; allowed is a broker's data directory, its "
            "directory of snapshots, one snapshot, or a directory of several brokers' data directories"
        )
    if which not in ("latest", "all", *names):
        raise OptionError(f"snapshot {which!r}: allowed are latest, all, {', '.join(sorted({*names}))}")
    return found


def _brokers(root: Path) -> Iterator[Path]:
    """Yields the directories of snapshots, or a single snapshot."""
    if (root / MANIFEST).exists():
        yield root
    elif (root / DIRECTORY).is_dir():
        yield root / DIRECTORY
    elif any(child.is_dir() and (child / MANIFEST).exists() for child in root.iterdir()):
        yield root
    else:
        yield from (child / DIRECTORY for child in sorted(root.iterdir()) if (child / DIRECTORY).is_dir())


def _whole(directory: Path) -> list[Path]:
    """Returns the snapshots, oldest first. Names with a leading dot are unfinished."""
    if (directory / MANIFEST).exists():
        return [directory]
    return sorted(one for one in directory.iterdir() if not one.name.startswith(".") and one.is_dir())


def _of_manifest(snapshot: Path, table: str) -> Iterator[SnapshotFile]:
    path = snapshot / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise TooNewError(
                f"{path}: format {manifest['format']} is not known to this pyspark_shardbroker, which reads format {FORMAT}: "
                "install a newer one"
            )
        for file in manifest["files"]:
            if file["table"] == table:
                yield SnapshotFile(
                    str(snapshot / file["name"]),
                    file["bytes"],
                    int(file["crc32"], 16),
                    table,
                    manifest["node"],
                    manifest["taken_us"],
                )
    except FileNotFoundError:
        raise RemovedError(f"{path} is not there: the snapshot was removed just now, or is damaged") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{path}: it is damaged: {type(error).__name__}: {error}") from None


def read_file(file: SnapshotFile, columns: Sequence[str], fail_fast: bool) -> Iterator[pa.RecordBatch]:
    """Yields the rows. Raises DamageError, RemovedError; mode permissive skips a damaged file, with a line in the log."""
    try:
        problem = _problem(file)
    except FileNotFoundError:
        raise RemovedError(f"{file.path} is not there: snapshot.keep has removed it, or it is damaged") from None
    if problem:
        if fail_fast:
            raise DamageError(f"{file.path}: {problem} (mode permissive leaves the file out)")
        print(f"pyspark_shardbroker: {file.path}: {problem}", file=sys.stderr, flush=True)
        return
    made = SNAPSHOT_TABLES[file.table]
    with open(file.path, encoding="utf-8") as lines:
        while rows := [json.loads(line) for line in islice(lines, ROWS)]:
            yield pa.RecordBatch.from_arrays([_column(name, made[name], rows, file) for name in columns], list(columns))


def _problem(file: SnapshotFile) -> str:
    size = Path(file.path).stat().st_size
    if size != file.size:
        return f"it has {size} bytes, the manifest says {file.size}"
    checksum = 0
    with open(file.path, "rb") as data:
        while chunk := data.read(CHUNK):
            checksum = crc32(chunk, checksum)
    return "" if checksum == file.checksum else f"its checksum is {checksum:08x}, the manifest says {file.checksum:08x}"


def _column(name: str, column: Column, rows: list[dict[str, Any]], file: SnapshotFile) -> pa.Array:
    _, type, make = column
    if name in _COMMON:
        value = file.taken_us if name == "snapshot" else file.node
        return pa.repeat(pa.scalar(value, type), len(rows))
    values = [row.get(name) for row in rows]
    return pa.array([None if value is None else make(value) for value in values], type)
