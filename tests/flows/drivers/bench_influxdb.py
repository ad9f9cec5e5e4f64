"""What a point costs on its way to InfluxDB 1 by line protocol, and to its listener for OpenTSDB's protocol (`--opents`): with the
driver, and with bodies made without checks.

    python -m tests.flows.drivers.bench_influxdb [--opents] [--rows 100000] [--rounds 5] [--batch 2000]
"""

import argparse
import json
import sys

import aiohttp

from shardbroker.config.sinks.influxdb import InfluxdbAction, InfluxdbConnector
from shardbroker.config.sinks.opents import OpentsAction, OpentsConnector
from shardbroker.flows.drivers import influxdb, opents
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.bench import arguments, compare, run
from tests.flows.drivers.delivery import opened, some_rows
from tests.servers.influxdb import InfluxServer, influx, influxdb_server

SYNTAX = "readings,device=${clientid},topic=${topic} temp=${temp},hum=${hum}i,n=${n}i ${ts}"
DATA = [{"metric": "readings", "tags": {"device": "${clientid}", "topic": "${topic}"}, "value": "${temp}", "timestamp": "${ts}"}]
AT_MS = 1_700_000_000_000
POINTS = 60
"""Points of a request to OpenTSDB, as the driver makes them."""


def rows_of(count: int) -> list[Row]:
    return some_rows(count, lambda at: {"clientid": f"d{at % 1000:04}", "temp": 21.5 + at % 7, "hum": 45, "ts": AT_MS + at * 1000})


def line(values: dict[str, object]) -> str:
    head = f"readings,device={values['clientid']},topic={values['topic']}"
    return f"{head} temp={values['temp']},hum={values['hum']}i,n={values['n']}i {values['ts']}"


def point(values: dict[str, object]) -> dict[str, object]:
    tags = {"device": values["clientid"], "topic": values["topic"]}
    return {"metric": "readings", "timestamp": values["ts"], "value": values["temp"], "tags": tags}


async def measure(server: InfluxServer, given: argparse.Namespace, with_opents: bool) -> None:
    rows = rows_of(given.rows)
    batches = [rows[at : at + given.batch] for at in range(0, given.rows, given.batch)]
    session = aiohttp.ClientSession()
    if with_opents:
        database, column = "opentsdb", "value"
        connector = opents.connect(OpentsConnector.model_validate({"server": f"127.0.0.1:{server.opentsdb_port}"}), "x")
        driver = opents.make(OpentsAction.model_validate({"parameters": {"data": DATA}}), connector, "opents:x")
    else:
        database, column = "mqtt", "n"
        settings = {"server": f"127.0.0.1:{server.port}", "influxdb_type": "influxdb_api_v1"}
        connector = influxdb.connect(InfluxdbConnector.model_validate(settings), "x")
        driver = influxdb.make(InfluxdbAction.model_validate({"parameters": {"write_syntax": SYNTAX}}), connector, "influxdb:x")
    await opened(driver)

    async def by_driver() -> None:
        for batch in batches:
            assert not await driver.write(batch)

    async def post(url: str, body: bytes) -> None:
        async with session.post(url, data=body) as answer:
            assert answer.status == 204

    async def unchecked() -> None:
        for batch in batches:
            if with_opents:
                for at in range(0, len(batch), POINTS):
                    body = json.dumps([point(row.values) for row in batch[at : at + POINTS]]).encode()
                    await post(f"http://127.0.0.1:{server.opentsdb_port}/api/put?summary=true&details=true", body)
            else:
                body = "\n".join([line(row.values) for row in batch]).encode()
                await post(f"http://127.0.0.1:{server.port}/write?db=mqtt&precision=ms", body)

    async def empty() -> None:
        influx(server.port, f"DROP DATABASE {database}; CREATE DATABASE {database}")

    async def check() -> None:
        assert influx(server.port, f"SELECT COUNT({column}) FROM readings", database)[0]["count"] == given.rows

    await compare(given, empty, {"driver": by_driver, "unchecked": unchecked}, check)
    await session.close()
    await connector.close()


if __name__ == "__main__":
    with_opents = "--opents" in sys.argv
    sys.argv = [one for one in sys.argv if one != "--opents"]
    with influxdb_server() as server:
        run(measure(server, arguments(100_000, 2000), with_opents))
