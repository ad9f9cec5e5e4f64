"""What a row costs on its way to Redis, with the driver and with the library used directly.

python -m tests.flows.drivers.bench_redis [--rows 100000] [--rounds 5] [--batch 1000]
"""

import argparse

import redis.asyncio

from shardbroker.config.sinks.redis import RedisAction, RedisConnector
from shardbroker.flows.drivers.redis import connect, make
from tests.flows.drivers.bench import arguments, compare, run
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.redis import PASSWORD
from tests.servers.redis import redis as server

WORDS = ["HSET", "mqtt:msg:${id}", "topic", "${topic}", "payload", "${payload}", "qos", "${qos}", "ts", "${ts}"]
PAYLOAD = '{"temperature": 21.5, "humidity": 45, "device": "d0001"}'


async def measure(port: int, given: argparse.Namespace) -> None:
    rows = some_rows(given.rows, lambda number: {"payload": PAYLOAD, "qos": 1, "ts": 1_700_000_000_000 + number})
    batches = [rows[at : at + given.batch] for at in range(0, given.rows, given.batch)]
    connector = connect(RedisConnector.model_validate({"server": f"127.0.0.1:{port}", "password": PASSWORD}), "x")
    action = RedisAction.model_validate({"parameters": {"command_template": WORDS}})
    driver = await opened(make(action, connector, "redis:x"))
    client = redis.asyncio.Redis(port=port, password=PASSWORD)

    async def by_driver() -> None:
        for batch in batches:
            assert not await driver.write(batch)

    async def by_library() -> None:
        for batch in batches:
            pipeline = client.pipeline(transaction=False)
            for row in batch:
                fields = {name: row.values[name] for name in ("topic", "payload", "qos", "ts")}
                pipeline.hset(f"mqtt:msg:{row.id}", mapping=fields)
            await pipeline.execute()

    async def check() -> None:
        assert await client.dbsize() == given.rows

    await compare(given, client.flushall, {"driver": by_driver, "redis-py": by_library}, check)
    await client.aclose()
    await connector.close()


if __name__ == "__main__":
    with server() as port:
        run(measure(port, arguments(100_000, 1000)))
