"""Messages of another MQTT broker, acknowledged there once workers here have consumed them.

Clients belong to the connector, so an action and a source of one connector use the same connection. What arrives goes to the source
whose filter it matches; between two of them, such as during a change, it waits unacknowledged.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shardbroker.config.sinks.mqtt import MqttSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.mqtt_client import MqttClient
from shardbroker.flows.drivers.mqtt_properties import INTO, VIA
from shardbroker.flows.drivers.mqtt_received import ReceivedIds
from shardbroker.flows.sources.source import Message, Received, Take
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Publish
from shardbroker.mqtt.spec import FAILURE, REASON_CODES, PropertyId
from shardbroker.mqtt.topics import check_topic_filter, matches, parse_subscription
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import EvaluationError

__all__ = ["Intake", "MqttIn", "Server"]

BATCH_MAX = 1000
"""Messages that are taken together."""
HELD_MAX, RESUME_AT = 5000, 1000
"""Messages that wait here above which the connection is not read, and below which it is read again."""
PASSED = (
    PropertyId.PAYLOAD_FORMAT_INDICATOR,
    PropertyId.MESSAGE_EXPIRY_INTERVAL,
    PropertyId.CONTENT_TYPE,
    PropertyId.RESPONSE_TOPIC,
    PropertyId.CORRELATION_DATA,
    PropertyId.USER_PROPERTY,
)
"""Properties of a message that are its publisher's."""
NAMES = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: "Payload-Format-Indicator",
    PropertyId.MESSAGE_EXPIRY_INTERVAL: "Message-Expiry-Interval",
    PropertyId.CONTENT_TYPE: "Content-Type",
    PropertyId.RESPONSE_TOPIC: "Response-Topic",
    PropertyId.CORRELATION_DATA: "Correlation-Data",
}
RETAIN_HANDLING_NEW = 0x10
"""Subscription option: retained messages are sent if the subscription is new (MQTT 5.0 §3.8.3.1)."""
NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08
MARKS = (VIA.encode(), INTO.encode())
SHARED = ("$share/", "$queue/")
YES = frozenset({"true", "1"})


class Server(Protocol):
    """What a source needs of its connector."""

    sources: set[str]
    inlets: list["MqttIn"]

    @property
    def version(self) -> int: ...

    @property
    def origin(self) -> str: ...

    @property
    def size(self) -> int: ...


    async def connected(self, slot: int) -> MqttClient: ...

    def intake_of(self, slot: int) -> "Intake": ...

    async def probe(self) -> None: ...


class _Arrived(NamedTuple):
    """A message that is to be acknowledged, unless it has QoS 0."""

    packet: Publish
    intake: "Intake"


