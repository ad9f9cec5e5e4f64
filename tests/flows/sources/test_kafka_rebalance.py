"""A rebalance between the arrival of records and their way to workers, which no server makes on demand: a consumer of the test."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from shardbroker.config.sinks.kafka import KafkaConnector, KafkaSource
from shardbroker.flows.drivers import kafka_source
from shardbroker.flows.drivers.kafka import connect, make_source
from tests.flows.sources.harness import Taker

PARTITION = TopicPartition("t", 0)
COMMITTED = 50
"""Where the partition is read on, when it is assigned again."""


class Consumer:
    """Has record 100; its partition leaves and returns before that is taken."""

    def __init__(self, **options: Any) -> None:
        self.commits: list[Any] = []
        self._records = [100]
        self._is_moved = False

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self._listener = listener

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def assignment(self) -> set[TopicPartition]:
        return {PARTITION}

    async def getmany(self, **options: Any) -> dict[TopicPartition, list[Any]]:
        if not self._records:
            await asyncio.sleep(0.05)
            return {}
        record = SimpleNamespace(
            topic="t", partition=0, offset=self._records.pop(), key=b"k", value=b"v", timestamp=0, timestamp_type=0, headers=(),
        )  # fmt: skip
        return {PARTITION: [record]}

    async def committed(self, where: TopicPartition) -> int:
        if not self._is_moved:
            self._is_moved = True
            await self._listener.on_partitions_revoked({PARTITION})
            await self._listener.on_partitions_assigned({PARTITION})
        return COMMITTED

    async def commit(self, offsets: Any) -> None:
        self.commits.append(offsets)


def test_records_of_an_earlier_assignment_commit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their offset was committed for the new one: records before it would be lost with a kill."""
    made: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        made.append(Consumer())
        return made[-1]

    monkeypatch.setattr(kafka_source, "AIOKafkaConsumer", consumer)
    over = connect(KafkaConnector.model_validate({"bootstrap_hosts": "127.0.0.1:1"}), "connectors.kafka.x")
    parameters = {"topic": "t", "offset_commit_interval_seconds": 1}
    source = make_source(KafkaSource.model_validate({"parameters": parameters}), over, "kafka:x")

    async def scenario() -> None:
        taker = Taker()
        task = taker.run(source)
        await taker.wait_for(1)
        task.cancel()  # what is done is committed
        await asyncio.wait([task])

    asyncio.run(scenario())
    assert made[0].commits == []
