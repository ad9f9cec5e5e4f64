"""What becomes of datagrams of unknown senders. No answer is longer than what it answers, and none can be answered in turn: so
neither a forged address nor another gateway makes this one send more than it got."""

from collections.abc import Callable
from typing import Any

from shardbroker.gateways.datagrams import Knock, Verdict
from shardbroker.gateways.mqttsn.codec import QOS_NEGATIVE, Kind, Message, MqttSnError, ReturnCode, decode, qos_of, unwrap
from shardbroker.gateways.mqttsn.publisher import PublisherSession

__all__ = ["MqttSnDoor"]

HEADER = 3
"""Bytes of a forwarder's header before the node id."""
OF_GATEWAYS = frozenset({
    Kind.ADVERTISE, Kind.GWINFO, Kind.CONNACK, Kind.WILLTOPICREQ, Kind.WILLMSGREQ, Kind.SUBACK, Kind.UNSUBACK, Kind.PINGRESP,
    Kind.WILLTOPICRESP, Kind.WILLMSGRESP,
})  # fmt: skip
"""Messages that only gateways send. They are not answered, nor is DISCONNECT without a duration, which gateways send too."""
_CONGESTION = Message(Kind.CONNACK, code=ReturnCode.CONGESTION).encode()
_DISCONNECT = Message(Kind.DISCONNECT).encode()


class MqttSnDoor:
    """settings: returns `gateways.mqttsn` as it is in force. client_id: of the session that publishes QoS -1."""

    def __init__(self, settings: Callable[[], Any], levels: int, client_id: str, figures: dict[str, int]) -> None:
        self._settings, self._levels, self._client_id, self._figures = settings, levels, client_id, figures

    @property
    def max_size(self) -> int:
        return int(self._settings().max_datagram_size)

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        if len(data) > self.max_size:
            return None
        try:
            head, message = unwrap(data)
        except MqttSnError:
            return None
        return head, head[HEADER:], message

    def busy(self, message: bytes) -> bytes:
        """Returns CONNACK with `congestion`."""
        return _CONGESTION

    def knock(self, message: bytes) -> Knock:
        try:
            found = decode(message)
        except MqttSnError:
            self._figures["malformed"] += 1
            return Knock(Verdict.DROP)
        settings = self._settings()
        if found.kind == Kind.CONNECT:
            return Knock(Verdict.OPEN)
        if found.kind == Kind.SEARCHGW:
            return Knock(Verdict.DROP, Message(Kind.GWINFO, gateway_id=settings.gateway_id).encode())
        if found.kind == Kind.PUBLISH and qos_of(found.flags) == QOS_NEGATIVE:
            if settings.enable_qos3:
                return Knock(Verdict.PUBLISH)
            self._figures["messages_dropped"] += 1
            return Knock(Verdict.DROP)
        if found.kind in OF_GATEWAYS or (found.kind == Kind.DISCONNECT and not found.duration):
            return Knock(Verdict.DROP)
        return Knock(Verdict.DROP, _DISCONNECT)  # MQTT-SN §6.14: the gateway does not know the client

    def advertisement(self) -> tuple[bytes, str, float] | None:
        settings = self._settings()
        interval_s = settings.advertise_interval
        if not interval_s:
            return None
        message = Message(Kind.ADVERTISE, gateway_id=settings.gateway_id, duration=max(1, round(interval_s)))
        return message.encode(), settings.advertise_to, interval_s

    def make_publisher(self, now_s: float) -> PublisherSession:
        return PublisherSession(self._settings(), self._levels, self._client_id, self._figures, now_s)
