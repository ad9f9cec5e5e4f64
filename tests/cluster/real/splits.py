"""A cluster of four nodes that is split in two halves under load, and heals: `make partitions`.

Neither half has a majority. SHARDBROKER_SPLIT_S and SHARDBROKER_SPLIT_RATE set how long, and how many messages
a second publishers send in total.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from shardbroker.control import Control
from tests.cluster.real.failures import DOWN_S, await_healed, await_link, cluster, living, measured, within
from tests.cluster.real.moves import KEPT, MOVING
from tests.cluster.real.network import Network
from tests.cluster.real.nodes import Nodes
from tests.harness import Client
from tests.harness.waiting import until
from tests.harness.wire import Publish

SPLIT_S = float(os.environ.get("SHARDBROKER_SPLIT_S", "60"))
RATE = float(os.environ.get("SHARDBROKER_SPLIT_RATE", "5000"))
ONE_SESSION_S = 5.0
"""After the heal each client id has one session."""
DRAINED_S = 60.0
"""For spools and queues of the split; how fast they are sent is a matter of benchmarks."""
MOVERS = 20
"""Clients whose session is in one half, and who connect in the other half while they are apart."""

pytestmark = pytest.mark.timeout(400 + int(SPLIT_S))


class Station:
    """The clients of one node (station.py)."""

    def __init__(self, nodes: Nodes, network: Network, node: int, publishers: Sequence[Any], subscribers: Sequence[Any]) -> None:
        asked = {"address": nodes.brokers[node].address, "publishers": publishers, "subscribers": subscribers}
        with network.entered(node):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.real.station", json.dumps(asked)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ask(self) -> Any:
        """Returns the next answer: acknowledged messages at first, then those that have arrived."""
        self.begin()
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        assert not found["failures"], found["failures"]
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def stations(nodes: Nodes, network: Network) -> Iterator[dict[int, Station]]:
    """Each node has a publisher of QoS 1 and one of 2 for a subscriber at each node, and for the clients that move."""
    ways = [(source, target) for source in nodes.brokers for target in nodes.brokers]
    each = RATE / (2 * len(ways) + len(nodes.brokers))
    with ExitStack() as stack:
        made = {}
        for node in nodes.brokers:
            publishers = [(f"{qos}/{source}/{target}", qos, each) for qos in (1, 2) for source, target in ways if source == node]
            subscribers = [(f"stays-{node}", [(f"+/+/{node}", 2)])]
            made[node] = Station(nodes, network, node, [*publishers, (f"moves/{node}", 1, each)], subscribers)
            stack.callback(made[node].close)
        for station in made.values():
            station.begin()
        yield made


def sessions_of(nodes: Nodes, name: str) -> dict[int, str]:
    """Returns the state of the sessions of a client id by node."""
    found = {}
    for number, broker in nodes.brokers.items():
        with Control(broker.data_dir) as control:
            for row in control.call("clients list", clientid=name)["data"]:
                found[number] = "connected" if row["connected"] else "disconnected"
    return found


def test_two_halves_of_four_nodes() -> None:
    """Both sides serve; healed: no process restarted, one session per id within 5 s, nothing lost, QoS 2 once."""
    with cluster(4, **MOVING) as (nodes, net), living(nodes):
        movers = {}
        for number in range(MOVERS):
            name = f"mover-{number}"
            with nodes.connect(1 + number % 2, name, clean=False, properties=KEPT) as client:
                client.subscribe("moves/+", 1)
                movers[name] = client
        with stations(nodes, net) as made:
            time.sleep(2.0)
            since = time.monotonic()
            net.split([1, 2], [3, 4])
            for number, others in ((1, (3, 4)), (2, (3, 4)), (3, (1, 2)), (4, (1, 2))):
                for other in others:
                    await_link(nodes, number, other, ["down", "hello"], since, DOWN_S)
            received: dict[str, list[tuple[str, int]]] = {name: [] for name in movers}
            moved = {name: _connect_at(nodes, 3 + number % 2, name) for number, name in enumerate(movers)}
            while time.monotonic() < since + SPLIT_S:
                _take(moved, received)
            healed = time.monotonic()
            net.heal()
            within(
                ONE_SESSION_S, "one session per id", healed,
                lambda: all([*sessions_of(nodes, name).values()] == ["connected"] for name in moved),
                lambda: str({name: sessions_of(nodes, name) for name in moved}),
            )  # fmt: skip
            await_healed(nodes, healed, 5.0)
            _take(moved, received)
            acknowledged: dict[str, int] = {}
            for station in made.values():
                acknowledged |= station.ask()["acknowledged"]
            total = sum(acknowledged.values())
            print(f"{total} messages, {total / (time.monotonic() - since):.0f} a second")
            _check_stayers(made, acknowledged)
            _check_movers(moved, received, acknowledged)
        for client in moved.values():
            client.close()


def _connect_at(nodes: Nodes, node: int, name: str) -> Client:
    client = nodes.connect(node, name, clean=False, properties=KEPT, timeout=20)
    client.subscribe("moves/+", 1)
    return client


def _take(clients: dict[str, Client], received: dict[str, list[tuple[str, int]]]) -> bool:
    """Takes what has arrived; returns whether something had."""
    some = False
    for name, client in clients.items():
        while isinstance(packet := client.recv(0.002), Publish):
            received[name].append((packet.topic, int(packet.payload)))
            some = True
        assert packet is None, packet
    return some


def _check_stayers(made: dict[int, Station], acknowledged: dict[str, int]) -> None:
    received: dict[str, Any] = {}
    wanted = {topic: sent for topic, sent in acknowledged.items() if not topic.startswith("moves/")}

    def missing() -> dict[str, int]:
        for station in made.values():
            received.update(station.ask()["received"])
        lost = {topic: sent - received[topic]["count"] if topic in received else sent for topic, sent in wanted.items()}
        return {topic: number for topic, number in lost.items() if number}

    since = time.monotonic()
    until(lambda: not missing(), lambda: f"missing: {missing()}", DRAINED_S)
    print(f"all arrived {time.monotonic() - since:.1f} s behind the last acknowledgement")
    for topic, found in received.items():
        assert not found["turned"], f"{topic}: {found['turned']} out of order"
        assert not found["twice"] or topic.startswith("1/"), f"{topic}: {found['twice']} twice"


def _check_movers(moved: dict[str, Client], received: dict[str, list[tuple[str, int]]], acknowledged: dict[str, int]) -> None:
    wanted = {(topic, number) for topic, sent in acknowledged.items() if topic.startswith("moves/") for number in range(sent)}
    deadline = time.monotonic() + DRAINED_S
    while any(wanted - {*found} for found in received.values()):
        assert _take(moved, received) or time.monotonic() < deadline, {
            name: (len(wanted - {*found}), sorted(wanted - {*found})[:5]) for name, found in received.items()
        }
    measured("queues of clients that moved", max(0.0, time.monotonic() - deadline + DRAINED_S), DRAINED_S)
