"""The section `persistence`: what it expands to, names that it reserves, and what it refuses."""

import re
from pathlib import Path

import pytest

from shardbroker.config.errors import ConfigError
from shardbroker.config.flows import needs_flows
from shardbroker.config.persistence import DATABASES, key_of
from shardbroker.config.show import show
from shardbroker.flows.persistence.expansion import all_actions, all_connectors, all_rules
from shardbroker.preflight.checks import look
from shardbroker.rules.definition import checked_sources
from tests.config.test_sinks import loaded

FILTERS = "allowed is a list of topic filters without quotes and backslashes"
CONNECTIONS = {
    "cassandra": "servers = ['localhost:1']",
    "dynamo": "region = 'a', aws_access_key_id = 'b', aws_secret_access_key = 'c'",
}
"""Of databases that have other keys than `server`."""
FILE = """
[persistence.pgsql]
clients = true
messages = ["a/#", "it is/+"]
acked = ["a/#"]
on_acked = "delete"

[persistence.pgsql.connection]
server = "127.0.0.1:5432"
password = "s3cret"
"""


def test_a_section_expands_to_a_connector_actions_and_rules(tmp_path: Path) -> None:
    settings = loaded(tmp_path, FILE).settings
    assert needs_flows(settings, []) and not [one for one in look(settings) if one.key.startswith("persistence")]
    assert all_connectors(settings).keys() == {"pgsql:persistence-pgsql"}
    actions = all_actions(settings)
    assert actions.keys() == {"pgsql:persistence-pgsql-clients", "pgsql:persistence-pgsql-messages"}
    assert actions["pgsql:persistence-pgsql-messages"].resource_opts.worker_pool_size == 1  # removals are behind their messages
    rules = all_rules(settings, 1234)
    assert rules["persistence-pgsql-messages"].actions == rules["persistence-pgsql-acked"].actions
    assert 'FROM "a/#", "it is/+" WHERE qos > 0' in rules["persistence-pgsql-messages"].sql
    assert "connected_at >= 1234" in rules["persistence-pgsql-clients"].sql
    assert "s3cret" not in show(loaded(tmp_path, FILE))


@pytest.mark.parametrize("name", DATABASES)
def test_each_rule_of_each_database_is_valid(tmp_path: Path, name: str) -> None:
    everything = (
        "clients = true\nsubscriptions = true\nretained = ['#']\nacked = ['#', 'b/+']\n" if "retained" in fields(name) else ""
    )
    connection = CONNECTIONS.get(name, "server = 'localhost:1'")
    settings = loaded(
        tmp_path, f"[persistence.{name}]\nmessages = ['#']\n{everything}connection = {{{connection}}}"
    ).settings
    assert not [one for one in look(settings) if one.key.startswith("persistence")]
    for id, rule in all_rules(settings).items():
        checked_sources(rule.sql, rule.actions)
        assert key_of(id) == f"persistence.{name}" and all(one in all_actions(settings) for one in rule.actions)


def fields(name: str) -> set[str]:
    return set(DATABASES[name].part.model_fields)


def test_a_section_may_use_a_connector_of_the_configuration(tmp_path: Path) -> None:
    text = '[connectors.postgresql.main]\nserver = "127.0.0.1:1"\n[persistence.pgsql]\nconnector = "main"\nclients = true'
    settings = loaded(tmp_path, text).settings
    assert all_connectors(settings).keys() == {"pgsql:main"}
    assert all_actions(settings)["pgsql:persistence-pgsql-clients"].connector == "main"


def test_without_a_section_there_is_nothing(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "").settings
    assert not settings.persistence.used() and not all_rules(settings) and not needs_flows(settings, [])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[persistence.pgsql]\nclients = true\nconnector = 'x'", "persistence.pgsql.connector names 'x', and there is no"),
        ("[persistence.pgsql]\nmessages = ['a\"b']", FILTERS),
        ('[persistence.pgsql]\nacked = ["a\'b"]', FILTERS),
        ("[persistence.pgsql]\nretained = ['a\\b']", FILTERS),
        ("[persistence.pgsql]\nmessages = ['$events/client_connected']", FILTERS),
        ("[persistence.pgsql]\nmessages = ['a/#/b']", FILTERS),
        ("[persistence.pgsql]\nacked = ['#']\non_acked = 'delete'", "on_acked = delete only with persistence.pgsql.messages"),
        ("[persistence.pgsql]\nclients = true\n[durability]\nlevel = 'none'", "allowed is no preset with durability.level = none"),
        ("[persistence.redis]\nclients = true\nconnection = {redis_type = 'cluster'}", "allowed is redis_type single or sentinel"),
        ("[persistence.pgsql]\nfetch = ['a']", "fetch only with persistence.pgsql.acked"),
        ("[persistence.pgsql]\nfetch = ['a\"']", FILTERS),
        (
            "[persistence.pgsql]\nretain_lookup = ['a']\n[persistence.redis]\nretain_lookup = ['a']",
            "allowed is one section with fetch or retain_lookup, not persistence.pgsql and persistence.redis",
        ),
        ("[persistence.influxdb]\nretain_lookup = ['a']", "persistence.influxdb"),
        ("[persistence.none]\nclients = true", "persistence.none"),
        ("[rules.persistence-x]\nsql = 'SELECT * FROM \"a\"'", "allowed is a name without persistence- at its start"),
        ("[connectors.http.persistence-x]\nurl = 'http://a'", "allowed is a name without persistence- at its start"),
        ("[actions.http.persistence-x]\nconnector = 'x'", "allowed is a name without persistence- at its start"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        loaded(tmp_path, text)


def test_a_section_with_a_connector_of_its_own_and_a_named_one_is_refused(tmp_path: Path) -> None:
    text = FILE.replace("clients = true", "clients = true\nconnector = 'main'") + "[connectors.pgsql.main]\nserver = 'a:1'"
    with pytest.raises(ConfigError, match=re.escape("allowed is one of persistence.pgsql.connector and")):
        loaded(tmp_path, text)
