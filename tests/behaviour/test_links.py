"""Messages of other nodes in a worker, and messages of a worker for other nodes, with the test in the place of the link process.

The worker is a process of its own, without a supervisor, so that it can be killed at any moment and another one takes its place.
"""

import os
import random
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acceptor.handover import encode_header, send_one
from shardbroker.cluster.messages import Route
from shardbroker.cluster.view import LinkState
from shardbroker.config import Settings
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.recovery.start import recover
from shardbroker.worker.retaining import SyncedRetained
from shm.counters import Counters
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.ring import Inbox
from shm.routes import RouteTable
from shm.view import ViewNode, ViewSegment
from tests.harness import Client, Puback, Publish, Pubrec, until, wire

NODE, PEER = 3, 9
STREAM = 77
STAY = {"session_expiry_interval": 1000}
ARRIVAL = struct.Struct("=IIQQ")
HEADER = struct.Struct("=BBBBIIIIIIIQQQQ")
PUBLISH, SHARED, KEEP = 1, 2, 9
SEED = int(os.environ.get("LINKS_SEED", random.SystemRandom().getrandbits(32)))


def record(
    topic: bytes, payload: bytes, qos: int, *, kind: int = PUBLISH, group: bytes = b"", filter: bytes = b"", member: int = 0
) -> bytes:
    number = int(payload) if payload.isdigit() else 0
    header = HEADER.pack(kind, qos, 0, 0, len(topic), 0, 0, len(group), len(filter), len(payload), 0, 1, number, 0, member)
    return header + topic + group + filter + payload


class Node:
    """A node with one worker that is a child of the test. The test has the lane of link-1."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        values = {
            "process": {"data_dir": data_dir, "workers": 1, "acceptors": 1}, "node": {"id": NODE},
            "listeners": {"default": {"bind": "127.0.0.1:0"}},
            "cluster": {
                "enable": True, "core": {"mode": "none"}, "discovery": "static", "cookie_file": str(data_dir / "cookie"),
                "static": {"seeds": [address]}, "link": {"bind": address},
            },
            **settings,
        }  # fmt: skip
        data_dir.mkdir(exist_ok=True)
        (data_dir / "cookie").write_text("c" * 32)
        (data_dir / "cookie").chmod(0o600)
        self.topology = lay_out(Settings.model_validate(values), [0])
        self.inbox = Inbox.attach(self.topology.inbox_name(0))
        self.lane = self.inbox.lanes[self.topology.slot_of("link", 1)]
        self.peer = Inbox.create(self.topology.peer_inbox_name(PEER, 1), 1, 1 << 16)
        self.pid = 0

    def start(self) -> None:
        """Starts a worker, which recovers what its predecessor has left."""
        self.pid = os.fork()
        if self.pid:
            return
        try:
            topology, counters = self.topology, Counters.attach(self.topology.counters_name)
            routes = RouteTable(topology.routes_dir, log=True, remote=RemoteRoutes(topology.remote_routes_dir), node=NODE)
            synced = topology.settings.durability.level == "machine"
            store = RetainedStore(topology.retained_dir, sync=synced)
            inbox = Inbox.attach(topology.inbox_name(0))
            worker = assemble(
                topology, 0, counters, routes, SyncedRetained(store, 0, topology.doorbells[0]) if synced else store,
                Epochs.attach(topology.epochs_name), Registry(topology.registry_dir(0), create=True), inbox,
                MemoryWatch(counters, 0, 1, 0),
            )  # fmt: skip
            recover(worker, topology, 0, inbox)
            worker.serve()
            worker.run()
        finally:
            os._exit(1)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(self.pid, 0)[1]), "the worker ended by itself"
            self.pid = 0

    def close(self) -> None:
        self.kill()
        tear_down(self.topology)

    def client(self, name: str, **options: Any) -> Client:
        def dial() -> socket.socket:
            client, handed_over = socket.socketpair()
            with handed_over:
                handed_over.setblocking(False)
                header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
                assert send_one(self.topology.sending_ends("handover", 0)[0], handed_over.fileno(), b"", header)
            return client

        return Client(("127.0.0.1", 0), 5, name, dial=dial, **options)

    def send(self, position: int, contents: bytes, identity: int = STREAM) -> None:
        """Puts a record into the worker's inbox, as link-1 does; waits for room."""
        deadline = time.monotonic() + 10
        while not self.lane.put(ARRIVAL.pack(PEER, 0, identity, position) + contents):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        if self.inbox.take_bell():
            os.write(self.topology.doorbells[0], (1).to_bytes(8, "little"))

    def drained(self) -> None:
        until(lambda: self.lane.fill() == 0)

    def members_of(self, filter: bytes) -> int:
        """Returns the number of members of shared groups on a filter."""
        table = RouteTable(self.topology.routes_dir)
        found = table.routes_of(filter)
        table.close()
        return sum(count for _, _, count in found.routes) if found is not None else 0

    def route_to_peer(self, *routes: Route) -> None:
        """Stores routes of the peer, as link-0 does."""
        epochs = Epochs.attach(self.topology.epochs_name)
        remote = RemoteRoutes(self.topology.remote_routes_dir, epochs)
        remote.put(PEER, remote.begin(PEER), routes, None)
        remote.close()

    def set_link(self, state: LinkState) -> None:
        """Changes the state of the peer's link in the view, as link-0 does."""
        view = ViewSegment.attach(self.topology.view_name)
        view.write(1, False, 0, False, {PEER: ViewNode(incarnation=1, is_member=True, link=state)})

    def taken(self) -> list[tuple[int, bytes]]:
        """Returns QoS and payload of the records for the peer, and gives their room back."""
        ring = self.peer.lanes[0]
        found = []
        for contents in ring.take_many(1 << 20):
            fields = HEADER.unpack_from(contents)
            found.append((fields[1] & 3, contents[len(contents) - fields[9] :]))
        ring.give_back()
        return found

    def metric(self, name: str) -> int:
        return int(Counters.attach(self.topology.counters_name).totals()[name])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "data")
    node.start()
    yield node
    node.close()


