"""Users in an LDAP directory: their hash is compared here, or the server verifies the password (bind)."""

from typing import Any

import bonsai

from shardbroker.access.contract import IGNORE, Answer, BackendError, Client, allow, deny
from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template, values_of
from shardbroker.config.access import Ldap as LdapAuth
from shardbroker.connectors.ldap import Ldap
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Judge, Record, truth

__all__ = ["authenticator", "escape_dn", "escape_filter"]

NAMES = ("username", "clientid", "cert_common_name")
"""Placeholders allowed in names and filters."""


def authenticator(settings: LdapAuth, services: Services) -> "LdapAuthenticator":
    return LdapAuthenticator(settings, "auth.ldap", Judge(Scheme.of(settings), services.threads))


class LdapAuthenticator:
    """Searches a user's entry; then compares its hash, or binds as the user."""

    priority = 0

    def __init__(self, settings: LdapAuth, key: str, judge: Judge) -> None:
        self._settings = settings
        self._base = Template.parse(settings.base_dn, NAMES)
        self._filter = Template.parse(settings.filter, NAMES)
        self._connector = Ldap(settings, key)
        self._judge = judge
        self.close = self._connector.close

    async def authenticate(self, client: Client) -> Answer:
        values = values_of(client)
        base, found_by = self._base.fill(values, escape_dn), self._filter.fill(values, escape_filter)
        if base is None or found_by is None:
            return IGNORE
        async with self._connector.connection() as connection:
            entry = await self._search(connection, base, found_by)
            if self._settings.mode == "bind":
                if entry is None:
                    return IGNORE
                if not client.password or not await self._bind(str(entry["dn"]), client.password):
                    return deny()  # without a password a bind succeeds anonymously
                return allow(is_superuser=self._is_superuser(entry))
        stored = _first(entry, self._settings.password_attribute) if entry is not None else None
        if stored is None:
            return await self._judge.judge(client, None)
        text = stored.decode() if isinstance(stored, bytes) else str(stored)
        return await self._judge.judge(client, Record(text, "", self._is_superuser(entry)))

    def _is_superuser(self, entry: Any) -> bool:
        return truth(_first(entry, self._settings.is_superuser_attribute))

    async def _search(self, connection: Any, base: str, found_by: str) -> Any:
        """Returns the entry, or None. Raises BackendError if there is more than one."""
        attributes = [self._settings.password_attribute, self._settings.is_superuser_attribute]
        try:
            found = await connection.search(base, bonsai.LDAPSearchScope.SUBTREE, found_by, attributes, sizelimit=2)
        except bonsai.NoSuchObjectError:
            return None
        if len(found) > 1:
            raise BackendError("filter matches more than one entry")
        return found[0] if found else None

    async def _bind(self, name: str, password: bytes) -> bool:
        try:
            return await self._connector.bind(name, password.decode())
        except UnicodeDecodeError:
            return False


def escape_filter(text: str) -> str:
    """Returns a value for a search filter (RFC 4515): everything but letters and digits of ASCII as `\\xx`."""
    return "".join(
        chr(byte) if 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 else f"\\{byte:02x}"
        for byte in text.encode(errors="surrogateescape")
    )


def escape_dn(text: str) -> str:
    """Returns a value for a distinguished name (RFC 4514), by the same rule: it allows `\\xx` everywhere."""
    return escape_filter(text)


def _first(entry: Any, attribute: str) -> Any:
    values = entry.get(attribute) or []
    return values[0] if values else None
