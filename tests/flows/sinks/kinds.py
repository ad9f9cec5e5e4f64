"""Each type of sink, described once: its server, its settings, and how rows are read back by the database's own client.

Acceptance (`acceptance.py`), kills under load (`tests/torture/sinks.py`) and `bench_dead_sink.py` take the types from here. A new
type is a context manager that yields a `Sink`, and a line in KINDS.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pymongo

from tests.flows.bridges.far import Far
from tests.flows.sinks.service import Service
from tests.harness import until
from tests.servers.cassandra import ACCOUNT as CASSANDRA_ACCOUNT
from tests.servers.cassandra import cassandra
from tests.servers.disk import small_disk
from tests.servers.dynamodb import ACCOUNT as DYNAMO_ACCOUNT
from tests.servers.dynamodb import dynamodb_server, scanned
from tests.servers.dynamodb import own_client as dynamo_client
from tests.servers.influxdb import PASSWORD as INFLUX_PASSWORD
from tests.servers.influxdb import InfluxServer, influx, influxdb_server
from tests.servers.kafka import ACCOUNT as KAFKA_ACCOUNT
from tests.servers.kafka import kafka
from tests.servers.mongodb import mongodb_server
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql
from tests.servers.pulsar import MESSAGE_MAX, NAMESPACE, pulsar_server, token_of
from tests.servers.rabbitmq import PASSWORD as RABBIT_PASSWORD
from tests.servers.rabbitmq import USER as RABBIT_USER
from tests.servers.rabbitmq import rabbitmq_server
from tests.servers.redis import PASSWORD as REDIS_PASSWORD
from tests.servers.redis import cli, redis_server
from tests.servers.s3 import ACCOUNT as S3_ACCOUNT
from tests.servers.s3 import BUCKET, objects, s3_server
from tests.servers.s3 import own_client as s3_client

__all__ = ["KINDS", "ROWS", "TYPED", "TYPED_PAYLOAD", "Kind", "Rows", "Sink"]

Rows = list[tuple[int, int]]
"""Publisher and number of each row, in the order in which they were stored where the server knows it."""

ROWS = 'SELECT id, timestamp, payload.w AS w, payload.n AS n, payload.x AS x, 1700000000000 + payload.n AS at FROM "{topic}"'
"""Rule of rows. x: absent but for tests of rows that are rejected."""
TYPED = (
    "SELECT timestamp, payload.i AS i, payload.f AS f, payload.t AS t, base64_decode(payload.b) AS b, payload.d AS d,"
    ' payload.gone AS gone FROM "{topic}"'
)
"""Rule of one row with a value of each type."""
INTEGER, FLOAT, TEXT = 2**53 + 1, 0.1, "grün 𝄞"
TYPED_PAYLOAD = {"i": INTEGER, "f": FLOAT, "t": TEXT, "b": "AP8=", "d": "d-1"}
"""b: 0x00 and 0xff in Base64."""
LOGIN = {"username": "mqtt", "password": "dbsecret", "timeout": "1s"}
REPEATED = MESSAGE_MAX // 10_000 + 1
"""Of a text in a message of Pulsar, which is too large then for one of 10,000 characters."""
PAIR = re.compile(r"^(\d+)\D(\d+)$", re.MULTILINE)


@dataclass
class Sink:
    """A server that runs, with what a broker and a test need for it."""

    connector: dict[str, Any]
    refused: dict[str, Any]
    """What a probe refuses: a wrong password, or another setting where the type has no login."""
    reason: str
    """Part of the error of that probe."""
    parameters: dict[str, Any]
    """Of an action that writes rows of ROWS; a row that is written again changes nothing, if `keyed`."""
    read: Callable[[], Rows]
    typed: dict[str, Any]
    """Parameters for the row of TYPED."""
    stored: Callable[[], Any]
    """Returns that row, as the client shows it."""
    shown: Any
    """The same, as it has to be."""
    measured: dict[str, Any]
    """Parameters for the rows of `shardbroker perf sinks`."""
    server: Any = None
    """With pause, resume, kill, start; None: there is none."""
    last: Callable[[], dict[int, int]] | None = None
    """Returns the number that each publisher's row had that was written last, where rows have no order."""
    keyed: bool = True
    rewinds: bool = True
    """False: an order to rewind is refused."""
    once: dict[str, Any] | None = None
    """Parameters without a key, for types with `exactly_once`."""
    prepare: Callable[[], object] = lambda: None
    """Makes again what a server without files has lost when it is started again."""
    forgets: bool = False
    """A stand-in that loses rows when it is killed: those that were there before are remembered here."""
    _before: Counter[tuple[int, int]] = field(default_factory=Counter)
    _paused: bool = False

    def rows(self) -> Rows:
        """Returns all rows, also those that a stand-in has forgotten; each as often as it is there."""
        if not self._before:
            return self.read()
        found = self.read()
        missing = self._before - Counter(found)
        return [row for row, times in missing.items() for _ in range(times)] + found

    def pause(self) -> None:
        self._remember()
        self._paused = True
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()
        self._paused = False

    def kill(self) -> None:
        """Of a stand-in that forgets: while no row is on its way to it."""
        if not self._paused:
            self._remember()
        self._paused = False
        self.server.kill()

    def start(self) -> None:
        self.server.start()
        self.prepare()

    def _remember(self) -> None:
        if self.forgets:
            self._before = Counter(self.rows())


