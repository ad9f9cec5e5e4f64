"""Look-ups that take many passes: messages from other workers wait neither for those of all publishers nor behind one another."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from shardbroker.mqtt.packets import Publish, Subscribe
from tests.harness import Broker, Client, client_id_on
from tests.harness.waiting import stopped, until
from tests.harness.workers import Workers, take, workers_in_process
from tests.overload.attacks import crossed_filters

LEVELS, PUBLISHERS = 11, 20
TOPIC = b"/".join([b"a"] * LEVELS)
PASSES_MAX = 40
"""Of the worker of the subscriber. One look-up takes some 15 out of its turn; all before it in the queue take 80."""
PASSES_BEHIND = 3
"""For a topic that is in the cache: one pass takes it from the ring, one writes it."""


def subscribe_to_many(workers: Workers) -> socket.socket:
    """Returns a client of worker 0 with so many filters that a look-up of TOPIC takes many passes, and one for plain topics."""
    subscriber = workers.connect(0, "subscriber")
    filters = [(filter.encode(), 0) for filter in crossed_filters(LEVELS)] + [(b"plain/#", 0)]
    for start in range(0, len(filters), 256):
        subscriber.sendall(Subscribe(start + 1, filters[start : start + 256]).encode(4))
        for _ in range(10):
            workers.workers[0].one_pass(0)
    assert take(subscriber)
    return subscriber


def passes_until(workers: Workers, subscriber: socket.socket, wanted: bytes) -> tuple[int, bytes]:
    """Returns the number of passes of worker 0 until the subscriber has received `wanted`, and all that it has received."""
    passes, received = 0, b""
    while wanted not in received and passes < 10 * PASSES_MAX:
        workers.workers[0].one_pass(0)
        passes += 1
        received += take(subscriber)
    return passes, received


def test_a_message_from_a_ring_does_not_wait_for_all_look_ups_before_it(tmp_path: Path) -> None:
    with workers_in_process(tmp_path, ["mqtt.max_subscriptions=0"]) as workers:
        subscriber, far = subscribe_to_many(workers), workers.connect(1, "far")
        near = [workers.connect(0, f"near{number}x") for number in range(PUBLISHERS)]
        workers.turn()
        for number, end in enumerate(near):
            end.sendall(Publish(TOPIC + b"/near%d" % number, b"", 0).encode(4))
        workers.workers[0].one_pass(0)
        far.sendall(Publish(TOPIC + b"/far", b"over the ring", 0).encode(4))
        for _ in range(200):
            workers.workers[1].one_pass(0)
        passes, _ = passes_until(workers, subscriber, b"over the ring")
        assert passes <= PASSES_MAX, f"{passes} passes"


def test_a_message_behind_a_long_look_up_in_a_ring_waits_only_for_its_own_publisher(tmp_path: Path) -> None:
    with workers_in_process(tmp_path, ["mqtt.max_subscriptions=0"]) as workers:
        subscriber = subscribe_to_many(workers)
        hostile, other = workers.connect(1, "hostile"), workers.connect(1, "other")
        other.sendall(Publish(b"plain/other", b"first", 0).encode(4))
        workers.turn(10)
        assert b"first" in take(subscriber)
        hostile.sendall(
            b"".join(Publish(TOPIC + b"/%d" % number, b"long%d." % number, 0).encode(4) for number in range(5))
            + Publish(b"plain/hostile", b"hostile last", 0).encode(4)
        )
        for _ in range(400):
            workers.workers[1].one_pass(0)
        other.sendall(Publish(b"plain/other", b"behind", 0).encode(4))
        workers.workers[1].one_pass(0)
        passes, received = passes_until(workers, subscriber, b"behind")
        assert passes <= PASSES_BEHIND and b"hostile last" not in received, f"{passes} passes"
        _, rest = passes_until(workers, subscriber, b"hostile last")
        received += rest
        places = [received.index(text) for text in (*(b"long%d." % number for number in range(5)), b"hostile last")]
        assert places == sorted(places), "order of a publisher"


def test_many_messages_that_wait_for_look_ups_are_bounded_and_all_arrive_in_order(tmp_path: Path) -> None:
    many = 1_500                           # above the number that a worker sets aside
    with workers_in_process(tmp_path, ["mqtt.max_subscriptions=0"]) as workers:
        subscriber, hostile = subscribe_to_many(workers), workers.connect(1, "hostile")
        workers.turn()
        hostile.sendall(Publish(TOPIC + b"/long", b"", 0).encode(4))
        for _ in range(200):
            workers.workers[1].one_pass(0)
        for start in range(0, many, 100):
            hostile.sendall(b"".join(Publish(b"plain/x", b"number%06d" % n, 0).encode(4) for n in range(start, start + 100)))
            workers.workers[1].one_pass(0)
        _, received = passes_until(workers, subscriber, b"number%06d" % (many - 1))
        places = [received.index(b"number%06d" % number) for number in range(many)]
        assert places == sorted(places)


def test_messages_that_wait_for_look_ups_outlive_their_worker() -> None:
    settings = {"mqtt.max_subscriptions": 0, "durability.level": "process"}
    with Broker(2, settings) as broker, ExitStack() as stack:
        name = client_id_on(0, 2, "subscriber")

        def connect(expiry_s: int) -> Client:
            kept = {"session_expiry_interval": expiry_s}
            return stack.enter_context(Client(broker.address, 5, name, clean=False, timeout=20, properties=kept))

        subscriber = connect(300)
        filters = crossed_filters(LEVELS)
        for start in range(0, len(filters), 256):
            subscriber.subscribe([(filter, 2) for filter in filters[start : start + 256]])
        subscriber.disconnect()
        hostile = stack.enter_context(Client(broker.address, 5, client_id_on(1, 2, "hostile"), timeout=60))
        worker = broker.child_pids("sb-worker-0")[0]
        sent = [b"%d" % number for number in range(30)]
        with stopped(worker):
            for number, payload in enumerate(sent):
                hostile.publish(TOPIC.decode() + f"/{number}", payload, qos=1 + number % 2)
        time.sleep(0.05)                   # it takes them from the ring, which is empty behind that, and 30 look-ups take longer
        broker.kill_process(worker)
        until(lambda: broker.child_pids("sb-worker-0") not in ([], [worker]), "worker 0 is back")
        back = connect(0)
        back.expect_messages(*sent)
        back.expect_none()
