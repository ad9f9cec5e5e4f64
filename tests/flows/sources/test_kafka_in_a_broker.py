"""Kafka in both directions over one broker: topic -> source -> messages and rules -> actions -> topics.

Nothing is missing after kills and stops of either side, and records of a key keep their order.
"""

import asyncio
import json
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.docs.pages import ROOT, Example, parts_of
from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, until
from tests.harness.waiting import stopped
from tests.servers.kafka import ACCOUNT, KafkaBroker, kafka

pytestmark = pytest.mark.own_broker
WORKERS, KEYS, NUMBERS, PARTITIONS = 2, 8, 500, 12
"""NUMBERS: records of each key."""
UNDONE_S = 300.0
"""A process that is killed within a transaction leaves it open: Kafka undoes it after 120 s (`kafka_cursors.TRANSACTION_MS`), and
nothing behind it is read before."""
OUT = ("published", "direct")
"""Topics of rows: of messages that the source has published, and of rules that name the source."""


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaBroker]:
    with kafka() as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


def sections(server: KafkaBroker, run: str, **parameters: Any) -> dict[str, dict[str, Any]]:
    login = {"bootstrap_hosts": [f"127.0.0.1:{server.login_port}"], "mechanism": "scram_sha_512", **ACCOUNT, "timeout": "2s"}
    quick = {"health_check_interval": "500ms"}
    mapping = {"kafka_topic": f"in-{run}", "mqtt_topic": "kafka/${key}", "qos": 1, "payload_template": "${value}"}
    reading = {"topic_mapping": [mapping], "offset_reset_policy": "earliest", "max_wait_time": "100ms"}
    message = {"key": "${k}", "value": "${n}"}
    parameters = {"partition_strategy": "key_dispatch", "message": message, **parameters}
    published = "SELECT nth(2, split(topic, '/')) AS k, payload.n AS n FROM \"kafka/#\""
    direct = 'SELECT key AS k, json_decode(value) AS decoded, decoded.n AS n, headers.h AS h FROM "$sources/kafka_consumer:in"'
    return {
        "connectors.kafka.main": login,
        "sources.kafka.in": {"connector": "main", "parameters": reading, "resource_opts": quick},
        **{
            f"actions.kafka.{name}": {
                "connector": "main", "parameters": {"topic": f"{name}-{run}", **parameters}, "resource_opts": quick,
            }
            for name in OUT
        },
        "rules.published": {"sql": published, "actions": ["kafka:published"]},
        "rules.direct": {"sql": direct, "actions": ["kafka_producer:direct"]},
    }  # fmt: skip


def prepare(server: KafkaBroker, run: str) -> None:
    server.create(f"in-{run}", *(f"{name}-{run}" for name in OUT), partitions=PARTITIONS)


def fill(server: KafkaBroker, run: str, numbers: range) -> None:
    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=server.address, enable_idempotence=True) as producer:
            sent = [
                await producer.send(f"in-{run}", json.dumps({"n": number}).encode(), b"k%d" % key, headers=[("h", b"1")])
                for number in numbers
                for key in range(KEYS)
            ]
            await asyncio.gather(*sent)

    asyncio.run(scenario())


def source(broker: SinksBroker) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for figures in broker.all_figures():
        found |= figures.get("sources", {}).get("kafka:in", {})
    return found


def rows(server: KafkaBroker, run: str) -> dict[str, dict[str, list[int]]]:
    """Returns numbers by topic and key, as they are stored."""
    found: dict[str, dict[str, list[int]]] = {}
    for name in OUT:
        keys: dict[str, list[int]] = {f"k{key}": [] for key in range(KEYS)}
        for record in server.records(f"{name}-{run}"):
            keys[record.key.decode()].append(int(record.value))
        found[name] = keys
    return found


def missing(server: KafkaBroker, run: str, end: int) -> int:
    return sum(end - len(set(numbers)) for keys in rows(server, run).values() for numbers in keys.values())


