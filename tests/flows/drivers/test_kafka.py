"""The driver of Kafka against Kafka; records are read back by the library's own consumer."""

import asyncio
import base64
import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from aiokafka.partitioner import murmur2

from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, checked, from_emqx
from shardbroker.config.sinks.kafka import KafkaAction, KafkaConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers import kafka_cursors
from shardbroker.flows.drivers.kafka import connect, make
from shardbroker.flows.drivers.kafka_records import key_hash
from shardbroker.flows.sinks.driver import Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED
from tests.edge.certificates import Authority
from tests.flows.drivers.core import written_at_last
from tests.flows.drivers.delivery import Outage, deliver, opened, run, some_rows
from tests.servers.kafka import ACCOUNT, KafkaBroker, kafka
from tests.servers.processes import folder

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 2.0
NUMBERS = iter(range(10_000))
KEYED = {"partition_strategy": "key_dispatch", "message": {"key": "${topic}", "value": "${n}"}}


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaBroker]:
    with kafka() as one:
        yield one


def connector(server: KafkaBroker | None = None, **more: Any) -> Any:
    hosts = [server.address if server is not None else "127.0.0.1:1"]
    return connect(KafkaConnector.model_validate({"bootstrap_hosts": hosts, "timeout": TIMEOUT_S, **more}), "connectors.kafka.x")


def driver(over: Any, topic: str, key: str = "", **more: Any) -> Any:
    made = make(KafkaAction.model_validate({"parameters": {"topic": topic, **more}}), over, "kafka:rows")
    if hasattr(made, "cursor_key"):
        made.cursor_key = key or f"o/n1/kafka:rows{next(NUMBERS)}"
    return made


def topic(server: KafkaBroker, partitions: int = 4, **settings: str) -> str:
    name = f"t{next(NUMBERS)}"
    server.create(name, partitions=partitions, **settings)
    return name


def row(position: int = 5, **values: Any) -> Row:
    return Row("0", position, "c", values, "1F", "n1", at_ms=1_700_000_000_123)


def write(over: Any, one: Any, *batches: Sequence[Row]) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        try:
            await opened(one)
            return [tuple(failure) for rows in batches for failure in sorted(await one.write(rows))]
        finally:
            await one.close()

    return run(scenario(), over)  # type: ignore[no-any-return]


def probe(over: Any, one: Any = None) -> str:
    async def scenario() -> str:
        try:
            await (one or over).probe()
        except Exception as error:
            return str(error)
        return ""

    return run(scenario(), over)  # type: ignore[no-any-return]


# --- records ------------------------------------------------------------------------------------------------------------------


def test_the_hash_of_a_key_is_that_of_java() -> None:
    for number in range(300):
        key = random.randbytes(number)
        assert key_hash(key) == murmur2(key) & 0x7FFFFFFF


def test_a_row_as_emqx_writes_it(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server)
    one = row(clientid="c1", topic="a/b", timestamp=1_700_000_000_000, n=2**53 + 1, f=0.1, b=b"\xff")
    assert write(over, driver(over, name), [one]) == []
    (found,) = server.records(name)
    assert (found.key, found.timestamp, found.timestamp_type, found.headers) == (b"c1", 1_700_000_000_000, 0, ())
    assert json.loads(found.value) == {**one.values, "b": {"$bytes": "/w=="}}


def test_templates_headers_and_missing_fields(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server)
    one = driver(
        over,
        name,
        message={"key": "${gone}", "value": "<${payload}> ${gone}", "timestamp": "${late}"},
        kafka_headers="${props}",
        kafka_ext_headers=[{"kafka_ext_header_key": "of-${k}", "kafka_ext_header_value": "v ${k}"}],
    )
    rows = [
        row(payload=b"\x00\xff", late="x", props={"a": "1", "b": b"\x02", "c": 3, "": "no"}, k="kind"),
        row(payload="grün", late="1700000000001", props=[{"key": "a", "value": "1"}, {"key": "a", "value": "2"}, 7], k=1.5),
        row(payload=UNDEFINED, props=UNDEFINED, k=UNDEFINED),
    ]
    assert write(over, one, rows) == []
    first, second, third = sorted(server.records(name), key=lambda one: one.offset)
    assert (first.key, first.value, first.timestamp) == (None, b"<\x00\xff> ", 1_700_000_000_123)
    assert first.headers == (("a", b"1"), ("b", b"\x02"), ("of-kind", b"v kind"))
    assert (second.value, second.timestamp) == ("<grün> ".encode(), 1_700_000_000_001)
    assert second.headers == (("a", b"1"), ("a", b"2"), ("of-1.5", b"v 1.5"))
    assert (third.value, third.headers) == (b"<> ", (("of-", b"v "),))