class Kind(NamedTuple):
    """serve: runs the server, with files of its own in a directory. poison: what makes the payload of a row one that is rejected;
    None: there is no such row."""

    serve: Callable[[Path], AbstractContextManager[Sink]]
    poison: dict[str, Any] | None


def _pairs(text: str) -> Rows:
    return [(int(w), int(n)) for w, n in PAIR.findall(text)]


# --- SQL --------------------------------------------------------------------------------------------------------------------------

PLAIN = "INSERT INTO r (w, n) VALUES (${w}, ${n})"
"""A repeat is a row of its own: with exactly_once there must be none."""
MEASURED = "INSERT INTO measured (id, client, payload) VALUES (${id}, ${clientid}, ${payload})"
TYPED_SQL = "INSERT INTO typed (i, f, t, b, gone) VALUES (${i}, ${f}, ${t}, ${b}, ${gone})"
POSTGRESQL = """
CREATE TABLE r (
    number bigserial, at timestamptz DEFAULT now(), w integer, n integer, id text, x integer CHECK (x <> 13), UNIQUE (id, at)
);
CREATE TABLE typed (i bigint, f double precision, t text, b bytea, gone integer);
CREATE TABLE measured (id text PRIMARY KEY, client text, payload text);
ALTER ROLE mqtt PASSWORD 'dbsecret';
"""
HYPERTABLE = """
CREATE FUNCTION create_hypertable(relation regclass, time_column name) RETURNS void LANGUAGE sql AS '';
SELECT create_hypertable('r', 'at');
"""
"""Debian has no TimescaleDB: the function is replaced, and the rest is PostgreSQL."""
MYSQL = """
CREATE TABLE r (number BIGINT AUTO_INCREMENT PRIMARY KEY, w INT, n INT, id VARCHAR(64) UNIQUE, x INT, CHECK (x <> 13));
CREATE TABLE typed (i BIGINT, f DOUBLE, t VARCHAR(64), b VARBINARY(16), gone INT);
CREATE TABLE measured (id VARCHAR(32) PRIMARY KEY, client VARCHAR(64), payload TEXT);
"""


def _sql(statement: str) -> dict[str, Any]:
    return {"sql": statement, "undefined_vars_as_null": True}


@contextmanager
def _pgsql(where: Path, more: str = "") -> Iterator[Sink]:
    with postgresql(POSTGRESQL + more, access="host all all 127.0.0.1/32 scram-sha-256") as pg:
        connector = {"server": f"127.0.0.1:{pg.port}", **LOGIN}
        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="password authentication failed",
            parameters=_sql(
                "INSERT INTO r (at, w, n, id, x) VALUES (${timestamp}, ${w}, ${n}, ${id}, ${x}) ON CONFLICT (id, at) DO NOTHING"
            ),
            once=_sql(PLAIN),
            read=lambda: _pairs(pg.psql("SELECT w, n FROM r ORDER BY number")),
            typed=_sql(TYPED_SQL),
            stored=lambda: pg.psql("SELECT i, f, t, encode(b, 'hex'), gone FROM typed"),
            shown=f"{INTEGER}|{FLOAT}|{TEXT}|00ff|null\n",
            measured={"sql": f"{MEASURED} ON CONFLICT DO NOTHING"},
            server=pg.server,
        )


