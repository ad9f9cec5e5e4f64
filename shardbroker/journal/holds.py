"""Holds: positions of journals from which on a consumer still needs the records, so that retention keeps them.

    <data>/holds/<consumer>.json     {"positions": {"<journal>": position, ...}, "max_bytes": bytes, "until_ms": Unix ms or null}

A journal that is not in `positions` is held from its beginning: the consumer has not read any of it. A hold keeps at most
`max_bytes` of each journal, then the oldest segments go, and the consumer finds their records missing (follow.pxd). A file that
cannot be read holds all journals up to DAMAGED_BYTES: its consumer may need them, and a damaged file must not fill the disk.
"""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from shardbroker.journal.layout import all_segment_paths, segment_start
from shardbroker.stores.files import replace_file, sync_path

__all__ = ["ALL", "DAMAGED_BYTES", "HOLDS_DIR", "Hold", "held_from", "needed_from", "read_holds", "release_hold", "set_hold"]

HOLDS_DIR = "holds"
"""Name of the directory in the data directory."""
DAMAGED_BYTES = 1 << 30
"""Bytes of each journal that a hold keeps whose file cannot be read: what consumers hold unless they are configured otherwise."""
FILE_BYTES = 1 << 16
"""Size limit of a file, bytes: positions of more than a thousand journals."""
ALL = (1 << 64) - 1
"""Position above all records: nothing is held."""
HOLDS_MAX = 1024
"""Files that are read; if there are more, they hold like a damaged one."""

_CONSUMER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_JOURNAL = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hold:
    """What one consumer needs."""

    consumer: str
    positions: Mapping[str, int] = field(default_factory=dict)
    """Name of a journal -> position of the first record needed."""
    max_bytes: int = DAMAGED_BYTES
    """Limit for each journal."""
    until_ms: int | None = None
    """Unix ms at which the hold ends; None: it does not."""
    problem: str = ""
    """Why the file of the hold could not be read."""

    def needed_from(self, journal: str, now_ms: int) -> int | None:
        """Returns the position of the first record that the consumer needs; None: no record, or it is not known which."""
        if self.problem or (self.until_ms is not None and self.until_ms <= now_ms):
            return None
        return self.positions.get(journal, 0)

    def keep_from(self, directory: Path, now_ms: int) -> int | None:
        """Returns the position from which on this hold keeps a journal and the retired ones of its number; None if it does not.
        Raises OSError."""
        if self.until_ms is not None and self.until_ms <= now_ms:
            return None
        total, start = 0, None
        for path in reversed(all_segment_paths(directory)):
            total += path.stat().st_size
            if total > self.max_bytes:
                break
            start = segment_start(path)
        return None if start is None else max(self.positions.get(directory.name, 0), start)


def set_hold(data_dir: Path, hold: Hold) -> None:
    """Replaces the hold of a consumer atomically; it survives a power cut. Raises ValueError for a wrong hold, OSError."""
    content = {"positions": dict(hold.positions), "max_bytes": hold.max_bytes, "until_ms": hold.until_ms}
    _checked(hold.consumer, content)
    directory = data_dir / HOLDS_DIR
    directory.mkdir(mode=0o700, exist_ok=True)
    replace_file(directory / f"{hold.consumer}.json", json.dumps(content).encode())


def release_hold(data_dir: Path, consumer: str) -> None:
    """Ends the hold of a consumer, if it has one. Raises OSError."""
    _check_name(consumer)
    path = data_dir / HOLDS_DIR / f"{consumer}.json"
    if path.exists():
        path.unlink()
        sync_path(path.parent)


def held_from(holds: Iterable[Hold], directory: Path, now_ms: int) -> int:
    """Returns the lowest position that a hold keeps of a journal; ALL if no hold does. Raises OSError."""
    return min((position for hold in holds if (position := hold.keep_from(directory, now_ms)) is not None), default=ALL)


def needed_from(holds: Iterable[Hold], journal: str, now_ms: int) -> int:
    """Returns the lowest position that a consumer needs of a journal; ALL if no consumer does, or its position is not known."""
    return min((position for hold in holds if (position := hold.needed_from(journal, now_ms)) is not None), default=ALL)


def read_holds(data_dir: Path) -> list[Hold]:
    """Returns all holds; those that cannot be read have a `problem`. Raises OSError if the directory cannot be listed."""
    try:
        with os.scandir(data_dir / HOLDS_DIR) as entries:
            names = sorted(islice((entry.name for entry in entries if entry.name.endswith(".json")), HOLDS_MAX + 1))
    except FileNotFoundError:
        return []
    return list(_read_all(data_dir / HOLDS_DIR, names))


def _read_all(directory: Path, names: list[str]) -> Iterator[Hold]:
    for name in names[:HOLDS_MAX]:
        consumer = name.removesuffix(".json")
        try:
            yield _checked(consumer, json.loads(_content(directory / name)))
        except (OSError, ValueError, RecursionError) as error:
            shown = consumer if _CONSUMER.fullmatch(consumer) else ascii(consumer)  # the name of a file may have any byte
            yield Hold(shown, problem=str(error) or type(error).__name__)
    if len(names) > HOLDS_MAX:
        yield Hold("holds", problem=f"more than {HOLDS_MAX} holds")


def _content(path: Path) -> bytes:
    """Returns the bytes of a regular file. A link or a pipe under its name is refused, not followed or waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("must be a regular file")
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise ValueError(f"must have at most {FILE_BYTES} bytes")
    return content


def _check_name(consumer: str) -> None:
    if not _CONSUMER.fullmatch(consumer):
        raise ValueError(f"consumer: must be 1 to 128 letters, digits and _ . : -, got {consumer!r:.200}")


def _checked(consumer: str, content: object) -> Hold:
    """Returns the hold that a file contains. Raises ValueError."""
    _check_name(consumer)
    if not isinstance(content, dict):
        raise ValueError("must be an object")
    positions, until_ms = content.get("positions"), content.get("until_ms")
    if not isinstance(positions, dict):
        raise ValueError("positions: must be an object")
    for journal, position in positions.items():
        if not _JOURNAL.fullmatch(journal):
            raise ValueError(f"positions: must have names of journals, got {journal!r:.40}")
        _check_number(f"positions.{journal}", position)
    _check_number("max_bytes", content.get("max_bytes"))
    if until_ms is not None:
        _check_number("until_ms", until_ms)
    return Hold(consumer, positions, content["max_bytes"], until_ms)


def _check_number(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name}: must be an integer from 0 to 2^64 - 1, got {value!r:.40}")
