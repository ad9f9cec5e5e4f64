"""Plugins of EMQ X Enterprise 3 and 4: pools, hooks and templates, imported and then used by a broker against real servers.

The points of OpenTSDB are written to InfluxDB's listener for its protocol, the rows of TimescaleDB to PostgreSQL.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config import load
from shardbroker.config.errors import ConfigError
from shardbroker.config.foreign import Imported, to_toml
from shardbroker.config.foreign_emqx_backends import add_backends
from shardbroker.config.foreign_emqx_templates import made_of, read_templates
from shardbroker.control import Control
from tests.harness import Broker, Client, until
from tests.harness.wire import Publish
from tests.servers.influxdb import influx, influxdb_server
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql

PROGRAM = Path(sys.executable).with_name("shardbroker")

PUBLISH = '{"topic": "#", "action": {"function": "on_message_publish"}, "pool": "pool1"}'
INFLUXDB = f"""
backend.influxdb.pool1.common.write_protocol = http
backend.influxdb.pool1.common.batch_size = 1000
backend.influxdb.pool1.pool_size = 8
backend.influxdb.pool1.http.host = 127.0.0.1
backend.influxdb.pool1.http.port = PORT
backend.influxdb.pool1.http.database = mqtt
backend.influxdb.pool1.http.precision = ms
backend.influxdb.pool1.http.https_enabled = false
backend.influxdb.hook.message.publish.1 = {PUBLISH}
"""
OPENTSDB = f"""
backend.opentsdb.pool1.server = 127.0.0.1:PORT
backend.opentsdb.pool1.pool_size = 8
backend.opentsdb.pool1.summary = true
backend.opentsdb.pool1.details = false
backend.opentsdb.pool1.sync = false
backend.opentsdb.pool1.sync_timeout = 0
backend.opentsdb.pool1.max_batch_size = 20
backend.opentsdb.hook.message.publish.1 = {PUBLISH}
"""
TIMESCALE = f"""
backend.timescale.pool1.server = 127.0.0.1:PORT
backend.timescale.pool1.username = mqtt
backend.timescale.pool1.password = public
backend.timescale.pool1.database = mqtt
backend.timescale.pool1.ssl = false
backend.timescale.hook.message.publish.1 = {PUBLISH}
"""
MYSQL = """
## Pools and hooks as they are in the plugin's file
backend.mysql.pool1.server = 127.0.0.1:PORT
backend.mysql.pool1.pool_size = 8
backend.mysql.pool1.user = mqtt
backend.mysql.pool1.password = 1234
backend.mysql.pool1.database = mqtt
backend.mysql.hook.client.connected.1    = {"action": {"function": "on_client_connected"}, "pool": "pool1"}
backend.mysql.hook.client.connected.2    = {"action": {"function": "on_subscribe_lookup"}, "pool": "pool1"}
backend.mysql.hook.client.disconnected.1 = {"action": {"function": "on_client_disconnected"}, "pool": "pool1"}
backend.mysql.hook.session.subscribed.1  = {"topic": "#", "action": {"function": "on_message_fetch"}, "offline_opts": {"max_returned_count": 500, "time_range": "2h"}, "pool": "pool1"}
backend.mysql.hook.session.subscribed.2  = {"topic": "#", "action": {"function": "on_retain_lookup"}, "pool": "pool1"}
backend.mysql.hook.session.unsubscribed.1= {"topic": "in/#", "action": {"sql": ["delete from mqtt_acked where clientid = ${clientid} and topic = ${topic}"]}, "pool": "pool1"}
backend.mysql.hook.message.publish.1     = {"topic": "in/#", "action": {"function": "on_message_publish"}, "pool": "pool1"}
backend.mysql.hook.message.publish.2     = {"topic": "#", "action": {"function": "on_message_retain"}, "pool": "pool1"}
backend.mysql.hook.message.publish.3     = {"topic": "#", "action": {"function": "on_retain_delete"}, "pool": "pool1"}
backend.mysql.hook.message.acked.1       = {"topic": "in/#", "action": {"function": "on_message_acked"}, "pool": "pool1"}
"""  # noqa: E501
POINTS: dict[str, Any] = {
    "sample": {
        "measurement": "$topic",
        "tags": {
            "host": ["$payload", "data", "$0", "host"],
            "region x": ["$payload", "data", "$0", "region"],
            "qos": "$qos",
            "clientid": "$clientid",
            "fixed": "a, b=c",
        },
        "fields": {"temperature": ["$payload", "data", "$0", "temp"], "one": 1, "yes": True, "note": 'say "x"'},
        "timestamp": "$timestamp",
    },
    "two/#": {
        "measurement": "two",
        "fields": {"a": ["$payload", "t", "$0"], "b": ["$payload", "h", "$0", "v"]},
        "tags": {"n": "$topic"},
    },
    "top": [{"measurement": "top", "fields": {"a": ["$payload", "$0", "v"]}, "tags": {"v": ["$payload", "$0", "v"]}}],
    "at/+": {"measurement": "at", "fields": {"v": ["$payload", "$2", "a key"]}, "timestamp": ["$payload", "$1", "ts"]},
}
SAMPLE = {"data": [{"temp": 1, "host": "server A", "region": "h,1"}, {"temp": 2.5, "host": "B", "region": "n=1"}]}


def imported(confs: list[str], **templates: object) -> Imported:
    found = Imported()
    add_backends(found, confs, [(name, json.dumps(one)) for name, one in templates.items()])
    return found


@contextmanager
def broker_of(where: Path, remarks: int, **files: str) -> Iterator[Broker]:
    """A broker with what `config import` makes of these files, which has so many remarks."""
    paths = []
    for name, text in files.items():
        path = where / (f"{name}.tmpl" if text.startswith("{") else f"emqx_backend_{name}.conf")
        path.write_text(text)
        paths.append(str(path))
    done = subprocess.run([str(PROGRAM), "config", "import", *paths], capture_output=True, text=True, check=False)
    assert done.stderr.count("not imported") == remarks and done.returncode == (1 if remarks else 0), done.stderr
    (where / "own.toml").write_text(done.stdout)
    with Broker(2, {}, where / "data", arguments=(f"--config={where / 'own.toml'}",)) as broker:
        yield broker


def send(broker: Broker, topic: str, *payloads: object) -> None:
    with Client(broker.address, 5, "c 1") as client:
        for one in payloads:
            client.publish(topic, one if isinstance(one, bytes) else json.dumps(one).encode(), 1)


@pytest.mark.own_broker
def test_points_of_influxdb(tmp_path: Path) -> None:
    with influxdb_server() as server:
        conf = INFLUXDB.replace("PORT", str(server.port))

        def rows(measurement: str) -> list[dict[str, Any]]:
            return influx(server.port, f"SELECT * FROM {measurement}", login="")

        with broker_of(tmp_path, 0, influxdb=conf, points=json.dumps(POINTS)) as broker:
            send(broker, "sample", SAMPLE)
            until(lambda: len(rows("sample")) == 2, lambda: broker.output[-5:])
            first, second = sorted(rows("sample"), key=lambda one: one["temperature"])
            assert first["time"] == second["time"] > 1_700_000_000_000
            common = {"_name": "sample", "time": first["time"], "qos": "1", "clientid": "c 1", "fixed": "a, b=c"}
            common |= {"one": 1, "yes": True, "note": 'say "x"'}
            assert first == {**common, "host": "server A", "region x": "h,1", "temperature": 1}
            assert second == {**common, "host": "B", "region x": "n=1", "temperature": 2.5}
            send(broker, "two/x", {"t": [1], "h": [{"v": 2}]}, {"t": [3], "h": []}, {"t": [5], "h": [{"v": 6}]})
            until(lambda: len(rows("two")) == 2, lambda: broker.output[-5:])
            assert [(one["a"], one["b"], one["n"]) for one in rows("two")] == [(1, 2, "two/x"), (5, 6, "two/x")]
            send(broker, "top", b"no JSON", [{"v": 1}, {"v": 2}, {"w": 3}])
            until(lambda: len(rows("top")) == 2, lambda: broker.output[-5:])
            send(broker, "at/1", [{"ts": 1_700_000_000_123}, {"a key": 7}])
            until(lambda: len(rows("at")) == 1, lambda: broker.output[-5:])
            assert rows("at") == [{"_name": "at", "time": 1_700_000_000_123, "v": 7}]


@pytest.mark.own_broker
def test_points_of_opentsdb(tmp_path: Path) -> None:
    body = {**POINTS["sample"], "value": POINTS["sample"]["fields"]["temperature"]}
    del body["fields"]
    body["tags"] = {"host": body["tags"]["host"], "qos": "$qos"}
    with influxdb_server() as server:

        def rows() -> list[dict[str, Any]]:
            return influx(server.port, "SELECT * FROM sample", database="opentsdb", login="")

        conf = OPENTSDB.replace("PORT", str(server.opentsdb_port))
        with broker_of(tmp_path, 0, opentsdb=conf, points=json.dumps({"sample": body})) as broker:
            payload = {"data": [{"temp": 1, "host": "a"}, {"temp": "2.5", "host": "b"}, {"temp": "no number", "host": "d"}]}
            send(broker, "sample", payload)
            until(lambda: len(rows()) == 2, lambda: broker.output[-5:])
            found = sorted((one["host"], one["qos"], one["value"]) for one in rows())
            assert found == [("a", "1", 1), ("b", "1", 2.5)]


@pytest.mark.own_broker
def test_rows_of_timescaledb(tmp_path: Path) -> None:
    """Of hooks with a narrower topic filter; a parameter within quotes is text."""
    tables = """CREATE TABLE sensor_data (time timestamptz, location text, temperature float8, humidity float8, note text);
        CREATE TABLE easy_data (time timestamptz, data text, at bigint)"""
    insert = "insert into sensor_data(time, location, temperature, humidity, note) values (NOW(), $1, $2, $3, '$1')"
    templates = {
        "sensor_data/#": {
            "name": "insert_sensor_data",
            "sql": insert,
            "param_keys": [["$payload", "data", "$0", name] for name in ("location", "temperature", "humidity")],
        },
        "easy": {"name": "easy", "sql": "insert into easy_data values (NOW(), $1, $2)", "param_keys": ["$payload", "$timestamp"]},
    }
    with postgresql(tables) as server:
        conf = TIMESCALE.replace("PORT", str(server.port))
        *pool, hook = conf.splitlines()
        hooks = [hook.replace("publish.1", f"publish.{n}").replace("#", one) for n, one in ((2, "sensor_data/+/in"), (3, "easy"))]
        text = "\n".join([*pool, *hooks])
        # Each of the two templates for each of the two hooks: those that match nothing are there, too.
        with broker_of(tmp_path, 0, timescale=text, rows=json.dumps(templates)) as broker:
            bedroom, kitchen = {"location": "bedroom", "temperature": 21.3, "humidity": 40.3}, {"location": "k'", "temperature": 29}
            send(broker, "sensor_data/1/out", {"data": [bedroom]})
            send(broker, "sensor_data/1/in", {"data": [bedroom, kitchen]})
            send(broker, "easy", {"a": 1})
            until(lambda: server.psql("SELECT count(*) FROM easy_data") == "1\n", lambda: broker.output[-5:])
            found = server.psql("SELECT location, temperature, humidity, note FROM sensor_data ORDER BY temperature").splitlines()
            assert found == ["bedroom|21.3|40.3|$1", "k'|29|null|$1"]
            data, at = server.psql("SELECT data, at FROM easy_data").strip().split("|")
            assert data == '{"a": 1}' and 1_700_000_000_000_000_000 < int(at) < 1 << 63


@pytest.mark.own_broker
def test_a_preset_an_own_statement_and_a_lookup(tmp_path: Path) -> None:
    with mariadb() as server:
        conf = MYSQL.replace("PORT", str(server.port)).replace("1234", "dbsecret")
        lines = [line for line in conf.splitlines() if "session.subscribed" not in line]  # look-ups: tests/flows/persistence

        def rows(sql: str) -> list[str]:
            return server.client(f"USE mqtt; {sql}").splitlines()

        with broker_of(tmp_path, 0, mysql="\n".join(lines)) as broker:
            with Control(broker.data_dir) as control:
                (made,) = control.call("persistence create")["data"]
            assert (made["database"], made["connector"], made["created"]) == ("mysql", "mysql:pool1", True)
            rows("INSERT INTO mqtt_sub (clientid, topic, qos, created) VALUES ('sub', 'in/1', 1, 0)")
            with Client(broker.address, 5, "sub") as client:
                client.publish("in/1", b"\xff\x00", 1)
                assert client.expect(Publish).topic == "in/1", "subscribed by the row"
                client.publish("out", b"kept", 1, retain=True)
                until(lambda: rows("SELECT clientid, topic FROM mqtt_acked") == ["sub\tin/1"], lambda: broker.output[-5:])
                until(lambda: rows("SELECT HEX(payload), qos FROM mqtt_msg") == ["FF00\t1"], lambda: broker.output[-5:])
                until(lambda: rows("SELECT topic, payload FROM mqtt_retain") == ["out\tkept"], lambda: broker.output[-5:])
                until(lambda: rows("SELECT clientid, state FROM mqtt_client") == ["sub\t1"], lambda: broker.output[-5:])
                client.unsubscribe("in/1")
                until(lambda: rows("SELECT clientid FROM mqtt_acked") == [], lambda: broker.output[-5:])
            until(lambda: rows("SELECT clientid, state FROM mqtt_client") == ["sub\t0"], lambda: broker.output[-5:])


def test_what_the_files_of_plugins_become() -> None:
    found = imported([MYSQL.replace("PORT", "3306")])
    settings = found.settings
    assert settings["connectors", "mysql", "pool1", "password"] == "1234"
    preset = {key[2]: value for key, value in settings.items() if key[:2] == ("persistence", "mysql")}
    lookups = {"fetch": ["#"], "fetch_time_range": 7200, "retain_lookup": ["#"]}
    assert preset == {"connector": "pool1", "clients": True, "messages": ["in/#"], "retained": ["#"], "acked": ["in/#"], **lookups}
    assert settings["auto_subscribe", "sources"] == ["mysql"]
    assert settings["auto_subscribe", "mysql", "server"] == "127.0.0.1:3306"
    (rule,) = [key[1] for key in settings if key[0] == "rules" and key[2] == "sql"]
    assert settings["rules", rule, "sql"] == (
        'SELECT clientid, topic FROM "$events/session_unsubscribed" WHERE topic =~ \'in/#\''
    )
    assert settings["actions", "mysql", rule, "parameters", "sql"].startswith("delete from mqtt_acked where clientid = ${clientid}")
    (remark,) = found.remarks
    assert "on_message_fetch" in remark and "max_returned_count" in remark


def test_one_database_is_looked_up_and_only_what_is_acknowledged_is_fetched() -> None:
    redis = """
