"""Packet ids of QoS 2 that outlive the process: `<data>/flows/mqtt/<action>-<journal>`, lines of JSON.

    {"key": ..., "client": ..., "done": [position, number], "pending": [[position, number, packet id], ...]}
    [position, number]                                                                                   a later `done`

A row is in the file with its packet id before it is sent for the first time. So it has the same id after a kill, by which the
server knows it. `done` is the last row that the server has received, with all before it; it is in the file before their PUBREL are
sent, as the server forgets an id with its PUBREL. A row up to `done` is not sent again; ids of such rows get their PUBREL again.
At durability.level = machine all of it is on the disk first, as messages are; else a power cut may repeat rows.

These ids are not in cursors.mdb: that is written once a second by the loop of the process, for all actions together, while each
batch waits for its ids here; and a file of its own has one writer, the process that reads the journal.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from shardbroker.flows.sinks.driver import Unusable
from shardbroker.stores.files import replace_file

__all__ = ["DIRECTORY", "Book", "Place", "read_books", "reserved_ids"]

DIRECTORY = Path("flows") / "mqtt"
"""In the data directory."""

Place = tuple[int, int]
"""A row of a journal: its position, and its number among the rows of one record."""
BEGIN: Place = (-1, -1)


class Book:
    """Of one action and one journal. client: the client id whose session has the ids. synced: whether each write is a sync."""

    def __init__(self, path: Path, key: str, client: str, synced: bool) -> None:
        self._path, self.key, self.client, self._synced = path, key, client, synced
        self.done: Place = BEGIN
        self.pending: dict[Place, int] = {}
        """Ids of rows that are not completed."""
        self.connection = 0
        """Number of the connection on which the ids are known to be right; 0: none."""
        self._file = -1
        """Where marks are appended; -1: not open."""

    def read(self, content: bytes) -> None:
        """Takes over the content of a file, but for a last line that is not whole. Raises ValueError, KeyError, TypeError."""
        first, *marks = content.split(b"\n")[:-1]
        given = json.loads(first)
        self.pending = {(int(row[0]), int(row[1])): int(row[2]) for row in given["pending"]}
        if not all(0 < one < 1 << 16 for one in self.pending.values()):
            raise ValueError("packet id")
        self.key, self.client = str(given["key"]), str(given["client"])
        position, number = json.loads(marks[-1]) if marks else given["done"]
        self.done = int(position), int(number)

    def save(self) -> None:
        """Writes the file. Raises OSError."""
        self.close()
        rows = [[*place, packet_id] for place, packet_id in self.pending.items()]
        content = {"key": self.key, "client": self.client, "done": list(self.done), "pending": rows}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(content).encode() + b"\n", sync=self._synced)

    def mark(self) -> None:
        """Writes `done` alone, behind save(). Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(self._file, b"[%d, %d]\n" % self.done)
        if self._synced:
            os.fdatasync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def received(self) -> list[int]:
        """Ids whose PUBREL may be missing."""
        return [packet_id for place, packet_id in self.pending.items() if place <= self.done]

    def forget(self, packet_ids: list[int]) -> None:
        """Removes completed ids."""
        gone = set(packet_ids)
        self.pending = {place: packet_id for place, packet_id in self.pending.items() if packet_id not in gone}


def _books(directory: Path, synced: bool) -> Iterator[tuple[str, Book]]:
    """Yields name of the file and book. Raises Unusable for a file that is damaged."""
    for path in sorted(directory.glob("*-*")) if directory.is_dir() else ():
        if not path.name.rpartition("-")[2].isdecimal():
            continue
        book = Book(path, "", "", synced)
        try:
            book.read(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise Unusable(f"{path}: must be a file of packet ids, got {type(error).__name__}") from None
        yield path.name, book


def read_books(data_dir: Path, action: str, key: str, synced: bool) -> dict[str, Book]:
    """Returns journal -> book of an action. Those of another data directory or node are left out. Raises Unusable."""
    found = {}
    for name, book in _books(data_dir / DIRECTORY, synced):
        own, _, journal = name.rpartition("-")
        if own == action and book.key == key:
            found[journal] = book
    return found


def reserved_ids(data_dir: Path, client: str) -> list[int]:
    """Returns the packet ids of a client's session that rows of any action have. Raises Unusable."""
    return [one for _, book in _books(data_dir / DIRECTORY, False) if book.client == client for one in book.pending.values()]
