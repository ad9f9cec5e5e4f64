"""What a row costs on its way to Redis: CPU of this process, with the driver and with the library used directly, in turns.

python -m tests.flows.drivers.bench_redis [--rows 100000] [--rounds 5] [--batch 1000]
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import redis.asyncio
import uvloop

from shardbroker.config.sinks.redis import RedisAction, RedisConnector
from shardbroker.flows.drivers.redis import connect, make
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.redis import PASSWORD
from tests.servers.redis import redis as server

WORDS = ["HSET", "mqtt:msg:${id}", "topic", "${topic}", "payload", "${payload}", "qos", "${qos}", "ts", "${ts}"]
PAYLOAD = '{"temperature": 21.5, "humidity": 45, "device": "d0001"}'

Batches = list[list[Row]]


async def figures(name: str, write: Callable[[], Awaitable[None]], rows: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.monotonic()
    await write()
    return (time.process_time() - cpu) / rows * 1e6, rows / (time.monotonic() - wall)


async def measure(port: int, count: int, rounds: int, size: int) -> None:
    rows = some_rows(count, lambda number: {"payload": PAYLOAD, "qos": 1, "ts": 1_700_000_000_000 + number})
    batches: Batches = [rows[at : at + size] for at in range(0, count, size)]
    settings = RedisConnector.model_validate({"server": f"127.0.0.1:{port}", "password": PASSWORD})
    connector = connect(settings, "x")
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
                values = row.values
                fields = {name: values[name] for name in ("topic", "payload", "qos", "ts")}
                pipeline.hset(f"mqtt:msg:{row.id}", mapping=fields)
            await pipeline.execute()

    found: dict[str, list[tuple[float, float]]] = {"driver": [], "redis-py": []}
    for _ in range(rounds):
        for name, write in (("driver", by_driver), ("redis-py", by_library)):
            await client.flushall()
            found[name].append(await figures(name, write, count))
            assert await client.dbsize() == count
    for name, ones in found.items():
        costs, rates = zip(*ones, strict=True)
        print(f"{name:9} {statistics.median(costs):6.2f} us of CPU a row ({min(costs):.2f} to {max(costs):.2f})", end="  ")
        print(f"{statistics.median(rates):9,.0f} rows/s")
    await client.aclose()
    await connector.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1000)
    given = parser.parse_args()
    with server() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(port, given.rows, given.rounds, given.batch))


if __name__ == "__main__":
    main()
