"""Subscriptions that clients get when they connect (`auto_subscribe.topics`, docs/topics.md)."""

from collections.abc import Callable

import pytest

from shardbroker.cli.main import main
from tests.harness import Broker, Client

Connect = Callable[..., Client]
NewId = Callable[..., str]

TOPICS = """[
 {topic = "c/${clientid}", qos = 1},
 {topic = "u/${username}/#", qos = 2, rap = 1},
 {topic = "news", qos = 1, rh = 1},
 {topic = "${username}/#"},
 {topic = "$share/g/${username}/#"},
 {topic = "h/${host}/+"}]"""


@pytest.fixture
def own(broker_with: Callable[..., Broker]) -> Broker:
    return broker_with(auto_subscribe__topics=TOPICS)


def test_a_client_gets_what_it_has_not_asked_for(own: Broker, connect: Connect, new_id: NewId, placement: str) -> None:
    sender = connect(client_id=new_id(), on=own)
    to = connect(client_id=new_id(), on=own, username="u1", password=b"x")
    to.ping()
    sender.publish(f"c/{to.client_id}", b"1", 2)
    sender.publish("u/u1/x", b"2", 2)
    sender.publish("h/127.0.0.1/y", b"3", 2)
    sender.publish("u/u2/x", b"not there", 2)
    got = to.messages_from(sender, 2)
    assert sorted((one.topic, one.payload, one.qos) for one in got) == [
        (f"c/{to.client_id}", b"1", 1), ("h/127.0.0.1/y", b"3", 0), ("u/u1/x", b"2", 2),
    ]  # fmt: skip


def test_without_a_user_name_its_filters_are_left_out(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    for topic in ("u//x", "u/None/x", "u/${username}/x"):
        sender.publish(topic, b"1", 1)
    to.expect_nothing_from(sender, 1)


@pytest.mark.parametrize("name", ["+", "#", "a/b"])
def test_a_user_name_widens_no_filter(own: Broker, connect: Connect, name: str) -> None:
    to, sender = connect(on=own, username=name, password=b"x"), connect(on=own)
    sender.publish("u/other/x", b"1", 1)
    sender.publish("u/a/b/x", b"1", 1)
    to.expect_nothing_from(sender, 1)


def test_a_client_may_end_such_a_subscription(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    assert to.unsubscribe(f"c/{to.client_id}").codes == (0,)
    sender.publish(f"c/{to.client_id}", b"1", 1)
    to.expect_nothing_from(sender, 1)


def test_retained_messages_come_as_retain_handling_says(own: Broker, connect: Connect, new_id: NewId) -> None:
    name = new_id()
    sender = connect(on=own)
    sender.publish("news", b"kept", 1, retain=True)
    with connect(client_id=name, on=own, properties={"session_expiry_interval": 60}) as first:
        first.expect_messages(b"kept")
    again = connect(client_id=name, on=own, clean=False, properties={"session_expiry_interval": 60})
    again.expect_nothing_from(sender, 1)  # rh = 1: it had the subscription
    again.disconnect(properties={"session_expiry_interval": 0})
    sender.publish("news", b"", 1, retain=True)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ('{topic = "a/#/b"}', "a/#/b"),
        ('{topic = "a/${nobody}"}', "${clientid}"),
        ('{topic = "a", qos = 3}', "qos must not be 3"),
        ('{qos = 1}', "topic"),
    ],
)
def test_a_topic_that_cannot_be_used_is_refused_at_the_start(topic: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--set", f"auto_subscribe.topics=[{topic}]"]) == 2
    text = capsys.readouterr().err
    assert "auto_subscribe.topics" in text and said in text


@pytest.mark.parametrize("name", ["$SYS", "$share", ""])
def test_a_user_name_is_no_dollar_of_a_first_level_and_not_nothing(own: Broker, connect: Connect, name: str) -> None:
    to, sender = connect(on=own, username=name, password=b"x"), connect(on=own)
    for filter in (f"{name}/#", f"$share/g/{name}/#"):
        assert to.unsubscribe(filter).codes[0] != 0, filter
    sender.publish("/x", b"1", 1)
    to.expect_none(0.2)
