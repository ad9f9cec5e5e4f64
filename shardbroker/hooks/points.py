"""The table of hook points. docs/hooks.md and the bits of masks.pxd are derived from it."""

from dataclasses import dataclass

__all__ = ["POINTS", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """A place where callbacks are called, with `arguments` and then the accumulator, if there is one."""

    name: str
    arguments: tuple[str, ...]
    fired: str
    """Description of the event."""
    accumulator: str = ""
    """The value that callbacks may change; empty: they only observe."""
    bit: int = 0
    """Bit of the mask; derived from the position in the table."""


def _numbered(*points: Point) -> dict[str, Point]:
    return {
        one.name: Point(one.name, one.arguments, one.fired, one.accumulator, 1 << place) for place, one in enumerate(points)
    }


POINTS: dict[str, Point] = _numbered(
    Point(
        "client.connect",
        ("client", "connection"),
        "A well-formed CONNECT was received; nothing else is known yet, such as a user name from AUTH packets. A `Refusal` in "
        "place of the properties rejects the connection.",
        "properties: dict | Refusal",
    ),
    Point(
        "client.connack",
        ("client", "reason_code"),
        "A CONNACK is about to be sent, with any reason code. Changes apply to 5.0 clients.",
        "properties: dict",
    ),
    Point("client.connected", ("client", "connection"), "The client is connected and has its session."),
    Point("client.disconnected", ("client", "reason_code", "connection"), "The connection of a connected client has ended."),
    Point(
        "client.authenticate",
        ("client",),
        "Before auth.chain: `allow()` and `deny()` decide, `IGNORE` leaves the decision to the chain. `client` has the password. "
        "Not for authentication by AUTH packets.",
        "answer: Answer",
    ),
    Point(
        "client.authorize",
        ("client", "request"),
        "Before acl.sources: for a PUBLISH, a will, each filter of a SUBSCRIBE. Decisions about a PUBLISH are cached according to "
        "`acl.cache`.",
        "allowed: bool | None",
    ),
    Point(
        "client.subscribe",
        ("client", "properties"),
        "A SUBSCRIBE was received; access control checks the filters that callbacks return. Their number must not change.",
        "subscriptions: tuple[Subscription, ...]",
    ),
    Point(
        "client.unsubscribe",
        ("client", "properties"),
        "An UNSUBSCRIBE was received. The number of filters must not change.",
        "filters: tuple[str, ...]",
    ),
    Point("session.created", ("client", "session"), "A session was created."),
    Point("session.resumed", ("client", "session"), "A client has resumed its session."),
    Point("session.subscribed", ("client", "subscription"), "A subscription is active, by a client or by the broker."),
    Point("session.unsubscribed", ("client", "filter"), "A subscription was removed; not called at the end of its session."),
    Point("session.discarded", ("client", "session"), "A client connects with Clean Start: its old session is about to end."),
    Point("session.takenover", ("client", "session"), "Another connection takes over the session; `client` is the old one."),
    Point(
        "session.terminated",
        ("client", "reason", "session"),
        "A session has ended: `discarded` (for Clean Start, or by `ctl`), `expired` or `disconnected`. Where no connection "
        "is left, `client` has only its id.",
    ),
    Point(
        "message.publish",
        (),
        "A message is about to be routed: a PUBLISH after access control, with its topic rewritten; a will; one of "
        "`ctl publish`. Not for messages below $SYS/ and $event/.",
        "message: Message",
    ),
    Point("message.delivered", ("client", "message"), "A PUBLISH was sent to a client, for the first time."),
    Point("message.acked", ("client", "message"), "A client has sent PUBACK, or the first PUBREC, for a delivery."),
    Point(
        "message.dropped",
        ("message", "reason"),
        "A message is not delivered at all: `no_subscribers`, or `hook` if a callback of message.publish dropped it.",
    ),
    Point(
        "delivery.dropped",
        ("client", "message", "reason"),
        "A message is not delivered to one subscriber: `no_local`, `too_large`, `qos0_msg`, `queue_full`, `queue_stalled`, "
        "`output_full`, `overload` or `expired`.",
    ),
    Point("client.ping", ("client", "connection"), "A PINGREQ was received."),
    Point(
        "client.check_authn_complete",
        ("client", "reason_code", "is_superuser", "is_anonymous"),
        "A login was decided, also one again by AUTH; `is_anonymous`: no authenticator was asked.",
    ),
    Point(
        "client.check_authz_complete",
        ("client", "request", "allowed", "source"),
        "An action was decided: by `hook`, `client_info` (rules from the login), `file`, `backend` or `default` (`acl.no_match`). "
        "Not called for decisions from the cache, nor for superusers.",
    ),
)
"""The points by name, in the order of the mask."""
