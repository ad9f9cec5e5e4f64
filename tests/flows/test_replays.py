"""`$replay/<period>/<filter>` with two workers: the past and the present without a seam, once and in order, over kills."""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 2
KEPT = {"session_expiry_interval": 300}
SETTINGS: dict[str, Any] = {"journal.capture": ["log/#"]}
NOT_KEPT, INVALID = 0x83, 0x8F


@pytest.fixture
def broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, SETTINGS, Path(name)) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, SETTINGS, Path(name)) as broker:
        yield broker


def on(broker: Broker, worker: int, name: str, **arguments: Any) -> Client:
    return Client(broker.address, arguments.pop("version", 5), client_id_on(worker, WORKERS, name), timeout=30, **arguments)


def publish(broker: Broker, first: int, last: int, topic: str = "log/a", qos: int = 1) -> list[bytes]:
    """Publishes numbers by a client of each worker in turn."""
    sent = []
    for worker in range(WORKERS):
        with on(broker, worker, "pub") as client:
            for number in range(first, last):
                client.publish(topic, b"%d %d" % (worker, number), qos)
                sent.append(b"%d %d" % (worker, number))
    return sent


def received(client: Client, many: int) -> list[Publish]:
    found = []
    for _ in range(many):
        found.append(client.expect(Publish))
        if not client.auto_ack:  # what is not taken is not acknowledged
            client.ack(found[-1])
    return found


def by_publisher(found: Iterable[bytes]) -> list[bytes]:
    """Sorted by publisher: the order of each is kept, that of several is the order of time as far as it is known."""
    return sorted(found, key=lambda payload: payload[:2])


