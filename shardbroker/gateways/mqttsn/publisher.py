"""The session of a listener that publishes messages with QoS -1."""

from math import inf
from typing import Any, ClassVar

from shardbroker.gateways.mqttsn.codec import RETAIN, TopicKind, decode, short_name
from shardbroker.gateways.mqttsn.topics import is_topic, predefined
from shardbroker.gateways.session import VERSION, GatewaySession, login_of, reason_text
from shardbroker.mqtt.batches import encode_publishes
from shardbroker.mqtt.packets import Connack, Connect, Disconnect

__all__ = ["PublisherSession"]

WAITING = 1000
"""Messages with QoS -1 that wait for the connection to the broker."""


class PublisherSession(GatewaySession):
    """Publishes messages with QoS -1 (MQTT-SN §6.8): predefined and short topics, without a device."""

    __slots__ = ("_connect_until_s", "_levels", "_name", "_settings", "_waiting")

    MOVES: ClassVar = (*GatewaySession.MOVES, "_connect_until_s", "_waiting")
    TIMES: ClassVar = (*GatewaySession.TIMES, "_connect_until_s")

    def __init__(self, settings: Any, levels: int, client_id: str, figures: dict[str, int], now_s: float) -> None:
        super().__init__(figures, now_s)
        self._settings, self._levels, self._name = settings, levels, client_id
        self._waiting: list[tuple[int, int, bytes, bytes, bytes]] = []
        self._connect_until_s: float = now_s + settings.idle_timeout
        name = client_id.encode()
        self._dial(Connect(VERSION, name, True, 0, *login_of(settings.clientinfo_override, name)).encode(VERSION))

    @property
    def client_id(self) -> str:
        return self._name

    @property
    def deadline_s(self) -> float:
        return min(super().deadline_s, self._connect_until_s)

    def from_device(self, data: bytes, now_s: float) -> None:
        """Publishes a message that a door has let pass."""
        self._now_s = now_s
        message = decode(data)
        kind, topic = message.flags & 3, None
        if kind == TopicKind.PREDEFINED:
            topic = predefined(self._settings).by_id.get(message.topic_id)
        elif kind == TopicKind.SHORT:
            topic = short_name(message.topic_id)
            topic = topic if is_topic(topic, self._levels) else None
        self._figures["received"] += 1
        if topic is None or self.is_over or self.is_broker_slow or len(self._waiting) >= WAITING:
            self._figures["messages_dropped"] += 1
            return
        self._figures["messages_in"] += 1
        self._waiting.append((int(bool(message.flags & RETAIN)), 0, topic, b"", message.data))
        self._publish()

    def tick(self, now_s: float) -> None:
        if now_s >= self._connect_until_s:
            self._fail("the broker did not answer")
        super().tick(now_s)

    def _publish(self) -> None:
        if self._is_connected and self._waiting:
            self._to_broker(encode_publishes(self._waiting, VERSION))
            self._waiting = []

    def _take(self, packet: Any) -> None:
        if type(packet) is Connack:
            if packet.reason_code:
                self._fail(f"the broker rejects QoS -1: {reason_text(packet.reason_code, packet.properties)}")
                return
            self._accepted(packet)
            self._connect_until_s = inf
            self._publish()
        elif type(packet) is Disconnect:
            self._fail(f"the broker has ended the session: {reason_text(packet.reason_code, packet.properties)}")

    def _fail(self, text: str) -> None:
        self.reason, self.is_over = text, True
        self._figures["messages_dropped"] += len(self._waiting)
        if self._is_connected:
            self._to_broker(Disconnect().encode(VERSION))
