"""docs/hooks.md, from the table of points."""

from collections.abc import Iterator

from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import PRIORITY, PRIORITY_MAX, SLOW_S, TELL_S

__all__ = ["reference"]

INTRODUCTION = f"""\
# Hooks

Made by `make docs`; the table is `shardbroker/hooks/points.py`.

A hook point is a place in a worker where callbacks of [plugins](plugins.md) are called. Names, order and returns are those of
EMQX's hooks; callbacks are Python functions. A point that nobody uses costs the workers one test. Programs in other languages
take part behind plugins, [over gRPC](exhook.md).

## The chain

Callbacks of a point are called by priority, 0 to {PRIORITY_MAX} ({PRIORITY} unless said otherwise), the highest first, those of
the same priority in the order in which they came. Each gets the point's arguments, and behind them the accumulator, where there
is one: what the callback before it has left of it. It returns

| returned | meaning |
|---|---|
| `None` | go on |
| `ok(new)` | go on with another accumulator |
| `stop()` | the callbacks behind this one are not called |
| `stop(new)` | likewise, with another accumulator |

with `from shardbroker.hooks import ok, stop`. The last accumulator is what the worker goes on with. It is checked each time: a
topic that is none, or properties that the packet may not have, count as an error of the callback, and the accumulator stays as
it was.

- A callback that raises, even `SystemExit`, or returns something else, is logged, at most once in {TELL_S:g} s for each callback,
  and counted. At `client.connect`, `client.authenticate` and `client.authorize`, which decide, it **refuses**: the client gets
  0x88, the topic is denied, and the callbacks behind it are not called. A denial because of an error is not remembered. With
  `plugin.hook(point, function, on_error="ignore")`, and at all other points, it is as if the callback had not been there.
- Callbacks run in the worker, which does nothing else until they return: all its clients wait. One that takes longer than
  {SLOW_S * 1000:g} ms is logged by name. `shardbroker ctl hooks list`, `/metrics` and the dashboard have calls, errors, the
  time spent and the longest call of each.
- What a callback gets is a copy: nothing in it leads into the broker.

## Points

| point | arguments | accumulator | fired |
|---|---|---|---|
"""
CLOSING = """
The objects are those of `shardbroker.hooks` (`Connection`, `SessionInfo`, `Subscription`, `Message`, `Refusal`) and of
`shardbroker.access.contract` (`Client`, `AuthRequest`, `Answer`, and `allow`, `deny`, `IGNORE`, which make answers); their fields
stand there. `reason_code` is MQTT 5.0's. Properties are a dictionary of MQTT's names, in lower case with underscores: numbers,
texts, bytes, and for `user_property` pairs of name and value.

A `Message` of `message.publish` is changed by `ok(message.replace(payload=b"..."))`, with another `topic`, `payload`, `qos`,
`retain` or `properties`, and taken away by `stop(message.drop())`: its publisher is told that nobody has subscribed. The
acknowledgement goes by the QoS that it was published with. Messages of one publisher stay in order, whatever callbacks do to
them; where a ring has no room for one that was changed, its publisher is not read until it has.

## What differs from EMQX

- `client.authenticate` and `client.authorize` come before `auth.chain` and `acl.sources`, whatever the priority; superusers are
  not asked about.
- `client.subscribe` and `client.unsubscribe` come before access control, which sees the changed filters.
- `message.delivered` looks on, and changes nothing.
- A message that was sent again, and a retained one, are delivered like others, but `message.publish` sees a message once.
"""


def reference() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(f"{line}\n" for line in _rows()) + CLOSING


def _rows() -> Iterator[str]:
    for point in POINTS.values():
        arguments = ", ".join(f"`{name}`" for name in point.arguments) or "-"
        accumulator = "`" + point.accumulator.replace("|", "\\|") + "`" if point.accumulator else "-"
        yield f"| `{point.name}` | {arguments} | {accumulator} | {point.fired} |"


if __name__ == "__main__":
    print(reference(), end="")
