"""Entry point of the link processes: number 0 has the signals of all peers, the others their data."""

from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    if number:
        from shardbroker.link.data import run as run_data

        run_data(topology, number)
    else:
        from shardbroker.link.signals import run as run_signals

        run_signals(topology)
