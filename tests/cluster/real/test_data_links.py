"""Data connections between real brokers."""

from shm.records import encode_publish
from tests.cluster.real.nodes import Nodes, rings_to, running
from tests.harness.waiting import until


def put(nodes: Nodes, number: int, peer: int) -> None:
    """Puts a record for a topic without subscribers, and waits for the acknowledgement of the peer."""
    (ring,) = rings_to(nodes, number, peer)
    assert ring.put(encode_publish(b"a/topic/without/subscribers", b"x", qos=1, originate=False))
    until(lambda: ring.fill() == 0, lambda: nodes.output(number), 10)


def test_records_leave_the_ring_once_the_peer_has_them() -> None:
    with running(2) as nodes:
        for number, peer in ((1, 2), (2, 1)):
            nodes.await_links(number, **{f"n{peer}": "up"})
        for number, peer in ((1, 2), (2, 1)):
            put(nodes, number, peer)
        nodes.kill_link(1, 1)
        put(nodes, 1, 2)
        nodes.kill_link(2, 1)
        put(nodes, 1, 2)
        nodes.kill_link(2, 0)
        put(nodes, 2, 1)
