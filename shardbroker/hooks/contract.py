"""What callbacks get and what they return.

`client` is a `Client`, `question` an `AuthRequest` and `answer` an `Answer` of `shardbroker.access.contract`, whose `allow`, `deny`
and `IGNORE` make answers. Properties are a dictionary: names of MQTT 5.0 in lower case with underscores, such as
`content_type`, to int, str, bytes, or, for `user_property`, (name, value) pairs.

A callback returns one of

    None              go on
    ok(new)           go on with a new accumulator
    stop()            the callbacks behind this one are not called
    stop(new)         nor these, and the accumulator is a new one
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ASK", "KEEP", "Connection", "Message", "Outcome", "Properties", "Refusal", "SessionInfo", "Subscription", "ok", "stop"]

KEEP: Any = object()
"""In place of an accumulator: it stays as it is."""
ASK: Any = object()
"""In place of an answer: a program outside is asked for it (hooks/exhook.py)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a callback returns, unless it is None. Made by `ok` and `stop`."""

    stops: bool
    accumulator: Any = KEEP


def ok(accumulator: Any) -> Outcome:
    """Go on with this accumulator."""
    return Outcome(False, accumulator)


def stop(accumulator: Any = KEEP) -> Outcome:
    """The callbacks behind this one are not called."""
    return Outcome(True, accumulator)


class Properties(dict[str, Any]):
    """Properties as callbacks get them: others read them too, so whoever wants other ones makes a new dictionary."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("properties are not changed in place: return a new dictionary, such as {**properties, name: value}")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client is not let in: the reason code of CONNACK (3.x gets the return code that fits), and why."""

    reason_code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """What a client has said in CONNECT, as it holds."""

    keepalive: int
    """Seconds; 0: none."""
    clean_start: bool
    expiry_interval: int
    """Of the session, seconds; 2^32 - 1: never."""
    connected_at: int
    """Unix ms; 0: it is not let in yet."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session at this moment."""

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
    """A filter with its options. `topic` is as the client wrote it, `$share/...` included."""

    topic: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Callbacks of message.publish return one that `replace` or `drop` has made of it."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Mapping[str, Any] = field(default_factory=Properties)
    client_id: str = ""
    """Of the publisher; empty: the broker itself."""
    id: str = ""
    """32 hexadecimal digits; empty in message.publish, which comes before it has one."""
    dropped: bool = False

    def replace(self, **changes: Any) -> "Message":
        """The same with another topic, payload, qos, retain or properties."""
        return dataclasses.replace(self, **changes)

    def drop(self) -> "Message":
        """Nobody gets it. The publisher is told that nobody has subscribed."""
        return dataclasses.replace(self, dropped=True)
