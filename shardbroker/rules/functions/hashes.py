"""Hashes, as lower-case hexadecimal digits."""

import hashlib

from shardbroker.rules.functions.arguments import octets, refusal, text
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import Value

__all__ = ["FUNCTIONS"]

_ALGORITHMS = {
    "md4": "md4",
    "md5": "md5",
    "ripemd160": "ripemd160",
    "sha": "sha1",
    "sha1": "sha1",
    "sha224": "sha224",
    "sha256": "sha256",
    "sha384": "sha384",
    "sha512": "sha512",
    "sha3_224": "sha3_224",
    "sha3_256": "sha3_256",
    "sha3_384": "sha3_384",
    "sha3_512": "sha3_512",
    "blake2b": "blake2b",
    "blake2s": "blake2s",
}
"""Names in Python by the names in SQL. md4 and ripemd160 depend on the OpenSSL of the machine."""


def _digest(algorithm: str, data: Value) -> str:
    found = octets(data)
    try:
        return hashlib.new(_ALGORITHMS[algorithm], found, usedforsecurity=False).hexdigest()
    except ValueError:
        raise refusal("algorithm", "one that the OpenSSL of this machine has", algorithm) from None


def _hash(algorithm: Value, data: Value) -> str:
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise refusal("algorithm", "one of " + ", ".join(_ALGORITHMS), algorithm)
    return _digest(algorithm, text(data) if isinstance(data, bool) else data)


FUNCTIONS: dict[str, Function] = {
    "hash": Function(_hash, (2,)),
    "md5": Function(lambda data: _digest("md5", data), (1,)),
    "sha": Function(lambda data: _digest("sha", data), (1,)),
    "sha256": Function(lambda data: _digest("sha256", data), (1,)),
}