backend.redis.pool1.server = 127.0.0.1:6379
backend.redis.hook.client.connected.1 = {"action": {"function": "on_client_connected"}, "pool": "pool1"}
backend.redis.hook.client.disconnected.1 = {"action": {"function": "on_client_disconnected"}, "pool": "pool1"}
backend.redis.hook.session.subscribed.1 = {"topic": "q/#", "action": {"function": "on_message_fetch_for_queue"}, "pool": "pool1"}
backend.redis.hook.session.subscribed.2 = {"topic": "#", "action": {"function": "on_retain_lookup"}, "pool": "pool1"}
"""
    found = imported([redis])
    assert found.settings["persistence", "redis", "retain_lookup"] == ["#"]
    assert ("persistence", "redis", "fetch") not in found.settings
    assert ["on_message_acked" in one for one in found.remarks] == [True]
    both = imported([MYSQL.replace("PORT", "3306"), redis])
    assert ("persistence", "mysql", "retain_lookup") in both.settings
    assert ("persistence", "redis", "retain_lookup") not in both.settings
    assert sum("in one database" in one for one in both.remarks) == 1


REDIS = """
backend.redis.pool1.type = sentinel
backend.redis.pool1.server = 127.0.0.1:26379,127.0.0.1:26378
backend.redis.pool1.sentinel = mymaster
backend.redis.pool1.database = 2
backend.redis.pool1.channel = other
backend.redis.pool1.password = s3cret
backend.redis.pool1.some_secret = s3cret
backend.redis.msg.expired_after = 60
backend.redis.hook.client.connected.1 = {"action": {"function": "on_client_connected"}, "pool": "pool1"}
backend.redis.hook.session.subscribed.3 = {"action": {"function": "on_retain_lookup"}, "pool": "pool1"}
backend.redis.hook.session.unsubscribed.1 = {"topic": "#", "action": {"commands": ["DEL mqtt:acked:${clientid}:${topic}", "PING"]}, "pool": "pool1"}
backend.redis.hook.message.publish.1 = {"topic": "a", "action": {"function": "on_message_store"}, "expired_time": 60, "pool": "pool1"}
backend.redis.hook.message.publish.2 = {"topic": "a", "action": {"function": "on_message_publish"}, "pool": "pool2"}
backend.redis.hook.message.publish.3 = {"topic": "b", "action": {"function": "on_retain_delete"}, "pool": "pool1"}
backend.redis.hook.message.acked.1 = {"topic": "queue/#", "action": {"function": "on_message_acked_for_queue"}, "pool": "pool1"}
backend.redis.hook.message.acked.2 = {"topic": "pubsub/#", "action": {"function": "on_message_acked_for_pubsub"}, "pool": "pool1"}
backend.redis.hook.message.acked.3 = nonsense
backend.redis.hook.message.acked.4 = {"topic": "a'b", "action": {"function": "on_message_acked"}, "pool": "pool1"}
backend.other.pool1.server = x
"""  # noqa: E501


def test_what_has_no_counterpart_is_named() -> None:
    found = imported([REDIS])
    settings = load(None, None, [], {".".join(key): value for key, value in found.settings.items()}, kept={}).settings
    redis = settings.persistence.redis
    assert (redis.clients, redis.messages, redis.store_qos0, redis.retained, redis.acked) == (True, ["a"], True, [], ["pubsub/#"])
    assert (redis.expired_after, redis.on_acked) == (60, "position")
    connector = settings.connectors.by_id()["redis:pool1"]
    assert (connector.redis_type, connector.sentinel) == ("sentinel", "mymaster")
    assert connector.servers == ["127.0.0.1:26379", "127.0.0.1:26378"]
    assert (connector.database, connector.password) == (2, "s3cret")
    commands = [one.parameters.command_template for one in settings.actions.by_id().values()]
    assert commands == [["DEL", "mqtt:acked:${clientid}:${topic}"], ["PING"]]
    said = "\n".join(found.remarks)
    for word in (
        "pool1.channel = other", "some_secret = ******", "client.connected.1", "order among each other",
        "'pool2'", "on_retain_delete", "queue/#", "acked.3 = nonsense", "a'b", "backend.other.pool1.server",
    ):  # fmt: skip
        assert word in said, word
    assert len(found.remarks) == 10 and "s3cret" not in said


def test_queues_of_dynamodb_and_pools_of_others() -> None:
    dynamo = """