def test_a_record_is_published_and_seen_by_rules(place: Path, server: KafkaBroker) -> None:
    run = "first"
    prepare(server, run)
    with SinksBroker(WORKERS, place / "data", sections(server, run)) as broker, Client(broker.address, client_id="sub") as client:
        client.subscribe("kafka/#", qos=1)
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}", 30)
        fill(server, run, range(1))
        packets: list[Any] = [client.recv() for _ in range(KEYS)]
        assert {(one.topic, one.payload, one.qos) for one in packets} == {(f"kafka/k{key}", b'{"n": 0}', 1) for key in range(KEYS)}
        until(lambda: missing(server, run, 1) == 0, lambda: f"{rows(server, run)} {broker.output[-5:]}", 30)
        until(lambda: source(broker)["acknowledged"] == KEYS)
        assert source(broker)["received"] == source(broker)["published"] == KEYS


def flows(broker: SinksBroker, server: KafkaBroker) -> None:
    for pid in broker.child_pids("flows-"):
        broker.kill_process(pid)


def worker(broker: SinksBroker, server: KafkaBroker) -> None:
    broker.kill_process(broker.child_pids("worker-1")[0])


def whole_broker(broker: SinksBroker, server: KafkaBroker) -> None:
    broker.kill()
    broker.start()


def stopped_broker(broker: SinksBroker, server: KafkaBroker) -> None:
    broker.stop()
    broker.start()


def killed_kafka(broker: SinksBroker, server: KafkaBroker) -> None:
    server.kill()
    time.sleep(2)
    server.start()


def paused_kafka(broker: SinksBroker, server: KafkaBroker) -> None:
    server.pause()
    time.sleep(5)
    server.resume()


def paused_flows(broker: SinksBroker, server: KafkaBroker) -> None:
    """Longer than the session of a member: its partitions are lost while it has records."""
    with stopped(broker.child_pids("flows-0")[0]):
        time.sleep(12)


