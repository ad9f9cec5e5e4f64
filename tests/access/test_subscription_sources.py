"""Subscriptions that databases have (`auto_subscribe.sources`), against the real servers and a stand-in for MongoDB."""

import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pymongo
import pytest

from shardbroker.control import Control
from tests.access import servers
from tests.access.guarded import Guarded
from tests.harness import Client
from tests.harness.broker import free_port
from tests.harness.waiting import stopped
from tests.harness.wire import Connack, Publish
from tests.servers.mongodb import mongodb
from tests.servers.processes import quietly
from tests.servers.redis import redis

pytestmark = pytest.mark.own_broker

UNAVAILABLE = 0x88
ROWS = [
    ("c1", "to/c1/#", 1), ("c1", "news", 2), ("c1", "$share/g/jobs", 1), ("c1", "wrong/#/x", 1), ("c1", "odd", 7),
    ("c2", "to/c2", 0),
]  # fmt: skip
EVIL = ["c1' OR '1'='1", "c1\\", "c1 x", "${username}", "c1'; DELETE FROM mqtt_sub; --", '{"$gt": ""}', "c*"]

SQL = "CREATE TABLE mqtt_sub (clientid VARCHAR(100), topic VARCHAR(100), qos INTEGER);" + "".join(
    f"INSERT INTO mqtt_sub VALUES ('{client}', '{topic}', {qos});" for client, topic, qos in ROWS
)


@contextmanager
def mongo() -> Iterator[int]:
    with mongodb([{"username": "ada"}], [{"username": "ada"}]) as port:
        with pymongo.MongoClient("127.0.0.1", port) as client:
            client.mqtt.mqtt_sub.insert_many(
                [{"clientid": client_id, "topic": topic, "qos": qos} for client_id, topic, qos in ROWS]
            )
        yield port


def hashes() -> AbstractContextManager[int]:
    return redis(*(["HSET", f"mqtt:sub:{client}", topic, str(qos)] for client, topic, qos in ROWS))


SERVERS: dict[str, tuple[Callable[[], AbstractContextManager[int]], str]] = {
    "postgresql": (lambda: servers.postgresql(SQL), 'username = "mqtt"'),
    "mysql": (lambda: servers.mariadb(SQL), 'username = "mqtt"\npassword = "dbsecret"'),
    "redis": (hashes, 'password = "dbsecret"'),
    "mongodb": (mongo, ""),
}


def keys_of(kind: str, port: int) -> str:
    return f'[auto_subscribe.{kind}]\nserver = "127.0.0.1:{port}"\n{SERVERS[kind][1]}\n'


@pytest.mark.parametrize("chain", [[], ["builtin"]])
@pytest.mark.parametrize("kind", list(SERVERS))
def test_a_client_has_its_subscriptions_once_it_is_connected(kind: str, chain: list[str]) -> None:
    with SERVERS[kind][0]() as port:
        settings = {"auto_subscribe.sources": [kind], "auth.chain": chain}
        login = {"username": "ada", "password": "secret"}
        with (
            Guarded(settings, secrets=keys_of(kind, port), users={"ada": "secret"}) as broker,
            broker.client("s", **login) as sender,
        ):
            for number in range(10):  # not after CONNACK now and then
                with broker.client("c1", **login) as c1, broker.client("c2", **login) as c2:
                    sender.publish("to/c1/x", b"%d" % number, 2)
                    sender.publish("to/c2", b"2", 2)
                    sender.publish("news", b"3", 2)
                    sender.publish("jobs", b"4", 2)
                    sender.publish("odd", b"5", 2)
                    got = {(one.topic, one.payload, one.qos) for one in c1.messages_from(sender, 2)}
                    assert got == {("to/c1/x", b"%d" % number, 1), ("news", b"3", 2), ("jobs", b"4", 1)}
                    assert [one.topic for one in c2.messages_from(sender, 2)] == ["to/c2"]
            broker.logged("backend failed", f"auto_subscribe.{kind}", "of a subscription")
            for name in EVIL:
                with broker.client(name, **login) as evil:
                    sender.publish("news", b"3", 2)
                    evil.expect_nothing_from(sender, 2)
            with broker.client("c1", **login) as c1:
                c1.unsubscribe("news")
                sender.publish("news", b"3", 2)
                c1.expect_nothing_from(sender, 2)


