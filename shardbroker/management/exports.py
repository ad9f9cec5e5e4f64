"""Files of exports: their format, and the directory that has them.

    <data_dir>/exports/NAME.tar.gz        mode 0600: there are hashes of passwords and secrets of connectors in it
    <data_dir>/exports/NAME.tar.gz.part   an upload that is not complete

    NAME.tar.gz     manifest.json       kind, format, version, node, created_at in Unix ms, parts: name -> entries, bytes, sha256
                    PART.jsonl ...      a JSON object a line, in the order of PARTS

A file may come from anywhere. So it is read without tarfile's extensions: each member is a plain file with a known name, once, and
what is unpacked is bounded, whatever the headers announce. All of it is checked before anything is imported.
"""

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from shardbroker import __version__
from shardbroker.control import ControlError
from shardbroker.control.data_verbs import FILE_BYTES_MAX, PART_BYTES, PARTS, SETTINGS_PARTS
from shardbroker.stores.files import replacing, sync_path

__all__ = ["LINE_BYTES_MAX", "UNPACKED_MAX", "ExportFiles", "Exported", "PartWriter"]

DIRECTORY = "exports"
"""In the data directory."""
SUFFIX, UPLOADING, WRITING = ".tar.gz", ".part", ".new"
FILES_MAX = 100
"""Files that are kept; further exports and uploads are refused, so that a job without an end does not fill the disk."""
TOTAL_BYTES_MAX = 1 << 30
"""Bytes of all files together."""
UPLOAD_AGE_S = 3600
"""Age at which an upload or an export without an end is removed, seconds."""
UNPACKED_MAX = 1 << 30
"""Most bytes of a file when it is unpacked: text compresses to a fourth, a bomb to a thousandth."""
SETTINGS_BYTES_MAX = 128 << 20
"""Most bytes of settings, or of definitions of one kind: they are imported as a whole, from memory."""
LINE_BYTES_MAX = 8 << 20
"""Most bytes of an entry: rules of one client have 1 MB, a retained message by default 1 MB, in base64."""
MANIFEST_BYTES_MAX = 1 << 16
"""Most bytes of the manifest; one has some 2 KB."""
MANIFEST, LINES = "manifest.json", ".jsonl"
KIND, FORMAT = "shardbroker-export", 1
BLOCK = 512
"""Bytes of a header of tar, and what the size of a member is rounded up to."""
CHUNK = 1 << 18
"""Bytes read at a time."""


class PartWriter:
    """Takes the entries of one part. Blocking; raises ControlError where they are too many, OSError."""

    def __init__(self, directory: Path, room: Callable[[int], None]) -> None:
        """room: called with the bytes of each entry; raises ControlError if all parts together are too large."""
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - close()
        self.entries = self.size = self.left_out = 0
        self._sum, self._room = hashlib.sha256(), room

    def add(self, entries: Iterable[Any]) -> None:
        """Adds entries; those that are too long are left out and counted."""
        for entry in entries:
            line = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
            if len(line) > LINE_BYTES_MAX:
                self.left_out += 1
                continue
            self._room(len(line))
            self.file.write(line)
            self._sum.update(line)
            self.entries, self.size = self.entries + 1, self.size + len(line)

    def about(self) -> dict[str, Any]:
        """Returns what the manifest has of the part."""
        return {"entries": self.entries, "bytes": self.size, "sha256": self._sum.hexdigest()}


class Exported(NamedTuple):
    """A file that was read and is whole; its parts are temporary files without a name."""

    manifest: dict[str, Any]
    parts: dict[str, IO[bytes]]

    def lines(self, part: str) -> Iterator[Any]:
        """Yields the entries of a part. Raises ControlError for one that is no JSON object."""
        file = self.parts[part]
        file.seek(0)
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise _refused(f"{part}, entry {number}: must have at most {LINE_BYTES_MAX} bytes")
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict):
                raise _refused(f"{part}, entry {number}: must be a JSON object")
            yield entry

    def close(self) -> None:
        for file in self.parts.values():
            file.close()


