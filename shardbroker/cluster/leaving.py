"""The sessions of a node that are not owned, by number and by key: for 60 s each that has moved is among them."""

from typing import Protocol, TypeVar

from shardbroker.cluster.messages import Key

__all__ = ["Leaving"]


class _Keyed(Protocol):
    key: Key


T = TypeVar("T", bound=_Keyed)


class Leaving(dict[int, T]):
    """Sessions by uid. A session keeps its key. It is changed by item assignment, `del` and `discard` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._uids: dict[Key, tuple[int, ...]] = {}

    def __setitem__(self, uid: int, holding: T) -> None:
        if uid not in self:
            self._uids[holding.key] = (*self._uids.get(holding.key, ()), uid)
        super().__setitem__(uid, holding)

    def __delitem__(self, uid: int) -> None:
        key = self[uid].key
        super().__delitem__(uid)
        left = tuple(one for one in self._uids[key] if one != uid)
        if left:
            self._uids[key] = left
        else:
            del self._uids[key]

    def discard(self, uid: int) -> None:
        """Removes a session if it is there."""
        if uid in self:
            del self[uid]

    def of(self, key: Key) -> list[T]:
        """Returns the sessions of a key."""
        return [self[uid] for uid in self._uids.get(key, ())]