def _timescale(where: Path) -> AbstractContextManager[Sink]:
    return _pgsql(where, HYPERTABLE)


@contextmanager
def _mysql(where: Path) -> Iterator[Sink]:
    with mariadb(MYSQL, "--innodb-flush-log-at-trx-commit=2") as db:
        connector = {"server": f"127.0.0.1:{db.port}", **LOGIN}
        insert = "INSERT INTO r (w, n, id, x) VALUES (${w}, ${n}, ${id}, ${x}) ON DUPLICATE KEY UPDATE id = id"
        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="Access denied for user 'mqtt'",
            parameters=_sql(insert),
            once=_sql(PLAIN),
            read=lambda: _pairs(db.client("SELECT w, n FROM mqtt.r ORDER BY number")),
            typed=_sql(TYPED_SQL),
            stored=lambda: db.client("SELECT i, f, t, HEX(b), gone FROM mqtt.typed"),
            shown=f"{INTEGER}\t{FLOAT}\t{TEXT}\t00FF\tNULL\n",
            measured={"sql": MEASURED.replace("INSERT", "INSERT IGNORE")},
            server=db.server,
        )


# --- Redis, MongoDB ---------------------------------------------------------------------------------------------------------------

ADD_ONCE = "if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[2]) end"
"""A list of rows, each once. KEYS[1] of a poison row is not a set."""


@contextmanager
def _redis(where: Path) -> Iterator[Sink]:
    with redis_server("--save", "", "--appendonly", "yes") as store:
        cli(store.port, "SET", "ids:poison", "text")
        connector = {"server": f"127.0.0.1:{store.port}", "password": REDIS_PASSWORD, "timeout": "1s"}
        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="password",
            parameters={"command_template": ["EVAL", ADD_ONCE, "2", "ids:${x}", "rows", "${id}", "${w} ${n}"]},
            read=lambda: _pairs("\n".join(cli(store.port, "LRANGE", "rows", "0", "-1"))),
            typed={"command_template": ["HSET", "typed", "i", "${i}", "f", "${f}", "t", "${t}", "b", "${b}", "gone", "${gone}"]},
            stored=lambda: cli(store.port, "HGETALL", "typed"),
            shown={"i": str(INTEGER), "f": str(FLOAT), "t": TEXT, "b": "\x00\udcff", "gone": "undefined"},
            measured={"command_template": ["HSET", "mqtt:msg:${id}", "topic", "${topic}", "payload", "${payload}"]},
            server=store,
        )


@contextmanager
def _mongodb(where: Path) -> Iterator[Sink]:
    with mongodb_server() as server:

        def collection(name: str) -> Any:
            return pymongo.MongoClient("127.0.0.1", server.port).mqtt[name]

        def prepare() -> None:
            collection("rows").create_index(["w", "n"], unique=True)

        prepare()
        connector = {"server": f"127.0.0.1:{server.port}", "timeout": "1s"}
        yield Sink(
            connector=connector,
            refused={**connector, "server": "127.0.0.1:1"},  # the stand-in has no login
            reason="connection refused",
            parameters={"collection": "rows", "payload_template": '{"w": ${w}, "n": ${n}}'},
            read=lambda: [(one["w"], one["n"]) for one in collection("rows").find()],
            typed={
                "collection": "typed",
                "payload_template": '{"i": ${i}, "f": ${f}, "t": "${t}", "b": "${b}", "gone": ${gone}}',
            },
            stored=lambda: collection("typed").find_one({}, {"_id": 0}),
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": b"\x00\xff", "gone": None},
            measured={
                "collection": "measured",
                "payload_template": '{"client": "${clientid}", "topic": "${topic}", "payload": "${payload}", "at": ${timestamp}}',
            },
            server=server,
            prepare=prepare,
            forgets=True,
        )


