"""A disk that takes no writes, from outside: what waits, what goes on, what is told, and that nothing acknowledged is missing."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.behaviour.test_durability import stay
from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.wire import Connack, Puback, Unsuback, Will, connect, publish, unsubscribe
from tests.journal.faulty_disk import FaultyDisk

pytestmark = pytest.mark.own_broker
WORKERS = 3
SESSION = {"session_expiry_interval": 1000}
LIMIT = 1 << 18
"""durability.max_pending_bytes, the least that is allowed."""


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A tmpfs of 24 MB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a small tmpfs")
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", name], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small tmpfs: {done.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


class Ballast:
    """Fills a disk but for `left` bytes, and empties it."""

    def __init__(self, disk: Path, left: int) -> None:
        self.path = disk / "ballast"
        room = os.statvfs(disk)
        with self.path.open("wb", buffering=0) as file:
            file.write(bytes(room.f_bavail * room.f_bsize - left))  # fewer, if the broker has written meanwhile

    def remove(self) -> None:
        self.path.unlink()


@pytest.fixture
def start(small_disk: Path) -> Iterator[Callable[..., Broker]]:
    with ExitStack() as stack:

        def make(**settings: object) -> Broker:
            dotted: dict[str, object] = {"durability.max_pending_bytes": LIMIT, "mqtt.max_mqueue_len": 0}
            dotted |= {name.replace("__", "."): value for name, value in settings.items()}
            return stack.enter_context(Broker(WORKERS, dotted, data_dir=small_disk / "data"))

        yield make


def names(prefix: str) -> list[str]:
    """A client id on each worker."""
    return [client_id_on(worker, WORKERS, f"{prefix}{worker}x") for worker in range(WORKERS)]


def watch_alarms(broker: Broker) -> Client:
    """On the worker through which the manager publishes: while it waits for the disk, it passes nothing on."""
    client = Client(broker.address, 5, client_id_on(0, WORKERS, "watchman"), timeout=10)
    client.subscribe("$SYS/brokers/+/alarms/#", 0)
    return client


def alarm(watchman: Client, what: str, name: str) -> dict[str, object]:
    """The next `activate` or `deactivate` of this name."""
    while True:
        message = watchman.expect(Publish)
        fields = json.loads(message.payload)
        if message.topic.endswith(f"/{what}") and fields["name"] == name:
            return dict(fields)


def expect_from(client: Client, topic: str) -> Publish:
    """The next message whose topic ends like this."""
    while True:
        message = client.expect(Publish)
        if message.topic.endswith(topic):
            return message


def queue_everywhere(broker: Broker) -> None:
    """A session with a subscription on each worker, whose client is away."""
    for name in names("s"):
        with stay(broker, name) as client:
            client.subscribe("q/#", 1)


def flood(publisher: Client, first: int, count: int, retain: bool = False) -> None:
    """QoS 1, 1 kB each, without waiting for an acknowledgement."""
    for number in range(first, first + count):
        payload = b"%d " % number + bytes(1000)
        publisher.send_raw(publish(f"q/{number}", payload, qos=1, packet_id=number + 1, retain=retain))


def acknowledged(publisher: Client, least: int) -> set[int]:
    """Numbers of messages: at least so many, and what more comes within a moment."""
    found = {publisher.expect(Puback).packet_id - 1 for _ in range(least)}
    while (packet := publisher.recv(0.5)) is not None:
        assert isinstance(packet, Puback)
        found.add(packet.packet_id - 1)
    return found


def everything(client: Client, count: int) -> list[int]:
    return [int(client.expect(Publish).payload.split()[0]) for _ in range(count)]


def kill_and_start(broker: Broker) -> None:
    broker.kill()
    broker.start()


def test_acknowledgements_wait_for_a_full_disk_and_nothing_is_lost(start: Callable[..., Broker], small_disk: Path) -> None:
    broker = start()
    queue_everywhere(broker)
    ballast = Ballast(small_disk, 300_000)
    with watch_alarms(broker) as watchman, ExitStack() as stack:
        publishers = [stack.enter_context(Client(broker.address, 5, name, timeout=10)) for name in names("p")]
        for number, publisher in enumerate(publishers):
            flood(publisher, number * 500, 500)
        begun = alarm(watchman, "activate", "journal_not_written")
        assert "No space left" in str(begun["message"])
        before = [acknowledged(publisher, 0) for publisher in publishers]
        assert sum(len(some) for some in before) < 1500
        # Who has nothing to do with sessions that stay goes on, within its worker.
        watchman.subscribe("other", 0)
        with Client(broker.address, 5, client_id_on(0, WORKERS, "passer")) as other:
            other.publish("other", b"goes on", 0)
            expect_from(watchman, "other")
        ballast.remove()
        ended = alarm(watchman, "deactivate", "journal_not_written")
        assert "all records are written" in str(ended["message"])
        for some, publisher in zip(before, publishers, strict=True):
            some |= acknowledged(publisher, 500 - len(some))
        assert set.union(*before) == set(range(1500))
    lines = [line for line in broker.output if "journal_not_written" in line]
    assert len(lines) <= 4 and "alarm deactivated" in lines[-1]  # begins, reaches the limit, ends
    kill_and_start(broker)
    for name in names("s"):
        with stay(broker, name) as client:
            assert sorted(everything(client, 1500)) == list(range(1500))


def test_at_the_limit_memory_stays_bounded_and_new_sessions_that_stay_are_refused(
    start: Callable[..., Broker], small_disk: Path
) -> None:
    broker = start(sys__msg_interval="1s")
    queue_everywhere(broker)
    ballast = Ballast(small_disk, 0)
    with watch_alarms(broker) as watchman, ExitStack() as stack:
        watchman.subscribe("$SYS/brokers/+/stats/journal/pending/count", 0)
        publishers = [stack.enter_context(Client(broker.address, 5, name, timeout=10)) for name in names("p")]
        for number, publisher in enumerate(publishers):
            flood(publisher, number * 1000, 1000)
        while "max_pending_bytes reached: " not in str(alarm(watchman, "activate", "journal_not_written")["message"]):
            pass
        with Client(broker.address, 5, "late", connect=False) as late:
            late.send_raw(connect("late", version=5, clean=False, properties=SESSION))
            assert late.expect(Connack).code == 0x88
        with Client(broker.address, 5, "clean") as clean:
            clean.ping()
        pending = [int(expect_from(watchman, "journal/pending/count").payload) for _ in range(2)]
        assert 0 < pending[-1] < WORKERS * 3 * LIMIT
        ballast.remove()
        found = [acknowledged(publisher, 1000) for publisher in publishers]
        assert set.union(*found) == set(range(3000))
    for name in names("s"):
        with stay(broker, name) as client:
            assert sorted(everything(client, 3000)) == list(range(3000))


def test_with_continue_everything_goes_on_and_sessions_are_written_anew(start: Callable[..., Broker], small_disk: Path) -> None:
    broker = start(durability__on_disk_error="continue", journal__capture="q/#")
    queue_everywhere(broker)
    ballast = Ballast(small_disk, 100_000)
    with watch_alarms(broker) as watchman, ExitStack() as stack:
        publishers = [stack.enter_context(Client(broker.address, 5, name, timeout=10)) for name in names("p")]
        for number, publisher in enumerate(publishers):
            flood(publisher, number * 600, 600)
            assert acknowledged(publisher, 600) == set(range(number * 600, number * 600 + 600))
        while "pending records dropped" not in str(alarm(watchman, "activate", "journal_not_written")["message"]):
            pass
        ballast.remove()
        ended = str(alarm(watchman, "deactivate", "journal_not_written")["message"])
        assert "present state of every session" in ended
    kill_and_start(broker)
    for name in names("s"):
        with stay(broker, name) as client:
            assert sorted(everything(client, 1800)) == list(range(1800))
    printed = ""
    for worker in range(WORKERS):
        command = [broker.command()[0], "journal", "cat", str(broker.data_dir / "journal" / str(worker))]
        printed += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    missed = sum(record["count"] for record in records if record["kind"] == "not_captured")
    captured = sum(1 for record in records if record["kind"] == "message" and record.get("captured"))
    assert missed > 0 and missed + captured == 1800, (missed, captured)


def test_a_worker_that_dies_while_the_disk_is_full_comes_back_when_there_is_room(
    start: Callable[..., Broker], small_disk: Path
) -> None:
    broker = start()
    queue_everywhere(broker)
    with Client(broker.address, 5, names("p")[1]) as publisher:
        for number in range(20):
            publisher.publish(f"q/{number}", b"%d " % number, 1)
    ballast = Ballast(small_disk, 0)
    with Client(broker.address, 5, names("o")[1]) as other:
        other.subscribe("other", 0)
        broker.kill_process(next(pid for pid in broker.child_pids("worker-0")))
        other.publish("other", b"goes on", 0)
        other.expect(Publish, topic="other")
        ballast.remove()
        with stay(broker, names("s")[0]) as client:
            assert client.connack is not None and client.connack.session_present
            assert everything(client, 20) == list(range(20))


@pytest.fixture
def faulty(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Broker, FaultyDisk]]:
    """A broker of which each process can be made to fail at the disk. The parameter is its level, "process" without one."""
    disk = FaultyDisk(tmp_path, tmp_path / "data")
    with monkeypatch.context() as patch:
        for name, value in disk.environment.items():
            patch.setenv(name, value)
        settings = {"mqtt.max_mqueue_len": 0, "durability.level": getattr(request, "param", "process")}
        broker = Broker(WORKERS, settings, data_dir=tmp_path / "data")
        broker.start()
    try:
        yield broker, disk
        if broker.process is not None and broker.process.poll() is None:
            disk.heal()
            broker.stop()
    finally:
        broker.kill()
        broker.stop() if broker.leftovers() else None


def test_retained_messages_wait_for_a_disk_that_has_become_read_only(faulty: tuple[Broker, FaultyDisk]) -> None:
    broker, disk = faulty
    with watch_alarms(broker) as watchman, Client(broker.address, 5, names("p")[1], timeout=10) as publisher:
        publisher.publish("q/0", b"0 before", 1, retain=True)
        disk.refuse()
        flood(publisher, 1, 50, retain=True)
        assert "Read-only" in str(alarm(watchman, "activate", "retained_not_written")["message"])
        assert acknowledged(publisher, 0) == set()
        disk.heal()
        alarm(watchman, "deactivate", "retained_not_written")
        assert acknowledged(publisher, 50) == set(range(1, 51))
    kill_and_start(broker)
    with Client(broker.address, 5, timeout=10) as reader:
        reader.subscribe("q/#", 0)
        assert sorted(everything(reader, 51)) == list(range(51))


def test_a_disk_slower_than_the_traffic_slows_publishers_down_and_is_told(faulty: tuple[Broker, FaultyDisk]) -> None:
    broker, disk = faulty
    queue_everywhere(broker)
    disk.slow_down(0.1)
    with watch_alarms(broker) as watchman, ExitStack() as stack:
        publishers = [stack.enter_context(Client(broker.address, 5, name, timeout=20)) for name in names("p")]
        sent = 0
        while True:
            for number, publisher in enumerate(publishers):
                flood(publisher, sent + number * 10, 10)
            sent += 30
            for publisher in publishers:
                for _ in range(10):
                    publisher.expect(Puback)
            told = [line for line in broker.output if "alarm activated name=journal_slow " in line]
            if told:
                break
        disk.heal()
        alarm(watchman, "deactivate", "journal_slow")
    for name in names("s"):
        with stay(broker, name) as client:
            assert sorted(everything(client, sent)) == list(range(sent))


@pytest.mark.parametrize("faulty", ["process", "machine"], indirect=True)
def test_wills_of_a_clean_stop_reach_other_workers_however_slow_the_disk(faulty: tuple[Broker, FaultyDisk]) -> None:
    """At level machine a will goes to another worker after a sync: that one has to be there still."""
    broker, disk = faulty
    queue_everywhere(broker)
    with ThreadPoolExecutor() as pool:
        for name in names("w"):
            client = Client(broker.address, 5, name, will=Will("q/will", name.encode(), 1))
            pool.submit(client.expect_close, 10)  # at once: nobody keeps a worker longer than its own work does
        disk.slow_down(0.2)
        broker.stop()  # which looks for rings that were left
    disk.heal()
    broker.start()
    for name in names("s"):
        with stay(broker, name) as client:
            client.expect_messages(*(name.encode() for name in names("w")), timeout=10)


def test_an_exclusive_subscription_is_released_when_its_end_is_in_the_journal(
    start: Callable[..., Broker], small_disk: Path
) -> None:
    """Otherwise a worker that is killed holds it again, beside the client that was granted it meanwhile."""
    broker = start(mqtt__exclusive_subscription="true")
    filter = "$exclusive/x"
    with ExitStack() as stack:
        watchman = stack.enter_context(watch_alarms(broker))
        holder = stack.enter_context(stay(broker, client_id_on(1, WORKERS, "holder")))
        other = stack.enter_context(Client(broker.address, 5, client_id_on(2, WORKERS, "other"), timeout=10))
        publisher = stack.enter_context(Client(broker.address, 5, client_id_on(1, WORKERS, "publisher"), timeout=10))
        with stay(broker, client_id_on(1, WORKERS, "absent")) as absent:
            absent.subscribe("q/#", 1)
        assert holder.subscribe(filter, 1).codes == (1,)
        ballast = Ballast(small_disk, 0)
        flood(publisher, 0, 200)
        alarm(watchman, "activate", "journal_not_written")
        holder.send_raw(unsubscribe(2, [filter]))
        assert holder.recv(1) is None, "not acknowledged: the journal does not have it"
        assert other.subscribe(filter, 1, check=False).codes == (0x97,)
        ballast.remove()
        assert holder.expect(Unsuback).codes == (0,)
        assert other.subscribe(filter, 1, check=False).codes == (1,)
        other.unsubscribe(filter)
        assert holder.subscribe(filter, 1, check=False).codes == (1,)
