"""What a row costs on its way to MongoDB, with the driver and with the library used directly.

python -m tests.flows.drivers.bench_mongodb [--rows 50000] [--rounds 5] [--batch 1000]
"""

import argparse

from pymongo import AsyncMongoClient

from shardbroker.config.sinks.mongodb import MongodbAction, MongodbConnector
from shardbroker.flows.drivers.mongodb import connect, make
from tests.flows.drivers.bench import arguments, compare, run
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.mongodb import mongodb_server

TEMPLATE = '{"topic": "${topic}", "payload": "${payload}", "qos": ${qos}, "ts": ${ts}}'
PAYLOAD = '{"temperature": 21.5, "humidity": 45, "device": "d0001"}'


async def measure(port: int, given: argparse.Namespace) -> None:
    rows = some_rows(given.rows, lambda number: {"payload": PAYLOAD, "qos": 1, "ts": 1_700_000_000_000 + number})
    batches = [rows[at : at + given.batch] for at in range(0, given.rows, given.batch)]
    connector = connect(MongodbConnector.model_validate({"server": f"127.0.0.1:{port}"}), "x")
    action = MongodbAction.model_validate({"parameters": {"payload_template": TEMPLATE}})
    driver = await opened(make(action, connector, "mongodb:x"))
    client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient("127.0.0.1", port)

    async def by_driver() -> None:
        for batch in batches:
            assert not await driver.write(batch)

    async def by_library() -> None:
        fields = ("topic", "payload", "qos", "ts")
        for batch in batches:
            documents = [{"_id": row.id, **{name: row.values[name] for name in fields}} for row in batch]
            await client.mqtt.mqtt.insert_many(documents, ordered=False)

    async def empty() -> None:
        await client.drop_database("mqtt")

    async def check() -> None:
        assert await client.mqtt.mqtt.count_documents({}) == given.rows

    await compare(given, empty, {"driver": by_driver, "pymongo": by_library}, check)
    await client.close()
    await connector.close()


if __name__ == "__main__":
    with mongodb_server() as server:
        run(measure(server.port, arguments(50_000, 1000)))