class Intake:
    """What arrives at one client. ids: those of QoS 2 that have arrived. origin: of the data directory here."""

    def __init__(self, client: MqttClient, connector: Any, ids: ReceivedIds) -> None:
        self.client, self._connector, self._ids = client, connector, ids
        self._seen: dict[int, int] = {}
        """Packet id that is taken and not done -> the connection on which it has arrived last."""
        self._connection = 0
        self.held: deque[_Arrived] = deque()
        """Messages that no source was there for."""
        self._is_paused = False
        client.on_publish, client.on_release, client.on_lost = self._publish, self._release, self._lost

    # --- packets --------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Follows the client to its connection. Packet ids mean nothing in a session that is new."""
        client = self.client
        if self._connection != client.connections:
            self._connection = client.connections
            self._is_paused = False
            if not client.is_resumed:
                self._seen = {}
                self._ids.clear()

    def _publish(self, packet: Publish) -> None:
        self.begin()
        qos, packet_id = packet.qos, packet.packet_id
        if qos:
            if qos == 2 and packet_id in self._ids:
                self.client.acknowledge([(packet_id, 2)])  # its PUBREC was lost
                return
            is_known = packet_id in self._seen
            self._seen[packet_id] = self._connection
            if is_known and packet.dup:
                return  # taken on an earlier connection, and acknowledged on this one when it is done
        arrived = _Arrived(packet, self)
        if self._has_passed(packet):
            self.done([packet])
            return
        inlets = self._connector.inlets
        if not inlets:
            if self._connector.sources:
                if qos:
                    self.held.append(arrived)
            else:
                self.done([packet])  # of a subscription that is left from a source that was removed
            return
        for inlet in inlets:
            if inlet.wants(packet.topic):
                inlet.put(arrived)
                return
        self.done([packet])

    def _has_passed(self, packet: Publish) -> bool:
        """Returns whether a message has been in this broker before."""
        pairs = (packet.properties or {}).get(PropertyId.USER_PROPERTY)
        if not pairs:
            return False
        origin = self._connector.origin.encode()
        return any(value == origin and name in MARKS for name, value in pairs)

    def _release(self, packet_id: int) -> None:
        self.begin()
        self._ids.remove(packet_id)
        self.client.complete([packet_id])

    def _lost(self, error: ConnectorError) -> None:
        for inlet in self._connector.inlets:
            inlet.lost(self, error)

    def done(self, packets: Sequence[Publish]) -> None:
        """Acknowledges messages, on the connection on which each has arrived. Raises OSError."""
        due = []
        for packet in packets:
            if packet.qos:
                connection = self._seen.pop(packet.packet_id, 0)
                due.append((packet.packet_id, packet.qos, connection))
        self._ids.add(packet_id for packet_id, qos, connection in due if qos == 2 and connection)
        if not self.client.is_connected:
            return
        answers = [(packet_id, qos) for packet_id, qos, connection in due if connection == self.client.connections]
        if answers:
            self.client.acknowledge(answers)

    # --- reading --------------------------------------------------------------------------------------------------------------

    def limit(self, waiting: int) -> None:
        """Stops or resumes reading, by the number of messages that wait."""
        if not self._is_paused and waiting > HELD_MAX:
            self._is_paused = True
            self.client.pause_reading()
        elif self._is_paused and waiting < RESUME_AT:
            self._is_paused = False
            self.client.resume_reading()

    def close(self) -> None:
        self._ids.close()


