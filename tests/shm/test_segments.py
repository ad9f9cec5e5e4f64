"""Rings between processes, counters, events, what is left behind."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import multiprocess
import pytest
from shm.counters import NAMES, Counter, Counters, ProcessState
from shm.ring import Inbox

from shm.cleanup import cleanup
from shm.events import ClientEvent, pack_event, unpack_event

LANE = 1 << 16


@pytest.fixture
def instance() -> Iterator[str]:
    name = f"test{os.getpid()}"
    yield name
    cleanup(name, Path("/dev/shm") / f"shardbroker-{name}")
    assert not list(Path("/dev/shm").glob(f"shardbroker-{name}*"))


def records(seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    while True:
        yield rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 5000, LANE // 4 - 8)))


def produce(name: str, seed: int, count: int) -> None:
    lane = Inbox.attach(name).lanes[1]
    for _, record in zip(range(count), records(seed), strict=False):
        while not lane.put(record):
            time.sleep(0.0001)


@pytest.mark.parametrize("seed", range(3))
def test_ring_keeps_every_record_in_order(instance: str, seed: int) -> None:
    name = f"/shardbroker-{instance}-inbox-0"
    inbox = Inbox.create(name, 2, LANE)
    producer = multiprocess.get_context("fork").Process(target=produce, args=(name, seed, 2000))
    producer.start()
    expected = records(seed)
    taken = 0
    while taken < 2000:
        record = inbox.lanes[1].take()
        if record is None:
            inbox.lanes[1].give_back()
            continue
        assert record == next(expected)
        taken += 1
        if taken % 7 == 0:
            inbox.lanes[1].give_back()
    producer.join()


def test_full_ring_pushes_back_and_rings_back(instance: str) -> None:
    name = f"/shardbroker-{instance}-inbox-0"
    consumer, producer = Inbox.create(name, 1, LANE), Inbox.attach(name)
    count = 0
    while producer.lanes[0].put(b"x" * 1000):
        count += 1
    assert count >= LANE // 1008 - 2
    for _ in range(count):
        assert consumer.lanes[0].take() == b"x" * 1000
    assert consumer.lanes[0].take() is None
    assert consumer.lanes[0].give_back()  # the producer waits
    assert producer.lanes[0].put(b"y")
    with pytest.raises(ValueError, match="takes up to"):
        producer.lanes[0].put(b"z" * LANE)


def test_sleep_flag_is_taken_once(instance: str) -> None:
    name = f"/shardbroker-{instance}-inbox-0"
    consumer, producer = Inbox.create(name, 1, LANE), Inbox.attach(name)
    assert not producer.take_bell()
    assert consumer.go_to_sleep()
    assert producer.lanes[0].put(b"x")
    assert producer.take_bell()
    assert not producer.take_bell()
    assert not consumer.go_to_sleep()  # something came meanwhile


def test_restart_of_either_side(instance: str) -> None:
    name = f"/shardbroker-{instance}-inbox-0"
    Inbox.create(name, 1, LANE)
    producer = Inbox.attach(name)
    for record in (b"1", b"2", b"3"):
        producer.lanes[0].put(record)
    consumer = Inbox.attach(name)
    assert consumer.lanes[0].take() == b"1"
    consumer.lanes[0].give_back()
    assert consumer.lanes[0].take() == b"2"  # taken, but not given back: its successor finds it again
    successor, other_producer = Inbox.attach(name), Inbox.attach(name)
    other_producer.lanes[0].put(b"4")
    assert [successor.lanes[0].take() for _ in range(4)] == [b"2", b"3", b"4", None]


def test_killed_producer_leaves_whole_records(instance: str) -> None:
    name = f"/shardbroker-{instance}-inbox-0"
    inbox = Inbox.create(name, 2, LANE)
    for _ in range(5):
        producer = multiprocess.get_context("fork").Process(target=produce, args=(name, 1, 1 << 30))
        producer.start()
        expected = records(1)
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            record = inbox.lanes[1].take()
            if record is not None:
                assert record == next(expected)
            inbox.lanes[1].give_back()
        os.kill(producer.pid, signal.SIGKILL)
        producer.join()
        while (record := inbox.lanes[1].take()) is not None:
            assert record == next(expected)
        inbox.lanes[1].give_back()


def test_counters(instance: str) -> None:
    assert len(NAMES) == int(Counter.COUNTER_MAX)
    for number, name in enumerate(NAMES):
        assert Counter(number).name == name.replace(".", "_").upper()
    counters = Counters.create(f"/shardbroker-{instance}-counters", 2)
    for slot in range(2):
        counters.slot(slot).add(int(Counter.BYTES_SENT), 5)
        counters.slot(slot).add(int(Counter.CONNECTIONS_COUNT), 1)
    counters.reset_gauges(0)
    other = Counters.attach(counters.name)
    assert other.totals()["bytes.sent"] == 10
    assert other.totals()["connections.count"] == 1
    other.set_state(1, ProcessState.READY)
    assert counters.state(1) == ProcessState.READY
    with pytest.raises(IndexError):
        counters.slot(2)


def test_events() -> None:
    event = ClientEvent(2, 0x8E, 1, 5, 60, 1_700_000_000_000, b"id\xff", "[::1]:5", "why")
    assert unpack_event(pack_event(*event)) == event
