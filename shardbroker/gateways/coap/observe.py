"""Observations of topics (RFC 7641): what a device has registered, and the notifications that follow from messages."""

from typing import Any

from shardbroker.gateways.coap.codec import Number, Option, uint
from shardbroker.gateways.coap.requests import Request
from shardbroker.mqtt.packets import Publish
from shardbroker.mqtt.spec import PropertyId

__all__ = ["Delivery", "Observation", "Sequence", "Target", "options_of"]

TOKENS = 4
"""Registrations of one topic by one device; above it, the oldest is replaced. A device that has started again has another token."""
SEQUENCE_BITS = 24
"""RFC 7641 §2."""
SEQUENCES_A_SECOND = 128


class Target:
    """One registration: what its notifications need. observation: what it belongs to."""

    __slots__ = ("accept", "exponent", "observation", "path", "token")

    def __init__(self, observation: "Observation", token: bytes, request: Request, exponent: int) -> None:
        self.observation, self.token, self.path = observation, token, request.path
        self.accept, self.exponent = request.accept, exponent


class Observation:
    """A topic filter that a device observes, by one or more tokens; one subscription of the session."""

    __slots__ = ("identifier", "is_ended", "options", "targets", "text")

    def __init__(self, text: bytes, identifier: int, options: int) -> None:
        self.text, self.identifier, self.options = text, identifier, options
        self.targets: dict[bytes, Target] = {}
        """By token."""
        self.is_ended = False
        """Whether the session does not have the subscription any more."""

    def add(self, target: Target) -> None:
        """Adds a registration, or replaces that of the same token (RFC 7641 §4.1)."""
        self.targets[target.token] = target
        if len(self.targets) > TOKENS:
            del self.targets[next(iter(self.targets))]


class Delivery:
    """A message on its way to the registrations that it is for, one behind the other."""

    __slots__ = ("publish", "targets")

    def __init__(self, publish: Publish, targets: list[Target]) -> None:
        self.publish, self.targets = publish, targets


class Sequence:
    """Sequence numbers of notifications. They begin with the clock, so that a gateway that has started again continues behind the
    last ones (RFC 7641 §4.4)."""

    __slots__ = ("_last",)

    def __init__(self, now_s: float) -> None:
        self._last = int(now_s * SEQUENCES_A_SECOND)

    def next(self) -> int:
        """Returns a number."""
        self._last = (self._last + 1) % (1 << SEQUENCE_BITS)
        return self._last


def options_of(publish: Publish, accept: int | None) -> list[Option]:
    """Returns the options of a notification: Max-Age is what is left of a message's time, and the Content-Format that of the first
    response, as RFC 7641 §4.2 demands."""
    properties: dict[int, Any] = publish.properties or {}
    found: list[Option] = [] if accept is None else [(Number.CONTENT_FORMAT, uint(accept))]
    expiry = properties.get(PropertyId.MESSAGE_EXPIRY_INTERVAL)
    if expiry is not None:
        found.append((Number.MAX_AGE, uint(expiry)))
    return found
