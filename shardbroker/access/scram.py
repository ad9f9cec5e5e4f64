"""SCRAM, the server's side (RFC 5802, RFC 7677), without channel binding.

    client: n,,n=ada,r=<nonce>                        client first
    server: r=<nonce + ours>,s=<salt>,i=4096          server first
    client: c=biws,r=<nonce + ours>,p=<proof>         client final
    server: v=<signature>                             server final

An unknown user gets a salt too, always the same one for a name, and fails at the proof like a wrong password.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable

from shardbroker.access.stores import ScramUser

__all__ = ["METHODS", "ScramError", "ScramServer", "scram_user"]

METHODS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Maps an Authentication Method of MQTT to a digest."""
SALT_BYTES, NONCE_BYTES = 16, 24
SERVER_SECRET = secrets.token_bytes(32)
"""The secret of this process from which salts of unknown users are derived."""


class ScramError(Exception):
    """A failed exchange."""


def scram_user(name: str, password: str, algorithm: str, iterations: int, is_superuser: bool = False) -> ScramUser:
    """Returns the record to store for a user. The password is not normalized: SASLprep would not change ASCII."""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    return ScramUser(
        name,
        salt,
        hashlib.new(algorithm, client_key).digest(),
        hmac.digest(salted, b"Server Key", algorithm),
        iterations,
        is_superuser,
    )


class ScramServer:
    """One exchange. `find` returns a user by name; `iterations` is sent for unknown ones."""

    def __init__(self, algorithm: str, iterations: int, find: Callable[[str], ScramUser | None]) -> None:
        self._algorithm = algorithm
        self._iterations = iterations
        self._find = find
        self._first = ""
        self._server_first = ""
        self._nonce = ""
        self.user: ScramUser | None = None
        self.username = ""

    def start(self, message: bytes) -> bytes:
        """Takes the client's first message and returns the server's first. Raises ScramError."""
        text = _text(message)
        flag, _, rest = text.partition(",")
        identity, _, bare = rest.partition(",")
        if flag not in ("n", "y") or identity:
            raise ScramError("channel binding and authorization identities are not supported")
        fields = _fields(bare)
        if list(fields)[:2] != ["n", "r"] or not fields["r"] or not fields["n"]:
            raise ScramError("the first message must have n= and r=")
        self.username = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self.user = self._find(self.username)
        salt, iterations = (
            (self.user.salt, self.user.iterations)
            if self.user is not None
            else (hmac.digest(SERVER_SECRET, self.username.encode(), "sha256")[:SALT_BYTES], self._iterations)
        )
        self._first = bare
        self._nonce = fields["r"] + secrets.token_urlsafe(NONCE_BYTES)
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        return self._server_first.encode()

    def finish(self, message: bytes) -> bytes:
        """Takes the client's final message and returns the server's final. Raises ScramError."""
        text = _text(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        try:
            proof = base64.b64decode(proof_text, validate=True)
            binding = base64.b64decode(fields.get("c", ""), validate=True)
        except binascii.Error:
            raise ScramError("not base64") from None
        if binding not in (b"n,,", b"y,,") or fields.get("r", "") != self._nonce:
            raise ScramError("response does not match the challenge")
        size = hashlib.new(self._algorithm).digest_size
        stored_key = self.user.stored_key if self.user is not None else secrets.token_bytes(size)
        signed = f"{self._first},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, self._algorithm)
        if len(proof) != size:
            raise ScramError("wrong password")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        known = hmac.compare_digest(hashlib.new(self._algorithm, client_key).digest(), stored_key)
        if not known or self.user is None:
            raise ScramError("wrong password")
        return b"v=" + base64.b64encode(hmac.digest(self.user.server_key, signed, self._algorithm))


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or len(key) != 1:
            raise ScramError("message: must have fields such as n=name")
        found[key] = value
    return found