def test_headers_as_json(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server)
    ext = [{"kafka_ext_header_key": "m", "kafka_ext_header_value": "${m}"}]
    one = driver(over, name, kafka_headers="${props}", kafka_ext_headers=ext, kafka_header_value_encode_mode="json")
    assert write(over, one, [row(props={"a": "x", "n": 3}, m={"deep": [1]})]) == []
    assert server.records(name)[0].headers == (("a", b'"x"'), ("n", b"3"), ("m", b'{"deep":[1]}'))


def test_partitions_by_key_and_at_random(server: KafkaBroker) -> None:
    over, name, other = connector(server), topic(server, 12), topic(server, 12)
    rows = some_rows(2000, lambda number: {"k": f"k{number % 97}"})
    assert write(over, driver(over, name, partition_strategy="key_dispatch", message={"key": "${k}", "value": "${n}"}), rows) == []
    found = server.records(name)
    assert all(one.partition == (murmur2(one.key) & 0x7FFFFFFF) % 12 for one in found)
    for key in {one.key for one in found}:
        numbers = [int(one.value) for one in found if one.key == key]
        assert numbers == sorted(numbers)
    assert write(over, driver(over, other, partitions_limit=2), *([one] for one in rows[:40])) == []
    assert {one.partition for one in server.records(other)} == {0, 1}


@pytest.mark.parametrize("compression", ["no_compression", "gzip", "snappy", "lz4", "zstd"])
def test_compression(server: KafkaBroker, compression: str) -> None:
    over, name = connector(server), topic(server, 1)
    one = driver(over, name, compression=compression, max_batch_bytes="64KB", message={"value": "${n}" + "x" * 300})
    assert write(over, one, some_rows(1000)) == []
    assert [int(found.value.rstrip(b"x")) for found in server.records(name)] == list(range(1000))


@pytest.mark.parametrize("acks", ["all_isr", "leader_only", "none"])
def test_acks(server: KafkaBroker, acks: str) -> None:
    """Without acknowledgements the connection stays open until all is there: its end may lose what is on the way."""
    over, name = connector(server), topic(server)

    async def scenario() -> None:
        one = await opened(driver(over, name, required_acks=acks))
        assert not await one.write(some_rows(100))
        while len(await server.read(name)) < 100:
            await asyncio.sleep(0.1)
        await one.close()

    run(scenario(), over)


# --- rows that fail -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("name_of", ["no-such-topic", "a b", "..", "", "ü", "x" * 250])
def test_a_topic_of_a_row_that_does_not_exist_fails_the_row(server: KafkaBroker, name_of: str, once: bool) -> None:
    over, name = connector(server), topic(server)
    rows = [row(5, t=name), row(6, t=name_of), row(7, t=name)]
    ((at, reason, again),) = write(over, driver(over, "${t}", exactly_once=once), rows)
    assert (at, again, len(server.records(name))) == (1, False, 2)
    must = "topic: must be 1 to 249 letters, digits, `.`, `_` and `-`, got another text"
    assert reason == ("topic: there is no topic" if name_of == "no-such-topic" else must)


def test_a_topic_that_is_created_later_is_found(server: KafkaBroker) -> None:
    over = connector(server)
    one = driver(over, name := f"later{next(NUMBERS)}")
    error = f"{server.address}: there is no topic '{name}'"
    assert probe(over, one) == error
    with pytest.raises(Unusable, match=error):
        write(over, one, [row()])
    assert not one._unknown
    server.create(name)
    assert write(connector(server), driver(connector(server), name), [row()]) == []


