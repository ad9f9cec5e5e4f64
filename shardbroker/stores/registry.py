"""The client registry: one small LMDB environment per worker on tmpfs, written by that worker, read by the manager.

A client id is the key of its record; 0xFF and a digest stand for one longer than an LMDB key. A record is a CBOR map whose keys
are places in FIELDS, since there may be a million of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2
import lmdb

__all__ = ["Registry"]

KEY_MAX = 511
"""Bytes of an LMDB key."""
DIGEST = 16
"""Bytes of the digest that stands for a longer client id."""
MAP_BYTES = 4 << 30
"""Virtual size of the environment; tmpfs holds only what is used."""
FIELDS = (
    "client_id", "connected", "session", "created_ms", "peer", "listener", "version", "keepalive_s", "clean_start",
    "username", "expiry_s", "since_ms",
)  # fmt: skip
"""Fields of a record; new ones go to the end. The client id is left out where it is the key."""
PAGE = 1000
"""Records that items() reads in one transaction: whoever iterates slowly must not keep old pages from being used again."""


class Registry:
    """client id (not empty) -> record. With `create` what a predecessor left is emptied."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, sync=False, metasync=False, mode=0o600, readonly=False)
        if create:
            with self._env.begin(write=True) as txn:
                txn.drop(self._env.open_db(None, txn=txn), delete=False)

    def update(self, puts: Mapping[bytes, Mapping[str, Any]], deletes: Iterable[bytes]) -> None:
        """One transaction: deletes, then puts. A record gets its `client_id` here. Raises lmdb.MapFullError."""
        with self._env.begin(write=True) as txn:
            for client_id in deletes:
                txn.delete(_key(client_id))
            for client_id, record in puts.items():
                txn.put(_key(client_id), _encode(client_id, record))

    def get(self, client_id: bytes) -> dict[str, Any] | None:
        """The record of one client, or None."""
        with self._env.begin() as txn:
            value = txn.get(_key(client_id))
            return None if value is None else _decode(_key(client_id), value)

    def items(self, after: bytes = b"", limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Up to `limit` records behind the client id `after`, in the order of the keys; it need not be there any more.

        Each PAGE is of one moment; a record that comes or goes while they are read is found or not, the others once each.
        """
        key = _key(after) if after else b""
        left = limit
        while left is None or left > 0:
            key, page = self._page(key, PAGE if left is None else min(PAGE, left))
            yield from (_decode(*item) for item in page)
            if not page:
                return
            left = left if left is None else left - len(page)

    def _page(self, after: bytes, size: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Keys and values behind the key `after`, and the key of the last one."""
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
        """Client ids behind `after`, without their records."""
        return [record["client_id"] for record in self.items(after, limit)]

    def count(self) -> int:
        """Records at this moment."""
        with self._env.begin() as txn:
            return int(txn.stat(self._env.open_db(None, txn=txn))["entries"])

    def close(self) -> None:
        """Ends the use of the registry; every other method is an error from then on."""
        self._env.close()


_PLACES = {name: place for place, name in enumerate(FIELDS)}


def _encode(client_id: bytes, record: Mapping[str, Any]) -> bytes:
    """A record as it is stored. Raises KeyError for a field that is not in FIELDS."""
    places = {_PLACES[name]: value for name, value in record.items()}
    if len(client_id) > KEY_MAX:
        places[0] = client_id
    return cbor2.dumps(places)


def _decode(key: bytes, value: bytes) -> dict[str, Any]:
    found = {FIELDS[place]: value for place, value in cbor2.loads(value).items()}
    return {"client_id": key, **found}


def _key(client_id: bytes) -> bytes:
    return client_id if len(client_id) <= KEY_MAX else b"\xff" + blake2b(client_id, digest_size=DIGEST).digest()