class MqttIn:
    """The driver of a source. Raises ValueError for a filter that cannot be subscribed to."""

    def __init__(self, settings: MqttSource, connector: Server, id: str, address: str) -> None:
        parameters = settings.parameters
        self._connector, self._address = connector, address
        self._filters = [_checked(one) for one in parameters.topic]
        if not self._filters:
            raise ValueError("parameters.topic: must be at least one topic filter, got []")
        self._real = [parse_subscription(one.encode())[1] for one in self._filters]
        self._qos = parameters.qos
        self._options = parameters.qos
        if connector.version == 5:
            self._options |= RETAIN_HANDLING_NEW | (RETAIN_AS_PUBLISHED if parameters.retain_as_published else 0)
        self._no_local = NO_LOCAL if connector.version == 5 and parameters.no_local else 0
        local = parameters.local
        self._mark = [(INTO.encode(), connector.origin.encode())] if connector.version == 5 and connector.origin else []
        self._strip = local.strip_prefix
        self._topic = template(local.topic) if local.topic else None
        self._payload = template(local.payload)
        self._level, self._retain = template(local.qos), template(local.retain)
        self._waiting: deque[_Arrived] = deque()
        self._event = asyncio.Event()
        self._error: ConnectorError | None = None
        self._used: dict[int, tuple[MqttClient, int]] = {}

    # --- of the connector's clients -------------------------------------------------------------------------------------------

    def wants(self, topic: bytes) -> bool:
        return any(matches(one, topic) for one in self._real)

    def put(self, arrived: _Arrived) -> None:
        self._waiting.append(arrived)
        self._event.set()
        arrived.intake.limit(len(self._waiting))

    def lost(self, intake: Intake, error: ConnectorError) -> None:
        if any(client is intake.client for client, _ in self._used.values()):
            self._error = error
            self._event.set()

    # --- of the frame ---------------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Raises Unusable, ConnectorError."""
        await self._connector.probe()

    async def close(self) -> None:
        """Releases nothing: the server keeps the session."""

    async def run(self, take: Take) -> None:
        """Raises Unusable, ConnectorError, OSError."""
        inlets = self._connector.inlets
        self._error = None
        inlets.append(self)
        try:
            await self._subscribe()
            while True:
                await self._event.wait()
                self._event.clear()
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
                    for intake in {id(one.intake): one.intake for one in batch}.values():
                        intake.limit(len(self._waiting))
                    await take([self._received(one.packet) for one in batch], lambda batch=batch: _finish(batch))  # type: ignore[misc]
                if self._error is not None:
                    raise self._error
                if any(client.connections != number for client, number in self._used.values()):
                    raise ConnectorError("the connection was closed")
        finally:
            inlets.remove(self)
            for one in self._waiting:
                if one.packet.qos:
                    one.intake.held.append(one)
            self._waiting.clear()
            self._used.clear()

    async def _subscribe(self) -> None:
        for slot in range(self._connector.size):
            topics = [
                (one.encode(), self._options if one.startswith(SHARED) else self._options | self._no_local)
                for one in self._filters
                if not slot or one.startswith(SHARED)
            ]
            if not topics:
                continue
            client = await self._connector.connected(slot)
            intake = self._connector.intake_of(slot)
            intake.begin()
            self._used[slot] = client, client.connections
            for held in [one for one in intake.held if self.wants(one.packet.topic)]:
                intake.held.remove(held)
                self.put(held)
            for (filter, _), code in zip(topics, await client.subscribe(topics), strict=True):
                if code >= FAILURE:
                    name = REASON_CODES[code][0].replace("_", " ") if code in REASON_CODES else "unknown reason"
                    raise ConnectorError(f"the server rejects the subscription to {filter.decode()!r:.200}: {name} (0x{code:02x})")

    # --- records --------------------------------------------------------------------------------------------------------------

    def _received(self, packet: Publish) -> Received:
        columns = self._columns(packet)
        return Received(columns, self._message(columns, packet) if self._topic is not None else None, packet.topic)

    def _columns(self, packet: Publish) -> dict[str, Any]:
        return {
            "server": self._address,
            "topic": packet.topic.decode(),
            "payload": packet.payload,
            "qos": packet.qos,
            "dup": packet.dup,
            "retain": packet.retain,
            "pub_props": _named(packet.properties),
            "message_received_at": time.time_ns() // 1_000_000,
        }

    def _message(self, columns: dict[str, Any], packet: Publish) -> Message:
        """Returns what is published here; an impossible one is made a failed record by its topic."""
        assert self._topic is not None
        fields = {**columns, "topic": columns["topic"].removeprefix(self._strip)}
        properties = {number: value for number, value in (packet.properties or {}).items() if number in PASSED}
        if self._mark:
            properties[PropertyId.USER_PROPERTY] = [*properties.get(PropertyId.USER_PROPERTY, ()), *self._mark]
        try:
            qos, retain = self._level.render(fields), self._retain.render(fields)
            if qos not in ("0", "1", "2"):
                raise EvaluationError("qos")
            return Message(
                self._topic.render(fields).encode(), _bytes(self._payload, fields), int(qos), retain in YES, properties
            )
        except (EvaluationError, UnicodeEncodeError):
            return Message(b"", b"")


def _finish(batch: Sequence[_Arrived]) -> None:
    packets: dict[int, tuple[Intake, list[Publish]]] = {}
    for one in batch:
        packets.setdefault(id(one.intake), (one.intake, []))[1].append(one.packet)
    for intake, done in packets.values():
        intake.done(done)


def _checked(filter: str) -> str:
    try:
        check_topic_filter(filter.encode(), 0)
        parse_subscription(filter.encode())
    except (MqttError, UnicodeEncodeError):
        raise ValueError(f"parameters.topic: must be topic filters, got {filter!r:.200}") from None
    return filter


def _named(properties: dict[int, Any] | None) -> dict[str, Any]:
    """Returns properties as the column pub_props has them."""
    found: dict[str, Any] = {}
    for number, value in (properties or {}).items():
        if number == PropertyId.USER_PROPERTY:
            pairs = [{"key": _text(key), "value": _text(one)} for key, one in value]
            found["User-Property"] = {one["key"]: one["value"] for one in pairs}
            found["User-Property-Pairs"] = pairs
        elif (name := NAMES.get(PropertyId(number))) is not None:
            found[name] = _text(value) if isinstance(value, bytes) else value
    return found


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _bytes(text: Template, fields: dict[str, Any]) -> bytes:
    if len(text.parts) == 1 and not isinstance(text.parts[0], str):
        value = text.value(fields, text.parts[0])
        if isinstance(value, bytes):
            return value
    return text.render(fields).encode()


