"""Entry point of the STOMP gateway."""

from shardbroker.gateways import process
from shardbroker.gateways.stomp.session import FIGURES, StompSession
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    process.run(topology, "stomp", number, StompSession, FIGURES)
