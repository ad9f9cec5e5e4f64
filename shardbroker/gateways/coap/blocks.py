"""Bodies in blocks (RFC 7959): one that a device sends with Block1, and one that it fetches with Block2."""

from hashlib import blake2b
from math import inf

from shardbroker.gateways.coap.codec import Number, Option, Options, uint
from shardbroker.gateways.coap.messages import EXCHANGE_LIFETIME_S
from shardbroker.gateways.coap.requests import SIZE_EXPONENT_MAX, Block, Request

__all__ = ["Assembly", "Body", "Step"]

ETAG_BYTES = 4
FETCH_S = 30.0
"""Longest time between two blocks that a device fetches; then it has given up."""


class Step:
    """What a block has led to: exactly one of them."""

    CONTINUE, COMPLETE, INCOMPLETE, TOO_LARGE = range(4)


class Assembly:
    """A body that a device sends block by block, one at a time."""

    __slots__ = ("_key", "_parts", "_size", "until_s")

    def __init__(self) -> None:
        self._key: tuple[int, Options] = (0, ())
        self._parts: list[bytes] = []
        self._size = 0
        self.until_s = inf

    def clear(self) -> None:
        """Drops what is there of a body."""
        self._parts.clear()
        self._size, self.until_s = 0, inf

    def add(self, method: int, request: Request, block: Block, payload: bytes, limit: int, now_s: float) -> tuple[int, bytes]:
        """Adds a block. Returns a Step, and the body if it is complete."""
        key = method, request.key
        if not block.number:
            self.clear()
            self._key = key
        elif not self._parts or key != self._key or now_s >= self.until_s or block.number * block.size != self._size:
            return Step.INCOMPLETE, b""  # RFC 7959 §2.9.2
        if self._size + len(payload) > limit:
            self.clear()
            return Step.TOO_LARGE, b""
        if block.more and len(payload) != block.size:
            self.clear()
            return Step.INCOMPLETE, b""
        self._parts.append(payload)
        self._size += len(payload)
        self.until_s = now_s + EXCHANGE_LIFETIME_S
        if block.more:
            return Step.CONTINUE, b""
        body = b"".join(self._parts)
        self.clear()
        return Step.COMPLETE, body


class Body:
    """A notification that is longer than a block, of which a device fetches the rest by requests of its own."""

    __slots__ = ("_payload", "etag", "options", "path", "until_s")

    def __init__(self, path: tuple[bytes, ...], payload: bytes, options: list[Option], now_s: float) -> None:
        self.path, self._payload = path, payload
        self.etag = blake2b(payload, digest_size=ETAG_BYTES).digest()
        self.options = [*options, (Number.ETAG, self.etag)]
        self.until_s = now_s + FETCH_S

    def block(self, number: int, exponent: int, now_s: float) -> tuple[list[Option], bytes, bool] | None:
        """Returns options and payload of a block, and whether it is the last one; None behind the end."""
        exponent = min(exponent, SIZE_EXPONENT_MAX)
        size = 1 << exponent + 4
        at = number * size
        if at >= len(self._payload):
            return None
        self.until_s = now_s + FETCH_S
        more = at + size < len(self._payload)
        value = uint(Block(number, more, exponent).value)
        return [*self.options, (Number.BLOCK2, value)], self._payload[at : at + size], not more
