"""JSON web tokens (RFC 7519) as passwords: signed with a shared secret or a private key, or one of a JWKS.

A password that is no token, or has the signature of another key, is ignored, so that another back end may decide. A token with a
valid signature is denied if it has expired, is not valid yet, or differs from `verify_claims`.
"""

import asyncio
import base64
import binascii
import time
from pathlib import Path
from typing import Any

import jwt
import jwt.algorithms
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from shardbroker.access.contract import IGNORE, Answer, BackendError, Client, SettingError, allow, deny
from shardbroker.access.placeholders import Template, values_of
from shardbroker.config.access import Jwt
from shardbroker.config.connectors import HttpConnection
from shardbroker.connectors.errors import describe
from shardbroker.connectors.http import Http, read_body
from shardbroker.integrations.auth.services import Services

__all__ = ["Tokens", "authenticator"]

HMAC = ["HS256", "HS384", "HS512"]
PUBLIC_KEY = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
JWKS_MAX_BYTES = 1 << 20
"""Size limit of a JWKS, bytes."""
RETRY_S = 5.0
"""Minimum interval between two reads of the JWKS because of an unknown key or a failed endpoint, seconds."""


def authenticator(settings: Jwt, services: Services) -> "Tokens":
    return Tokens(settings)


class Tokens:
    """The authenticator of auth.jwt."""

    priority = 0

    def __init__(self, settings: Jwt) -> None:
        self._settings = settings
        self._claims = {name: Template.parse(text) for name, text in settings.verify_claims.items()}
        self._algorithms = HMAC if settings.algorithm == "hmac-based" else PUBLIC_KEY
        self._key: Any = None
        self._keys: dict[str | None, Any] = {}
        self._read_at = -float("inf")
        self._reading: asyncio.Task[None] | None = None
        self._problem = ""
        if settings.endpoint:
            connection = HttpConnection(url=settings.endpoint, timeout=settings.timeout, pool_size=1)
            self._connector = Http(connection, "auth.jwt")
            return
        if settings.algorithm == "hmac-based":
            self._key = _secret(settings)
        elif not settings.public_key:
            raise SettingError("auth.jwt.public_key", "a PEM file, since there is no auth.jwt.endpoint", settings.public_key)
        else:
            try:
                self._key = Path(settings.public_key).read_bytes()
            except OSError as error:
                raise SettingError("auth.jwt.public_key", "a PEM file", settings.public_key, error.strerror or "") from None
            _check_key(self._key, settings.public_key)

    async def authenticate(self, client: Client) -> Answer:
        token = client.username if self._settings.source == "username" else (client.password or b"").decode(errors="replace")
        if not token or token.count(".") != 2:
            return IGNORE
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._algorithms:
                return IGNORE
            key = await self._find(header.get("kid"))
            if key is None:
                return IGNORE
            claims = jwt.decode(token, key, algorithms=self._algorithms, options={"verify_aud": False, "verify_sub": False})
        except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError, jwt.InvalidIssuedAtError):
            return deny()
        except jwt.InvalidTokenError:
            return IGNORE
        values = values_of(client)
        for name, template in self._claims.items():
            wanted = template.fill(values)
            if wanted is None or name not in claims or str(claims[name]) != wanted:
                return deny()
        expires_at = claims.get("exp") if self._settings.disconnect_after_expire else None
        return allow(
            is_superuser=claims.get("is_superuser") is True, acl=claims.get(self._settings.acl_claim_name), expires_at=expires_at
        )

    async def _find(self, name: str | None) -> Any:
        """Returns the key of this name, or None. Raises BackendError."""
        if not self._settings.endpoint:
            return self._key
        known = self._known(name)
        age_s = time.monotonic() - self._read_at
        is_old = age_s > self._settings.refresh_interval
        if self._reading is None and (age_s > RETRY_S if known is None or self._problem else is_old):
            self._reading = asyncio.create_task(self._read_keys())
        # A known key waits neither for a failed endpoint nor for keys of other tokens.
        if self._reading is not None and (known is None or (is_old and not self._problem)):
            await asyncio.shield(self._reading)
            known = self._known(name)
        if self._problem and not self._keys:
            raise BackendError(f"JWKS endpoint: {self._problem}")
        return known

    def _known(self, name: str | None) -> Any:
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    async def _read_keys(self) -> None:
        """Reads the keys once for all logins that wait. If the endpoint fails, the old keys remain."""
        try:
            async with (
                self._connector.connection() as session,
                session.get(self._settings.endpoint, allow_redirects=False) as answer,
            ):
                body = await read_body(answer, JWKS_MAX_BYTES)
            self._keys = {key.key_id: key for key in jwt.PyJWKSet.from_json(body.decode()).keys}
            self._problem = ""
        except Exception as error:
            self._problem = describe(error)
        finally:
            self._reading = None
            self._read_at = time.monotonic()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._settings.endpoint:
            await self._connector.close()


def _check_key(key: bytes, path: str) -> None:
    for kind in (jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256), jwt.algorithms.ECAlgorithm(hashes.SHA256)):
        try:
            kind.prepare_key(key)
        except (jwt.InvalidKeyError, ValueError, TypeError, UnsupportedAlgorithm):
            continue
        return
    raise SettingError("auth.jwt.public_key", "a PEM file with a public key of RSA or of an elliptic curve", path)


def _secret(settings: Jwt) -> bytes:
    if not settings.secret:
        raise SettingError("auth.jwt.secret", "text, since auth.jwt.algorithm is hmac-based", "")
    if not settings.secret_base64_encoded:
        return bytes(settings.secret.encode())
    try:
        return base64.b64decode(settings.secret, validate=True)
    except binascii.Error:
        raise SettingError("auth.jwt.secret", "base64, since auth.jwt.secret_base64_encoded is true", "******") from None
