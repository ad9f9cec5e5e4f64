"""What drivers of Kafka share: the connector with errors that explain, records by partition, batches, producers."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownProducerId,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from shardbroker.config.sinks.kafka import KafkaParameters
from shardbroker.connectors.errors import ConnectorError, one_line
from shardbroker.connectors.kafka import InvalidRecord, Kafka, topic_error
from shardbroker.connectors.reasons import causes, network_reason, tls_reason
from shardbroker.flows.drivers.kafka_records import ImpossibleRecord, Record, constant_of, key_hash, record_maker, topic_maker
from shardbroker.flows.sinks.driver import Failure, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = [
    "DELIVERY_S", "FORBIDDEN_TOPIC", "NOT_WRITTEN", "OF_RECORDS", "UNKNOWN_TOPIC", "KafkaBase", "KafkaServer", "Partition", "Parts",
    "Rejected", "batch_of", "stopped",
]  # fmt: skip

ACKS: Final = {"all_isr": "all", "leader_only": 1, "none": 0}
RETRY_MS: Final = 100
"""Delay between attempts of a producer."""
DELIVERY_S: Final = 120.0
"""Longest time for which a producer repeats a batch, as delivery.timeout.ms of Java's clients; after it rows are written again."""
STOP_S: Final = 5.0
"""Longest wait for requests of a producer that is given up."""
CANCEL_S: Final = 0.1
"""Time between two attempts to end the task of a producer."""
UNKNOWN_S: Final = 5.0
"""Time for which a topic that Kafka does not have is not looked up again."""
UNKNOWN_MAX: Final = 1000
"""Most such topics that are remembered."""
UNKNOWN_TOPIC, FORBIDDEN_TOPIC, INVALID_TOPIC, NO_LEADER = 3, 29, 17, 5
"""Error codes of topics."""
OF_RECORDS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTimestampError, CorruptRecordException, InvalidRecord)
"""Errors of a batch that a record in it may have caused."""
REASONS: Final = {
    MessageSizeTooLargeError: "the record is larger than max.message.bytes of the topic",
    RecordListTooLargeError: "the record is larger than a segment of the topic",
    InvalidTimestampError: "the timestamp is not within message.timestamp.before.max.ms and after.max.ms of the topic",
}
OTHER_REASON: Final = "the topic rejects the record, as one without a key where it is compacted"
NOT_WRITTEN = (OutOfOrderSequenceNumber, UnknownProducerId)
"""Errors of a batch that Kafka has not written for what happened before it."""
FORBIDDEN = (
    ClusterAuthorizationFailedError, GroupAuthorizationFailedError, TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)  # fmt: skip

Partition = tuple[str, int]
Parts = dict[Partition, list[Record]]
"""Records by topic and partition."""


class KafkaServer(Kafka):
    """Raises Unusable or ConnectorError in place of the library's errors."""

    async def probe(self) -> None:
        try:
            await super().probe()
        except Exception as error:
            raise self.noted(error) from error

    async def topic(self, name: str, within_s: float = float("inf")) -> tuple[int, int]:
        try:
            return await super().topic(name, within_s)
        except Exception as error:
            raise self.noted(error) from error

    def noted(self, error: Exception) -> Exception:
        """Returns an error that explains what is wrong, and keeps it as the last one of the connector."""
        explained = self.explained(error)
        self.health.last_error = str(explained)
        return explained

    def explained(self, error: Exception) -> Exception:
        """Returns an error that explains what is wrong."""
        if isinstance(error, ConnectorError):
            return error
        where, settings = self.where, self.settings
        if isinstance(error, SaslAuthenticationFailed):
            return Unusable(f"{where}: the server rejects username or password")
        if isinstance(error, UnsupportedSaslMechanismError | IllegalSaslStateError):
            return Unusable(f"{where}: the server has no login by mechanism {settings.mechanism}")
        if isinstance(error, FORBIDDEN):
            return Unusable(f"{where}: the account has no right for this request: {error.message}")
        if isinstance(error, UnsupportedVersionError):
            return Unusable(f"{where}: the version of the server is not supported")
        network = next((one for one in causes(error) if isinstance(one, OSError) and not isinstance(one, TimeoutError)), None)
        if network is not None:
            return ConnectorError(f"{where}: {tls_reason(str(network)) or network_reason(network)}")
        if isinstance(error, TimeoutError | RequestTimedOutError):
            return ConnectorError(f"{where}: no response in time")
        if isinstance(error, KafkaConnectionError | NodeNotReadyError):
            hint = "" if settings.mechanism != "none" and settings.tls else ", as it does if it expects TLS or a login"
            return ConnectorError(f"{where}: the connection was closed{hint}")
        if isinstance(error, KafkaError):
            return ConnectorError(f"{where}: Kafka error {one_line(str(getattr(error, 'message', '') or type(error).__name__))}")
        return ConnectorError(f"{where}: {network_reason(error)}")


