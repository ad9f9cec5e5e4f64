"""kill -9 of each kind of process under traffic (DESIGN: a child that dies is restarted, the others go on)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Broker, Client, Closed, Publish, client_id_on, wire

WORKERS = 3
RESTART_S = 2.0


@pytest.fixture
def own() -> Iterator[Broker]:
    with Broker(WORKERS) as broker:  # its end asserts exit code 0 and that nothing is left in shared memory
        yield broker


def kill_one(broker: Broker, title: str) -> int:
    victim = broker.child_pids(title)[0]
    broker.kill_process(victim)
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


@pytest.mark.own_broker
@pytest.mark.parametrize("level", ["process", "machine"])
def test_what_is_acknowledged_while_workers_end_one_after_another_is_kept(level: str, tmp_path: Path) -> None:
    """Worker 1 has nobody to send away; worker 0 has clients for the whole drain time, and they go on publishing."""
    settings = {"process.drain_time": "3s", "durability.level": level, "mqtt.max_mqueue_len": 0}
    reader, persistent = client_id_on(1, WORKERS, "stays"), {"session_expiry_interval": 1000}
    acknowledged = []
    with Broker(WORKERS, settings, tmp_path) as broker:
        with Client(broker.address, 5, reader, clean=False, properties=persistent) as client:
            client.subscribe("kept/#", 1)
        publishers = [Client(broker.address, 5, client_id_on(0, WORKERS, f"p{number}x")) for number in range(8)]
        broker.terminate()
        number = 0
        while publishers:
            for publisher in list(publishers):
                number += 1
                if published(publisher, "kept/x", b"%d" % number):
                    acknowledged.append(b"%d" % number)
                else:
                    publishers.remove(publisher)
    assert acknowledged
    with Broker(WORKERS, settings, tmp_path) as again, Client(again.address, 5) as last:
        last.publish("kept/x", b"end", 1)
        with Client(again.address, 5, reader, clean=False, properties=persistent) as client:
            got = []
            while not got or got[-1] != b"end":
                got.append(client.expect(Publish, 20).payload)
    assert set(acknowledged) <= set(got), f"{len(set(acknowledged) - set(got))} of {len(acknowledged)} are lost"


def published(client: Client, topic: str, payload: bytes) -> bool:
    """Whether it is acknowledged; else the connection is over."""
    try:
        client.send_raw(wire.publish(topic, payload, version=5, qos=1, packet_id=client.next_id()))
        return isinstance(client.recv(20), wire.Puback)
    except (Closed, OSError):
        return False