def test_a_source_that_fails() -> None:
    port = free_port()
    settings = {"auto_subscribe.sources": ["postgresql"], "auto_subscribe.timeout": "1s"}
    with Guarded(settings, secrets=keys_of("postgresql", port), workers=1) as broker:
        with broker.client("c1"):
            pass
        broker.logged("backend failed", "auto_subscribe.postgresql")
    for chain in ([], ["builtin"]):
        more = {**settings, "auto_subscribe.on_error": "deny", "auth.chain": chain}
        with Guarded(more, secrets=keys_of("postgresql", port), users={"a": "s"}, workers=1) as broker:
            broker.refused("c1", UNAVAILABLE, username="a", password="s")


def suspended(port: int) -> AbstractContextManager[None]:
    """The server on this port is stopped by SIGSTOP."""
    (pid,) = {one.pid for one in psutil.net_connections("tcp4") if one.status == "LISTEN" and one.laddr.port == port and one.pid}
    return stopped(pid)


def test_a_server_that_hangs_delays_its_own_clients_alone() -> None:
    with redis(["HSET", "mqtt:sub:c1", "news", "1"]) as port:
        settings = {"auto_subscribe.sources": ["redis"], "auto_subscribe.timeout": "2s"}
        with Guarded(settings, secrets=keys_of("redis", port), workers=1) as broker, broker.client("s") as sender:
            with broker.client("c1") as first:
                sender.publish("news", b"1", 1)
                first.expect(Publish, payload=b"1")
            with suspended(port), Client(broker.address, 5, "c1", connect=False) as waiting:
                waiting.send_raw(waiting._connect_packet)
                for _ in range(10):
                    sender.ping()
                assert not select.select([waiting.socket], [], [], 0.1)[0]  # no CONNACK yet
                assert waiting.expect(Connack).code == 0
                sender.publish("news", b"2", 1)
                waiting.expect_nothing_from(sender, 1)
            with broker.client("c1") as again:
                sender.publish("news", b"3", 1)
                again.expect(Publish, payload=b"3")


def test_subscriptions_that_a_source_no_longer_has() -> None:
    stay = {"clean": False, "properties": {"session_expiry_interval": 60}}
    with redis(["HSET", "mqtt:sub:c1", "a", "1", "b", "1"]) as port:
        settings = {
            "auto_subscribe.sources": ["redis"],
            "auto_subscribe.replace": "true",
            "auto_subscribe.topics": '[{topic = "every"}]',
        }
        with Guarded(settings, secrets=keys_of("redis", port)) as broker, broker.client("s") as sender:
            sender.publish("a", b"kept", 1, retain=True)
            with broker.client("c1", **stay) as c1:
                c1.expect(Publish, payload=b"kept")
                c1.subscribe("own", 1)
                sender.publish("own", b"1", 1)
                c1.expect(Publish, payload=b"1")
            quietly(["redis-cli", "-p", str(port), "-a", "dbsecret", "--no-auth-warning", "HDEL", "mqtt:sub:c1", "b"])
            with broker.client("c1", **stay) as c1:
                for topic in ("a", "b", "own", "every"):
                    sender.publish(topic, topic.encode(), 1)
                # The retained message was delivered with the new subscription alone.
                assert [one.payload for one in c1.messages_from(sender, 1)] == [b"a", b"every"]


def test_the_sources_are_changed_while_the_broker_runs() -> None:
    with (
        redis(["HSET", "mqtt:sub:c1", "news", "1"]) as port,
        Guarded({}, secrets=keys_of("redis", port)) as broker,
        broker.client("s") as sender,
    ):
        with broker.client("c1") as before:
            sender.publish("news", b"1", 1)
            before.expect_nothing_from(sender, 1)
        with Control(broker.data_dir) as control:
            assert "processes_behind" not in control.call("config set", key="auto_subscribe.sources", value='["redis"]')
        with broker.client("c1") as after:
            sender.publish("news", b"2", 1)
            after.expect(Publish, payload=b"2")
