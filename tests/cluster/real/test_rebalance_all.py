"""All nodes are rebalanced by one command: three real brokers, clients that connect again, and kills."""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.api.rest import Rest
from tests.cluster.real.moves import KEPT
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_evacuation import EMPTIED_S, SETTINGS, call, commands
from tests.cluster.real.test_messages import linked
from tests.harness import Client, Closed, wire
from tests.harness.broker import free_port
from tests.harness.waiting import until

pytestmark = pytest.mark.timeout(300)
CLOSE = {"abs_conn_threshold": 1, "rel_conn_threshold": 1.01, "abs_sess_threshold": 1, "rel_sess_threshold": 1.01}
AT_ONCE = {"wait_health_check": "0s", "wait_takeover": "0s", **CLOSE}
RETRY_S = 0.4


def start(at: Nodes, number: int, verb: str = "cluster rebalance start", **params: Any) -> Any:
    with Control(at.brokers[number].data_dir, by="ctl:0") as control:
        return control.call(verb, **params)


def connected(nodes: Nodes, *numbers: int) -> list[int]:
    return [nodes.counters(number)["connections.count"] for number in numbers or nodes.brokers]


def absent(nodes: Nodes) -> list[int]:
    found = [nodes.counters(number) for number in nodes.brokers]
    return [one["sessions.count"] - one["connections.count"] for one in found]


def states(nodes: Nodes, number: int) -> dict[str, str]:
    """Returns the state of each node as one of them shows it; empty while it does not answer."""
    with suppress(ControlError, OSError):
        rows = call(nodes, number, "cluster rebalance status")["data"]
        return {row["node"].partition("@")[0]: row["state"] for row in rows}
    return {}


def await_end(nodes: Nodes, number: int, *names: str) -> None:
    def has_ended() -> bool:
        found = states(nodes, number)
        return bool(found) and all(found[name] == "disabled" for name in names)

    until(has_ended, lambda: f"{call(nodes, number, 'cluster rebalance status')}\n{nodes.output(number)}", EMPTIED_S)


def await_reports(nodes: Nodes) -> None:
    """Waits until each node knows what the others have: loads are a second old, or two."""

    def are_known() -> bool:
        wanted = {nodes.name(number): count for number, count in zip(nodes.brokers, connected(nodes), strict=True)}
        return all({one["name"]: one["connections"] for one in nodes.status(number)["nodes"]} == wanted for number in nodes.brokers)

    until(are_known, lambda: str([nodes.status(number)["nodes"] for number in nodes.brokers]), 30)


class Fleet:
    """Clients that connect again when they are sent away, to the nodes of `order` in turn; a node that refuses is skipped."""

    def __init__(self, nodes: Nodes, order: Callable[[int], list[int]], **at: int) -> None:
        """at: how many clients begin at a node, such as n1=5."""
        self.nodes, self.order = nodes, order
        self.sent_away: Counter[str] = Counter()
        """DISCONNECT with 0x9C by client."""
        self._over = threading.Event()
        self._clients: dict[str, Client] = {}
        for node, count in at.items():
            for number in range(count):
                name = f"{node}-{number}"
                self._clients[name] = self._admitted(int(node[1:]), name)
        self._threads = [threading.Thread(target=self._run, args=(name, place)) for place, name in enumerate(self._clients)]
        for thread in self._threads:
            thread.start()

    def _connect(self, node: int, name: str) -> Client:
        return self.nodes.connect(node, name, clean=False, timeout=20, properties=KEPT)

    def _admitted(self, node: int, name: str) -> Client:
        """Returns a client of a node, whose claim may come too late for the first CONNECT on a busy machine."""
        deadline = time.monotonic() + 30.0
        while True:
            try:
                return self._connect(node, name)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def _run(self, name: str, place: int) -> None:
        while not self._over.is_set():
            client = self._clients[name]
            try:
                packet = client.recv(RETRY_S)
            except (Closed, OSError):
                packet = None
            if isinstance(packet, wire.Disconnect):
                assert packet.code == 0x9C
                self.sent_away[name] += 1
            elif packet is not None or self._is_open(client):
                continue
            self._return(name, place)

    @staticmethod
    def _is_open(client: Client) -> bool:
        try:
            client.ping()
        except (Closed, OSError, AssertionError):
            return False
        return True

    def _return(self, name: str, place: int) -> None:
        while not self._over.is_set():
            for node in self.order(place):
                with suppress(Closed, OSError, AssertionError):
                    client = self._connect(node, name)
                    if client.connack is not None and client.connack.code == 0:
                        self._clients[name].close()
                        self._clients[name] = client
                        return
                    client.close()
            time.sleep(RETRY_S)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        for client in self._clients.values():
            client.close()