@contextmanager
def _rabbitmq(where: Path) -> Iterator[Sink]:
    """Messages are taken out of their queue when they are read, and remembered here."""
    with rabbitmq_server() as server:
        for queue in ("rows", "typed", "measured"):
            server.declare(queue)
        server.exchange("rows", "topic", ("rows", "rows.undefined"), ("rows", "rows.1"))
        found: Rows = []

        def read() -> Rows:
            found.extend(_pairs("\n".join(message["payload"].decode() for message in server.get("rows"))))
            return [*found]

        login = {"username": RABBIT_USER, "password": RABBIT_PASSWORD, "timeout": "1s", "heartbeat": "2s"}
        connector = {"server": f"127.0.0.1:{server.port}", **login}
        template = "${i}|${f}|${t}|${b}|${gone}"
        rows = {"exchange": "rows", "routing_key": "rows.${x}", "payload_template": "${w} ${n}"}
        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="login refused",
            parameters={**rows, "publish_confirmation_timeout": "1s"},
            read=read,
            typed={"routing_key": "typed", "payload_template": template},
            stored=lambda: server.get("typed")[0]["payload"],
            shown=f"{INTEGER}|{FLOAT}|{TEXT}|".encode() + b"\x00\xff|undefined",
            measured={"routing_key": "measured"},
            server=server.process,
            keyed=False,
        )


# --- Cassandra, DynamoDB, S3 ------------------------------------------------------------------------------------------------------

CASSANDRA = (
    "CREATE TABLE mqtt.r (w int, n int, id text, PRIMARY KEY (w, n))",
    "CREATE TABLE mqtt.typed (d text PRIMARY KEY, i bigint, f double, t text, b blob, gone int)",
    "CREATE TABLE mqtt.measured (client text, id text, payload text, PRIMARY KEY (client, id))",
)


@contextmanager
def _cassandra(where: Path) -> Iterator[Sink]:
    with cassandra(*CASSANDRA) as node:
        login = {"username": CASSANDRA_ACCOUNT, "password": CASSANDRA_ACCOUNT, "timeout": "1s"}
        connector = {"servers": f"127.0.0.1:{node.port}", "keyspace": "mqtt", **login}

        def select(cql: str) -> list[Any]:
            with node.session() as session:
                return list(session.execute(cql))

        def read() -> Rows:
            """Rows of one batch have one time."""
            rows = select("SELECT w, n, WRITETIME(id) AS at FROM r")
            return [(one.w, one.n) for one in sorted(rows, key=lambda one: (one.at, one.n))]

        typed = "INSERT INTO typed (d, i, f, t, b, gone) VALUES (${d}, ${i}, ${f}, ${t}, ${b}, ${gone})"
        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="the server rejects username or password",
            parameters={"cql": "INSERT INTO r (w, n, id) VALUES (${w}, ${n}, ${id})", "undefined_vars_as_null": True},
            read=read,
            typed={"cql": typed, "undefined_vars_as_null": True},
            stored=lambda: tuple(*select("SELECT i, f, t, b, gone FROM typed")),
            shown=(INTEGER, FLOAT, TEXT, b"\x00\xff", None),
            measured={"cql": "INSERT INTO measured (client, id, payload) VALUES (${clientid}, ${id}, ${payload})"},
            server=node,
        )


@contextmanager
def _dynamo(where: Path) -> Iterator[Sink]:
    """In memory: with files each item is a sync. Items have no order; the last one of a key wins (test_dynamo.py)."""
    with dynamodb_server() as server:
        client = dynamo_client(server.port)

        def prepare() -> None:
            for table, keys in (("rows", {"w": "N", "n": "N"}), ("typed", {"d": "S"}), ("measured", {"id": "S"})):
                client.create_table(
                    TableName=table,
                    AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in keys.items()],
                    KeySchema=[
                        {"AttributeName": name, "KeyType": key} for name, key in zip(keys, ("HASH", "RANGE"), strict=False)
                    ],
                    BillingMode="PAY_PER_REQUEST",
                )

        def read() -> Rows:
            return sorted((int(one["w"]["N"]), int(one["n"]["N"])) for one in scanned(client, "rows"))

        prepare()
        connector = {"url": f"http://127.0.0.1:{server.port}", "region": "eu-central-1", "timeout": "1s", **DYNAMO_ACCOUNT}
        yield Sink(
            connector=connector,
            refused={**connector, "aws_access_key_id": "a-b!"},
            reason="the server rejects aws_access_key_id or aws_secret_access_key",
            parameters={"table": "rows", "template": '{"w": ${w}, "n": ${n}}'},
            read=read,
            typed={"table": "typed", "undefined_vars_as_null": True},
            stored=lambda: {name: value for name, value in scanned(client, "typed")[0].items() if name not in ("timestamp", "d")},
            shown={
                "i": {"N": str(INTEGER)}, "f": {"N": str(FLOAT)}, "t": {"S": TEXT}, "b": {"B": b"\x00\xff"}, "gone": {"NULL": True},
            },
            measured={"table": "measured"},
            server=server,
            prepare=prepare,
            forgets=True,
        )  # fmt: skip


