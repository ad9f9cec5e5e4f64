"""Wills of MQTT-SN devices without a connection."""

from collections.abc import Sequence

from shardbroker.mqtt.packets import Will

__all__ = ["WILLS_MAX", "Wills"]

WILLS_MAX = 1024
"""Wills of devices without a connection that are kept (MQTT-SN §6.3)."""


class Wills:
    """Wills of devices that keep their session, for a later CONNECT without one; the oldest are dropped."""

    def __init__(self) -> None:
        self._found: dict[bytes, Will] = {}

    def image(self) -> list[tuple[bytes, bytes, bytes, int, bool]]:
        """Returns all of them as plain values, oldest first."""
        return [(client_id, one.topic, one.payload, one.qos, one.retain) for client_id, one in self._found.items()]

    def adopt(self, values: Sequence[tuple[bytes, bytes, bytes, int, bool]]) -> None:
        """Takes those of another process."""
        for client_id, *will in values:
            self.put(client_id, Will(*will))

    def get(self, client_id: bytes) -> Will | None:
        """Returns the will of a device."""
        return self._found.get(client_id)

    def put(self, client_id: bytes, will: Will | None) -> None:
        """Keeps a will, or forgets it."""
        self._found.pop(client_id, None)
        if will is not None:
            self._found[client_id] = will
            if len(self._found) > WILLS_MAX:
                del self._found[next(iter(self._found))]