@contextmanager
def fleet(nodes: Nodes, order: Callable[[int], list[int]], **at: int) -> Iterator[Fleet]:
    found = Fleet(nodes, order, **at)
    try:
        yield found
    finally:
        found.close()


def anywhere(place: int) -> list[int]:
    return [1 + (place + turn) % 3 for turn in range(3)]


def leave_sessions(nodes: Nodes, number: int, count: int) -> None:
    for one in range(count):
        nodes.connect(number, f"absent-{number}-{one}", clean=False, properties=KEPT).disconnect()


def test_two_donors_give_at_the_same_time_and_no_client_moves_twice() -> None:
    """Clients of n1 and n2 end at n3 whichever node they try first: donors refuse, and n3 gets no more than its share."""
    with running(3, workers=2, **SETTINGS) as nodes:
        linked(nodes)
        leave_sessions(nodes, 1, 9)
        with fleet(nodes, anywhere, n1=12, n2=8, n3=1) as clients:
            await_reports(nodes)
            started = start(nodes, 3, **{**AT_ONCE, "wait_takeover": "6s"})  # until all have connected again, and that is reported
            first, second, third = (nodes.name(number) for number in (1, 2, 3))
            assert (started["donors"], started["recipients"], started["missing"]) == ([first, second], [third], [])
            assert (started["connection_goal"], started["session_goal"]) == (7, 3)
            found = call(nodes, 1, "node rebalance status")
            assert (found["coordinator_node"], found["donors"], found["recipients"]) == (third, [first, second], [third])
            with pytest.raises(ControlError, match="is being rebalanced already: stop that first"):
                start(nodes, 2, **AT_ONCE)
            await_end(nodes, 2, "n1", "n2", "n3")
            until(lambda: sum(connected(nodes)) == 21, lambda: str(connected(nodes)), 30)
            assert max(connected(nodes)) <= 8, "the average and the threshold"
            assert max(clients.sent_away.values()) == 1, "no client was sent away by two nodes"
            assert 5 <= clients.sent_away.total() <= 7
            assert sum(absent(nodes)) == 9 and max(absent(nodes)) <= 4
            await_reports(nodes)
            with pytest.raises(ControlError, match=f"nothing to balance, of clients and absent sessions {first} has"):
                start(nodes, 1, **AT_ONCE)
        by = [entry["by"] for entry in call(nodes, 1, "audit list")["data"] if entry["verb"] == "node rebalance give"]
        assert by == [f"ctl:0@{third}"]


