"""Messages of another MQTT broker, acknowledged there once workers here have consumed them.

Clients belong to the connector, so an action and a source of one connector use the same connection. What arrives goes to the source
whose filter it matches. If that does not run, as while it is stopped, the message waits unacknowledged.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from shardbroker.config.sinks.mqtt import MqttSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.mqtt_client import MqttClient
from shardbroker.flows.drivers.mqtt_local import LocalMessages
from shardbroker.flows.drivers.mqtt_properties import INTO, VIA
from shardbroker.flows.drivers.mqtt_received import ReceivedIds
from shardbroker.flows.sources.source import Take
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Publish
from shardbroker.mqtt.spec import FAILURE, REASON_CODES, PropertyId
from shardbroker.mqtt.topics import check_topic_filter, matches, parse_subscription

__all__ = ["Intake", "MqttIn", "Server"]

BATCH_MAX, BATCH_BYTES = 1000, 1 << 20
"""Messages that are taken together."""
HELD_MAX, HELD_BYTES = 5000, 16 << 20
"""Messages of a connection that wait here, and their bytes, above which it is not read."""
RESUME_SHARE = 0.2
"""Share of both below which it is read again."""
RETAIN_HANDLING_NEW = 0x10
"""Subscription option: retained messages are sent if the subscription is new (MQTT 5.0 §3.8.3.1)."""
NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08
MARKS = (VIA.encode(), INTO.encode())
SHARED = ("$share/", "$queue/")


class Server(Protocol):
    """What a source needs of its connector."""

    drivers: list["MqttIn"]
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
    """A message that is to be acknowledged, unless it has QoS 0. session: of its packet id."""

    packet: Publish
    intake: "Intake"
    session: int
    size: int


class Intake:
    """What arrives at one client. ids: those of QoS 2 that have arrived. origin: of the data directory here."""

    def __init__(self, client: MqttClient, connector: Any, ids: ReceivedIds) -> None:
        self.client, self._connector, self._ids = client, connector, ids
        self._seen: dict[int, int] = {}
        """Packet id that is taken and not done -> the connection on which it has arrived last."""
        self._connection = self._session = 0
        self._held: deque[_Arrived] = deque()
        """Messages that no source was there for."""
        self.waiting_messages = self.waiting_bytes = 0
        """What waits here: held, or of a source that has not taken it."""
        self._is_paused = False
        self.is_short = False
        """Whether there was no room for messages, which the server sends again on another connection."""
        client.on_publish, client.on_release, client.on_lost = self._publish, self._release, self._lost

    # --- packets --------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Follows the client to its connection. Packet ids mean nothing in a session that is new."""
        client = self.client
        if self._connection != client.connections:
            self._connection = client.connections
            self._is_paused = False
            self.is_short = False
            if not client.is_resumed:
                self._session += 1
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
        arrived = _Arrived(packet, self, self._session, _size_of(packet))
        if self._has_passed(packet):
            self.done([arrived])
        elif (inlet := _first(self._connector.inlets, packet)) is not None:
            self.count(1, arrived.size)
            inlet.put(arrived)
        elif _first(self._connector.drivers, packet) is None:
            self.done([arrived])  # of a subscription that is left from a source that was removed
        elif qos:
            self._hold(arrived)

    def _hold(self, arrived: _Arrived) -> None:
        """Keeps a message for a source that begins again, or leaves it to the server. Others use the connection meanwhile."""
        if self.is_short or self._is_full:
            self.is_short = True
            self._seen.pop(arrived.packet.packet_id, None)
        else:
            self.count(1, arrived.size)
            self._held.append(arrived)

    def keep(self, waiting: Iterable[_Arrived]) -> None:
        """Takes back what a source has not taken before it ended."""
        for one in waiting:
            if one.packet.qos:
                self._held.append(one)
            else:
                self.count(-1, -one.size)
        self.count(0, 0)

    def give(self, inlet: "MqttIn") -> None:
        """Gives what is held to its source."""
        held, self._held = self._held, deque()
        for one in held:
            if inlet.wants(one.packet.topic):
                inlet.put(one)
            else:
                self._held.append(one)

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

    def done(self, messages: Iterable[_Arrived]) -> None:
        """Acknowledges messages, on the connection on which each has arrived. Raises OSError."""
        due = []
        for one in messages:
            packet = one.packet
            if packet.qos and one.session == self._session:
                connection = self._seen.pop(packet.packet_id, 0)
                due.append((packet.packet_id, packet.qos, connection))
        self._ids.add(packet_id for packet_id, qos, connection in due if qos == 2 and connection)
        if not self.client.is_connected:
            return
        answers = [(packet_id, qos) for packet_id, qos, connection in due if connection == self.client.connections]
        if answers:
            self.client.acknowledge(answers)

    # --- reading --------------------------------------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        return self.waiting_messages > HELD_MAX or self.waiting_bytes > HELD_BYTES

    def count(self, messages: int, size: int) -> None:
        """Notes that so much more waits here; stops or resumes reading. Without a source, nothing would resume it."""
        self.waiting_messages += messages
        self.waiting_bytes += size
        if not self._is_paused:
            if self._is_full and self._connector.inlets:
                self._is_paused = True
                self.client.pause_reading()
        elif not self._connector.inlets or self._is_low:
            self._is_paused = False
            self.client.resume_reading()

    @property
    def _is_low(self) -> bool:
        return self.waiting_messages < RESUME_SHARE * HELD_MAX and self.waiting_bytes < RESUME_SHARE * HELD_BYTES

    def close(self) -> None:
        self._ids.close()


