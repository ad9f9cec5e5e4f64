"""The tables, actions and tables of cursors of docs/sink-postgresql.md and docs/sink-mysql.md, as they stand there."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.flows.drivers import mysql, pgsql
from tests.flows.drivers.core import rows_of, run, written
from tests.harness import Broker, Client, until
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


async def written_by(module: Any, kind: str, page: str, port: int) -> None:
    """Writes three messages by the action of a page, exactly once and as it stands there."""
    parsed = tomllib.loads(blocks(page, "toml")[0])
    connection = parsed["connectors"][kind]["main"] | {"server": f"127.0.0.1:{port}", "password": "dbsecret"}
    message = {"clientid": "c", "timestamp": 1_700_000_000_123, "payload": '{"temp": 21.5}'}
    for once in (True, False):
        action = parsed["actions"][kind]["readings"]
        action["parameters"]["exactly_once"] = once
        connector = module.connect(SINK_TYPES[kind].connector.model_validate(connection), "k")
        driver = module.make(SINK_TYPES[kind].action.model_validate(action), connector, f"{kind}:readings")
        await driver.probe()
        rows = rows_of([{**message, "id": f"{number}"} for number in range(3)])
        assert await written(driver, rows) == {}
        await connector.close()
    assert parsed["rules"]["readings"]["actions"] == [f"{kind}:readings"]


def shown(page: str) -> list[str]:
    return [one for one in blocks(page, "sql") if one.startswith("CREATE TABLE")]


def test_postgresql() -> None:
    page = "sink-postgresql.md"
    with postgresql("CREATE ROLE broker LOGIN;" + "".join(shown(page))) as server:
        run(lambda: written_by(pgsql, "pgsql", page, server.port))
        assert server.psql("SELECT client, extract(epoch FROM at), temp, payload FROM readings") == (
            'c|1700000000.123000|21.5|{"temp": 21.5}\n' * 3
        )


@pytest.mark.own_broker
def test_ten_lines_of_the_page_are_all_that_a_broker_needs(tmp_path: Path) -> None:
    """The account has a password, and no rights but those of the page."""
    page = "sink-postgresql.md"
    text = blocks(page, "toml")[0]
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
    account = "CREATE ROLE broker LOGIN PASSWORD 'dbsecret';"
    with postgresql(account + shown(page)[0], access="host all all 127.0.0.1/32 scram-sha-256") as server:
        (tmp_path / "password").write_text("dbsecret\n")
        text = text.replace("127.0.0.1:5432", f"127.0.0.1:{server.port}")
        text = text.replace("/etc/shardbroker/pgsql", str(tmp_path / "password"))
        (tmp_path / "broker.toml").write_text(text)
        arguments = ("--config", str(tmp_path / "broker.toml"))
        with Broker(1, arguments=arguments) as broker, Client(broker.address, 5, "kitchen") as client:
            client.publish("sensors/1", b'{"temp": 21.5}', 1)
            client.publish("sensors/1", b'{"other": 1}', 1)
            until(lambda: server.psql("SELECT client, temp, payload FROM readings") == 'kitchen|21.5|{"temp": 21.5}\n')


def test_mysql() -> None:
    page = "sink-mysql.md"
    with mariadb("CREATE USER broker@'%' IDENTIFIED BY 'dbsecret';" + "".join(shown(page))) as server:
        run(lambda: written_by(mysql, "mysql", page, server.port))
        found = server.client("SELECT client, at, temp, payload FROM mqtt.readings").split("\n")[:-1]
        assert [one.split("\t")[:3] for one in found] == [["c", "2023-11-14 22:13:20.123", "21.5"]] * 3
        assert json.loads(found[0].split("\t")[3]) == {"temp": 21.5}


@pytest.mark.parametrize(("page", "ddl"), [("sink-postgresql.md", pgsql.DDL), ("sink-mysql.md", mysql.DDL)])
def test_tables_of_cursors_are_those_of_the_driver(page: str, ddl: str) -> None:
    stands = shown(page)[1].partition(";")[0]
    assert re.sub(r"\s+|,", "", stands) == re.sub(r"\s+|,", "", ddl.partition(";")[0])