class ExportFiles:
    """The directory of one broker. Its methods block on the disk, and raise ControlError."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / DIRECTORY

    def prepare(self) -> None:
        """Makes the directory, and removes what uploads and exports without an end have left."""
        with _disk_errors(self.directory):
            self.directory.mkdir(mode=0o700, exist_ok=True)
            for path, about in self._found(""):
                if path.suffix in (UPLOADING, WRITING) and about.st_mtime < time.time() - UPLOAD_AGE_S:
                    path.unlink(missing_ok=True)

    def listed(self) -> list[dict[str, Any]]:
        """Returns the files, the newest first."""
        with _disk_errors(self.directory):
            found = sorted(self._found(SUFFIX), key=lambda one: (one[1].st_mtime_ns, one[0].name), reverse=True)
        return [_row(path, about) for path, about in found]

    def read(self, name: str, position: int) -> dict[str, Any]:
        """Returns the bytes at a position, and the size of the file."""
        with self._opened(name) as file, _disk_errors(self.directory / name):
            file.seek(position)
            data = file.read(PART_BYTES)
            return {"data": data, "position": position + len(data), "size": os.fstat(file.fileno()).st_size}

    def delete(self, name: str) -> None:
        with self._opened(name):
            pass  # it is there, and a plain file
        with _disk_errors(self.directory):
            (self.directory / name).unlink(missing_ok=True)
            sync_path(self.directory)

    # --- writing --------------------------------------------------------------------------------------------------------------

    def write(self, node: str, parts: dict[str, PartWriter]) -> dict[str, Any]:
        """Writes a file, which appears once it is complete; returns its row."""
        now_ms = time.time_ns() // 1_000_000
        at = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(now_ms // 1000))
        path = self.directory / f"{KIND}-{at}.{now_ms % 1000:03}{SUFFIX}"
        about = {"kind": KIND, "format": FORMAT, "version": __version__, "node": node, "created_at": now_ms}
        manifest = json.dumps({**about, "parts": {name: part.about() for name, part in parts.items()}}, indent=1).encode()
        self.check_room(0)
        with _disk_errors(path), replacing(path) as raw:
            with (
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=now_ms // 1000) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
            ):
                _add(tar, MANIFEST, io.BytesIO(manifest), len(manifest), now_ms)
                for name, part in parts.items():
                    part.file.seek(0)
                    _add(tar, name + LINES, part.file, part.size, now_ms)
            if (size := raw.tell()) > FILE_BYTES_MAX:
                text = f"export: must have at most {FILE_BYTES_MAX} bytes, got {size}; leave parts out, such as retained"
                raise ControlError("EXCEED_LIMIT", text)
            self.check_room(size, but=path.name + WRITING)
        with _disk_errors(path):
            return _row(path, path.stat())

    def check_room(self, size: int, but: str = "") -> None:
        """Raises ControlError if there are as many files as may be, or no room for one of this size. but: a file that is not
        counted."""
        with _disk_errors(self.directory):
            sizes = [about.st_size for path, about in self._found("") if path.name != but]
        if len(sizes) >= FILES_MAX:
            raise ControlError("EXCEED_LIMIT", f"files of exports: must be at most {FILES_MAX}; delete some")
        if sum(sizes) + size > TOTAL_BYTES_MAX:
            raise ControlError("EXCEED_LIMIT", f"files of exports: must have at most {TOTAL_BYTES_MAX} bytes together; delete some")

    def upload(self, name: str, position: int, data: bytes, size: int) -> bool:
        """Adds bytes to an upload. Returns whether that was the end: store() makes a file of it then."""
        path = self.directory / f"{name}{UPLOADING}"
        if position + len(data) > size or not data:
            raise ControlError("BAD_REQUEST", f"payload: must be 1 to {size - position} bytes at position {position} of {size}")
        if position == 0:
            self._check_new(name)
            with _disk_errors(path):
                path.unlink(missing_ok=True)
            self.check_room(size)
        new = os.O_CREAT | os.O_EXCL if position == 0 else 0
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | new, 0o600)
        except OSError:
            text = f"upload of {name}: must begin at position 0, and not be made twice at a time"
            raise ControlError("BAD_REQUEST", text) from None
        with _disk_errors(path), open(descriptor, "wb", buffering=0) as file:
            if os.fstat(descriptor).st_size != position:
                at = os.fstat(descriptor).st_size
                raise ControlError("BAD_REQUEST", f"position: must be {at}, where the upload of {name} is, got {position}")
            os.lseek(descriptor, position, os.SEEK_SET)
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
            if position + len(data) == size:
                os.fsync(descriptor)
        return position + len(data) == size

    def store(self, name: str) -> None:
        """Gives an upload that has been checked its name."""
        self._check_new(name)
        with _disk_errors(self.directory):
            os.replace(self.directory / f"{name}{UPLOADING}", self.directory / name)
            sync_path(self.directory)

    def discard(self, name: str) -> None:
        """Removes an upload."""
        with suppress(OSError):
            (self.directory / f"{name}{UPLOADING}").unlink(missing_ok=True)

    def _check_new(self, name: str) -> None:
        if os.path.lexists(self.directory / name):
            raise ControlError("ALREADY_EXISTS", f"{name} already exists: delete it before, or rename the file")

    # --- reading --------------------------------------------------------------------------------------------------------------

    def open(self, name: str, uploading: bool = False) -> Exported:
        """Unpacks and checks a file; uploading: an upload that is complete. Raises ControlError, which names what is wrong."""
        parts: dict[str, IO[bytes]] = {}
        try:
            with self._opened(name + (UPLOADING if uploading else "")) as file:
                return Exported(self._unpacked(file, parts), parts)
        except BaseException:
            for part in parts.values():
                part.close()
            raise

    def _unpacked(self, file: IO[bytes], parts: dict[str, IO[bytes]]) -> dict[str, Any]:
        try:
            with gzip.GzipFile(fileobj=file) as packed:
                members = _Members(packed)
                if (first := members.next()) is None or first[0] != MANIFEST:
                    raise _refused(f"must begin with {MANIFEST}, as a file of `data export` does")
                manifest = _manifest(members, first[1])
                for name, about in manifest["parts"].items():
                    found = members.next()
                    if found is None or found != (name + LINES, about["bytes"]):
                        shown = "the end of the file" if found is None else f"{found[0][:100]!r} of {found[1]} bytes"
                        raise _refused(f"{name}{LINES} of {about['bytes']} bytes must follow, got {shown}")
                    parts[name] = tempfile.TemporaryFile(dir=self.directory)  # noqa: SIM115 - Exported.close()
                    if members.copy(parts[name], about["bytes"]) != about["sha256"]:
                        raise _refused(f"{name}{LINES}: is damaged: its SHA-256 is not that of {MANIFEST}")
                if members.next() is not None:
                    raise _refused(f"must have no members besides those of {MANIFEST}")
                return manifest
        except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
            raise _refused(f"must be a whole file of `data export`, a .tar.gz: {error}") from None
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{self.directory}: {error.strerror or error}") from None

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a plain file of the directory. Raises ControlError NOT_FOUND, also for a link or a device."""
        try:
            descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise ControlError("NOT_FOUND", f"no file {name!r}") from None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ControlError("NOT_FOUND", f"no file {name!r}")
            yield file

    def _found(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)


