"""A node is emptied while its clients are served by others: `ctl node evacuate` with real brokers."""

import re
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.moves import KEPT, MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_messages import linked
from tests.harness import Client, Closed, client_id_on, wire
from tests.harness.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
SETTINGS = {**MOVING, "mqtt.max_mqueue_len": 0}
AT_ONCE = {"wait": "0s", "wait_takeover": "0s"}
EMPTIED_S = 60.0
PAUSE_S = 0.03
"""Between two messages of a publisher."""
QUIET_S = 0.5


def call(nodes: Nodes, number: int, verb: str, **params: Any) -> Any:
    with Control(nodes.brokers[number].data_dir) as control:
        return control.call(verb, **params)


def state(nodes: Nodes, number: int) -> dict[str, Any]:
    """Returns the state of the evacuation; empty while the node does not answer."""
    with suppress(ControlError, OSError):
        found: dict[str, Any] = call(nodes, number, "node evacuate status")
        return found
    return {}


def await_empty(nodes: Nodes, number: int) -> None:
    until(lambda: state(nodes, number).get("may_be_stopped"), lambda: f"{state(nodes, number)}\n{nodes.output(number)}", EMPTIED_S)


def sessions(nodes: Nodes, *numbers: int) -> list[int]:
    return [nodes.counters(number)["sessions.count"] for number in numbers]


class Traffic:
    """Publishers at a node, one for each QoS, and subscribers with sessions at node 1: connected ones, and absent ones."""

    def __init__(self, nodes: Nodes, stack: ExitStack, publish_at: int, absent: int, connected: int = 0) -> None:
        self.nodes = nodes
        self.acknowledged: dict[int, list[bytes]] = {1: [], 2: []}
        self.received: dict[str, Counter[bytes]] = {}
        self.connected: dict[str, Client] = {}
        self._ended = threading.Event()
        self._unreleased: dict[str, set[int]] = {}
        """The clients' half of QoS 2."""
        for number in range(absent + connected):
            name = client_id_on(number % 2, 2, f"s{number}-")
            self.received[name], self._unreleased[name] = Counter(), set()
            self.connected[name] = self._connect(1, name)
            self.connected[name].subscribe([("t/1", 1), ("t/2", 2)])
        self.publishers = [threading.Thread(target=self._publish, args=(publish_at, qos)) for qos in (1, 2)]
        for publisher in self.publishers:
            publisher.start()
        stack.callback(self.stop)
        for name in [*self.received][:absent]:
            self.connected.pop(name).disconnect()
        for client in self.connected.values():
            stack.callback(client.close)

    def _connect(self, node: int, name: str) -> Client:
        return self.nodes.connect(node, name, clean=False, timeout=20, properties=KEPT, auto_ack=False)

    def _publish(self, node: int, qos: int) -> None:
        with self.nodes.connect(node, f"publisher{qos}", timeout=60) as publisher:
            for number in count():
                if self._ended.is_set():
                    return
                payload = b"%d" % number
                publisher.publish(f"t/{qos}", payload, qos=qos)
                self.acknowledged[qos].append(payload)
                time.sleep(PAUSE_S)

    def stop(self) -> None:
        self._ended.set()
        for publisher in self.publishers:
            publisher.join()

    def read(self, name: str, client: Client) -> wire.Disconnect | None:
        """Takes what arrives until nothing does; returns DISCONNECT if that was the last packet."""
        last: wire.Packet | None = None
        with suppress(Closed, OSError):
            while (packet := client.recv(QUIET_S)) is not None:
                last = packet
                if isinstance(packet, wire.Pubrel):
                    self._unreleased[name].discard(packet.packet_id)
                    client.send_raw(wire.pubcomp(packet.packet_id))
                elif isinstance(packet, wire.Publish) and packet.packet_id is not None:
                    if packet.qos == 1 or packet.packet_id not in self._unreleased[name]:
                        self.received[name][b"%d %s" % (packet.qos, packet.payload)] += 1
                    if packet.qos == 2:
                        self._unreleased[name].add(packet.packet_id)
                    client.send_raw((wire.puback if packet.qos == 1 else wire.pubrec)(packet.packet_id))
        return last if isinstance(last, wire.Disconnect) else None

    def check(self, *numbers: int) -> None:
        """Ends the publishers, then has each client connect at one of the nodes: it has its session, and everything in it."""
        self._check({name: numbers[place % len(numbers)] for place, name in enumerate(self.received)})

    def check_in_place(self, *numbers: int) -> None:
        """Likewise, but each connects at the node that has its session: that node asks no other one, which may not
        answer on a busy machine within the 0.5 s after which a client gets a new session, merged with its own later."""

        def places() -> dict[str, int]:
            at: dict[str, int] = {}
            for number in numbers:
                with Control(self.nodes.brokers[number].data_dir) as control:
                    at.update({row["clientid"]: number for row in control.pages("sessions list")})
            return {name: number for name, number in at.items() if name in self.received}

        self._check(until(lambda: len(at := places()) == len(self.received) and at, lambda: str(places()), 30))

    def _check(self, at: dict[str, int]) -> None:
        """at: the node of each client."""
        self.stop()
        wanted = {b"%d %s" % (qos, payload) for qos, payloads in self.acknowledged.items() for payload in payloads}
        assert all(self.acknowledged.values())
        for name, received in self.received.items():
            node = at[name]
            with self._connect(node, name) as client:
                assert client.connack is not None and client.connack.session_present, f"{name} at node {node}"

                def complete(name: str = name, client: Client = client, received: Counter[bytes] = received) -> bool:
                    self.read(name, client)
                    return wanted <= received.keys()

                until(complete, lambda: f"{name}: {len(wanted - received.keys())} of {len(wanted)} missing", 20)  # noqa: B023
            assert not [one for one, times in received.items() if one.startswith(b"2 ") and times > 1], f"{name}: QoS 2 twice"


