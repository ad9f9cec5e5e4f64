"""The resources that authenticators and sources of rules share, besides their settings."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from shardbroker.access.auth_client import rules_dir, users_dir
from shardbroker.access.stores import RuleStore, UserStore

__all__ = ["Services", "Stores"]


class Stores:
    """The stores of the broker's own users and rules, opened at first use: once per process, as LMDB requires."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._users: UserStore | None = None
        self._rules: RuleStore | None = None

    def users(self) -> UserStore:
        """Returns the store of users. Raises StoreError."""
        if self._users is None:
            self._users = UserStore(users_dir(self._data_dir))
        return self._users

    def rules(self) -> RuleStore:
        """Returns the store of rules. Raises StoreError."""
        if self._rules is None:
            self._rules = RuleStore(rules_dir(self._data_dir))
        return self._rules

    def close(self) -> None:
        for store in (self._users, self._rules):
            if store is not None:
                store.close()


@dataclass(frozen=True, slots=True)
class Services:
    """The resources shared by all authenticators and sources of one state of the settings."""

    stores: Stores
    threads: Executor
    """Threads that hash passwords."""
