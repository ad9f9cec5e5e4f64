"""A change of keys in the core: conditions, and what is written if they hold."""

from typing import NamedTuple

__all__ = ["Change", "Delete", "Put"]


class Put(NamedTuple):
    """Sets a key; `is_leased`: under the lease of this node."""

    key: bytes
    value: bytes
    is_leased: bool = False


class Delete(NamedTuple):
    """Deletes a key."""

    key: bytes


class Change(NamedTuple):
    """A transaction. `conditions`: keys with the revisions of their last changes; 0: there is no such key."""

    conditions: tuple[tuple[bytes, int], ...]
    operations: tuple[Put | Delete, ...]
