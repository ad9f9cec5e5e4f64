"""Configuration of mosquitto and EMQX: what means the same is taken over, the rest is named."""

import subprocess
import sys
from pathlib import Path

from shardbroker.config import load
from shardbroker.config.foreign import to_toml
from shardbroker.config.foreign_emqx import read_emqx
from shardbroker.config.foreign_mosquitto import GLOBAL, PER_LISTENER, read_mosquitto

PROGRAM = Path(sys.executable).with_name("shardbroker")
PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"

MOSQUITTO = """
# a comment
persistence true
persistence_location /var/lib/mosquitto/
max_inflight_messages 20
max_queued_messages 0
message_size_limit 65536
persistent_client_expiration 2w
sys_interval 10
allow_anonymous false
max_keepalive 60

listener 1883
max_connections -1

listener 8883 192.0.2.7
certfile /etc/cert.pem
keyfile /etc/key.pem
cafile /etc/ca.pem
require_certificate true
use_identity_as_username true
max_connections 5000

listener 9001
protocol websockets
"""

EMQX = """
node { name = "emqx@10.0.0.1", cookie = secret }
mqtt {
  max_packet_size = 2MB   // both kinds of comments
  max_inflight = 64       # here
  session_expiry_interval = 4h
  mqueue_priorities = disabled
  retry_interval = 30s
}
listeners.tcp.default { bind = "0.0.0.0:1883", max_connections = infinity }
listeners.ssl.default {
  bind = 8883
  ssl_options {
    certfile = "/etc/cert.pem", keyfile = "/etc/key.pem"
    cacertfile = "/etc/ca.pem"
    verify = verify_peer
    fail_if_no_peer_cert = true
  }
}
listeners.ws.default { bind = 0.0.0.0:8083, websocket.mqtt_path = "/ws" }
log.console.level = warning
sys_topics { sys_msg_interval = 1m }
authentication = [ { mechanism = password_based, backend = built_in_database } ]
opentelemetry {
  exporter { endpoint = "http://collector:4317", headers { authorization = "Bearer x" } }
  metrics { enable = true, interval = 30s }
  traces { enable = true, max_queue_size = 4096, scheduled_delay = 2s, filter { trace_mode = legacy, trace_all = true } }
}
"""


def test_mosquitto(tmp_path: Path) -> None:
    imported = read_mosquitto(MOSQUITTO)
    file = tmp_path / "shardbroker.toml"
    file.write_text(to_toml(imported, "mosquitto.conf"))
    settings = load(file).settings
    assert (settings.mqtt.max_inflight, settings.mqtt.max_mqueue_len, settings.mqtt.max_packet_size) == (20, 0, 65536)
    assert settings.mqtt.session_expiry_interval == 14 * 86400
    assert settings.durability.level == "process"
    assert settings.sys.msg_interval == 10
    assert [(one.bind, one.type) for one in settings.listeners.values()] == [
        ("0.0.0.0:1883", "tcp"), ("192.0.2.7:8883", "ssl"), ("0.0.0.0:9001", "ws")
    ]  # fmt: skip
    secure = settings.listeners["listener-2"]
    assert (secure.tls.verify, secure.tls.fail_if_no_peer_cert, secure.tls.cacertfile) == ("verify_peer", True, "/etc/ca.pem")
    assert (secure.peer_cert_as_username, secure.max_connections) == ("cn", 5000)
    named = [remark.split()[0] for remark in imported.remarks]
    assert named == ["max_keepalive", "allow_anonymous"]
    assert imported.notes[0].startswith("persistence_location /var/lib/mosquitto/: ")
    assert settings.auth.chain == ["builtin"], "allow_anonymous false, and no users"


def test_emqx(tmp_path: Path) -> None:
    imported = read_emqx(EMQX)
    file = tmp_path / "shardbroker.toml"
    file.write_text(to_toml(imported, "emqx.conf"))
    settings = load(file).settings
    mqtt = settings.mqtt
    assert (mqtt.max_packet_size, mqtt.max_inflight, mqtt.session_expiry_interval) == (2 << 20, 64, 14400)
    assert settings.node.name == "emqx@10.0.0.1"
    assert {name: (one.bind, one.type) for name, one in settings.listeners.items()} == {
        "default": ("0.0.0.0:1883", "tcp"), "ssl-default": ("0.0.0.0:8883", "ssl"), "ws-default": ("0.0.0.0:8083", "ws")
    }  # fmt: skip
    assert settings.listeners["ssl-default"].tls.fail_if_no_peer_cert
    assert settings.listeners["ws-default"].websocket.path == "/ws"
    assert (settings.log.level, settings.sys.msg_interval) == ("warning", 60)
    said = "\n".join(imported.remarks)
    telemetry = settings.opentelemetry
    assert (telemetry.metrics.enable, telemetry.metrics.interval) == (True, 30)
    traces = telemetry.traces
    assert (traces.enable, traces.max_queue_size, traces.scheduled_delay, traces.filter.trace_all) == (True, 4096, 2, True)
    assert "opentelemetry.exporter.endpoint = http://collector:4317: data is sent by OTLP over HTTP, port 4318" in said
    for word in ("node.cookie", "mqtt.mqueue_priorities = disabled", "authentication"):
        assert word in said