class MqttIn:
    """The driver of a source. Raises ValueError for a filter that cannot be subscribed to."""

    def __init__(self, settings: MqttSource, connector: Server, id: str, address: str) -> None:
        parameters = settings.parameters
        self._connector = connector
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
        self._local = LocalMessages(
            address, local.topic, local.strip_prefix, local.payload, local.qos, local.retain, connector.origin, connector.version
        )
        self._waiting: deque[_Arrived] = deque()
        self._event = asyncio.Event()
        self._error: ConnectorError | None = None
        self._used: dict[int, tuple[MqttClient, int]] = {}
        connector.drivers.append(self)

    # --- of the connector's clients -------------------------------------------------------------------------------------------

    def wants(self, topic: bytes) -> bool:
        for one in self._real:  # noqa: SIM110 (no generator for each message)
            if matches(one, topic):
                return True
        return False

    def put(self, arrived: _Arrived) -> None:
        self._waiting.append(arrived)
        self._event.set()

    def lost(self, intake: Intake, error: ConnectorError) -> None:
        if any(client is intake.client for client, _ in self._used.values()):
            self._error = error
            self._event.set()

    # --- of the frame ---------------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Raises Unusable, ConnectorError."""
        await self._connector.probe()

    async def close(self) -> None:
        """Ends the wait of messages for this source; the server keeps the session."""
        self._connector.drivers.remove(self)

    async def run(self, take: Take) -> None:
        """Raises Unusable, ConnectorError, OSError."""
        inlets = self._connector.inlets
        self._error, received = None, self._local.received
        intakes = [self._connector.intake_of(slot) for slot in range(self._connector.size)]
        inlets.append(self)
        for intake in intakes:  # at once: what arrives from now on is newer
            intake.give(self)
        # Beside the loop: a server sends what it has kept before its SUBACK, which is not read before that is taken.
        subscribing = asyncio.get_running_loop().create_task(self._subscribe())
        subscribing.add_done_callback(lambda _: self._event.set())
        try:
            while True:
                await self._event.wait()
                self._event.clear()
                if subscribing.done():
                    subscribing.result()
                while self._waiting:
                    batch = self._next_batch()
                    await take([received(one.packet) for one in batch], lambda batch=batch: _finish(batch))  # type: ignore[misc]
                if self._error is not None:
                    raise self._error
                if any(client.connections != number for client, number in self._used.values()):
                    raise ConnectorError("the connection was closed")
        finally:
            subscribing.cancel()
            await asyncio.wait([subscribing])
            inlets.remove(self)
            for intake, left in _by_intake(self._waiting):
                intake.keep(left)
            self._waiting.clear()
            self._used.clear()

    def _next_batch(self) -> list[_Arrived]:
        batch: list[_Arrived] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MAX and size < BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        for intake, taken in _by_intake(batch):
            intake.count(-len(taken), -sum(one.size for one in taken))
        return batch

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
            if intake.is_short:
                client.drop(ConnectorError("messages are received again"))
                client = await self._connector.connected(slot)
                intake.begin()
            self._used[slot] = client, client.connections
            for (filter, _), code in zip(topics, await client.subscribe(topics), strict=True):
                if code >= FAILURE:
                    name = REASON_CODES[code][0].replace("_", " ") if code in REASON_CODES else "unknown reason"
                    raise ConnectorError(f"the server rejects the subscription to {filter.decode()!r:.200}: {name} (0x{code:02x})")

def _first(inlets: Iterable[MqttIn], packet: Publish) -> MqttIn | None:
    for one in inlets:
        if one.wants(packet.topic):
            return one
    return None


def _finish(batch: Sequence[_Arrived]) -> None:
    for intake, done in _by_intake(batch):
        intake.done(done)


def _by_intake(messages: Iterable[_Arrived]) -> Iterable[tuple[Intake, list[_Arrived]]]:
    found: dict[int, tuple[Intake, list[_Arrived]]] = {}
    for one in messages:
        key = id(one.intake)
        if key not in found:
            found[key] = one.intake, []
        found[key][1].append(one)
    return found.values()


def _size_of(packet: Publish) -> int:
    """Returns the bytes of a message, without those of small properties."""
    size = len(packet.topic) + len(packet.payload)
    for value in (packet.properties or {}).values():
        if isinstance(value, bytes):
            size += len(value)
        elif isinstance(value, list):
            size += sum(len(name) + len(one) for name, one in value)
    return size


def _checked(filter: str) -> str:
    try:
        check_topic_filter(filter.encode(), 0)
        parse_subscription(filter.encode())
    except (MqttError, UnicodeEncodeError):
        raise ValueError(f"parameters.topic: must be topic filters, got {filter!r:.200}") from None
    return filter