def test_a_topic_that_is_deleted_is_not_retried_for_ever(server: KafkaBroker) -> None:
    over, name, other = connector(server), topic(server, 1), topic(server, 1)

    async def scenario() -> Any:
        one = await opened(driver(over, "${t}"))
        try:
            assert not await one.write([row(t=name), row(t=other)])
            await asyncio.to_thread(server.delete, name)
            await asyncio.sleep(1)
            return await deliver(one, [row(5, t=name), row(6, t=other)])
        finally:
            await one.close()

    done = run(scenario(), over)
    assert [(one.position, reason) for one, reason in done.failed] == [(5, "topic: there is no topic")]
    assert len(server.records(other)) >= 2


@pytest.mark.parametrize("once", [False, True])
def test_poison_among_ten_thousand_rows_fails_alone(server: KafkaBroker, once: bool) -> None:
    over, name = connector(server), topic(server, 1, **{"max.message.bytes": "100000"})
    rows = some_rows(10_000)
    rows[6_666].values["n"] = "x" * 200_000
    one = driver(over, name, message={"key": "${clientid}", "value": "${n}"}, max_batch_bytes="64KB", exactly_once=once)

    async def scenario() -> Any:
        try:
            return await deliver(await opened(one), rows)
        finally:
            await one.close()

    done = run(scenario(), over)
    assert [(failed.position, reason) for failed, reason in done.failed] == [
        (6_666, "the record is larger than max.message.bytes of the topic")
    ]
    assert [int(found.value) for found in server.records(name)] == [n for n in range(10_000) if n != 6_666]


def test_a_compacted_topic_rejects_a_row_without_a_key(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server, 1, **{"cleanup.policy": "compact"})
    failures = write(over, driver(over, name), [row(1, clientid="a"), row(2), row(3, clientid="b")])
    assert failures == [(1, "the topic rejects the record, as one without a key where it is compacted", False)]
    assert [one.key for one in server.records(name)] == [b"a", b"b"]


def test_a_timestamp_that_the_topic_does_not_allow_fails_the_row(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server, 1, **{"message.timestamp.before.max.ms": "1000"})
    now = time.time_ns() // 1_000_000
    failures = write(over, driver(over, name), [row(timestamp=now + 60_000), row(timestamp=1)])
    assert failures == [(1, "the timestamp is not within message.timestamp.before.max.ms and after.max.ms of the topic", False)]
    assert len(server.records(name)) == 1


# --- servers that stop ------------------------------------------------------------------------------------------------------------


def expected(rows: Sequence[Row]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for one in rows:
        found.setdefault(one.values["topic"].encode(), []).append(one.values["n"])
    return found


def by_key(server: KafkaBroker, name: str) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for one in server.records(name):
        found.setdefault(one.key, []).append(int(one.value))
    return found


def outages(server: KafkaBroker) -> tuple[Outage, Outage]:
    return Outage(5, server.pause, server.resume, 6.0), Outage(12, server.kill, server.start, 3.0)


def test_a_server_that_stops_and_is_killed_gets_each_row_once(server: KafkaBroker) -> None:
    """The same producer goes on, so Kafka drops what it has already."""
    over, name = connector(server), topic(server)
    rows = some_rows(20_000)
    both = outages(server)

    async def scenario() -> Any:
        one = driver(over, name, **KEYED)
        try:
            return await deliver(await opened(one), rows, after=lambda batch: [outage(batch) for outage in both])
        finally:
            await one.close()

    done = run(scenario(), over)
    for outage in both:
        outage.join()
    assert not done.failed and not done.attempts
    assert by_key(server, name) == expected(rows)


def test_a_server_that_stops_and_is_killed_has_each_row_exactly_once(server: KafkaBroker) -> None:
    """A batch has 4 s here, less than the server is stopped, so that its outcome is not known and a new producer looks it up."""
    over, name = connector(server), topic(server)
    rows = some_rows(20_000)
    both = outages(server)
    lost: list[Exception] = []

    async def scenario() -> None:
        one = await opened(driver(over, name, exactly_once=True, **KEYED))
        for batch in range(20):
            assert await written_at_last(one, rows[1000 * batch : 1000 * (batch + 1)], lost.append) == {}
            for outage in both:
                outage(batch)
        await one.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_cursors, "DELIVERY_S", 4.0)
        run(scenario(), over)
    for outage in both:
        outage.join()
    assert lost
    assert by_key(server, name) == expected(rows)


