"""A node that starts while a peer is away: what it acknowledges for sessions there arrives once the peer is back."""

from random import Random

import pytest

from tests.cluster.real.nodes import Nodes, running
from tests.harness import client_id_on

KEPT = {"session_expiry_interval": 300}
SENT = [b"%d" % number for number in range(20)]


def start_again(nodes: Nodes, end: str) -> None:
    """Ends node 1 and starts it, while node 2 is away."""
    broker = nodes.brokers[1]
    if end == "stop":
        broker.stop()
    elif end == "power cut":
        nodes.power_cut(1, Random(3))
    else:
        broker.kill()
        assert broker.process is not None
        broker.process.wait(15)
    nodes.start([1])


@pytest.mark.parametrize("end", ["kill", "stop", "power cut"])
def test_a_session_gets_what_was_acknowledged_while_its_node_was_away_and_the_publishers_node_was_restarted(end: str) -> None:
    level = "machine" if end == "power cut" else "process"
    powered = [1] if end == "power cut" else []
    settings = {"cluster.join_timeout": "2s", "durability.level": level}
    with running(2, workers=2, powered=powered, **settings) as nodes:
        nodes.await_links(1, n2="up")
        name = client_id_on(1, 2, "subscriber")
        with nodes.connect(2, name, clean=False, properties=KEPT) as first:
            first.subscribe([("t/+", 2), ("$share/g/shared", 1)])
        nodes.brokers[2].stop()
        start_again(nodes, end)
        with nodes.connect(1, client_id_on(1, 2, "publisher"), timeout=20) as publisher:
            for number, payload in enumerate(SENT):
                answer = publisher.publish("t/1" if number % 3 else "shared", payload, qos=1 + number % 2)
                assert answer is not None and answer.code == 0, f"{answer}: the route is not known"
        if end == "power cut":
            start_again(nodes, end)
        nodes.start([2])
        nodes.await_links(1, n2="up")
        with nodes.connect(2, name, clean=False, properties=KEPT, timeout=20) as back:
            back.expect_messages(*SENT)
        assert nodes.counters(1)["messages.dropped.no_subscribers"] == 0
