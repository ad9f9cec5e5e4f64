"""The arguments and the return values of callbacks.

`client` is a `Client`, `request` an `AuthRequest` and `answer` an `Answer` of `shardbroker.access.contract`, whose `allow`, `deny`
and `IGNORE` make answers. Properties are a dictionary: names of MQTT 5.0 in lower case with underscores, such as `content_type`, to
int, str, bytes, or, for `user_property`, (name, value) pairs.

A callback returns one of

    None              continue
    ok(new)           continue with a new accumulator
    stop()            skip the later callbacks
    stop(new)         skip the later callbacks, with a new accumulator
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "KEEP",
    "PENDING",
    "Connection",
    "Message",
    "Outcome",
    "Properties",
    "Refusal",
    "SessionInfo",
    "Subscription",
    "ok",
    "stop",
]

KEEP: Any = object()
"""Placeholder for an accumulator: the old one is kept."""
PENDING: Any = object()
"""Placeholder for an answer: it is requested from an external program (hooks/exhook.py)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The return value of a callback other than None. Made by `ok` and `stop`."""

    stops: bool
    accumulator: Any = KEEP


def ok(accumulator: Any) -> Outcome:
    """Returns an outcome that continues with this accumulator."""
    return Outcome(False, accumulator)


def stop(accumulator: Any = KEEP) -> Outcome:
    """Returns an outcome that skips the later callbacks."""
    return Outcome(True, accumulator)


class Properties(dict[str, Any]):
    """Properties as callbacks receive them. They are shared and hence read-only: a change needs a new dictionary."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("properties are not changed in place: return a new dictionary, such as {**properties, name: value}")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a client: the reason code of CONNACK (3.x gets the corresponding return code), and a reason."""

    reason_code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """The parameters of a connection from CONNECT, as they are in force."""

    keepalive: int
    """Seconds; 0: no keep alive."""
    clean_start: bool
    expiry_interval: int
    """Expiry of the session, seconds; 2^32 - 1: never."""
    connected_at: int
    """Unix ms; 0: the client is not connected yet."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The current state of a session."""

    client_id: str
    created_at: int
    """Unix ms."""
    expiry_interval: int
    """Seconds; 2^32 - 1: never."""
    subscriptions: int
    inflight: int
    queued: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter with its options. `topic` is as in SUBSCRIBE, `$share/...` included."""

    topic: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Callbacks of message.publish return one made by `replace` or `drop`."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Mapping[str, Any] = field(default_factory=Properties)
    client_id: str = ""
    """Client id of the publisher; empty: the broker itself."""
    id: str = ""
    """32 hexadecimal digits; empty in message.publish, which precedes the assignment of an id."""
    dropped: bool = False

    def replace(self, **changes: Any) -> "Message":
        """Returns a copy with another topic, payload, qos, retain or properties."""
        return dataclasses.replace(self, **changes)

    def drop(self) -> "Message":
        """Returns a copy that is not delivered. The publisher is answered as if there were no subscribers."""
        return dataclasses.replace(self, dropped=True)
