"""Entry point of an acceptor process."""

import signal

from acceptor.acceptor import Acceptor
from shm.counters import Counters, ProcessState
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Accepts and hands over until SIGTERM, then hands over what is complete and serves TLS connections to their end."""
    counters = Counters.attach(topology.counters_name)
    slot = topology.slot_of("acceptor", number)
    counters.reset_gauges(slot)
    acceptor = Acceptor(topology, number, counters)

    def drain(_signal: int, _frame: object) -> None:
        acceptor.draining = True

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    counters.set_state(slot, ProcessState.READY)
    acceptor.run()
    acceptor.stop_accepting()
    counters.set_state(slot, ProcessState.DRAINING)
    acceptor.see_off()
    counters.set_state(slot, ProcessState.DOWN)
