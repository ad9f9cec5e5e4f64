"""A node gives a part of its clients and sessions to the others under traffic: `ctl node rebalance` with real brokers."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.moves import KEPT
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_evacuation import EMPTIED_S, SETTINGS, Traffic, call, commands
from tests.cluster.real.test_messages import linked
from tests.harness.waiting import until

pytestmark = pytest.mark.timeout(300)
CLOSE = {"abs_conn_threshold": 1, "rel_conn_threshold": 1.01, "abs_sess_threshold": 1, "rel_sess_threshold": 1.01}
AT_ONCE = {"wait_health_check": "0s", "wait_takeover": "0s", **CLOSE}


def state(nodes: Nodes) -> dict[str, Any]:
    """Returns the state of the rebalance; empty while the node does not answer."""
    with suppress(ControlError, OSError):
        found: dict[str, Any] = call(nodes, 1, "node rebalance status")
        return found
    return {}


def figures(nodes: Nodes, number: int) -> tuple[int, int]:
    """Returns the connections of a node, and its sessions without a client."""
    found = nodes.counters(number)
    return found["connections.count"], found["sessions.count"] - found["connections.count"]


def await_loads(nodes: Nodes) -> None:
    """Waits until node 1 knows what both nodes have: loads are a second old, or two."""

    def are_known() -> bool:
        found = [(one["connections"], one["sessions"]) for one in nodes.status(1)["nodes"]]
        wanted = [nodes.counters(number) for number in (1, 2)]
        return found == [(one["connections.count"], one["sessions.count"]) for one in wanted]

    until(are_known, lambda: str(nodes.status(1)["nodes"]), 30)


class Clients:
    """The connected clients of the traffic: each reads, and connects at node 2 when it is sent away, as clients do."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.codes: list[int] = []
        """Of each DISCONNECT."""
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in traffic.connected]
        for thread in self._threads:
            thread.start()

    def _run(self, name: str) -> None:
        while not self._over.is_set():
            packet = self.traffic.read(name, self.traffic.connected[name])
            if packet is not None:
                self.codes.append(packet.code)
                self.traffic.connected[name] = self.traffic._connect(2, name)

    def close(self) -> None:
        self._over.set()
        for client in self.traffic.connected.values():
            client.close()
        for thread in self._threads:
            thread.join()


