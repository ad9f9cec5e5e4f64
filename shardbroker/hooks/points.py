"""The table of hook points. docs/hooks.md and the bits of masks.pxd derive from it."""

from dataclasses import dataclass

__all__ = ["POINTS", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """One place where callbacks are called, with `arguments` and then the accumulator, where there is one."""

    name: str
    arguments: tuple[str, ...]
    fired: str
    """When, in words."""
    accumulator: str = ""
    """What callbacks may change; empty: they look on."""
    bit: int = 0
    """Of the mask; set by its place in the table."""


def _numbered(*points: Point) -> dict[str, Point]:
    return {
        one.name: Point(one.name, one.arguments, one.fired, one.accumulator, 1 << place) for place, one in enumerate(points)
    }


POINTS: dict[str, Point] = _numbered(
    Point(
        "client.connect",
        ("client", "connection"),
        "A CONNECT is well-formed, and nothing else is known, a user name that AUTH packets are to prove included. A `Refusal` in "
        "place of the properties ends it.",
        "properties: dict | Refusal",
    ),
    Point(
        "client.connack",
        ("client", "reason_code"),
        "CONNACK is about to go out, whatever it says. Changes reach 5.0 clients.",
        "properties: dict",
    ),
    Point("client.connected", ("client", "connection"), "The client was let in, and has its session."),
    Point("client.disconnected", ("client", "reason_code", "connection"), "A client that was let in is gone, whoever ended it."),
    Point(
        "client.authenticate",
        ("client",),
        "Before auth.chain is asked: `allow()` and `deny()` decide, `IGNORE` leaves it to the chain. `client` has the password. "
        "Not for authentication by AUTH packets.",
        "answer: Answer",
    ),
    Point(
        "client.authorize",
        ("client", "question"),
        "Before acl.sources are asked: about a PUBLISH, a will, each filter of a SUBSCRIBE. Decisions about a PUBLISH are "
        "remembered as `acl.cache` says.",
        "allowed: bool | None",
    ),
    Point(
        "client.subscribe",
        ("client", "properties"),
        "A SUBSCRIBE has come; access control sees what callbacks make of its filters. As many come out as go in.",
        "subscriptions: tuple[Subscription, ...]",
    ),
    Point(
        "client.unsubscribe",
        ("client", "properties"),
        "An UNSUBSCRIBE has come. As many filters come out as go in.",
        "filters: tuple[str, ...]",
    ),
    Point("session.created", ("client", "session"), "A session begins."),
    Point("session.resumed", ("client", "session"), "A client has come back to its session."),
    Point("session.subscribed", ("client", "subscription"), "A subscription holds, whoever asked for it."),
    Point("session.unsubscribed", ("client", "filter"), "A subscription was taken back; not when its session ends."),
    Point("session.discarded", ("client", "session"), "A client with Clean Start had a session: it is about to end."),
    Point("session.takenover", ("client", "session"), "Another connection has come with this client id; `client` is the old one."),
    Point(
        "session.terminated",
        ("client", "reason", "session"),
        "A session has ended: `discarded` (for Clean Start, or by `ctl`), `expired` or `disconnected`. Where no connection "
        "is left, `client` has its id alone.",
    ),
    Point(
        "message.publish",
        (),
        "A message is about to be routed: a PUBLISH that access control has let pass, with its topic rewritten; a will; one of "
        "`ctl publish`. Not those below $SYS/ and $event/.",
        "message: Message",
    ),
    Point("message.delivered", ("client", "message"), "A PUBLISH was written to a client, for the first time."),
    Point("message.acked", ("client", "message"), "A client has sent PUBACK, or the first PUBREC, for a delivery."),
    Point(
        "message.dropped",
        ("message", "reason"),
        "Nobody gets a message: `no_subscribers`, or `hook` if a callback of message.publish has said so.",
    ),
    Point(
        "delivery.dropped",
        ("client", "message", "reason"),
        "One subscriber does not get a message: `no_local`, `too_large`, `qos0_msg`, `queue_full`, `output_full`, `overload` or "
        "`expired`.",
    ),
)
"""By name, in the order of the mask."""
