"""Keys of LMDB tables: a text up to the size of a key, a digest in place of a longer one.

    text                           up to KEY_MAX bytes
    LONG_MARK | digest             of a longer text; LONG_MARK is in no UTF-8 text
    levels | LONG_MARK | digest    of a longer topic or filter, after as many whole levels as fit: a search by level finds it

The table of retained messages is on disk: its keys are part of its format.
"""

from hashlib import blake2b

__all__ = ["DIGEST", "KEY_MAX", "LONG_MARK", "digest_of", "key_of", "levels_key_of"]

KEY_MAX = 511
"""Longest LMDB key, and longest dupsort value, bytes."""
DIGEST = 16
"""Size of a digest, bytes: collisions are out of reach."""
LONG_MARK = b"\xff"


def digest_of(text: bytes) -> bytes:
    """Returns the digest of a text that is too long for a key."""
    return blake2b(text, digest_size=DIGEST).digest()


def key_of(text: bytes) -> bytes:
    """Returns the key of a text of any length."""
    return text if len(text) <= KEY_MAX else LONG_MARK + digest_of(text)


def levels_key_of(levels: bytes, text: bytes) -> bytes:
    """Returns the key of a text whose levels, each but the last with a NUL behind it, are too long for a key."""
    cut = levels.rfind(b"\0", 0, KEY_MAX - DIGEST - 1)
    return levels[: cut + 1] + LONG_MARK + digest_of(text)
