"""The source of Kafka against Kafka: columns, messages, offsets, rebalances."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from shardbroker.config.sinks.definition import SOURCES, checked, from_emqx
from shardbroker.config.sinks.kafka import KafkaConnector, KafkaSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.kafka import connect, make_source
from shardbroker.flows.sources.source import Message, Received
from tests.flows.drivers.delivery import run
from tests.flows.sources.harness import Taker
from tests.servers.kafka import KafkaBroker, kafka

pytestmark = pytest.mark.own_broker
NUMBERS = iter(range(10_000))
QUICK = {"offset_reset_policy": "earliest", "max_wait_time": "100ms", "offset_commit_interval_seconds": "100ms"}
PARTITIONS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaBroker]:
    with kafka() as one:
        yield one


def connector(server: KafkaBroker) -> Any:
    return connect(KafkaConnector.model_validate({"bootstrap_hosts": [server.address], "timeout": 2.0}), "connectors.kafka.x")


def source(over: Any, **parameters: Any) -> Any:
    return make_source(KafkaSource.model_validate({"parameters": {**QUICK, **parameters}}), over, "kafka:x")


def topic(server: KafkaBroker, partitions: int = 4, **settings: str) -> str:
    name = f"s{next(NUMBERS)}"
    server.create(name, partitions=partitions, **settings)
    return name


async def produce(server: KafkaBroker, name: str, numbers: range, **more: Any) -> None:
    """Numbers of 40 keys."""
    async with AIOKafkaProducer(bootstrap_servers=server.address, linger_ms=5, **more) as producer:
        await asyncio.gather(*[await producer.send(name, b"%d" % number, b"k%d" % (number % 40)) for number in numbers])


@asynccontextmanager
async def reading(taker: Taker, one: Any) -> Any:
    """A source that runs, and leaves as the frame has it leave."""
    task = taker.run(one)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ConnectorError):
            await task


async def committed(server: KafkaBroker, name: str, partitions: int, group: str = "shardbroker-x") -> list[int | None]:
    async with AIOKafkaConsumer(bootstrap_servers=server.address, group_id=group, enable_auto_commit=False) as consumer:
        return [await consumer.committed(TopicPartition(name, one)) for one in range(partitions)]


async def eventually(look: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(60):
        while not await look():
            await asyncio.sleep(0.1)


def scenario(of: Coroutine[Any, Any, Any], *connectors: Any) -> Any:
    return run(of, *connectors)


def numbers_of(received: list[Received]) -> list[int]:
    return [int(one.columns["value"]) for one in received]


def assert_in_order(received: list[Received]) -> None:
    """The first time that each record of a key arrives is in order; what was not acknowledged arrives again."""
    for key in {one.columns["key"] for one in received}:
        firsts = list(dict.fromkeys(int(one.columns["value"]) for one in received if one.columns["key"] == key))
        assert firsts == sorted(firsts), key


# --- columns and messages -----------------------------------------------------------------------------------------------------


def test_columns_and_messages(server: KafkaBroker) -> None:
    name, plain, over = topic(server, 1), topic(server, 1), connector(server)
    mapping = {"kafka_topic": name, "mqtt_topic": "from/${topic}/${key}", "qos": 1, "payload_template": "<${value}> ${headers.h}"}
    one = source(over, topic=plain, topic_mapping=[mapping], group_id=f"g{name}")

    async def scenario() -> list[Received]:
        async with AIOKafkaProducer(bootstrap_servers=server.address) as producer:
            headers = [("h", b"1"), ("raw", b"\xff")]
            await producer.send_and_wait(name, b"v\xc3\xbc", b"k", timestamp_ms=1_700_000_000_000, headers=headers)
            await producer.send_and_wait(name, b"\x00\xff", b"a/b")
            await producer.send_and_wait(name, None, b"#")
            await producer.send_and_wait(plain, b"only for rules")
        taker = Taker()
        async with reading(taker, one):
            await taker.wait_for(4)
        return sorted(taker.received, key=lambda one: (one.columns["topic"] == plain, one.columns["offset"]))

    first, second, third, rules = run(scenario(), over)
    assert first.columns == {
        "topic": name, "key": "k", "value": "vü", "offset": 0, "ts": 1_700_000_000_000, "ts_type": "create",
        "headers": {"h": "1", "raw": b"\xff"}, "partition": 0,
    }  # fmt: skip
    assert first.message == Message(f"from/{name}/k".encode(), "<vü> 1".encode(), 1)
    assert (second.columns["value"], second.message.topic) == (b"\x00\xff", f"from/{name}/a/b".encode())
    assert second.message.payload == b"<\x00\xff> undefined"
    assert (third.columns["value"], third.message.topic) == ("", f"from/{name}/#".encode())  # which the frame refuses
    assert (rules.columns["value"], rules.columns["key"], rules.message) == ("only for rules", "", None)
    assert {one.key for one in (first, second, third)} == {f"{name}/0".encode()}


def test_base64_and_the_row_as_json(server: KafkaBroker) -> None:
    name, over = topic(server, 1), connector(server)
    mapping = [{"kafka_topic": name, "mqtt_topic": "a"}]
    one = source(over, topic_mapping=mapping, key_encoding_mode="base64", value_encoding_mode="base64", group_id=f"g{name}")

    async def scenario() -> Received:
        async with AIOKafkaProducer(bootstrap_servers=server.address) as producer:
            await producer.send_and_wait(name, b"\x00\xff", b"k", timestamp_ms=5)
        taker = Taker()
        async with reading(taker, one):
            await taker.wait_for(1)
        return taker.received[0]

    found = run(scenario(), over)
    assert (found.columns["key"], found.columns["value"]) == ("aw==", "AP8=")
    assert found.message.payload == (
        f'{{"topic":"{name}","key":"aw==","value":"AP8=","offset":0,"ts":5,"ts_type":"create","headers":{{}},"partition":0}}'.encode()
    )


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(server: KafkaBroker, compression: str) -> None:
    name, over = topic(server), connector(server)

    async def scenario() -> list[Received]:
        await produce(server, name, range(500), compression_type=compression)
        taker = Taker()
        async with reading(taker, source(over, topic=name, group_id=f"g{name}")):
            await taker.wait_for(500)
        return taker.received

    assert sorted(numbers_of(run(scenario(), over))) == list(range(500))


def test_transactions_that_are_undone_are_not_read(server: KafkaBroker) -> None:
    name, over = topic(server, 1), connector(server)

    async def scenario() -> list[Received]:
        async with AIOKafkaProducer(bootstrap_servers=server.address, transactional_id=name) as producer:
            for value, ends in ((b"1", True), (b"2", False), (b"3", True)):
                await producer.begin_transaction()
                await producer.send_and_wait(name, value, b"k")
                await (producer.commit_transaction() if ends else producer.abort_transaction())
        taker = Taker()
        async with reading(taker, source(over, topic=name, group_id=f"g{name}")):
            await taker.wait_for(2)
        return taker.received

    assert numbers_of(run(scenario(), over)) == [1, 3]


# --- offsets ------------------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_once_workers_have_the_records(server: KafkaBroker) -> None:
    name, over, group = topic(server, 1), connector(server), f"g{next(NUMBERS)}"

    async def scenario() -> None:
        await produce(server, name, range(100))
        taker = Taker(acknowledges=False)
        async with reading(taker, source(over, topic=name, group_id=group)):

            async def begun() -> bool:
                return await committed(server, name, 1, group) != [None]

            await taker.wait_for(100)
            await eventually(begun)
            await asyncio.sleep(0.5)
            assert await committed(server, name, 1, group) == [0]
            taker.finish()

            async def all_of() -> bool:
                return await committed(server, name, 1, group) == [100]

            await eventually(all_of)
            await produce(server, name, range(100, 150))
            await taker.wait_for(150)
        again = Taker()
        async with reading(again, source(over, topic=name, group_id=group)):
            await again.wait_for(50)
        assert numbers_of(again.received) == list(range(100, 150)), "what was not acknowledged arrives again"

    run(scenario(), over)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [0, 1, 2, 3]), ("latest", [2, 3])])
def test_where_a_group_begins(server: KafkaBroker, policy: str, expected: list[int]) -> None:
    """With `latest`, records that arrived since the first start are not lost, although none was acknowledged by then."""
    name, over, group = topic(server, 1), connector(server), f"g{next(NUMBERS)}"

    def one() -> Any:
        return source(over, topic=name, group_id=group, offset_reset_policy=policy)

    async def scenario() -> list[int]:
        await produce(server, name, range(2))
        taker = Taker(acknowledges=False)
        async with reading(taker, one()):

            async def begun() -> bool:
                return await committed(server, name, 1, group) != [None]

            await eventually(begun)
        await produce(server, name, range(2, 4))
        again = Taker()
        async with reading(again, one()):
            await again.wait_for(len(expected))
        return numbers_of(again.received)

    assert run(scenario(), over) == expected


def test_a_rebalance_of_12_partitions_loses_nothing_and_keeps_the_order_of_keys(server: KafkaBroker) -> None:
    """A second member joins, and leaves again, while records arrive: 6,000, or as many as that takes."""
    name, over, group = topic(server, PARTITIONS), connector(server), f"g{next(NUMBERS)}"
    first, second = Taker(), Taker()
    total = 0

    async def feed() -> None:
        nonlocal total
        while total < 6000 or len(second.received) < 500:
            await produce(server, name, range(total, total + 500))
            total += 500
            await asyncio.sleep(0.3)

    async def scenario() -> None:
        async with reading(first, source(over, topic=name, group_id=group)):
            await first.wait_for(0)
            feeding = asyncio.ensure_future(feed())
            await first.wait_for(500)
            async with reading(second, source(over, topic=name, group_id=group)):
                await second.wait_for(500)
            await feeding

            async def complete() -> bool:
                return len(set(numbers_of(first.received)) | set(numbers_of(second.received))) == total

            await eventually(complete)

            async def all_committed() -> bool:
                return sum(one or 0 for one in await committed(server, name, PARTITIONS, group)) == total

            await eventually(all_committed)

    run(scenario(), over)
    assert second.received
    for taker in (first, second):
        assert_in_order(taker.received)
    times = Counter(numbers_of(first.received) + numbers_of(second.received))
    assert set(times) == set(range(total))
    assert sum(times.values()) == total, "members that can end what they have begun repeat nothing"


def test_offsets_of_partitions_that_have_left_are_not_committed(server: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first member has records that its workers do not end: the second reads them again, and its offsets stay."""
    from shardbroker.flows.drivers import kafka_source

    monkeypatch.setattr(kafka_source, "LEAVE_S", 0.5)
    name, over, group = topic(server, PARTITIONS), connector(server), f"g{next(NUMBERS)}"
    first, second = Taker(acknowledges=False), Taker()

    async def scenario() -> None:
        await produce(server, name, range(1200))
        async with reading(first, source(over, topic=name, group_id=group)):
            await first.wait_for(1200)
            async with reading(second, source(over, topic=name, group_id=group)):
                await second.wait_for(100)
                await produce(server, name, range(1200, 2400))

                async def complete() -> bool:
                    return len(set(numbers_of(first.received)) | set(numbers_of(second.received))) == 2400

                await eventually(complete)
                await asyncio.sleep(0.5)
                before = await committed(server, name, PARTITIONS, group)
                first.finish()
                await asyncio.sleep(0.5)
                after = await committed(server, name, PARTITIONS, group)
        assert all((one or 0) <= (two or 0) for one, two in zip(before, after, strict=True)), (before, after)
        mine = {one.key for one in second.received}
        for partition in range(PARTITIONS):
            if f"{name}/{partition}".encode() in mine:
                assert before[partition] == after[partition] or (before[partition] or 0) < (after[partition] or 0)

    run(scenario(), over)
    assert set(numbers_of(second.received)) & set(numbers_of(first.received)), "read again, as it was not acknowledged"


