"""docs/counters.md, from the table of counters in shm/counters.pxd and the comments there. `make docs`"""

import re
from collections.abc import Iterator
from pathlib import Path

from shm.counters import GAUGES, NAMES

import shm

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
SECTIONS = {"client.closed.malformed": "a malformed packet", "connections.count": "open connections"}
"""Where the comment there is about what follows."""
_ENTRY = re.compile(r"^    ([A-Z][A-Z0-9_]+) *(?:# (.*))?$", re.MULTILINE)


def reference() -> str:
    """The page."""
    return "\n".join((INTRODUCTION, *rows())) + "\n"


def rows() -> Iterator[str]:
    text = (Path(shm.__file__).parent / "counters.pxd").read_text()
    table = text.partition("cpdef enum Counter:\n")[2].partition("COUNTER_MAX")[0]
    for name, (_, comment) in zip(NAMES, _ENTRY.findall(table), strict=True):
        meaning = SECTIONS.get(name, comment)
        yield f"| `{name}` | {'gauge' if name in GAUGES else 'counter'} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