@pytest.mark.parametrize("harm", [flows, worker, whole_broker, stopped_broker, killed_kafka, paused_kafka, paused_flows])
def test_no_record_is_missing(place: Path, server: KafkaBroker, harm: Callable[[SinksBroker, KafkaBroker], None]) -> None:
    run = harm.__name__
    prepare(server, run)
    with SinksBroker(WORKERS, place / "data", sections(server, run)) as broker:
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}", 30)
        fill(server, run, range(NUMBERS // 2))
        until(lambda: missing(server, run, NUMBERS // 2) < NUMBERS * KEYS // 2, timeout_s=30)
        harm(broker, server)
        fill(server, run, range(NUMBERS // 2, NUMBERS))
        until(
            lambda: missing(server, run, NUMBERS) == 0,
            lambda: f"{missing(server, run, NUMBERS)} {source(broker)} {broker.action('kafka:direct')} {broker.output[-8:]}",
            90,
        )
        found = rows(server, run)
    for keys in found.values():
        for numbers in keys.values():
            assert list(dict.fromkeys(numbers)) == list(range(NUMBERS))
    total = sum(len(numbers) for keys in found.values() for numbers in keys.values())
    print(f"{run}: {total - 2 * NUMBERS * KEYS} of {total} rows are repeats")


@pytest.mark.timeout(3 * UNDONE_S)
def test_rows_are_there_exactly_once(place: Path, server: KafkaBroker) -> None:
    """Of messages of this broker, over kills of flows, broker and Kafka, for consumers with read_committed."""
    run = "once"
    prepare(server, run)
    definitions = sections(server, run, exactly_once=True)
    del definitions["sources.kafka.in"], definitions["rules.direct"]
    with SinksBroker(WORKERS, place / "data", definitions) as broker:

        def publish(numbers: range) -> None:
            for key in range(2):
                with Client(broker.address, client_id=f"k{key}") as client:
                    for number in numbers:
                        client.publish(f"kafka/k{key}", b'{"n": %d}' % number, qos=1)

        def there() -> int:
            return sum(len(set(numbers)) for numbers in rows(server, run)["published"].values())

        publish(range(300))
        flows(broker, server)
        publish(range(300, 600))
        until(lambda: there() > 600, lambda: f"{there()} {broker.output[-8:]}", UNDONE_S)
        whole_broker(broker, server)
        publish(range(600, 900))
        killed_kafka(broker, server)
        publish(range(900, 1200))
        flows(broker, server)
        until(lambda: there() == 2400, lambda: f"{there()} {broker.action('kafka:published')} {broker.output[-8:]}", UNDONE_S)
    found = rows(server, run)["published"]
    assert found["k0"] == found["k1"] == list(range(1200))


# --- the page -----------------------------------------------------------------------------------------------------------------


def page_of(server: KafkaBroker) -> dict[str, dict[str, Any]]:
    """Returns the sections of all examples of the page."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts_of(ROOT / "docs" / "sink-kafka.md"):
        if isinstance(part, Example) and part.kind == "toml":
            for section, tables in tomllib.loads(part.text).items():
                for name, one in tables.items():
                    of_type = {f"{section}.kafka.{of}": it for of, it in one.items()} if section != "rules" else {}
                    found |= of_type or {f"rules.{name}": one}
    found["connectors.kafka.main"]["bootstrap_hosts"] = [server.address]
    return found


def test_the_page(place: Path, server: KafkaBroker) -> None:
    """Rows and events become records, and records messages, as its examples show."""
    server.create("readings", "orders", "commands", "connected", "disconnected", "subscribed", "delivered", "acked")
    with SinksBroker(WORKERS, place / "data", page_of(server)) as broker, Client(broker.address, client_id="reader") as reader:
        def ready() -> bool:
            states = [one.get("sources", {}).get("kafka:orders", {}).get("status") for one in broker.all_figures()]
            return "connected" in states

        until(ready, lambda: str(broker.output[-5:]), 30)
        reader.subscribe("plant/#", qos=1)
        reader.subscribe("orders/#", qos=1)
        reader.subscribe("sensors/#", qos=1)
        with Client(broker.address, client_id="kitchen") as client:
            client.publish("sensors/1", b'{"temp": 21.5}', qos=1)
        assert reader.recv().topic == "sensors/1"
        until(lambda: len(server.records("readings")) == 1, lambda: str(broker.output[-5:]), 30)
        (record,) = server.records("readings")
        assert record.key == b"kitchen" and json.loads(record.value)["payload"] == '{"temp": 21.5}'

        async def commands() -> None:
            async with AIOKafkaProducer(bootstrap_servers=server.address) as producer:
                while not [one for one in broker.all_figures() if one.get("sources", {}).get("kafka:orders", {}).get("received")]:
                    await producer.send_and_wait("commands", b"go", b"press")  # the place to begin is the latest one
                    await producer.send_and_wait("orders", b"7", b"o1")
                    await asyncio.sleep(0.5)

        asyncio.run(commands())
        packets: list[Any] = [reader.recv() for _ in range(2)]
        until(lambda: len({one.topic for one in packets}) == 2 or packets.append(reader.recv()), timeout_s=30)
        assert {(one.topic, one.payload) for one in packets} == {("plant/press/commands", b"go"), ("orders/o1", b"7")}

        def events(name: str, fields: dict[str, Any]) -> bool:
            found = [json.loads(one.value) for one in server.records(name)]
            return any(fields.items() <= one.items() for one in found)

        for name, fields in {
            "connected": {"client_id": "kitchen"},
            "disconnected": {"client_id": "kitchen"},
            "subscribed": {"client_id": "reader", "topic": "plant/#", "qos": 1},
            "delivered": {"client_id": "reader", "from": "kitchen", "topic": "sensors/1", "payload": '{"temp": 21.5}'},
            "acked": {"client_id": "reader", "from": "kitchen", "topic": "sensors/1"},
        }.items():
            until(partial(events, name, fields), partial(str, name), 30)
