"""Bridges of mosquitto.conf and of EMQX 4: connectors, actions, rules and sources; what has no equivalent is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardbroker.config.foreign import Imported
from shardbroker.config.foreign_emqx_bridge import add_bridges
from shardbroker.config.foreign_mosquitto import read_mosquitto
from tests.harness import Broker, Client
from tests.servers.mosquitto import mosquitto_server

PROGRAM = Path(sys.executable).with_name("shardbroker")

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


# --- EMQX 4 -----------------------------------------------------------------------------------------------------------------------

EMQX = """
## Bridges to aws
bridge.mqtt.aws.address = far.example:8883
bridge.mqtt.aws.proto_ver = mqttv4
bridge.mqtt.aws.start_type = auto
bridge.mqtt.aws.bridge_mode = true
bridge.mqtt.aws.clientid = bridge_${node}
bridge.mqtt.aws.clean_start = false
bridge.mqtt.aws.username = user
bridge.mqtt.aws.password = 12345
bridge.mqtt.aws.forwards = topic1/#,topic2/#
bridge.mqtt.aws.forward_mountpoint = bridge/aws/${node}/
bridge.mqtt.aws.subscription.1.topic = cmd/topic1
bridge.mqtt.aws.subscription.1.qos = 1
bridge.mqtt.aws.subscription.2.topic = cmd/topic2
bridge.mqtt.aws.subscription.2.qos = 2
bridge.mqtt.aws.receive_mountpoint = receive/aws/
bridge.mqtt.aws.ssl = on
bridge.mqtt.aws.cacertfile = /etc/cacert.pem
bridge.mqtt.aws.certfile = /etc/client-cert.pem
bridge.mqtt.aws.keyfile = /etc/client-key.pem
bridge.mqtt.aws.ciphers = AES128-SHA
bridge.mqtt.aws.keepalive = 60s
bridge.mqtt.aws.tls_versions = tlsv1.3,tlsv1.2
bridge.mqtt.aws.reconnect_interval = 30s
bridge.mqtt.aws.retry_interval = 20s
bridge.mqtt.aws.batch_size = 32
bridge.mqtt.aws.max_inflight_size = 32
bridge.mqtt.aws.queue.replayq_dir = data/replayq/emqx_aws_bridge/
bridge.mqtt.aws.queue.replayq_seg_bytes = 10MB
bridge.mqtt.aws.queue.max_total_size = 5GB
"""


def of_emqx(text: str, node: str = "") -> Imported:
    found = Imported({("node", "name"): node} if node else {})
    add_bridges(found, [text])
    return found


def test_a_bridge_of_emqx_4() -> None:
    found = of_emqx(EMQX, "n1@host")
    assert not found.remarks
    assert given(found, "connectors", "mqtt", "aws") == {
        "server": "far.example:8883", "proto_ver": "v4", "bridge_mode": True, "clean_start": False, "username": "user",
        "password": "12345", "keepalive": "60s", "reconnect_interval": "30s", "max_inflight": 32, "tls": True,
        "tls_ca": "/etc/cacert.pem", "tls_cert": "/etc/client-cert.pem", "tls_key": "/etc/client-key.pem",
        "static_clientids": [{"ids": ["bridge_n1@host"]}],
    }  # fmt: skip
    assert given(found, "actions", "mqtt", "aws") == {
        "connector": "aws", "parameters.topic": "bridge/aws/${node}/${topic}", "parameters.qos": "1",
        "resource_opts.max_buffer_bytes": "5GB",
    }  # fmt: skip
    assert given(found, "rules") == {
        "bridge-aws.sql": 'SELECT * FROM "topic1/#", "topic2/#"', "bridge-aws.actions": ["mqtt:aws"],
    }  # fmt: skip
    assert given(found, "sources", "mqtt") == {
        "aws-1.connector": "aws", "aws-1.parameters.topic": ["cmd/topic1"], "aws-1.parameters.qos": 1,
        "aws-1.parameters.local.topic": "receive/aws/${topic}",
        "aws-2.connector": "aws", "aws-2.parameters.topic": ["cmd/topic2"], "aws-2.parameters.qos": 2,
        "aws-2.parameters.local.topic": "receive/aws/${topic}",
    }  # fmt: skip
    assert len(found.notes) == 6


@pytest.mark.parametrize(
    ("changed", "to", "remark"),
    [
        ("address = far.example:8883", "address = emqx@10.0.0.1", "a bridge by RPC"),
        ("ciphers = AES128-SHA", "psk_ciphers = PSK-AES128-CBC-SHA", "could be less protected"),
        ("forwards = topic1/#", 'forwards = a"b/#', "allowed are topic filters without quotes"),
        ("receive_mountpoint = receive/aws/", "receive_mountpoint = ${x}/", "the mount point of what is received is not known"),
        ("proto_ver = mqttv4", "proto_ver = mqttv6", "proto_ver = \"mqttv6\": allowed is"),
    ],
)
def test_a_bridge_of_emqx_4_that_is_left_out(changed: str, to: str, remark: str) -> None:
    found = of_emqx(EMQX.replace(changed, to), "n1@host")
    assert not given(found, "connectors") and not given(found, "rules")
    assert remark in found.remarks[-1]


def test_what_a_bridge_of_emqx_4_has_besides() -> None:
    found = of_emqx(EMQX.replace("start_type = auto", "start_type = manual") + "bridge.mqtt.aws.new = 1\nbridge.mqtt.x = 1\n")
    assert given(found, "connectors", "mqtt", "aws")["enable"] is False
    assert "static_clientids" not in given(found, "connectors", "mqtt", "aws")
    assert [one.partition(":")[0] for one in found.remarks] == [
        "bridge.mqtt.x", "bridge.mqtt.aws.new = 1", "bridge.mqtt.aws.start_type = manual",
        "bridge.mqtt.aws.clientid = bridge_${node}",
    ]  # fmt: skip


@pytest.mark.own_broker
def test_a_broker_with_a_bridge_of_emqx_4(tmp_path: Path) -> None:
    with mosquitto_server() as far:
        text = f"""
            bridge.mqtt.far.address = 127.0.0.1:{far.port}
            bridge.mqtt.far.start_type = auto
            bridge.mqtt.far.bridge_mode = true
            bridge.mqtt.far.forwards = a/#,b/#
            bridge.mqtt.far.forward_mountpoint = up/${{node}}/
            bridge.mqtt.far.subscription.1.topic = down/#
            bridge.mqtt.far.receive_mountpoint = from/
        """
        file, own = tmp_path / "emqx_bridge_mqtt.conf", tmp_path / "own.toml"
        file.write_text(text)
        done = subprocess.run([str(PROGRAM), "config", "import", str(file)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        own.write_text(done.stdout)
        with Client(("127.0.0.1", far.port), 4, "there", timeout=30) as there:
            there.publish("down/y", b"2", 1, retain=True)
            there.subscribe("up/#", 1)
            with (
                Broker(1, {"node.name": "n1@127.0.0.1"}, tmp_path / "data", arguments=(f"--config={own}",)) as broker,
                Client(broker.address, 4, "here", timeout=30) as here,
            ):
                here.subscribe("from/#", 1)
                here.publish("a/x", b"1", 1)
                assert [one.topic for one in here.expect_messages(b"2")] == ["from/down/y"]
                assert [one.topic for one in there.expect_messages(b"1")] == ["up/n1@127.0.0.1/a/x"]
