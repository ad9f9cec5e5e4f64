"""Rates of a client; see rates.pxd."""

__all__ = ["Rates"]

cdef double BURST_S = 1.0                  # seconds of the rate that may come at once after a quiet time


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