# --- exactly once -----------------------------------------------------------------------------------------------------------------


def test_positions_are_kept_and_rows_that_are_there_are_not_written(server: KafkaBroker) -> None:
    over, name = connector(server), topic(server)
    rows = some_rows(100)

    async def scenario() -> None:
        one = await opened(driver(over, name, "o/n1/kafka:kept", exactly_once=True, **KEYED))
        assert await one.stored() == {}
        assert not await one.write(rows[:60])
        with pytest.raises(ConnectorError, match="is beyond position 59: the last batch was written after all"):
            await one.write(rows[59:])
        await one.open()
        assert await one.stored() == {"0": 60}
        other = await opened(driver(over, name, "o/n1/kafka:other", exactly_once=True, **KEYED))
        assert await other.stored() == {}
        again = await opened(driver(over, name, "o/n1/kafka:kept", exactly_once=True, **KEYED))
        assert await again.stored() == {"0": 60}
        assert not await again.write(rows[60:])
        with pytest.raises(ConnectorError):  # the one before is fenced off
            await one.write(rows[60:])
        for each in (one, other, again):
            await each.close()

    run(scenario(), over)
    assert by_key(server, name) == expected(rows)


def test_a_transaction_without_its_commit_is_undone(server: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    over, name = connector(server), topic(server)
    rows = some_rows(100)

    async def scenario() -> None:
        one = await opened(driver(over, name, "o/n1/kafka:undone", exactly_once=True, **KEYED))
        lane = await one._begin("0")
        await lane.producer.begin_transaction()
        failures: list[Any] = []
        parts = await one._parts(lane.producer, rows, failures)
        for where, records in parts.items():
            await one._write(lane.producer, where, [records])
        await one._write_position(lane.producer, "0", 100)
        other = driver(over, name, "o/n1/kafka:undone", exactly_once=True, **KEYED)
        monkeypatch.setattr(kafka_cursors, "READ_S", 1.0)
        with pytest.raises(ConnectorError, match="has a transaction that does not end"):
            await opened(other)
        await one.close()
        third = driver(over, name, "o/n1/kafka:undone", exactly_once=True, **KEYED)
        await third._make_topic()
        assert not await third.write(rows), "what the first one has left is undone as the next one begins"
        await third.close()

    run(scenario(), over)
    assert by_key(server, name) == expected(rows)
    assert len(server.records(name, "read_uncommitted")) == 200


# --- logins and settings ----------------------------------------------------------------------------------------------------------


def login(server: KafkaBroker, mechanism: str, **more: Any) -> Any:
    hosts = [f"127.0.0.1:{server.login_port}"]
    return connector(server, bootstrap_hosts=hosts, mechanism=mechanism, **{**ACCOUNT, **more})


@pytest.mark.parametrize("mechanism", ["plain", "scram_sha_256", "scram_sha_512"])
@pytest.mark.parametrize("once", [False, True])
def test_logins(server: KafkaBroker, mechanism: str, once: bool) -> None:
    name = topic(server)
    over = login(server, mechanism)
    assert write(over, driver(over, name, exactly_once=once), some_rows(10)) == []
    assert len(server.records(name)) == 10
    for wrong in ({"password": "wrong"}, {"username": "other"}):
        assert probe(login(server, mechanism, **wrong)) == f"127.0.0.1:{server.login_port}: the server rejects username or password"


class _TokenService(BaseHTTPRequestHandler):
    """A stand-in for an OAuth service: its tokens have no signature, which the test's Kafka accepts."""

    forms: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.forms.append((form, self.headers["Authorization"]))
        is_right = self.headers["Authorization"] == "Basic " + base64.b64encode(b"mqtt:dbsecret").decode()
        parts = [{"alg": "none"}, {"sub": "mqtt", "iat": int(time.time()) - 1, "exp": int(time.time()) + 600}]
        token = ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts) + "."
        body = json.dumps({"access_token": token if "mute" not in form else 7, "expires_in": 600}).encode()
        self.send_response(200 if is_right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *ignored: object) -> None:
        """Keeps the output of the test clean."""


