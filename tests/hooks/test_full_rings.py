"""What a callback sends elsewhere waits for room like everything else: nothing is lost, changes places, or piles up."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.behaviour.test_full_rings import FAR, NEAR, RING_BYTES, WORKERS, full_ring, stay
from tests.harness import Client, Publish, client_id_on, wire
from tests.hooks.plugged import Plugged

pytestmark = pytest.mark.own_broker
MESSAGES = 60
ELSEWHERE = """
from shardbroker.hooks import ok

def load(plugin):
    plugin.hook("message.publish", lambda message: ok(message.replace(topic="far")) if message.topic == "near" else None)
"""


@contextmanager
def broker_of(settings: dict[str, object]) -> Iterator[Plugged]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as folder:
        broker = Plugged({"process.ring_size": f"{RING_BYTES}B", **settings}, data_dir=Path(folder))
        broker.workers = WORKERS
        with broker:
            broker.write("elsewhere", ELSEWHERE)
            broker.load("elsewhere")
            yield broker


@pytest.fixture(params=["process", "machine"])
def own(request: pytest.FixtureRequest) -> Iterator[Plugged]:
    with broker_of({"durability.level": request.param}) as broker:
        yield broker


def read(broker: Plugged) -> int:
    """Messages that worker NEAR has taken from clients."""
    return int(broker.control.call("metrics", worker=NEAR)["messages.received"])


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_that_were_sent_elsewhere_keep_their_order_over_a_full_ring(own: Plugged, qos: int) -> None:
    with stay(own, FAR, "hears") as hears, Client(own.address, 5, client_id_on(NEAR, WORKERS, "says"), timeout=10) as says:
        hears.subscribe("far", 1)
        with full_ring(own):
            before = read(own)
            for number in range(MESSAGES):
                says.publish("near", b"%d" % number, qos, wait=False)
            with Client(own.address, 5, client_id_on(NEAR, WORKERS, "other"), timeout=10) as other:
                other.ping()  # the worker goes on
                assert read(own) - before < MESSAGES, "the publisher is read, although what it sends finds no room"
        heard = [hears.expect(Publish, timeout=10).payload for _ in range(MESSAGES)]
        assert heard == [b"%d" % number for number in range(MESSAGES)]
        acknowledged = [says.expect(wire.Puback if qos == 1 else wire.Pubrec, timeout=10).code for _ in range(MESSAGES)]
        assert acknowledged == [0] * MESSAGES
        hears.expect_none()


def test_what_has_waited_for_room_in_a_ring_is_queued_at_a_full_queue_that_pushes_back() -> None:
    """It was acknowledged when it began to wait."""
    queue = 4
    settings: dict[str, object] = {"mqtt.mqueue_overflow": "push_back", "mqtt.max_mqueue_len": queue, "mqtt.max_inflight": 1}
    with broker_of(settings) as broker, stay(broker, FAR, "hears", auto_ack=False) as hears, ExitStack() as stack:
        hears.subscribe("far", 1)
        sent = [b"%d" % number for number in range(5 * queue)]
        with full_ring(broker):
            for payload in sent:
                name = client_id_on(NEAR, WORKERS, f"says{payload.decode()}")
                says = stack.enter_context(Client(broker.address, 5, name, timeout=10))
                says.publish("near", payload, 1)  # each waits in the worker, and its publisher is not read
        heard = set()
        for _ in sent:
            message = hears.expect(Publish, timeout=10)
            hears.ack(message)
            heard.add(message.payload)
        assert heard == set(sent)
        metrics = broker.control.call("metrics")
        assert metrics["delivery.dropped.queue_full"] == metrics["delivery.dropped.queue_stalled"] == 0


def test_a_publisher_that_waits_may_leave(own: Plugged) -> None:
    with stay(own, FAR, "hears") as hears:
        hears.subscribe("far", 1)
        says = Client(own.address, 5, client_id_on(NEAR, WORKERS, "says"), timeout=10)
        with full_ring(own):
            says.publish("near", b"kept", 1, wait=False)
            with Client(own.address, 5, client_id_on(NEAR, WORKERS, "other"), timeout=10) as other:
                other.ping()
                says.socket.close()
                other.ping()
        assert hears.expect(Publish, timeout=10).payload == b"kept"
        hears.expect_none()