backend.dynamo.region = us-west-2
backend.dynamo.pool1.server = http://localhost:8000
backend.dynamo.pool1.aws_access_key_id = AKID
backend.dynamo.pool1.aws_secret_access_key = s3cret
backend.dynamo.hook.message.publish.1 = {"topic": "#", "action": {"function": "on_message_publish"}, "pool": "pool1"}
backend.dynamo.hook.message.acked.1 = {"topic": "#", "action": {"function": "on_message_acked_for_queue"}, "pool": "pool1"}
backend.ecql.pool1.nodes = 127.0.0.1:9042,127.0.0.2
backend.ecql.pool1.size = 8
backend.ecql.pool1.keyspace = mqtt
backend.cassa.hook.message.publish.1 = {"topic": "#", "action": {"function": "on_message_publish"}, "pool": "pool1"}
backend.mongo.pool1.type = shared
backend.mongo.pool1.server = 127.0.0.1:27017
backend.mongo.pool1.login = a
backend.mongo.pool1.srv_record = false
backend.mongo.hook.client.connected.1 = {"action": {"function": "on_client_connected"}, "pool": "pool1"}
backend.mongo.hook.client.disconnected.1 = {"action": {"function": "on_client_disconnected"}, "pool": "pool1"}
"""
    found = imported([dynamo])
    assert found.remarks == []
    settings = load(None, None, [], {".".join(key): value for key, value in found.settings.items()}, kept={}).settings
    there = settings.connectors.by_id()
    assert (there["dynamo:pool1"].region, there["dynamo:pool1"].url) == ("us-west-2", "http://localhost:8000")
    assert settings.persistence.dynamo.on_acked == "delete"
    assert there["cassandra:pool1"].servers == ["127.0.0.1:9042", "127.0.0.2:9042"]
    assert (there["mongodb:pool1"].mongo_type, there["mongodb:pool1"].username) == ("sharded", "a")
    assert settings.persistence.mongodb.clients and to_toml(found, "x")


def test_udp_of_influxdb_is_named() -> None:
    for text in (
        "backend.influxdb.pool1.server = 10.0.0.1:8089\nbackend.influxdb.pool1.set_timestamp = true\n",
        "backend.influxdb.udp.pool1.server = 10.0.0.1:8089\n",
        "backend.influxdb.pool1.common.write_protocol = udp\nbackend.influxdb.pool1.udp.host = 10.0.0.1\n"
        "backend.influxdb.pool1.udp.port = 8089\n",
    ):
        hook = f"backend.influxdb.hook.message.publish.1 = {PUBLISH}\n"
        found = imported([text + hook], a={"a": {"measurement": "a", "fields": {"b": 1}}})
        (remark,) = found.remarks
        assert "UDP to 10.0.0.1: there is only HTTP here" in remark
        assert found.settings["connectors", "influxdb", "pool1", "server"] == "10.0.0.1:8086"
    found = imported(["backend.influxdb.http.pool1.server = 10.0.0.1:8086\nbackend.influxdb.http.pool1.precision = s\n"])
    assert found.remarks == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"measurement": "a", "fields": {}}, "at least one"),
        ({"measurement": "$nothing", "fields": {"a": 1}}, "$nothing"),
        ({"measurement": "it's", "fields": {"a": 1}}, "without '"),
        ({"measurement": "a", "fields": {"${b}": 1}}, "${"),
        ({"measurement": "a", "fields": {'b"': 1}}, "printable"),
        ({"measurement": "a", "fields": {"a": None}}, "text, a number"),
        ({"measurement": "a", "fields": {"a": ["$topic", "x"]}}, "begin with $payload"),
        ({"measurement": "a", "fields": {"a": ["$payload", "$0", "$0"]}}, "one $0"),
        ({"measurement": "a", "fields": {"a": ["$payload", 'x" FROM "secret/#" WHERE "']}}, "key of a path"),
        ({"measurement": "a", "fields": {"a": ["$payload", "l\\", "$0"], "b": ["$payload", "m", "$0"]}}, "without backslash"),
        ({"measurement": "a", "value": 1}, "tags"),
        ({"sql": "insert into t values ($1, $2)", "param_keys": ["$topic"]}, "$2"),
        ({"sql": "insert into t values (${topic})", "param_keys": ["$topic"]}, "without ${"),
        ({"sql": "insert into t values ($1)", "param_keys": "$topic"}, "list"),
    ],
)
def test_a_template_that_cannot_be_taken_over_is_named(body: dict[str, Any], reason: str) -> None:
    (template,), wrong = read_templates(json.dumps({"t/#": body}))
    assert wrong == []
    with pytest.raises(ValueError) as error:
        made_of(template)
    assert reason in str(error.value)


def test_files_of_templates() -> None:
    first, second = '{"measurement": "a", "fields": {"a": 1}}', '{"measurement": "b", "fields": {"a": 1}, "x": 1}'
    twice = f'{{"t": {first}, "t": {second}, "u": 1, "v": {{}}}}'
    found, wrong = read_templates(twice)
    assert [one.body["measurement"] for one in found] == ["a"]
    assert [one.partition(":")[0] for one in wrong] == ["template of 't'", "template of 'u'", "template of 'v'"]
    for text in ("[]", "{", "[" * 100_000, '{"t": {"measurement": "a", "fields": {"a": NaN}}}'):
        with pytest.raises(ConfigError, match=r"x\.tmpl: "):
            add_backends(Imported(), [], [("x.tmpl", text)])
    template = read_templates('{"t/\'/#": {"measurement": "a", "fields": {"a": 1}}}')[0][0]
    with pytest.raises(ValueError, match="topic filters"):
        made_of(template)


def test_templates_need_a_pool_and_a_unit() -> None:
    body = {"measurement": "a", "fields": {"a": 1}, "timestamp": ["$payload", "ts"]}
    (remark,) = imported([], x={"t": body}).remarks
    assert "emqx_backend_influxdb.conf" in remark
    conf = INFLUXDB.replace("PORT", "8086")
    found = imported([conf.replace("backend.influxdb.pool1.http.precision = ms\n", "")], x={"t": body})
    (remark,) = found.remarks
    assert "its unit" in remark
    points = {"measurement": "a", "value": 1, "tags": {"a": "b"}, "timestamp": ["$payload", "ts"]}
    found = imported([OPENTSDB.replace("PORT", "4242")], x={"t": points})
    assert found.remarks == []
    (data,) = [value for key, value in found.settings.items() if key[-1] == "data"]
    assert data == [{"metric": "${metric}", "tags": {"a": "${tag_a}"}, "value": "${value}", "timestamp": "${time}"}]
    found = imported([conf])
    assert "nothing is written without templates" in found.remarks[0]
