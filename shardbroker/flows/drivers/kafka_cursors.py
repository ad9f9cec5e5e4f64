"""Exactly once: each batch is a transaction of Kafka that also writes the position behind it to a compacted topic.

    transaction of a journal:   records -> their topics
                                `<action>/<journal>` = position behind the batch -> shardbroker_cursors, partition 0

A journal has a producer with a transactional id of its own. When it begins, Kafka ends what an earlier producer of that id has left
behind, so the position that is read afterwards is final. Positions are read up to the end of the topic that was there when the
read began, which waits for transactions of others that are open: none is overlooked.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from shardbroker.config.sinks.kafka import KafkaParameters
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.kafka_base import (
    DELIVERY_S,
    FORBIDDEN_TOPIC,
    NOT_WRITTEN,
    OF_RECORDS,
    UNKNOWN_TOPIC,
    KafkaBase,
    KafkaServer,
    Partition,
    Rejected,
    batch_of,
    stopped,
)
from shardbroker.flows.drivers.kafka_records import Record
from shardbroker.flows.drivers.sql_cursors import TABLE
from shardbroker.flows.sinks.driver import Failure, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["OnceDriver"]

CURSORS: Final = TopicPartition(TABLE, 0)
"""The topic has the name of the tables of other types."""
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Of the topic: Kafka compacts it often, since all of it is read when an action begins."""
TRANSACTION_MS: Final = int(DELIVERY_S * 1000)
"""Time after which Kafka undoes a transaction whose producer is gone."""
READ_S: Final = 2 * DELIVERY_S
"""Longest wait for the end of the topic: as long as a transaction of another action may be open."""
POLL_MS: Final = 200


class _Moved(ConnectorError):
    """Rows of a batch are there already."""

    def __init__(self, journal: str, first: int) -> None:
        super().__init__(f"{TABLE}: journal {journal} is beyond position {first}: the last batch was written after all")


@dataclass(slots=True)
class _Lane:
    """What writes one journal. position: everything below is written."""

    producer: AIOKafkaProducer
    position: int


