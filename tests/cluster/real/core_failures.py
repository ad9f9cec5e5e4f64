"""Rows of the failure table with members in etcd, in network namespaces: docs/design/0011-cluster.md has the table.

etcd has a namespace of its own, so a split leaves it on one side. The lease is that of the default, 6 s.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.real.failures import DOWN_S, await_healed, linked, living, nodes_of, pause, within
from tests.cluster.real.network import Network, network
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.traffic import flowing
from tests.servers.etcd import etcd
from tests.servers.service import Service

EPOCH_S = 8.0
"""From the death of a node to members without it."""
ETCD = 4
"""Number of etcd's namespace."""

pytestmark = pytest.mark.timeout(120)


@contextmanager
def cluster() -> Iterator[tuple[Nodes, Network, Service]]:
    with network(ETCD) as net:
        with net.entered(ETCD):
            held = etcd(host=net.host(ETCD))
            server = held.__enter__()
        try:
            endpoint = f"http://{net.host(ETCD)}:{server.port}"
            settings = {"cluster.lease": "6s", "mqtt.max_mqueue_len": 0}
            with running(3, network=net, endpoints=[endpoint], **settings) as nodes:
                linked(nodes)
                for number in nodes.brokers:
                    within(5.0, "members", time.monotonic(), lambda number=number: leases(nodes, number) == ALL, nodes_text(nodes))
                yield nodes, net, server
        finally:
            held.__exit__(None, None, None)


ALL = {"n1": "up", "n2": "up", "n3": "up"}
WITHOUT = {**ALL, "n3": "none"}


def leases(nodes: Nodes, number: int) -> dict[str, str]:
    return {one["name"].partition("@")[0]: one["lease"] for one in nodes.status(number)["nodes"]}


def epoch_of(nodes: Nodes, number: int) -> int:
    return int(nodes.status(number)["epoch"])


def nodes_text(nodes: Nodes, *numbers: int) -> Callable[[], str]:
    return lambda: "\n".join(f"{nodes.status(number)}\n{nodes.output(number)}" for number in numbers or nodes.brokers)


def test_a_split_with_etcd_on_one_side() -> None:
    """The majority goes on without the third node, which is isolated and serves; heal: members and routes as before."""
    with cluster() as (nodes, net, _), living(nodes), flowing(nodes, (1, 3), (3, 1), (1, 2)) as flows:
        epoch = epoch_of(nodes, 1)
        since = time.monotonic()
        net.split([1, 2, ETCD], [3])
        within(EPOCH_S, "epoch", since, lambda: leases(nodes, 1) == leases(nodes, 2) == WITHOUT, nodes_text(nodes))
        within(EPOCH_S, "isolated", since, lambda: nodes.status(3)["isolated"], nodes_text(nodes))
        within(EPOCH_S, "one epoch", since, lambda: epoch < epoch_of(nodes, 1) == epoch_of(nodes, 2), nodes_text(nodes))
        assert not nodes.status(1)["isolated"] and not nodes.status(2)["isolated"]
        assert leases(nodes, 3) == ALL and nodes.status(3)["core"]["state"] == "lost"
        with nodes.connect(3, "local") as local:
            local.subscribe("split/#", 1)
            local.publish("split/local", b"x", qos=2)
            local.expect_messages(b"x")
            pause(0.5, *flows)
            healed = time.monotonic()
            net.heal()
            await_healed(nodes, healed, 2.0)
            for number in nodes.brokers:
                within(EPOCH_S, "members", healed, lambda number=number: leases(nodes, number) == ALL, nodes_text(nodes))
            assert not nodes.status(3)["isolated"]
            with nodes.connect(1, "far") as far:
                far.publish("split/far", b"y", qos=1)
            local.expect_messages(b"y")
        for flow in flows:
            flow.check()


def test_a_node_that_is_cut_off_from_etcd_alone() -> None:
    """Its lease ends, its links stay: messages go on, and it is not isolated."""
    with cluster() as (nodes, net, _), living(nodes), flowing(nodes, (1, 3), (3, 1)) as flows:
        since = time.monotonic()
        net.split([ETCD], [3])
        within(EPOCH_S, "epoch", since, lambda: leases(nodes, 1) == WITHOUT, nodes_text(nodes))
        within(EPOCH_S, "lost", since, lambda: nodes.status(3)["core"]["state"] == "lost", nodes_text(nodes))
        assert not nodes.status(3)["isolated"]
        assert nodes_of(nodes, 1) == {"n1": "running", "n2": "running", "n3": "running"}
        pause(0.5, *flows)
        healed = time.monotonic()
        net.heal()
        within(EPOCH_S, "members", healed, lambda: leases(nodes, 1) == ALL, nodes_text(nodes))
        for flow in flows:
            flow.check()


def test_a_machine_dies_and_returns() -> None:
    """Members without it within 8 s; its links are down as without etcd."""
    with cluster() as (nodes, _, _), flowing(nodes, (1, 2)) as flows:
        since = time.monotonic()
        nodes.brokers[3].kill()
        nodes.brokers[3].clear_shared()
        within(DOWN_S, "down", since, lambda: nodes_of(nodes, 1)["n3"] == "stopped", nodes_text(nodes, 1))
        within(EPOCH_S, "epoch", since, lambda: leases(nodes, 1) == leases(nodes, 2) == WITHOUT, nodes_text(nodes, 1))
        nodes.start([3])
        within(5.0, "members", time.monotonic(), lambda: leases(nodes, 1) == leases(nodes, 3) == ALL, nodes_text(nodes))
        for flow in flows:
            flow.check()
