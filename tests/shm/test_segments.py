"""Rings between processes, counters, epochs, events, what is left behind."""

import os
import random
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardbroker.mqtt.topics import matches
from shm.cleanup import cleanup, forget_left_over, set_aside
from shm.counters import GAUGES, HISTOGRAMS, NAMES, Counter, Counters, ProcessState, bucket_range, dotted
from shm.epochs import Epochs
from shm.events import ClientEvent, pack_event, unpack_event
from shm.ring import Inbox
from tests.shm.processes import running

LANE = 1 << 16


@pytest.fixture
def instance() -> Iterator[str]:
    name = f"test{os.getpid()}"
    yield name
    for path in Path("/dev/shm").glob(f"shardbroker-{name}*"):
        path.unlink()
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
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    inbox = Inbox.create(name, 2, LANE)
    expected = records(seed)
    taken = 0
    with running(produce, name, seed, 2000):
        while taken < 2000:
            record = inbox.lanes[1].take()
            if record is None:
                inbox.lanes[1].give_back()
                continue
            assert record == next(expected)
            taken += 1
            if taken % 7 == 0:
                inbox.lanes[1].give_back()


def test_full_ring_pushes_back_and_rings_back(instance: str) -> None:
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
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
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    consumer, producer = Inbox.create(name, 1, LANE), Inbox.attach(name)
    assert not producer.take_bell()
    assert consumer.go_to_sleep()
    assert producer.lanes[0].put(b"x")
    assert producer.take_bell()
    assert not producer.take_bell()
    assert not consumer.go_to_sleep()  # something came meanwhile


def test_restart_of_either_side(instance: str) -> None:
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
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
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    inbox = Inbox.create(name, 2, LANE)
    for _ in range(5):
        expected = records(1)
        deadline = time.monotonic() + 0.05
        with running(produce, name, 1, 1 << 30):
            while time.monotonic() < deadline:
                record = inbox.lanes[1].take()
                if record is not None:
                    assert record == next(expected)
                inbox.lanes[1].give_back()
        while (record := inbox.lanes[1].take()) is not None:
            assert record == next(expected)
        inbox.lanes[1].give_back()


def reserve_and_die(name: str) -> None:
    lane = Inbox.attach(name).lanes[0]
    assert lane.put(b"whole")
    for _ in range(3):
        assert lane.put(b"x" * 9000, commit=False)
    os.kill(os.getpid(), signal.SIGKILL)


def test_producer_killed_between_reserve_and_commit(instance: str) -> None:
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    lane = Inbox.create(name, 1, LANE).lanes[0]
    taken = []
    for number in range(20):  # several times round the lane
        run_to_its_death(reserve_and_die, name)
        assert Inbox.attach(name).lanes[0].put(b"%d" % number)
        taken += [lane.take() for _ in range(3)]
        lane.give_back()
    assert taken == [item for number in range(20) for item in (b"whole", b"%d" % number, None)]


def take_and_die(name: str) -> None:
    lane = Inbox.attach(name).lanes[0]
    for _ in range(2):
        assert lane.take() is not None
    lane.give_back()
    for _ in range(3):
        assert lane.take() is not None
    os.kill(os.getpid(), signal.SIGKILL)


def test_consumer_killed_before_release(instance: str) -> None:
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    lane = Inbox.create(name, 1, LANE).lanes[0]
    for number in range(10):
        assert lane.put(b"%d" % number)
    run_to_its_death(take_and_die, name)
    successor = Inbox.attach(name).lanes[0]
    assert [successor.take() for _ in range(9)] == [*(b"%d" % number for number in range(2, 10)), None]


def run_to_its_death(target: Callable[..., None], *arguments: object) -> None:
    with running(target, *arguments) as process:
        process.join(20)
        assert process.exitcode == -signal.SIGKILL


