"""Messages that rules need: those with a route to the feed are in the journal of their publisher's worker, flagged, once.

No rule exists here, so the test writes the routes of FROM into the route table by itself.
"""

import tempfile
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from shardbroker.control import Control
from shardbroker.journal.follow import Batch, Follower
from shardbroker.journal.schema import Detail, Kind, MessageFlag
from shm.destinations import FEED_DESTINATION
from tests.harness import Broker, Client, Puback, Publish, Will, client_id_on, until
from tests.harness.routes import Routes

pytestmark = pytest.mark.own_broker
WORKERS = 2
NO_MATCHING_SUBSCRIBERS = 0x10
KEPT = {"session_expiry_interval": 300}

Message = tuple[bytes, bytes, int]
"""Topic, payload, flags."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(WORKERS, {}, Path(name)) as broker:
        yield broker


@pytest.fixture
def routes(broker: Broker) -> Routes:
    return Routes(broker)


def records(broker: Broker, worker: int, *kinds: Kind) -> list[tuple[object, ...]]:
    """Returns (sequence, kind, field, ...) of all records of these kinds."""
    follower = Follower(broker.data_dir / "journal" / str(worker), kinds=kinds)
    found: list[tuple[object, ...]] = []
    while not follower.at_end:
        for part in follower.read():
            assert isinstance(part, Batch), part
            found += part.records
    return found


def messages(broker: Broker, worker: int) -> list[Message]:
    return [(topic, payload, flags) for _, _, _, topic, payload, flags, *_ in records(broker, worker, Kind.MESSAGE)]  # type: ignore[misc]


def fed(broker: Broker, worker: int) -> list[tuple[bytes, bytes]]:
    return [(topic, payload) for topic, payload, flags in messages(broker, worker) if flags & MessageFlag.FED]


def on(broker: Broker, worker: int, name: str, **arguments: object) -> Client:
    return Client(broker.address, 5, client_id_on(worker, WORKERS, name), timeout=10, **arguments)  # type: ignore[arg-type]


def test_each_message_is_fed_once_by_its_publishers_worker(broker: Broker, routes: Routes) -> None:
    routes.change(True, b"fed/+/x", FEED_DESTINATION)
    sent: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: []}
    with on(broker, 0, "near", properties=KEPT) as near, on(broker, 1, "away", properties=KEPT) as away:
        for client in (near, away):
            client.subscribe("fed/#", 2)
        for worker in sent:
            with on(broker, worker, f"publisher{worker}") as publisher:
                for number in range(6):
                    payload = b"%d %d" % (worker, number)
                    publisher.publish("fed/1/x", payload, number % 3)
                    publisher.publish("fed/1/y", payload, number % 3)
                    sent[worker].append((b"fed/1/x", payload))
                publisher.ping()
        near.expect_messages(*[payload for _, payload in [*sent[0], *sent[1]]] * 2)
    for worker, expected in sent.items():
        until(lambda worker=worker, expected=expected: fed(broker, worker) == expected)
        others = [flags for topic, _, flags in messages(broker, worker) if topic == b"fed/1/y" or not flags & MessageFlag.FED]
        assert others and not any(flags & (MessageFlag.FED | MessageFlag.CAPTURED) for flags in others)


def test_a_rule_is_no_subscriber(broker: Broker, routes: Routes) -> None:
    routes.change(True, b"#", FEED_DESTINATION)
    with on(broker, 0, "publisher") as publisher:
        publisher.publish("nobody/here", b"x", 1, wait=False)
        assert publisher.expect(Puback).code == NO_MATCHING_SUBSCRIBERS
        publisher.publish("$internal/topic", b"x", 1)
    until(lambda: fed(broker, 0) == [(b"nobody/here", b"x")])
    with Control(broker.data_dir) as control:
        assert control.call("metrics")["messages.dropped.unroutable"] == 0
        assert control.call("metrics")["messages.dropped.no_subscribers"] == 2


def test_a_route_holds_from_the_next_message_until_it_is_removed(broker: Broker, routes: Routes) -> None:
    """Publishers go on meanwhile: what begins behind a change sees it."""
    ended, changed = threading.Event(), threading.Event()
    first_behind, sent = {}, {0: 0, 1: 0}

    def publish(worker: int) -> None:
        with on(broker, worker, f"publisher{worker}") as publisher:
            for number in count():
                if ended.is_set():
                    break
                if changed.is_set():
                    first_behind.setdefault(worker, number)
                publisher.publish("fed/t", b"%d" % number, 1)
                sent[worker] = number + 1

    threads = [threading.Thread(target=publish, args=(worker,)) for worker in sent]
    for thread in threads:
        thread.start()
    until(lambda: min(sent.values()) > 50)
    routes.change(True, b"fed/t", FEED_DESTINATION)
    changed.set()
    until(lambda: len(first_behind) == WORKERS and min(sent[worker] - first_behind[worker] for worker in sent) > 50)
    ended.set()
    for thread in threads:
        thread.join()
    routes.change(False, b"fed/t", FEED_DESTINATION)
    for worker in sent:
        with on(broker, worker, "later") as later:
            later.publish("fed/t", b"later", 1)
        found = [int(payload) for _, payload in fed(broker, worker)]
        assert found == [*range(found[0], sent[worker])]
        assert 50 < found[0] <= first_behind[worker]


def test_analytics_and_rules_share_a_record(broker: Broker, routes: Routes) -> None:
    broker.stop()
    broker.settings["journal.capture"] = "both/#"
    broker.start()
    Routes(broker).change(True, b"+/fed", FEED_DESTINATION)
    with on(broker, 0, "publisher") as publisher:
        for topic in ("both/fed", "both/not", "only/fed"):
            publisher.publish(topic, b"x", 1)
    expected = {
        b"both/fed": MessageFlag.CAPTURED | MessageFlag.FED, b"both/not": MessageFlag.CAPTURED, b"only/fed": MessageFlag.FED,
    }  # fmt: skip
    until(lambda: {topic: flags & ~MessageFlag.QOS for topic, _, flags in messages(broker, 0)} == expected)


def test_what_the_broker_publishes_is_fed(broker: Broker, routes: Routes) -> None:
    routes.change(True, b"fed/#", FEED_DESTINATION)
    on(broker, 0, "gone", will=Will("fed/will", b"will", 1)).cut()
    with on(broker, 0, "publisher") as publisher:
        publisher.publish("$delayed/1/fed/delayed", b"delayed", 1)
    with Control(broker.data_dir) as control:
        control.call("publish", topic="fed/ctl", payload="ctl", qos=1)
    expected = [(b"fed/ctl", b"ctl"), (b"fed/delayed", b"delayed"), (b"fed/will", b"will")]
    until(lambda: sorted([*fed(broker, 0), *fed(broker, 1)]) == expected)


def test_the_publisher_is_described_before_its_first_message_in_a_segment(broker: Broker, routes: Routes) -> None:
    broker.stop()
    broker.settings["journal.segment_bytes"] = "64KB"
    broker.start()
    Routes(broker).change(True, b"fed/#", FEED_DESTINATION)
    with on(broker, 0, "sensor", username="who") as publisher:
        publisher.publish("other", b"x", 1)
        for _ in range(30):
            publisher.publish("fed/t", bytes(10_000), 1)
    with on(broker, 0, "sensor") as publisher:
        publisher.publish("fed/t", b"again", 1)
    name = client_id_on(0, WORKERS, "sensor").encode()
    found = records(broker, 0, Kind.PUBLISHER)
    assert {record[2] for record in found} == {name}
    details = [record[3] for record in found]
    assert len(details) > 4, "segments have 64 KB"
    for one in details[:-1]:
        assert one[Detail.USERNAME] == b"who"  # type: ignore[index]
    for one in details:
        assert one[Detail.PEER].startswith(b"127.0.0.1:") and one[Detail.LISTENER] == b"default" and one[Detail.VERSION] == 5  # type: ignore[index]
    assert Detail.USERNAME not in details[-1]  # type: ignore[operator]
    assert details[-1][Detail.PEER] != details[0][Detail.PEER]  # type: ignore[index]
    kinds = [record[1] for record in records(broker, 0, Kind.MESSAGE, Kind.PUBLISHER)]
    assert (kinds[0], kinds[-2:]) == (Kind.PUBLISHER, [Kind.PUBLISHER, Kind.MESSAGE])


def test_nothing_acknowledged_is_missing_after_kills(broker: Broker, routes: Routes) -> None:
    routes.change(True, b"fed/#", FEED_DESTINATION)
    acknowledged = []
    for turn in range(3):
        with on(broker, 1, "publisher") as publisher:
            for number in range(100):
                acknowledged.append(b"%d %d" % (turn, number))
                publisher.publish("fed/t", acknowledged[-1], 1 + number % 2)
        broker.kill_process(broker.child_pids("worker-1")[0])
    until(lambda: [payload for _, payload in fed(broker, 1)] == acknowledged)


def test_a_subscriber_gets_a_fed_message_as_any_other(broker: Broker, routes: Routes) -> None:
    routes.change(True, b"fed/t", FEED_DESTINATION)
    with on(broker, 0, "publisher") as publisher, on(broker, 1, "subscriber") as subscriber:
        subscriber.subscribe("fed/t", 1)
        publisher.publish("fed/t", b"x", 1, retain=True)
        assert subscriber.expect(Publish).payload == b"x"
    with on(broker, 0, "late") as late:
        late.subscribe("fed/t", 1)
        assert late.expect(Publish, retain=True).payload == b"x"
