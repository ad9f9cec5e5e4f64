"""A message to a destination that a worker has no outlet for is refused whole: no acknowledgement for what reaches nothing.

No cluster and no such sink exists here, so the test writes a route of one of these kinds into the route table by itself.
"""

import time
from collections.abc import Iterator

import pytest

from shardbroker.control import Control
from shm.destinations import DestinationKind, destination, destination_name
from tests.harness import Broker, Client, Closed, Puback, Publish, Pubrec, Will, client_id_on, until
from tests.harness.routes import Routes

WORKERS = 2
REFUSED = 0x83


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(workers=WORKERS) as broker:
        yield broker


UNKNOWN = {
    **{kind.name.lower(): destination(kind, 7) for kind in (DestinationKind.NODE, DestinationKind.SINK, DestinationKind.STORE)},
    "manager": destination(DestinationKind.WORKER, WORKERS),
}
"""The manager has the number behind those of the workers, and an inbox as they have."""


@pytest.fixture(params=UNKNOWN.values(), ids=UNKNOWN)
def unknown(request: pytest.FixtureRequest, broker: Broker) -> Iterator[int]:
    """A destination without an outlet, which `far/#` leads to."""
    to, routes = request.param, Routes(broker)
    routes.change(True, b"far/#", to)
    yield to
    routes.change(False, b"far/#", to)


def on(broker: Broker, worker: int, name: str, version: int = 5, **options: object) -> Client:
    return Client(broker.address, version, client_id_on(worker, WORKERS, name), timeout=10, **options)  # type: ignore[arg-type]


def refused(broker: Broker) -> int:
    with Control(broker.data_dir) as control:
        return int(control.call("metrics")["messages.dropped.unroutable"])


@pytest.fixture
def subscribers(broker: Broker) -> Iterator[list[Client]]:
    """One on the publisher's worker, one on the other: neither may get what is refused."""
    with on(broker, 0, "near") as near, on(broker, 1, "away") as away:
        for client in (near, away):
            client.subscribe("far/#", 2)
            client.subscribe("here", 2)
        yield [near, away]


def only_known(publisher: Client, subscribers: list[Client]) -> None:
    """The workers serve, and none of the subscribers has got anything else."""
    publisher.publish("here", b"known", 1)
    for client in subscribers:
        assert client.expect(Publish).topic == "here"


def test_mqtt_5_is_told(broker: Broker, unknown: int, subscribers: list[Client]) -> None:
    before = refused(broker)
    with on(broker, 0, "publisher") as publisher:
        publisher.publish("far/away", b"lost", 1, wait=False)
        assert publisher.expect(Puback).code == REFUSED
        publisher.publish("far/away", b"lost", 2, wait=False)
        assert publisher.expect(Pubrec).code == REFUSED
        publisher.publish("far/away", b"lost", 0, wait=False)
        until(lambda: refused(broker) == before + 3)
        only_known(publisher, subscribers)
    with on(broker, 1, "late") as late:
        late.publish("far/away", b"retained", 1, retain=True, wait=False)
        assert late.expect(Puback).code == REFUSED
        late.subscribe("far/away")
        only_known(late, subscribers)


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_is_disconnected(broker: Broker, unknown: int, subscribers: list[Client], qos: int) -> None:
    before = refused(broker)
    with on(broker, 0, "old", 4) as old:
        old.publish("far/away", b"lost", 0, wait=False)
        until(lambda: refused(broker) == before + 1)
        old.ping()
        old.publish("far/away", b"lost", qos, wait=False)
        with pytest.raises(Closed):
            old.recv()
    assert refused(broker) == before + 2
    with on(broker, 0, "publisher") as publisher:
        only_known(publisher, subscribers)


def test_what_the_broker_publishes_is_counted(broker: Broker, unknown: int, subscribers: list[Client]) -> None:
    before = refused(broker)
    on(broker, 1, "gone", will=Will("far/will", b"lost", 1)).cut()
    until(lambda: refused(broker) == before + 1)
    with Control(broker.data_dir) as control:
        control.call("publish", topic="far/ctl", payload="lost", qos=1)
    assert refused(broker) == before + 2
    with on(broker, 0, "publisher") as publisher:
        only_known(publisher, subscribers)


def test_a_group_with_an_unknown_member_is_refused(broker: Broker, subscribers: list[Client]) -> None:
    routes, to = Routes(broker), destination(DestinationKind.NODE, 8)
    routes.change(True, b"far/#", to, b"group", 1)
    try:
        with on(broker, 0, "publisher") as publisher:
            publisher.publish("far/away", b"lost", 1, wait=False)
            assert publisher.expect(Puback).code == REFUSED
            only_known(publisher, subscribers)
    finally:
        routes.change(False, b"far/#", to, b"group", 1)


def test_it_is_logged_once_for_each_worker(broker: Broker, unknown: int) -> None:
    with on(broker, 0, "first") as first, on(broker, 1, "second") as second:
        for n in range(5):
            for client in (first, second):
                client.publish(f"far/{n}", b"lost", 1, wait=False)
                assert client.expect(Puback).code == REFUSED
    phrase = f"destination unknown destination={destination_name(unknown)}"
    until(lambda: sum(phrase in line for line in broker.output) == WORKERS)
    time.sleep(0.2)
    assert sum(phrase in line for line in broker.output) == WORKERS
