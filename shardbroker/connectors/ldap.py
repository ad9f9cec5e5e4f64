"""LDAP directories, by bonsai."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import bonsai

from shardbroker.config.connectors import LdapConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Ldap"]


class Ldap(Connector[Any]):
    """Lends connections that are bound as the account of the settings. A connection on which a request failed is closed."""

    def __init__(self, settings: LdapConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self._settings = settings
        host, port = address_of(settings, key)
        tls_of(settings, key)  # the library makes a context of its own
        self._url = f"{'ldaps' if settings.tls else 'ldap'}://{f'[{host}]' if ':' in host else host}:{port}"
        self._places = asyncio.Semaphore(settings.pool_size)
        self._idle: list[Any] = []

    async def bind(self, name: str, password: str) -> bool:
        """Returns whether the server accepts an account, tried on a connection of its own.

        To be called while a connection is lent: the call shares its place in the pool and its timeout.
        """
        try:
            connection = await self._open(name, password)
        except bonsai.AuthenticationError:
            return False
        connection.close()
        return True

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        async with self._places:
            connection = self._idle.pop() if self._idle else await self._open(self._settings.username, self._settings.password)
            try:
                yield connection
            except BaseException:
                _discard(connection)
                raise
            self._idle.append(connection)

    async def _open(self, name: str, password: str) -> Any:
        client = bonsai.LDAPClient(self._url)
        if self._settings.tls:
            self._set_tls(client)
        if name:
            client.set_credentials("SIMPLE", user=name, password=password)
        connection = client.connect(is_async=True, timeout=self._settings.timeout)
        try:
            return await connection
        except BaseException:
            _discard(connection)
            raise

    def _set_tls(self, client: Any) -> None:
        settings = self._settings
        if settings.tls_ca:
            client.set_ca_cert(settings.tls_ca)
        if settings.tls_cert:
            client.set_client_cert(settings.tls_cert)
            client.set_client_key(settings.tls_key or settings.tls_cert)
        client.set_cert_policy("demand" if settings.tls_verify else "never")

    async def _ping(self, lent: Any) -> None:
        with suppress(bonsai.NoSuchObjectError, bonsai.InsufficientAccess):  # answers too
            await lent.search("", bonsai.LDAPSearchScope.BASE, "(objectClass=*)", ["1.1"])

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError | bonsai.ConnectionError | bonsai.TimeoutError | bonsai.AuthenticationError)

    async def _close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _discard(connection: Any) -> None:
    """Closes a connection on which a request failed.

    A cancelled request leaves the library's callbacks on the event loop, which would call them for the next file with this number.
    """
    with suppress(Exception):
        loop, descriptor = asyncio.get_running_loop(), connection.fileno()
        if descriptor >= 0:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
        connection.close()