@contextmanager
def _s3(where: Path) -> Iterator[Sink]:
    """moto_server in memory, a stand-in that accepts any account."""
    with s3_server() as server:
        client = s3_client(server.port)

        def lines(key: str) -> list[Any]:
            return [json.loads(line) for name, one in objects(client).items() if name.startswith(key) for line in one.splitlines()]

        def aggregated(key: str) -> dict[str, Any]:
            return {"bucket": BUCKET, "key": key, "mode": "aggregated", "aggregation": {"time_interval": "200ms"}}

        def stored() -> Any:
            return {name: value for name, value in lines("typed")[0].items() if name in (*"iftb", "gone")}

        connector = {"host": "127.0.0.1", "port": server.port, "tls": False, "timeout": "1s", **S3_ACCOUNT}
        yield Sink(
            connector=connector,
            refused={**connector, "port": 1},
            reason="connection refused",
            parameters=aggregated("rows/${action}"),
            read=lambda: [(one["w"], one["n"]) for one in lines("rows")],
            typed=aggregated("typed"),
            stored=stored,
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": {"$bytes": "AP8="}, "gone": "undefined"},
            measured=aggregated("measured"),
            server=server,
            forgets=True,
            rewinds=False,
        )


# --- messages of other brokers ----------------------------------------------------------------------------------------------------


@contextmanager
def _pulsar(where: Path) -> Iterator[Sink]:
    with pulsar_server() as server:
        connector = {"servers": [server.url], "token": token_of("admin"), "timeout": "1s"}
        stored: list[Any] = []

        def read() -> Rows:
            """Reads what is new."""
            stored.extend(server.messages("rows", stored[-1] if stored else None))
            return [(one["w"], one["n"]) for one in (json.loads(message.data()) for message in stored)]

        def typed() -> Any:
            (message,) = server.messages("typed")
            return {"key": message.partition_key(), "b": message.properties()["b"], **json.loads(message.data())}

        def parameters(topic: str, **more: Any) -> dict[str, Any]:
            return {"pulsar_topic": f"{NAMESPACE}/{topic}", "max_batch_bytes": "64KB", **more}

        value = '{"i": ${i}, "f": ${f}, "t": "${t}", "gone": "${gone}"}'
        rows = parameters("rows", message={"key": "${w}", "value": '{"w": ${w}, "n": ${n}, "x": "' + "${x}" * REPEATED + '"}'})
        yield Sink(
            connector=connector,
            refused={**connector, "token": token_of("admin")[:-4]},
            reason="the server rejects username, password or token",
            parameters=rows,
            once=rows,
            read=read,
            typed=parameters("typed", message={"key": "${d}", "value": value}, properties={"b": "${t}", "gone": "${gone}"}),
            stored=typed,
            shown={"key": "d-1", "b": TEXT, "i": INTEGER, "f": FLOAT, "t": TEXT, "gone": "undefined"},
            measured=parameters("measured", message={"key": "${clientid}", "value": "${payload}"}, max_batch_bytes="200KB"),
            server=server,
            keyed=False,
        )


@contextmanager
def _kafka(where: Path) -> Iterator[Sink]:
    """Rows of a key have an order, and a repeat after a rewind is a record of its own."""
    with kafka() as broker:
        broker.create("measured", partitions=12)
        broker.create("rows", "typed", **{"max.message.bytes": "10000"})
        login = {"mechanism": "scram_sha_256", **KAFKA_ACCOUNT, "timeout": "1s"}
        connector = {"bootstrap_hosts": f"127.0.0.1:{broker.login_port}", **login}
        message = {"key": "${w}", "value": '{"w":${w},"n":${n},"x":"${x}"}'}
        rows = {"topic": "rows", "message": message, "partition_strategy": "key_dispatch", "max_batch_bytes": "8KB"}

        def read() -> Rows:
            return [(one["w"], one["n"]) for one in (json.loads(record.value) for record in broker.records("rows"))]

        def stored() -> Any:
            (record,) = broker.records("typed")
            return {name: value for name, value in json.loads(record.value).items() if name not in ("timestamp", "d")}

        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="the server rejects username or password",
            parameters=rows,
            once=rows,
            read=read,
            typed={"topic": "typed"},
            stored=stored,
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": {"$bytes": "AP8="}, "gone": "undefined"},
            measured={"topic": "measured", "partition_strategy": "key_dispatch"},
            server=broker,
            keyed=False,
        )


