"""The lanes of a process flows into the inboxes of the workers, through which it publishes."""

import os
import time
from collections.abc import Callable

from shardbroker.flows.bridge.records import BRIDGED, Records
from shm.records import encode_spilled, open_record
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["Lanes", "Stopped"]

WAIT_S = 0.0005
"""Between two looks at a full ring: the worker takes thousands of records in a pass."""
RECORD_PUBLISH = 1
"""Kind of a record that publishes (shm/records.pxd)."""


class Stopped(Exception):
    """The process ends, or its worker has ended: the record was not sent, and its message will be seen again."""


class Lanes:
    """slot: of this process. is_over: whether waiting for room has to end."""

    def __init__(self, topology: Topology, slot: int, is_over: Callable[[], bool]) -> None:
        self._topology, self._is_over = topology, is_over
        self._slot = slot
        self._inboxes = [Inbox.attach(topology.inbox_name(worker)) for worker in range(topology.workers)]
        self._rings = [inbox.lanes[slot] for inbox in self._inboxes]
        self._synced = topology.settings.durability.level == "machine"
        self._spilled = 0
        self._unrung: set[int] = set()

    def worker_of(self, journal: int) -> int:
        """Returns the worker that publishes for a journal: the publishers of one journal keep their order."""
        return journal % len(self._rings)

    @property
    def workers(self) -> range:
        return range(len(self._rings))

    def try_put(self, worker: int, record: bytes, kind: int = RECORD_PUBLISH) -> bool:
        """Puts a record into the lane of a worker; returns False if that is full. Raises OSError."""
        ring = self._rings[worker]
        if len(record) <= ring.capacity_of_records():
            placed = ring.put(record)
        else:
            reference = self._spill(record, kind)
            placed = ring.put(reference)
            if not placed:
                _, name, _ = open_record(reference)
                (self._topology.spill_dir / name.decode()).unlink()
        if not placed:
            self._ring_bell(worker)
            return False
        self._unrung.add(worker)
        return True

    def put_shipped(self, origin: int, records: Records, most: int) -> tuple[int, tuple[int, int] | None]:
        """Puts records of another broker, at most so many, into the lane of the worker that has their stream.

        Returns how many, and the mark behind all of them, or None if some are left. Raises OSError.
        """
        worker = origin % len(self._rings)
        ring, done = self._rings[worker], 0
        while True:
            done += records.put(ring, most - done)
            large = records.large(ring) if done < most else None
            if large is None or not self.try_put(worker, large, BRIDGED):
                break
            records.skip()
            done += 1
        if records.is_done:
            self._unrung.add(worker)
            return done, self.mark(worker)
        self._ring_bell(worker)
        return done, None

    def put(self, worker: int, record: bytes) -> None:
        """Puts a record into the lane of a worker; waits while it is full. Raises Stopped, OSError."""
        ring = self._rings[worker]
        if len(record) > ring.capacity_of_records():
            record = self._spill(record)
        while not ring.put(record):
            self._ring_bell(worker)
            if self._is_over():
                raise Stopped
            time.sleep(WAIT_S)
        self._unrung.add(worker)

    def ring(self) -> None:
        """Wakes the workers that have got records; once for many records."""
        for worker in self._unrung:
            self._ring_bell(worker)
        self._unrung.clear()

    def positions(self) -> list[tuple[int, int]]:
        """Returns (worker, position behind what was put so far) of each lane with records that are under way."""
        return [(worker, ring.head_at()) for worker, ring in enumerate(self._rings) if not self.is_past((worker, ring.head_at()))]

    def mark(self, worker: int) -> tuple[int, int]:
        """Returns the worker and the position behind what was put into its lane so far."""
        return worker, self._rings[worker].head_at()

    def is_past(self, mark: tuple[int, int]) -> bool:
        """Returns whether the worker is done with everything up to a position; at level machine it is on the disk."""
        worker, position = mark
        return bool(self._rings[worker].is_past(position, self._synced))

    def _ring_bell(self, worker: int) -> None:
        if self._inboxes[worker].take_bell():
            os.eventfd_write(self._topology.doorbells[worker], 1)

    def _spill(self, record: bytes, kind: int = RECORD_PUBLISH) -> bytes:
        """Writes a record that is too large for a ring into a file; returns the record that names it."""
        self._spilled += 1
        name = f"flows-{self._slot}-{os.getpid()}-{self._spilled}"
        descriptor = os.open(self._topology.spill_dir / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(record)
        reference: bytes = encode_spilled(kind, name.encode())
        return reference
