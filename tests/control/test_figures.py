"""What the verb `load` tells, and what two of its answers say."""

import pytest

from shardbroker.control import Control
from shardbroker.control.figures import Window
from tests.harness import Broker, Client, Publish, client_id_on

pytestmark = pytest.mark.own_broker


def test_two_looks_tell_the_rates_of_each_worker_and_latencies(broker: Broker, control: Control) -> None:
    window = Window()
    with (
        Client(broker.address, 5, client_id_on(0, 3, "figure-s")) as subscriber,
        Client(broker.address, 5, client_id_on(1, 3, "figure-p")) as publisher,
    ):
        subscriber.subscribe("figures/load", 1)
        window.feed(control.call("load"))
        assert window.figures() is None
        for _ in range(50):
            publisher.publish("figures/load", b"x", qos=1)
            subscriber.expect(Publish)
        window.feed(control.call("load"))
    figures = window.figures()
    assert figures is not None
    rates = [(worker["received"] > 0, worker["sent"] > 0) for worker in figures["workers"]]
    assert rates[:2] == [(False, True), (True, False)]
    assert figures["totals"]["received"] > 0 and figures["totals"]["gauges"]["connections.count"] >= 2
    hop = figures["latencies"]["ring.hop_us"]
    assert 0 < hop["p50"] <= hop["p99"]
    assert {worker["pid"] for worker in figures["workers"]} == set(broker.child_pids("worker"))


def test_nothing_recorded_is_no_latency(control: Control) -> None:
    window, load = Window(), control.call("load")
    window.feed(load)
    window.feed({**load, "at_ns": load["at_ns"] + 1_000_000_000})
    figures = window.figures()
    assert figures is not None
    assert figures["latencies"]["pass_us"] == {"p50": None, "p99": None}
    assert figures["totals"]["received"] == figures["workers"][0]["cpu_percent"] == 0
