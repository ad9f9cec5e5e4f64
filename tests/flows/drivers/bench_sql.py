"""Costs of the drivers of SQL: python -m tests.flows.drivers.bench_sql [pgsql] [mysql]

Rows of five columns (bigint, double, three texts) in batches of 1000 from one task, first by the library alone, with its values
ready, then by the driver. CPU is that of this process, without the server's. Least of ROUNDS.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from shardbroker.config.sinks.mysql import MysqlAction, MysqlConnector
from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector
from shardbroker.flows.drivers import mysql, pgsql
from tests.flows.drivers.core import rows_of
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql

BATCH, BATCHES, ROUNDS = 1000, 60, 5
COLUMNS = "n, v, client, topic, payload"
VALUES = "${n}, ${v}, ${client}, ${topic}, ${payload}"
DEMANDED = {"pgsql": (3.0, 60_000), "mysql": (6.0, 40_000)}
"""Most µs of CPU for each row, least rows a second."""


def fields(number: int) -> dict[str, Any]:
    return {
        "n": number, "v": number * 0.5, "client": f"client-{number % 100}", "topic": f"plants/7/devices/{number % 100}",
        "payload": f'{{"t": {number}, "v": {number * 0.5}}}',
    }  # fmt: skip


async def measured(name: str, kind: str, write: Callable[[list[Any]], Awaitable[Any]], batch: list[Any]) -> bool:
    """Prints µs of CPU for each row and rows a second. Returns whether both are as demanded."""
    cpu, wall = [], []
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), time.process_time()
        for _ in range(BATCHES):
            await write(batch)
        cpu.append((time.process_time() - used) / (BATCH * BATCHES) * 1e6)
        wall.append((BATCH * BATCHES) / (time.perf_counter() - began))
    most, least = DEMANDED[kind]
    good = min(cpu) <= most and max(wall) >= least
    verdict = "" if name.startswith("library") else "ok" if good else f"NOT within {most} µs and {least} rows/s"
    print(f"{kind:6} {name:28} {min(cpu):6.2f} µs/row {max(wall):9,.0f} rows/s  {verdict}", flush=True)
    return good or name.startswith("library")


async def of_pgsql(port: int) -> bool:
    connector = pgsql.connect(PgsqlConnector(server=f"127.0.0.1:{port}", username="mqtt", timeout=60), "k")
    good = True
    rows = rows_of([fields(number) for number in range(BATCH)])
    ready = [list(row.values.values()) for row in rows]
    types = ["bigint", "float8", "text", "text", "text"]
    arrays = ", ".join(f"${number + 1}::{type_}[]" for number, type_ in enumerate(types))
    async with connector.connection() as lent:
        insert = f"INSERT INTO t ({COLUMNS}) SELECT * FROM unnest({arrays})"
        columns = list(zip(*ready, strict=True))
        await measured("library, unnest", "pgsql", lambda _: lent.execute(insert, *columns), ready)
        await measured("library, COPY", "pgsql", lambda _: lent.copy_records_to_table("t", records=ready), ready)
    for name, sql, parameters in (
        ("arrays", f"INSERT INTO t ({COLUMNS}) VALUES ({VALUES})", {}),
        ("arrays, exactly once", f"INSERT INTO t ({COLUMNS}) VALUES ({VALUES})", {"exactly_once": True}),
        ("row by row", f"INSERT INTO t ({COLUMNS}) SELECT {VALUES}", {}),
        ("copy", f"INSERT INTO t ({COLUMNS}) VALUES ({VALUES})", {"write": "copy"}),
    ):
        action = PgsqlAction.model_validate({"parameters": {"sql": sql, **parameters}})
        driver = pgsql.make(action, connector, name)
        await driver.open()
        good &= await measured(name, "pgsql", _advancing(driver), rows)
    await connector.close()
    return good


async def of_mysql(port: int) -> bool:
    settings = MysqlConnector(server=f"127.0.0.1:{port}", username="mqtt", password="dbsecret", timeout=60)
    connector = mysql.connect(settings, "k")
    good = True
    rows = rows_of([fields(number) for number in range(BATCH)])
    ready = [list(row.values.values()) for row in rows]
    async with connector.connection() as lent:
        async with lent.cursor() as cursor:
            insert = f"INSERT INTO t ({COLUMNS}) VALUES (%s, %s, %s, %s, %s)"
            await measured("library, executemany", "mysql", lambda _: cursor.executemany(insert, ready), ready)
        prepared = await lent.prepare(f"INSERT INTO t ({COLUMNS}) VALUES " + ", ".join(["(?, ?, ?, ?, ?)"] * BATCH))
        flat = [value for row in ready for value in row]
        await measured("library, prepared", "mysql", lambda _: prepared.execute(flat), ready)
    for name, parameters, least in (
        ("many rows", {}, BATCH),
        ("many rows, 999", {}, BATCH - 1),
        ("many rows, exactly once", {"exactly_once": True}, BATCH),
    ):
        sql = f"INSERT INTO t ({COLUMNS}) VALUES ({VALUES})"
        driver = mysql.make(MysqlAction.model_validate({"parameters": {"sql": sql, **parameters}}), connector, name)
        await driver.open()
        good &= await measured(name, "mysql", _advancing(driver), rows[:least])
    await connector.close()
    return good


def _advancing(driver: Any) -> Callable[[list[Any]], Awaitable[Any]]:
    """Returns what writes the same rows at new positions each time."""
    at = 0

    async def write(rows: list[Any]) -> None:
        nonlocal at
        for row in rows if driver.stores_cursor else ():
            row.position = at = at + 1
        assert not await driver.write(rows)

    return write


TABLE = "CREATE TABLE t (n bigint, v double precision, client text, topic text, payload text);"


def main() -> None:
    kinds = sys.argv[1:] or list(DEMANDED)
    good = True
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if "pgsql" in kinds:
            with postgresql(TABLE) as server:
                good &= runner.run(of_pgsql(server.port))
        if "mysql" in kinds:
            with mariadb(TABLE) as mysql_server:
                good &= runner.run(of_mysql(mysql_server.port))
    sys.exit(not good)


if __name__ == "__main__":
    main()
