"""Members by etcd: nodes join, leave and die; etcd is stopped, killed and set up again under traffic."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.moves import KEPT, MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.traffic import flowing
from tests.harness import Client
from tests.harness.broker import Broker, free_port
from tests.harness.waiting import until
from tests.servers.etcd import etcd, etcdctl, url_of
from tests.servers.service import Service

pytestmark = pytest.mark.timeout(240)

LEASE_S = 2.0
"""`cluster.lease` of the nodes."""


def client(nodes: Nodes, node: int, name: str) -> Client:
    return Client(nodes.brokers[node].address, 5, name, clean=False, timeout=20, properties=KEPT)


def leases(nodes: Nodes, number: int) -> dict[str, str]:
    """Returns name -> state of the lease in the core, as a node sees it."""
    return {one["name"].partition("@")[0]: one["lease"] for one in nodes.status(number)["nodes"]}


def await_leases(nodes: Nodes, number: int, timeout_s: float = 20.0, **expected: str) -> None:
    until(lambda: leases(nodes, number) == expected, lambda: f"{nodes.status(number)}\n{nodes.output(number)}", timeout_s)


def test_nodes_join_leave_die_and_return() -> None:
    with etcd() as server, running(3, endpoints=[url_of(server)]) as nodes:
        for number, peers in (1, "23"), (2, "13"), (3, "12"):
            nodes.await_links(number, **{f"n{peer}": "up" for peer in peers})
            await_leases(nodes, number, n1="up", n2="up", n3="up")
        statuses = [nodes.status(number) for number in (1, 2, 3)]
        assert sorted(one["id"] for one in statuses[0]["nodes"]) == [1, 2, 3]
        until(lambda: len({nodes.status(number)["epoch"] for number in (1, 2, 3)}) == 1)
        assert statuses[0]["core"]["mode"] == "external" and statuses[0]["core"]["state"] == "connected"
        epoch = nodes.status(1)["epoch"]
        first = {one["name"]: one["id"] for one in statuses[0]["nodes"]}

        nodes.brokers[3].stop()  # its lease is revoked
        assert leases(nodes, 1) == {"n1": "up", "n2": "up", "n3": "none"}
        assert nodes.status(1)["epoch"] > epoch
        nodes.start([3])
        await_leases(nodes, 1, n1="up", n2="up", n3="up")
        assert {one["name"]: one["id"] for one in nodes.status(1)["nodes"]} == first

        nodes.brokers[3].kill()
        begun = time.monotonic()
        await_leases(nodes, 1, n1="up", n2="up", n3="none")
        assert time.monotonic() - begun < 2 * LEASE_S + 2
        nodes.start([3])
        await_leases(nodes, 1, n1="up", n2="up", n3="up")
        nodes.await_links(1, n2="up", n3="up")
        until(lambda: len({nodes.status(number)["epoch"] for number in (1, 2, 3)}) == 1)


@pytest.fixture(name="server")
def an_etcd() -> Iterator[Service]:
    with etcd() as server:
        yield server


def core_of(nodes: Nodes, number: int) -> str:
    return str(nodes.status(number)["core"]["state"])


def linked(nodes: Nodes) -> None:
    for number in nodes.brokers:
        nodes.await_links(number, **{f"n{peer}": "up" for peer in nodes.brokers if peer != number})


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_without_etcd_the_members_stay_and_everything_goes_on(server: Service, how: str) -> None:
    """Messages, new subscriptions, sessions that move, a node that is killed and returns; then etcd is back."""
    with running(3, endpoints=[url_of(server)], **MOVING) as nodes, ExitStack() as stack:
        linked(nodes)
        for number in nodes.brokers:
            await_leases(nodes, number, n1="up", n2="up", n3="up")
        before = {number: nodes.processes(number) for number in nodes.brokers}
        flows = stack.enter_context(flowing(nodes, (1, 2), (2, 1)))
        session = stack.enter_context(client(nodes, 1, "moves"))
        session.subscribe("moves/#", 2)
        epochs = {number: nodes.status(number)["epoch"] for number in nodes.brokers}
        if how == "stopped":
            server.pause()
        else:
            server.kill()
        for number in nodes.brokers:
            until(lambda number=number: core_of(nodes, number) == "lost", timeout_s=30)
            nodes.await_line(number, "core not reachable")
        nodes.await_line(1, "alarm activated name=cluster_core_lost")
        for number in nodes.brokers:
            status = nodes.status(number)
            assert status["epoch"] == epochs[number] and not status["isolated"]
            assert {one["lease"] for one in status["nodes"]} == {"up"}

        for count, number in enumerate((2, 3, 1)):
            session = stack.enter_context(client(nodes, number, "moves"))
            assert session.connack is not None and session.connack.session_present
            publisher = stack.enter_context(client(nodes, 1 + count, f"publisher-{count}"))
            publisher.publish(f"moves/{count}", b"%d" % count, qos=2)
            session.expect_messages(b"%d" % count)
        assert {number: nodes.processes(number) for number in (1, 2)} == {number: before[number] for number in (1, 2)}

        nodes.brokers[3].kill()
        nodes.await_links(1, n3="down")
        nodes.start([3])
        linked(nodes)
        with client(nodes, 3, "late") as late, client(nodes, 1, "early") as early:
            late.subscribe("late", 1)
            early.publish("late", b"x", qos=1)
            late.expect_messages(b"x")

        if how == "stopped":
            server.resume()
        else:
            server.start()
        for number in nodes.brokers:
            until(lambda number=number: core_of(nodes, number) == "connected", timeout_s=30)
            await_leases(nodes, number, n1="up", n2="up", n3="up")
        nodes.await_line(1, "alarm deactivated name=cluster_core_lost")
        assert {number: nodes.processes(number) for number in (1, 2)} == {number: before[number] for number in (1, 2)}
        for flow in flows:
            flow.check()


def test_an_etcd_that_was_set_up_again_is_filled_by_the_nodes(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes:
        linked(nodes)
        etcdctl(server, "del", "/shardbroker/", "--prefix")
        until(lambda: len(etcdctl(server, "get", "/shardbroker/", "--prefix", "--keys-only").split()) == 5)
        for number in nodes.brokers:
            await_leases(nodes, number, n1="up", n2="up")
        assert nodes.links(1) == {nodes.name(2): "up"}
        assert nodes.counters(1)["link.closed"] == 0


def test_a_node_is_removed_by_hand_by_time_and_joins_again(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes, Control(nodes.brokers[1].data_dir) as control:
        linked(nodes)
        with pytest.raises(ControlError, match="is running"):
            control.call("cluster force-leave", node=nodes.name(2))
        with pytest.raises(ControlError, match="is not known"):
            control.call("cluster force-leave", node="n9@127.0.0.1")
        first = {one["name"]: one["id"] for one in nodes.status(1)["nodes"]}
        nodes.brokers[2].stop()
        await_leases(nodes, 1, n1="up", n2="none")
        until(lambda: nodes.links(1) == {nodes.name(2): "down"})
        with pytest.raises(ControlError, match="force-leave"):
            control.call("cluster forget", node=nodes.name(2))
        control.call("cluster force-leave", node=nodes.name(2))
        until(lambda: nodes.links(1) == {})
        nodes.await_line(1, "peer left")
        nodes.start([2])
        linked(nodes)
        assert {one["name"]: one["id"] for one in nodes.status(1)["nodes"]} == first
        nodes.brokers[2].stop()
        until(lambda: nodes.links(1) == {nodes.name(2): "down"})
        control.call("cluster force-leave", node=nodes.name(2))
        control.call("cluster forget", node=nodes.name(2))
        assert not etcdctl(server, "get", f"/shardbroker/shardbroker/ids/{first[nodes.name(2)]}").strip()
        nodes.start([2])  # its id is still free
        linked(nodes)


def test_a_node_leaves_when_it_stops_and_may_join_again(server: Service) -> None:
    with running(2, endpoints=[url_of(server)]) as nodes, Control(nodes.brokers[2].data_dir) as control:
        linked(nodes)
        await_leases(nodes, 2, n1="up", n2="up")
        with pytest.raises(ControlError, match="changed with etcdctl"):
            control.call("cluster core remove", node=nodes.name(1))
        control.call("cluster leave")
        assert nodes.links(1) == {nodes.name(2): "up"}, "it leaves when it stops"
        (number,) = [one["id"] for one in nodes.status(1)["nodes"] if one["name"] == nodes.name(2)]
        nodes.brokers[2].stop()
        nodes.await_line(2, f"node left name={nodes.name(2)}")
        until(lambda: nodes.links(1) == {})
        assert not etcdctl(server, "get", f"/shardbroker/shardbroker/ids/{number}").strip()
        nodes.start([2])
        linked(nodes)
        await_leases(nodes, 1, n1="up", n2="up")


def test_a_node_without_a_lease_is_removed_after_autoclean(server: Service) -> None:
    with running(2, endpoints=[url_of(server)], **{"cluster.autoclean": "1s"}) as nodes:
        linked(nodes)
        nodes.brokers[2].stop()
        nodes.await_line(1, f"node removed name={nodes.name(2)} by=autoclean")
        until(lambda: nodes.links(1) == {})
        nodes.start([2])
        linked(nodes)


def test_the_first_start_needs_etcd_and_says_so(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    nodes = Nodes(tmp_path, 1, endpoints=[endpoint], **{"cluster.join_timeout": "1s"})
    with pytest.raises(AssertionError, match=rf"cluster\.etcd\.endpoints: the first start .*{endpoint}: unavailable"):
        nodes.brokers[1].start()


def test_a_name_and_an_id_twice_are_refused_by_name(server: Service) -> None:
    with running(1, endpoints=[url_of(server)]) as nodes:
        for settings, text in (
            ({"node.name": nodes.name(1)}, rf"node\.name: must be unique, got {nodes.name(1)}"),
            ({"node.name": "n2@127.0.0.1", "node.id": 1}, r"node\.id: must be unique or 0, got 1"),
            ({"node.name": "n2@127.0.0.1", "cluster.advertise": nodes.addresses[0]}, r"cluster\.advertise: must be unique"),
        ):
            own = {**nodes.settings(1), "cluster.link.bind": f"127.0.0.1:{free_port()}", **settings}
            with pytest.raises(AssertionError, match=text):
                Broker(1, own).start()
