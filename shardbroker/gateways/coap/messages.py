"""What RFC 7252 §4 asks of the messages of two endpoints: those received before are known, and Confirmable ones are sent until they
are acknowledged."""

from math import inf
from random import random
from secrets import randbelow

from shardbroker.gateways.coap.codec import Message

__all__ = ["ACK_TIMEOUT_S", "EXCHANGE_LIFETIME_S", "MAX_RETRANSMIT", "Confirmable", "MessageIds", "Recent"]

ACK_TIMEOUT_S, ACK_RANDOM_FACTOR, MAX_RETRANSMIT = 2.0, 1.5, 4
"""RFC 7252 §4.8."""
EXCHANGE_LIFETIME_S, NON_LIFETIME_S = 247.0, 145.0
"""Times for which a message id belongs to one message (RFC 7252 §4.8.2)."""
RECENT = 256
"""Messages of a device that are remembered; the oldest ones are forgotten earlier than EXCHANGE_LIFETIME. A device has one
outstanding exchange (NSTART), so copies of a message arrive long before."""
IDS = 65536
IDS_AT_ONCE = IDS // 2
"""Message ids that are given in EXCHANGE_LIFETIME: so none of them is given again before it has passed."""


class Recent:
    """Messages that were answered, by message id, with their answers: what a copy of a Confirmable one gets."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, bytes]] = {}

    def answer(self, message_id: int, now_s: float) -> bytes | None:
        """Returns the answer to a message that was received before, empty for one without; None for another one."""
        found = self._found.get(message_id)
        return found[1] if found is not None and now_s < found[0] else None

    def put(self, message: Message, answer: bytes, now_s: float) -> None:
        """Remembers the answer to a message. kind: its type."""
        found, message_id = self._found, message.message_id
        if message_id in found:
            del found[message_id]  # its place is the end
        found[message_id] = now_s + (NON_LIFETIME_S if message.kind else EXCHANGE_LIFETIME_S), answer
        if len(found) > RECENT:
            del found[next(iter(found))]


class MessageIds:
    """The message ids that this endpoint gives, from a random one on (RFC 7252 §4.4)."""

    __slots__ = ("_last", "_left", "_since_s")

    def __init__(self) -> None:
        self._last, self._left, self._since_s = randbelow(IDS), IDS_AT_ONCE, -inf

    def free_s(self, now_s: float) -> float:
        """Returns when there is an id for a message that can wait; the past: now."""
        return -inf if self._left > 0 or now_s >= self._since_s + EXCHANGE_LIFETIME_S else self._since_s + EXCHANGE_LIFETIME_S

    def next(self, now_s: float) -> int:
        """Returns an id."""
        if now_s >= self._since_s + EXCHANGE_LIFETIME_S:
            self._since_s, self._left = now_s, IDS_AT_ONCE
        self._left -= 1
        self._last = (self._last + 1) % IDS
        return self._last


class Confirmable:
    """A message that is sent until it is acknowledged, after intervals that double (RFC 7252 §4.2)."""

    __slots__ = ("_interval_s", "_sent", "data", "message_id", "retry_s")

    def __init__(self, data: bytes, message_id: int, now_s: float) -> None:
        self.data, self.message_id = data, message_id
        self._interval_s = ACK_TIMEOUT_S * (1 + random() * (ACK_RANDOM_FACTOR - 1))
        self._sent = 0
        self.retry_s = now_s + self._interval_s

    def again(self, now_s: float) -> bool:
        """Notes that the message is sent again; returns False if it was sent often enough."""
        if self._sent >= MAX_RETRANSMIT:
            return False
        self._sent += 1
        self._interval_s *= 2
        self.retry_s = now_s + self._interval_s
        return True
