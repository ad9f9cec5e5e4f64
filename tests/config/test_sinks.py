"""Sections of connectors and actions: types and their other names, references, secrets; EMQX's keys."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.errors import ConfigError
from shardbroker.config.flows import needs_flows
from shardbroker.config.foreign_emqx import read_emqx
from shardbroker.config.show import show, shown
from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, checked, from_emqx, with_secrets
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.config.sources import Loaded, load

FILE = """
[connectors.webhook.main]
url = "http://127.0.0.1:8080"
headers = { Authorization = "s3cret" }

[actions.http.out]
connector = "main"
fallback_actions = ["webhook:last"]

[actions.http.last]
connector = "main"
"""


def loaded(tmp_path: Path, text: str, environment: dict[str, str] | None = None, *assignments: str) -> Loaded:
    file = tmp_path / "shardbroker.toml"
    file.write_text(text)
    return load(file, environment or {}, assignments, {"process.data_dir": str(tmp_path / "data")})


def test_another_name_of_a_type_is_the_type(tmp_path: Path) -> None:
    variable = {"SHARDBROKER__CONNECTORS__WEBHOOK__MAIN__POOL_SIZE": "3"}
    found = loaded(tmp_path, FILE, variable, "connectors.webhook.main.timeout=3s", "actions.http.out.parameters.path=/a")
    main = found.settings.connectors.by_id()["http:main"]
    assert (main.pool_size, main.timeout) == (3, 3.0)
    assert found.source("connectors.http.main.timeout") == "--set"
    assert found.settings.actions.by_id()["http:out"].parameters.path == "/a"
    assert needs_flows(found.settings, [])


def test_what_is_shown_can_be_read_and_has_no_secret(tmp_path: Path) -> None:
    text = show(loaded(tmp_path, FILE))
    assert "s3cret" not in text and "[connectors.http.main]" in text
    assert loaded(tmp_path, text).settings.actions.by_id().keys() == {"http:out", "http:last"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[connectors.none.main]\nurl = "x"', "connectors.none.main.url"),
        ('[connectors.none.main]\nurl = "x"', "unknown key; allowed types of connectors are "),
        ('[connectors.http.main]\nurll = "x"', "did you mean connectors.http.<name>.url?"),
        ('[connectors.http."a b"]\nheaders = { a = "s3cret" }', "allowed is a name of up to 64 letters"),
        ('[connectors.http.main]\nurl = "x"\n[connectors.webhook.main]\nurl = "y"', "must be under one name of its type"),
        ('[actions.http.out]\nconnector = "main"', "actions.http.out.connector names 'main', and there is no connectors.http.main"),
        (FILE.replace("webhook:last", "http:out"), "allowed is another action that exists: fallback_actions of http:out"),
        (FILE.replace('["webhook:last"]', "[3]"), "fallback_actions of http:out must be type:name"),
        (FILE.replace("webhook:last", "none:last"), "fallback_actions of http:out type must be "),
        (FILE + '[durability]\nlevel = "none"', "allowed is no connector with durability.level = none"),
        ("[connectors]\nhttp = 3", "allowed is a section of keys"),
    ],
)
def test_what_is_wrong_is_named_without_secrets(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)) as refused:
        loaded(tmp_path, text)
    assert "s3cret" not in str(refused.value)


def test_tables_of_tables_are_shown_as_json() -> None:
    statement = {"operation": "delete", "filter_template": "{}"}
    found = checked(ACTIONS, "mongodb", {"connector": "a", "parameters": {"statements": {"delete": statement}}})
    shown_one = json.loads(json.dumps(shown(found)))["parameters"]["statements"]["delete"]
    assert shown_one == {**statement, "collection": "mqtt", "payload_template": ""}


def test_a_secret_is_not_set_on_a_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"connectors\.http\.main\.headers\.a: must be in a file or the environment"):
        loaded(tmp_path, FILE, {}, "connectors.webhook.main.headers.a=x")


def test_what_clients_of_emqx_send_is_taken() -> None:
    sent = {
        "type": "http", "name": "main", "url": "http://a/", "ssl": {"enable": False}, "pool_type": "random",
        "connect_timeout": "15s",
        "resource_opts": {"health_check_interval": "15s"}, "status": "connected", "node_status": [], "enable_pipelining": 100,
    }  # fmt: skip
    assert from_emqx(CONNECTORS, "http", sent) == {"url": "http://a/"}
    action = {
        "connector": "main", "parameters": {"path": "/a", "max_retries": 2},
        "resource_opts": {"query_mode": "async", "batch_size": 5, "request_ttl": "45s"},
        "fallback_actions": [{"kind": "reference", "type": "webhook", "name": "last"}, "webhook:other"],
    }  # fmt: skip
    model = checked(ACTIONS, "http", from_emqx(ACTIONS, "http", action))
    assert (model.parameters.path, model.resource_opts.batch_size, model.resource_opts.request_ttl) == ("/a", 5, 45.0)
    assert model.fallback_actions == ["http:last", "http:other"]


def test_cassandra_of_emqx() -> None:
    text = """
    connectors.cassandra.main {
      servers = "a:9043,b", keyspace = "mqtt", username = "u", password = "s3cret", pool_size = 16, auto_reconnect = true
      ssl { enable = true, verify = verify_none, cacertfile = "ca.pem" }
      resource_opts { health_check_interval = 15s, start_timeout = 5s }
    }
    actions.cassandra.rows {
      connector = main
      parameters { cql = "insert into t (topic) values (${topic})", undefined_vars_as_null = true }
      resource_opts { batch_size = 100, query_mode = async, worker_pool_size = 16 }
    }
    """
    found = read_emqx(text)
    assert not found.remarks
    values = {key[3:]: value for key, value in found.settings.items() if key[:3] == ("connectors", "cassandra", "main")}
    given = {key[0]: value for key, value in values.items()}
    model = checked(CONNECTORS, "cassandra", given)
    assert (model.servers, model.keyspace, model.username, model.password) == (["a:9043", "b:9042"], "mqtt", "u", "s3cret")
    assert (model.tls, model.tls_ca, model.tls_verify) == (True, "ca.pem", False)
    cql = ("actions", "cassandra", "rows", "parameters", "cql")
    assert found.settings[cql] == "insert into t (topic) values (${topic})"


def test_kafka_of_emqx() -> None:
    text = """
    connectors.kafka_producer.main {
      bootstrap_hosts = "a:9093,b", connect_timeout = 5s, min_metadata_refresh_interval = 3s, metadata_request_timeout = 5s
      authentication { mechanism = plain, username = u, password = "s3cret" }
      socket_opts { sndbuf = 1024KB, recbuf = 1024KB, nodelay = true, tcp_keepalive = none }
      ssl { enable = true, verify = verify_none, cacertfile = "ca.pem" }
    }
    actions.kafka_producer.rows {
      connector = main
      parameters {
        topic = "rows", message { key = "${.clientid}", value = "${.}", timestamp = "${.timestamp}" }, max_batch_bytes = 896KB
        compression = snappy, partition_strategy = key_dispatch, required_acks = all_isr, max_inflight = 10, query_mode = async
        kafka_headers = "${pub_props}", kafka_ext_headers = [{kafka_ext_header_key = k, kafka_ext_header_value = v}]
        buffer { mode = memory, per_partition_limit = 2GB, segment_bytes = 100MB, memory_overload_protection = false }
      }
    }
    """
    found = read_emqx(text)
    assert not found.remarks
    given = {key[3]: value for key, value in found.settings.items() if key[:3] == ("connectors", "kafka", "main")}
    model = checked(CONNECTORS, "kafka", given)
    assert model.bootstrap_hosts == ["a:9093", "b:9092"]
    assert (model.mechanism, model.username, model.password) == ("plain", "u", "s3cret")
    assert (model.tls, model.tls_ca, model.tls_verify) == (True, "ca.pem", False)
    at = ("actions", "kafka", "rows", "parameters")
    assert found.settings[*at, "topic"] == "rows" and found.settings[*at, "message", "key"] == "${.clientid}"


@pytest.mark.parametrize(
    ("ssl", "keys"),
    [
        ({"enable": True}, {}),
        ({"enable": True, "cacertfile": "ca.pem", "verify": "verify_peer"}, {"tls_ca": "ca.pem", "tls_verify": True}),
        ({"enable": True, "certfile": "c.pem", "keyfile": "k.pem", "verify": "verify_none", "server_name_indication": "auto"},
         {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_verify": False}),
        ({"enable": False, "verify": "verify_none"}, {}),
    ],
)  # fmt: skip
def test_the_table_ssl_becomes_keys_of_tls(ssl: dict[str, Any], keys: dict[str, Any]) -> None:
    assert from_emqx(CONNECTORS, "http", {"url": "https://a/", "ssl": ssl}) == {"url": "https://a/", **keys}


def test_parameters_of_a_connector_are_keys_of_it() -> None:
    sent = {"parameters": {"url": "http://a/"}, "pool_size": 3}
    assert from_emqx(CONNECTORS, "http", sent) == {"url": "http://a/", "pool_size": 3}


@pytest.mark.parametrize("ssl", [{"server_name_indication": "other"}, {"verify": "sometimes"}, {"verify": []}])
def test_a_table_ssl_with_another_meaning_is_refused(ssl: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ssl\.\w+: must be "):
        from_emqx(CONNECTORS, "http", {"ssl": {"enable": True, **ssl}})


def test_masked_secrets_are_those_before() -> None:
    before = {"password": "one", "headers": {"a": "file:/x", "b": "two"}}
    given = {"password": "******", "headers": {"a": "******", "b": "new"}}
    assert with_secrets(given, before) == {"password": "one", "headers": {"a": "file:/x", "b": "new"}}
    with pytest.raises(ValueError, match=r"^headers\.c: must be a value"):
        with_secrets({"headers": {"c": "******"}}, before)


def test_a_definition_is_shown_as_json() -> None:
    model = checked(CONNECTORS, "http", {"url": "http://a/", "headers": {"a": "s3cret"}})
    assert json.loads(json.dumps(shown(model), allow_nan=False))["headers"] == {"a": "******"}
    assert shown(checked(ACTIONS, "http", {}))["resource_opts"]["request_ttl"] == "infinity"


@pytest.mark.parametrize("prefix", ["a/#", "+/", "$SYS/", "a\0"])
def test_a_prefix_of_a_bridge_is_the_begin_of_a_topic(prefix: str) -> None:
    for model in (SINK_TYPES["shardbroker"].action, SINK_TYPES["shardbroker"].source):
        assert model is not None
        with pytest.raises(ValueError, match="allowed is the begin of topics without"):
            model.model_validate({"parameters": {"topic_prefix": prefix}})


@pytest.mark.parametrize("type", SINK_TYPES)
def test_all_types_are_shown_as_json(type: str) -> None:
    for model in (SINK_TYPES[type].connector(), SINK_TYPES[type].action()):
        found = json.loads(json.dumps(shown(model), allow_nan=False))
        assert model.model_validate(found) == model
