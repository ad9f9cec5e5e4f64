"""Sessions that move between real brokers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shardbroker.control import Control
from tests.cluster.real.moves import KEPT, MOVING, move_around
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_messages import linked
from tests.harness import Client, client_id_on, wire
from tests.harness.waiting import stopped, until


def client(stack: ExitStack, nodes: Nodes, node: int, name: str, clean: bool = False) -> Client:
    return stack.enter_context(Client(nodes.brokers[node].address, 5, name, clean=clean, timeout=20, properties=KEPT))


def present(connection: Client) -> bool:
    assert connection.connack is not None
    return connection.connack.session_present


def publish(publisher: Client, count: int, first: int = 0) -> list[bytes]:
    sent = [b"%d" % number for number in range(first, first + count)]
    for number, payload in enumerate(sent, first):
        publisher.publish("t/1", payload, qos=1 + number % 2)
    return sent


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with running(2, workers=2, **MOVING) as found:
        linked(found)
        yield found


@pytest.mark.parametrize("worker", [0, 1])
def test_a_session_moves_to_the_node_of_its_client(nodes: Nodes, worker: int) -> None:
    with ExitStack() as stack:
        name = client_id_on(worker, 2, "subscriber")
        with client(ExitStack(), nodes, 1, name) as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, "publisher")
        sent = publish(publisher, 50)
        second = client(stack, nodes, 2, name)
        assert present(second)
        second.expect_messages(*sent)
        second.expect_messages(*publish(publisher, 10, 50))
        second.ping()  # its acknowledgements have been taken: what is in flight would be sent again
        third = client(stack, nodes, 1, name)
        assert present(third)
        packet = second.recv()
        assert isinstance(packet, wire.Disconnect)
        assert packet.code == 0x8E
        third.expect_messages(*publish(publisher, 10, 60))
        third.expect_none()
        with Control(nodes.brokers[1].data_dir) as control:
            metrics = control.call("prometheus")
        assert f'shardbroker_cluster_takeover_seconds_count{{worker="{worker}"}} 1' in metrics, metrics
        assert f'shardbroker_cluster_claims{{worker="{worker}",result="granted"}}' in metrics


def test_a_holder_whose_worker_is_being_started_is_waited_for(nodes: Nodes) -> None:
    """Its session counted as lost after 1 s, and its client got one without subscriptions. A worker that dies again and again is
    started with a delay."""
    holder = nodes.brokers[1]
    with ExitStack() as stack:
        name = client_id_on(0, 2, "subscriber")
        with client(ExitStack(), nodes, 1, name) as first:
            first.subscribe("t/#", 1)
        for _ in range(6):
            until(lambda: holder.child_pids("worker-0"), 20)
            [pid] = holder.child_pids("worker-0")
            holder.kill_process(pid)
            until(lambda pid=pid: pid not in holder.child_pids("worker-0"), 20)
        assert not holder.child_pids("worker-0"), "it is not started yet"
        second = client(stack, nodes, 2, name)
        assert present(second)
        second.expect_messages(*publish(client(stack, nodes, 2, "publisher"), 2))


def test_a_session_that_has_moved_receives_retained_messages_that_are_older_or_known(nodes: Nodes) -> None:
    """They are sent because of a subscription: what the session has had of publishers does not matter."""
    with ExitStack() as stack:
        publisher = client(stack, nodes, 2, "publisher")
        publisher.publish("r/before", b"before", qos=1, retain=True)
        client(stack, nodes, 1, "c").subscribe("t/#", 1)
        second = client(stack, nodes, 2, "c")
        assert present(second)
        second.subscribe("r/#", 1)
        second.expect_messages(b"before")
        publisher.publish("r/after", b"after", qos=1, retain=True)
        second.expect_messages(b"after")
        second.subscribe("r/after", 1)
        second.expect_messages(b"after")


def test_a_clean_start_ends_the_session_at_the_other_node(nodes: Nodes) -> None:
    with ExitStack() as stack:
        first = client(stack, nodes, 1, "c")
        first.subscribe("t/#", 2)
        second = client(stack, nodes, 2, "c", clean=True)
        assert not present(second)
        packet = first.recv()
        assert isinstance(packet, wire.Disconnect)
        assert packet.code == 0x8E
        publish(client(stack, nodes, 1, "p"), 3)
        second.expect_none()


def test_a_client_that_returns_to_its_node_sends_no_claim(nodes: Nodes) -> None:
    with ExitStack() as stack:
        with client(ExitStack(), nodes, 1, "c"):
            pass
        (pid,) = nodes.brokers[1].child_pids("link-0")
        with stopped(pid):
            assert present(client(stack, nodes, 1, "c"))


def test_a_session_survives_a_restart_of_its_worker_before_and_after_it_moves(nodes: Nodes) -> None:
    with ExitStack() as stack:
        name = client_id_on(0, 2, "subscriber")
        with client(ExitStack(), nodes, 1, name) as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, client_id_on(1, 2, "publisher"))
        sent = publish(publisher, 20)
        restart_worker(nodes, 1, 0)
        second = client(stack, nodes, 2, name)
        assert present(second)
        second.disconnect()
        sent += publish(publisher, 20, 20)
        restart_worker(nodes, 2, 0)
        restart_worker(nodes, 1, 0)
        third = client(stack, nodes, 2, name)
        assert present(third)
        third.expect_messages(*sent)
        third.expect_none()


def restart_worker(nodes: Nodes, number: int, worker: int) -> None:
    """Kills a worker, and waits until its successor accepts a client: it has its view then."""
    broker = nodes.brokers[number]
    (pid,) = broker.child_pids(f"worker-{worker}")
    broker.kill_process(pid)
    until(lambda: broker.child_pids(f"worker-{worker}") not in ([], [pid]))
    with Client(broker.address, 5, client_id_on(worker, 2, f"probe{number}"), timeout=20):
        pass


def test_a_client_of_a_node_that_is_down_gets_a_new_session_which_is_merged(nodes: Nodes) -> None:
    with ExitStack() as stack:
        with client(ExitStack(), nodes, 1, "c") as first:
            first.subscribe("t/#", 2)
        publisher = client(stack, nodes, 2, "publisher")
        sent = publish(publisher, 20)
        until(lambda: nodes.counters(1)["mqueue.count"] == len(sent))  # in the session, not in the spool of node 2
        nodes.brokers[1].kill()
        nodes.await_links(2, n1="down")
        second = client(stack, nodes, 2, "c")
        assert not present(second)
        second.subscribe("t/#", 2)
        second.expect_messages(*publish(publisher, 10, 20))
        nodes.start([1])
        linked(nodes)
        second.expect_messages(*sent)
        second.expect_none(2)
        third = client(stack, nodes, 1, "c")
        assert present(third)
        third.expect_messages(*publish(publisher, 10, 30))


@pytest.mark.parametrize("level", ["process", "machine"])
def test_nothing_acknowledged_is_lost_while_a_client_moves(level: str) -> None:
    move_around(level)


def test_a_client_of_a_node_that_is_down_is_refused_if_the_setting_changes_to_refuse(nodes: Nodes) -> None:
    with ExitStack() as stack:
        with client(ExitStack(), nodes, 1, "c"):
            pass
        with Control(nodes.brokers[2].data_dir) as control:
            control.call("config set", key="cluster.lost_session", value="refuse")
        nodes.brokers[1].kill()
        nodes.await_links(2, n1="down")
        refused = stack.enter_context(
            Client(nodes.brokers[2].address, 5, "c", clean=False, timeout=20, properties=KEPT, connect=False)
        )
        assert refused.connect(expect_code=0x88).session_present is False
        assert not present(client(stack, nodes, 2, "new"))
        nodes.start([1])
        linked(nodes)
        assert present(client(stack, nodes, 2, "c"))
