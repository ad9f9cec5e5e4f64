r"""Programs outside that take part in hooks (ExHook): a worker's end.

    chain of a point --> ExHook, behind all plugins --> event ---------> integrations --> programs, over gRPC
                                                    \-> question ------> integrations --> ... --> verdict: the client goes on

integrations says what programs want: it alone talks to them. What they are told goes by a channel of its own, and is lost, counted,
if that is full: a slow program holds nobody up, and takes no room from questions. Questions go the way of all questions about
clients (access/auth_client.py).
"""

import errno
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cbor2

from shardbroker.hooks.contract import ASK, Connection, Message, Properties, SessionInfo, Subscription, ok
from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import Callback, Registry
from shardbroker.mqtt.topics import matches

__all__ = ["ASKED_POINTS", "EVENT_MAX", "FORWARDED", "Event", "ExHook", "Wanted", "decode_event", "encode_event", "presumed"]

ASKED_POINTS = ("client.authenticate", "client.authorize", "message.publish")
"""Where programs are asked. At the others they are told."""
FORWARDED = tuple(name for name in POINTS if name != "delivery.dropped")
"""Points that the contract knows, in the order of the table."""
BEHIND_ALL = -1
"""Priority: plugins have 0 at least."""
MARGIN_S = 1.0
"""More than programs have for their answers, until a worker goes on without: integrations says who has not answered."""
TELL_S = 10.0
"""Least time between two log lines."""
EVENT_MAX = 4 << 20
"""Bytes of an event: what a channel takes at most."""
FULL = (errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM, errno.EPIPE, errno.ECONNREFUSED)


class Event(NamedTuple):
    """What has happened, as integrations reads it."""

    point: str
    lost: dict[str, int]
    """Events of each point that found no room since the one before."""
    at_ms: int
    """Unix time."""
    arguments: list[Any]
    """Those of the point, as lists."""


def encode_event(point: str, lost: Mapping[str, int], at_ms: int, arguments: Sequence[Any]) -> bytes:
    return cbor2.dumps([point, dict(lost), at_ms, [_plain(one) for one in arguments if not isinstance(one, SessionInfo)]])


def decode_event(data: bytes) -> Event:
    """Raises ValueError."""
    try:
        return Event(*cbor2.loads(data))
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"an event that cannot be read: {error}") from None


def message_fields(message: Message) -> list[Any]:
    """As they travel."""
    return [message.topic, message.payload, message.qos, message.retain, dict(message.properties), message.client_id, message.id]


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return message_fields(value)
    if isinstance(value, Connection):
        return [value.keepalive, value.clean_start, value.expiry_interval, value.connected_at]
    if isinstance(value, Subscription):
        return [value.topic, value.qos, value.no_local, value.retain_as_published, value.retain_handling]
    if isinstance(value, Properties):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "client_id"):  # a Client
        return [
            value.client_id, value.username, None, value.peerhost, value.peerport, value.listener, value.version,
            value.cert_common_name, value.cert_subject,
        ]  # fmt: skip
    return value


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one program wants, or must be presumed to want."""

    points: dict[str, list[str]]
    """Point -> filters of topics; none: all."""
    refuses: bool
    """Whether its silence refuses what it was asked about."""
    timeout_s: float

    def covers(self, point: str, topic: str | None) -> bool:
        filters = self.points.get(point)
        if filters is None:
            return False
        return not filters or topic is None or any(matches(one.encode(), topic.encode()) for one in filters)


def presumed(servers: Sequence[Any]) -> list[Wanted]:
    """What programs of `exhook.servers` want that have not said so yet: those that may not be passed over, every question."""
    found = []
    for one in servers:
        refuses = one.failed_action == "deny"
        found.append(Wanted({point: [] for point in ASKED_POINTS} if refuses else {}, refuses, one.request_timeout))
    return found


class ExHook:
    """The exhook end of one worker. `ask`: sends a request to integrations, as `AuthClient.ask`; `descriptor`: its end of the channel
    for events; `rules_changed`: called when permissions of clients must be checked again; `tell`: gets (level, text) for the
    log."""

    def __init__(
        self,
        registry: Registry,
        ask: Callable[..., int],
        descriptor: int,
        rules_changed: Callable[[], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._registry, self._ask, self._rules_changed, self._tell = registry, ask, rules_changed, tell
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._wanted: list[Wanted] = []
        self._callbacks: list[Callback] = []
        self._lost: Counter[str] = Counter()
        self._told_at = -TELL_S
        self.reached = False
        """Whether the chain of message.publish has come to its end for the message in hand."""

    def take(self, wanted: Sequence[Wanted]) -> None:
        """From now on this is what programs want."""
        judges = self._judges()
        self._wanted = [*wanted]
        points = [point for point in FORWARDED if any(point in one.points for one in self._wanted)]
        self._registry.remove(self._callbacks)
        self._callbacks = [self._callback(point) for point in points]
        self._registry.add(self._callbacks)
        if judges != self._judges():
            self._rules_changed()

    def _judges(self) -> list[Wanted]:
        """Those that decide what clients may do."""
        return [one for one in self._wanted if "client.authorize" in one.points]

    def on_verdict(self, verdict: Any) -> None:
        """What programs want has changed."""
        self.take([Wanted(*fields) for fields in verdict.details])

    # --- questions ------------------------------------------------------------------------------------------------------------

    def wants(self, point: str, topic: str | None = None) -> bool:
        return any(one.covers(point, topic) for one in self._wanted)

    def refuses(self, point: str, topic: str | None = None) -> bool:
        """Whether silence about this refuses it."""
        return any(one.refuses and one.covers(point, topic) for one in self._wanted)

    def patience(self, point: str, topic: str | None = None) -> float:
        """How long to wait for a verdict, seconds."""
        return MARGIN_S + sum(one.timeout_s for one in self._wanted if one.covers(point, topic))

    def ask_about(self, kind: Any, waiter: Any, client: Any, message: Message) -> int:
        """Asks about a message; 0: it cannot be asked."""
        details = [*message_fields(message), time.time_ns() // 1_000_000]
        return self._ask(kind, waiter, client, details, self.patience("message.publish", message.topic))

    def complain(self, text: str) -> None:
        """A line in the log, unless there was one just now."""
        now = time.monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            self._tell("error", f"exhook {text}")

    # --- the chains -----------------------------------------------------------------------------------------------------------

    def _callback(self, point: str) -> Callback:
        functions: dict[str, Callable[..., Any]] = {
            "client.authenticate": _authenticate,
            "client.authorize": _authorize,
            "message.publish": self._publish,
        }
        made = Callback("exhook", point, functions.get(point) or self._telling(point), BEHIND_ALL)
        made.name = "exhook"
        return made

    def _publish(self, message: Message) -> None:
        self.reached = not message.dropped

    def _telling(self, point: str) -> Callable[..., None]:
        places = {"message.delivered": 1, "message.acked": 1, "message.dropped": 0}
        place = places.get(point)

        def told(*arguments: Any) -> None:
            if place is not None and not self.wants(point, arguments[place].topic):
                return
            try:
                self._socket.send(encode_event(point, self._lost, time.time_ns() // 1_000_000, arguments))
                self._lost.clear()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._lost[point] += 1

        return told


def _authenticate(client: Any, answer: Any) -> Any:
    """Asks unless a plugin has decided."""
    return ok(ASK) if answer.outcome.value == "ignore" else None


def _authorize(client: Any, question: Any, allowed: bool | None) -> Any:
    return ok(ASK) if allowed is None else None