class OnceDriver(KafkaBase):
    """One action; each row is there once for consumers with isolation.level=read_committed."""

    stores_cursor = True
    cursor_key = ""
    """Action, node and origin of the data directory; set by the owner before open()."""

    def __init__(self, parameters: KafkaParameters, connector: KafkaServer) -> None:
        if parameters.required_acks != "all_isr":
            raise ValueError(f"required_acks: must be all_isr with exactly_once, got {parameters.required_acks}")
        super().__init__(parameters, connector)
        self._lanes: dict[str, _Lane] = {}
        self._stored: dict[str, int] = {}

    async def open(self) -> None:
        """Reads the stored positions. Raises Unusable, ConnectorError."""
        await self.close()
        await self.probe()
        await self._make_topic()
        self._stored = await self._positions()

    async def stored(self) -> Mapping[str, int]:
        """Returns journal -> the position below which everything is written, as of the last open()."""
        return self._stored

    async def close(self) -> None:
        """Ends the producers; their open transactions are undone."""
        lanes = list(self._lanes.values())
        self._lanes.clear()
        await asyncio.gather(*(stopped(one.producer) for one in lanes))

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Writes rows of one journal and the position behind them; see the contract of drivers."""
        journal, first, behind = rows[0].journal, rows[0].position, rows[-1].position + 1
        rejected: list[Failure] = []
        divided: dict[Partition, list[list[Record]]] = {}
        try:
            async with asyncio.timeout(DELIVERY_S):
                while True:
                    lane = self._lanes.get(journal) or await self._begin(journal)
                    if lane.position > first:
                        raise _Moved(journal, first)
                    failures = list(rejected)
                    try:
                        if not divided:
                            parts = await self._parts(lane.producer, rows, failures)
                            unmade, groups = failures[:], {where: [records] for where, records in parts.items()}
                        else:
                            failures, groups = [*unmade, *rejected], divided
                        await self._transact(lane, groups, journal, behind)
                        return failures
                    except Rejected as error:
                        await self._end(journal)
                        divided = self._divided(groups, error, rejected)
                    except NOT_WRITTEN:
                        await self._end(journal)
        except BaseException as error:
            await self._end(journal)
            if isinstance(error, Exception):
                raise self._connector.noted(error) from error
            raise
        raise AssertionError("unreachable")

    @staticmethod
    def _divided(
        groups: dict[Partition, list[list[Record]]], error: Rejected, failures: list[Failure]
    ) -> dict[Partition, list[list[Record]]]:
        """Returns groups without the record that is rejected, or with halves of the batch that it is in."""
        found = {where: list(of) for where, of in groups.items()}
        parts: list[list[Record]] = []
        for group in found[error.where]:
            at = next((at for at, record in enumerate(group) if record.at == error.records[0].at), -1)
            if at < 0:
                parts.append(group)
                continue
            end, middle = at + len(error.records), at + len(error.records) // 2
            if len(error.records) == 1:
                failures.append(Failure(error.records[0].at, error.reason))
                parts += [group[:at], group[end:]]
            else:
                parts += [group[:at], group[at:middle], group[middle:end], group[end:]]
        found[error.where] = [one for one in parts if one]
        return found

    async def _transact(self, lane: _Lane, groups: Mapping[Partition, Sequence[list[Record]]], journal: str, behind: int) -> None:
        """Writes records and the position in one transaction. Raises Rejected, NOT_WRITTEN, errors of the library."""
        producer = lane.producer
        await producer.begin_transaction()
        writes = [asyncio.ensure_future(self._write(producer, where, of)) for where, of in groups.items()]
        writes.append(asyncio.ensure_future(self._write_position(producer, journal, behind)))
        try:
            await asyncio.gather(*writes)
        finally:
            for one in writes:
                one.cancel()
        await producer.commit_transaction()
        lane.position = behind
        self._connector.health.reached()

    async def _write(self, producer: AIOKafkaProducer, where: Partition, groups: Sequence[list[Record]]) -> None:
        for group in groups:
            done = 0
            while done < len(group):
                batch, end = batch_of(producer, group, done)
                try:
                    await (await producer.send_batch(batch, where[0], partition=where[1]))
                except OF_RECORDS as error:
                    raise Rejected(where, group[done:end], error) from None
                done = end

    async def _write_position(self, producer: AIOKafkaProducer, journal: str, behind: int) -> None:
        await producer.send_and_wait(TABLE, b"%d" % behind, f"{self.cursor_key}/{journal}".encode(), CURSORS.partition)

    # --- producers and positions ----------------------------------------------------------------------------------------------

    async def _begin(self, journal: str) -> _Lane:
        """Returns what writes a journal, behind all transactions of its earlier producers."""
        id = f"shardbroker/{self.cursor_key}/{journal}"
        producer = await self._started(lambda: self._producer(transactional_id=id, transaction_timeout_ms=TRANSACTION_MS))
        try:
            lane = self._lanes[journal] = _Lane(producer, (await self._positions()).get(journal, 0))
        except BaseException:
            await stopped(producer)
            raise
        return lane

    async def _end(self, journal: str) -> None:
        """Ends the producer of a journal; what it has written without a commit is undone when the next one begins."""
        lane = self._lanes.pop(journal, None)
        if lane is not None:
            await stopped(lane.producer)

    async def _make_topic(self) -> None:
        """Creates the topic of positions if it is missing. Raises Unusable, ConnectorError."""
        code, _ = await self._connector.topic(TABLE)
        if not code:
            return
        command = f"kafka-topics.sh --create --topic {TABLE} --partitions 1 --config cleanup.policy=compact"
        if code == FORBIDDEN_TOPIC:
            raise Unusable(f"exactly_once: must have the rights to read and write the topic {TABLE}")
        if code == UNKNOWN_TOPIC:
            try:
                admin = AIOKafkaAdminClient(**self._connector.options())
                await admin.start()
                try:
                    new = NewTopic(TABLE, 1, 1, topic_configs=dict(SETTINGS))
                    new.replication_factor = -1  # that of the cluster, which the constructor does not take
                    answer = await admin.create_topics([new])
                finally:
                    await admin.close()
            except Exception as error:
                raise self._connector.noted(error) from error
            found = for_code(answer.topic_errors[0][1])
            if found.errno and found is not TopicAlreadyExistsError:
                raise Unusable(f"exactly_once: must have the topic {TABLE}, got {found.message}; create it: {command}")

    async def _positions(self) -> dict[str, int]:
        """Returns journal -> position of this action. Raises Unusable, ConnectorError."""
        try:
            end = await self._end_of_topic()
            return await self._read(end)
        except Exception as error:
            raise self._connector.noted(error) from error

    async def _end_of_topic(self) -> int:
        """Returns the end of the topic, with transactions that are open."""
        async with asyncio.timeout(2 * self._connector.settings.timeout), _Consumer(self._connector, "read_uncommitted") as all_of:
            return int((await all_of.end_offsets([CURSORS]))[CURSORS])

    async def _read(self, end: int) -> dict[str, int]:
        prefix, found = f"{self.cursor_key}/".encode(), dict[str, int]()
        until_s = time.monotonic() + READ_S
        async with _Consumer(self._connector, "read_committed") as committed:
            committed.assign([CURSORS])
            await committed.seek_to_beginning(CURSORS)
            while await committed.position(CURSORS) < end:
                if time.monotonic() > until_s:
                    raise ConnectorError(f"{self._connector.where}: the topic {TABLE} has a transaction that does not end")
                for record in (await committed.getmany(CURSORS, timeout_ms=POLL_MS)).get(CURSORS, ()):
                    if record.key is not None and record.key.startswith(prefix) and record.value is not None:
                        with suppress(ValueError):
                            found[record.key[len(prefix) :].decode()] = int(record.value)
        return found


class _Consumer:
    """A consumer without a group, as a context."""

    def __init__(self, connector: KafkaServer, isolation: str) -> None:
        self._made: Any = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            fetch_max_wait_ms=POLL_MS,
            **connector.options(),
        )

    async def __aenter__(self) -> Any:
        try:
            await self._made.start()
        except BaseException:
            await self._made.stop()
            raise
        return self._made

    async def __aexit__(self, *error: object) -> None:
        await self._made.stop()
