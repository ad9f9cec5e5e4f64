"""Timers of all devices of a process: one of the loop, and devices in buckets by time.

A bucket is a set, so that a device costs one entry of it and no object. Far deadlines share a bucket: it is early by at most a
sixteenth of the time that was left, and the device then takes its place in a nearer one. A near deadline is late by at most UNIT_S.
"""

import asyncio
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

__all__ = ["NEVER", "Bucket", "Timers"]

UNIT_S = 0.01
"""Time between two buckets of near deadlines."""
SHARE = 16
"""Part of the time left by which a device may be called early."""


class Ticking(Protocol):
    """A device."""

    def tick(self) -> None:
        """Does what is due, and takes its next place. It has none when it is called."""


class Bucket(set[Ticking]):
    """Devices that are called together."""

    __slots__ = ("at", "at_s")

    def __init__(self, at: int) -> None:
        self.at, self.at_s = at, at * UNIT_S


class _Never(Bucket):
    """The place of devices without a deadline, which are not noted."""

    __slots__ = ()

    def __init__(self) -> None:
        self.at, self.at_s = 0, inf


NEVER: Bucket = _Never()


class Timers:
    """All timers of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, Bucket] = {}
        self._order: list[int] = []
        """A heap of the keys of `_buckets`."""
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0

    def set(self, one: Ticking, deadline_s: float, old: Bucket) -> Bucket:
        """Gives a device its place for a deadline, in place of its old one, and returns it."""
        old.discard(one)
        if deadline_s == inf:
            return NEVER
        now = int(self._loop.time() / UNIT_S)
        at = max(ceil(deadline_s / UNIT_S), now + 1)
        grain = (at - now) // SHARE
        if grain > 1:
            at &= -(1 << grain.bit_length() - 1)
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = Bucket(at)
            heappush(self._order, at)
            self._arm()
        bucket.add(one)
        return bucket

    def _arm(self) -> None:
        """Sets the timer of the loop for the first bucket."""
        if not self._order:
            return
        if self._handle is not None:
            if self._handle_at <= self._order[0]:
                return
            self._handle.cancel()
        self._handle_at = self._order[0]
        self._handle = self._loop.call_at(self._handle_at * UNIT_S, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now_s = self._loop.time()
        try:
            while self._order and self._order[0] * UNIT_S <= now_s:
                bucket = self._buckets[self._order[0]]
                while bucket:
                    bucket.pop().tick()
                del self._buckets[heappop(self._order)]
        finally:
            self._arm()