def payloads(client: Client, count: int) -> list[bytes]:
    return [found.payload for found in (client.expect(Publish) for _ in range(count))]


def nothing_more(client: Client) -> bool:
    return not client.ping()


def test_a_message_of_another_node_is_delivered_once(node: Node) -> None:
    with node.client("here") as client:
        client.subscribe("a/#", 2)
        for position in (100, 200, 100, 200, 300):
            node.send(position, record(b"a/b", b"%d" % position, 2))
        node.send(50, record(b"a/b", b"50", 2), identity=STREAM + 1)
        assert payloads(client, 4) == [b"100", b"200", b"300", b"50"]
        node.send(1, record(b"a/b", b"damaged", 1)[:-3])  # dropped, and the worker goes on
        node.send(301, record(b"a/b", b"301", 1))
        assert payloads(client, 1) == [b"301"]


def test_streams_that_are_over_are_forgotten(node: Node) -> None:
    with node.client("here") as client:
        client.subscribe("a", 1)
        node.send(100, record(b"a", b"1", 1))
        node.send(100, record(b"a", b"2", 1), identity=STREAM + 1)
        keep = struct.pack("=Q", STREAM)
        node.send(0, HEADER.pack(KEEP, 0, 0, 0, 0, 0, 0, 0, 0, len(keep), 0, 0, 0, 0, 0) + keep, identity=0)
        node.send(100, record(b"a", b"3", 1))
        node.send(100, record(b"a", b"4", 1), identity=STREAM + 1)
        assert payloads(client, 3) == [b"1", b"2", b"4"]


def test_a_shared_message_goes_to_the_member_with_its_index(node: Node) -> None:
    with node.client("one") as one, node.client("two") as two:
        for client in (one, two):
            client.subscribe("$share/g/a", 1)
        for number in range(6):
            node.send(number + 1, record(b"a", b"%d" % number, 1, kind=SHARED, group=b"g", filter=b"a", member=number))
        assert (payloads(one, 3), payloads(two, 3)) == ([b"0", b"2", b"4"], [b"1", b"3", b"5"])
        two.disconnect()
        until(lambda: node.members_of(b"a") == 1)
        node.send(7, record(b"a", b"7", 1, kind=SHARED, group=b"g", filter=b"a", member=1))
        assert payloads(one, 1) == [b"7"]


@pytest.mark.parametrize("level", ["process", "machine"])
def test_nothing_is_lost_or_delivered_twice_when_the_worker_is_killed(tmp_path: Path, level: str) -> None:
    """After each kill all messages are sent again from the first one that may not have been dealt with, and more."""
    rng = random.Random(SEED)
    settings = {"durability": {"level": level}, "journal": {"cycle_bytes": 64 << 10}, "mqtt": {"max_mqueue_len": 100_000}}
    node = Node(tmp_path / "data", **settings)
    sent, kills = 0, 12
    try:
        node.start()
        with node.client("stays", clean=False, properties=STAY) as client:
            client.subscribe("q/#", 2)
        for _ in range(kills):
            first = rng.randint(max(0, sent - 300), sent)
            for number in range(first, sent):  # a link process that was killed, too
                node.send(number + 1, record(b"q/%d" % (number % 3), b"%d" % number, 2))
            for _ in range(rng.randint(1, 200)):
                node.send(sent + 1, record(b"q/%d" % (sent % 3), b"%d" % sent, 2))
                sent += 1
            time.sleep(rng.random() * 0.02)
            node.kill()
            node.start()
        node.drained()
        with node.client("stays", clean=False, properties=STAY) as client:
            found = [int(payload) for payload in payloads(client, sent)]
            assert nothing_more(client)
        assert Counter(found) == Counter(range(sent)), f"seed {SEED}"
        for level_of in range(3):
            assert [number for number in found if number % 3 == level_of] == sorted(range(level_of, sent, 3))
    finally:
        node.close()


