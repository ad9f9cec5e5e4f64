"""No exception of a single message, session or command ends a worker, whatever road it has come by (THREAT_MODEL.md)."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardbroker.control import Control, ControlError
from tests.behaviour.faulty import FAULT
from tests.harness import Broker, Client, Closed, Publish, Will, client_id_on, until
from tests.harness.waiting import stop

pytestmark = pytest.mark.own_broker
WORKERS = 2
NEAR, FAR = range(WORKERS)
LEVELS = pytest.mark.parametrize("level", ["process", "machine"])
DEEP = "a/b/c/d/e"
SESSION = {"session_expiry_interval": 1000}


def on(broker: Broker, worker: int, name: str, **options: object) -> Client:
    return Client(broker.address, 5, client_id_on(worker, WORKERS, name), timeout=10, **options)  # type: ignore[arg-type]


def counted(broker: Broker, name: str) -> int:
    with Control(broker.data_dir) as control:
        return int(control.call("metrics").get(name, 0))


def set_levels(broker: Broker, levels: int) -> None:
    """A worker that does not answer has the setting when it starts again."""
    with contextlib.suppress(ControlError, OSError), Control(broker.data_dir) as control:
        control.call("config set", key="mqtt.max_topic_levels", value=str(levels))


def deaths(broker: Broker) -> list[str]:
    return [line for line in broker.output if "process died" in line or "exited with" in line]


def serves(broker: Broker) -> None:
    """Both workers route messages, and one to the other."""
    with on(broker, NEAR, "asks") as asks, on(broker, FAR, "answers") as answers:
        for there, back in ((asks, answers), (answers, asks)):
            back.subscribe("still/there", 1)
            there.publish("still/there", b"yes", 1)
            back.expect(Publish, payload=b"yes")
            back.unsubscribe("still/there")


def lined(broker: Broker, phrase: str) -> Callable[[], bool]:
    return lambda: any(phrase in line for line in broker.output)


# --- topics that are too deep by now ----------------------------------------------------------------------------------------------


@LEVELS
def test_a_message_of_a_shared_group_that_became_too_deep_is_dropped(level: str, tmp_path: Path) -> None:
    """It waits unacknowledged at a member whose session ends: another one is to get it, and its topic is no topic any more."""
    with Broker(WORKERS, {"durability.level": level}, tmp_path) as broker:
        pids = broker.child_pids("worker")
        member = on(broker, NEAR, "member", clean=False, properties={"session_expiry_interval": 1}, auto_ack=False)
        with member, on(broker, FAR, "publisher") as publisher:
            member.subscribe(f"$share/g/{DEEP}", 1)
            publisher.publish(DEEP, b"waits", 1)
            member.expect(Publish, payload=b"waits")
            set_levels(broker, 3)
            before = counted(broker, "messages.dropped.failed")
            member.cut()
            until(lambda: counted(broker, "messages.dropped.failed") > before)
        serves(broker)
        until(lined(broker, "message dropped"))
        assert broker.child_pids("worker") == pids and not deaths(broker), deaths(broker)


@LEVELS
@pytest.mark.parametrize("payload", [b"small", b"." * 100_000], ids=["in the ring", "spilled"])
@pytest.mark.parametrize("shared", [False, True], ids=["plain", "shared"])
def test_what_lies_in_a_ring_and_became_too_deep_is_dropped(level: str, payload: bytes, shared: bool, tmp_path: Path) -> None:
    settings = {"durability.level": level, "process.ring_size": "64KB"}
    with Broker(WORKERS, settings, tmp_path) as broker:
        with on(broker, FAR, "reader", clean=False, properties=SESSION) as reader, on(broker, NEAR, "publisher") as publisher:
            reader.subscribe(f"$share/g/{DEEP}" if shared else DEEP, 1)
            (victim,) = broker.child_pids("sb-worker-1")
            stop(victim)
            try:
                publisher.publish(DEEP, payload, 0)
                publisher.ping()
                if shared:
                    reader.cut()
                changing = threading.Thread(target=set_levels, args=(broker, 3))
                changing.start()
                time.sleep(0.5)  # the setting is kept before workers are told
            finally:
                broker.kill_process(victim)
            changing.join()
        until(lambda: victim not in broker.child_pids("sb-worker-1") and len(broker.child_pids("sb-worker-1")) == 1)
        serves(broker)
        if not shared:
            until(lambda: counted(broker, "messages.dropped.failed") >= 1)
        assert len(deaths(broker)) == 1, deaths(broker)


# --- any other exception ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty() -> Iterator[Broker]:
    settings = {
        "event_message.message_delivered": "true",
        "event_message.message_dropped": "true",
        "event_message.client_subscribed": "true",
        "process.ring_size": "64KB",
    }
    broker = Broker(WORKERS, settings)
    broker.program = (sys.executable, "-m", "tests.behaviour.faulty")
    broker.expects("a fault of the test")
    with broker:
        yield broker


@pytest.fixture
def watched(faulty: Broker) -> Iterator[Broker]:
    """Events are subscribed to; afterwards no worker has died, and both serve."""
    pids = faulty.child_pids("worker")
    with on(faulty, NEAR, "near-watcher") as near, on(faulty, FAR, "far-watcher") as far:
        for watcher in (near, far):
            watcher.subscribe("$event/#", 0)
        yield faulty
        serves(faulty)
    assert faulty.child_pids("worker") == pids and not deaths(faulty), faulty.output[-20:]


def expect_failure(broker: Broker, before: int) -> None:
    until(lambda: counted(broker, "messages.dropped.failed") > before)
    until(lined(broker, "message dropped"))


@pytest.mark.parametrize("size", [0, 100_000], ids=["in the ring", "spilled"])
def test_failure_of_what_came_by_a_ring(watched: Broker, size: int) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(watched, FAR, "reader") as reader, on(watched, NEAR, "publisher") as publisher:
        reader.subscribe("t", 1)
        for _ in range(3):
            publisher.publish("t", FAULT + b"." * size, 1)
        publisher.publish("t", b"fine", 1)
        while reader.expect(Publish).payload != b"fine":
            pass
        expect_failure(watched, before + 2)


def test_failure_of_what_is_published_by_ctl(watched: Broker) -> None:
    """No message is dropped without a word: the command's answer, or the counter, has it."""
    before = counted(watched, "messages.dropped.failed")
    with Control(watched.data_dir) as control, contextlib.suppress(ControlError):
        control.call("publish", topic="nobody/reads", payload=FAULT.decode())
        expect_failure(watched, before)


