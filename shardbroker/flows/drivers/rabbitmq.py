"""RabbitMQ: rows as messages that the server confirms, and messages of a queue.

A batch is one write of frames. A message that is returned because no queue gets it, and one that the server refuses, fail alone.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardbroker.config.sinks.rabbitmq import RabbitmqAction, RabbitmqConnector, RabbitmqParameters, RabbitmqSource
from shardbroker.connectors.amqp import CHANNEL, Amqp, AmqpChannelClosed, Delivery
from shardbroker.connectors.amqp_wire import BODY, FRAME_END, HEADER, PROPERTIES, AmqpFault, header, method, short_text
from shardbroker.flows.drivers.getters import rendered
from shardbroker.flows.sinks.driver import ConnectorDriver, Failure, Refused, Unusable
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sources.source import Message, Received, SourceDriver, Take
from shardbroker.mqtt.spec import PropertyId
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import EvaluationError

__all__ = ["connect", "make", "make_source"]

PUBLISH = (60, 40)
FRAME_START, NEXT_FRAME = struct.Struct(">BHI"), struct.Struct(">BBHI")
HEADER_START, PLAIN_HEADER = struct.Struct(">BHIHHQH"), struct.Struct(">BHIHHQHBB")
"""Frame, class, weight, body size, flags; and then delivery_mode and the size of message_id."""
PLAIN_FLAGS = 0x1080
"""Of a message with those two properties."""
END = b"\xce"
KEYS_MAX = 1024
"""Routing keys whose frames are remembered."""
MODES = {"non_persistent": 1, "persistent": 2}
TEXTS = frozenset(name for name, kind in PROPERTIES if kind == "s") - {"cluster_id"}
NUMBERS = {"priority": 255, "timestamp": (1 << 63) - 1}
"""Properties that are numbers, and their highest values."""
OF_ROWS = frozenset({406})
"""Codes of AMQP with which the server refuses one message of a batch: precondition failed."""
HEADERS_MAX = 64
"""Headers of a message that become User Properties."""
SHORT_MAX = 255

Maker = Callable[[Row], bytes]


def connect(settings: RabbitmqConnector, key: str) -> Amqp:
    """Raises ConnectionSettingError."""
    return Amqp(settings, key)


def make(action: RabbitmqAction, connector: Amqp, id: str) -> "RabbitmqSink":
    """Raises ValueError."""
    return RabbitmqSink(action.parameters, connector)


def make_source(source: RabbitmqSource, connector: Amqp, id: str) -> SourceDriver:
    """Raises ValueError."""
    return RabbitmqQueue(source, connector)


class RabbitmqSink(ConnectorDriver[Amqp]):
    """The driver of an action."""

    def __init__(self, parameters: RabbitmqParameters, connector: Amqp) -> None:
        super().__init__(connector)
        self._exchange = parameters.exchange
        self._timeout_s = parameters.publish_confirmation_timeout
        if not parameters.exchange and not parameters.routing_key:
            raise ValueError("parameters.routing_key: must be the name of a queue or a template, as exchange is empty, got ''")
        self._routing_key = rendered(parameters.routing_key)
        payload = parameters.payload_template
        self._body: Maker = rendered(payload) if payload else lambda row: json_bytes(row.values)
        self._headers = [(short_text(name.encode()), rendered(text)) for name, text in parameters.headers_template.items()]
        for name in parameters.properties_template:
            if name not in TEXTS and name not in NUMBERS:
                names = ", ".join(sorted({*TEXTS, *NUMBERS}))
                raise ValueError(f"parameters.properties_template: must be names of {names}, got {name!r:.100}")
        self._properties = {name: rendered(text) for name, text in parameters.properties_template.items()}
        self._mode = MODES[parameters.delivery_mode]
        self._is_mandatory = parameters.mandatory
        self._start = b"\0\0" + short_text(parameters.exchange.encode())
        self._end = b"\x01" if parameters.mandatory else b"\0"
        self._publish: dict[bytes, bytes] = {}
        """Routing key -> frame of the method."""
        self._is_plain = not self._headers and not self._properties

    async def open(self) -> None:
        """Checks that the server answers, and has the exchange."""
        await self.probe()
        if self._exchange:
            try:
                async with self._connector.connection() as connection:
                    await connection.check_exchange(self._exchange)
            except AmqpChannelClosed as error:
                if error.code == 406:
                    return  # it exists, and is of another type than asked for
                raise Unusable(f"parameters.exchange: {error}") from None

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Raises Refused, Unusable, ConnectorError, OSError."""
        failures: list[Failure] = []
        parts: list[bytes] = []
        written: list[tuple[int, bytes]] = []
        async with self._connector.publisher() as connection:
            most = connection.frame_max - 8
            for at, row in enumerate(rows):
                try:
                    id = self._put(row, most, parts)
                except (EvaluationError, AmqpFault, ValueError, struct.error, RecursionError) as error:
                    detail = f": {error}" if isinstance(error, AmqpFault | _Refusal) else ""
                    failures.append(Failure(at, f"message not made: {type(error).__name__}{detail}"))
                    continue
                written.append((at, id))
            if not written:
                return failures
            try:
                refused, returned = await connection.publish(len(written), b"".join(parts), self._timeout_s)
            except AmqpChannelClosed as error:
                if error.code in OF_ROWS:
                    raise Refused("the server refuses a message of the batch (406)") from None
                raise Unusable(str(error)) from None
        failures += [Failure(written[one][0], "the server could not take the message", again=True) for one in refused]
        if returned:
            unroutable = self._unroutable(written, returned)
            failures += [Failure(at, "no queue gets the message: no binding has its routing key") for at in unroutable]
        return failures

    @staticmethod
    def _unroutable(written: list[tuple[int, bytes]], returned: dict[bytes, int]) -> list[int]:
        found = []
        for at, id in written:
            if returned.get(id, 0):
                returned[id] -= 1
                found.append(at)
        return found

    def _put(self, row: Row, most: int, parts: list[bytes]) -> bytes:
        """Appends the frames of a message; returns its id. Raises EvaluationError, AmqpFault, ValueError, struct.error."""
        routing_key, body = self._routing_key(row), self._body(row)
        size = len(body)
        publish = self._publish.get(routing_key) or self._publish_frame(routing_key)
        if self._is_plain:
            id: bytes = row.key.encode(errors="backslashreplace")[-SHORT_MAX:]
            header_frame = PLAIN_HEADER.pack(HEADER, CHANNEL, 16 + len(id), 60, 0, size, PLAIN_FLAGS, self._mode, len(id)) + id
        else:
            given = self._given(row)
            id = given["message_id"]
            flags, properties = self._encoded(given, row)
            header_frame = HEADER_START.pack(HEADER, CHANNEL, 14 + len(properties), 60, 0, size, flags) + properties
        if 0 < size <= most:
            parts += (publish, header_frame, NEXT_FRAME.pack(FRAME_END, BODY, CHANNEL, size), body, END)
            return id
        parts += (publish, header_frame, END)
        for at in range(0, size, most):
            part = body[at : at + most]
            parts += (FRAME_START.pack(BODY, CHANNEL, len(part)), part, END)
        return id

    def _publish_frame(self, routing_key: bytes) -> bytes:
        """Returns the frame of the method, and remembers it for the next messages. Raises AmqpFault."""
        if len(self._publish) >= KEYS_MAX:
            self._publish.clear()
        made = self._publish[routing_key] = method(CHANNEL, PUBLISH, self._start, short_text(routing_key), self._end)
        return made

    def _given(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"delivery_mode": self._mode, "message_id": row.key.encode(errors="backslashreplace")[-SHORT_MAX:]}
        for name, make in self._properties.items():
            text = make(row)
            if name in TEXTS:
                if name == "expiration" and not (text.isdigit() and len(text) <= 18):
                    raise _Refusal("expiration: must be a number of ms")
                if len(text) > SHORT_MAX:
                    raise _Refusal(f"{name}: must be at most {SHORT_MAX} bytes, got {len(text)}")
                found[name] = text
            elif text.isdigit() and len(text) < 20 and int(text) <= NUMBERS[name]:
                found[name] = int(text)
            else:
                raise _Refusal(f"{name}: must be a number of up to {NUMBERS[name]}")
        return found

    def _encoded(self, given: dict[str, Any], row: Row) -> tuple[int, bytes]:
        if self._headers:
            given["headers"] = {name[1:]: make(row) for name, make in self._headers}
        return header(given)


