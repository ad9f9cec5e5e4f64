"""Entry point of the process flows."""

import select
import signal

from shm.counters import Counters, ProcessState
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    counters, place = Counters.attach(topology.counters_name), topology.places_of("flows")[number]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    counters.set_state(place.slot, ProcessState.READY)
    while not stopping:
        select.select([topology.doorbells[place.slot]], [], [], 1.0)
    counters.set_state(place.slot, ProcessState.DOWN)
