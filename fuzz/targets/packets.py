"""mqtt/packets.pyx: a decoded packet is equal after encoding and decoding it again; a prefix of it is not a packet."""

from collections.abc import Iterable

from fuzz.engine import exact
from fuzz.fuzz_codec import SEEDS, VERSIONS
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import decode

MAX_LEN = 600


def seeds() -> Iterable[bytes]:
    return (bytes([version]) + packet.encode(version) for packet in SEEDS for version in VERSIONS)


def check(data: bytes) -> None:
    version, data = VERSIONS[data[0] % 3] if data else 5, exact(data[1:])
    offset = 0
    try:
        while (found := decode(data, offset, version)) is not None:
            packet, end = found
            assert offset < end <= len(data), (offset, end)
            encoded = packet.encode(version)
            assert decode(exact(encoded), 0, version) == (packet, len(encoded)), f"{packet} was encoded as {encoded.hex()}"
            assert decode(exact(data[offset : end - 1]), 0, version) is None, f"{packet} of {end - 1 - offset} bytes"
            offset = end
    except MqttError:
        pass