def payloads(client: Client, many: int) -> list[bytes]:
    return [message.payload for message in received(client, many)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_past_and_then_the_present(shared: Broker, qos: int, version: int) -> None:
    topic = f"log/{qos}{version}/x"
    past = publish(shared, 0, 50, topic, 2)
    with on(shared, 0, f"sub{qos}{version}x", version=version) as client:
        client.subscribe(f"$replay/1h/log/{qos}{version}/#", qos)
        assert by_publisher(payloads(client, 100)) == by_publisher(past)
        present = publish(shared, 50, 100, topic, 2)
        messages = received(client, 100)
        assert by_publisher(message.payload for message in messages) == by_publisher(present)
        assert {(message.topic, message.qos, message.retain) for message in messages} == {(topic, qos, False)}
        client.fence()
        client.expect_none()


def test_what_a_message_says_of_its_time_and_place(shared: Broker) -> None:
    before_ms = time.time() * 1000
    with on(shared, 1, "pub-props") as client:
        client.publish("log/props", b"x", 1, properties={"content_type": "text/plain", "user_property": [("a", "b")]})
    with on(shared, 0, "sub-props") as client:
        client.subscribe("$replay/1m/log/props", 1)
        message = client.expect(Publish)
    pairs = dict(message.properties["user_property"])
    assert message.properties["content_type"] == "text/plain" and pairs["a"] == "b"
    assert before_ms - 1 <= int(pairs["published_at"]) <= time.time() * 1000
    assert pairs["position"].startswith("1/")


def test_periods(shared: Broker) -> None:
    times, sent = [], []
    for part in range(3):
        times.append(int(time.time() * 1000))
        time.sleep(0.02)
        sent.append(publish(shared, part, part + 1, "log/periods"))
        time.sleep(0.02)
    begin, middle, end = (datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds") for at in times)
    expected = {
        "earliest": sent, "1h": sent, "2020-01-01T00:00:00Z": sent, f"{times[1]}": sent[1:], "latest": [],
        middle.replace("+00:00", "Z"): sent[1:], f"0..{times[1]}": sent[:1], f"{times[1]}..{times[2]}": sent[1:2],
        f"{begin[:-6]}Z..{end[:-6]}Z": sent[:2],
    }  # fmt: skip
    for number, (period, parts) in enumerate(expected.items()):
        wanted = [payload for part in parts for payload in part]
        with on(shared, number % WORKERS, f"periods{number}x") as client:
            client.subscribe(f"$replay/{period}/log/periods", 1)
            assert by_publisher(payloads(client, len(wanted))) == by_publisher(wanted), period
            client.fence()
            client.expect_none()


@pytest.mark.parametrize(
    ("filter", "code"),
    [
        ("$replay/1h/other/#", NOT_KEPT),
        ("$replay/1h/#", NOT_KEPT),
        ("$replay/1h/+/a", NOT_KEPT),
        ("$replay/soon/log/a", INVALID),
        ("$replay/1h", INVALID),
        ("$replay//log/a", INVALID),
        ("$replay/1h/", INVALID),
        ("$replay/2h..3h/log/a", INVALID),
        ("$share/g/$replay/1h/log/a", INVALID),
        ("$exclusive/$replay/1h/log/a", INVALID),
        ("$replay/1h/$replay/1h/log/a", INVALID),
        ("$replay/1h/$share/g/log/a", INVALID),
        ("$replay/99999999999w/log/a", INVALID),
        ("$replay/2026-02-30T00:00:00Z/log/a", INVALID),
        ("$replay/1h/log/#/a", INVALID),
    ],
)  # fmt: skip
def test_what_is_refused(shared: Broker, filter: str, code: int) -> None:
    with on(shared, 0, "refused") as client:
        assert client.subscribe(filter, 1, check=False).codes == (code,)
        if code == NOT_KEPT:
            assert "journal.capture" in str(client.subscribe(filter, 1, check=False).properties["reason_string"])
        client.ping()


def test_it_ends_with_the_subscription(shared: Broker) -> None:
    publish(shared, 0, 2, "log/end")
    with on(shared, 0, "end") as client:
        client.subscribe("$replay/1h/log/end", 1)
        payloads(client, 4)
        client.unsubscribe("$replay/1h/log/end")
        publish(shared, 2, 4, "log/end")
        client.fence()
        client.expect_none()
        client.subscribe("$replay/1h/log/end", 1)
        assert len(payloads(client, 8)) == 8


def test_no_local_and_a_slow_client(shared: Broker) -> None:
    """A window of one: everything waits for its acknowledgement, and other clients do not."""
    sent = publish(shared, 0, 300, "log/slow")
    with on(shared, 1, "slow", properties={"receive_maximum": 1}) as client:
        client.subscribe("$replay/1h/log/slow", 1, no_local=True)
        client.publish("log/slow", b"own", 1)
        with on(shared, 0, "fast") as other:
            other.subscribe("$replay/1h/log/slow", 1)
            assert sorted(payloads(other, 601)) == sorted([*sent, b"own"])
        assert by_publisher(payloads(client, 600)) == by_publisher(sent)
        client.fence()
        client.expect_none()


def test_a_session_goes_on_where_it_was(broker: Broker) -> None:
    sent = publish(broker, 0, 200)
    with on(broker, 0, "sub", properties=KEPT, auto_ack=False) as client:
        client.subscribe("$replay/1h/log/#", 1)
        found = payloads(client, 150)
    sent += publish(broker, 200, 300)
    with on(broker, 0, "sub", clean=False, properties=KEPT, auto_ack=False) as client:
        while set(sent) - set(found):
            found += payloads(client, 1)
        assert by_publisher(without_repeats(found)) == by_publisher(sent)
    broker.terminate()
    broker.stop()
    broker.start()
    sent += publish(broker, 300, 310)
    with on(broker, 0, "sub", clean=False, properties=KEPT, auto_ack=False) as client:
        client.subscribe("$replay/1h/log/#", 1)
        assert by_publisher(payloads(client, 20)) == by_publisher(sent[-20:])
        client.fence()
        client.expect_none()


def test_another_number_of_workers(broker: Broker) -> None:
    """Journals of workers that no longer exist are read, too, and each from where the session was."""
    sent = publish(broker, 0, 50)
    found: list[bytes] = []
    with on(broker, 0, "sub", properties=KEPT, auto_ack=False) as client:
        client.subscribe("$replay/1h/log/#", 1)
        found += payloads(client, 60)
    for workers in (3, 1, 2):
        broker.terminate()
        broker.stop()
        broker.workers = workers
        broker.start()
        sent += publish(broker, 100 * workers, 100 * workers + 20)
        with on(broker, 0, "sub", clean=False, properties=KEPT, auto_ack=False) as client:
            found += payloads(client, 10)
    with on(broker, 0, "sub", clean=False, properties=KEPT, auto_ack=False) as client:
        while set(sent) - set(found):
            found += payloads(client, 1)
    assert by_publisher(without_repeats(found)) == by_publisher(sent)


def test_a_journal_that_was_removed_by_hand(broker: Broker) -> None:
    """Its positions begin again: the new one is read from its start, and the others from where the session was."""
    sent = publish(broker, 0, 50)
    with on(broker, 0, "sub", properties=KEPT) as client:
        client.subscribe("$replay/1h/log/#", 1)
        assert by_publisher(payloads(client, 100)) == by_publisher(sent)
        client.fence()
    broker.terminate()
    broker.stop()
    shutil.rmtree(broker.data_dir / "journal" / "1")
    broker.start()
    sent = publish(broker, 50, 60)
    with on(broker, 0, "sub", clean=False, properties=KEPT) as client:
        assert by_publisher(payloads(client, 20)) == by_publisher(sent)
        client.fence()
        client.expect_none()


def without_repeats(found: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(found))


@contextmanager
def two_publishers(broker: Broker, topic: str) -> Iterator[dict[int, list[bytes]]]:
    """Two clients publish at QoS 1 whatever is killed. Yields what was acknowledged: all of it, behind the block."""
    stop = threading.Event()
    sent: dict[int, list[bytes]] = {0: [], 1: []}

    def publish_on(worker: int) -> None:
        for number in count():
            if stop.is_set():
                return
            payload = b"%d %d" % (worker, number)
            while True:
                try:
                    with on(broker, worker, "kill-pub", properties=KEPT, clean=False) as client:
                        client.publish(topic, payload, 1)
                    break
                except (OSError, AssertionError, TimeoutError, EOFError):
                    time.sleep(0.05)
            sent[worker].append(payload)

    threads = [threading.Thread(target=publish_on, args=(worker,)) for worker in sent]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("victim", ["flows-0", "worker-0", "worker-1", "broker"])
def test_no_seam_over_kills(broker: Broker, victim: str) -> None:
    """Two publishers go on while a process is killed again and again: each message once for a client that loses no connection."""
    found: list[bytes] = []
    with two_publishers(broker, "log/k") as sent:
        for _ in range(4):
            with on(broker, 0, "kill-sub", properties=KEPT, clean=False, auto_ack=False) as client:
                client.subscribe("$replay/1h/log/#", 1)
                found += payloads(client, 30)
                kill(broker, victim)
                if victim in ("flows-0", "worker-1"):
                    found += payloads(client, 30)
    everything = {payload for of_worker in sent.values() for payload in of_worker}
    with on(broker, 0, "kill-sub", properties=KEPT, clean=False, auto_ack=False) as client:
        client.subscribe("$replay/1h/log/#", 1)
        while everything - set(found):
            found += payloads(client, 1)
    for worker, of_worker in sent.items():
        own = [payload for payload in without_repeats(found) if payload.startswith(b"%d " % worker)]
        assert own == of_worker
    if victim in ("flows-0", "worker-1"):
        assert len(found) - len(set(found)) <= 30 * 5  # publishers and acknowledgements whose connection ended


def kill(broker: Broker, victim: str) -> None:
    if victim == "broker":
        broker.kill()
        broker.start()
        return
    (pid,) = broker.child_pids(victim)
    broker.kill_process(pid)
    until(lambda: broker.child_pids(victim) not in ([], [pid]))


def test_topics_that_are_captured_from_now_on() -> None:
    """The process that reads journals is started by the change; what was published before is not there."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, {}, Path(name)) as broker:
        publish(broker, 0, 1)
        with on(broker, 1, "late") as client, Control(broker.data_dir) as control:
            assert client.subscribe("$replay/1h/log/#", 1, check=False).codes == (NOT_KEPT,)
            control.call("config set", key="journal.capture", value='["log/#"]')
            client.subscribe("$replay/1h/log/#", 1)
            sent = publish(broker, 1, 3)
            assert by_publisher(payloads(client, 4)) == by_publisher(sent)
            control.call("config set", key="replay.max_replays", value="0")
            assert client.subscribe("$replay/2h/log/#", 1, check=False).codes == (NOT_KEPT,)


def test_replays_that_wait_for_others() -> None:
    settings = {**SETTINGS, "replay.max_replays": 1}
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(1, settings, Path(name)) as broker:
        with Client(broker.address, 5, "pub") as client:
            client.publish("log/a", b"x", 1)
        with Client(broker.address, 5, "second") as second:
            with Client(broker.address, 5, "first") as first:
                first.subscribe("$replay/1h/log/#", 1)
                first.expect(Publish, payload=b"x")
                second.subscribe("$replay/1h/log/#", 1)
                second.fence()
                second.expect_none()
            second.expect(Publish, payload=b"x")


def test_listed_as_any_subscription(shared: Broker) -> None:
    with on(shared, 0, "listed") as client, Control(shared.data_dir) as control:
        client.subscribe("$replay/15m/log/#", 1)
        rows = control.call("subscriptions list", clientid=client.client_id)["data"]
        assert [row["topic"] for row in rows] == ["$replay/15m/log/#"]
