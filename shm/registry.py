"""The client registry: one small LMDB environment per worker on tmpfs, written by that worker, read by the manager."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2
import lmdb

__all__ = ["Registry"]

KEY_MAX = 511
MAP_BYTES = 4 << 30


class Registry:
    """client id -> record (a CBOR map). With `create` what a predecessor left is emptied."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, sync=False, metasync=False, mode=0o600, readonly=False)
        if create:
            with self._env.begin(write=True) as txn:
                txn.drop(self._env.open_db(None, txn=txn), delete=False)

    def update(self, puts: Mapping[bytes, Mapping[str, Any]], deletes: Iterable[bytes]) -> None:
        """One transaction: deletes, then puts."""
        with self._env.begin(write=True) as txn:
            for client_id in deletes:
                txn.delete(_key(client_id))
            for client_id, record in puts.items():
                txn.put(_key(client_id), cbor2.dumps({"client_id": client_id, **record}))

    def get(self, client_id: bytes) -> dict[str, Any] | None:
        """The record of one client, or None."""
        with self._env.begin() as txn:
            value = txn.get(_key(client_id))
            return None if value is None else cbor2.loads(value)

    def items(self) -> Iterator[dict[str, Any]]:
        """All records, ordered by client id."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            for value in cursor.iternext(keys=False, values=True):
                yield cbor2.loads(value)

    def close(self) -> None:
        self._env.close()


def _key(client_id: bytes) -> bytes:
    return client_id if len(client_id) <= KEY_MAX else b"\xff" + blake2b(client_id, digest_size=16).digest()
