"""Pulsar in both directions over one broker: topic -> source -> messages and rules -> actions -> topics.

Nothing is missing after kills and stops of either side, and messages of a key keep their order.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, until
from tests.servers.pulsar import NAMESPACE, PulsarServer, pulsar_server, token_of

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]
WORKERS, KEYS, NUMBERS = 2, 4, 300
"""NUMBERS: messages of each key, before the harm and behind it."""
OUT = ("published", "direct")
"""Topics of rows: of messages that the source has published, and of rules that name the source."""


@pytest.fixture(scope="module")
def server() -> Iterator[PulsarServer]:
    with pulsar_server() as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


def sections(server: PulsarServer, test: str) -> dict[str, dict[str, Any]]:
    """test: part of the names of topics, as each test has its own."""
    quick = {"health_check_interval": "500ms"}
    parameters = {"topics": [f"{NAMESPACE}/{test}"], "initial_position": "earliest", "mqtt_topic": "pulsar/${key}"}

    def action(name: str) -> dict[str, Any]:
        given = {"pulsar_topic": f"{NAMESPACE}/{test}-{name}", "message": {"key": "${topic}"}}
        return {"connector": "main", "resource_opts": quick, "parameters": given}

    return {
        "connectors.pulsar.main": {"servers": [server.url], "token": token_of("admin"), "timeout": "2s"},
        "sources.pulsar.in": {"connector": "main", "parameters": parameters, "resource_opts": quick},
        **{f"actions.pulsar.{name}": action(name) for name in OUT},
        "rules.published": {"sql": 'SELECT topic, payload.n AS n, clientid FROM "pulsar/#"', "actions": ["pulsar:published"]},
        "rules.direct": {
            "sql": 'SELECT key AS topic, value.n AS n, message_id, event FROM "$sources/pulsar:in"',
            "actions": ["pulsar:direct"],
        },
    }


def fill(server: PulsarServer, test: str, numbers: range) -> None:
    with server.client() as client:
        producer = client.create_producer(f"{NAMESPACE}/{test}", batching_enabled=True, block_if_queue_full=True)
        for number in numbers:
            for key in range(KEYS):
                producer.send_async(json.dumps({"n": number}).encode(), lambda *_: None, partition_key=f"k{key}")
        producer.flush()


def source(broker: SinksBroker) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for figures in broker.all_figures():
        found |= figures.get("sources", {}).get("pulsar:in", {})
    return found


class Rows:
    """Rows of the topics, by topic and key, in order."""

    def __init__(self, server: PulsarServer, test: str) -> None:
        self._server, self._test = server, test
        self._last: dict[str, Any] = {}
        self.all: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in OUT}
        self.rows: list[dict[str, Any]] = []

    def missing(self, end: int) -> int:
        for name in OUT:
            for message in self._server.messages(f"{self._test}-{name}", self._last.get(name)):
                self._last[name] = message
                row = json.loads(message.data())
                self.rows.append(row)
                self.all[name][row["topic"].rpartition("/")[2]].append(row["n"])
        return sum(end - len(set(keys[f"k{key}"])) for keys in self.all.values() for key in range(KEYS))

    def check(self, end: int) -> None:
        for keys in self.all.values():
            for numbers in keys.values():
                assert list(dict.fromkeys(numbers)) == list(range(end))


def test_a_message_is_published_and_seen_by_rules(place: Path, server: PulsarServer) -> None:
    definitions = sections(server, "seen")
    with SinksBroker(WORKERS, place / "data", definitions) as broker, Client(broker.address, client_id="sub") as client:
        client.subscribe("pulsar/#", qos=1)
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}", 30)
        fill(server, "seen", range(1))
        packets: list[Any] = [client.recv() for _ in range(KEYS)]
        assert [(one.topic, one.payload, one.qos) for one in packets] == [(f"pulsar/k{n}", b'{"n": 0}', 1) for n in range(KEYS)]
        rows = Rows(server, "seen")
        until(lambda: rows.missing(1) == 0, timeout_s=60)
        (row, *_) = [one for one in rows.rows if "event" in one]
        assert row["event"] == "$sources/pulsar:in" and row["message_id"].count(":") == 3
        until(lambda: source(broker)["acknowledged"] == KEYS)
        client.publish("$sources/pulsar:in", b'{"n": 66}', qos=1)  # what a client publishes is no event of a source
        with server.client() as own:
            own.create_producer(f"{NAMESPACE}/seen").send(b'{"n": 66}', partition_key="+")
        until(lambda: source(broker)["failed"] == 1, timeout_s=30)
        fill(server, "seen", range(1, 2))
        until(lambda: rows.missing(2) == 0, timeout_s=60)
        assert "66" not in str(rows.all["published"])
        broker.expects("record not taken over")


def flows(broker: SinksBroker, server: PulsarServer) -> None:
    for pid in broker.child_pids("flows-"):
        broker.kill_process(pid)


def worker(broker: SinksBroker, server: PulsarServer) -> None:
    broker.kill_process(broker.child_pids("worker-1")[0])


def whole_broker(broker: SinksBroker, server: PulsarServer) -> None:
    broker.kill()
    broker.start()


def stopped_broker(broker: SinksBroker, server: PulsarServer) -> None:
    broker.stop()
    broker.start()


def killed_server(broker: SinksBroker, server: PulsarServer) -> None:
    server.kill()
    until(lambda: source(broker)["status"] == "disconnected", timeout_s=60)
    server.start()


def paused_server(broker: SinksBroker, server: PulsarServer) -> None:
    server.pause()
    until(lambda: source(broker)["status"] == "disconnected", timeout_s=60)
    server.resume()


@pytest.mark.parametrize("harm", [flows, worker, whole_broker, stopped_broker, killed_server, paused_server])
def test_none_is_missing_and_keys_keep_their_order(
    place: Path, server: PulsarServer, harm: Callable[[SinksBroker, PulsarServer], None]
) -> None:
    test = harm.__name__
    with SinksBroker(WORKERS, place / "data", sections(server, test), {"flows.processes": 2}) as broker:
        until(lambda: source(broker).get("status") == "connected", lambda: f"{source(broker)} {broker.output[-5:]}", 60)
        fill(server, test, range(NUMBERS))
        until(lambda: source(broker).get("received", 0) > 0, timeout_s=60)
        harm(broker, server)
        fill(server, test, range(NUMBERS, 2 * NUMBERS))
        rows = Rows(server, test)
        until(lambda: rows.missing(2 * NUMBERS) == 0, lambda: f"{rows.missing(2 * NUMBERS)} {source(broker)}", timeout_s=120)
        rows.check(2 * NUMBERS)
        until(lambda: source(broker)["inflight"] == 0, timeout_s=30)
        print(f"{harm.__name__}: {len(rows.rows) - 4 * KEYS * NUMBERS} repeated")