# --- time series ------------------------------------------------------------------------------------------------------------------


def _points(server: InfluxServer, database: str, value: str) -> dict[str, Callable[[], Any]]:
    """Reads the measurements `rows` and `last`, whose points have the tag w."""

    def read(measurement: str) -> Rows:
        return [(int(one["w"]), int(one[value])) for one in influx(server.port, f"SELECT w, {value} FROM {measurement}", database)]

    return {"read": lambda: read("rows"), "last": lambda: dict(read("last"))}


@contextmanager
def _influxdb(where: Path) -> Iterator[Sink]:
    with influxdb_server(with_login=True) as server:
        login = {"username": "writer", "password": INFLUX_PASSWORD, "timeout": "1s", "influxdb_type": "influxdb_api_v1"}
        connector = {"server": f"127.0.0.1:{server.port}", **login}
        rows = "rows,w=${w} n=${n}i,x=${x} ${at}\nlast,w=${w} n=${n}i 1"

        def stored() -> Any:
            types = {one["fieldKey"]: one["fieldType"] for one in influx(server.port, "SHOW FIELD KEYS FROM typed")}
            (point,) = influx(server.port, "SELECT * FROM typed")
            return {name: (value, types[name]) for name, value in point.items() if name in types}

        yield Sink(
            connector=connector,
            refused={**connector, "password": "wrong"},
            reason="the server rejects username, password or token",
            parameters={"write_syntax": rows},
            typed={"write_syntax": "typed i=${i}i,f=${f},t=${t},b=${b},gone=${gone}"},
            stored=stored,
            shown={"i": (INTEGER, "integer"), "f": (FLOAT, "float"), "t": (TEXT, "string"), "b": ("\x00\ufffd", "string")},
            measured={"write_syntax": "measured,client=${clientid},topic=${topic} payload=${payload},qos=${qos}i ${timestamp}"},
            server=server.service,
            **_points(server, "mqtt", "n"),
        )


@contextmanager
def _opents(where: Path) -> Iterator[Sink]:
    """InfluxDB's listener for the protocol answers some milliseconds before its points are stored, so a kill may lose them."""
    with influxdb_server() as server:
        connector = {"server": f"127.0.0.1:{server.opentsdb_port}", "timeout": "1s"}
        tags = {"w": "${w}"}
        rows = [
            {"metric": "rows", "tags": {**tags, "x": "${x}"}, "value": "${n}", "timestamp": "${at}"},
            {"metric": "last", "tags": tags, "value": "${n}", "timestamp": 1_700_000_000},
        ]
        typed = [{"metric": f"typed.{name}", "tags": {"d": "${d}", "gone": "${gone}"}, "value": f"${{{name}}}"} for name in "if"]

        def stored() -> Any:
            found = influx(server.port, "SELECT * FROM /typed/", "opentsdb")
            return {one["_name"]: {name: one[name] for name in one if name not in ("_name", "time")} for one in found}

        yield Sink(
            connector=connector,
            refused={**connector, "server": "127.0.0.1:1"},
            reason="connection refused",
            parameters={"data": rows},
            typed={"data": typed},
            stored=stored,
            shown={"typed.i": {"d": "d-1", "value": float(INTEGER)}, "typed.f": {"d": "d-1", "value": FLOAT}},
            measured={
                "data": [
                    {
                        "metric": "measured",
                        "tags": {"client": "${clientid}", "topic": "${topic}"},
                        "value": "${qos}",
                        "timestamp": "${timestamp}",
                    }
                ]
            },
            server=server.service,
            forgets=True,
            **_points(server, "opentsdb", "value"),
        )


