"""Users in an LDAP directory: their hash is compared here, or the server is asked to let them in (bind)."""

import asyncio
from contextlib import suppress
from typing import Any

import bonsai

from shardbroker.access.contract import IGNORE, Answer, BackendError, Client, allow, deny
from shardbroker.access.placeholders import Template, values_of
from shardbroker.integrations.connecting import address_of
from shardbroker.integrations.stored import Judge, Record, truth

__all__ = ["Ldap", "escape_dn", "escape_filter"]

NAMES = ("username", "clientid", "cert_common_name")
"""Placeholders in names and filters."""


class Ldap:
    """Searches with connections that are kept; binds as a user with a connection of its own."""

    priority = 0

    def __init__(self, section: Any, name: str, judge: Judge) -> None:
        self._section = section
        host, port = address_of(section, name)
        self._url = f"{'ldaps' if section.tls else 'ldap'}://{f'[{host}]' if ':' in host else host}:{port}"
        self._base = Template.parse(section.base_dn, NAMES)
        self._filter = Template.parse(section.filter, NAMES)
        self._judge = judge
        self._places = asyncio.Semaphore(section.pool_size)
        self._idle: list[Any] = []

    async def authenticate(self, client: Client) -> Answer:
        values = values_of(client)
        base, found_by = self._base.fill(values, escape_dn), self._filter.fill(values, escape_filter)
        if base is None or found_by is None:
            return IGNORE
        async with asyncio.timeout(self._section.timeout):
            async with self._places:
                entry = await self._search(base, found_by)
                if entry is not None and self._section.mode == "bind":
                    if not client.password:
                        return deny()  # a bind without a password succeeds as nobody
                    known = await self._bind(str(entry["dn"]), client.password)
                    return allow(is_superuser=self._is_superuser(entry)) if known else deny()
        if self._section.mode == "bind":
            return IGNORE
        stored = _first(entry, self._section.password_attribute) if entry is not None else None
        if stored is None:
            return await self._judge.judge(client, None)
        text = stored.decode() if isinstance(stored, bytes) else str(stored)
        return await self._judge.judge(client, Record(text, "", self._is_superuser(entry)))

    def _is_superuser(self, entry: Any) -> bool:
        return truth(_first(entry, self._section.is_superuser_attribute))

    async def _search(self, base: str, found_by: str) -> Any:
        connection = self._idle.pop() if self._idle else await self._connect(self._section.username, self._section.password)
        try:
            found = await connection.search(
                base,
                bonsai.LDAPSearchScope.SUBTREE,
                found_by,
                [self._section.password_attribute, self._section.is_superuser_attribute],
                sizelimit=2,
            )
        except bonsai.NoSuchObjectError:
            self._idle.append(connection)
            return None
        except BaseException:
            with suppress(Exception):
                connection.close()
            raise
        self._idle.append(connection)
        if len(found) > 1:
            raise BackendError("the filter finds more than one entry")
        return found[0] if found else None

    async def _bind(self, name: str, password: bytes) -> bool:
        try:
            connection = await self._connect(name, password.decode())
        except (bonsai.AuthenticationError, UnicodeDecodeError):
            return False
        connection.close()
        return True

    async def _connect(self, user: str, password: str) -> Any:
        client = bonsai.LDAPClient(self._url)
        if self._section.tls_ca:
            client.set_ca_cert(self._section.tls_ca)
        if user:
            client.set_credentials("SIMPLE", user=user, password=password)
        return await client.connect(is_async=True, timeout=self._section.timeout)

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def escape_filter(text: str) -> str:
    """A value in a search filter (RFC 4515): everything but letters and digits of ASCII as `\\xx`."""
    return "".join(
        chr(byte) if 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 else f"\\{byte:02x}"
        for byte in text.encode(errors="surrogateescape")
    )


def escape_dn(text: str) -> str:
    """A value in a distinguished name (RFC 4514), by the same rule: it allows `\\xx` everywhere."""
    return escape_filter(text)


def _first(entry: Any, attribute: str) -> Any:
    values = entry.get(attribute) or []
    return values[0] if values else None