def produce_and_ring(name: str, bell: int, seed: int, count: int) -> None:
    inbox = Inbox.attach(name)
    rng = random.Random(seed)
    for number in range(count):
        while not inbox.lanes[0].put(b"%d" % number):
            time.sleep(0.0001)
        if inbox.take_bell():
            os.eventfd_write(bell, 1)
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.0002)


def test_no_wake_up_is_lost(instance: str) -> None:
    name = f"/dev/shm/shardbroker-{instance}-inbox-0"
    inbox, count, taken = Inbox.create(name, 1, LANE), 3000, 0
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        with running(produce_and_ring, name, bell, 1, count):
            while taken < count:
                while (record := inbox.lanes[0].take()) is not None:
                    assert record == b"%d" % taken
                    taken += 1
                inbox.lanes[0].give_back()
                if taken < count and inbox.go_to_sleep():
                    assert select.select([bell], [], [], 20)[0], f"no bell after record {taken}"
                    os.eventfd_read(bell)
    finally:
        os.close(bell)


def test_lanes_between_56_processes_take_memory_only_when_used(instance: str) -> None:
    names = [f"/dev/shm/shardbroker-{instance}-inbox-{number}" for number in range(56)]
    inboxes = [Inbox.create(name, 56, 1 << 20) for name in names]
    used = sum(Path(name).stat().st_blocks * 512 for name in names)
    assert used < 56 * 57 * 4096 * 2  # the header page and the first page of each lane, and as much again to spare
    assert inboxes[55].lanes[55].put(b"x" * 1000)
    assert Inbox.attach(names[55]).lanes[55].take() == b"x" * 1000


def test_segments_are_private_and_of_their_kind(instance: str) -> None:
    names = {kind: f"/dev/shm/shardbroker-{instance}-{kind}" for kind in ("inbox-0", "counters", "epochs")}
    makers = {"inbox-0": Inbox, "counters": Counters, "epochs": Epochs}
    made = [Inbox.create(names["inbox-0"], 1, LANE), Counters.create(names["counters"], 1), Epochs.create(names["epochs"])]
    for kind, name in names.items():
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
        for other, maker in makers.items():
            if other != kind:
                with pytest.raises(ValueError, match="segment"):
                    maker.attach(name)
    with pytest.raises(ValueError, match="power of two"):
        Inbox.create(names["inbox-0"] + "x", 1, LANE + 1)
    for one in made:
        one.unlink()
        one.unlink()  # gone already: no error


def test_closed_inbox_leaves_its_rings_usable(instance: str) -> None:
    inbox = Inbox.create(f"/dev/shm/shardbroker-{instance}-inbox-0", 1, LANE)
    lane = inbox.lanes[0]
    inbox.close()
    assert inbox.lanes == []
    assert lane.put(b"x") and lane.take() == b"x"
    for use in (inbox.go_to_sleep, inbox.take_bell):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_histograms(instance: str) -> None:
    counters = Counters.create(f"/dev/shm/shardbroker-{instance}-counters", 2)
    other = Counters.attach(counters.name)
    assert other.percentiles("pass_us") == {} and other.mean("pass_us") == 0.0
    rng = random.Random(1)
    values = [int(rng.expovariate(1 / 300)) for _ in range(5000)]
    for number, value in enumerate(values):
        counters.histogram(number % 2, "pass_us").note(value)
    values.sort()
    for fraction, found in other.percentiles("pass_us").items():
        exact = values[int(fraction * len(values)) - 1]
        assert exact <= found <= exact * 1.125 + 1
    assert other.mean("pass_us") == pytest.approx(sum(values) / len(values))
    assert sum(count for _, count in other.buckets("pass_us")) == len(values)
    assert other.buckets("ring.hop_us") == []
    assert all(count == 0 for count in other.totals().values())  # histograms lie behind the counters
    for name in HISTOGRAMS:
        counters.histogram(1, name).note(2**64 - 1)
        assert other.buckets(name)[-1] == (2**64 - 1, 1)
    with pytest.raises(ValueError):
        counters.histogram(0, "unknown")
    with pytest.raises(IndexError):
        counters.histogram(2, "pass_us")


