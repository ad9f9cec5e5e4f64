"""What one client may send in a second: it is slowed down, nothing is lost, and others do not feel it."""

import socket
import time

import pytest

from shardbroker.worker.rates import Rates
from tests.edge.conftest import Edge
from tests.harness import Client

pytestmark = pytest.mark.own_broker


def test_buckets_leak_at_the_rate_and_hold_a_second() -> None:
    messages = Rates(10.0, 0.0)
    assert messages.note(1000, 10, 10**9) == 0
    assert messages.note(1000, 5, 0) == pytest.approx(500, abs=2)
    assert messages.note(1500, 0, 0) == 0
    assert messages.note(61_500, 10, 0) == 0  # a quiet minute saves up no more than a second
    assert messages.note(61_500, 1, 0) > 0
    both = Rates(10.0, 100.0)
    assert both.note(1000, 1, 300) == pytest.approx(2000, abs=2)


@pytest.mark.parametrize("listener", ["few", "narrow"])
def test_a_client_that_sends_too_much_is_read_more_slowly(name: str, listener: str) -> None:
    listeners = {"few": {"messages_rate": "50/s"}, "narrow": {"bytes_rate": "50KB/s"}}
    with Edge(listeners, 1) as own, Client(own.address, 5, "watcher", timeout=20) as watcher:
        watcher.subscribe(name, 1)
        with Client(own.address, 5, "fast", dial=lambda: socket.create_connection(own.at(listener), 5)) as fast:
            started = time.monotonic()
            for number in range(150):
                fast.publish(name, b"%d" % number + b"x" * 1000, 1, wait=False)
            watcher.ping()
            got = [watcher.recv().payload.rstrip(b"x") for _ in range(150)]  # type: ignore[union-attr]
            fast.ping()  # what came in one piece is taken in one piece, and then nothing for as long as it should have taken
            took = time.monotonic() - started
        assert got == [b"%d" % number for number in range(150)]
        assert took > 1.0  # three seconds' worth, of which one may come at once
