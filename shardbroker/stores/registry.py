"""The client registry: one small LMDB environment per worker on tmpfs, written by that worker, read by the manager.

The key of a record is its client id (shm/keys.py). A record is a CBOR map whose keys are
positions in FIELDS, since there may be a million records.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cbor2
import lmdb

from shm.keys import KEY_MAX, key_of

__all__ = ["Registry"]

MAP_BYTES = 4 << 30
"""Virtual size of the environment; tmpfs needs memory only for pages in use."""
FIELDS = (
    "client_id", "connected", "session", "created_ms", "peer", "listener", "version", "keepalive_s", "clean_start",
    "username", "expiry_s", "since_ms",
)  # fmt: skip
"""The fields of a record; new ones are appended. The client id is left out where it is the key."""
PAGE = 1000
"""Records per transaction of items(): a slow iteration must not keep LMDB from reusing old pages."""


class Registry:
    """A map of client id (not empty) -> record. `create` removes the records of a predecessor."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, sync=False, metasync=False, mode=0o600, readonly=False)
        if create:
            with self._env.begin(write=True) as txn:
                txn.drop(self._env.open_db(None, txn=txn), delete=False)

    def update(self, puts: Mapping[bytes, Mapping[str, Any]], deletes: Iterable[bytes]) -> None:
        """Applies deletes, then puts, in one transaction. A record gets its `client_id` here. Raises lmdb.MapFullError."""
        with self._env.begin(write=True) as txn:
            for client_id in deletes:
                txn.delete(key_of(client_id))
            for client_id, record in puts.items():
                txn.put(key_of(client_id), _encode(client_id, record))

    def get(self, client_id: bytes) -> dict[str, Any] | None:
        """Returns the record of a client, or None."""
        with self._env.begin() as txn:
            value = txn.get(key_of(client_id))
            return None if value is None else _decode(key_of(client_id), value)

    def items(self, after: bytes = b"", limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yields up to `limit` records after the client id `after`, in the order of the keys; `after` need not exist any more.

        Each PAGE is a snapshot. A record that is added or removed during the iteration may be missing; all others are found once.
        """
        key = key_of(after) if after else b""
        left = limit
        while left is None or left > 0:
            key, page = self._page(key, PAGE if left is None else min(PAGE, left))
            yield from (_decode(*item) for item in page)
            if not page:
                return
            left = left if left is None else left - len(page)

    def _page(self, after: bytes, size: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Returns keys and values after the key `after`, and the key of the last one."""
        page: list[tuple[bytes, bytes]] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(after) if after else cursor.first()
            if more and cursor.key() == after:
                more = cursor.next()
            while more and len(page) < size:
                after = bytes(cursor.key())
                page.append((after, bytes(cursor.value())))
                more = cursor.next()
        return after, page

    def client_ids(self, after: bytes = b"", limit: int = PAGE) -> list[bytes]:
        """Returns client ids after `after`, without their records."""
        return [record["client_id"] for record in self.items(after, limit)]

    def count(self) -> int:
        """Returns the current number of records."""
        with self._env.begin() as txn:
            return int(txn.stat(self._env.open_db(None, txn=txn))["entries"])

    def close(self) -> None:
        """Closes the registry; every other method is an error from then on."""
        self._env.close()


_PLACES = {name: place for place, name in enumerate(FIELDS)}


def _encode(client_id: bytes, record: Mapping[str, Any]) -> bytes:
    """Encodes a record for storage. Raises KeyError for a field that is not in FIELDS."""
    places = {_PLACES[name]: value for name, value in record.items()}
    if len(client_id) > KEY_MAX:
        places[0] = client_id
    return cbor2.dumps(places)


def _decode(key: bytes, value: bytes) -> dict[str, Any]:
    found = {FIELDS[place]: value for place, value in cbor2.loads(value).items()}
    return {"client_id": key, **found}