RULES = r'''
rule_engine {
  ignore_sys_message = false
  rules {
    hot_1 {
      actions = [
        {args {direct_dispatch = false, payload = "${t}", qos = 1, retain = "${flags.retain}", topic = "hot/${clientid}"}
         function = republish}
        "mqtt:elsewhere"
        {function = console}
      ]
      description = "says \"hot\""
      enable = false
      metadata {created_at = 1700000000000}
      sql = "SELECT\n  payload.t as t, clientid\nFROM\n  \"t/#\""
    }
    lines {sql = """~
      SELECT *
        FROM "$events/client_connected"
      ~"""}
    quoted = {sql = """SELECT 1 FROM "a""""}
    "not an id" {sql = "SELECT * FROM \"t\""}
  }
}
'''


def test_rules_of_emqx(tmp_path: Path) -> None:
    imported = read_emqx(RULES)
    file = tmp_path / "shardbroker.toml"
    file.write_text(to_toml(imported, "cluster.hocon"))
    rules = load(file).settings.rules
    assert sorted(rules) == ["hot_1", "lines", "quoted"]
    hot = rules["hot_1"]
    assert (hot.sql, hot.enable, hot.description) == ('SELECT\n  payload.t as t, clientid\nFROM\n  "t/#"', False, 'says "hot"')
    args = {"direct_dispatch": False, "payload": "${t}", "qos": 1, "retain": "${flags.retain}", "topic": "hot/${clientid}"}
    assert hot.actions == [{"function": "republish", "args": args}, {"function": "console"}]
    assert rules["lines"].sql == 'SELECT *\n  FROM "$events/client_connected"'
    assert rules["quoted"].sql == 'SELECT 1 FROM "a"'
    said = "\n".join(imported.remarks)
    for word in ("rule_engine.rules.hot_1.actions: mqtt:elsewhere", "not an id"):
        assert word in said, said
    assert imported.settings["rule_engine", "ignore_sys_message"] is False and "ignore_sys_message" not in said


SINKS = """
connectors {
  http {
    main {url = "http://127.0.0.1:8080", headers {authorization = "s3cret"}, pool_type = random, ssl {enable = false}
          resource_opts {health_check_interval = "15s", start_timeout = 5s}}
    misspelt {url = "http://127.0.0.1:8080", api_token = "s3cret"}
  }
  rocketmq {k {servers = "a:9876"}}
}
actions {
  webhook {
    out {connector = main
         parameters {path = "/x", headers {a = b}, max_retries = 2}, resource_opts {batch_size = 5, query_mode = async}}
    lost {connector = gone}
  }
}
rule_engine {rules {a {sql = "SELECT * FROM \\"t\\"", actions = ["http:out", "webhook:out", "rocketmq:k"]}}}
"""


def test_connectors_and_actions(tmp_path: Path) -> None:
    imported = read_emqx(SINKS)
    file = tmp_path / "shardbroker.toml"
    file.write_text(to_toml(imported, "emqx.conf"))
    settings = load(file, {}, [], {}, {}).settings
    assert settings.connectors.by_id().keys() == {"http:main"} and settings.actions.by_id().keys() == {"http:out"}
    out = settings.actions.by_id()["http:out"]
    assert settings.connectors.by_id()["http:main"].headers == {"authorization": "s3cret"}
    assert (out.connector, out.parameters.path, out.parameters.headers) == ("main", "/x", {"a": "b"})
    assert out.resource_opts.batch_size == 5
    assert settings.rules["a"].actions == ["http:out", "http:out"]
    said = "\n".join(imported.remarks)
    for word in ("connectors.rocketmq.k: type must be ", "connectors.http.misspelt: ", "actions.http.lost: ", "action"):
        assert word in said, said
    assert "s3cret" not in said


def test_what_does_not_fit_is_named_with_what_is_allowed() -> None:
    imported = read_mosquitto("max_inflight_messages 0\nsome_future_thing yes\nlistener many\n")
    assert "max_inflight_messages 0: " in imported.remarks[0]
    assert "allowed is" in imported.remarks[0]
    assert "listener 0.0.0.0:many" in imported.remarks[1]
    assert imported.remarks[2].startswith("some_future_thing yes: there is nothing like it")
    assert imported.settings["auth", "chain"] == ["builtin"], "it may have been about who connects"
    assert read_emqx("mqtt { max_inflight = [1, }").settings == {}


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mosquitto.conf"
    file.write_text(MOSQUITTO)
    done = subprocess.run([str(PROGRAM), "config", "import", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "# Not taken over" in done.stdout
    assert "not imported: max_keepalive 60: " in done.stderr
    assert "max_inflight = 20" in done.stdout
    other = tmp_path / "my.conf"
    other.write_text("")
    done = subprocess.run([str(PROGRAM), "config", "import", str(other)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--format: must be mosquitto or emqx" in done.stderr


def test_the_page_has_every_setting_that_is_taken_over() -> None:
    page = PAGE.read_text()
    for key, ours in (*GLOBAL.items(), *PER_LISTENER.items()):
        row = next((line for line in page.splitlines() if line.startswith(f"| `{key}`")), "")
        assert ours in row, key
