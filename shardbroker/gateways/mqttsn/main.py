"""Entry point of the MQTT-SN gateway."""

from functools import partial

from shardbroker.gateways import process
from shardbroker.gateways.mqttsn.door import MqttSnDoor
from shardbroker.gateways.mqttsn.session import FIGURES, MqttSnSession
from shardbroker.gateways.mqttsn.wills import Wills
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology, number: int) -> None:
    """Serves until SIGTERM."""
    wills = Wills()
    process.run(topology, "mqttsn", number, partial(MqttSnSession, wills), FIGURES, MqttSnDoor, shared=wills)
