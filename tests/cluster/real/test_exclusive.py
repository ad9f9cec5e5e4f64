"""Exclusive subscriptions over real brokers whose sessions move."""

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Barrier, Thread

import pytest

from shardbroker.control import Control
from tests.cluster.real.moves import MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_messages import linked
from tests.cluster.real.test_sessions import client, present, restart_worker
from tests.harness import Client, client_id_on
from tests.harness.waiting import until

TAKEN = 0x97


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with running(2, workers=2, **MOVING, **{"mqtt.exclusive_subscription": "true"}) as found:
        linked(found)
        yield found


def take(client: Client, topic: str) -> int:
    return client.subscribe(f"$exclusive/{topic}", 1, check=False).codes[0]


def holders(nodes: Nodes, number: int) -> list[tuple[str, str]]:
    with Control(nodes.brokers[number].data_dir) as control:
        return [(row["topic"], row["clientid"]) for row in control.pages("exclusive list", limit=100)]


def test_of_two_clients_on_two_nodes_one_has_a_filter_and_its_end_frees_it(nodes: Nodes) -> None:
    with ExitStack() as stack:
        clients = [client(stack, nodes, number, client_id_on(number - 1, 2, f"c{number}")) for number in (1, 2)]
        for turn in range(10):
            topic, codes, barrier = f"t/{turn}", [0, 0], Barrier(2)

            def want(index: int, topic: str = topic, codes: list[int] = codes, barrier: Barrier = barrier) -> None:
                barrier.wait()
                codes[index] = take(clients[index], topic)

            threads = [Thread(target=want, args=(index,)) for index in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(codes) == [1, TAKEN]
            winner, loser = clients if codes[0] == 1 else clients[::-1]
            assert sum(topic == found for number in (1, 2) for found, _ in holders(nodes, number)) == 1
            winner.unsubscribe(f"$exclusive/{topic}")
            assert (take(loser, topic), take(winner, topic)) == (1, TAKEN)


def test_a_filter_moves_with_its_session_and_survives_restarts_of_workers(nodes: Nodes) -> None:
    filters = [f"t/{number}" for number in range(6)]  # of both workers and both registrars
    name = client_id_on(0, 2, "holder")
    with ExitStack() as stack:
        first = client(ExitStack(), nodes, 1, name)
        for topic in filters:
            assert take(first, topic) == 1
        second = client(stack, nodes, 2, name)
        assert present(second)
        until(lambda: (len(holders(nodes, 1)), len(holders(nodes, 2))) == (0, len(filters)))
        others = [client(stack, nodes, number, client_id_on(1, 2, f"other{number}")) for number in (1, 2)]
        assert {take(other, topic) for other in others for topic in filters} == {TAKEN}
        second.disconnect()
        for worker in (0, 1):
            restart_worker(nodes, 2, worker)
        restart_worker(nodes, 1, 0)
        other = client(stack, nodes, 1, client_id_on(0, 2, "another"))
        assert {take(other, topic) for topic in filters} == {TAKEN}
        third = client(stack, nodes, 2, name)
        assert present(third)
        third.unsubscribe(*(f"$exclusive/{topic}" for topic in filters))
        assert {take(other, topic) for topic in filters} == {1}


def test_a_filter_is_its_clients_again_after_a_restart_of_the_broker(nodes: Nodes) -> None:
    with ExitStack() as stack:
        first = client(ExitStack(), nodes, 1, "holder")
        assert take(first, "t") == 1
        nodes.brokers[1].kill()
        nodes.await_links(2, n1="down")
        nodes.start([1])
        linked(nodes)
        second = client(stack, nodes, 1, "holder")
        assert present(second)
        until(lambda: holders(nodes, 1) == [("t", "holder")])
        assert take(client(stack, nodes, 2, "other"), "t") == TAKEN
