"""The data directory of a node that died, looked at before it is adopted. It is from another machine: nothing in it is trusted.

Nothing is changed or created. What is refused: a directory of another node, one in use, links in it, and files of other users: a
broker that serves it writes where names in it lead.
"""

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbroker.journal import Block, JournalError, read, recovery_start, trusted
from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, segment_paths, segment_start
from shardbroker.journal.schema import Ack, Kind, MessageFlag
from shardbroker.stores.adoption import ADOPTED_FILE, read_adopted
from shardbroker.stores.checked_number import read_number
from shardbroker.stores.node_file import NODE_FILE, Enrolled, node_uuid, read_enrolled
from shm.partitions import PARTITIONS, workers_of

__all__ = ["Contents", "Source", "SourceError", "count_of", "look_at"]

ENTRIES_MAX = 1_000_000
"""Files and directories that are looked at: more are in no data directory."""
DEPTH_MAX = 8
"""Levels of directories: `spool/<node>/<link>/` has three."""
COUNT_BYTES_MAX = 128 << 20
"""Bytes of journals in which sessions are counted: some seconds of reading."""
LEAST_FREE = 64 << 20
"""Bytes that the stand-in needs in the directory: its journals, and the stores of LMDB."""
LEFT_OUT = ("lost+found",)
"""Of the root of a file system; it belongs to root."""
SOCKETS = ("ctl.sock",)
"""What a killed broker leaves."""
LOCK = "lock"


class SourceError(Exception):
    """The directory cannot be adopted; the text names what, where, and what it must be."""


@dataclass(frozen=True)
class Source:
    """What is known of a directory that may be adopted."""

    path: Path
    uuid: bytes
    enrolled: Enrolled
    workers: int
    """That wrote the journals."""
    bytes: int
    """Of all files."""
    journal_bytes: int
    """Of the parts of journals from which a start recovers."""
    spool_bytes: int
    """Of messages for other nodes."""
    free_bytes: int


@dataclass(frozen=True)
class Contents:
    """What its journals have; an estimate, as messages in rings are not in it."""

    sessions: int
    messages: int
    """In queues, and on their way to clients."""


def look_at(path: Path, own: Path, place: str, cluster: bytes) -> Source:
    """Returns what is in the directory. own: data directory of this node. place, cluster: of this node's cluster.

    Raises SourceError.
    """
    try:
        return _look_at(path, own, place, cluster)
    except OSError as error:
        raise SourceError(f"{error.filename or path}: {error.strerror or error}") from None


def _look_at(path: Path, own: Path, place: str, cluster: bytes) -> Source:
    if not path.is_absolute():
        raise SourceError(f"directory: must be an absolute path, got {path}")
    path, own = path.resolve(strict=True), own.resolve()
    if not path.is_dir():
        raise SourceError(f"{path}: must be a directory")
    if path == own or path in own.parents or own in path.parents:
        raise SourceError(f"{path}: must be apart from the data directory of this node, {own}")
    _check_owner(path, path.lstat())
    if not (path / NODE_FILE).is_file():
        raise SourceError(f"{path}: must be the data directory of a node, and has no file {NODE_FILE}")
    total, spool = _walk(path)
    try:
        uuid, enrolled = node_uuid(path), read_enrolled(path)
    except ValueError as error:
        raise SourceError(str(error)) from None
    if enrolled is None:
        raise SourceError(f"{path}: must be of a node of a cluster with a core, and was never enrolled")
    if (enrolled.cluster, enrolled.place) != (cluster, place):
        text = f"{path}: must be of a node of this cluster, {place} with the uuid {cluster.hex()}"
        raise SourceError(f"{text}, got {enrolled.place} with {enrolled.cluster.hex()}")
    adopted = read_adopted(path)
    if adopted is not None:
        raise SourceError(f"{path}: was adopted by node {adopted.by} already: {ADOPTED_FILE} in it")
    disk = os.statvfs(path)
    if disk.f_flag & os.ST_RDONLY or not os.access(path, os.W_OK | os.X_OK):
        raise SourceError(f"{path}: must be writable for the user of the broker, uid {os.geteuid()}: mount it read-write")
    if disk.f_bavail * disk.f_frsize < LEAST_FREE:
        raise SourceError(f"{path}: must have {LEAST_FREE >> 20} MB free, got {disk.f_bavail * disk.f_frsize >> 20} MB")
    _check_lock(path)
    workers = _workers(path)
    needed = _check_journals(path)
    here = os.statvfs(own)
    free = here.f_bavail * here.f_frsize
    if free < needed:
        raise SourceError(f"{own}: must have {needed >> 20} MB free for the sessions of {path}, got {free >> 20} MB")
    return Source(path, uuid, enrolled, workers, total, needed, spool, free)


