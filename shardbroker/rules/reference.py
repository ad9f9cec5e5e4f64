"""Generates docs/rule-events.md from the table of events."""

import json
from collections.abc import Iterator

from shardbroker.rules.events import BRIDGE, EVENTS, PUBLISH, Event

__all__ = ["reference"]

NEVER = ("message_transformation.failed", "schema_validation.failed")
"""Events of features that this broker lacks; rules of EMQX that name them are accepted."""
INTRODUCTION = """\
# Events and columns of rules

Made by `make docs`; the table is `shardbroker/rules/events.py`. `GET /api/v5/rule_events` returns it as JSON.

A rule sees messages by a topic filter behind FROM, and events by one of their names. A column without a value is `undefined`: the
user name of a client without one, `peerhost` of a session whose client is away, `clientid` of a message of the broker itself.

- Times are Unix ms. `payload` is text, or bytes if it is not UTF-8.
- Events are written to the journal of the worker where they happen. Rules see them as they see messages: at least once, also over
  kills, those of one client in order.
- A rule passes over `message.delivered`, `message.acked` and `delivery.dropped` of messages that it has published itself.
- `client_attrs`, `conn_props` of `client.connected`, `disconn_props`, `sub_props`, `unsub_props` and `puback_props` are empty maps.
- `reason` of `client.disconnected` is `normal`, `keepalive_timeout`, `takenover`, `kicked`, or MQTT's name of the reason code;
  `unspecified_error` if the connection just broke.
- `client.check_authz_complete` is not raised for decisions from the cache and for superusers. `authz_source` is `file`,
  `client_info` (rules from the login), `backend`, `hook` or `default`.
- An event costs its worker some 15 µs and a record of the journal, whatever WHERE is. Rules on `message.delivered` and
  `message.acked` cost that for each message of each subscriber.

"""


def reference() -> str:
    """Returns the page."""
    return INTRODUCTION + "\n".join(line for event in EVENTS if event is not BRIDGE for line in _section(event))


def _section(event: Event) -> Iterator[str]:
    yield f"## {event.name}\n"
    names = " or ".join(f"`{topic}`" for topic in event.topics)
    yield "FROM topic filters, such as `t/#`.\n" if event is PUBLISH else f"FROM {names}.\n"
    if event.name in NEVER:
        yield "Accepted, and never raised: this broker has no such feature.\n"
    yield "| column | type | example |"
    yield "|---|---|---|"
    for one in event.columns:
        yield f"| `{one.name}` | {one.type} | `{json.dumps(one.example)}` |"
    yield ""


if __name__ == "__main__":
    print(reference(), end="")
