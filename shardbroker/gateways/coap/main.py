"""Entry point of the CoAP gateway."""

from shardbroker.gateways import process
from shardbroker.gateways.coap.door import CoapDoor
from shardbroker.gateways.coap.session import FIGURES, CoapSession
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    process.run(topology, "coap", number, CoapSession, FIGURES, CoapDoor)
