"""Bridges of mosquitto.conf: connectors, actions, rules and sources; what has no equivalent is named."""

import pytest

from shardbroker.config.foreign import Imported
from shardbroker.config.foreign_mosquitto import read_mosquitto

LISTENER = "listener 1883\nallow_anonymous true\n"
BRIDGE = f"""{LISTENER}
connection site a
address far.example other.example:1884
topic # both 2 "" site/
topic sensors/# out 1 plant/ fab/
topic cmd/+ in
bridge_protocol_version mqttv311
cleansession false
keepalive_interval 30
restart_timeout 5 30
remote_clientid bridge-1
remote_username u
remote_password p
start_type lazy
notifications false
bridge_cafile /etc/ca.pem
bridge_insecure true
bridge_outgoing_retain false
try_private true
"""


def given(found: Imported, *path: str) -> dict[str, object]:
    return {".".join(key[len(path) :]): value for key, value in found.settings.items() if key[: len(path)] == path}


def test_a_bridge_becomes_a_connector_with_actions_rules_and_sources() -> None:
    found = read_mosquitto(BRIDGE)
    assert given(found, "connectors", "mqtt", "site-a") == {
        "server": "far.example:1883", "proto_ver": "v4", "bridge_mode": True, "clean_start": False, "keepalive": "30s",
        "reconnect_interval": "5s", "static_clientids": [{"ids": ["bridge-1"]}], "username": "u", "password": "p", "tls": True,
        "tls_ca": "/etc/ca.pem", "tls_verify": False,
    }  # fmt: skip
    retain = {"parameters.retain": "false"}
    assert given(found, "actions", "mqtt") == {
        "site-a-1.connector": "site-a", "site-a-1.parameters.topic": "site/${topic}", "site-a-1.parameters.qos": "${qos}",
        **{f"site-a-1.{key}": value for key, value in retain.items()},
        "site-a-2.connector": "site-a", "site-a-2.parameters.topic": "fab/${bridged}", "site-a-2.parameters.qos": "1",
        **{f"site-a-2.{key}": value for key, value in retain.items()},
    }  # fmt: skip
    assert given(found, "rules") == {
        "bridge-site-a-1.sql": 'SELECT * FROM "#"', "bridge-site-a-1.actions": ["mqtt:site-a-1"],
        "bridge-site-a-2.sql": 'SELECT *, substr(topic, 6) AS bridged FROM "plant/sensors/#"',
        "bridge-site-a-2.actions": ["mqtt:site-a-2"],
    }  # fmt: skip
    sources = given(found, "sources", "mqtt")
    assert sources["site-a-1.parameters.topic"] == ["site/#"]
    assert sources["site-a-1.parameters.local.strip_prefix"] == "site/"
    assert (sources["site-a-3.parameters.topic"], sources["site-a-3.parameters.qos"]) == (["cmd/+"], 0)
    assert [one.partition(":")[0] for one in found.remarks] == [
        "address far.example other.example", "start_type lazy", "notifications false",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["bridge_psk 00ff", "bridge_identity x", "bridge_capath /etc/ssl", "bridge_tls_version tlsv1.3", "bridge_require_ocsp true"],
)
def test_a_bridge_that_could_be_less_protected_is_left_out(line: str) -> None:
    found = read_mosquitto(BRIDGE + line + "\n")
    assert not given(found, "connectors")
    assert not given(found, "sources")
    assert any(line in remark and "left out" in remark for remark in found.remarks)


@pytest.mark.parametrize("topic", ['a" b', "# sideways", "# both 3", "x out 0 ${y} z", '"" both 0 "" ""', "a b c d e f"])
def test_a_wrong_topic_is_named(topic: str) -> None:
    found = read_mosquitto(f"{LISTENER}connection x\naddress far\ntopic {topic}\n")
    assert any(remark.startswith(f"topic {topic}: not a topic") for remark in found.remarks)
    assert not given(found, "connectors")


def test_several_bridges_and_none_without_topics() -> None:
    first, second = "connection a\naddress x:1\ntopic x in\n", "connection b\naddress x:2\n"
    third = "connection c\naddress x:3\ntopic y\n"
    found = read_mosquitto(LISTENER + first + second + third)
    assert {path[2] for path in found.settings if path[0] == "connectors"} == {"a", "c"}
    assert "connection b: left out: there is no topic" in found.remarks