class _Members:
    """Members of an archive: plain files only, in the headers that POSIX has had since 1988, one after the other."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = UNPACKED_MAX

    def next(self) -> tuple[str, int] | None:
        """Returns name and size of the next member; None at the end."""
        header = self.read(BLOCK)
        if not any(header):
            return None
        found = tarfile.TarInfo.frombuf(header, "utf-8", "replace")
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or found.size < 0:
            raise _refused(f"{found.name[:100]!r}: must be a plain file with a short name, as `data export` writes it")
        return found.name, found.size

    def copy(self, target: IO[bytes], size: int) -> str:
        """Copies the content of a member, and returns its SHA-256."""
        checksum, left = hashlib.sha256(), size
        while left:
            data = self.read(min(left, CHUNK))
            checksum.update(data)
            target.write(data)
            left -= len(data)
        self.read(-size % BLOCK)
        return checksum.hexdigest()

    def read(self, size: int) -> bytes:
        """Returns exactly this many bytes. Raises ControlError for more than may be unpacked."""
        if size > self._left:
            raise _refused(f"must have at most {UNPACKED_MAX} bytes when it is unpacked")
        self._left -= size
        data = self._file.read(size)
        if len(data) != size:
            raise EOFError("it is cut off")
        return data


def _manifest(members: _Members, size: int) -> dict[str, Any]:
    """Returns the manifest, its fields checked."""
    if size > MANIFEST_BYTES_MAX:
        raise _refused(f"{MANIFEST}: must have at most {MANIFEST_BYTES_MAX} bytes, got {size}")
    text = io.BytesIO()
    members.copy(text, size)
    try:
        found = json.loads(text.getvalue())
        kind, format = found["kind"], found["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _refused(f"{MANIFEST}: must be a JSON object with kind and format") from None
    if kind != KIND or format != FORMAT:
        raise _refused(f"kind and format: must be {KIND} and {FORMAT}, got {str(kind)[:40]} and {str(format)[:40]}")
    try:
        parts = {name: _checked_part(name, part) for name, part in found["parts"].items()}
        about = {name: str(found[name])[:256] for name in ("version", "node")}
        return {**about, "created_at": int(found["created_at"]), "parts": parts}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        known = ", ".join(PARTS)
        raise _refused(f"{MANIFEST}: must have version, node, created_at, and parts of {known}") from None


def _checked_part(name: str, part: Any) -> dict[str, Any]:
    """Returns bytes and sum of a part. Raises ValueError, KeyError, TypeError."""
    size, checksum = part["bytes"], part["sha256"]
    if name not in PARTS or not isinstance(size, int) or isinstance(size, bool) or not isinstance(checksum, str):
        raise ValueError(name)
    if not 0 <= size <= (SETTINGS_BYTES_MAX if name in SETTINGS_PARTS else UNPACKED_MAX):
        raise ValueError(name)
    return {"bytes": size, "sha256": checksum}


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int, now_ms: int) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = size, 0o600, now_ms // 1000
    tar.addfile(about, file)


def _row(path: Path, about: os.stat_result) -> dict[str, Any]:
    return {"filename": path.name, "size": about.st_size, "created_at": about.st_mtime_ns // 1_000_000}


def _refused(text: str) -> ControlError:
    return ControlError("BAD_REQUEST", f"file: {text}")


@contextmanager
def _disk_errors(path: Any) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ControlError("NOT_AVAILABLE", f"{path}: {error.strerror or error}") from None
