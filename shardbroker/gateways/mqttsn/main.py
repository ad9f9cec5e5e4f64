"""Entry point of the MQTT-SN gateway."""

from functools import partial

from shardbroker.gateways import process
from shardbroker.gateways.mqttsn.door import MqttSnDoor
from shardbroker.gateways.mqttsn.session import FIGURES, MqttSnSession
from shardbroker.gateways.mqttsn.wills import Wills
from shm.topology import Topology

__all__ = ["run"]


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    process.run(topology, "mqttsn", partial(MqttSnSession, Wills()), FIGURES, MqttSnDoor)