class Rejected(Exception):
    """Kafka rejects a batch of one partition."""

    def __init__(self, where: Partition, records: list[Record], error: Exception) -> None:
        super().__init__(where, len(records))
        self.where, self.records, self.error = where, records, error

    @property
    def reason(self) -> str:
        return REASONS.get(type(self.error), OTHER_REASON)


async def stopped(producer: AIOKafkaProducer, sends: bool = False) -> None:
    """Ends a producer. sends: what it has begun gets STOP_S to end; else, or after that, it fails."""
    if sends:
        with suppress(Exception):
            async with asyncio.timeout(STOP_S):
                return await producer.stop()  # type: ignore[no-any-return]
    producer._closed = True
    accumulator, sender = producer._message_accumulator, producer._sender.sender_task
    for batch in [*accumulator._pending_batches, *(one for of in accumulator._batches.values() for one in of)]:
        if not batch.future.done():
            batch.future.set_exception(KafkaConnectionError())  # nothing else ends the wait for it
            batch.future.exception()  # which may have ended
    while sender is not None and not sender.done():  # once more if it waits for requests
        sender.cancel()
        await asyncio.wait([sender], timeout=CANCEL_S)
    with suppress(Exception):
        async with asyncio.timeout(STOP_S):
            await producer.client.close()


