"""Admission of connections: the token bucket of `max_conn_rate`, and ids for clients without one."""

import base64
import secrets
import time

__all__ = ["TokenBucket", "new_client_id"]

TIME_BITS, NODE_BITS, RANDOM_BITS = 48, 16, 46
"""Parts of an assigned id: milliseconds since 1970, node, random bits; 110 bits are 22 characters of base32."""


class TokenBucket:
    """Admits `rate` connections a second, and bursts of up to `burst` after a quiet time."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._at_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """Returns 0 if a connection may pass now, else the milliseconds until one may. `now_ms` is monotonic."""
        if self._at_ms:
            self._tokens = min(self._burst, self._tokens + (now_ms - self._at_ms) * self._rate / 1000)
        self._at_ms = now_ms
        return 0 if self._tokens >= 1 else int((1 - self._tokens) * 1000 / self._rate) + 1

    def take(self) -> None:
        """Takes the token of one connection."""
        self._tokens -= 1


def new_client_id(node_id: int) -> bytes:
    """Returns a unique id for a CONNECT without one (MQTT 5.0 §3.1.3.1). `node_id`: 16 bits."""
    moment = int(time.time() * 1000) & ((1 << TIME_BITS) - 1)
    number = (moment << NODE_BITS | node_id & ((1 << NODE_BITS) - 1)) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    size = TIME_BITS + NODE_BITS + RANDOM_BITS
    padded = (number << (-size % 8)).to_bytes(-(-size // 8))
    return b"auto-" + base64.b32encode(padded)[: -(-size // 5)].lower()
