"""A will is checked as the PUBLISH that it will be: when it comes with CONNECT, and again when it is published."""

from collections.abc import Iterator

import pytest

from tests.access.guarded import Guarded
from tests.harness import until, wire
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker

NOT_AUTHORIZED, TOPIC_NAME_INVALID, PAYLOAD_FORMAT_INVALID = 0x87, 0x90, 0x99
RULES = '{deny, all, publish, ["secret/#"]}.\n{allow, all}.\n'
CLOSED = '{deny, all, publish, ["later/#"]}.\n' + RULES
REWRITE = '[{action="publish", source_topic="mine/#", re="^mine/(.+)$", dest_topic="$SYS/$1"}]'
LATE = {"will_delay_interval": 1}
STAYS = {"session_expiry_interval": 60}


@pytest.fixture
def ruled(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    broker = Guarded({"acl.sources": ["file"], **getattr(request, "param", {})}, workers=1)
    rules = broker.folder / "acl.conf"
    rules.write_text(RULES)
    broker.settings["acl.file.path"] = str(rules)
    with broker:
        yield broker


def dies(broker: Guarded, name: str, will: Will, **options: object) -> None:
    broker.client(name, will=will, **options).cut()  # type: ignore[arg-type]


def alive(broker: Guarded) -> None:
    """The one worker is the one that started: a negative test must notice that it died."""
    assert broker.count("client.connected") > 0
    assert not [line for line in broker.output if "died" in line or "Traceback" in line], "".join(broker.output)


@pytest.mark.parametrize(
    "topic", ["$SYS", "$SYS/brokers/x", "$event", "$event/client_connected", "$delayed/0/$SYS/x", "$delayed/0/$event/x"]
)
def test_a_will_to_a_topic_of_the_broker_is_refused(ruled: Guarded, topic: str) -> None:
    with ruled.client("watcher") as watcher:
        watcher.subscribe([("$SYS/brokers/x", 1), ("$event/#", 1), ("$SYS/x", 1)])
        ruled.refused("planter", NOT_AUTHORIZED, will=Will(topic, b"forged", 1, True))
        ruled.refused("planter", 5, 4, will=Will(topic, b"forged", 1, True))
        watcher.expect_none(0.2)
        with ruled.client("late") as late:
            late.subscribe("$SYS/brokers/x", 1)
            late.expect_none(0.2)
    alive(ruled)


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/x", "$event", "$event/x", "$event/client_connected", "$delayed/0/$event/x"])
@pytest.mark.parametrize("qos", [1, 2])
def test_topics_of_the_broker_are_not_published_to_by_clients(ruled: Guarded, topic: str, qos: int) -> None:
    with ruled.client("publisher") as publisher, ruled.client("watcher") as watcher:
        watcher.subscribe([("$event/#", 1), ("$SYS/x", 1)])
        ack = publisher.publish(topic, b"forged", qos, retain=True)
        assert ack is not None and ack.code == NOT_AUTHORIZED
        publisher.ping()
        watcher.expect_none(0.2)
        watcher.ping()


def test_the_rules_are_asked_about_the_topic_behind_delayed(ruled: Guarded) -> None:
    ruled.refused("delayer", NOT_AUTHORIZED, will=Will("$delayed/1/secret/x", b"", 1))
    ruled.logged("client_id=delayer", "reason=0x87", "will topic denied")
    with ruled.client("watcher") as watcher:
        watcher.subscribe("open/x", 1)
        dies(ruled, "delayer", Will("$delayed/0/open/x", b"fine", 1))
        watcher.expect(wire.Publish, topic="open/x", payload=b"fine")


@pytest.mark.parametrize("ruled", [{"delayed.enable": False}], indirect=True)
def test_a_delayed_will_is_refused_while_delayed_messages_are_off(ruled: Guarded) -> None:
    ruled.refused("delayer", TOPIC_NAME_INVALID, will=Will("$delayed/1/open/x", b""))


def test_a_will_whose_payload_is_not_the_utf8_that_it_says(ruled: Guarded) -> None:
    """As a PUBLISH (MQTT 5.0 §3.1.3.2.3)."""
    ruled.refused("binary", PAYLOAD_FORMAT_INVALID, will=Will("open/x", b"\xff", properties={"payload_format_indicator": 1}))


@pytest.mark.parametrize("ruled", [{"rewrite.rules": REWRITE}], indirect=True)
def test_no_rule_rewrites_into_topics_of_the_broker(ruled: Guarded) -> None:
    ruled.refused("rewritten", NOT_AUTHORIZED, will=Will("mine/x", b"forged", 1, True))
    with ruled.client("rewritten") as client:
        ack = client.publish("mine/x", b"forged", 1, retain=True)
        assert ack is not None and ack.code == NOT_AUTHORIZED


@pytest.mark.parametrize("ruled", [{"retainer.max_messages": 1}], indirect=True)
def test_retained_wills_count_for_the_limit(ruled: Guarded) -> None:
    """Those to topics of the broker as well, if there were any: its own messages do not count."""
    for number, topic in enumerate(("kept/0", "kept/1", "$SYS/kept", "kept/2")):
        ruled.client(f"keeper{number}", code=None, will=Will(topic, b"x", 1, True)).cut()
    until(lambda: ruled.count("retained.dropped") >= 2)
    with ruled.client("reader") as reader:
        assert reader.subscribe([("kept/#", 1), ("$SYS/kept", 1)]).codes == (1, 1)
        reader.expect(wire.Publish, topic="kept/0")
        reader.expect_none(0.2)


def change_rules(broker: Guarded, text: str) -> None:
    (broker.folder / "acl.conf").write_text(text)
    assert broker.admin.reload()


@pytest.mark.parametrize("topic", ["later/x", "$delayed/0/later/x"])
def test_a_will_that_is_not_allowed_any_more_is_dropped(ruled: Guarded, topic: str) -> None:
    with ruled.client("watcher") as watcher, ruled.client("will", will=Will(topic, b"gone", 1), properties=STAYS) as client:
        watcher.subscribe("later/x", 1)
        change_rules(ruled, CLOSED)
        until(lambda: watcher.publish("later/y", b"", 1).code == NOT_AUTHORIZED)  # type: ignore[union-attr]
        (dropped, denied) = ruled.count("messages.dropped"), ruled.count("authorization.deny")
        client.cut()
        ruled.logged("authorization denied", "client_id=will", "will later/x")
        until(lambda: ruled.count("messages.dropped") > dropped and ruled.count("authorization.deny") > denied)
        watcher.expect_none(0.2)
        watcher.ping()
    alive(ruled)


def test_a_will_that_a_restart_has_recovered_is_checked_again(ruled: Guarded) -> None:
    late = {"will_delay_interval": 3}
    dies(ruled, "will", Will("later/x", b"gone", 1, True, late), properties=STAYS)
    dies(ruled, "good", Will("open/x", b"gone", 1, True, late), properties=STAYS)
    ruled.stop()
    (ruled.folder / "acl.conf").write_text(CLOSED)
    ruled.start()
    with ruled.client("watcher") as watcher:
        ruled.logged("authorization denied", "client_id=will", "will later/x")
        watcher.subscribe([("later/x", 1), ("open/x", 1)])  # retained: however long the start took
        watcher.expect(wire.Publish, topic="open/x", payload=b"gone")
        watcher.expect_none(0.2)
    alive(ruled)


def test_a_will_with_a_delay_is_published_after_the_rules_were_read_again(ruled: Guarded) -> None:
    with ruled.client("watcher") as watcher:
        watcher.subscribe("open/x", 1)
        dies(ruled, "will", Will("open/x", b"gone", 1, properties=LATE), properties=STAYS)
        change_rules(ruled, CLOSED)
        until(lambda: watcher.publish("later/y", b"", 1).code == NOT_AUTHORIZED)  # type: ignore[union-attr]
        watcher.expect(wire.Publish, topic="open/x", payload=b"gone")


@pytest.mark.parametrize("ruled", [{"mqtt.message_expiry_interval": "2s"}], indirect=True)
@pytest.mark.parametrize("asked", [None, 60])
def test_the_longest_expiry_holds_for_wills(ruled: Guarded, asked: int | None) -> None:
    with ruled.client("watcher") as watcher:
        watcher.subscribe("open/x", 1)
        dies(ruled, "will", Will("open/x", b"", 1, properties={} if asked is None else {"message_expiry_interval": asked}))
        assert watcher.expect(wire.Publish).properties["message_expiry_interval"] in (1, 2)


