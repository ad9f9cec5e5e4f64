"""Password hashes: made with argon2id, verified in all formats of EMQX, mosquitto's plugins and LDAP.

All functions compute for up to tens of milliseconds: they are called in threads of the process integrations, and by ctl. Only what
`is_quick` names takes less than the way to a thread.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from shardbroker.access.contract import BackendError

__all__ = ["Scheme", "hash_password", "is_quick", "verify", "verify_unknown_user"]

ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES = 19_456, 2, 1
"""The cost of a new password: OWASP's minimum for argon2id. A login takes about 20 ms of one core, and 19 MB for that time."""
PLAIN_DIGESTS = {"md5": "md5", "sha": "sha1", "sha256": "sha256", "sha512": "sha512"}
MOSQUITTO_ITERATIONS_MAX = 10_000_000
"""The limit for a `$7$` hash, as for auth.*.pbkdf2_iterations."""
QUICK_MAX = 1024
"""Longest password, and longest salt and stored hash, whose digest takes a few µs; bytes and characters."""
LDAP_DIGESTS = {
    "{SSHA}": "sha1", "{SHA}": "sha1", "{SSHA256}": "sha256", "{SHA256}": "sha256", "{SSHA384}": "sha384", "{SHA384}": "sha384",
    "{SSHA512}": "sha512", "{SHA512}": "sha512", "{MD5}": "md5", "{SMD5}": "md5",
}  # fmt: skip
"""The schemes of userPassword of RFC 2307; in the decoded text the digest is followed by the salt."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """The hash scheme of passwords whose stored text does not name it."""

    name: str = "argon2id"
    salt_position: str = "prefix"
    pbkdf2_mac: str = "sha256"
    pbkdf2_iterations: int = 4096
    pbkdf2_length: int = 0

    @classmethod
    def of(cls, section: Any) -> "Scheme":
        """Returns the scheme of a settings section `Hashed`."""
        return cls(
            section.hash, section.salt_position, section.pbkdf2_mac, section.pbkdf2_iterations, section.pbkdf2_length
        )


@cache
def _argon2() -> Any:
    import argon2

    return argon2.PasswordHasher(time_cost=ARGON2_PASSES, memory_cost=ARGON2_MEMORY_KIB, parallelism=ARGON2_LANES)


def hash_password(password: bytes) -> str:
    """Returns a new hash: argon2id with a random salt, which is part of it."""
    return str(_argon2().hash(password))


def is_quick(scheme: Scheme, stored: str, salt: str, password: bytes) -> bool:
    """Returns whether verify() computes a single digest of little text."""
    if max(len(stored), len(salt), len(password)) > QUICK_MAX or stored.startswith(_PREFIXES):
        return False
    return scheme.name == "plain" or scheme.name in PLAIN_DIGESTS


def verify(scheme: Scheme, stored: str, salt: str, password: bytes) -> bool:
    """Returns whether the password matches the stored hash. Raises BackendError for a hash that cannot be parsed."""
    try:
        return _verify(scheme, stored, salt, password)
    except BackendError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise BackendError(f"stored password hash cannot be used: {type(error).__name__}") from None


def verify_unknown_user(scheme: Scheme, password: bytes) -> None:
    """Takes as long as verify(): the response time must not reveal that a user is unknown."""
    verify(scheme, *_unused_hash(scheme), password)


@cache
def _unused_hash(scheme: Scheme) -> tuple[str, str]:
    """Returns hash and salt of an unused password, in the scheme of the users."""
    if scheme.name == "argon2id":
        return hash_password(b"nobody"), ""
    if scheme.name == "bcrypt":
        import bcrypt

        return bcrypt.hashpw(b"nobody", bcrypt.gensalt(10)).decode(), ""
    return "00", "salt"


def _verify(scheme: Scheme, stored: str, salt: str, password: bytes) -> bool:
    for prefix, check in _TELLING:
        if stored.startswith(prefix):
            return check(stored, password)
    if stored.startswith("{") and stored[: stored.find("}") + 1].upper() in LDAP_DIGESTS:
        return _ldap(stored, password)
    if scheme.name == "pbkdf2":
        return _same_hex(_pbkdf2(scheme, salt, password).hex(), stored)
    if scheme.name == "plain":
        return hmac.compare_digest(_salted(scheme, salt, password), stored.encode())
    if scheme.name in PLAIN_DIGESTS:
        digest = hashlib.new(PLAIN_DIGESTS[scheme.name], _salted(scheme, salt, password), usedforsecurity=False)
        return _same_hex(digest.hexdigest(), stored)
    raise BackendError(f"stored password hash is not {scheme.name}")


def _same_hex(computed: str, stored: str) -> bool:
    return hmac.compare_digest(computed.encode(), stored.strip().lower().encode())


def _salted(scheme: Scheme, salt: str, password: bytes) -> bytes:
    if scheme.salt_position == "disable":
        return password
    return salt.encode() + password if scheme.salt_position == "prefix" else password + salt.encode()


def _pbkdf2(scheme: Scheme, salt: str, password: bytes) -> bytes:
    length = scheme.pbkdf2_length or None
    return hashlib.pbkdf2_hmac(scheme.pbkdf2_mac, password, salt.encode(), scheme.pbkdf2_iterations, length)


def _check_argon2(stored: str, password: bytes) -> bool:
    import argon2

    try:
        return bool(_argon2().verify(stored, password))
    except argon2.exceptions.VerifyMismatchError:
        return False
    except argon2.exceptions.Argon2Error as error:
        raise BackendError(f"stored argon2 hash cannot be read: {type(error).__name__}") from None


def _check_bcrypt(stored: str, password: bytes) -> bool:
    import bcrypt

    # bcrypt uses 72 bytes. All implementations cut longer passwords until some began to reject them.
    return bool(bcrypt.checkpw(password[:72], stored.encode()))


def _ldap(stored: str, password: bytes) -> bool:
    name, _, text = stored.partition("}")
    digest = LDAP_DIGESTS[name.upper() + "}"]
    raw = base64.b64decode(text, validate=True)
    size = hashlib.new(digest, usedforsecurity=False).digest_size
    if len(raw) < size:
        raise BackendError("stored password hash is truncated")
    return hmac.compare_digest(hashlib.new(digest, password + raw[size:], usedforsecurity=False).digest(), raw[:size])


def _check_mosquitto(stored: str, password: bytes) -> bool:
    """Verifies a hash of mosquitto_passwd.

    `$7$iterations$salt$hash` is PBKDF2 with SHA-512, `$6$salt$hash` the SHA-512 of password and salt; salt and hash are base64.
    """
    _, kind, *fields = stored.split("$")
    iterations = int(fields.pop(0)) if kind == "7" else 0
    salt, wanted = (base64.b64decode(part, validate=True) for part in fields)
    if not iterations <= MOSQUITTO_ITERATIONS_MAX or len(wanted) != hashlib.sha512().digest_size:
        raise BackendError(f"stored password hash is not ${kind}$ of mosquitto_passwd")
    if kind == "7":
        return hmac.compare_digest(hashlib.pbkdf2_hmac("sha512", password, salt, iterations), wanted)
    return hmac.compare_digest(hashlib.sha512(password + salt).digest(), wanted)


_TELLING: tuple[tuple[str, Callable[[str, bytes], bool]], ...] = (
    ("$argon2", _check_argon2),
    ("$2a$", _check_bcrypt),
    ("$2b$", _check_bcrypt),
    ("$2y$", _check_bcrypt),
    ("$6$", _check_mosquitto),
    ("$7$", _check_mosquitto),
)
"""Prefixes of hashes that identify their own scheme."""
_PREFIXES = tuple(prefix for prefix, _ in _TELLING)
