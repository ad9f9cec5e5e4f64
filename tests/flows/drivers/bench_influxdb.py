"""What a point costs on its way to InfluxDB 1: CPU of this process, with the driver and with lines made without a check, in turns.

python -m tests.flows.drivers.bench_influxdb [--rows 100000] [--rounds 5] [--batch 2000]
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import aiohttp
import uvloop

from shardbroker.config.sinks.influxdb import InfluxdbAction, InfluxdbConnector
from shardbroker.flows.drivers.influxdb import connect, make
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.influxdb import influx, influxdb_server

SYNTAX = "readings,device=${clientid},topic=${topic} temp=${temp},hum=${hum}i,n=${n}i ${ts}"


async def figures(write: Callable[[], Awaitable[None]], rows: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.monotonic()
    await write()
    return (time.process_time() - cpu) / rows * 1e6, rows / (time.monotonic() - wall)


async def measure(port: int, count: int, rounds: int, size: int) -> None:
    rows = some_rows(
        count, lambda at: {"clientid": f"d{at % 1000:04}", "temp": 21.5 + at % 7, "hum": 45, "ts": 1_700_000_000_000 + at}
    )
    batches = [rows[at : at + size] for at in range(0, count, size)]
    connector = connect(InfluxdbConnector.model_validate({"server": f"127.0.0.1:{port}", "influxdb_type": "influxdb_api_v1"}), "x")
    driver = await opened(make(InfluxdbAction.model_validate({"parameters": {"write_syntax": SYNTAX}}), connector, "influxdb:x"))
    session = aiohttp.ClientSession()

    async def by_driver() -> None:
        for batch in batches:
            assert not await driver.write(batch)

    async def without_checks() -> None:
        for batch in batches:
            lines = []
            for row in batch:
                one = row.values
                head = f"readings,device={one['clientid']},topic={one['topic']}"
                lines.append(f"{head} temp={one['temp']},hum={one['hum']}i,n={one['n']}i {one['ts']}")
            body = "\n".join(lines).encode()
            async with session.post(f"http://127.0.0.1:{port}/write?db=mqtt&precision=ms", data=body) as answer:
                assert answer.status == 204

    found: dict[str, list[tuple[float, float]]] = {"driver": [], "unchecked": []}
    for _ in range(rounds):
        for name, write in (("driver", by_driver), ("unchecked", without_checks)):
            influx(port, "DROP DATABASE mqtt; CREATE DATABASE mqtt")
            found[name].append(await figures(write, count))
            assert influx(port, "SELECT COUNT(n) FROM readings")[0]["count"] == count
    for name, ones in found.items():
        costs, rates = zip(*ones, strict=True)
        print(f"{name:9} {statistics.median(costs):6.2f} us of CPU a row ({min(costs):.2f} to {max(costs):.2f})", end="  ")
        print(f"{statistics.median(rates):9,.0f} rows/s")
    await session.close()
    await connector.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2000)
    given = parser.parse_args()
    with influxdb_server() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(server.port, given.rows, given.rounds, given.batch))


if __name__ == "__main__":
    main()