def test_tokens_of_an_oauth_service(server: KafkaBroker) -> None:
    name = topic(server)
    with ThreadingHTTPServer(("127.0.0.1", 0), _TokenService) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}/token"
        over = login(server, "oauthbearer", token_url=url, scope="kafka all")
        assert write(over, driver(over, name), some_rows(10)) == []
        assert {form for form, _ in _TokenService.forms} == {"grant_type=client_credentials&scope=kafka+all"}
        assert len(_TokenService.forms) == 1, "a token is used for all connections"
        refused = probe(login(server, "oauthbearer", token_url=url, password="wrong"))
        assert refused == "token_url: the service has answered with status 401"
        mute = probe(login(server, "oauthbearer", token_url=url, scope="mute"))
        assert mute == "token_url: the access_token is not text of printable ASCII"
        service.shutdown()
    assert len(server.records(name)) == 10
    gone = probe(login(server, "oauthbearer", token_url=url))
    assert "connection refused" in gone


def test_a_server_that_does_not_answer_is_passed_over(server: KafkaBroker) -> None:
    """A socket that accepts connections and nothing else takes the whole timeout; the next attempt begins with the next server."""
    name = topic(server)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = [f"127.0.0.1:{mute.getsockname()[1]}", server.address]
        over = connector(server, bootstrap_hosts=hosts, timeout=0.5)

        async def scenario() -> None:
            with pytest.raises(ConnectorError, match="no response in time"):
                await over.probe()
            one = await opened(driver(over, name))
            assert not await one.write(some_rows(10))
            await one.close()

        run(scenario(), over)
    assert len(server.records(name)) == 10


TLS = """
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={certificate}
listener.name.secure.ssl.truststore.type=PEM
listener.name.secure.ssl.truststore.location={authority}
listener.name.secure.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:CN=client
"""


def test_tls_and_rights() -> None:
    """Clients need a certificate of the authority; one with a login has no right for any topic."""
    with folder() as where:
        ours, other = Authority(where, "ours"), Authority(where, "other")
        certificate = ours.issue("server", "server", ("127.0.0.1",))
        client = ours.issue("client", "client", ("client",))
        with kafka(TLS.format(certificate=certificate, authority=ours.cafile)) as server:
            address = f"127.0.0.1:{server.secure_port}"
            tls = {"bootstrap_hosts": [address], "tls": True, "tls_ca": str(ours.cafile), "tls_cert": str(client)}
            name = topic(server)
            for once in (False, True):
                over = connector(server, **tls)
                assert write(over, driver(over, name, exactly_once=once), some_rows(100)) == []
            assert len(server.records(name)) == 200
            refused = f"{address}: the certificate of the server is not accepted: "
            unknown = probe(connector(server, **tls | {"tls_ca": str(other.cafile)}))
            assert unknown == f"{refused}unable to get local issuer certificate"
            assert probe(connector(server, **tls | {"tls_cert": ""})).startswith(f"{address}: ")
            assert probe(connector(server, bootstrap_hosts=[address])).startswith(f"{address}: ")
            over = login(server, "plain")
            where_it_is = f"127.0.0.1:{server.login_port}"
            assert probe(over, driver(over, name)) == f"{where_it_is}: the account has no right for the topic '{name}'"
            over = login(server, "plain")
            failures = write(over, driver(over, "${t}", idempotent=False), [row(t=name)])
            assert failures == [(0, "topic: the account has no right for the topic", False)]


