"""Full queues with mqtt.mqueue_overflow = push_back: acknowledgements wait, and nothing that waits is lost.

Subscribers here acknowledge at a rate of their own, and publishers have a window, as client libraries do.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.handoff.conftest import replace
from tests.harness import Broker, Client, Puback, Pubcomp, Publish, Pubrec, Pubrel, client_id_on, until, wire
from tests.harness.client import Closed
from tests.harness.waiting import stopped
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker
WORKERS = 2
QUEUE = 40
WINDOW = 20
"""Messages that a publisher has in flight."""
MESSAGES = 600
LONG_S = 60.0
"""For what ends by itself, on a machine that is busy."""
SETTINGS = {"mqtt.max_mqueue_len": str(QUEUE), "mqtt.max_inflight": "4"}
PUSH_BACK = {**SETTINGS, "mqtt.mqueue_overflow": "push_back"}
HASTY_S = 2.0
"""`mqtt.push_back_timeout` where a test waits for its end: much longer than a process of a busy machine does not run."""
BURSTS = 4
"""Between two looks at a counter, which takes time during which no message is sent."""
STAYS = {"session_expiry_interval": 1000}


@contextlib.contextmanager
def broker_of(settings: dict[str, str]) -> Iterator[Broker]:
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as data_dir,
        Broker(WORKERS, settings, data_dir=Path(data_dir)) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def pushing() -> Iterator[Broker]:
    with broker_of(PUSH_BACK) as broker:
        yield broker


@pytest.fixture(scope="module")
def dropping() -> Iterator[Broker]:
    with broker_of(SETTINGS) as broker:
        yield broker


@pytest.fixture(params=["process", "machine"])
def level(request: pytest.FixtureRequest) -> str:
    """durability.level: with machine, what is released waits for syncs as well."""
    return str(request.param)


@pytest.fixture
def hasty() -> Iterator[Broker]:
    """A broker whose acknowledgements wait for a short time only."""
    with broker_of({**PUSH_BACK, "mqtt.push_back_timeout": f"{HASTY_S:g}s"}) as broker:
        yield broker


def counter(broker: Broker, name: str) -> int:
    with Control(broker.data_dir) as control:
        return int(control.call("metrics")[name])


def dropped(broker: Broker) -> int:
    return counter(broker, "delivery.dropped.queue_full") + counter(broker, "delivery.dropped.queue_stalled")


def wait_for(look: Callable[[], object], what: str, timeout_s: float = LONG_S) -> Any:
    return until(look, lambda: what, timeout_s)


class Slow(threading.Thread):
    """A subscriber that takes `pause_s` for each message, until `stop`."""

    def __init__(
        self, broker: Broker, worker: int, filter: str, qos: int, pause_s: float = 0.001, name: str = "slow", **options: object
    ) -> None:
        super().__init__(daemon=True)
        self.client = Client(broker.address, 5, client_id_on(worker, WORKERS, name), auto_ack=False, timeout=20, **options)  # type: ignore[arg-type]
        self.client.subscribe(filter, qos)
        self.pause_s = pause_s
        self.got: list[bytes] = []
        self.ended = False
        self.start()

    def run(self) -> None:
        while not self.ended:
            try:
                packet = self.client.recv(0.1)
            except (Closed, OSError):
                return
            if isinstance(packet, Publish):
                self.got.append(packet.payload)
                if packet.qos:
                    time.sleep(self.pause_s)
                    self.client.ack(packet)
            elif isinstance(packet, Pubrel):
                self.client.send_raw(wire.pubcomp(packet.packet_id))

    def stop(self) -> None:
        self.ended = True
        self.join(5)
        self.client.close()


def publish_all(client: Client, topic: str, qos: int, first: int = 0, count: int = MESSAGES, window: int = WINDOW) -> float:
    """Publishes with a window; returns the longest time without an acknowledgement, seconds."""
    sent, acked, longest = first, first, 0.0
    client.auto_ack = False
    while acked < first + count:
        while sent < first + count and sent - acked < window:
            client.publish(topic, b"%d" % sent, qos, wait=False)
            sent += 1
        began = time.monotonic()
        packet = client.recv(LONG_S)
        longest = max(longest, time.monotonic() - began)
        assert packet is not None, f"{acked} of {count} acknowledged, then nothing for {LONG_S} s"
        if isinstance(packet, Pubrec):
            client.send_raw(wire.pubrel(packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            acked += 1
        elif isinstance(packet, Publish):
            client.ack(packet)
    return longest


def publish_until_held(broker: Broker, publisher: Client, topic: str, first: int = 0) -> int:
    """Publishes without a window until acknowledgements wait; returns the number of messages, whose packet ids begin with 1."""
    before, sent = counter(broker, "overload.acks_held"), first
    deadline = time.monotonic() + LONG_S
    while counter(broker, "overload.acks_held") == before:
        assert time.monotonic() < deadline, f"{sent} messages, and all are acknowledged"
        for _ in range(BURSTS):
            for _ in range(WINDOW):
                publisher.publish(topic, b"%d" % sent, 1, wait=False, packet_id=sent + 1)
                sent += 1
            publisher.ping()
    return sent


def payloads(count: int = MESSAGES, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


@pytest.fixture(params=[0, 1], ids=["same-worker", "other-worker"])
def far(request: pytest.FixtureRequest) -> int:
    """Worker of the subscriber; publishers are on worker 0."""
    return int(request.param)


def publisher_of(broker: Broker, name: str = "publisher", version: int = 5) -> Client:
    return Client(broker.address, version, client_id_on(0, WORKERS, name), timeout=20)


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_lost_for_a_slow_subscriber(pushing: Broker, topic: str, far: int, qos: int) -> None:
    before = dropped(pushing)
    slow = Slow(pushing, far, topic, qos)
    with publisher_of(pushing) as publisher:
        publish_all(publisher, topic, qos)
    wait_for(lambda: len(slow.got) >= MESSAGES, "all messages")
    slow.stop()
    assert slow.got == payloads()
    assert dropped(pushing) == before
    assert counter(pushing, "overload.acks_held") > 0


def test_level_machine(topic: str, far: int) -> None:
    """QoS 1 and 2 of one publisher: released acknowledgements wait for the disks, and stay in their order."""
    with broker_of({**PUSH_BACK, "durability.level": "machine"}) as broker:
        slow = Slow(broker, far, topic, 2, clean=False, properties=STAYS)
        with publisher_of(broker) as publisher:
            for first in range(0, MESSAGES, MESSAGES // 4):
                publish_all(publisher, topic, 1 + first // (MESSAGES // 4) % 2, first, MESSAGES // 4)
            assert publish_all(publisher, f"{topic}/none", 1, count=WINDOW) < HASTY_S
        wait_for(lambda: len(slow.got) >= MESSAGES, "all messages")
        slow.stop()
        assert slow.got == payloads()
        assert dropped(broker) == 0
        assert counter(broker, "overload.acks_held") > 0


@pytest.mark.parametrize("qos", [1, 2])
def test_drop_loses_messages(dropping: Broker, topic: str, far: int, qos: int) -> None:
    """The same load without push_back, which shows that the test above can fail."""
    before = dropped(dropping)
    slow = Slow(dropping, far, topic, qos)
    with publisher_of(dropping) as publisher:
        publish_all(publisher, topic, qos)
    wait_for(lambda: dropped(dropping) > before, "a drop")
    slow.stop()
    assert counter(dropping, "overload.acks_held") == 0


def test_a_publisher_without_a_window(pushing: Broker, topic: str, far: int) -> None:
    """More unacknowledged messages than are kept track of: its socket is not read, and nothing is lost."""
    before = dropped(pushing)
    slow = Slow(pushing, far, topic, 1, 0.0005)
    with publisher_of(pushing, version=4) as publisher:
        publish_all(publisher, topic, 1, count=3000, window=3000)
    wait_for(lambda: len(slow.got) >= 3000, "all messages")
    slow.stop()
    assert slow.got == payloads(3000)
    assert dropped(pushing) == before


def test_a_subscriber_that_stands_still(hasty: Broker, topic: str, far: int) -> None:
    """Its publishers go on after push_back_timeout, and messages are dropped until it has room again."""
    with Client(hasty.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still:
        still.subscribe(topic, 1)
        with publisher_of(hasty) as publisher:
            # How many are acknowledged before the report arrives from another worker is up to the scheduler.
            longest, sent, deadline = 0.0, 0, time.monotonic() + LONG_S
            while longest < HASTY_S / 4:
                assert time.monotonic() < deadline, f"{sent} messages, and none waited"
                longest = publish_all(publisher, topic, 1, sent, WINDOW)
                sent += WINDOW
            assert longest < HASTY_S + 2.5
            wait_for(lambda: counter(hasty, "overload.subscribers_stalled") == 1, "the queue has stalled")
            # Two for each further message, until nothing is left of the reserve.
            while dropped(hasty) != sent - QUEUE - 4:
                assert time.monotonic() < deadline, f"{sent} messages, {dropped(hasty)} dropped"
                assert publish_all(publisher, topic, 1, sent) < HASTY_S
                sent += MESSAGES
                still.fence(publisher)
            # It acknowledges again: the queue gets empty, and publishers wait for it once more.
            got = []
            while isinstance(packet := still.recv(1.0), Publish):
                still.ack(packet)
                got.append(packet.payload)
            assert got == [*payloads(4), *payloads(QUEUE, sent - QUEUE)]
            assert counter(hasty, "overload.subscribers_stalled") == 1
            assert counter(hasty, "delivery.dropped.queue_stalled") == dropped(hasty)
            publish_until_held(hasty, publisher, topic)


def test_a_subscriber_that_takes_an_eighth_never_stalls(hasty: Broker, topic: str, far: int) -> None:
    """It takes longer than push_back_timeout until an eighth of its queue is free, because of what is in the reserve."""
    slow = Slow(hasty, far, topic, 1, HASTY_S / 100)
    with publisher_of(hasty, version=4) as publisher:
        publish_all(publisher, topic, 1, count=MESSAGES // 2, window=MESSAGES // 2)
    wait_for(lambda: len(slow.got) >= MESSAGES // 2, "all messages")
    slow.stop()
    assert slow.got == payloads(MESSAGES // 2)
    assert far or counter(hasty, "overload.acks_held") > 0  # all may be acknowledged before the report of another worker arrives
    assert dropped(hasty) == counter(hasty, "overload.subscribers_stalled") == 0


def test_other_publishers_do_not_wait(pushing: Broker, topic: str, far: int) -> None:
    with (
        Client(pushing.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still,
        publisher_of(pushing) as greedy, publisher_of(pushing, "innocent") as innocent,
    ):  # fmt: skip
        still.subscribe(f"{topic}/still", 1)
        stalled = counter(pushing, "overload.subscribers_stalled")
        publish_until_held(pushing, greedy, f"{topic}/still")
        for _ in range(50):
            innocent.publish(f"{topic}/else", b"x", 1)
        assert counter(pushing, "overload.subscribers_stalled") == stalled, "the other one does not wait any more"


def test_other_packets_of_the_publisher_do_not_wait(pushing: Broker, topic: str, far: int) -> None:
    """PINGREQ, SUBSCRIBE and deliveries, while its own acknowledgements wait; these keep their order."""
    with (
        Client(pushing.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still,
        publisher_of(pushing) as publisher,
        publisher_of(pushing, "other") as other,
    ):
        still.subscribe(topic, 1)
        publisher.subscribe(f"{topic}/in", 1)
        sent = publish_until_held(pushing, publisher, topic)
        # To a topic without subscribers: behind the others.
        publisher.publish(f"{topic}/none", b"", 1, wait=False, packet_id=60000)
        publisher.ping()
        publisher.subscribe(f"{topic}/more", 1)
        other.publish(f"{topic}/in", b"delivered", 1)
        acknowledged = [packet.packet_id for packet in iter_until(publisher, Publish, b"delivered") if isinstance(packet, Puback)]
        assert 60000 not in acknowledged and len(acknowledged) < sent
        while isinstance(packet := still.recv(0.5), Publish):
            still.ack(packet)
        acknowledged += [publisher.expect(Puback).packet_id for _ in range(sent + 1 - len(acknowledged))]
        assert acknowledged == [*range(1, sent + 1), 60000]


def iter_until(client: Client, kind: type, payload: bytes) -> Iterator[object]:
    while True:
        packet = client.recv()
        assert packet is not None
        if isinstance(packet, kind) and getattr(packet, "payload", payload) == payload:
            return
        yield packet


def test_two_clients_that_publish_to_each_other(pushing: Broker, topic: str, far: int) -> None:
    """Both saturate the queue of the other one, without a window: neither stops being read, or they would wait for each other."""
    clients = [
        Client(pushing.address, 4, client_id_on(worker, WORKERS, f"c{number}"), timeout=20)
        for number, worker in enumerate((0, far))
    ]
    for number, client in enumerate(clients):
        client.subscribe(f"{topic}/{number}", 1)
    ends: list[float] = []

    def run(number: int) -> None:
        ends.append(publish_all(clients[number], f"{topic}/{1 - number}", 1, count=2500, window=2500))
        while len(ends) < 2:  # the other one waits for what this one acknowledges
            if isinstance(packet := clients[number].recv(0.05), Publish):
                clients[number].ack(packet)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert len(ends) == 2, "a client is not acknowledged any more"
    assert max(ends) < 4.0, "acknowledgements arrive because of push_back_timeout only"
    for client in clients:
        client.close()


def test_a_client_that_publishes_to_itself(pushing: Broker, topic: str) -> None:
    before = dropped(pushing)
    with publisher_of(pushing) as client:
        client.subscribe(topic, 1)
        assert publish_all(client, topic, 1) < 4.0
    assert dropped(pushing) == before


def test_another_member_of_a_shared_group_is_tried_first(pushing: Broker, topic: str, far: int) -> None:
    before = dropped(pushing)
    with Client(pushing.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still:
        still.subscribe(f"$share/g/{topic}", 1)
        quick = Slow(pushing, far, f"$share/g/{topic}", 1, 0.0, "quick")
        with publisher_of(pushing) as publisher:
            # It has acknowledged more recently than the other one, or that may be waited for while the queues of both are full.
            first, known = 0, None
            while known is None or len(quick.got) < known + 2:
                publisher.publish(topic, b"%d" % first, 1)
                first += 1
                if known is None and isinstance(still.recv(0.01), Publish):
                    known = len(quick.got)
            longest = publish_all(publisher, topic, 1, first)
        assert longest < 4.0
        wait_for(lambda: len(quick.got) >= first + MESSAGES - QUEUE - 4, "the other member")
        quick.stop()
    assert dropped(pushing) == before


def test_another_member_of_a_shared_group_gets_room(pushing: Broker, topic: str, far: int) -> None:
    """All members are full, so acknowledgements wait for the one that took the message, but only until any of them has room."""
    with (
        Client(pushing.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still,
        Client(pushing.address, 5, client_id_on(far, WORKERS, "late"), auto_ack=False, timeout=20) as late,
        publisher_of(pushing) as publisher,
    ):
        for member in (still, late):
            member.subscribe(f"$share/g/{topic}", 1)
        stalled = counter(pushing, "overload.subscribers_stalled")
        sent = publish_until_held(pushing, publisher, topic)
        for member in (late, still):
            while isinstance(packet := member.recv(0.3), Publish):
                member.ack(packet)
            if member is late:
                for i in range(sent):
                    publisher.expect(Puback, 3.0, packet_id=i + 1)
                assert counter(pushing, "overload.subscribers_stalled") == stalled


def test_what_a_member_of_a_shared_group_leaves_behind_is_queued(pushing: Broker, topic: str, far: int) -> None:
    """It has been acknowledged, and the queues of the members that stay are full."""
    before = dropped(pushing)
    with contextlib.ExitStack() as stack:
        leaving, staying = (
            stack.enter_context(Client(pushing.address, 5, client_id_on(worker, WORKERS, name), auto_ack=False, timeout=20))
            for worker, name in ((0, "leaving"), (far, "staying"))
        )
        for member in (leaving, staying):
            member.subscribe(f"$share/g/{topic}", 1)
        count = 2 * (QUEUE + 4)
        with publisher_of(pushing) as publisher:
            for payload in payloads(count):
                publisher.publish(topic, payload, 1, wait=False)
            publisher.ping()
            leaving.ping()
            leaving.disconnect()
            got: set[bytes] = set()
            while len(got) < count:
                packet = staying.expect(Publish, timeout=LONG_S)
                staying.ack(packet)
                got.add(packet.payload)
    assert got == set(payloads(count))
    assert dropped(pushing) == before


def test_one_slow_subscriber_of_many(pushing: Broker, topic: str, far: int) -> None:
    before = dropped(pushing)
    slow = Slow(pushing, far, f"{topic}/#", 1)
    others = [Slow(pushing, worker, f"{topic}/+", 1, 0.0, f"quick{worker}") for worker in range(WORKERS)]
    with publisher_of(pushing) as publisher:
        publish_all(publisher, f"{topic}/x", 1)
    for one in (slow, *others):
        wait_for(lambda one=one: len(one.got) >= MESSAGES, "all messages")  # type: ignore[misc]
        one.stop()
        assert one.got == payloads()
    assert dropped(pushing) == before


def test_qos_0_and_wills_are_dropped_themselves(hasty: Broker, topic: str, far: int) -> None:
    """What has no acknowledgement does not wait, and takes no place of a message that has one."""
    with Client(hasty.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20) as still:
        still.subscribe(topic, 1)
        doomed = Client(hasty.address, 5, client_id_on(0, WORKERS, "doomed"), will=Will(topic, b"will", 1))
        with publisher_of(hasty) as publisher:
            for i in range(4 + QUEUE):
                publisher.publish(topic, b"%d" % i, 1)
            publisher.publish(topic, b"zero", 0)
            publisher.ping()
            doomed.cut()
            wait_for(lambda: dropped(hasty) == 1, "a drop")
        assert counter(hasty, "overload.acks_held") == 0
        got = []
        while isinstance(packet := still.recv(1.0), Publish):
            got.append(packet.payload)
            if packet.qos:
                still.ack(packet)
        # QoS 0 does not wait in the queue while the socket takes it.
        assert sorted(got) == sorted([*payloads(4 + QUEUE), b"zero"])


def test_absent_clients_drop(pushing: Broker, topic: str, far: int) -> None:
    name = client_id_on(far, WORKERS, "away")
    before, held = dropped(pushing), counter(pushing, "overload.acks_held")
    with Client(pushing.address, 5, name, clean=False, properties=STAYS) as away:
        away.subscribe(topic, 1)
        away.disconnect()
    with publisher_of(pushing) as publisher:
        assert publish_all(publisher, topic, 1, count=3 * QUEUE) < 2.0
    wait_for(lambda: dropped(pushing) >= before + 2 * QUEUE, "drops")
    assert counter(pushing, "overload.acks_held") == held


def test_a_subscriber_that_leaves_makes_nobody_wait(pushing: Broker, topic: str, far: int) -> None:
    held = counter(pushing, "overload.acks_held")
    still = Client(pushing.address, 5, client_id_on(far, WORKERS, "still"), auto_ack=False, timeout=20)
    still.subscribe(topic, 1)
    with publisher_of(pushing) as publisher:
        done = threading.Thread(target=publish_all, args=(publisher, topic, 1), daemon=True)
        done.start()
        wait_for(lambda: counter(pushing, "overload.acks_held") > held, "acknowledgements that wait")
        still.cut()
        done.join(4.0)
        assert not done.is_alive()


@pytest.mark.parametrize("victim", ["publisher", "subscriber"])
def test_a_worker_that_is_killed_meanwhile(topic: str, far: int, victim: str, level: str) -> None:
    """What was acknowledged arrives; a publisher whose worker lives gets acknowledgements after push_back_timeout at the latest."""
    settings = {**PUSH_BACK, "mqtt.push_back_timeout": "2s", "mqtt.max_mqueue_len": "400", "durability.level": level}
    with broker_of(settings) as broker:
        name = client_id_on(far, WORKERS, "still")
        still = Client(broker.address, 5, name, clean=False, properties=STAYS, auto_ack=False, timeout=20)
        still.subscribe(topic, 1)
        publisher = publisher_of(broker)
        publish_until_held(broker, publisher, topic)
        acknowledged = 0
        worker = 0 if victim == "publisher" else far
        (pid,) = broker.child_pids(f"sb-worker-{worker}")
        while isinstance(publisher.recv(0.2), Puback):
            acknowledged += 1
        broker.kill_process(pid)
        with contextlib.suppress(Closed):
            while isinstance(publisher.recv(4.0), Puback):
                acknowledged += 1
        still.close()
        publisher.close()
        got: set[bytes] = set()

        def back() -> Client | None:
            with contextlib.suppress(Closed, OSError, AssertionError):
                return Client(broker.address, 5, name, clean=False, properties=STAYS, timeout=20)
            return None

        client = wait_for(back, "the worker")
        with client:
            while isinstance(packet := client.recv(1.0), Publish):
                got.add(packet.payload)
        assert got >= {*payloads(acknowledged)}, "an acknowledged message is lost"


@pytest.mark.parametrize("replaced", ["publisher", "subscriber"])
def test_a_worker_that_is_replaced_meanwhile(topic: str, far: int, level: str, replaced: str) -> None:
    """What waits is sent before, also by the worker of the publisher when that of the subscriber moves; afterwards publishers wait
    again, for the queue that has moved."""
    with (
        broker_of({**PUSH_BACK, "mqtt.push_back_timeout": f"{LONG_S:g}s", "durability.level": level}) as broker,
        publisher_of(broker) as publisher,
        Client(
            broker.address, 5, client_id_on(far, WORKERS, "still"), clean=False, properties=STAYS, auto_ack=False, timeout=20
        ) as still,
    ):
        still.subscribe(topic, 1)
        first = publish_until_held(broker, publisher, topic)
        replace(broker, 0 if replaced == "publisher" else far)
        assert [publisher.expect(Puback).packet_id for _ in range(first)] == [*range(1, first + 1)]
        sent = publish_until_held(broker, publisher, topic, first)
        got = []
        while len(got) < sent:
            message = still.expect(Publish)
            still.ack(message)
            got.append(message.payload)
        assert got == payloads(sent)
        assert [publisher.expect(Puback).packet_id for _ in range(first, sent)] == [*range(first + 1, sent + 1)]
        assert dropped(broker) == 0


def saturate(broker: Broker, topic: str) -> int:
    """Fills the queue of a client that acknowledges nothing; returns how many messages were dropped."""
    before = dropped(broker)
    with Client(broker.address, 5, client_id_on(1, WORKERS, "still"), auto_ack=False, timeout=20) as still:
        still.subscribe(topic, 1)
        with publisher_of(broker) as publisher:
            for i in range(QUEUE + 4 + WINDOW):
                publisher.publish(topic, b"%d" % i, 1, wait=False, packet_id=i + 1)
            publisher.ping()
            still.fence(publisher_of(broker, "fence"))
        return dropped(broker) - before


def test_topics_that_push_back(topic: str) -> None:
    with broker_of({**SETTINGS, "mqtt.push_back_topics": f'["{topic}/orders/#", "x/+"]'}) as broker:
        assert saturate(broker, f"{topic}/orders/1") == 0
        assert saturate(broker, f"{topic}/other") == WINDOW


@pytest.mark.parametrize(("everywhere", "listener", "lost"), [("push_back", "drop", WINDOW), ("drop", "push_back", 0)])
def test_a_listener_decides_for_its_clients(topic: str, everywhere: str, listener: str, lost: int) -> None:
    settings = {**SETTINGS, "mqtt.mqueue_overflow": everywhere, "listeners.default.mqueue_overflow": listener}
    with broker_of(settings) as broker:
        assert saturate(broker, topic) == lost


def test_a_change_while_the_broker_runs(topic: str) -> None:
    with broker_of(SETTINGS) as broker, Control(broker.data_dir) as control:
        assert saturate(broker, f"{topic}/1") == WINDOW
        control.call("config set", key="mqtt.mqueue_overflow", value="push_back")
        assert saturate(broker, f"{topic}/2") == 0
        # What waits is sent when it ends.
        with (
            Client(broker.address, 5, client_id_on(1, WORKERS, "still"), auto_ack=False) as still,
            publisher_of(broker) as publisher,
        ):
            still.subscribe(topic, 1)
            sent = publish_until_held(broker, publisher, topic)
            control.call("config set", key="mqtt.mqueue_overflow", value="drop")
            for i in range(sent):
                publisher.expect(Puback, 2.0, packet_id=i + 1)
        assert saturate(broker, f"{topic}/3") == WINDOW


def test_a_subscriber_of_a_stopped_worker_bounds_the_wait(topic: str) -> None:
    """The worker of the subscriber hangs: its release never arrives."""
    with (
        broker_of({**PUSH_BACK, "mqtt.push_back_timeout": "1s"}) as broker,
        publisher_of(broker) as publisher,
        Client(broker.address, 5, client_id_on(1, WORKERS, "still"), auto_ack=False) as still,
    ):
        still.subscribe(topic, 1)
        sent = publish_until_held(broker, publisher, topic)
        (pid,) = broker.child_pids("sb-worker-1")
        with stopped(pid):
            for i in range(sent):
                publisher.expect(Puback, 4.0, packet_id=i + 1)