def test_buckets_follow_each_other() -> None:
    expected = 0
    for index in range(496):
        least, greatest = bucket_range(index)
        assert least == expected <= greatest
        assert greatest - least <= least / 8
        expected = greatest + 1
    assert expected == 2**64


def test_states_and_heartbeats(instance: str) -> None:
    counters = Counters.create(f"/dev/shm/shardbroker-{instance}-counters", 3)
    assert [counters.state(number) for number in range(3)] == [ProcessState.DOWN] * 3
    for number, state in enumerate((ProcessState.STARTING, ProcessState.READY, ProcessState.DRAINING)):
        counters.set_state(number, state)
        counters.beat(number, 1_700_000_000_000 + number)
    assert [ProcessState(counters.state(number)).name for number in range(3)] == ["STARTING", "READY", "DRAINING"]
    assert [counters.heartbeat(number) for number in range(3)] == [1_700_000_000_000 + number for number in range(3)]
    for use in (counters.state, counters.heartbeat, counters.of, counters.slot, counters.reset_gauges):
        for number in (-1, 3):
            with pytest.raises(IndexError):
                use(number)
    with pytest.raises(IndexError):
        counters.slot(0).add(len(NAMES))


@pytest.mark.parametrize(
    ("filter", "concerned", "others"),
    [
        ("a", ["a", "a/b", "a/b/c"], ["b", "b/a"]),
        ("a/#", ["a", "a/b", "a/b/c", "a/b/c/d"], ["b/a", ""]),
        ("a/+/c", ["a/x/c", "a//c"], ["b/x/c"]),
        ("a/b", ["a/b"], ["a", "a/c", "b"]),
        ("a/b/#", ["a/b", "a/b/", "a/b/c/d"], ["a", "a/c", "a/bb"]),
        ("a/b/+/d", ["a/b/c/d", "a/b//d"], ["a/c/c/d"]),
        ("a/b/c", ["a/b/c"], ["a/b", "a/b/d", "a/b/d/c"]),
        ("v1/devices/7/#", ["v1/devices/7", "v1/devices/7/cmd"], ["v1/devices", "v1/devices/8/cmd", "v1/devices/77"]),
        ("a/b/c/d/e", ["a/b/c/d/e"], ["a/b/d/d/e"]),
        ("/a", ["/a"], ["/b", "a"]),
        ("/#", ["/", "/a", "/a/b"], ["a", "a/"]),
        ("//#", ["/", "//", "//a"], ["/a/", "a//"]),
        ("a/", ["a/"], ["a/b", "a/b/c"]),
    ],
)
def test_a_change_concerns_every_topic_that_the_filter_matches_and_few_others(
    instance: str, filter: str, concerned: list[str], others: list[str]
) -> None:
    epochs = Epochs.create(f"/dev/shm/shardbroker-{instance}-epochs")
    before = {topic: epochs.of(topic.encode()) for topic in concerned + others}
    epochs.bump_of(filter.encode())
    assert [topic for topic in concerned if epochs.of(topic.encode()) == before[topic]] == []
    assert [topic for topic in others if epochs.of(topic.encode()) != before[topic]] == []


LEVEL = st.sampled_from(["", "a", "b", "+", "#", "+a", "$s"])


