"""Rates of a client; see rates.pxd."""

from math import inf

from shm.quota cimport SharedBucket

from shardbroker.config.listeners import LISTENERS_MAX

__all__ = ["Quotas", "Rates", "SharedRates"]

ZONE = LISTENERS_MAX
"""Place of the broker's own shared buckets, behind those of its listeners."""

cdef double BURST_S = 1.0                  # seconds of the rate that are accepted at once after a quiet time


cdef class Rates:
    def __init__(self, double messages, double bytes):
        self.messages = messages
        self.bytes = bytes

    cdef uint64_t add(self, uint64_t now_ms, uint64_t messages, uint64_t bytes) noexcept:
        cdef double seconds = (now_ms - self.at_ms) / 1000.0 if now_ms > self.at_ms else 0.0
        cdef double wait_s = 0.0
        self.at_ms = now_ms
        if self.messages:
            self.messages_in = max(self.messages_in - seconds * self.messages, 0.0) + messages
            wait_s = self.messages_in / self.messages - BURST_S
        if self.bytes:
            self.bytes_in = max(self.bytes_in - seconds * self.bytes, 0.0) + bytes
            wait_s = max(wait_s, self.bytes_in / self.bytes - BURST_S)
        return <uint64_t>(wait_s * 1000.0) + 1 if wait_s > 0.0 else 0

    def note(self, int now_ms, int messages, int bytes) -> int:
        """Slow-path form of `add`."""
        return self.add(now_ms, messages, bytes)


cdef class SharedRates:
    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept:
        cdef uint64_t longest = 0
        cdef SharedBucket bucket
        for bucket in self.messages:
            longest = max(longest, bucket.over_ns(now_ns))
        for bucket in self.bytes:
            longest = max(longest, bucket.over_ns(now_ns))
        return longest

    cdef void add(self, uint64_t now_ns, uint64_t bytes) noexcept:
        cdef SharedBucket bucket
        for bucket in self.messages:
            bucket.add(now_ns, 1)
        for bucket in self.bytes:
            bucket.add(now_ns, bytes)


cdef class Quotas:
    def __init__(self, Counters counters not None, limiter):
        """limiter: settings section of the whole broker"""
        self.counters = counters
        self.zone = [0.0 if rate == inf else rate for rate in (limiter.messages_rate, limiter.bytes_rate)]
        self.known = {}

    cdef SharedRates of(self, int listener, object rates):
        cdef SharedRates shared
        if rates is None and not any(self.zone):
            return None
        own = tuple(rates or (0.0, 0.0))
        shared = self.known.get((listener, own))
        if shared is None:
            shared = self.known[listener, own] = SharedRates.__new__(SharedRates)
            shared.messages, shared.bytes = [
                [self.counters.bucket(2 * place + kind, rate) for place, rate in ((listener, own[kind]), (ZONE, self.zone[kind])) if rate]
                for kind in (0, 1)
            ]
        return shared
