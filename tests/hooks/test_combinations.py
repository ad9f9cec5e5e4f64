"""Hooks, traces and delayed messages on one PUBLISH: each does what it does alone."""

from collections.abc import Iterator

import pytest

from tests.control.test_trace import begin, events, text_of, wait_for
from tests.harness import Client, Publish, client_id_on, wire
from tests.hooks.plugged import Plugged

pytestmark = pytest.mark.own_broker
WORKERS = 3
MOVES = """
from shardbroker.hooks import ok

def load(plugin):
    def move(message):
        if message.topic.startswith("moved/"):
            return ok(message.replace(topic=f"to/{message.topic}", payload=message.payload + b"!"))
    plugin.hook("message.publish", move)
"""
DROPS = """
from shardbroker.hooks import stop

def load(plugin):
    plugin.hook("message.publish", lambda message: stop(message.drop()) if message.topic.startswith("gone/") else None)
"""


@pytest.fixture
def traced(plugged: Plugged) -> Iterator[Plugged]:
    """Whatever is traced ends with the test."""
    yield plugged
    plugged.control.call("trace clear")


def pair(broker: Plugged) -> tuple[Client, Client]:
    """A publisher and a subscriber, on two workers."""
    return (
        Client(broker.address, 5, client_id_on(0, WORKERS, "combined")),
        Client(broker.address, 5, client_id_on(1, WORKERS, "hears")),
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delayed_message_that_a_hook_changes_is_traced_and_comes_changed(traced: Plugged, qos: int, topic: str) -> None:
    traced.write("moves", MOVES)
    traced.load("moves")
    publisher, subscriber = pair(traced)
    with publisher, subscriber:
        subscriber.subscribe(f"to/moved/{topic}", 2)
        subscriber.subscribe(f"moved/{topic}", 2)
        begin(traced.control, "changed", "clientid", publisher.client_id)
        publisher.publish(f"$delayed/1/moved/{topic}", b"now", qos)
        publisher.ping()  # it is dealt with
        waiting = [row["topic"] for row in traced.control.call("delayed list")["data"]]
        assert waiting in ([f"to/moved/{topic}"], [])  # or it is due already
        got = subscriber.expect(Publish, 20)
        assert (got.topic, got.payload, got.qos) == (f"to/moved/{topic}", b"now!", qos)
        found = events(wait_for(traced.control, "changed", "sent PINGRESP"))
        subscriber.expect_nothing_from(publisher)
    assert found.count("received PUBLISH") == 1
    answers = [event for event in found if event in ("sent PUBACK", "sent PUBREC")]
    assert answers == [[], ["sent PUBACK"], ["sent PUBREC"]][qos]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("where", ["gone/", "$delayed/1/gone/"])
def test_what_a_hook_drops_is_traced_acknowledged_and_never_comes(traced: Plugged, qos: int, where: str, topic: str) -> None:
    traced.write("drops", DROPS)
    traced.load("drops")
    publisher, subscriber = pair(traced)
    with publisher, subscriber:
        subscriber.subscribe(f"gone/{topic}", 2)
        begin(traced.control, "dropped", "clientid", publisher.client_id)
        acknowledged = publisher.publish(f"{where}{topic}", b"x", qos)
        assert qos == 0 or isinstance(acknowledged, wire.Puback if qos == 1 else wire.Pubcomp)
        publisher.ping()
        wait_for(traced.control, "dropped", "sent PINGRESP")
        assert "received PUBLISH" in events(text_of(traced.control, "dropped").splitlines())
        assert traced.control.call("delayed list")["data"] == []
        subscriber.expect_nothing_from(publisher)