def test_clients_and_sessions_leave_down_to_the_average() -> None:
    with running(2, workers=2, **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        traffic = Traffic(nodes, stack, publish_at=2, absent=12, connected=10)
        clients = Clients(traffic)
        stack.callback(clients.close)
        before = figures(nodes, 1), figures(nodes, 2)
        await_loads(nodes)
        started = call(nodes, 1, "node rebalance start", **AT_ONCE)
        assert (started["process"], started["state"], started["recipients"]) == (
            "rebalance", "waiting_health_check", ["n2@127.0.0.1"],
        )  # fmt: skip
        with pytest.raises(ControlError, match=r"this node is not being evacuated: this node is being rebalanced"):
            call(nodes, 1, "node evacuate stop")
        until(lambda: nodes.status(1)["rebalance"] != "disabled")
        assert nodes.status(1)["evacuation"] == "disabled"
        until(lambda: state(nodes).get("status") == "disabled", lambda: f"{state(nodes)}\n{nodes.output(1)}", EMPTIED_S)
        until(lambda: sum(figures(nodes, number)[0] for number in (1, 2)) == 12, timeout_s=30)
        (own, own_absent), (other, other_absent) = figures(nodes, 1), figures(nodes, 2)
        assert before == ((10, 12), (2, 0)), "two publishers"
        assert 6 <= own <= 7, "the average is 6, the threshold 1"
        assert clients.codes == [0x9C] * (10 - own) and other == 2 + 10 - own
        assert own_absent + other_absent == 12 and 6 <= own_absent <= 7
        nodes.connect(1, "again").close()
        clients.close()
        traffic.check(1, 2)


def test_the_processes_of_the_node_are_killed_meanwhile() -> None:
    with running(2, workers=2, **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        traffic = Traffic(nodes, stack, publish_at=2, absent=24)
        await_loads(nodes)
        call(nodes, 1, "node rebalance start", **{**AT_ONCE, "sess_evict_rate": 1})
        broker = nodes.brokers[1]
        for process in ("worker-0", "manager", "link-0"):
            until(lambda: state(nodes).get("state") == "evicting_sessions", lambda: f"{state(nodes)}\n{nodes.output(1)}", 30)
            (pid,) = broker.child_pids(process)
            broker.kill_process(pid)
            until(lambda: broker.child_pids(process) not in ([], [pid]))  # noqa: B023
        until(lambda: state(nodes).get("status") == "disabled", lambda: f"{state(nodes)}\n{nodes.output(1)}", EMPTIED_S)
        # Each is at one node, once what it is late to have of another one has followed.
        until(lambda: sum(figures(nodes, one)[1] for one in (1, 2)) == 24, lambda: f"{figures(nodes, 1)} {figures(nodes, 2)}", 30)
        own = figures(nodes, 1)[1]
        assert own >= 12, "never below the average"
        assert own <= 13
        traffic.check_in_place(1, 2)


def test_the_procedure_of_the_page() -> None:
    """Its commands in their order: of 6 sessions 3 leave, it ends by itself, and a further `stop` is refused."""
    with running(2, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        broker = nodes.brokers[1]
        for number in range(6):
            nodes.connect(1, f"c{number}", clean=False, properties=KEPT).disconnect()
        await_loads(nodes)

        def ctl(arguments: list[str]) -> subprocess.CompletedProcess[str]:
            command = [*broker.program, "ctl", "--data-dir", str(broker.data_dir), *arguments]
            return subprocess.run(command, capture_output=True, text=True)

        began, asked, ended = (words[2:] for words in commands("Share the load of one node"))
        done = ctl(began)
        assert done.returncode == 0, done.stderr
        assert "enabled" in ctl(asked).stdout, "which state it is in depends on how long `ctl` takes to start"
        until(lambda: "disabled" in ctl(asked).stdout, lambda: ctl(asked).stdout, EMPTIED_S)
        assert figures(nodes, 1)[1] in (3, 4) and figures(nodes, 1)[1] + figures(nodes, 2)[1] == 6
        assert "this node is not being rebalanced" in ctl(ended).stderr


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with running(2, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        await_loads(nodes)
        yield nodes


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, r"nothing to balance: this node has 0 clients and 0 absent sessions, the others 0 and 0 on average"),
        ({"nodes": ["n9"]}, r"nodes: must be other nodes of this cluster \(n2@127.0.0.1\), got n9"),
        ({"nodes": ["n1@127.0.0.1"]}, "nodes: must name another node than n1@127.0.0.1"),
        ({"wait_health_check": "soon"}, "wait_health_check: must be a duration"),
        ({"rel_conn_threshold": 1}, "rel_conn_threshold"),
        ({"abs_sess_threshold": 0}, "abs_sess_threshold"),
    ],
)
def test_wrong_arguments_are_refused(two: Nodes, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ControlError, match=text), Control(two.brokers[1].data_dir) as control:
        control.call("node rebalance start", **params)
    assert state(two) == {"status": "disabled"}
    with pytest.raises(ControlError, match="this node is not being rebalanced"):
        call(two, 1, "node rebalance stop")


def test_without_another_node_nothing_begins(two: Nodes) -> None:
    call(two, 2, "node evacuate start", wait="0s")
    until(lambda: two.status(1)["nodes"][1]["accepts_clients"] is False)
    with pytest.raises(ControlError, match="no other node takes part"):
        call(two, 1, "node rebalance start")
    call(two, 2, "node evacuate stop")
