"""Messages of a subscription of Pulsar.

    library: receiver queue --> batch: what is there, up to BATCH --> take --> workers --> done: each message is acknowledged

A message that is not acknowledged is delivered again when its consumer ends: after a loss, a kill, or a stop of the source. The
library acknowledges in groups, so that the last ones before a kill arrive again as well.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import _pulsar

from shardbroker.config.sinks.pulsar import PulsarSource, PulsarSourceParameters
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.getters import encoded
from shardbroker.flows.drivers.pulsar_service import PulsarService
from shardbroker.flows.sources.source import Message, Received, SourceDriver, Take
from shardbroker.mqtt.spec import PropertyId
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import EvaluationError

__all__ = ["make_source"]

BATCH = 1000
"""Most messages that are taken together."""
BATCH_BYTES = 1 << 20
QUEUES_MAX = 50_000
"""Most messages of all partitions that the library has in memory."""
DISCOVERY_S = 60
"""Between two looks for new topics of a pattern."""
USER_PROPERTIES_MAX = 64
"""Properties of a message that become User Properties; others are for rules alone."""
TYPES = {
    "exclusive": _pulsar.ConsumerType.Exclusive, "failover": _pulsar.ConsumerType.Failover,
    "shared": _pulsar.ConsumerType.Shared, "key_shared": _pulsar.ConsumerType.KeyShared,
}  # fmt: skip
POSITIONS = {"latest": _pulsar.InitialPosition.Latest, "earliest": _pulsar.InitialPosition.Earliest}
NO_TOPIC = Message(b"", b"")
"""What the frame counts as failed, of a message whose topic or payload cannot be made."""

Make = Callable[[dict[str, Any]], bytes]


def make_source(source: PulsarSource, connector: PulsarService, id: str) -> SourceDriver:
    """Raises ValueError."""
    parameters = source.parameters
    if bool(parameters.topics) is bool(parameters.topics_pattern):
        must = "a list of topics, or empty with topics_pattern"
        raise ValueError(f"{id}: parameters.topics: must be {must}, got {parameters.topics!r:.200}")
    return _Subscription(parameters, connector, id)


def _made(text: str, key: str) -> Make:
    """Returns what makes the bytes of a template for columns. Raises ValueError."""
    try:
        parts = template(text).parts
    except EvaluationError as error:
        raise ValueError(f"{key}: {error}") from None

    def make(columns: dict[str, Any]) -> bytes:
        return b"".join([one.encode() if isinstance(one, str) else encoded(Template.value(columns, one)) for one in parts])

    return make


class _Subscription:
    """The driver of a source."""

    def __init__(self, parameters: PulsarSourceParameters, connector: PulsarService, id: str) -> None:
        self._parameters, self._connector, self._id = parameters, connector, id
        self._topic = _made(parameters.mqtt_topic, f"{id}: parameters.mqtt_topic") if parameters.mqtt_topic else None
        self._payload = _made(parameters.payload_template, f"{id}: parameters.payload_template")
        self._consumer: Any = None

    async def probe(self) -> None:
        """Checks that the server answers, has the topics, and is connected to the consumer. Raises Unusable, ConnectorError."""
        await self._connector.probe()
        for topic in self._parameters.topics:
            await self._connector.check_topic(topic)
        if self._consumer is not None and not self._consumer.is_connected():
            raise ConnectorError(f"{self._connector.where}: the consumer is not connected")

    async def close(self) -> None:
        """Releases nothing: run() closes its consumer."""

    async def run(self, take: Take) -> None:
        """Raises Unusable, ConnectorError."""
        client = None
        try:
            client = await self._connector.opened()
            consumer = await self._subscribed(client)
            self._connector.health.reached()
            self._consumer = consumer
            try:
                await self._receive(consumer, take)
            finally:
                self._consumer = None
                with suppress(OSError, ConnectorError):
                    await self._connector.request(consumer.close_async)
        except (OSError, ConnectorError) as error:
            if self._connector.is_lost(error):
                self._connector.drop(client, error)
            raise self._connector.unusable(error) from error

    async def _subscribed(self, client: Any) -> Any:
        parameters = self._parameters
        made = _pulsar.ConsumerConfiguration()
        made.consumer_type(TYPES[parameters.subscription_type])
        made.subscription_initial_position(POSITIONS[parameters.initial_position])
        made.receiver_queue_size(parameters.receiver_queue)
        made.max_total_receiver_queue_size_across_partitions(max(QUEUES_MAX, parameters.receiver_queue))
        made.consumer_name(self._id)
        made.batch_index_ack_enabled(True)
        made.pattern_auto_discovery_period(DISCOVERY_S)
        topics = _pulsar.TopicRegex(parameters.topics_pattern) if parameters.topics_pattern else parameters.topics
        name = parameters.subscription or f"shardbroker-{self._id.partition(':')[2]}"
        return await self._connector.request(client.subscribe_async_v2, topics, name, made)

    async def _receive(self, consumer: Any, take: Take) -> None:
        while True:
            batch = [await self._connector.answer(consumer.receive_async)]
            size = batch[0].length()
            while len(batch) < BATCH and size < BATCH_BYTES:
                try:
                    message = consumer.receive(0)  # of the queue of the library; does not wait
                except _pulsar.Timeout:
                    break
                batch.append(message)
                size += message.length()
            ids = [message.message_id() for message in batch]
            await take([self._received(message) for message in batch], lambda ids=ids: _acknowledge(consumer, ids))  # type: ignore[misc]

    def _received(self, message: Any) -> Received:
        data, id, topic = message.data(), message.message_id(), message.topic_name()
        key = _if_text(message.partition_key, "")
        columns = {
            "topic": topic,
            "short_topic": topic.rpartition("/")[2],
            "key": key,
            "value": _text(data),
            "properties": _if_text(message.properties, {}),
            "message_id": f"{id.ledger_id()}:{id.entry_id()}:{id.partition()}:{id.batch_index()}",
            "publish_time": message.publish_timestamp(),
            "event_time": message.event_timestamp(),
            "redelivery_count": message.redelivery_count(),
        }
        published = None if self._topic is None else self._message(self._topic, columns)
        return Received(columns, published, (key or topic).encode())

    def _message(self, topic: Make, columns: dict[str, Any]) -> Message:
        parameters = self._parameters
        try:
            name, payload = topic(columns), self._payload(columns)
            pairs = [(name.encode(), value.encode()) for name, value in list(columns["properties"].items())[:USER_PROPERTIES_MAX]]
        except (EvaluationError, UnicodeError):
            return NO_TOPIC
        return Message(name, payload, parameters.qos, parameters.retain, {PropertyId.USER_PROPERTY: pairs} if pairs else {})


def _if_text(read: Callable[[], Any], other: Any) -> Any:
    """Returns what a call reads, or `other` where that is no UTF-8: neither the library nor the server checks what others send."""
    try:
        return read()
    except UnicodeDecodeError:
        return other


def _text(data: bytes) -> str | bytes:
    """Returns a text as such, and other bytes as they are."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _acknowledge(consumer: Any, ids: Sequence[Any]) -> None:
    for id in ids:
        consumer.acknowledge_async(id, _nothing)


def _nothing(*_: Any) -> None:
    """Of an acknowledgement that fails: the message is delivered again."""
