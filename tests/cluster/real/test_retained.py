"""Retained messages on all nodes: published at one, found by a new subscriber at another; deletions; nodes that were away."""

import shutil
from base64 import b64encode

import pytest

from shardbroker.control import Control
from tests.cluster.real.network import network
from tests.cluster.real.nodes import Nodes, running
from tests.harness.waiting import until

SOON_S = 5.0


def retained(nodes: Nodes, number: int, filter: str = "#") -> dict[str, str]:
    """Topics and payloads (base64) of a node."""
    found: dict[str, str] = {}
    cursor = None
    with Control(nodes.brokers[number].data_dir) as control:
        while True:
            page = control.call("retained list", topic=filter, limit=1000, payload=True, **({"cursor": cursor} if cursor else {}))
            found |= {row["topic"]: row["payload"] for row in page["data"]}
            cursor = page["cursor"]
            if cursor is None:
                return found


def await_equal(nodes: Nodes, count: int, within_s: float = SOON_S) -> None:
    """Waits until all nodes have the same messages, and so many."""

    def describe() -> str:
        return f"{[len(retained(nodes, number)) for number in nodes.brokers]}\n{[nodes.output(number) for number in nodes.brokers]}"

    def are_equal() -> bool:
        first, *others = (retained(nodes, number) for number in nodes.brokers)
        return len(first) == count and all(other == first for other in others)

    until(are_equal, describe, within_s)


def test_a_new_subscriber_finds_what_was_published_at_another_node() -> None:
    with running(2, workers=2) as nodes:
        nodes.await_links(1, n2="up")
        with nodes.connect(1, "publisher") as publisher:
            publisher.publish("plant/1", b"first", qos=1, retain=True)
            publisher.publish("plant/2", b"second", qos=1, retain=True)
            await_equal(nodes, 2)
            with nodes.connect(2, "subscriber") as subscriber:
                subscriber.subscribe([("plant/#", 1)])
                subscriber.expect_messages(b"first", b"second")
            publisher.publish("plant/1", b"", qos=1, retain=True)
            await_equal(nodes, 1)
        with nodes.connect(2, "other") as other:
            other.publish("plant/2", b"", qos=1, retain=True)
        await_equal(nodes, 0)
        until(lambda: [peer["retained"] for peer in nodes.status(1)["peers"]] == ["synced"], lambda: str(nodes.status(1)))


def publish_all(nodes: Nodes, number: int, messages: dict[str, bytes]) -> None:
    with nodes.connect(number, f"publisher-{number}", timeout=20) as publisher:
        for topic, payload in messages.items():
            publisher.publish(topic, payload, qos=1, retain=True)


@pytest.mark.parametrize("level", ["process", "machine"])
def test_a_node_killed_behind_its_puback_gives_what_it_took_and_gets_what_it_missed(level: str) -> None:
    with running(2, workers=2, **{"durability.level": level, "cluster.join_timeout": "2s"}) as nodes:
        nodes.await_links(1, n2="up")
        publish_all(nodes, 1, {"both": b"1", "deleted": b"1"})
        await_equal(nodes, 2)
        nodes.brokers[2].stop()
        publish_all(nodes, 1, {"own": b"1", "deleted": b""})
        nodes.brokers[1].kill()
        assert nodes.brokers[1].process is not None
        nodes.brokers[1].process.wait(15)
        nodes.brokers[1].clear_shared()
        nodes.start([2])
        publish_all(nodes, 2, {"other": b"2"})
        nodes.start([1])
        nodes.await_links(1, n2="up")
        await_equal(nodes, 3)
        assert {*retained(nodes, 1)} == {"both", "own", "other"}
        assert nodes.kill_link(2)
        publish_all(nodes, 2, {"behind": b"2", "both": b""})
        await_equal(nodes, 3, 15)


def test_both_sides_of_a_split_change_the_same_topic() -> None:
    with network(2) as between, running(2, workers=1, network=between) as nodes:
        nodes.await_links(1, n2="up")
        publish_all(nodes, 1, {"t": b"before", "gone": b"before", "back": b"before"})
        await_equal(nodes, 3)
        between.split([1], [2])
        nodes.await_links(1, n2="down")
        publish_all(nodes, 1, {"t": b"earlier", "gone": b"earlier", "back": b""})
        publish_all(nodes, 2, {"t": b"later", "gone": b"", "back": b"later"})
        between.heal()
        nodes.await_links(1, n2="up")
        await_equal(nodes, 2, 10)
        assert retained(nodes, 1) == {topic: b64encode(b"later").decode() for topic in ("t", "back")}


def test_a_new_empty_node_gets_20000_messages_and_each_node_has_its_limits() -> None:
    count = 20_000
    each = {3: {"retainer.max_payload_size": "10"}}
    with running(3, workers=2, each=each, **{"cluster.join_timeout": "2s"}) as nodes:
        nodes.await_links(1, n2="up", n3="up")
        nodes.brokers[2].stop()
        shutil.rmtree(nodes.brokers[2].data_dir / "retained")
        with nodes.connect(1, "publisher", timeout=60) as publisher:
            for number in range(count):
                publisher.publish(f"plant/{number % 100}/{number}", b"%d" % number, retain=True)
            publisher.publish("large", b"x" * 11, qos=1, retain=True)
        nodes.start([2])
        nodes.await_links(1, n2="up")
        until(lambda: len(retained(nodes, 2)) == count + 1, lambda: nodes.output(2), 60)
        until(lambda: len(retained(nodes, 3)) == count, lambda: nodes.output(3), 60)
        assert retained(nodes, 2) == retained(nodes, 1)
        assert "large" not in retained(nodes, 3)
        until(lambda: nodes.counters(3)["retained.dropped"] == 1, lambda: str(nodes.counters(3)))  # "large" is the last one
        with Control(nodes.brokers[2].data_dir) as control:
            assert control.call("retained delete", topic="plant/0/0") == {"topic": "plant/0/0"}
            until(lambda: "plant/0/0" not in retained(nodes, 1), lambda: nodes.output(1), SOON_S)
            assert control.call("retained clear") == {"deleted": count}
        await_equal(nodes, 0, 60)


def test_messages_from_before_the_cluster_reach_the_others() -> None:
    with running(2, **{"cluster.join_timeout": "2s"}) as nodes:
        broker = nodes.brokers[1]
        broker.stop()
        in_cluster = {**broker.settings}
        broker.settings.update({"cluster.enable": "false"})
        broker.start()
        publish_all(nodes, 1, {f"old/{number}": b"1" for number in range(50)})
        broker.stop()
        broker.settings.update(in_cluster)
        nodes.start([1])
        nodes.await_links(1, n2="up")
        await_equal(nodes, 50)


def test_own_topics_of_a_broker_stay_there() -> None:
    with running(2, **{"sys.msg_interval": "1s"}) as nodes:
        nodes.await_links(1, n2="up")
        until(lambda: retained(nodes, 1, "$SYS/#") and retained(nodes, 2, "$SYS/#"))
        publish_all(nodes, 1, {"t": b"1"})
        await_equal(nodes, 1)
        assert not [topic for topic in retained(nodes, 2, "$SYS/#") if "n1@" in topic]