def _walk(top: Path) -> tuple[int, int]:
    """Returns the bytes of all files, and of those in the spool. Raises SourceError for what is no file of a broker, OSError."""
    total = spool = entries = 0
    left = [(top, 0)]
    while left:
        directory, depth = left.pop()
        for entry in os.scandir(directory):
            if depth == 0 and entry.name in LEFT_OUT:
                continue
            entries += 1
            if entries > ENTRIES_MAX or depth > DEPTH_MAX:
                raise SourceError(f"{top}: must have at most {ENTRIES_MAX} files, {DEPTH_MAX} levels deep, as a data directory has")
            found, path = entry.stat(follow_symlinks=False), Path(entry.path)
            _check_owner(path, found)
            if stat.S_ISDIR(found.st_mode):
                left.append((path, depth + 1))
            elif stat.S_ISREG(found.st_mode):
                total += found.st_size
                spool += found.st_size if path.relative_to(top).parts[0] == "spool" else 0
            elif not (stat.S_ISSOCK(found.st_mode) and depth == 0 and entry.name in SOCKETS):
                raise SourceError(f"{path}: must be a file or a directory; remove it, links are not followed")
    return total, spool


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise SourceError(f"{path}: must belong to the user of the broker, uid {os.geteuid()}, got uid {found.st_uid}: chown -R")
    if stat.S_ISDIR(found.st_mode) and found.st_mode & 0o022:
        raise SourceError(f"{path}: must not be writable for others, got mode {stat.S_IMODE(found.st_mode):04o}: chmod go-w")


def _check_lock(path: Path) -> None:
    """Raises SourceError while a broker serves the directory on a machine that shares its file locks."""
    with suppress(FileNotFoundError):
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise SourceError(f"{path}: is in use by the broker with pid {owner}") from None
        finally:
            os.close(lock)


def _workers(path: Path) -> int:
    """Returns the number of workers that wrote the journals."""
    found = len(_journals(path))
    with suppress(ValueError):
        found = workers_of(read_number(path / "journal" / "workers") or 0) or found
    return max(1, min(found, PARTITIONS))


def _journals(path: Path) -> list[Path]:
    journals = path / "journal"
    return sorted(one for one in journals.iterdir() if one.name.isdecimal()) if journals.is_dir() else []


def _check_journals(path: Path) -> int:
    """Returns the bytes from which a start recovers. Raises SourceError for a format that this version does not read, OSError."""
    needed = 0
    for journal in _journals(path):
        start, segments = recovery_start(journal), segment_paths(journal)
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            with segment.open("rb") as file:
                head = file.read(SEGMENT_HEADER_BYTES)
            try:
                SegmentHeader.unpack(head)
            except JournalTooNew as error:
                raise SourceError(f"{segment}: {error}; adopt it on a node of that version") from None
            except ValueError:
                pass  # damage, which a start cuts off or sets aside
            if following is None or segment_start(following) > start:
                needed += segment.stat().st_size
    return needed


def count_of(source: Source) -> Contents | None:
    """Returns how many sessions and messages the journals have; None: they are too large to be counted, or cannot be read."""
    if source.journal_bytes > COUNT_BYTES_MAX:
        return None
    sessions = messages = 0
    try:
        for journal in _journals(source.path):
            found = _count(journal)
            sessions, messages = sessions + found.sessions, messages + found.messages
    except (JournalError, OSError, ValueError):
        return None
    return Contents(sessions, messages)


def _count(journal: Path) -> Contents:
    known: dict[int, dict[object, None]] = {}
    """Session to its messages: the id of one in the queue, the packet id of one on its way."""
    for part in trusted(read(journal, recovery_start(journal))):
        if not isinstance(part, Block):
            continue
        for row in part.items():
            item: Any = row
            session = item[1]
            match item[0]:
                case Kind.SESSION_CREATED | Kind.SESSION_RESUMED | Kind.SESSION_SAVED:
                    known.setdefault(session, {})
                case Kind.SESSION_ENDED:
                    known.pop(session, None)
                case Kind.QUEUED if session in known:
                    known[session][item[2]] = None
                case Kind.DELIVERED if session in known:
                    if item[4] & MessageFlag.FROM_QUEUE:
                        known[session].pop(item[3], None)
                    if item[2]:
                        known[session][item[2]] = None
                case Kind.DROPPED if session in known:
                    known[session].pop(item[2], None)
                case Kind.ACKNOWLEDGED if session in known and item[3] in (Ack.PUBACK, Ack.PUBCOMP):
                    known[session].pop(item[2], None)
    return Contents(len(known), sum(len(messages) for messages in known.values()))
