"""A node whose claims wait ten times as long for others: `python -m tests.cluster.real.patient serve ...`.

On a busy machine a worker may not run for as long as a claim waits, and its session counts as lost then; nor for as long as a
message that is on its way is waited for. The environment may name a fault, see tests/handoff/faulty.py.
"""

import os
import sys

from shardbroker.cli.main import main
from shardbroker.cluster import claims, registry
from tests.cluster.real.nodes import Nodes
from tests.handoff.faulty import VARIABLE, break_at

__all__ = ["patient"]

TIMES = 10
OF_CLAIMS = "AGREE_MS", "CLAIM_MS", "TAKE_MS", "STALLED_MS", "RELINK_MS", "DRAIN_MS"
WAITS = ((claims, OF_CLAIMS), (registry, ("WHO_MS", "QUEUE_MS")))


def patient(nodes: Nodes) -> None:
    """Has all nodes run this program."""
    for broker in nodes.brokers.values():
        broker.program = (sys.executable, "-m", "tests.cluster.real.patient")


if __name__ == "__main__":
    for module, names in WAITS:
        for name in names:
            setattr(module, name, TIMES * getattr(module, name))
    if os.environ.get(VARIABLE):
        break_at(os.environ[VARIABLE])
    sys.exit(main())
