"""Everybody who may be asked, made from one state of the settings. When those change, another one takes its place."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.access.contract import Answer, Authenticator, BackendError, Client
from shardbroker.access.files import FileError
from shardbroker.access.gate import LOCAL_SOURCES, rules_dir, users_dir
from shardbroker.access.stores import RuleStore, StoreError, UserStore
from shardbroker.integrations import modules
from shardbroker.integrations.building import build_authenticators, build_sources
from shardbroker.integrations.chain import AuthenticatorChain, Report, SourceChain

__all__ = ["Backends", "Stores"]

NO_MEMBERS = ("scram", modules.ALL)
"""Names in a chain that stand for nobody who is asked by themselves."""

HASHING_NICENESS = 10
"""Of threads that hash passwords. A hash keeps a core for tens of ms, and workers have work for µs: where they meet, workers go
first. With this the kernel still gives hashing a tenth of a core that somebody else could fill."""


def _give_way() -> None:
    """On Linux each thread has a niceness of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), HASHING_NICENESS)



class Stores:
    """The broker's own users and rules, opened when they are first needed: once in a process, as LMDB wants it."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._users: UserStore | None = None
        self._rules: RuleStore | None = None

    def users(self) -> UserStore:
        """Raises StoreError."""
        if self._users is None:
            self._users = UserStore(users_dir(self._data_dir))
        return self._users

    def rules(self) -> RuleStore:
        """Raises StoreError."""
        if self._rules is None:
            self._rules = RuleStore(rules_dir(self._data_dir))
        return self._rules

    def close(self) -> None:
        for store in (self._users, self._rules):
            if store is not None:
                store.close()


class Backends:
    """Raises BackendError or StoreError if somebody whom the settings name cannot be made."""

    def __init__(self, settings: Any, stores: Stores, report: Report) -> None:
        self.settings = settings
        self._stores = stores
        self._threads = ThreadPoolExecutor(settings.auth.hash_threads, thread_name_prefix="hash", initializer=_give_way)
        chains = [settings.auth.chain, *(one.auth_chain for one in settings.listeners.values())]
        names = list(dict.fromkeys(name for chain in chains for name in chain if name != "inherit"))
        self._members, self._installed = self._made(names)
        sources = list(settings.acl.sources)
        while sources and sources[0] in LOCAL_SOURCES:
            sources.pop(0)
        self._sources = build_sources(settings, sources, stores.rules)
        self._chain = AuthenticatorChain(self._members, settings.auth.on_error, report)
        self.authorize = SourceChain(self._sources, settings.acl.on_error, report).authorize

    async def authenticate(self, names: Sequence[str], client: Client) -> tuple[Answer, str]:
        """`names`: a chain. A listener that was added while the broker runs may name members that nobody has named before."""
        for name in names:
            if name not in self._members and name not in NO_MEMBERS:
                try:
                    self._members |= self._made([name])[0]
                except (BackendError, StoreError) as error:
                    self._members[name] = _Unmade(str(error))
        return await self._chain.authenticate(modules.expand(names, self._installed), client)

    def reload(self) -> list[str]:
        """Has those read their files again that have any; what went wrong."""
        problems = []
        for name, member in [*self._members.items(), *self._sources]:
            reload = getattr(member, "reload", None)
            if reload is not None:
                try:
                    reload()
                except FileError as error:
                    problems.append(f"{name}: reload: {error}; what was there before stays")
        return problems

    async def close(self) -> None:
        closing = [member.close for member in self._members.values()] + [member.close for _, member in self._sources]
        for close in closing:
            with suppress(Exception):
                await close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _made(self, names: Sequence[str]) -> tuple[dict[str, Authenticator], dict[str, Authenticator]]:
        users = self._stores.users() if {"builtin", "scram"} & set(names) else None
        return build_authenticators(self.settings, names, users, self._threads)


class _Unmade:
    """Stands for somebody who could not be made: every question to it fails."""

    priority = 0

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def authenticate(self, client: Client) -> Answer:
        raise BackendError(self._problem)

    async def close(self) -> None:
        pass
