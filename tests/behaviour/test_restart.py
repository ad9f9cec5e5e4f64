"""kill -9 of each kind of process under traffic (DESIGN: a child that dies is restarted, the others go on)."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.harness import Broker, Client, Closed, Publish, client_id_on

WORKERS = 3
RESTART_S = 2.0


@pytest.fixture
def own() -> Iterator[Broker]:
    with Broker(WORKERS) as broker:  # its end asserts exit code 0 and that nothing is left in shared memory
        yield broker


def kill_one(broker: Broker, title: str) -> int:
    victim = broker.child_pids(title)[0]
    os.kill(victim, signal.SIGKILL)
    return victim


def wait_restarted(broker: Broker, title: str, victim: int, count: int) -> None:
    deadline = time.monotonic() + RESTART_S
    while time.monotonic() < deadline:
        pids = broker.child_pids(title)
        if victim not in pids and len(pids) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{title} is not back after {RESTART_S} s: {broker.child_pids(title)}")


def exchange(publisher: Client, subscriber: Client, topic: str, count: int) -> None:
    for i in range(count):
        publisher.publish(topic, b"%d" % i, 1)
        subscriber.expect(Publish, payload=b"%d" % i)


@pytest.mark.own_broker
def test_killed_worker(own: Broker) -> None:
    address = own.address
    names = [client_id_on(worker, WORKERS, f"k{worker}x") for worker in range(WORKERS)]
    with (
        Client(address, 5, names[1]) as publisher,
        Client(address, 5, names[2]) as subscriber,
        Client(address, 5, names[0]) as lost,
    ):
        subscriber.subscribe("t/+", 1)
        lost.subscribe("t/+", 1)
        exchange(publisher, subscriber, "t/a", 20)
        victim = kill_one(own, "sb-worker-0")
        exchange(publisher, subscriber, "t/a", 200)
        with pytest.raises(Closed):
            while True:
                lost.recv(2)
        with Client(address, 5, names[0], timeout=RESTART_S) as again:
            again.subscribe("t/+", 1)
            publisher.publish("t/b", b"after", 1)
            again.expect(Publish, payload=b"after")
            subscriber.expect(Publish, payload=b"after")
            subscriber.subscribe("u/+", 1)  # writing routes works: the killed one left no lock behind
            exchange(again, subscriber, "u/a", 50)
        wait_restarted(own, "sb-worker-0", victim, 1)


@pytest.mark.own_broker
def test_killed_worker_with_pending_writes(own: Broker) -> None:
    """Killed again and again while it writes routes and retained messages."""
    address = own.address
    name, other = client_id_on(0, WORKERS, "w"), client_id_on(1, WORKERS, "o")
    with Client(address, 5, other) as witness:
        for round_number in range(5):
            with Client(address, 5, name, timeout=5) as busy:
                for i in range(200):
                    busy.send_raw(b"\x82\x0b\0\x01\0\0\x05%05d\0" % i + b"\x31\x08\0\x05%05d\0" % i)
                time.sleep(0.01 * round_number)
                kill_one(own, "sb-worker-0")
            witness.subscribe(f"w/{round_number}", 1)
            exchange(witness, witness, f"w/{round_number}", 5)


@pytest.mark.own_broker
@pytest.mark.parametrize(("title", "count"), [("sb-acceptor", 2), ("sb-manager", 1)])
def test_killed_acceptor_or_manager(own: Broker, title: str, count: int) -> None:
    address = own.address
    with Client(address, 5, "p") as publisher, Client(address, 5, "s") as subscriber:
        subscriber.subscribe("t", 1)
        victim = kill_one(own, title)
        for _ in range(10):
            exchange(publisher, subscriber, "t", 20)
            with Client(address, 5, "", timeout=RESTART_S) as another:
                another.ping()
        wait_restarted(own, title, victim, count)
        exchange(publisher, subscriber, "t", 20)