@given(st.lists(st.sampled_from(["", "a", "b", "+a", "$s"]), min_size=1, max_size=6), st.lists(LEVEL, min_size=1, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_topic_misses_a_change_of_a_filter_that_matches_it(epochs: Epochs, topic: list[str], filter: list[str]) -> None:
    name, pattern = ("/".join(levels).encode() for levels in (topic, filter))
    if name and matches(pattern, name):
        before = epochs.of(name)
        epochs.bump_of(pattern)
        assert epochs.of(name) > before


@pytest.fixture
def epochs(instance: str) -> Epochs:
    return Epochs.create(f"/dev/shm/shardbroker-{instance}-epochs")


def test_epochs(instance: str) -> None:
    epochs = Epochs.create(f"/dev/shm/shardbroker-{instance}-epochs")
    other = Epochs.attach(f"/dev/shm/shardbroker-{instance}-epochs")
    before = {topic: epochs.of(topic) for topic in (b"a", b"a/b", b"c/b", b"", b"$x/y")}
    other.bump_of(b"a/+/c")
    assert epochs.of(b"a") > before[b"a"] and epochs.of(b"a/b") == before[b"a/b"] + 1
    assert epochs.of(b"c/b") == before[b"c/b"]
    for wildcard in (b"#", b"+", b"+/b"):
        other.bump_of(wildcard)
    assert epochs.of(b"c/b") == before[b"c/b"] + 3
    other.bump_of(b"+a")  # no wildcard: the character stands inside a level
    assert epochs.of(b"c/b") == before[b"c/b"] + 3
    other.bump_all()
    assert all(epochs.of(topic) > value for topic, value in before.items())


def test_cleanup_takes_all_but_what_was_set_aside(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    (runtime / "routes").mkdir(parents=True)
    (runtime / "routes" / "data.mdb").write_bytes(b"x")
    (runtime / "rings").mkdir(mode=0o700)
    Inbox.create(str(runtime / "rings" / "inbox-0"), 1, LANE)
    Counters.create(str(runtime / "counters"), 1)
    (left,) = set_aside(runtime)
    assert [Path(name).name for name in left.inboxes] == ["inbox-0"] and Path(left.inboxes[0]).exists()
    cleanup(runtime)
    assert [*runtime.iterdir()] == [left.directory]
    assert set_aside(runtime) == (left,)
    forget_left_over((left,))
    cleanup(runtime)
    assert not runtime.exists()
    cleanup(runtime)  # nothing there: no error


def test_counters(instance: str) -> None:
    assert len({*NAMES}) == len(NAMES) == int(Counter.COUNTER_MAX)
    for number, name in enumerate(NAMES):
        assert Counter(number).name == name.replace(".", "_").upper()
    assert {*GAUGES} == {name for name in NAMES if name.endswith(".count")}
    for way in ("RECEIVED", "SENT"):
        assert [Counter[f"MESSAGES_QOS{qos}_{way}"] - Counter[f"MESSAGES_QOS0_{way}"] for qos in range(3)] == [0, 1, 2]
    assert dotted("RETAINED_EXPIRED") == "retained.expired"
    with pytest.raises(ValueError, match="NEWS_OF_A_DAY"):
        dotted("NEWS_OF_A_DAY")
    counters = Counters.create(f"/dev/shm/shardbroker-{instance}-counters", 2)
    for slot in range(2):
        counters.slot(slot).add(int(Counter.BYTES_SENT), 5)
        counters.slot(slot).add(int(Counter.CONNECTIONS_COUNT), 1)
    before = {name: value for name, value in counters.of(0).items() if name not in GAUGES}
    for number in range(len(NAMES)):
        counters.slot(0).add(number)
    counters.reset_gauges(0)
    assert counters.of(0) == dict.fromkeys(NAMES, 0) | {name: value + 1 for name, value in before.items()}
    other = Counters.attach(counters.name)
    assert other.totals()["bytes.sent"] == 11
    assert other.totals()["connections.count"] == 1
    other.set_state(1, ProcessState.READY)
    assert counters.state(1) == ProcessState.READY
    with pytest.raises(IndexError):
        counters.slot(2)


def test_events() -> None:
    event = ClientEvent(2, 0x8E, 1, 5, 60, 1_700_000_000_000, b"id\xff", "[::1]:5", "why")
    assert unpack_event(pack_event(*event)) == event
