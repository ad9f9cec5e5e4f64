"""Generates docs/hooks.md from the table of points."""

from collections.abc import Iterator

from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import LOG_INTERVAL_S, PRIORITY, PRIORITY_MAX, SLOW_S

__all__ = ["reference"]

INTRODUCTION = f"""\
# Hooks

Made by `make docs`; the table is `shardbroker/hooks/points.py`.

A hook point is a place in a worker where callbacks of [plugins](plugins.md) are called. Names, order and returns are those of
EMQX's hooks; callbacks are Python functions. An unused point costs the workers one test. Programs in other languages take part
after the plugins, [over gRPC](exhook.md).

## The chain

Callbacks of a point are called by priority, 0 to {PRIORITY_MAX} ({PRIORITY} unless given), the highest first, those of
the same priority in the order of registration. Each gets the point's arguments, followed by the accumulator, where there
is one, as the previous callback left it. It returns

| returned | meaning |
|---|---|
| `None` | continue |
| `ok(new)` | continue with another accumulator |
| `stop()` | skip the later callbacks |
| `stop(new)` | skip the later callbacks, with another accumulator |

The worker continues with the last accumulator. Each returned one is checked: an invalid topic, or properties that the packet may
not have, count as an error of the callback, and the accumulator is kept.

- A callback that raises, even `SystemExit`, or returns anything else, is counted and logged, at most once in
  {LOG_INTERVAL_S:g} s per callback. At `client.connect`, `client.authenticate` and `client.authorize`, which decide, its failure
  **refuses**: the client gets 0x88, the topic is denied, and the later callbacks are skipped. A denial because of an error is
  not cached. With `plugin.hook(point, function, on_error="ignore")`, and at all other points, a failed callback is skipped.
- Callbacks run in the worker and block it: all its clients wait until they return. A call of more than {SLOW_S * 1000:g} ms is
  logged with the callback's name. `shardbroker ctl hooks list`, `/metrics` and the dashboard show calls, errors, total time and
  the longest call of each callback.
- Callbacks receive copies: no object in them refers to the broker's state.

## Points

| point | arguments | accumulator | fired |
|---|---|---|---|
"""
CLOSING = """
The objects are those of `shardbroker.hooks` (`Connection`, `SessionInfo`, `Subscription`, `Message`, `Refusal`) and of
`shardbroker.access.contract` (`Client`, `AuthRequest`, `Answer`, and `allow`, `deny`, `IGNORE`, which make answers); their fields
are documented there. `reason_code` is a reason code of MQTT 5.0. Properties are a dictionary with the names of MQTT, in lower case
with underscores. Values are numbers, texts, bytes, and for `user_property` pairs of name and value.

A `Message` of `message.publish` is changed by `ok(message.replace(payload=b"..."))`, with another `topic`, `payload`, `qos`,
`retain` or `properties`. It is dropped by `stop(message.drop())`; its publisher is then answered as if there were no subscribers.
The acknowledgement depends on the QoS with which the message was published. Messages of one publisher stay in order, whatever the
callbacks change. If a ring has no room for a changed message, no more is read from its publisher until it has.

## What differs from EMQX

- `client.authenticate` and `client.authorize` precede `auth.chain` and `acl.sources`, whatever the priority. They are not called
  for superusers.
- `client.subscribe` and `client.unsubscribe` precede access control, which checks the changed filters.
- `message.delivered` observes, and changes nothing.
- `message.delivered` is called for retained messages too, and not for messages sent again; `message.publish` is called once per
  message.
"""


def reference() -> str:
    """Returns the whole page."""
    return INTRODUCTION + "".join(f"{line}\n" for line in _rows()) + CLOSING


def _rows() -> Iterator[str]:
    for point in POINTS.values():
        arguments = ", ".join(f"`{name}`" for name in point.arguments) or "-"
        accumulator = "`" + point.accumulator.replace("|", "\\|") + "`" if point.accumulator else "-"
        yield f"| `{point.name}` | {arguments} | {accumulator} | {point.fired} |"


if __name__ == "__main__":
    print(reference(), end="")
