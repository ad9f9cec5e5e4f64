"""Owners of the registry's partitions by rendezvous hashing (HRW): the loss of a node moves its partitions and no other."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

__all__ = ["PARTITIONS", "owners", "rank"]

PARTITIONS = 1024
"""Partitions of client ids: crc32(client id) % 1024, as the division among workers. 44 a node with 23 nodes."""
SCORE_BYTES = 8
SCORES_KEPT = 256
"""Nodes whose scores are kept, 42 KB each; ids are 1 to 250."""


@lru_cache(maxsize=SCORES_KEPT)
def _scores(node_id: int) -> tuple[bytes, ...]:
    """Returns the score of a node in each partition; it is the same on all nodes."""
    key = node_id.to_bytes(2, "big")
    keys = (key + partition.to_bytes(2, "big") for partition in range(PARTITIONS))
    return tuple(blake2b(text, digest_size=SCORE_BYTES, person=b"shard-hrw").digest() for text in keys)


def owners(members: Iterable[int]) -> tuple[int, ...]:
    """Returns the owner of each partition among the members (node ids). Raises ValueError without members."""
    ordered = sorted(set(members))
    if not ordered:
        raise ValueError("members: must be at least one node id, got an empty set")
    table = [(_scores(node_id), node_id) for node_id in ordered]
    return tuple(max((scores[partition], node_id) for scores, node_id in table)[1] for partition in range(PARTITIONS))


def rank(members: Iterable[int], partition: int) -> list[int]:
    """Returns the members in the order in which they would own a partition."""
    return sorted(set(members), key=lambda node_id: (_scores(node_id)[partition], node_id), reverse=True)
