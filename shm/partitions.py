"""Which worker has which sessions.

    client id --crc32--> partition, one of 1024 --dealt out to workers by weight--> worker

The number of workers and their weights may change whenever the whole broker starts: every worker then takes the sessions of its
partitions over from whoever had them (shardbroker/worker/recover.py).
"""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

__all__ = ["PARTITIONS", "Division", "workers_of"]

PARTITIONS = 1024
"""Of client ids, a power of two: as many as there may be workers."""
_WORKERS_BITS = 16
"""Of a division's number."""


@dataclass(frozen=True)
class Division:
    """Sessions divided among workers. Two that are equal give every client id to the same worker."""

    workers: int
    weights: tuple[int, ...] = ()
    """Of each worker, from 1 to 255; none if all are the same."""

    def __post_init__(self) -> None:
        if len(set(self.weights)) <= 1:
            object.__setattr__(self, "weights", ())
        assert not self.weights or len(self.weights) == self.workers

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Worker of each partition.

        Turn by turn, whoever is furthest behind its share: partition % workers, if all weights are the same.
        """
        if not self.weights:
            return tuple(partition % self.workers for partition in range(PARTITIONS))
        total, behind, owners = sum(self.weights), [0] * self.workers, []
        for _ in range(PARTITIONS):
            behind = [lag + weight for lag, weight in zip(behind, self.weights, strict=True)]
            furthest = max(range(self.workers), key=behind.__getitem__)
            behind[furthest] -= total
            owners.append(furthest)
        return tuple(owners)

    def worker_of(self, client_id: bytes) -> int:
        """The worker that owns this client id."""
        return self.owners[crc32(client_id) % PARTITIONS]

    def weight(self, worker: int) -> int:
        """1, if all are the same."""
        return self.weights[worker] if self.weights else 1

    @property
    def number(self) -> int:
        """What tells it from others: the number of workers, with a digest of the weights above it if there are any."""
        digest = crc32(bytes(self.weights)) << 1 | 1 if self.weights else 0
        return digest << _WORKERS_BITS | self.workers


def workers_of(number: int) -> int:
    """The number of workers in a division's number."""
    return number & ((1 << _WORKERS_BITS) - 1)