def test_a_node_is_emptied_under_traffic_and_stopped() -> None:
    with running(3, workers=2, **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        traffic = Traffic(nodes, stack, publish_at=2, absent=8, connected=4)
        old = stack.enter_context(Client(nodes.brokers[1].address, 4, "old", timeout=20))
        before = sum(sessions(nodes, 1, 2, 3))
        started = call(nodes, 1, "node evacuate start", redirect_to="10.0.0.2:1883 10.0.0.3:1883", **AT_ONCE)
        assert started["state"] == "waiting_health_check"
        for name, client in traffic.connected.items():
            packet = traffic.read(name, client)
            assert packet is not None and packet.code == 0x9C
            assert packet.properties["server_reference"] == "10.0.0.2:1883 10.0.0.3:1883"
        old.expect_close()
        with Client(nodes.brokers[1].address, 5, "new", timeout=20, connect=False) as new:
            refused = new.connect(expect_code=0x9C)
            assert refused.properties["server_reference"] == "10.0.0.2:1883 10.0.0.3:1883"
        with Client(nodes.brokers[1].address, 4, "new", timeout=20, connect=False) as new:
            new.connect(expect_code=3)
        await_empty(nodes, 1)
        found = state(nodes, 1)
        assert (found["state"], found["message"]) == ("prohibiting", "no clients and no sessions are left: the node may be stopped")
        assert found["stats"]["current_sessions"] == found["stats"]["current_connected"] == 0
        assert nodes.status(1)["evacuation"] == "prohibiting"
        assert [one["name"] for one in call(nodes, 1, "alarms list")["data"]] == ["node_evacuating"]
        assert sessions(nodes, 1) == [0]
        # Each is at one node, once what it is late to have of another one has followed; that of the 3.1.1 client was clean.
        until(lambda: sum(sessions(nodes, 2, 3)) == before - 1, lambda: f"{sessions(nodes, 2, 3)}, before {before}")
        nodes.brokers.pop(1).stop()
        traffic.check(2, 3)


def test_the_processes_of_the_node_are_killed_meanwhile() -> None:
    with running(2, workers=2, **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        traffic = Traffic(nodes, stack, publish_at=2, absent=16)
        call(nodes, 1, "node evacuate start", sess_rate=1, **AT_ONCE)  # not all are gone before the last kill
        broker = nodes.brokers[1]
        for process in ("worker-0", "manager", "worker-1", "link-0"):
            until(lambda: state(nodes, 1).get("state") == "evicting_sessions", lambda: str(state(nodes, 1)), 20)
            (pid,) = broker.child_pids(process)
            broker.kill_process(pid)
            until(lambda: broker.child_pids(process) not in ([], [pid]))  # noqa: B023
        await_empty(nodes, 1)
        assert sessions(nodes, 1) == [0]
        traffic.check(2)


def test_nodes_that_are_evacuated_too_get_no_sessions() -> None:
    with running(2, workers=2, **SETTINGS) as nodes:
        linked(nodes)
        nodes.connect(1, "c", clean=False, properties=KEPT).disconnect()
        for number in (1, 2):
            call(nodes, number, "node evacuate start", **AT_ONCE)
        until(lambda: "no node takes sessions" in state(nodes, 1)["message"], lambda: str(state(nodes, 1)))
        assert not state(nodes, 1)["may_be_stopped"]
        call(nodes, 2, "node evacuate stop")
        await_empty(nodes, 1)
        assert sessions(nodes, 1, 2) == [0, 1]


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"migrate_to": ["n1@127.0.0.1"]}, r"migrate_to: must be other nodes of this cluster \(n2@127.0.0.1\), got n1@127.0.0.1"),
        ({"migrate_to": ["n9"]}, r"migrate_to: must be other nodes of this cluster \(n2@127.0.0.1\), got n9"),
        ({"wait": "soon"}, "wait: must be a duration from 0s to 1d, such as 60s, got soon"),
        ({"wait_takeover": "2d"}, "wait_takeover: must be a duration from 0s to 1d, such as 60s, got 2d"),
        ({"conn_rate": 0}, "conn_rate"),
        ({"redirect_to": "two  spaces"}, "redirect_to"),
    ],
)
def test_wrong_arguments_are_refused(two: Nodes, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ControlError, match=text):
        call(two, 1, "node evacuate start", **params)
    assert state(two, 1) == {"status": "disabled"}
    with pytest.raises(ControlError, match="this node is not being evacuated"):
        call(two, 1, "node evacuate stop")


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with running(2, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        yield nodes


def commands(heading: str) -> list[list[str]]:
    """Returns the commands of a section of the page, in order."""
    section = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    return [shlex.split(line) for line in re.findall(r"^    (\S.*)$", section, re.MULTILINE)]


@contextmanager
def absent_client(nodes: Nodes) -> Iterator[Callable[[int], None]]:
    """A session at node 1 with one message; yields a check that it is served at a node."""
    with nodes.connect(1, "c", clean=False, properties=KEPT) as client:
        client.subscribe("t", 1)

    def check(number: int) -> None:
        with nodes.connect(number, "c", clean=False, timeout=20, properties=KEPT) as client:
            assert client.connack is not None and client.connack.session_present
            client.expect_messages(b"x")

    with nodes.connect(2, "p") as publisher:
        publisher.publish("t", b"x", qos=1)
        yield check


def test_the_procedure_of_the_page() -> None:
    """Its commands in their order: the node is emptied, stopped, started, and accepts its client again."""
    with running(2, workers=1, **SETTINGS) as nodes, absent_client(nodes) as check:
        linked(nodes)
        broker = nodes.brokers[1]

        def ctl(arguments: list[str]) -> str:
            command = [*broker.program, "ctl", "--data-dir", str(broker.data_dir), *arguments]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        steps = commands("Drain, upgrade, return")
        assert [words[:4] for words in steps[:2]] == [["shardbroker", "ctl", "node", "evacuate"]] * 2
        for words in steps:
            match words:
                case ["systemctl", "stop", "shardbroker"]:
                    broker.stop()
                    nodes.await_links(2, n1="down")
                case ["systemctl", "start", "shardbroker"]:
                    nodes.start([1])
                    linked(nodes)
                case ["shardbroker", "ctl", *arguments] if arguments[-1] == "status":
                    until(lambda: "the node may be stopped" in ctl(arguments), lambda: ctl(arguments), EMPTIED_S)
                case ["shardbroker", "ctl", *arguments]:
                    ctl(arguments)
                case _:
                    raise AssertionError(f"unknown step: {words}")
        assert state(nodes, 1) == {"status": "disabled"}
        check(1)
