"""Delayed messages, `$delayed/<seconds>/<topic>` (docs/features.md): over all workers, through the end of processes."""

import base64
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.behaviour.test_durability import ENDS, WORKERS, come_back, stay
from tests.harness import Broker, Client, Publish, Will, client_id_on, until
from tests.harness.wire import Ack

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]
NewId = Callable[..., str]
NAME_INVALID, QUOTA_EXCEEDED, NOT_AUTHORIZED = 0x90, 0x97, 0x87


def code(ack: Ack | None) -> int:
    assert ack is not None
    return ack.code


def waiting(broker: Broker, **params: Any) -> list[dict[str, Any]]:
    with Control(broker.data_dir) as control:
        return list(control.pages("delayed list", **params))


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_message_comes_when_its_time_has_come(connect: Connect, topic: str, placement: str, version: int) -> None:
    to, sender = connect(), connect(version)
    to.subscribe(topic, 2)
    began = time.monotonic()
    for qos in range(3):
        assert sender.publish(f"$delayed/1/{topic}", b"%d" % qos, qos) is None or qos
    sender.disconnect()
    to.expect_nothing_from(connect())
    got = [to.expect(Publish, topic=topic, qos=qos, payload=b"%d" % qos) for qos in range(3)]
    assert time.monotonic() - began >= 1 and not any(one.retain for one in got)


def test_the_time_may_be_a_moment(connect: Connect, topic: str) -> None:
    to, sender = connect(), connect()
    to.subscribe(topic, 1)
    at = int(time.time()) + 2
    sender.publish(f"$delayed/{at}/{topic}", b"then", 1)
    sender.publish(f"$delayed/{at - 100}/{topic}", b"has passed", 1)
    sender.publish(f"$delayed/0/{topic}", b"now", 1)
    to.expect_messages(b"has passed", b"now")
    to.expect(Publish, payload=b"then")
    assert time.time() >= at


def test_many_that_are_due_together_come_in_order(connect: Connect, topic: str, placement: str) -> None:
    to, sender = connect(), connect()
    to.subscribe(topic, 0)
    at = int(time.time()) + 2
    for number in range(2000):
        sender.publish(f"$delayed/{at}/{topic}", b"%d" % number, 0)
    assert [int(to.expect(Publish, timeout=10).payload) for _ in range(2000)] == list(range(2000))


def test_properties_an_alias_and_retain_stay_with_it(connect: Connect, topic: str) -> None:
    to, late, sender = connect(), connect(), connect()
    to.subscribe(topic, 1)
    sender.publish(f"$delayed/1/{topic}", b"1", 1, True, properties={"topic_alias": 1, "content_type": "x"})
    sender.publish("", b"2", 1, True, properties={"topic_alias": 1, "message_expiry_interval": 100})
    to.expect(Publish, payload=b"1", properties={"content_type": "x"})
    assert 90 < to.expect(Publish, payload=b"2").properties["message_expiry_interval"] < 100
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"2", retain=True)


def test_a_message_that_expires_before_its_time_never_comes(connect: Connect, topic: str) -> None:
    to, sender = connect(), connect()
    to.subscribe(topic, 1)
    sender.publish(f"$delayed/2/{topic}", b"old", 1, properties={"message_expiry_interval": 1})
    sender.publish(f"$delayed/2/{topic}", b"fresh", 1)
    to.expect(Publish, payload=b"fresh")
    to.expect_nothing_from(sender, 1)


def test_a_will_may_be_delayed_by_its_topic(connect: Connect, topic: str, placement: str) -> None:
    to = connect()
    to.subscribe(topic, 1)
    for version in (4, 5):
        connect(version, will=Will(f"$delayed/1/{topic}", b"gone", 1)).cut()
    to.expect_nothing_from(connect())
    to.expect_messages(b"gone", b"gone")
    refused = connect(will=Will("$delayed/soon/t", b""), connect=False)
    assert refused.connect(expect_code=None).code == NAME_INVALID


BAD = ["$delayed/", "$delayed/5", "$delayed/5/", "$delayed//t", "$delayed/-1/t", "$delayed/1.5/t",
       "$delayed/soon/t", "$delayed/\u0665/t",
       "$delayed/42949670/t", "$delayed/99999999999/t", f"$delayed/{'9' * 30}/t"]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_times_and_topics_are_refused(connect: Connect, bad: str) -> None:
    for qos in (1, 2):
        five = connect(5).publish(bad, b"x", qos)
        assert code(five) == NAME_INVALID and five is not None and "reason_string" in five.properties
        three = connect(4)
        three.publish(bad, b"x", qos)  # acknowledged, as 3.x has no other word
        three.publish(bad, b"x", 0)
        three.ping()


