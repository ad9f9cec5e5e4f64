"""Slow subscriptions, metrics of topics, the loudest clients, alarms: what they tell is what the clients saw."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from shardbroker.cli.main import main
from shardbroker.control import Control, ControlError
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 3
THRESHOLD_MS = 200
PATIENCE_S = 60
"""For a packet that must arrive: only against hanging."""
ROUNDING_MS = 2
"""Of a span: the broker's times are in whole ms, and so are the clocks of two workers to each other."""


@pytest.fixture(scope="module")
def own() -> Iterator[Broker]:
    with Broker(WORKERS, {"retainer.max_payload_size": "1000"}) as broker:
        yield broker


@pytest.fixture
def asked(own: Broker) -> Iterator[Control]:
    with Control(own.data_dir) as control:
        yield control


def refused(control: Control, verb: str, **params: Any) -> str:
    with pytest.raises(ControlError) as error:
        control.call(verb, **params)
    return error.value.code


# --- slow subscriptions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(asked: Control) -> Iterator[Control]:
    asked.call(
        "config update", values={"slow_subs.enable": "true", "slow_subs.threshold": f"{THRESHOLD_MS}ms", "slow_subs.top_k_num": "2"}
    )
    yield asked
    for key in ("enable", "threshold", "top_k_num"):
        asked.call("config reset", key=f"slow_subs.{key}")
    asked.call("slow-subs clear")


class Spans(NamedTuple):
    """What a delivery lasted by the clients' clocks, ms, however long the machine has not run one of the processes."""

    least: float
    """From the arrival to the acknowledgement."""
    most: float
    """From before the publish until the acknowledgement had been read."""
    most_internal: float
    """From before the publish to the arrival."""

    def allow(self, timespan: int) -> bool:
        return self.least - ROUNDING_MS <= timespan <= self.most + ROUNDING_MS


def deliver(own: Broker, subscriber: str, topic: str, wait_s: float) -> Spans:
    """One QoS 1 message that the subscriber acknowledges after a while, which is longer than the broker has taken to send it."""
    publisher = client_id_on(0, WORKERS, "sl-p")
    with (
        Client(own.address, 5, subscriber, auto_ack=False, timeout=PATIENCE_S) as one,
        Client(own.address, 5, publisher, timeout=PATIENCE_S) as two,
    ):
        one.subscribe(topic, 1)
        began = time.monotonic()
        two.publish(topic, b"x", qos=1)
        message = one.expect(Publish)
        arrived = time.monotonic()
        time.sleep(max(wait_s, 2 * (arrived - began)) if wait_s else 0)
        acknowledged = time.monotonic()
        one.ack(message)
        one.ping()
        return Spans((acknowledged - arrived) * 1e3, (time.monotonic() - began) * 1e3, (arrived - began) * 1e3)


def test_slow_subscribers_are_listed_the_slowest_first_and_as_many_as_wanted(own: Broker, slow: Control) -> None:
    spans = {
        f"slow/{place}": deliver(own, client_id_on(place % WORKERS, WORKERS, f"slow{place}x"), f"slow/{place}", wait_s)
        for place, wait_s in enumerate((0.3, 0.7, 0.5, 0.0))
    }
    first, second = rows = slow.call("slow-subs list")["data"]
    assert all(spans[row["topic"]].allow(row["timespan"]) for row in rows), (rows, spans)
    assert first["timespan"] >= second["timespan"] and first["topic"] != second["topic"]
    left_out = [one for topic, one in spans.items() if topic not in (first["topic"], second["topic"])]
    assert all(one.least - ROUNDING_MS <= second["timespan"] for one in left_out), (rows, spans)
    slow.call("slow-subs clear")
    assert slow.call("slow-subs list")["data"] == []


@pytest.mark.parametrize(("kind", "counts"), [("whole", True), ("internal", False), ("response", True)])
def test_what_is_measured_can_be_chosen(own: Broker, slow: Control, kind: str, counts: bool) -> None:
    """By `internal` the wait of the subscriber does not count: listed is only what the broker itself took so long to send."""
    slow.call("config set", key="slow_subs.stats_type", value=kind)
    span = deliver(own, f"kind-{kind}", f"kind/{kind}", 0.3)
    rows = slow.call("slow-subs list")["data"]
    if counts:
        assert len(rows) == 1 and span.allow(rows[0]["timespan"])
    else:
        assert all(row["timespan"] <= span.most_internal + ROUNDING_MS for row in rows)
        assert not rows or span.most_internal + ROUNDING_MS >= THRESHOLD_MS
    slow.call("config reset", key="slow_subs.stats_type")


