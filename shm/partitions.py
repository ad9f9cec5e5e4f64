"""Assignment of sessions to workers.

    client id --crc32--> partition, one of 1024 --assigned to workers by weight--> worker

The number of workers and their weights may change at any start of the whole broker: every worker then takes over the sessions of
its partitions from their previous owners (shardbroker/worker/recovery/).
"""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

__all__ = ["PARTITIONS", "Division", "workers_of"]

PARTITIONS = 1024
"""Partitions of client ids, a power of two, and the upper limit of workers."""
_WORKERS_BITS = 16
"""Bits of the worker count in a division's number."""


@dataclass(frozen=True)
class Division:
    """An assignment of sessions to workers. Equal divisions assign every client id to the same worker."""

    workers: int
    weights: tuple[int, ...] = ()
    """Weight of each worker, from 1 to 255; empty if all are the same."""

    def __post_init__(self) -> None:
        if len(set(self.weights)) <= 1:
            object.__setattr__(self, "weights", ())
        assert not self.weights or len(self.weights) == self.workers

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Returns the worker of each partition.

        Each partition is assigned to the worker that is furthest behind its share: partition % workers if all weights are equal.
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
        """Returns the worker that owns this client id."""
        return self.owners[crc32(client_id) % PARTITIONS]

    def weight(self, worker: int) -> int:
        """Returns the weight of a worker; 1 if all are equal."""
        return self.weights[worker] if self.weights else 1

    @property
    def number(self) -> int:
        """Returns a number that identifies the division: the number of workers, and above it a digest of the weights, if any."""
        digest = crc32(bytes(self.weights)) << 1 | 1 if self.weights else 0
        return digest << _WORKERS_BITS | self.workers


def workers_of(number: int) -> int:
    """Returns the number of workers in a division's number."""
    return number & ((1 << _WORKERS_BITS) - 1)
