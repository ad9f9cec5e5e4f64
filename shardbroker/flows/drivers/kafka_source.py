"""Records of Kafka for rules and clients, as a member of a consumer group.

    getmany --> columns, message --> take(batch, done) --> workers --> done: offsets of the batch may be committed
                                                                       --> commit, now and then, and when partitions leave

The offset of a record is committed only once a worker has it, so a record is never lost. When partitions are to be given to another
member, this one waits for what is under way and commits it first. A batch that is done later has no effect on offsets: its
partitions may belong to another member.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import IllegalStateError, KafkaError

from shardbroker.config.sinks.kafka import KafkaMapping, KafkaSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.kafka import topic_error
from shardbroker.flows.drivers.getters import rendered
from shardbroker.flows.drivers.kafka_base import FORBIDDEN_TOPIC, UNKNOWN_TOPIC, KafkaServer
from shardbroker.flows.drivers.kafka_records import UNPRINTABLE
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sources.source import Message, Received, Take

__all__ = ["KafkaReader"]

RECORDS_MAX: Final = 1000
"""Most records of a batch."""
FETCH_FACTOR: Final = 8
"""An answer has at most the bytes of so many partitions."""
LEAVE_S: Final = 5.0
"""Longest wait for records under way before partitions are given away, and for the end of a consumer."""
RETRY_S: Final = 0.1
"""Delay before another attempt to commit where partitions begin."""
TYPES: Final = {0: "create", 1: "append"}
"""Types of timestamps, as EMQX names them."""
NOWHERE: Final = b""
"""Topic of a record of which no message can be made: the frame counts it as failed."""


class KafkaReader(ConsumerRebalanceListener):  # type: ignore[misc]
    """One member of the group. Raises ValueError for parameters that cannot be used."""

    def __init__(self, settings: KafkaSource, connector: KafkaServer, id: str) -> None:
        parameters = self._parameters = settings.parameters
        self._connector = connector
        self._group = parameters.group_id or f"shardbroker-{id.partition(':')[2]}"
        self._columns = _columns(parameters.key_encoding_mode, parameters.value_encoding_mode)
        self._messages: dict[str, Callable[[Row], Message]] = {}
        for one in parameters.topic_mapping:
            if one.kafka_topic in self._messages:
                raise ValueError(f"{id}: parameters.topic_mapping: must have each kafka_topic once, got {one.kafka_topic!r} twice")
            self._messages[one.kafka_topic] = _message(one)
        self._topics = list(dict.fromkeys([*([parameters.topic] if parameters.topic else []), *self._messages]))
        if not self._topics:
            raise ValueError(f"{id}: parameters.topic: must be a topic of Kafka, or topic_mapping a list of them, got ''")
        self._consumer: Any = None
        self._generation = 0
        """Number of the assignment of partitions."""
        self._begun: set[TopicPartition] = set()
        """Partitions that have a committed offset."""
        self._next: dict[TopicPartition, int] = {}
        """Offset behind the last record that was taken."""
        self._done: dict[TopicPartition, int] = {}
        """Offset behind the last record that a worker has, where it is not committed."""
        self._under_way = 0
        self._idle = asyncio.Event()

    @property
    def lag_records(self) -> int:
        """Records of the assigned partitions that were not received yet."""
        consumer, lag = self._consumer, 0
        for partition, offset in list(self._next.items()) if consumer is not None else ():
            with suppress(KafkaError, AssertionError):
                lag += max(0, (consumer.highwater(partition) or offset) - offset)
        return lag

    async def probe(self) -> None:
        """Checks the server and the topics. Raises ConnectorError."""
        for name in self._topics:
            code, _ = await self._connector.topic(name)
            if code == UNKNOWN_TOPIC:
                raise ConnectorError(f"{self._connector.where}: there is no topic {name!r}")
            if code == FORBIDDEN_TOPIC:
                raise ConnectorError(f"{self._connector.where}: the account has no right for the topic {name!r}")
            if code:
                raise ConnectorError(f"{self._connector.where}: Kafka error {topic_error(code)}")

    async def run(self, take: Take) -> None:
        """Reads until it is cancelled. Raises ConnectorError when the server cannot be used."""
        parameters = self._parameters
        wait_ms = int(parameters.max_wait_time * 1000)
        self._consumer = consumer = AIOKafkaConsumer(
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset=parameters.offset_reset_policy,
            isolation_level="read_committed",
            max_partition_fetch_bytes=parameters.max_batch_bytes,
            fetch_max_bytes=FETCH_FACTOR * parameters.max_batch_bytes,
            fetch_max_wait_ms=wait_ms,
            **self._connector.options() | {"request_timeout_ms": self._connector.timeout_ms + wait_ms},
        )
        committing: asyncio.Task[None] | None = None
        try:
            consumer.subscribe(list(self._topics), listener=self)
            await consumer.start()
            committing = asyncio.ensure_future(self._commit_now_and_then())
            while True:
                records = await consumer.getmany(timeout_ms=wait_ms, max_records=RECORDS_MAX)
                generation = self._generation
                while self._begun != consumer.assignment() and not await self._begin(records):
                    await asyncio.sleep(RETRY_S)
                if records:
                    await self._take(take, records, generation)
                if committing.done():
                    committing.result()
        except Exception as error:
            raise self._connector.noted(error) from error
        finally:
            if committing is not None:
                committing.cancel()
            await self._leave()

    async def close(self) -> None:
        """Has nothing of its own: run() ends its consumer."""

    async def _leave(self) -> None:
        """Commits what is done, and leaves the group."""
        consumer = self._consumer
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await self._commit()
        self._forget()
        self._consumer = None
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await consumer.stop()

    # --- records --------------------------------------------------------------------------------------------------------------

    async def _take(self, take: Take, records: Mapping[TopicPartition, Sequence[ConsumerRecord]], generation: int) -> None:
        """Hands records to workers; their offsets may be committed once these have them, in the generation of their assignment."""
        behind = {where: of[-1].offset + 1 for where, of in records.items() if of}
        batch = [self._received(record) for of in records.values() for record in of]

        def done() -> None:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            if generation == self._generation:
                self._done |= behind

        if generation == self._generation:
            self._next |= behind
        self._under_way += 1
        self._idle.clear()
        await take(batch, done)

    def _received(self, record: ConsumerRecord) -> Received:
        columns = self._columns(record)
        make = self._messages.get(record.topic)
        message = make(Row("", 0, "", columns, size=1)) if make is not None else None
        return Received(columns, message, b"%s/%d" % (record.topic.encode(), record.partition))

    # --- offsets --------------------------------------------------------------------------------------------------------------

    async def _begin(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> bool:
        """Commits where partitions begin that have no offset. Otherwise a kill before the first commit would begin at the latest
        record again, and lose those between. Returns False if that has to be tried again."""
        consumer, generation = self._consumer, self._generation
        assigned = set(consumer.assignment())
        offsets: dict[TopicPartition, int] = {}
        try:
            for where in assigned - self._begun:
                if await consumer.committed(where) is None:
                    of = records.get(where)
                    offsets[where] = of[0].offset if of else await consumer.position(where)
        except IllegalStateError:  # the partition has left
            return False
        if not await self._try_commit(offsets) or generation != self._generation:
            return False
        self._begun = assigned
        return True

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._parameters.offset_commit_interval_seconds)
            await self._commit()

    async def _commit(self) -> None:
        """Commits what is done; what is not committed is committed later."""
        offsets, self._done, generation = self._done, {}, self._generation
        if offsets and not await self._try_commit(offsets) and generation == self._generation:
            self._done = offsets | self._done

    async def _try_commit(self, offsets: dict[TopicPartition, int]) -> bool:
        """Returns whether offsets of partitions that this member has are committed."""
        assigned = self._consumer.assignment()
        mine = {where: offset for where, offset in offsets.items() if where in assigned}
        try:
            if mine:
                await self._consumer.commit(mine)
        except KafkaError:  # of a rebalance that has begun, or a server that cannot be reached: the probe tells which
            return False
        return True

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Waits for what is under way and commits it, before another member reads on."""
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                if self._under_way:
                    await self._idle.wait()
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await self._commit()
        self._forget()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Begins without anything of the partitions before."""
        self._forget()

    def _forget(self) -> None:
        self._generation += 1
        self._done, self._next = {}, {}
        self._begun = set()


# --- columns and messages ---------------------------------------------------------------------------------------------------------


def _columns(key_mode: str, value_mode: str) -> Callable[[ConsumerRecord], dict[str, Any]]:
    """Returns what makes the columns of a record, by EMQX's names."""
    key_of, value_of = (_in_base64 if mode == "base64" else _shown for mode in (key_mode, value_mode))

    def columns(record: ConsumerRecord) -> dict[str, Any]:
        return {
            "topic": record.topic,
            "key": key_of(record.key),
            "value": value_of(record.value),
            "offset": record.offset,
            "ts": record.timestamp,
            "ts_type": TYPES.get(record.timestamp_type, "undefined"),
            "headers": {name: _shown(value) for name, value in record.headers},
            "partition": record.partition,
        }

    return columns


def _in_base64(value: bytes | None) -> str:
    return base64.b64encode(value or b"").decode()


def _shown(value: bytes | None) -> str | bytes:
    """Returns text where bytes are UTF-8. A missing value is empty, as in EMQX."""
    if value is None:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _message(mapping: KafkaMapping) -> Callable[[Row], Message]:
    """Returns what makes the message of the columns of a record."""
    topic, qos = rendered(mapping.mqtt_topic), mapping.qos
    payload = rendered(mapping.payload_template) if mapping.payload_template != "${.}" else lambda row: json_bytes(row.values)

    def make(row: Row) -> Message:
        try:
            return Message(topic(row), payload(row), qos)
        except UNPRINTABLE:
            return Message(NOWHERE, b"", qos)

    return make
