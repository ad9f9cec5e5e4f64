"""All authenticators and sources of one state of the settings. A change of the settings makes a new `Backends`."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from shardbroker.access.auth_client import LOCAL_SOURCES
from shardbroker.access.contract import Answer, Authenticator, BackendError, Client
from shardbroker.access.files import FileError
from shardbroker.access.stores import StoreError
from shardbroker.config import Settings
from shardbroker.integrations.auth import modules
from shardbroker.integrations.auth.chain import AuthenticatorChain, SourceChain
from shardbroker.integrations.auth.factory import (
    CONVERSATIONS,
    build_authenticators,
    build_sources,
    build_subscription_sources,
)
from shardbroker.integrations.auth.services import Services, Stores
from shardbroker.integrations.auth.subscriptions import SubscriptionSources
from shardbroker.integrations.failures import Report

__all__ = ["Backends"]

NO_MEMBERS = (*CONVERSATIONS, modules.ALL)
"""Names in a chain without an authenticator of that name."""

HASHING_NICENESS = 10
"""The niceness of threads that hash passwords.

A hash occupies a core for tens of ms, whereas workers need it for µs: where both compete, workers have priority. With this niceness
the kernel still gives hashing a tenth of a core that other processes could use fully.
"""


def _lower_priority() -> None:
    """Lowers the priority of this thread; on Linux each thread has a niceness of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), HASHING_NICENESS)


class Backends:
    """The members of all chains. Raises BackendError or StoreError if one that the settings name cannot be made."""

    def __init__(self, settings: Settings, stores: Stores, report: Report) -> None:
        self.settings = settings
        self._threads = ThreadPoolExecutor(settings.auth.hash_threads, thread_name_prefix="hash", initializer=_lower_priority)
        self._services = Services(stores, self._threads)
        chains = [settings.auth.chain, *(one.auth_chain for one in settings.listeners.values())]
        names = list(dict.fromkeys(name for chain in chains for name in chain if name != "inherit"))
        self._members, self._installed = self._made(names)
        sources = list(settings.acl.sources)
        while sources and sources[0] in LOCAL_SOURCES:
            sources.pop(0)
        self._sources = build_sources(settings, sources, self._services)
        self._chain = AuthenticatorChain(self._members, settings.auth.on_error, report)
        self.authorize = SourceChain(self._sources, settings.acl.on_error, report).authorize
        self._tables = SubscriptionSources(settings.auto_subscribe, build_subscription_sources(settings, self._services), report)
        self.subscriptions = self._tables.of

    async def authenticate(self, names: Sequence[str], client: Client) -> tuple[Answer, str]:
        """Authenticates a client by a chain of names; returns the answer and a reason for the log.

        The chain of a listener added at run time may name further authenticators: they are made here.
        """
        for name in names:
            if name not in self._members and name not in NO_MEMBERS:
                try:
                    self._members |= self._made([name])[0]
                except (BackendError, StoreError) as error:
                    self._members[name] = _Unavailable(str(error))
        return await self._chain.authenticate(modules.expand(names, self._installed), client)

    def reload(self) -> list[str]:
        """Reloads files; returns the errors."""
        problems = []
        for name, member in [*self._members.items(), *self._sources]:
            reload = getattr(member, "reload", None)
            if reload is not None:
                try:
                    reload()
                except FileError as error:
                    problems.append(f"{name}: reload: {error}; the previous content stays in force")
        return problems

    async def close(self) -> None:
        closing = [member.close for member in self._members.values()] + [member.close for _, member in self._sources]
        closing.append(self._tables.close)
        for close in closing:
            with suppress(Exception):
                await close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _made(self, names: Sequence[str]) -> tuple[dict[str, Authenticator], dict[str, Authenticator]]:
        if {"builtin", "scram"} & set(names):
            self._services.stores.users()  # opened early, so that a store that cannot be opened ends the start
        return build_authenticators(self.settings, names, self._services)


class _Unavailable:
    """A placeholder for an authenticator that could not be made: each request to it fails."""

    priority = 0

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def authenticate(self, client: Client) -> Answer:
        raise BackendError(self._problem)

    async def close(self) -> None:
        pass