def test_failure_of_a_will_whose_delay_is_over(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    will = Will("nobody/reads", FAULT, 1, properties={"will_delay_interval": 1})
    with on(watched, NEAR, "goes", clean=False, properties=SESSION, will=will) as goes:
        goes.cut()
    expect_failure(watched, before)
    with on(watched, NEAR, "goes", clean=False, properties=SESSION) as again:
        assert again.connack is not None and again.connack.session_present


def test_failure_of_the_will_of_a_connection_that_broke(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(
        watched, NEAR, "breaks", clean=False, properties={"session_expiry_interval": 1}, will=Will("nobody/reads", FAULT, 1)
    ) as one:
        one.cut()
    expect_failure(watched, before)
    time.sleep(1.5)
    with on(watched, NEAR, "breaks", clean=False, properties=SESSION) as again:  # its session has ended as its expiry says
        assert again.connack is not None and not again.connack.session_present


def test_failure_of_a_delayed_message(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(watched, NEAR, "later") as publisher:
        publisher.publish("$delayed/1/nobody/reads", FAULT, 1)
        expect_failure(watched, before)
        assert counted(watched, "delayed.count") == 0


def test_failure_of_what_a_shared_group_passes_on(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(watched, NEAR, "first", auto_ack=False) as first, on(watched, NEAR, "publisher") as publisher:
        first.subscribe("$share/g/t", 1)
        with contextlib.suppress(Closed):  # it was delivered, and then the publisher's connection ended: an error of ours
            publisher.publish("t", FAULT, 1)
        with on(watched, NEAR, "second") as second:
            second.subscribe("$share/g/t", 1)
            first.cut()
            expect_failure(watched, before)


def test_failure_of_a_queued_message_is_of_its_receiver_alone(watched: Broker) -> None:
    """What waits in a queue is sent when the client comes back, or has acknowledged what came before."""
    with on(watched, FAR, "away", clean=False, properties=SESSION) as away:
        away.subscribe("t", 1)
    with on(watched, NEAR, "publisher") as publisher:
        publisher.publish("t", FAULT, 1)
        publisher.ping()
    with contextlib.suppress(Closed), on(watched, FAR, "away", clean=False, properties=SESSION) as away:
        away.recv(1)
    with contextlib.suppress(Closed), on(watched, FAR, "away") as away:  # clean: it can come again
        away.ping()


def test_failure_of_a_retained_message(watched: Broker) -> None:
    with on(watched, NEAR, "keeper") as keeper, contextlib.suppress(Closed):
        keeper.publish("kept", FAULT, 1, retain=True)
    with contextlib.suppress(Closed), on(watched, FAR, "reader") as reader:
        reader.subscribe("kept", 1)
        while reader.recv(1):
            pass
    with on(watched, NEAR, "keeper") as keeper:
        keeper.publish("kept", b"", 1, retain=True)


def test_failure_of_a_subscription(watched: Broker) -> None:
    """At the end of a pass, when its route is committed."""
    with on(watched, NEAR, "subscriber") as one, pytest.raises(Closed):
        one.subscribe("faulty/filter", 1, check=False)
        one.ping()
        one.ping()


def test_failure_of_a_look_up_is_of_the_connection_that_waits_for_it(watched: Broker) -> None:
    with on(watched, NEAR, "publisher") as publisher, on(watched, NEAR, "other") as other:
        with pytest.raises(Closed):
            publisher.publish("breaks/sb-worker-0/x", b"", 1)
        other.publish("breaks/not/here", b"", 1)


def test_failure_of_the_look_up_of_a_will(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(watched, NEAR, "breaks", will=Will("breaks/sb-worker-0/will", b"", 1)) as one:
        one.drop()
    expect_failure(watched, before)


def test_failure_of_the_look_up_of_what_came_by_a_ring(watched: Broker) -> None:
    before = counted(watched, "messages.dropped.failed")
    with on(watched, FAR, "reader") as reader, on(watched, NEAR, "publisher") as publisher:
        reader.subscribe("breaks/#", 1)
        for size in (0, 100_000):  # one in the ring, one spilled
            publisher.publish("breaks/sb-worker-1/x", b"." * size, 1)
        publisher.publish("breaks/fine", b"fine", 1)
        reader.expect(Publish, payload=b"fine")
    until(lambda: counted(watched, "messages.dropped.failed") == before + 2)


@LEVELS
def test_failure_of_a_will_after_a_restart(level: str, tmp_path: Path) -> None:
    """The connection went with its worker, and its will is published by the successor, which must not die of that."""
    settings = {"durability.level": level, "event_message.message_dropped": "true"}
    broker = Broker(WORKERS, settings, tmp_path)
    broker.program = (sys.executable, "-m", "tests.behaviour.faulty")
    with broker, on(broker, FAR, "watcher") as watcher:
        watcher.subscribe("$event/#", 0)
        with on(broker, NEAR, "breaks", clean=False, properties=SESSION, will=Will("nobody/reads", FAULT, 1)) as one:
            one.ping()
            (victim,) = broker.child_pids("sb-worker-0")
            broker.kill_process(victim)
            with contextlib.suppress(Closed):
                one.recv(5)
        serves(broker)
        until(lambda: counted(broker, "messages.dropped.failed") == 1)
        assert len(deaths(broker)) == 1, deaths(broker)