def test_wildcards_and_the_brokers_own_topics_are_no_way_around(connect: Connect) -> None:
    client = connect()
    assert code(client.publish("$delayed/1/$SYS/x", b"", 1)) == NOT_AUTHORIZED
    assert connect().publish("$delayed/x", b"", 0) is None
    too_deep = "/".join("x" * 200)
    assert code(client.publish(f"$delayed/1/{too_deep}", b"", 1)) == NAME_INVALID


def test_no_more_wait_than_may(broker_with: Callable[..., Broker], connect: Connect, new_id: NewId, placement: str) -> None:
    own = broker_with(delayed__max_delayed_messages=3)
    clients = [connect(client_id=new_id(), on=own) for _ in range(3)]
    for client in clients:
        assert code(client.publish("$delayed/100/t", b"", 1)) == 0x00
    for client in clients:
        assert code(client.publish("$delayed/100/t", b"", 1)) == code(client.publish("$delayed/1/t", b"", 2)) == QUOTA_EXCEEDED
    rows = waiting(own)
    with Control(own.data_dir) as control:
        for row in rows:
            control.call("delayed delete", msgid=row["msgid"])
    assert len(rows) == 3 and waiting(own) == []
    assert code(clients[0].publish("$delayed/0/t", b"", 1)) == 0x00
    until(lambda: waiting(own) == [])