def test_a_donor_that_has_nothing_to_give_stays_closed_for_the_others() -> None:
    with running(3, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        with fleet(nodes, anywhere, n1=12, n2=8, n3=1) as clients:
            await_reports(nodes)
            start(nodes, 3, **{**AT_ONCE, "conn_evict_rate": 1})

            def of_second() -> dict[str, Any]:
                return {"message": "", **call(nodes, 3, "cluster rebalance status")["data"][1]}

            text = f"clients are turned away until other donors have given theirs: {nodes.name(1)}"
            until(lambda: text in of_second()["message"], lambda: str(of_second()))
            until(lambda: connected(nodes, 1)[0] <= 10, lambda: str(connected(nodes)))
            assert of_second()["state"] == "evicting_conns"
            await_end(nodes, 3, "n1", "n2", "n3")
            until(lambda: sum(connected(nodes)) == 21, lambda: str(connected(nodes)), 30)
            assert connected(nodes, 2) == [8] and max(connected(nodes)) <= 8
            assert not [name for name in clients.sent_away if name.startswith("n2")]


def test_a_node_that_gets_all_clients_is_not_filled_above_the_threshold() -> None:
    """The load balancer of these clients knows one node only. A second command does not send them back."""
    with running(3, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        with fleet(nodes, lambda place: [2], n1=12) as clients:
            await_reports(nodes)
            start(nodes, 1, **AT_ONCE)

            def message() -> str:
                return str(call(nodes, 2, "cluster rebalance status")["data"][0].get("message"))

            until(lambda: f"{nodes.name(2)} may get no more" in message(), message, 30)
            deadline = time.monotonic() + 8.0  # longer than clients count as on their way
            while time.monotonic() < deadline:
                assert connected(nodes, 2)[0] <= 5, "the average is 4, the threshold 1"
                time.sleep(0.2)
            assert call(nodes, 3, "cluster rebalance stop")["stopped"] == [nodes.name(1)]
            assert connected(nodes) == [7, 5, 0]
            clients.order = lambda place: [3]
            await_reports(nodes)
            assert start(nodes, 2, **AT_ONCE)["donors"] == [nodes.name(1), nodes.name(2)]
            await_end(nodes, 1, "n1", "n2", "n3")
            until(lambda: sum(connected(nodes)) == 12, lambda: str(connected(nodes)), 30)
            assert connected(nodes, 2) == [5] and max(connected(nodes)) <= 5
            assert max(clients.sent_away.values()) == 1


def test_the_node_of_the_command_is_killed_and_the_others_go_on() -> None:
    with running(3, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        with fleet(nodes, lambda place: [1] if place < 6 else [3], n1=6, n2=12):  # n1's clients know n1 only
            await_reports(nodes)
            slow = {**AT_ONCE, "conn_evict_rate": 1}
            assert start(nodes, 1, **slow)["donors"] == [nodes.name(1), nodes.name(2)]
            until(lambda: states(nodes, 2).get("n2") == "evicting_conns", lambda: str(states(nodes, 2)))
            nodes.brokers[1].kill()
            until(lambda: nodes.links(3)[nodes.name(1)] != "up")
            await_end(nodes, 3, "n2", "n3")
            assert states(nodes, 3)["n1"] == "unknown"
            until(lambda: sum(connected(nodes, 2, 3)) == 12, lambda: str(connected(nodes, 2, 3)), 30)
            assert connected(nodes, 2)[0] in (6, 7), "its own part"
            nodes.connect(2, "again").close()
            nodes.start([1])
            linked(nodes)
            await_end(nodes, 3, "n1", "n2", "n3")
            until(lambda: connected(nodes, 1) == [6], lambda: f"{connected(nodes)}\n{nodes.output(1)}", 30)
            assert absent(nodes)[0] == 0, "its part has ended with the broker"


def test_donors_accept_clients_again_once_no_other_node_does() -> None:
    """The only recipient is killed: without an end all nodes that are left would refuse clients."""
    with running(3, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        with fleet(nodes, anywhere, n1=6, n2=6):
            await_reports(nodes)
            began = start(nodes, 3, **{**AT_ONCE, "conn_evict_rate": 1})
            assert began["recipients"] == [nodes.name(3)]
            until(lambda: states(nodes, 1).get("n1") == "evicting_conns", lambda: str(states(nodes, 1)))
            nodes.brokers[3].kill()
            begun = time.monotonic()
            await_end(nodes, 1, "n1", "n2")
            assert time.monotonic() - begun < 30
            until(lambda: sum(connected(nodes, 1, 2)) == 12, lambda: str(connected(nodes, 1, 2)), 30)
            nodes.start([3])


def test_it_is_stopped_everywhere_and_by_rest() -> None:
    port = free_port()
    with running(3, workers=1, each={3: {"api.bind": f"127.0.0.1:{port}"}}, **SETTINGS) as nodes:
        linked(nodes)
        call(nodes, 3, "admins add", name="ada", password="a password", role="administrator")
        rest = Rest(port, f"Bearer {Rest(port)('POST', '/login', {'username': 'ada', 'password': 'a password'})[1]['token']}")
        with fleet(nodes, anywhere, n1=5, n2=5):
            await_reports(nodes)
            names = [nodes.name(1), nodes.name(3)]
            body = {"abs_conn_threshold": 1, "rel_conn_threshold": 1.01, "wait_health_check": 600, "nodes": names}
            status, found = rest("POST", f"/load_rebalance/{nodes.name(3)}/start", body)
            assert (status, found["donors"], found["recipients"]) == (200, [nodes.name(1)], [nodes.name(3)]), found
            (shown,) = rest("GET", "/load_rebalance/global_status")[1]["rebalances"]
            assert (shown["node"], shown["coordinator_node"]) == (nodes.name(1), nodes.name(3))
            assert states(nodes, 2) == {"n1": "waiting_health_check", "n2": "disabled", "n3": "disabled"}
            assert rest("POST", f"/load_rebalance/{nodes.name(2)}/stop")[0] == 200
            assert set(states(nodes, 3).values()) == {"disabled"}
            with pytest.raises(ControlError, match="no node is being rebalanced"):
                call(nodes, 2, "cluster rebalance stop")
            call(nodes, 2, "node evacuate start", wait="0s")
            with pytest.raises(ControlError, match=f"nodes: {nodes.name(2)}: it is being evacuated"):
                start(nodes, 1, nodes=[nodes.name(1), nodes.name(2)], **AT_ONCE)
            call(nodes, 2, "node evacuate stop")


def test_the_procedure_of_the_page() -> None:
    with running(3, workers=1, **SETTINGS) as nodes, ExitStack() as stack:
        linked(nodes)
        stack.enter_context(fleet(nodes, anywhere, n1=6))
        await_reports(nodes)

        def ctl(arguments: list[str]) -> subprocess.CompletedProcess[str]:
            broker = nodes.brokers[2]
            command = [*broker.program, "ctl", "--data-dir", str(broker.data_dir), *arguments]
            return subprocess.run(command, capture_output=True, text=True)

        began, asked, ended = (words[2:] for words in commands("Share the load of all nodes"))
        done = ctl(began)
        assert done.returncode == 0, done.stderr
        assert "n1@127.0.0.1" in ctl(asked).stdout
        await_end(nodes, 2, "n1", "n2", "n3")
        until(lambda: max(connected(nodes)) <= 3, lambda: str(connected(nodes)), 30)
        assert "no node is being rebalanced" in ctl(ended).stderr


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with running(2, workers=1, **SETTINGS) as nodes:
        linked(nodes)
        yield nodes


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, r"nothing to balance, of clients and absent sessions n1@127.0.0.1 has 0 and 0, n2@127.0.0.1 has 0 and 0"),
        ({"nodes": ["n9"]}, r"nodes: must be nodes of this cluster \(n1@127.0.0.1, n2@127.0.0.1\), got n9"),
        ({"nodes": ["n1@127.0.0.1"]}, "nodes: must be two linked nodes or more, got n1@127.0.0.1"),
        ({"wait_takeover": "soon"}, "wait_takeover: must be a duration"),
    ],
)
def test_wrong_arguments_are_refused(two: Nodes, params: dict[str, Any], text: str) -> None:
    with pytest.raises(ControlError, match=text), Control(two.brokers[1].data_dir) as control:
        control.call("cluster rebalance start", **params)


def test_a_node_gives_only_its_own_part(two: Nodes) -> None:
    goals = {"coordinator": "x", "connection_goal": 0, "session_goal": 0}
    with pytest.raises(ControlError, match=r"donors: must have n1@127\.0\.0\.1, got n2@127\.0\.0\.1"):
        start(two, 1, "node rebalance give", donors=["n2@127.0.0.1"], nodes=["n2@127.0.0.1"], **goals)
    with pytest.raises(ControlError, match="nodes: must be other nodes of this cluster"):
        start(two, 1, "node rebalance give", donors=["n1@127.0.0.1"], nodes=["n9"], **goals)