def test_a_server_that_stops_and_is_killed_loses_no_record(server: KafkaBroker) -> None:
    """The frame calls run() again after an error; here the test does."""
    name, over, group = topic(server), connector(server), f"g{next(NUMBERS)}"
    taker = Taker()

    async def scenario() -> None:
        one = source(over, topic=name, group_id=group)

        async def serve() -> None:
            while True:
                with suppress(ConnectorError):
                    await one.probe()
                    await one.run(taker.take)
                await asyncio.sleep(0.2)

        task = asyncio.ensure_future(serve())
        try:
            await produce(server, name, range(1000))
            await taker.wait_for(1000)
            await asyncio.to_thread(server.pause)
            await asyncio.sleep(4)
            await asyncio.to_thread(server.resume)
            await produce(server, name, range(1000, 2000))
            await taker.wait_for(2000)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            await produce(server, name, range(2000, 3000))

            async def complete() -> bool:
                return set(numbers_of(taker.received)) == set(range(3000))

            await eventually(complete)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario(), over)
    assert_in_order(taker.received)


# --- errors and settings --------------------------------------------------------------------------------------------------------


def test_a_topic_that_does_not_exist(server: KafkaBroker) -> None:
    over = connector(server)
    one = source(over, topic="missing")

    async def scenario() -> str:
        try:
            await one.probe()
        except ConnectorError as error:
            return str(error)
        return ""

    assert run(scenario(), over) == f"{server.address}: there is no topic 'missing'"


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({}, "parameters.topic: must be a topic of Kafka, or topic_mapping a list of them, got ''"),
        (
            {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a"}] * 2},
            "parameters.topic_mapping: must have each kafka_topic once, got 't' twice",
        ),
    ],
)
def test_parameters_that_are_wrong(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError) as caught:
        source(connect(KafkaConnector.model_validate({"bootstrap_hosts": ["a:1"]}), "x"), **parameters)
    assert str(caught.value) == f"kafka:x: {error}"


def test_keys_of_emqx() -> None:
    given = {
        "connector": "main",
        "parameters": {
            "topic": "t", "group_id": "g", "key_encoding_mode": "none", "value_encoding_mode": "base64", "max_batch_bytes": "896KB",
            "max_wait_time": "1s", "max_rejoin_attempts": 5, "offset_commit_interval_seconds": "5s",
            "offset_reset_policy": "earliest",
        },
        "resource_opts": {"health_check_interval": "15s"},
    }  # fmt: skip
    parameters = checked(SOURCES, "kafka", from_emqx(SOURCES, "kafka", given)).parameters
    assert (parameters.group_id, parameters.max_batch_bytes, parameters.offset_commit_interval_seconds) == ("g", 896 << 10, 5.0)
