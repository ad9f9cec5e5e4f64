"""Another number of workers, and a start that is killed before it is one: what waited in a worker comes once, and in order."""

import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardbroker.config import Settings
from shardbroker.journal import open_journal
from shardbroker.journal.schema import DeferredFor, Kind, encode
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.recovery.start import recover
from shm.counters import Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.broker import worker_of

pytestmark = pytest.mark.own_broker
WORKERS = 3
KEPT = {"session_expiry_interval": 1000}
DELAY_S = 6
"""Longer than the starts take. On a machine on which it is not, messages come earlier, and once all the same."""
PUBLISHED = 1
"""`record` of a HELD record: a message for every subscriber of a worker (shm/records.pxd)."""


@pytest.fixture(params=["process", "machine"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as directory:
        settings = {"durability.level": request.param}
        with Broker(WORKERS, settings, data_dir=Path(directory) / "data") as broker:
            yield broker


def start_with(broker: Broker, workers: int) -> None:
    broker.workers = workers
    broker.start()


def kill(broker: Broker) -> None:
    assert broker.process is not None
    children = [psutil.Process(pid) for pid in broker.child_pids("sb-")]
    broker.kill()
    broker.process.wait(15)
    psutil.wait_procs(children, 15)


def start_that_is_killed(broker: Broker, workers: int) -> None:
    """Every worker has written what it recovered into its journal, and the supervisor did not note that yet."""
    child = os.fork()
    if child == 0:
        try:
            recover_all(broker, workers)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0


def recover_all(broker: Broker, workers: int) -> None:
    process = {"data_dir": broker.data_dir, "workers": workers, "acceptors": 1}
    durability = {"level": broker.settings["durability.level"]}
    listeners = {"default": {"bind": "127.0.0.1:0"}}
    settings = Settings.model_validate({"process": process, "durability": durability, "listeners": listeners})
    topology = lay_out(settings, sorted(os.sched_getaffinity(0)))
    counters = Counters.attach(topology.counters_name)
    routes, retained = RouteTable(topology.routes_dir), RetainedStore(topology.retained_dir)
    epochs = Epochs.attach(topology.epochs_name)
    for number in range(workers):
        inbox = Inbox.attach(topology.inbox_name(number))
        worker = assemble(
            topology, number, counters, routes, retained, epochs, Registry(topology.registry_dir(number), create=True), inbox,
            MemoryWatch(counters, number, workers, 0),
        )  # fmt: skip
        recover(worker, topology, number, inbox)


@pytest.mark.parametrize("workers", [2, WORKERS, 4])
def test_delayed_messages_come_once(broker: Broker, workers: int) -> None:
    """They were delivered by two workers: that of the journal, and the one that had taken them at the start that was killed."""
    publishers = [client_id_on(number, WORKERS, f"p{number}") for number in range(WORKERS)]
    with Client(broker.address, 5, "to", properties=KEPT) as to:
        to.subscribe("t/#", 2)
        for name in publishers:
            with Client(broker.address, 5, name) as client:
                for number in range(3):
                    client.publish(f"$delayed/{DELAY_S}/t/{name}", b"%d" % number, 2)
    kill(broker)
    for _ in range(2):
        start_that_is_killed(broker, 2)
    start_with(broker, workers)
    kill(broker)
    start_with(broker, WORKERS)
    with Client(broker.address, 5, "to", clean=False, properties=KEPT) as to:
        got = [to.expect(Publish, timeout=DELAY_S + 5) for _ in range(3 * WORKERS)]
        to.expect_none(1.0)
    for name in publishers:
        assert [one.payload for one in got if one.topic == f"t/{name}"] == [b"0", b"1", b"2"]


def test_delayed_messages_of_one_publisher_stay_in_order(broker: Broker) -> None:
    """One worker had those from before the number of workers changed, and another one those from after it."""
    moving = next(name for name in map(str, range(100)) if worker_of(name, 3) == 2 and worker_of(name, 2) == 1)
    other = client_id_on(1, WORKERS, "to")  # the worker of the second half: nothing of the first one is as near
    with Client(broker.address, 5, other, properties=KEPT) as to:
        to.subscribe("t", 2)
        with Client(broker.address, 5, moving, properties=KEPT) as client:
            for number in range(500):
                client.publish("$delayed/4/t", b"%d" % number, 2)
    kill(broker)
    start_with(broker, 2)
    with Client(broker.address, 5, moving, clean=False, properties=KEPT) as client:
        for number in range(500, 1000):
            client.publish("$delayed/4/t", b"%d" % number, 2)
    kill(broker)
    time.sleep(4)
    start_with(broker, WORKERS)
    with Client(broker.address, 5, other, clean=False, properties=KEPT) as to:
        assert [int(to.expect(Publish).payload) for _ in range(1000)] == list(range(1000))
        to.expect_none(1.0)


@pytest.mark.parametrize("interrupted", [False, True], ids=["", "interrupted"])
def test_messages_for_one_worker_that_is_several_now(broker: Broker, interrupted: bool) -> None:
    """One had left worker 0 and found the ring of worker 2 full, and one waited in worker 2 for a look-up. They were lost."""
    names = [client_id_on(number, WORKERS, f"to{number}-{copy}-") for number in range(WORKERS) for copy in range(4)]
    for name in names:
        with Client(broker.address, 5, name, properties=KEPT) as client:
            client.subscribe("t", 2)
    kill(broker)
    for worker, number, purpose, payload in ((0, 1, DeferredFor.RING, b"ring"), (2, 2, DeferredFor.LOCAL, b"look-up")):
        journal = open_journal(broker.data_dir / "journal" / str(worker), worker=worker, workers=WORKERS)
        message_id = number.to_bytes(16, "big")
        journal.append(
            encode(
                Kind.MESSAGE, id=message_id, topic=b"t", payload=payload, flags=2, expires_ms=0, properties=b"", publisher=b"p",
            )
        )  # fmt: skip
        journal.append(
            encode(
                Kind.HELD, number=number, purpose=purpose, id=message_id, destination=2, record=PUBLISHED, member=0, attempts=0,
                group=None, filter=None, at_ms=None, division=WORKERS,
            )
        )  # fmt: skip
        journal.seal(time.time_ns() // 1000)
        assert journal.close()
    if interrupted:
        start_that_is_killed(broker, 4)
    start_with(broker, 2)
    for name in names:
        with Client(broker.address, 5, name, clean=False, properties=KEPT) as client:
            if name.startswith("to2"):
                client.expect_messages(b"look-up", b"ring")
            client.expect_none(0.1)
