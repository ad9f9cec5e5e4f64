"""Rows as records of Kafka, a batch for each partition.

    rows --> records --> by topic and partition --> batches of at most max_batch_bytes, one of a partition under way

The producer repeats a batch after a lost answer itself, and Kafka drops what it has already. A batch that Kafka rejects is halved
until its row is alone; the numbers of the producer's batches have a gap then, which Kafka refuses, so a new producer takes over.

With exactly_once (kafka_cursors.py) a batch of rows is a transaction, which also writes its position.
"""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from shardbroker.config.sinks.kafka import KafkaAction, KafkaConnector, KafkaParameters, KafkaSource
from shardbroker.flows.drivers.kafka_base import (
    DELIVERY_S,
    NOT_WRITTEN,
    OF_RECORDS,
    KafkaBase,
    KafkaServer,
    Partition,
    Rejected,
    batch_of,
    stopped,
)
from shardbroker.flows.drivers.kafka_cursors import OnceDriver
from shardbroker.flows.drivers.kafka_records import Record
from shardbroker.flows.drivers.kafka_source import KafkaReader
from shardbroker.flows.sinks.driver import Driver, Failure
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sources.source import SourceDriver

__all__ = ["KafkaDriver", "connect", "make", "make_source"]


def connect(settings: KafkaConnector, key: str) -> KafkaServer:
    """Returns the connector. Raises ConnectionSettingError."""
    return KafkaServer(settings, key)


def make(action: KafkaAction, connector: KafkaServer, id: str) -> Driver:
    """Returns the driver of an action. Raises ValueError."""
    parameters = action.parameters
    try:
        if parameters.exactly_once:
            return OnceDriver(parameters, connector)
        return KafkaDriver(parameters, connector)
    except ValueError as error:
        raise ValueError(f"{id}: parameters.{error}") from None


def make_source(settings: KafkaSource, connector: KafkaServer, id: str) -> SourceDriver:
    """Returns the driver of a source. Raises ValueError."""
    return KafkaReader(settings, connector, id)


class KafkaDriver(KafkaBase):
    """One action. Each record is there at least once, and once as long as its producer lasts."""

    def __init__(self, parameters: KafkaParameters, connector: KafkaServer) -> None:
        super().__init__(parameters, connector)
        self._is_idempotent = parameters.idempotent and parameters.required_acks == "all_isr"
        self._current: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Checks topic and server; a producer that is there is used further, as it knows what it has sent."""
        if self._current is None:
            await self._ready()
        else:
            await self.probe()

    async def close(self) -> None:
        """Ends the producer."""
        self._give_up(self._current)
        if self._ending:
            await asyncio.wait(self._ending)

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes a batch; see the contract of drivers."""
        producer = await self._ready()
        failures: list[Failure] = []
        parts = await self._parts(producer, rows, failures)
        writes = [asyncio.ensure_future(self._write(where, records, failures)) for where, records in parts.items()]
        try:
            async with asyncio.timeout(DELIVERY_S):
                await asyncio.gather(*writes)
        except TimeoutError as error:
            self._give_up(producer)
            raise self._connector.noted(error) from None
        finally:
            for one in writes:
                one.cancel()
        return failures

    async def _write(self, where: Partition, records: list[Record], failures: list[Failure]) -> None:
        """Writes records of one partition in their order."""
        waiting = [records]
        while waiting:
            group = waiting.pop()
            done = 0
            while done < len(group):
                producer = await self._ready()
                batch, end = batch_of(producer, group, done)
                try:
                    await self._sent(producer, batch, where)
                except NOT_WRITTEN:
                    self._give_up(producer)
                    continue
                except OF_RECORDS as error:
                    if self._is_idempotent:
                        self._give_up(producer)
                    rejected = Rejected(where, group[done:end], error)
                    if end < len(group):
                        waiting.append(group[end:])
                    if end - done == 1:
                        failures.append(Failure(group[done].at, rejected.reason))
                    else:
                        middle = (done + end) // 2
                        waiting += [group[middle:end], group[done:middle]]
                    break
                done = end

    async def _sent(self, producer: AIOKafkaProducer, batch: BatchBuilder, where: Partition) -> None:
        """Returns when Kafka has a batch. Raises errors of OF_RECORDS and NOT_WRITTEN, Unusable, ConnectorError."""
        try:
            await (await producer.send_batch(batch, where[0], partition=where[1]))
        except (*NOT_WRITTEN, *OF_RECORDS):
            raise
        except Exception as error:
            self._give_up(producer)
            await self._check_topic(where[0])
            raise self._connector.noted(error) from error
        self._connector.health.reached()

    async def _ready(self) -> AIOKafkaProducer:
        """Returns the producer. Raises Unusable, ConnectorError."""
        async with self._starting:
            if self._current is None:
                self._current = await self._started(lambda: self._producer(enable_idempotence=self._is_idempotent))
            return self._current

    def _give_up(self, producer: AIOKafkaProducer | None) -> None:
        """Lets a producer end what it has begun; another one takes over."""
        if producer is None:
            return
        if self._current is producer:
            self._current = None
            task = asyncio.ensure_future(stopped(producer, sends=True))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