def test_probes_explain_what_is_wrong(server: KafkaBroker) -> None:
    assert probe(connector(server)) == ""
    assert probe(connector()) == "127.0.0.1:1: connection refused"
    without = probe(connector(server, bootstrap_hosts=[f"127.0.0.1:{server.login_port}"]))
    assert without == f"127.0.0.1:{server.login_port}: the connection was closed, as it does if it expects TLS or a login"
    other = probe(connector(server, mechanism="plain", **ACCOUNT))
    assert other == f"{server.address}: the server has no login by mechanism plain"
    assert probe(connector(server, tls=True)).startswith(f"{server.address}: the connection was closed")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"bootstrap_hosts": []}, "connectors.kafka.x.bootstrap_hosts: must be a list of HOST:PORT, got []"),
        ({"mechanism": "plain"}, "connectors.kafka.x.username: must be text, as mechanism is plain, got ''"),
        ({"username": "u"}, "connectors.kafka.x.mechanism: must be plain or another one, as there is username, got 'none'"),
        (
            {"mechanism": "oauthbearer", **ACCOUNT},
            "connectors.kafka.x.token_url: must be a URL, as mechanism is oauthbearer, got ''",
        ),
    ],
)
def test_settings_of_a_connector_that_are_wrong(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConnectionSettingError) as caught:
        connector(**settings)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"topic": "a b"}, "topic: must be 1 to 249 letters, digits, `.`, `_` and `-`, or a template of such a name, got 'a b'"),
        ({"topic": ""}, "topic: must be 1 to 249 letters, digits, `.`, `_` and `-`, or a template of such a name, got ''"),
        ({"partitions_limit": 0}, "partitions_limit: must be all_partitions or 1 to 100000, got 0"),
        ({"kafka_headers": "x"}, "kafka_headers: must be one placeholder such as ${pub_props}, got 'x'"),
        ({"exactly_once": True, "required_acks": "none"}, "required_acks: must be all_isr with exactly_once, got none"),
    ],
)
def test_parameters_that_are_wrong(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError) as caught:
        driver(connector(), **{"topic": "t", **parameters})
    assert str(caught.value) == f"kafka:rows: parameters.{error}"


def test_keys_of_emqx() -> None:
    given = {
        "bootstrap_hosts": "a:9093, b", "connect_timeout": "5s", "min_metadata_refresh_interval": "3s", "health_check_topic": "t",
        "metadata_request_timeout": "5s", "socket_opts": {"sndbuf": "1MB", "nodelay": True},
        "authentication": {"mechanism": "scram_sha_512", "username": "u", "password": "p"},
        "ssl": {"enable": True, "verify": "verify_none", "cacertfile": "ca.pem"}, "resource_opts": {"health_check_interval": "15s"},
    }  # fmt: skip
    model = checked(CONNECTORS, "kafka", from_emqx(CONNECTORS, "kafka", given))
    assert model.bootstrap_hosts == ["a:9093", "b:9092"]
    assert (model.mechanism, model.username, model.password) == ("scram_sha_512", "u", "p")
    assert (model.tls, model.tls_ca, model.tls_verify) == (True, "ca.pem", False)
    assert from_emqx(CONNECTORS, "kafka", {"bootstrap_hosts": "a:1", "authentication": "none"}) == {"bootstrap_hosts": "a:1"}
    with pytest.raises(ValueError, match="kerberos_principal"):
        kerberos = {"kerberos_principal": "p", "kerberos_keytab_file": "f"}
        checked(CONNECTORS, "kafka", from_emqx(CONNECTORS, "kafka", {"bootstrap_hosts": "a:1", "authentication": kerberos}))
    action = {
        "connector": "main",
        "parameters": {
            "topic": "t", "message": {"key": "${.clientid}", "value": "${.}", "timestamp": "${.timestamp}"},
            "max_linger_time": "0ms", "max_linger_bytes": "10MB", "max_batch_bytes": "896KB", "compression": "snappy",
            "partition_strategy": "key_dispatch", "required_acks": "leader_only", "kafka_headers": "${pub_props}",
            "kafka_ext_headers": [{"kafka_ext_header_key": "k", "kafka_ext_header_value": "v"}],
            "partitions_limit": "all_partitions",
            "kafka_header_value_encode_mode": "json", "partition_count_refresh_interval": "60s", "max_inflight": 10,
            "buffer": {"mode": "disk", "per_partition_limit": "2GB", "segment_bytes": "100MB", "memory_overload_protection": True},
            "query_mode": "async", "sync_query_timeout": "5s",
        },
        "resource_opts": {"health_check_interval": "15s"},
    }  # fmt: skip
    parameters = checked(ACTIONS, "kafka", from_emqx(ACTIONS, "kafka", action)).parameters
    assert (parameters.max_batch_bytes, parameters.compression, parameters.required_acks) == (896 << 10, "snappy", "leader_only")
    make(KafkaAction.model_validate({"parameters": parameters.model_dump()}), connector(), "kafka:x")
