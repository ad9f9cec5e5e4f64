"""Presets that keep messages alone: InfluxDB, the real server; TimescaleDB, a stand-in: PostgreSQL with a function of its name."""

import json
from typing import Any

import pytest

from tests.flows.persistence.scenario import BYTES, NODE, Rows, caught_up, keeps, on, running, write_again
from tests.flows.persistence.test_pgsql import Database
from tests.servers.influxdb import InfluxServer, influx, influxdb_server
from tests.servers.postgresql import postgresql

pytestmark = pytest.mark.own_broker
HYPERTABLE = """CREATE FUNCTION create_hypertable(
  relation regclass, time_column name, chunk_time_interval bigint, if_not_exists boolean
) RETURNS void LANGUAGE sql AS ''"""


class Timescale(Database):
    kind = "timescale"

    def rows(self, part: str) -> Rows:
        lines = self.server.psql("SELECT row_to_json(t) FROM mqtt_msg t ORDER BY msgid").splitlines()
        return [found | {"payload": bytes.fromhex(found["payload"][2:])} for found in map(json.loads, lines)]


class Opents:
    """A stand-in: the listener of InfluxDB for OpenTSDB's protocol."""

    kind = "opents"

    def __init__(self, server: InfluxServer) -> None:
        self.server = server
        self.settings = {"server": f"127.0.0.1:{server.opentsdb_port}", "timeout": "5s"}

    def rows(self, part: str) -> Rows:
        return influx(self.server.port, "SELECT * FROM mqtt_msg", database="opentsdb", login="")


class Influxdb:
    kind = "influxdb"

    def __init__(self, server: InfluxServer) -> None:
        self.server = server
        self.settings = {"server": f"127.0.0.1:{server.port}", "influxdb_type": "influxdb_api_v1"}

    def rows(self, part: str) -> Rows:
        found = influx(self.server.port, "SELECT * FROM mqtt_msg", login="")
        return [one | {"payload": one["payload"].encode(), "qos": int(one["qos"])} for one in found]


def messages(broker: Any, store: Any, *payloads: bytes) -> None:
    with on(broker, 0, "p") as client:
        client.publish("in/0", b"not kept", 0)
        client.publish("out", b"not kept", 1)
        for number, payload in enumerate(payloads):
            client.publish("in/a", payload, 1 + number % 2)
        common = {"topic": "in/a", "sender": client.client_id, "node": NODE, "retain": 0}
        wanted = [{"payload": payload, "qos": 1 + number % 2, **common} for number, payload in enumerate(payloads)]
        before = keeps(broker, store, "messages", *wanted)
    write_again(broker, store, "messages", len(payloads))
    caught_up(broker, store)
    assert store.rows("messages") == before


def test_timescaledb() -> None:
    with postgresql(HYPERTABLE) as server:
        store = Timescale(server)
        with running(store, messages=["in/#"]) as broker:
            messages(broker, store, BYTES, b"{}", b"1")


def test_opentsdb_has_payloads_that_are_numbers() -> None:
    with influxdb_server() as server:
        store = Opents(server)
        with running(store, messages=["in/#"]) as broker, on(broker, 0, "p q") as client:
            for topic, payload in (("in/a b", b"1.5"), ("in/b", b"{}"), ("in/b", b""), ("in/c", b"-2e3")):
                client.publish(topic, payload, 1)
            sender = client.client_id.replace(" ", "_")
            keeps(broker, store, "messages", {"topic": "in/a_b", "value": 1.5, "sender": sender}, {"topic": "in/c", "value": -2000})
            assert not broker.action("opents:persistence-opents-messages").get("failed")


def test_influxdb() -> None:
    with influxdb_server() as server:
        store = Influxdb(server)
        with running(store, messages=["in/#"]) as broker:
            messages(broker, store, b"{}", b"'\" ,=\\ \xc3\xa9", b"1")