class _Refusal(ValueError):
    """A property that a message cannot have; its text has no value of a row."""


class RabbitmqQueue:
    """The driver of a source."""

    def __init__(self, source: RabbitmqSource, connector: Amqp) -> None:
        parameters = source.parameters
        if not parameters.queue:
            raise ValueError("parameters.queue: must be the name of a queue, got ''")
        self._connector = connector
        self._queue, self._prefetch = parameters.queue, parameters.prefetch
        self._topic = _template("topic", parameters.topic) if parameters.topic else None
        self._payload = None if parameters.payload_template == "${payload}" else _template("payload", parameters.payload_template)
        self._qos, self._retain = parameters.qos, parameters.retain
        self.lag_records: int | None = None
        """Messages of the queue that no consumer has yet."""

    async def probe(self) -> None:
        """Checks that the queue is there. Raises ConnectorError, OSError, TimeoutError."""
        try:
            async with self._connector.connection() as connection:
                self.lag_records = await connection.messages_of(self._queue)
        except AmqpChannelClosed as error:
            raise Unusable(f"parameters.queue: {error}") from None

    async def close(self) -> None:
        """Releases nothing: run() closes its connection."""

    async def run(self, take: Take) -> None:
        """Raises ConnectorError, OSError, TimeoutError."""
        connection = await self._connector.open()
        waiting: list[Delivery] = []
        arrived = asyncio.Event()

        def on_delivery(delivery: Delivery) -> None:
            waiting.append(delivery)
            arrived.set()

        lost = asyncio.get_running_loop().create_task(connection.wait_lost())
        lost.add_done_callback(lambda _: arrived.set())
        try:
            try:
                async with asyncio.timeout(self._connector.settings.timeout):
                    await connection.consume(self._queue, self._prefetch, on_delivery)
            except AmqpChannelClosed as error:
                raise Unusable(f"parameters.queue: {error}") from None
            while True:
                await arrived.wait()
                if lost.done():
                    raise lost.result()
                arrived.clear()
                batch, waiting = waiting, []
                if not batch:
                    continue
                tag = batch[-1].tag
                await take([self._received(one) for one in batch], lambda tag=tag: connection.acknowledge(tag))  # type: ignore[misc]
        finally:
            lost.cancel()
            connection.close()

    def _received(self, delivery: Delivery) -> Received:
        columns = {
            **delivery.properties,
            "payload": delivery.body,
            "exchange": delivery.exchange,
            "routing_key": delivery.routing_key,
            "queue": self._queue,
            "redelivered": delivery.redelivered,
        }
        if self._topic is None:
            return Received(columns, None)
        message = self._message(self._topic, columns, delivery)
        return Received(columns, message, message.topic)

    def _message(self, topic: Template, columns: dict[str, Any], delivery: Delivery) -> Message:
        """A topic or payload that cannot be made is an empty topic, which the frame counts as failed."""
        try:
            name = topic.render(columns).encode()
            payload = delivery.body if self._payload is None else self._payload.render(columns).encode()
        except (EvaluationError, ValueError, TypeError, RecursionError):
            name, payload = b"", b""
        return Message(name, payload, self._qos, self._retain, _mqtt_properties(delivery.properties))


def _template(name: str, text: str) -> Template:
    """Raises ValueError."""
    try:
        return template(text)
    except EvaluationError as error:
        raise ValueError(f"parameters.{name}: {error}") from None


def _mqtt_properties(properties: Mapping[str, Any]) -> dict[PropertyId, Any]:
    """Returns the properties of MQTT 5.0 that a message has: content type, correlation data, expiry, and headers that are texts."""
    found: dict[PropertyId, Any] = {}
    if isinstance(kind := properties.get("content_type"), str):
        found[PropertyId.CONTENT_TYPE] = kind.encode()
    if (correlation := properties.get("correlation_id")) is not None:
        found[PropertyId.CORRELATION_DATA] = correlation.encode() if isinstance(correlation, str) else correlation
    expiration = properties.get("expiration")
    if isinstance(expiration, str) and expiration.isdigit() and len(expiration) <= 18:
        found[PropertyId.MESSAGE_EXPIRY_INTERVAL] = -(-int(expiration) // 1000)
    headers = properties.get("headers") or {}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items() if isinstance(value, str) and len(value) < 65536]
    if pairs:
        found[PropertyId.USER_PROPERTY] = pairs[:HEADERS_MAX]
    return found