# --- MQTT -------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _mqtt(where: Path) -> Iterator[Sink]:
    """Another broker of this kind, whose messages a rule writes to a file. Logins are tested against mosquitto (test_mqtt.py)."""
    with Far(where / "far", settings={"mqtt.max_awaiting_rel": 1000}) as far:
        connector = {"server": far.server, "proto_ver": "v5", "timeout": "1s"}

        def stored() -> Any:
            (payload,) = until(lambda: [payload for topic, payload in far.seen().messages if topic == "far/typed"])
            return {name: value for name, value in json.loads(payload).items() if name in (*"iftb", "gone")}

        yield Sink(
            connector=connector,
            refused={**connector, "server": "127.0.0.1:1"},
            reason="connection refused",
            parameters={"topic": "far/${x}", "payload": '{"w": ${w}, "n": ${n}}', "qos": 2, "retain": False},
            read=lambda: far.seen().rows,
            typed={"topic": "far/typed", "payload": "", "qos": 1, "retain": False},
            stored=stored,
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": {"$bytes": "AP8="}, "gone": "undefined"},
            measured={"topic": "far/measured", "qos": 1, "retain": False},
            server=far,
            rewinds=False,
        )


# --- HTTP, files ------------------------------------------------------------------------------------------------------------------


@contextmanager
def _http(where: Path) -> Iterator[Sink]:
    with Service(where) as service:
        connector = {"url": service.url, "timeout": "1s"}

        def bodies(path: str) -> list[Any]:
            return [json.loads(request["body"]) for request in service.requests() if request["path"] == path]

        yield Sink(
            connector=connector,
            refused={**connector, "url": "http://127.0.0.1:1"},
            reason="connection refused",
            parameters={"path": "/rows", "batch": True},
            read=lambda: [(row["w"], row["n"]) for body in bodies("/rows") for row in body],
            typed={"path": "/typed", "body": '{"i": ${i}, "f": ${f}, "t": "${t}", "b": ${b}, "gone": ${gone}}'},
            stored=lambda: bodies("/typed")[0],
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": {"$bytes": "AP8="}, "gone": None},
            measured={"path": "/measured", "batch": True},
            server=service,
            keyed=False,
        )


@contextmanager
def _disk_log(where: Path) -> Iterator[Sink]:
    with small_disk(where / "disk") as disk:
        path = where / "disk" / "rows.log"

        def text() -> str:
            return path.read_text() if path.exists() else ""

        def stored() -> Any:
            (line,) = [line for line in text().splitlines() if line.startswith("{")]
            return {name: value for name, value in json.loads(line).items() if name in "iftb" or name == "gone"}

        connector = {"filepath": str(path), "max_file_size": "1GB"}
        yield Sink(
            connector=connector,
            refused={**connector, "filepath": "/etc/passwd"},
            reason="must be new, or written by disk_log before",
            parameters={"template": "${w} ${n}"},
            read=lambda: _pairs(text()),
            typed={},
            stored=stored,
            shown={"i": INTEGER, "f": FLOAT, "t": TEXT, "b": {"$bytes": "AP8="}, "gone": "undefined"},
            measured={},
            server=disk,
            keyed=False,
        )


KINDS = {
    "cassandra": Kind(_cassandra, {"w": None}),
    "disk_log": Kind(_disk_log, None),
    "dynamo": Kind(_dynamo, {"w": "text"}),
    "http": Kind(_http, {"x": "poison"}),
    "influxdb": Kind(_influxdb, {"x": "text"}),
    "kafka": Kind(_kafka, {"x": "y" * 12_000}),
    "mongodb": Kind(_mongodb, {"n": 3}),
    "mqtt": Kind(_mqtt, {"x": "#"}),
    "mysql": Kind(_mysql, {"x": 13}),
    "opents": Kind(_opents, {"x": "no tag"}),
    "pgsql": Kind(_pgsql, {"x": 13}),
    "pulsar": Kind(_pulsar, {"x": "x" * 10_000}),
    "rabbitmq": Kind(_rabbitmq, {"x": 13}),
    "redis": Kind(_redis, {"x": "poison"}),
    "s3": Kind(_s3, None),
    "timescale": Kind(_timescale, {"x": 13}),
}
"""The types by name. Poison rows are rejected by the server, but for `opents` and `mqtt`, where the driver does, and for `pulsar`,
whose library rejects what the server has named as too large."""
