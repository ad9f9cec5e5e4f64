"""What presets expand to is listed, is changed by its section alone, and follows a reload; errors of a server are shown."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.persistence import DATABASES, Kept
from shardbroker.control import Control, ControlError
from tests.flows.persistence.scenario import EVERYTHING, on
from tests.flows.sinks.broker import SinksBroker
from tests.harness import until
from tests.servers.postgresql import postgresql

pytestmark = pytest.mark.own_broker
NOTHING = {"server": "127.0.0.1:1", "username": "mqtt", "timeout": "1s"}
SERVER = {"server": "127.0.0.1:1"}
NOWHERE: dict[str, dict[str, Any]] = {
    "cassandra": {"servers": ["127.0.0.1:1"]},
    "dynamo": {"url": "http://127.0.0.1:1", "region": "a", "aws_access_key_id": "a", "aws_secret_access_key": "b"},
}
"""Connections of databases that have other keys than `server`."""
RULE, ACTION, CONNECTOR = "persistence-pgsql-clients", "pgsql:persistence-pgsql-clients", "pgsql:persistence-pgsql"


@pytest.fixture(scope="module")
def broker() -> Iterator[SinksBroker]:
    sections = {"persistence.pgsql": {"clients": True, "messages": ["#"], "connection": NOTHING}}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        SinksBroker(2, Path(place) / "data", sections) as broker,
    ):
        yield broker


def call(broker: SinksBroker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


def test_what_a_preset_expands_to_is_listed(broker: SinksBroker) -> None:
    rows = call(broker, "persistence show", database="postgresql")["data"]
    assert [row["part"] for row in rows] == ["clients", "messages"]
    assert rows[0]["rule"] == RULE and rows[0]["action"] == ACTION and rows[0]["connector"] == CONNECTOR
    for verb, id in (("rules show", RULE), ("actions show", ACTION), ("connectors show", CONNECTOR)):
        assert call(broker, verb, id=id)["origin"] == "configuration"
    until(lambda: call(broker, "persistence show")["data"][0]["status_reason"] != "")


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("rules update", {"id": RULE, "enable": False}),
        ("rules delete", {"id": RULE}),
        ("actions change", {"id": ACTION, "definition": '{"enable": false}'}),
        ("actions delete", {"id": ACTION, "also_delete_dep_actions": True}),
        ("connectors change", {"id": CONNECTOR, "definition": '{"pool_size": 1}'}),
        ("connectors delete", {"id": CONNECTOR, "also_delete_dep_actions": True}),
    ],
)
def test_it_is_changed_by_its_section_alone(broker: SinksBroker, verb: str, params: dict[str, Any]) -> None:
    with pytest.raises(ControlError, match=re.escape("is in the configuration (persistence.pgsql): change it there, and reload")):
        call(broker, verb, **params)


def test_its_names_are_not_for_others(broker: SinksBroker) -> None:
    must = re.escape("id: must not begin with persistence-, which the presets persistence.<db> have")
    with pytest.raises(ControlError, match=must):
        call(broker, "rules create", id="persistence-mine", sql='SELECT * FROM "a"', actions="[]")
    with pytest.raises(ControlError, match=must):
        call(broker, "connectors add", id="http:persistence-mine", definition='{"url": "http://127.0.0.1:1"}')
    call(broker, "connectors add", id="http:mine", definition='{"url": "http://127.0.0.1:1"}')
    with pytest.raises(ControlError, match=must):
        call(broker, "actions add", id="http:persistence-mine", definition=json.dumps({"connector": "mine"}))


def test_a_server_that_cannot_be_used_is_an_error_that_says_so(broker: SinksBroker) -> None:
    with pytest.raises(ControlError, match=r"persistence\.pgsql: .*refused"):
        call(broker, "persistence create")
    with pytest.raises(ControlError, match=re.escape("database: must be one of ")):
        call(broker, "persistence create", database="oracle")
    with pytest.raises(ControlError, match=re.escape("persistence.mysql does not")):
        call(broker, "persistence create", database="mysql")


def test_a_reload_adds_and_removes_parts(broker: SinksBroker) -> None:
    before = broker.sections["persistence.pgsql"]
    broker.change(persistence__pgsql={"subscriptions": True, "connection": NOTHING})
    assert [row["part"] for row in call(broker, "persistence show")["data"]] == ["subscriptions"]
    assert [row["id"] for row in call(broker, "rules list")["data"]] == ["persistence-pgsql-subscriptions"]
    broker.change(persistence__pgsql=None)
    assert call(broker, "persistence show")["data"] == [] and call(broker, "rules list")["data"] == []
    with pytest.raises(ControlError, match="there is none in the section persistence"):
        call(broker, "persistence create")
    broker.change(persistence__pgsql=before)
    assert len(call(broker, "persistence show")["data"]) == 2


def test_everything_of_all_databases_is_listed() -> None:
    sections = {}
    for name, row in DATABASES.items():
        parts = EVERYTHING if issubclass(row.part, Kept) else {"messages": ["#"]}
        sections[f"persistence.{name}"] = {**parts, "connection": {**NOWHERE.get(name, SERVER), "timeout": "1s"}}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        SinksBroker(2, Path(place) / "data", sections) as broker,
    ):
        rows = call(broker, "persistence show")["data"]
        assert {row["database"] for row in rows} == {*DATABASES}
        rules, actions = ({row["id"]: row for row in call(broker, f"{kind} list")["data"]} for kind in ("rules", "actions"))
        assert {row["rule"] for row in rows} == {*rules} and {row["action"] for row in rows} == {*actions}
        assert not any(row["problem"] for row in rules.values())
        assert {row["connector"] for row in rows} == {row["id"] for row in call(broker, "connectors list")["data"]}


def test_a_server_without_tables_or_rights_is_named_and_rows_wait() -> None:
    with postgresql("CREATE USER other") as server, tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place:
        found = {"server": f"127.0.0.1:{server.port}", "username": "other", "database": "mqtt"}
        with SinksBroker(2, Path(place) / "data", {"persistence.pgsql": {"messages": ["#"], "connection": found}}) as broker:
            with on(broker, 0, "p") as client:
                client.publish("a", b"1", 1)
            until(lambda: "mqtt_msg" in call(broker, "persistence show")["data"][0]["status_reason"], timeout_s=30)
            with pytest.raises(ControlError, match="permission denied"):
                call(broker, "persistence create")
            server.psql("GRANT CREATE ON SCHEMA public TO other")
            call(broker, "persistence create")
            until(lambda: server.psql("SELECT convert_from(payload, 'UTF8') FROM mqtt_msg") == "1\n", timeout_s=30)
