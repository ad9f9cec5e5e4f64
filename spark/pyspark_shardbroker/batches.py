"""The steps from the files that a batch has written to files of the export: the same with Spark and without.

    _staging -> _batches/N: names -> files in place

The names are recorded before the files are moved. A run that repeats the batch first deletes what was moved, by these names.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from pyspark_shardbroker.errors import OptionError

__all__ = [
    "BATCHES", "CHECKPOINT", "COMPACTION", "RECORD", "STAGING", "Target", "check_record", "final_names", "finish_compaction",
    "put_in_place", "say",
]  # fmt: skip

CHECKPOINT, BATCHES, STAGING, RECORD, COMPACTION = "_checkpoint", "_batches", "_staging", "_export.json", "_compaction.json"


class Target(Protocol):
    """The files of a target: `Files` or `LocalFiles`."""

    root: str

    def path(self, name: str) -> str: ...
    def exists(self, name: str) -> bool: ...
    def read(self, name: str) -> str | None: ...
    def write(self, name: str, text: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def move(self, name: str, target: str) -> None: ...
    def list(self, name: str = "") -> Iterator[tuple[str, int]]: ...


def check_record(files: Target, to: str, record: dict[str, object]) -> None:
    """Checks the options against those of the target's first run, and records them in it. Raises OptionError."""
    text = files.read(RECORD)
    if text is None:
        if any(True for _ in files.list()):
            raise OptionError(f"--to {to}: there are files in it that no export has written; choose an empty directory")
        files.write(RECORD, json.dumps(record, indent=1) + "\n")
        return
    before = json.loads(text)
    for name, value in record.items():
        if before.get(name) != value:
            raise OptionError(
                f"--to {to}: it was begun with {name} {before.get(name)!r}, not {value!r}; run with the same "
                "options, or choose another directory"
            )


def put_in_place(files: Target, number: int, moves: dict[str, str]) -> None:
    """Deletes the files moved by an earlier run of this batch, records the new moves, and moves the files."""
    intent = f"{BATCHES}/{number}"
    before = files.read(intent)
    for target in json.loads(before) if before else ():
        files.delete(target)
    files.write(intent, json.dumps(list(moves.values())))
    for source, target in moves.items():
        files.move(source, target)
    files.delete(STAGING)
    files.delete(f"{BATCHES}/{number - 1}")  # its commit is in the checkpoint, or this batch would not run


def final_names(names: Sequence[str], staging: str, prefix: str) -> dict[str, str]:
    """Returns each file of a staging directory with its final name."""
    moves = {}
    for place, name in enumerate(names):
        directory = name.removeprefix(f"{staging}/").rpartition("/")[0]
        moves[name] = f"{directory}/{prefix}-{place:05d}.parquet".lstrip("/")
    return moves


def finish_compaction(files: Target) -> None:
    """Finishes a compaction whose run was killed after the record of its moves."""
    text = files.read(COMPACTION)
    if text is None:
        return
    plan = json.loads(text)
    for source, target in plan["moves"].items():
        if files.exists(source):
            files.move(source, target)
    for name in plan["old"]:
        files.delete(name)
    files.delete(COMPACTION)
    files.delete(STAGING)


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, file=sys.stderr, flush=True)
