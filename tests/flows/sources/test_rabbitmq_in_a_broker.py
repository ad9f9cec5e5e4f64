"""RabbitMQ in both directions over one broker: queue -> source -> messages and rules -> actions -> queues.

Nothing is missing after kills and stops of either side, and messages of a key keep their order.
"""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, until
from tests.harness.waiting import stopped
from tests.servers.rabbitmq import PASSWORD, USER, RabbitServer, rabbitmq_server

pytestmark = pytest.mark.own_broker
WORKERS, KEYS, NUMBERS = 2, 4, 1500
"""NUMBERS: messages of each key."""
OUT = ("published", "direct")
"""Queues of rows: of messages that the source has published, and of rules that name the source."""


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with rabbitmq_server() as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


def sections(server: RabbitServer) -> dict[str, dict[str, Any]]:
    login = {"server": f"127.0.0.1:{server.port}", "username": USER, "password": PASSWORD, "timeout": "2s", "heartbeat": "5s"}
    quick = {"health_check_interval": "500ms"}
    parameters = {"queue": "in", "prefetch": 500, "topic": "rabbit/${headers.key}"}
    out = {"connector": "main", "resource_opts": quick}
    return {
        "connectors.rabbitmq.main": login,
        "sources.rabbitmq.in": {"connector": "main", "parameters": parameters, "resource_opts": quick},
        **{f"actions.rabbitmq.{name}": {**out, "parameters": {"routing_key": name}} for name in OUT},
        "rules.published": {"sql": 'SELECT topic, payload.n AS n, clientid FROM "rabbit/#"', "actions": ["rabbitmq:published"]},
        "rules.direct": {
            "sql": "SELECT headers.key AS topic, payload.n AS n, routing_key, event FROM \"$bridges/rabbitmq:in\"",
            "actions": ["rabbitmq:direct"],
        },
    }


def prepare(server: RabbitServer) -> None:
    for queue in ("in", *OUT):
        server.declare(queue)
        server.request("DELETE", f"queues/%2F/{queue}/contents")


def fill(server: RabbitServer, numbers: range) -> None:
    for number in numbers:
        for key in range(KEYS):
            server.publish("in", json.dumps({"n": number}).encode(), headers={"key": f"k{key}"})


def source(broker: SinksBroker) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for figures in broker.all_figures():
        found |= figures.get("sources", {}).get("rabbitmq:in", {})
    return found


class Rows:
    """Rows of the queues, by queue and key, in order."""

    def __init__(self, server: RabbitServer) -> None:
        self._server = server
        self.all: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in OUT}
        self.last: dict[str, Any] = {}

    def missing(self, end: int) -> int:
        for name in OUT:
            for message in self._server.get(name):
                row = self.last = json.loads(message["payload"])
                self.all[name][row["topic"].rpartition("/")[2]].append(row["n"])
        return sum(end - len(set(numbers)) for keys in self.all.values() for numbers in self._of(keys))

    def _of(self, keys: dict[str, list[int]]) -> list[list[int]]:
        return [keys[f"k{key}"] for key in range(KEYS)]

    def check(self, end: int) -> None:
        for keys in self.all.values():
            for numbers in self._of(keys):
                assert list(dict.fromkeys(numbers)) == list(range(end))

    @property
    def count(self) -> int:
        return sum(len(numbers) for keys in self.all.values() for numbers in keys.values())


def test_a_message_is_published_and_seen_by_rules(place: Path, server: RabbitServer) -> None:
    prepare(server)
    with SinksBroker(WORKERS, place / "data", sections(server)) as broker, Client(broker.address, client_id="sub") as client:
        client.subscribe("rabbit/#", qos=1)
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}")
        server.publish("in", b'{"n": 1}', content_type="application/json", headers={"key": "k0", "a": "b"}, expiration="60000")
        until(lambda: source(broker)["received"], lambda: f"{source(broker)} {broker.output[-5:]}")
        packet: Any = client.recv()
        assert (packet.topic, packet.payload, packet.qos) == ("rabbit/k0", b'{"n": 1}', 1)
        rows = Rows(server)
        until(lambda: rows.missing(0) == -2, timeout_s=30)
        figures = source(broker)
        assert figures["received"] == figures["published"] == 1
        until(lambda: source(broker)["acknowledged"] == 1)
        client.publish("$bridges/rabbitmq:in", b'{"n": 66}', qos=1)  # what a client publishes is no event of a source
        client.publish("$sources/rabbitmq:in", b'{"n": 66}', qos=1)
        server.publish("in", b'{"n": 2}', headers={"key": "+"})
        server.publish("in", b'{"n": 2}', headers={"key": "k0"})
        until(lambda: source(broker)["failed"] == 1)
        until(lambda: rows.missing(0) == -4, timeout_s=30)
        assert all(n == 2 for keys in rows.all.values() for numbers in keys.values() for n in numbers[1:])
        broker.expects("record not taken over")


def flows(broker: SinksBroker, server: RabbitServer) -> None:
    for pid in broker.child_pids("flows-"):
        broker.kill_process(pid)


def worker(broker: SinksBroker, server: RabbitServer) -> None:
    broker.kill_process(broker.child_pids("worker-1")[0])


def whole_broker(broker: SinksBroker, server: RabbitServer) -> None:
    broker.kill()
    broker.start()


def stopped_broker(broker: SinksBroker, server: RabbitServer) -> None:
    broker.stop()
    broker.start()


def rabbit(broker: SinksBroker, server: RabbitServer) -> None:
    server.process.kill()
    until(lambda: source(broker)["status"] == "disconnected", timeout_s=30)
    server.process.start()


def paused_rabbit(broker: SinksBroker, server: RabbitServer) -> None:
    server.process.pause()
    until(lambda: source(broker)["status"] == "disconnected", timeout_s=60)
    server.process.resume()


def paused_worker(broker: SinksBroker, server: RabbitServer) -> None:
    with stopped(broker.child_pids("worker-0")[0]):
        time.sleep(2)


@pytest.mark.parametrize("harm", [flows, worker, whole_broker, stopped_broker, rabbit, paused_rabbit, paused_worker])
def test_none_is_missing_and_keys_keep_their_order(
    place: Path, server: RabbitServer, harm: Callable[[SinksBroker, RabbitServer], None]
) -> None:
    prepare(server)
    with SinksBroker(WORKERS, place / "data", sections(server), {"flows.processes": 2}) as broker:
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}")
        broker.change(actions__rabbitmq__other={"connector": "main", "enable": False, "parameters": {"routing_key": "x"}})
        fill(server, range(NUMBERS // 10))
        until(lambda: source(broker).get("received", 0) > 0, timeout_s=30)
        harm(broker, server)
        fill(server, range(NUMBERS // 10, NUMBERS // 5))
        rows = Rows(server)
        until(lambda: rows.missing(NUMBERS // 5) == 0, lambda: f"{rows.missing(NUMBERS // 5)} {source(broker)}", timeout_s=120)
        rows.check(NUMBERS // 5)
        until(lambda: source(broker)["inflight"] == 0)
        print(f"{harm.__name__}: {rows.count - 2 * KEYS * NUMBERS // 5} repeated")
