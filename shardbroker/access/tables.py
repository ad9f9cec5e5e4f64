"""Kinds, limits and keys of users, rules and bans, for their stores and for rows of other nodes."""

import hashlib
from typing import Literal

__all__ = [
    "BAN_KINDS", "HASH_MAX", "KEY_MAX", "NAME_MAX", "RULES_BYTES_MAX", "RULES_MAX", "RULE_KINDS", "SCRAM_ALGORITHMS", "TEXT_MAX",
    "UNTIL_MAX", "USER_KINDS", "BanKind", "key_of", "rules_key",
]  # fmt: skip

KEY_MAX = 511
"""Size limit of an LMDB key, bytes. A longer name is stored under its digest, and the name is compared."""
NAME_MAX = 65535
"""Limit of a user name or client id by the protocol, bytes."""
HASH_MAX = 4096
"""Bytes of the hash of a password, and of its salt: those of argon2 and bcrypt have some 100."""
TEXT_MAX = 65535
"""Bytes of the value of a ban, of its author and of its reason: with all of them a row fits a frame between nodes."""
UNTIL_MAX = 1e12
"""Latest end of a ban that is not permanent, Unix s."""
RULES_MAX = 100
"""Rules per client, per user or for all, as in EMQX."""
RULES_BYTES_MAX = 1 << 20
"""Bytes of the rules of one client, of one user or of all, as JSON: they fit a frame between nodes."""
USER_KINDS = ("username", "clientid")
SCRAM_ALGORITHMS = ("sha256", "sha512")
RULE_KINDS = ("username", "clientid", "all")
BanKind = Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]
BAN_KINDS: tuple[BanKind, ...] = ("clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net")
"""The kinds of bans, as in EMQX."""


def key_of(kind: str, name: str) -> bytes:
    """Returns the key of a name, or its digest if the key is too long."""
    key = f"{kind}:{name}".encode()
    return key if len(key) <= KEY_MAX else f"{kind}#".encode() + hashlib.sha256(key).digest()


def rules_key(kind: str, name: str) -> bytes:
    """Returns the key of the rules of a user, of a client, or of all."""
    return b"all" if kind == "all" else key_of(kind, name)