def test_what_waited_in_the_queue_is_slow_by_the_broker(own: Broker, slow: Control) -> None:
    slow.call("config set", key="slow_subs.stats_type", value="internal")
    name = client_id_on(1, WORKERS, "queue")
    with Client(own.address, 5, name, clean=False, properties={"session_expiry_interval": 60}) as client:
        client.subscribe("waits", 1)
    with Client(own.address, 5, "wait-p") as publisher:
        publisher.publish("waits", b"x", qos=1)
        time.sleep(0.4)
    with Client(own.address, 5, name, clean=False, properties={"session_expiry_interval": 60}) as client:
        client.expect(Publish)
        rows = until(lambda: slow.call("slow-subs list")["data"])
    assert (rows[0]["clientid"], rows[0]["topic"]) == (name, "waits") and rows[0]["timespan"] >= 400
    slow.call("config reset", key="slow_subs.stats_type")


def test_nothing_is_measured_unless_it_is_wanted_and_nothing_retained(own: Broker, asked: Control, slow: Control) -> None:
    with Client(own.address, 5, "ret-p") as publisher:
        publisher.publish("kept/long", b"x", qos=0, retain=True)
    time.sleep(0.3)
    with Client(own.address, 5, "ret-s") as client:
        client.subscribe("kept/long", 1)
        client.expect(Publish)
        client.ping()
    assert slow.call("slow-subs list")["data"] == []
    slow.call("config set", key="slow_subs.enable", value="false")
    deliver(own, "not-measured", "not/measured", 0.3)
    assert slow.call("slow-subs list")["data"] == []


# --- metrics of topics -----------------------------------------------------------------------------------------------------------


def test_messages_of_a_topic_and_of_a_filter_are_counted_over_workers(own: Broker, asked: Control) -> None:
    asked.call("topic-metrics add", topic="tm/a")
    asked.call("topic-metrics add", topic="tm/#")
    publisher, subscriber = client_id_on(0, WORKERS, "tm-p"), client_id_on(1, WORKERS, "tm-s")
    with Client(own.address, 5, publisher) as one, Client(own.address, 5, subscriber) as two:
        asked.call("journal status")  # behind what workers were told
        two.subscribe("tm/a", 1)
        for _ in range(5):
            one.publish("tm/a", b"x", qos=1)
            two.expect(Publish)
        one.publish("tm/a", b"x", qos=2)
        two.expect(Publish)
        one.publish("tm/nobody", b"x", qos=1)
        two.ping()
        row = asked.call("topic-metrics show", topic="tm/a")
        wide = asked.call("topic-metrics show", topic="tm/#")
    expected = {"in": 6, "out": 6, "dropped": 0, "qos1.in": 5, "qos2.in": 1, "qos1.out": 6, "qos0.out": 0}
    assert {name: row[f"messages.{name}.count"] for name in expected} == expected
    assert (wide["messages.in.count"], wide["messages.out.count"], wide["messages.dropped.count"]) == (7, 6, 1)
    asked.call("topic-metrics reset", topic="tm/a")
    assert asked.call("topic-metrics show", topic="tm/a")["messages.in.count"] == 0
    assert asked.call("topic-metrics show", topic="tm/#")["messages.in.count"] == 7
    assert asked.call("config get", key="topic_metrics.topics")["data"][0]["value"] == '["tm/a", "tm/#"]'
    asked.call("topic-metrics delete", topic="tm/a")
    assert [row["topic"] for row in asked.call("topic-metrics list")["data"]] == ["tm/#"]
    asked.call("topic-metrics delete", topic="tm/#")


def test_counts_go_on_when_a_worker_is_started_again_and_rates_are_told(own: Broker, asked: Control) -> None:
    asked.call("topic-metrics add", topic="rate")
    name = client_id_on(2, WORKERS, "rates")
    with Client(own.address, 5, name) as client:
        asked.call("journal status")
        for _ in range(10):
            client.publish("rate", b"", qos=1)
        assert asked.call("topic-metrics show", topic="rate")["messages.in.count"] == 10
        (victim,) = own.child_pids("sb-worker-2")
        own.kill_process(victim)
        until(lambda: (pids := own.child_pids("sb-worker-2")) and victim not in pids)
    with Client(own.address, 5, name) as client:
        until(lambda: asked.call("workers list")["data"][2]["state"] == "ready")

        def moved() -> bool:
            client.publish("rate", b"", qos=1)
            row = asked.call("topic-metrics show", topic="rate")
            return bool(row["messages.in.count"] > 10 and row["messages.in.rate"] > 0)

        until(moved, 20)
    asked.call("topic-metrics delete", topic="rate")


