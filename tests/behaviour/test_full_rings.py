"""What finds no room in a ring, and nobody would send again, survives the worker in which it waits."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.waiting import stopped
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker
WORKERS = 2
NEAR, FAR = range(WORKERS)
"""The worker that is killed, and the one whose ring is full."""
SESSION = {"session_expiry_interval": 1000}
RING_BYTES = 64 << 10
FLOOD = b"." * 4000
"""QoS 0: a dozen of them are more than a ring takes."""


@pytest.fixture(params=["process", "machine"])
def own(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"durability.level": request.param, "process.ring_size": f"{RING_BYTES}B"}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as data_dir,
        Broker(WORKERS, settings, data_dir=Path(data_dir)) as broker,
    ):
        yield broker


def stay(broker: Broker, worker: int, name: str, **options: object) -> Client:
    """A client whose session stays, on this worker."""
    name = client_id_on(worker, WORKERS, name)
    return Client(broker.address, 5, name, clean=False, properties=SESSION, timeout=10, **options)  # type: ignore[arg-type]


@contextmanager
def full_ring(broker: Broker) -> Iterator[None]:
    """The ring to worker FAR takes no more, until this ends."""
    with Client(broker.address, 5, client_id_on(FAR, WORKERS, "flooded")) as flooded:
        flooded.subscribe("flood", 0)
        with Client(broker.address, 5, client_id_on(NEAR, WORKERS, "flooder")) as flooder:
            (pid,) = broker.child_pids("sb-worker-1")
            with stopped(pid):
                for _ in range(4 * RING_BYTES // len(FLOOD)):
                    flooder.publish("flood", FLOOD, 0)
                with Client(broker.address, 5, client_id_on(NEAR, WORKERS, "witness")) as witness:
                    witness.ping()
                    witness.ping()  # the worker has been through what came before
                yield


def killed_and_back(broker: Broker) -> None:
    (pid,) = broker.child_pids("sb-worker-0")
    worker = psutil.Process(pid)
    broker.kill_process(pid)
    worker.wait(10)
    with Client(broker.address, 5, client_id_on(NEAR, WORKERS, "back"), timeout=10):
        pass


@pytest.fixture(params=[1, 2])
def kills(request: pytest.FixtureRequest) -> int:
    """How often the worker is killed, while the message waits."""
    return int(request.param)


def check(own: Broker, kills: int, get_rid: Callable[[], object], receiver: Client) -> None:
    with full_ring(own):
        get_rid()
        with Client(own.address, 5, client_id_on(NEAR, WORKERS, "witness"), timeout=10) as witness:
            witness.ping()
        for _ in range(kills):
            killed_and_back(own)
    assert receiver.expect(Publish, timeout=10).payload == b"once"
    receiver.expect_none()


def test_a_will(own: Broker, kills: int) -> None:
    with stay(own, FAR, "heir") as heir:
        heir.subscribe("will", 2)
        dying = stay(own, NEAR, "dying", will=Will("will", b"once", 2))
        check(own, kills, dying.cut, heir)


def test_what_a_member_of_a_shared_group_leaves_behind(own: Broker, kills: int) -> None:
    with stay(own, FAR, "heir") as heir, Client(own.address, 5, client_id_on(NEAR, WORKERS, "dying"), auto_ack=False) as dying:
        dying.subscribe("$share/g/shared", 1)
        with Client(own.address, 5, "publisher") as publisher:
            publisher.publish("shared", b"once", 2)
        heir.subscribe("$share/g/shared", 2)
        check(own, kills, dying.cut, heir)
