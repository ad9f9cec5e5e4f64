"""Costs of the broker: `tune` calculates with them, docs/operation-tune.md lists them, and a test holds both to
docs/performance.md.

They were measured on two cores of the slower machine of that page and are accurate within a factor of two. A load test on the
machine itself is more accurate.
"""

from dataclasses import dataclass

__all__ = ["BUSY_MESSAGE_US", "CONNECTION_BYTES", "CONNECT_US", "COSTS", "SOCKET_BYTES", "SPARSE_MESSAGE_US", "TLS_BYTES", "table"]

CONNECTION_BYTES = 1_900
"""Broker's memory for an idle connection with a subscription, the most expensive case measured."""
SOCKET_BYTES = 5_150
"""The kernel's memory for the broker's end of it: half of that for both ends."""
TLS_BYTES = 5_700
"""Additional memory of a connection over TLS, whose keys are in a worker (docs/design/0003-tls.md)."""
CONNECT_US = 57.0
"""CPU of a client that connects, subscribes and disconnects."""
BUSY_MESSAGE_US, SPARSE_MESSAGE_US = {0: 0.23, 1: 0.43, 2: 0.80}, 10.3
"""CPU of a delivered message of 64 bytes, at a high rate by QoS, and when each wakes its connection."""

SLOWER = 6
"""Column of the slower machine beside mosquitto."""


@dataclass(frozen=True)
class Cost:
    """A row of the table, and its source in docs/performance.md: the start of the row, and the column."""

    what: str
    value: float
    unit: str
    row: str
    place: int
    factor: float = 1.0
    """Factor applied to the figure there."""


COSTS = (
    *(
        Cost(f"a delivered message of QoS {qos}, many at a time", cost, "µs of CPU", f"QoS {qos}, 5 to 5", SLOWER)
        for qos, cost in BUSY_MESSAGE_US.items()
    ),
    Cost("a delivered message that wakes a connection which slept", SPARSE_MESSAGE_US, "µs of CPU", "QoS 0, 1000 to 1000", SLOWER),
    Cost("a client that connects, subscribes and disconnects", CONNECT_US, "µs of CPU", "connect, subscribe, disconnect", SLOWER),
    Cost("an idle connection with a subscription", CONNECTION_BYTES / 1000, "KB of the broker", "PSS of the broker for each", 3),
    Cost("its socket", SOCKET_BYTES / 1000, "KB of the kernel", "kernel (slab) for each, both ends", 3, 0.5),
    Cost("the same over TLS, beside it", TLS_BYTES / 1000, "KB of the broker", "An idle TLS connection takes", 0),
)


def table() -> str:
    """Returns the table for docs/operation-tune.md."""
    lines = ["| what | costs |", "|---|---|", *(f"| {one.what} | {one.value:g} {one.unit} |" for one in COSTS)]
    return "\n".join(lines)
