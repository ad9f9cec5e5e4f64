"""docs/counters.md, from the table of counters in shm/counters.pxd and the comments there. `make docs`"""

import re
from collections.abc import Iterator
from pathlib import Path

from shm.counters import GAUGES, NAMES, Counter

import shm
from shardbroker.control.losses import LOSSES, NO_LOSSES

__all__ = ["reference"]

INTRODUCTION = """\
# Counters and gauges

Made by `make docs`; the table is `shm/counters.pxd`. Names follow EMQX's metrics. `shardbroker ctl metrics` shows them, they stand
below `$SYS/brokers/<node>/metrics/` (gauges: `stats/`) with slashes for dots, and [Prometheus](metrics.md) gets them with
`shardbroker_` in front and `_` for dots.

Each process counts for itself, and what is shown is the sum; `received` and `sent` are as the broker sees it. Counters begin at 0
with the broker, and live on when one of its processes is started again. Of packets, `error` counts refusals, `auth_error` those for
want of a right or a right password, `missed` acknowledgements of nothing that was under way. [Refusals](refusals.md) has the
counters of each.

| name | type | meaning |
|---|---|---|"""
LOST = """
## Lost messages

A loss is a message that the broker has accepted and a client with a matching subscription does not get, now or when it
subscribes. A message that is refused is none: its publisher still has it, and [Refusals](refusals.md) has its counter.
`messages.lost` is the sum of these counters. `lost` in `shardbroker top`, on the dashboard and in `ctl status`, `dropped` in
the REST API's `/monitor`, `shardbroker_messages_lost{reason}` of Prometheus and the alarm `messages_lost`
(`alarm.lost_messages`) are made of the same table.

| reason | counter | meaning |
|---|---|---|"""
NOT_LOST = """
Counters of dropped messages that are no losses:

| counter | why |
|---|---|"""
_ENTRY = re.compile(r"^    ([A-Z][A-Z0-9_]+) *(?:# (.*))?$", re.MULTILINE)


def reference() -> str:
    """The page."""
    losses = (f"| `{reason}` | `{counter}` | {meaning} |" for reason, (counter, meaning) in LOSSES.items())
    others = (f"| `{counter}` | {why} |" for counter, why in NO_LOSSES.items())
    return "\n".join((INTRODUCTION, *rows(), LOST, *losses, NOT_LOST, *others)) + "\n"


def rows() -> Iterator[str]:
    text = (Path(shm.__file__).parent / "counters.pxd").read_text()
    table = text.partition("cpdef enum Counter:\n")[2].partition("COUNTER_MAX")[0]
    for row, meaning in _ENTRY.findall(table):
        name = NAMES[Counter[row]]
        yield f"| `{name}` | {'gauge' if name in GAUGES else 'counter'} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
