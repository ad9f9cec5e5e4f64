"""A SUBACK waits until the other nodes have its routes, and no longer than its limits (cluster.suback)."""

import time
from contextlib import AbstractContextManager

from shardbroker.cluster.rlog import SubackWait
from shardbroker.worker.subacks import GIVE_UP_MS
from tests.cluster.real.nodes import Nodes, running
from tests.harness import Client, until
from tests.harness.waiting import stopped

LIMIT_MS = SubackWait().limit_ms
PASS_MS = 5
"""The clock of a pass is read at its start."""


def subscribe_ms(client: Client, filter: str) -> float:
    start = time.monotonic()
    client.subscribe(filter, 1)
    return (time.monotonic() - start) * 1000


def late(nodes: Nodes, number: int) -> int:
    return nodes.counters(number)["suback.late"]


def stopped_link(nodes: Nodes, number: int) -> AbstractContextManager[None]:
    (pid,) = nodes.brokers[number].child_pids("link-0")
    return stopped(pid)


def test_a_suback_waits_for_the_peer_and_for_no_dead_one() -> None:
    with running(2) as nodes:
        nodes.await_links(1, n2="up")
        with Client(nodes.brokers[1].address, client_id="a") as client:
            for number in range(20):
                client.subscribe(f"known/{number}", 1)
            before = late(nodes, 1)
            with stopped_link(nodes, 2):
                assert subscribe_ms(client, "peer/stopped") >= LIMIT_MS - PASS_MS
            until(lambda: late(nodes, 1) == before + 1)
            nodes.await_links(1, n2="up")
            with stopped_link(nodes, 1):
                assert subscribe_ms(client, "own/stopped") >= GIVE_UP_MS - PASS_MS
            until(lambda: late(nodes, 1) == before + 2)


def test_with_local_subacks_nothing_waits() -> None:
    with running(2, **{"cluster.suback": "local"}) as nodes, Client(nodes.brokers[1].address, client_id="a") as client:
        nodes.await_links(1, n2="up")
        with stopped_link(nodes, 1), stopped_link(nodes, 2):
            client.subscribe("t", 1)
        assert late(nodes, 1) == 0
