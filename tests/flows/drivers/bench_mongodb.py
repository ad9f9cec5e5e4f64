"""What a row costs on its way to MongoDB: CPU of this process, with the driver and with the library used directly, in turns.

python -m tests.flows.drivers.bench_mongodb [--rows 50000] [--rounds 5] [--batch 1000]
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import uvloop
from pymongo import AsyncMongoClient

from shardbroker.config.sinks.mongodb import MongodbAction, MongodbConnector
from shardbroker.flows.drivers.mongodb import connect, make
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.mongodb import mongodb_server

TEMPLATE = '{"topic": "${topic}", "payload": "${payload}", "qos": ${qos}, "ts": ${ts}}'
PAYLOAD = '{"temperature": 21.5, "humidity": 45, "device": "d0001"}'


async def figures(write: Callable[[], Awaitable[None]], rows: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.monotonic()
    await write()
    return (time.process_time() - cpu) / rows * 1e6, rows / (time.monotonic() - wall)


async def measure(port: int, count: int, rounds: int, size: int) -> None:
    rows = some_rows(count, lambda number: {"payload": PAYLOAD, "qos": 1, "ts": 1_700_000_000_000 + number})
    batches = [rows[at : at + size] for at in range(0, count, size)]
    connector = connect(MongodbConnector.model_validate({"server": f"127.0.0.1:{port}"}), "x")
    driver = await opened(
        make(MongodbAction.model_validate({"parameters": {"payload_template": TEMPLATE}}), connector, "mongodb:x")
    )
    client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient("127.0.0.1", port)

    async def by_driver() -> None:
        for batch in batches:
            assert not await driver.write(batch)

    async def by_library() -> None:
        for batch in batches:
            fields = ("topic", "payload", "qos", "ts")
            documents = [{"_id": row.id, **{name: row.values[name] for name in fields}} for row in batch]
            await client.mqtt.mqtt.insert_many(documents, ordered=False)

    found: dict[str, list[tuple[float, float]]] = {"driver": [], "pymongo": []}
    for _ in range(rounds):
        for name, write in (("driver", by_driver), ("pymongo", by_library)):
            await client.drop_database("mqtt")
            found[name].append(await figures(write, count))
            assert await client.mqtt.mqtt.count_documents({}) == count
    for name, ones in found.items():
        costs, rates = zip(*ones, strict=True)
        print(f"{name:9} {statistics.median(costs):6.2f} us of CPU a row ({min(costs):.2f} to {max(costs):.2f})", end="  ")
        print(f"{statistics.median(rates):9,.0f} rows/s")
    await client.close()
    await connector.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1000)
    given = parser.parse_args()
    with mongodb_server() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(server.port, given.rows, given.rounds, given.batch))


if __name__ == "__main__":
    main()