def test_bad_topics_are_refused_with_a_code(asked: Control) -> None:
    asked.call("topic-metrics add", topic="there")
    assert refused(asked, "topic-metrics add", topic="there") == "ALREADY_EXISTS"
    assert refused(asked, "topic-metrics add", topic="a/#/b") == "BAD_REQUEST"
    for verb in ("show", "delete", "reset"):
        assert refused(asked, f"topic-metrics {verb}", topic="not/there") == "NOT_FOUND"
    values = ", ".join(f'"many/{number}"' for number in range(512))
    asked.call("config set", key="topic_metrics.topics", value=f"[{values}]")
    assert refused(asked, "topic-metrics add", topic="one/more") == "EXCEED_LIMIT"
    assert refused(asked, "config set", key="topic_metrics.topics", value=f'[{values}, "one/more"]') == "BAD_REQUEST"
    asked.call("config reset", key="topic_metrics.topics")
    assert asked.call("topic-metrics list")["data"] == []


# --- the loudest clients ---------------------------------------------------------------------------------------------------------


def test_the_loudest_clients_are_those_with_most_messages(own: Broker, asked: Control, capsys: pytest.CaptureFixture[str]) -> None:
    loud, quiet = client_id_on(0, WORKERS, "loud"), client_id_on(2, WORKERS, "quiet")
    with Client(own.address, 5, loud) as one, Client(own.address, 5, quiet) as two, Client(own.address, 5, "hears") as three:
        three.subscribe("noise", 0)

        def heard() -> list[dict[str, Any]]:
            for _ in range(50):
                one.publish("noise", b"x" * 95, qos=1)
            two.publish("noise", b"x", qos=1)
            found = asked.call("clients loudest", limit=3)["data"]
            return found if [row["clientid"] for row in found[:3]][1:] == ["hears", quiet] or len(found) == 3 else []

        rows = {row["clientid"]: row for row in until(heard, 20)}
        assert set(rows) == {loud, quiet, "hears"} and rows[loud]["worker"] == 0
        assert rows["hears"]["messages_out"] == pytest.approx(rows[loud]["messages_in"] + rows[quiet]["messages_in"], abs=60)
        assert rows[loud]["messages_in"] > rows[quiet]["messages_in"] > 0 == rows[loud]["messages_out"]
        assert rows[loud]["bytes_in"] == pytest.approx(100 * rows[loud]["messages_in"], rel=0.01)
        until(lambda: loud in top(own, one, capsys))
    assert asked.call("clients loudest", limit=1)["left_out"] == 0


def top(own: Broker, client: Client, capsys: pytest.CaptureFixture[str]) -> str:
    client.publish("noise", b"x", qos=1)
    assert main(["top", "--data-dir", str(own.data_dir), "--once", "--interval", "0.2", "--clients", "3"]) == 0
    return capsys.readouterr().out


# --- alarms ----------------------------------------------------------------------------------------------------------------------


def test_alarms_are_listed_while_they_last_and_those_that_are_over_forgotten(own: Broker, asked: Control) -> None:
    with Client(own.address, 5, "alarming") as client:
        client.publish("too/large", b"x" * 1001, qos=1, retain=True)
        (alarm,) = until(lambda: asked.call("alarms list")["data"])
        assert alarm["name"] == "retained_limit" and alarm["duration"] >= 0 and alarm["deactivate_at"] is None
        assert asked.call("alarms list", activated=False)["data"] == []
    assert asked.call("alarms clear") == {"cleared": 0}
    assert len(asked.call("alarms list")["data"]) == 1  # what lasts stays
    assert refused(asked, "alarms list", limit=10_001) == refused(asked, "alarms list", cursor="x") == "BAD_REQUEST"


def test_all_retained_messages_are_deleted(own: Broker, asked: Control) -> None:
    with Client(own.address, 5, "clears") as client:
        client.publish("clear/me", b"x", qos=1, retain=True)
        asked.call("publish", topic="$own/stays", payload=b"x", retain=True)
        assert asked.call("retained clear")["deleted"] >= 1
        assert asked.call("retained list")["data"] == []
        assert [row["topic"] for row in asked.call("retained list", topic="$own/#")["data"]] == ["$own/stays"]
        client.subscribe("clear/#", 0)
        client.ping()
        client.expect_none()


# --- journals --------------------------------------------------------------------------------------------------------------------


def test_segments_are_listed_page_by_page(own: Broker, asked: Control) -> None:
    asked.call("journal seal")
    with Client(own.address, 5, client_id_on(1, WORKERS, "seg"), clean=False, properties={"session_expiry_interval": 60}):
        pass
    asked.call("journal seal")
    rows = list(asked.pages("journal segments", limit=1))
    assert 1 in {row["worker"] for row in rows} <= {0, 1, 2}
    assert len({(row["worker"], row["segment"]) for row in rows}) == len(rows)
    for row in rows:
        path = own.data_dir / "journal" / str(row["worker"]) / row["segment"]
        assert row["bytes"] == path.stat().st_size and row["begins_at"] <= row["ends_at"] + 1
    assert asked.call("journal exports") == {"data": [], "cursor": None}