# --- to other nodes -------------------------------------------------------------------------------------------------


def test_a_message_for_another_node_is_in_its_ring(node: Node) -> None:
    node.route_to_peer(Route(b"far/#"), Route(b"near", b"g", 2))
    node.set_link(LinkState.UP)
    with node.client("publisher") as client:
        for qos in (0, 1, 2):
            client.publish("far/a", b"%d" % qos, qos)
        client.publish("elsewhere", b"x", 1)
        client.publish("near", b"shared", 1)
        client.ping()
    assert node.taken() == [(0, b"0"), (1, b"1"), (2, b"2"), (1, b"shared")]


def test_a_node_without_rings_is_an_unknown_destination(node: Node) -> None:
    node.peer.unlink()
    node.route_to_peer(Route(b"far/#"))
    with node.client("publisher") as client:
        answer = client.publish("far/a", b"x", 1)
        assert answer is not None and answer.code == 0x83


def test_a_full_ring_of_a_node_that_cannot_be_reached(node: Node) -> None:
    """QoS 0 is dropped and counted; QoS 1 waits for room, which the link process makes by its spool."""
    node.route_to_peer(Route(b"far/#"))
    node.set_link(LinkState.DOWN)
    payload = b"x" * 5000
    with node.client("publisher") as client:
        for _ in range(40):
            client.publish("far/a", payload, 0)
        client.ping()
        assert node.metric("messages.dropped.unreachable") > 20
        client.send_raw(wire.publish("far/a", b"held", qos=1, packet_id=7))
        client.expect_none(0.3)
        assert all(found == (0, payload) for found in node.taken())
        os.write(node.topology.doorbells[0], (1).to_bytes(8, "little"))
        client.expect(Puback, packet_id=7)
    assert node.taken() == [(1, b"held")]


def test_a_full_ring_of_a_node_that_is_reachable_holds_publishers(node: Node) -> None:
    node.route_to_peer(Route(b"far/#"))
    node.set_link(LinkState.UP)
    payload = b"x" * 5000
    with node.client("publisher", timeout=30) as client:
        for _ in range(10):
            client.publish("far/a", payload, 0)
        client.send_raw(wire.pingreq())
        client.expect_none(0.3)
        count = 0
        deadline = time.monotonic() + 10
        while count < 10 and time.monotonic() < deadline:
            count += len(node.taken())
            os.write(node.topology.doorbells[0], (1).to_bytes(8, "little"))
            time.sleep(0.01)
        assert count == 10
    assert node.metric("messages.dropped.unreachable") == 0


def test_a_message_for_another_node_leaves_once_when_the_worker_is_killed(tmp_path: Path) -> None:
    """QoS 2 of a publisher that sends again what it has no PUBREC for."""
    rng = random.Random(SEED)
    node = Node(tmp_path / "data")
    try:
        node.start()
        node.route_to_peer(Route(b"far/#"))
        node.set_link(LinkState.UP)
        found: list[bytes] = []
        with node.client("stays", clean=False, properties=STAY):
            pass
        for turn in range(12):
            messages = [(number, b"%d/%d" % (turn, number)) for number in range(1, rng.randint(2, 30))]
            client = node.client("stays", clean=False, properties=STAY)
            for number, payload in messages:
                client.send_raw(wire.publish("far/a", payload, qos=2, packet_id=number))
            time.sleep(rng.random() * 0.01)
            node.kill()
            node.start()
            client.close()
            with node.client("stays", clean=False, properties=STAY) as client:
                for number, payload in messages:
                    client.send_raw(wire.publish("far/a", payload, qos=2, packet_id=number, dup=True))
                for number, _ in messages:
                    client.expect(Pubrec, packet_id=number)
                for number, _ in messages:
                    client.release(number)
                found += [payload for _, payload in node.taken()]
            assert Counter(found) == Counter({payload: 1 for payload in found}), f"seed {SEED}"
            assert {payload for _, payload in messages} <= {*found}, f"seed {SEED}"
    finally:
        node.close()