class KafkaBase:
    """What drivers with and without transactions share: records, topics, batches."""

    def __init__(self, parameters: KafkaParameters, connector: KafkaServer) -> None:
        self._parameters, self._connector = parameters, connector
        try:
            self._constant = constant_of(parameters.topic)
            self._topic_of = topic_maker(parameters.topic)
        except ValueError as error:
            raise ValueError(f"topic: {error}") from None
        if parameters.partitions_limit != "all_partitions" and not 1 <= parameters.partitions_limit <= 100_000:
            raise ValueError(f"partitions_limit: must be all_partitions or 1 to 100000, got {parameters.partitions_limit}")
        self._record_of = record_maker(parameters)
        self._is_by_key = parameters.partition_strategy == "key_dispatch"
        self._compression = None if parameters.compression == "no_compression" else parameters.compression
        if self._compression in ("snappy", "lz4", "zstd"):
            import cramjam  # noqa: F401  # an ImportError names what has to be installed
        self._unknown: dict[str, tuple[float, str]] = {}
        """Topic -> end of the time for which it counts as unknown, and why."""

    async def probe(self) -> None:
        """Checks the server, and the topic if it is the same for all rows."""
        if self._constant is None:
            await self._connector.probe()
        else:
            await self._check_topic(self._constant)

    async def _check_topic(self, topic: str) -> str:
        """Returns why a topic cannot be written; empty: it can. Raises Unusable if rows have no other, ConnectorError."""
        code, partitions = await self._connector.topic(topic)
        if code == NO_LEADER or (not code and not partitions):
            raise ConnectorError(f"{self._connector.where}: the topic {topic!r} has no leader")
        if not code:
            return ""
        if code == UNKNOWN_TOPIC:
            reason = "there is no topic" if self._constant is None else f"there is no topic {topic!r}"
        elif code == FORBIDDEN_TOPIC:
            reason = "the account has no right for the topic" + (f" {topic!r}" if self._constant is not None else "")
        elif code == INVALID_TOPIC:
            reason = "the name of the topic is not allowed"
        else:
            raise ConnectorError(f"{self._connector.where}: Kafka error {topic_error(code)}")
        if self._constant is not None:
            raise Unusable(f"{self._connector.where}: {reason}")
        return reason

    async def _partitions(self, producer: AIOKafkaProducer, topic: str) -> list[int] | str:
        """Returns the partitions of a topic that are written, or why it has no such. Raises Unusable, ConnectorError."""
        found = producer.client.cluster.partitions_for_topic(topic)
        if not found:
            until_s, reason = self._unknown.get(topic, (0.0, ""))
            if time.monotonic() < until_s:
                return reason
            self._unknown.pop(topic, None)
            reason = await self._check_topic(topic)
            if reason:
                if len(self._unknown) >= UNKNOWN_MAX:
                    del self._unknown[next(iter(self._unknown))]
                self._unknown[topic] = time.monotonic() + UNKNOWN_S, reason
                return reason
            found = await producer.partitions_for(topic)
        limit = self._parameters.partitions_limit
        partitions = sorted(found)
        return partitions if limit == "all_partitions" else partitions[:limit]

    async def _parts(self, producer: AIOKafkaProducer, rows: Sequence[Row], failures: list[Failure]) -> Parts:
        """Returns the records of rows; rows of which none can be made are failures."""
        parts: Parts = {}
        partitions: dict[str, list[int] | str] = {}
        sticky: dict[str, int] = {}
        is_by_key = self._is_by_key
        for at, row in enumerate(rows):
            try:
                topic, record = self._topic_of(row), self._record_of(at, row)
            except ImpossibleRecord as error:
                failures.append(Failure(at, str(error)))
                continue
            there = partitions.get(topic)
            if there is None:
                there = partitions[topic] = await self._partitions(producer, topic)
            if isinstance(there, str):
                failures.append(Failure(at, f"topic: {there}"))
                continue
            if is_by_key and record.key is not None:
                partition = there[key_hash(record.key) % len(there)]
            elif (partition := sticky.get(topic, -1)) < 0:
                partition = sticky[topic] = random.choice(there)
            where = (topic, partition)
            if where in parts:
                parts[where].append(record)
            else:
                parts[where] = [record]
        return parts

    def _producer(self, **more: Any) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            acks=ACKS[self._parameters.required_acks],
            compression_type=self._compression,
            max_batch_size=self._parameters.max_batch_bytes,
            retry_backoff_ms=RETRY_MS,
            **more,
            **self._connector.options(),
        )

    async def _started(self, make: Callable[[], AIOKafkaProducer]) -> AIOKafkaProducer:
        """Returns a producer that has connected. Raises Unusable, ConnectorError."""
        await self.probe()  # whose errors are of use
        producer = make()
        try:
            async with asyncio.timeout(2 * self._connector.settings.timeout):
                await producer.start()
        except BaseException as error:
            await stopped(producer)
            if isinstance(error, Exception):
                raise self._connector.noted(error) from error
            raise
        return producer

    async def close(self) -> None:
        """Has nothing of its own."""


def batch_of(producer: AIOKafkaProducer, records: Sequence[Record], first: int) -> tuple[BatchBuilder, int]:
    """Returns a batch of records from `first` on, and the number of the first one that it has no room for."""
    batch = producer.create_batch()
    append, end = batch.append, first
    for _, key, value, time_ms, headers in records[first:] if first else records:
        if append(timestamp=time_ms, key=key, value=value, headers=headers) is None:
            break
        end += 1
    batch.close()
    return batch, end