def test_a_qos_2_message_that_was_taken_is_not_refused_again(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(delayed__max_delayed_messages=3)
    client = connect(on=own)
    for packet_id in (1, 2, 3):
        client.publish("$delayed/3/again", b"", 2, packet_id=packet_id, wait=False)
        assert client.recv().code == 0  # type: ignore[union-attr]
    client.publish("$delayed/3/again", b"", 2, packet_id=3, dup=True, wait=False)
    assert client.recv().code == 0  # type: ignore[union-attr]
    assert code(client.publish("$delayed/3/again", b"", 2, packet_id=9)) == QUOTA_EXCEEDED
    until(lambda: waiting(own) == [])


def test_delayed_messages_can_be_switched_off_and_on(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(delayed__max_delayed_messages=3)
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("switched", 1)
    sender.publish("$delayed/2/switched", b"taken before", 1)
    with Control(own.data_dir) as control:
        control.call("config set", key="delayed.enable", value="false")
        assert code(sender.publish("$delayed/1/switched", b"off", 1)) == NAME_INVALID
        control.call("config set", key="delayed.enable", value="true")
        assert code(sender.publish("$delayed/2/switched", b"on", 1)) == 0
    to.expect_messages(b"taken before", b"on")


def test_a_topic_with_too_many_levels_by_then_is_dropped(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(delayed__max_delayed_messages=3)
    pids = own.child_pids("sb-worker")
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("deep/#", 1)
    kept, late = {"session_expiry_interval": 60}, {"will_delay_interval": 2}
    with Control(own.data_dir) as control:
        before = control.call("metrics")
        connect(on=own, will=Will("$delayed/2/deep/1/2/3/4/5", b"", 1)).cut()
        connect(on=own, properties=kept, will=Will("deep/1/2/3/4/5/6", b"", 1, properties=late)).cut()
        control.call("config set", key="mqtt.max_topic_levels", value="5")
        for name in ("messages.dropped", "messages.dropped.outdated", "messages.lost"):
            until(lambda name=name: control.call("metrics")[name] >= before[name] + 2)  # type: ignore[misc]
        control.call("config reset", key="mqtt.max_topic_levels")
    sender.publish("deep/enough", b"here", 1)
    assert [one.payload for one in to.messages_from(sender, 1)] == [b"here"] and own.child_pids("sb-worker") == pids


def test_rules_are_asked_about_the_topic_itself(broker_with: Callable[..., Broker], connect: Connect, tmp_path: Path) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text('{deny, all, publish, ["secret/#"]}.\n{allow, all}.\n')
    own = broker_with(acl__sources="file", acl__file__path=str(rules))
    client = connect(on=own)
    assert code(client.publish("$delayed/1/secret/a", b"", 1)) == NOT_AUTHORIZED
    assert code(client.publish("$delayed/1/open/a", b"", 1)) == 0x00


# --- through the end of processes -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["process", "machine"])
def own(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as data_dir,
        Broker(WORKERS, {"durability.level": request.param}, data_dir=Path(data_dir)) as broker,
    ):
        yield broker


@pytest.mark.parametrize(("own", "end"), [*(("process", end) for end in ENDS), ("machine", ENDS[2])], indirect=["own"])
def test_what_was_acknowledged_comes_once_whatever_ends_meanwhile(own: Broker, end: str) -> None:
    """Some are due while the broker is down, others later. It ends twice: what a recovery made survives too."""
    with stay(own, "heir") as heir:
        heir.subscribe("late/#", 2)
    expected = []
    for worker in range(WORKERS):
        with Client(own.address, 5, client_id_on(worker, WORKERS, "p")) as publisher:
            for qos in (1, 2):
                for delay in (0, 1, 4):
                    publisher.publish(f"$delayed/{delay}/late/{worker}", b"%d %d" % (delay, qos), qos)
                    expected.append((f"late/{worker}", b"%d %d" % (delay, qos)))
    for _ in range(2):
        come_back(own, end)
    with stay(own, "heir") as heir:
        got = [heir.expect(Publish, timeout=15) for _ in expected]
        heir.expect_none()
    assert sorted((one.topic, one.payload) for one in got) == sorted(expected)
    assert until(lambda: not waiting(own))


def test_a_publisher_without_a_session_may_go_and_journals_may_turn_over(own: Broker) -> None:
    own.stop()
    own.settings |= {"journal.cycle_bytes": 1 << 17, "journal.segment_bytes": 1 << 16, "journal.retention.bytes": 1 << 20}
    own.start()
    with stay(own, "heir") as heir, stay(own, "busy") as busy:
        heir.subscribe("kept", 1)
        busy.subscribe("filler", 1)
        with Client(own.address, 5, "fleeting") as publisher:
            publisher.publish("$delayed/6/kept", b"kept", 1)
            publisher.publish("$delayed/1000/deleted", b"", 1)
            (row,) = [one for one in waiting(own) if one["topic"] == "deleted"]
            with Control(own.data_dir) as control:
                control.call("delayed delete", msgid=row["msgid"])
            for _ in range(300):
                publisher.publish("filler", bytes(4000), 1)
    come_back(own, "everything")
    assert [row["topic"] for row in waiting(own)] in (["kept"], [])
    with stay(own, "heir") as heir:
        assert heir.expect(Publish, timeout=15).payload == b"kept"


# --- looked after -----------------------------------------------------------------------------------------------------------------


def test_they_are_listed_shown_and_deleted(broker: Broker, connect: Connect, topic: str, new_id: NewId) -> None:
    names = [client_id_on(worker, broker.workers, new_id()) for worker in range(3)]
    for number, name in enumerate(names):
        connect(client_id=name).publish(f"$delayed/{500 + number}/{topic}", b"p%d" % number, number)
    pages = [row for row in waiting(broker, limit=1) if row["topic"] == topic]
    assert sorted((row["from_clientid"], row["qos"], row["delayed_interval"]) for row in pages) == sorted(
        (name, number, 500 + number) for number, name in enumerate(names)
    )
    with Control(broker.data_dir) as control:
        assert control.call("metrics")["delayed.count"] >= 3
        shown = control.call("delayed show", msgid=pages[0]["msgid"])
        assert base64.b64decode(shown["payload"])[:1] == b"p" and 400 < shown["delayed_remaining"] <= 502
        for row in pages:
            assert control.call("delayed delete", msgid=row["msgid"].lower()) == {"msgid": row["msgid"].lower()}
        for verb in ("delayed show", "delayed delete"):
            with pytest.raises(ControlError) as error:
                control.call(verb, msgid=pages[0]["msgid"])
            assert error.value.code == "NOT_FOUND"
            with pytest.raises(ControlError) as error:
                control.call(verb, msgid="12")
            assert error.value.code == "BAD_REQUEST"
    assert not [row for row in waiting(broker) if row["topic"] == topic]


def test_ctl_publishes_and_lists_them(broker: Broker, connect: Connect, topic: str) -> None:
    to = connect()
    to.subscribe(topic, 1)

    def ctl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([broker.command()[0], "ctl", f"--data-dir={broker.data_dir}", *words], capture_output=True, text=True)

    assert ctl("publish", f"$delayed/3600/{topic}", "much later", "--qos", "1").returncode == 0
    assert topic in ctl("delayed", "list").stdout
    assert ctl("publish", f"$delayed/1/{topic}", "later", "--qos", "1").returncode == 0
    to.expect(Publish, payload=b"later", topic=topic)
    refused = ctl("publish", "$delayed/x/t", "never")
    assert refused.returncode == 1 and "topic: must be $delayed/SECONDS/TOPIC" in refused.stderr
