"""What forms propose for a new action: taken by its type and its driver, and written by the servers after what it needs."""

import re
from typing import Any

import pytest

from shardbroker.config.sinks.proposals import PROPOSALS, ROWS
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.flows.drivers import mysql, pgsql, timescale
from tests.flows.drivers.core import rows_of, run, written
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql

ROW = {"clientid": "c" * 255, "topic": "t/" + "x" * 1000, "qos": 2, "timestamp": 1_700_000_000_123, "payload": b"\0\xff"}


@pytest.mark.parametrize("type", PROPOSALS)
def test_a_proposal_has_columns_of_the_rule_that_is_proposed(type: str) -> None:
    action = SINK_TYPES[type].action.model_validate({"parameters": PROPOSALS[type].parameters})
    used = set(re.findall(r"\$\{(\w+)\}", str(action.model_dump()["parameters"])))
    assert used <= set(re.findall(r"\w+", ROWS.partition("FROM")[0]))


def wrote(module: Any, type: str, port: int, **account: Any) -> None:
    async def write() -> None:
        connector = module.connect(SINK_TYPES[type].connector.model_validate({"server": f"127.0.0.1:{port}", **account}), "k")
        action = SINK_TYPES[type].action.model_validate({"parameters": PROPOSALS[type].parameters})
        driver = module.make(action, connector, f"{type}:x")
        await driver.probe()
        assert await written(driver, rows_of([ROW] * 3)) == {} == await written(driver, rows_of([ROW] * 4))
        await connector.close()

    run(write)


@pytest.mark.parametrize(("module", "type"), [(pgsql, "pgsql"), (timescale, "timescale")])
def test_postgresql(module: Any, type: str) -> None:
    """create_hypertable is a stand-in, as TimescaleDB is not there."""
    stub = "CREATE FUNCTION create_hypertable(relation regclass, time_column name) RETURNS void LANGUAGE sql AS '';"
    with postgresql(stub + PROPOSALS[type].needs) as server:
        wrote(module, type, server.port, username="mqtt")
        assert server.psql("SELECT count(*), max(qos), max(extract(epoch FROM at)) FROM mqtt_messages") == "4|2|1700000000.123000\n"
        assert server.psql("SELECT DISTINCT payload FROM mqtt_messages") == "\\x00ff\n"


def test_mysql() -> None:
    with mariadb(PROPOSALS["mysql"].needs) as server:
        wrote(mysql, "mysql", server.port, username="mqtt", password="dbsecret")
        assert server.client("SELECT count(*), max(qos), max(at), hex(max(payload)) FROM mqtt.mqtt_messages") == (
            "4\t2\t2023-11-14 22:13:20.123\t00FF\n"
        )
