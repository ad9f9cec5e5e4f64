r"""External programs that take part in hooks (ExHook): the end in a worker.

    chain of a point --> ExHook, after all plugins --> event ---------> integrations --> programs, over gRPC
                                                   \-> request -------> integrations --> ... --> result: the client continues

integrations reports which points the programs require: it alone is connected to them. Events use a channel of their own. If it is
full, they are lost and counted, so that a slow program blocks neither workers nor requests. Requests use the same channel as all
requests about clients (access/auth_client.py).
"""

import errno
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cbor2

from shardbroker.hooks.contract import PENDING, Connection, Message, Properties, SessionInfo, Subscription, ok
from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import BEHIND_ALL, Callback, Registry
from shardbroker.logs.phrases import Line
from shardbroker.mqtt.topics import matches

__all__ = ["ASKED_POINTS", "EVENT_MAX", "FORWARDED", "Event", "ExHook", "Wanted", "decode_event", "encode_event", "presumed"]

ASKED_POINTS = ("client.authenticate", "client.authorize", "message.publish")
"""Points at which programs decide. At all others they only receive events."""
NOT_FORWARDED = ("delivery.dropped", "client.ping", "client.check_authn_complete", "client.check_authz_complete")
"""Points that the contract of EMQX's ExHook lacks."""
FORWARDED = tuple(name for name in POINTS if name not in NOT_FORWARDED)
"""Points of the contract, in the order of the table."""
MARGIN_S = 1.0
"""Time beyond the programs' timeouts until a worker continues without a result: integrations reports which program timed out."""
LOG_INTERVAL_S = 10.0
"""Minimum interval between two log lines."""
EVENT_MAX = 4 << 20
"""Size limit of an event, bytes: that of a channel."""
FULL = (errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM, errno.EPIPE, errno.ECONNREFUSED)


class Event(NamedTuple):
    """An event as integrations receives it."""

    point: str
    lost: dict[str, int]
    """Number of events per point that were lost since the event before."""
    at_ms: int
    """Unix time in ms."""
    arguments: list[Any]
    """The arguments of the point, as lists."""


def encode_event(point: str, lost: Mapping[str, int], at_ms: int, arguments: Sequence[Any]) -> bytes:
    return cbor2.dumps([point, dict(lost), at_ms, [_plain(one) for one in arguments if not isinstance(one, SessionInfo)]])


def decode_event(data: bytes) -> Event:
    """Decodes an event. Raises ValueError."""
    try:
        return Event(*cbor2.loads(data))
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"an event that cannot be read: {error}") from None


def message_fields(message: Message) -> list[Any]:
    """Returns the fields of a message in the order of the wire."""
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
    """The requirements of one program, reported or presumed."""

    points: dict[str, list[str]]
    """Maps a point to filters of topics; none: all topics."""
    refuses: bool
    """Whether a missing answer of the program refuses the request."""
    timeout_s: float

    def covers(self, point: str, topic: str | None) -> bool:
        filters = self.points.get(point)
        if filters is None:
            return False
        return not filters or topic is None or any(matches(one.encode(), topic.encode()) for one in filters)


def presumed(servers: Sequence[Any]) -> list[Wanted]:
    """Returns the requirements of `exhook.servers` until they report their own: all requests if `failed_action` is deny."""
    found = []
    for one in servers:
        refuses = one.failed_action == "deny"
        found.append(Wanted({point: [] for point in ASKED_POINTS} if refuses else {}, refuses, one.request_timeout))
    return found


class ExHook:
    """The exhook end of one worker.

    `request` sends a request to integrations, as `AuthClient.request`; `descriptor` is its end of the channel for events.
    `rules_changed` is called when permissions of clients must be checked again; `report` takes (level, line) for the log.
    """

    def __init__(
        self,
        registry: Registry,
        request: Callable[..., int],
        descriptor: int,
        rules_changed: Callable[[], None],
        report: Callable[[str, Line], None],
    ) -> None:
        self._registry, self._call, self._rules_changed, self._report = registry, request, rules_changed, report
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._wanted: list[Wanted] = []
        self._callbacks: list[Callback] = []
        self._lost: Counter[str] = Counter()
        self._logged_at = -LOG_INTERVAL_S
        self.reached = False
        """Whether the chain of message.publish has reached its end for the current message."""

    def take(self, wanted: Sequence[Wanted]) -> None:
        """Applies new requirements of the programs."""
        authorizers = self._authorizers()
        self._wanted = [*wanted]
        points = [point for point in FORWARDED if any(point in one.points for one in self._wanted)]
        self._registry.remove(self._callbacks)
        self._callbacks = [self._callback(point) for point in points]
        self._registry.add(self._callbacks)
        if authorizers != self._authorizers():
            self._rules_changed()

    def _authorizers(self) -> list[Wanted]:
        """Returns the programs that decide about actions of clients."""
        return [one for one in self._wanted if "client.authorize" in one.points]

    def on_result(self, result: Any) -> None:
        """Takes new requirements of the programs."""
        self.take([Wanted(*fields) for fields in result.details])

    # --- requests -------------------------------------------------------------------------------------------------------------

    def wants(self, point: str, topic: str | None = None) -> bool:
        return any(one.covers(point, topic) for one in self._wanted)

    def refuses(self, point: str, topic: str | None = None) -> bool:
        """Returns whether a missing answer at this point refuses the request."""
        return any(one.refuses and one.covers(point, topic) for one in self._wanted)

    def patience(self, point: str, topic: str | None = None) -> float:
        """Returns the time limit of a request, in seconds."""
        return MARGIN_S + sum(one.timeout_s for one in self._wanted if one.covers(point, topic))

    def query(self, kind: Any, waiter: Any, client: Any, message: Message) -> int:
        """Sends a request about a message; returns its id, or 0 if it cannot be sent."""
        details = [*message_fields(message), time.time_ns() // 1_000_000]
        return self._call(kind, waiter, client, details, self.patience("message.publish", message.topic))

    def complain(self, line: Line) -> None:
        """Logs an error, unless the last line is too recent."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            self._report("error", line)

    # --- the chains -----------------------------------------------------------------------------------------------------------

    def _callback(self, point: str) -> Callback:
        functions: dict[str, Callable[..., Any]] = {
            "client.authenticate": _authenticate,
            "client.authorize": _authorize,
            "message.publish": self._publish,
        }
        made = Callback("exhook", point, functions.get(point) or self._notification(point), BEHIND_ALL)
        made.name = "exhook"
        return made

    def _publish(self, message: Message) -> None:
        self.reached = not message.dropped

    def _notification(self, point: str) -> Callable[..., None]:
        places = {"message.delivered": 1, "message.acked": 1, "message.dropped": 0}
        place = places.get(point)

        def notify(*arguments: Any) -> None:
            if place is not None and not self.wants(point, arguments[place].topic):
                return
            try:
                self._socket.send(encode_event(point, self._lost, time.time_ns() // 1_000_000, arguments))
                self._lost.clear()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._lost[point] += 1

        return notify


def _authenticate(client: Any, answer: Any) -> Any:
    """Requests an answer unless a plugin has decided."""
    return ok(PENDING) if answer.outcome.value == "ignore" else None


def _authorize(client: Any, request: Any, allowed: bool | None) -> Any:
    return ok(PENDING) if allowed is None else None
