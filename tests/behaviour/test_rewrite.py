"""Topic rewrite (`rewrite.rules`, docs/topics.md): PUBLISH, SUBSCRIBE, UNSUBSCRIBE, wills; over all workers."""

from collections.abc import Callable

import pytest

from shardbroker.cli.main import main
from tests.harness import Broker, Client, Will

Connect = Callable[..., Client]
NewId = Callable[..., str]

RULES = """[
 {source_topic = "box/#", re = "^box/(.+)$", dest_topic = "boxes/${clientid}/$1"},
 {source_topic = "mine/#", re = "^mine/(.+)$", dest_topic = "${username}/$1"},
 {action = "publish", source_topic = "y/+/z/#", re = "^y/(.+)/z/(.+)$", dest_topic = "y/z/$2"},
 {action = "subscribe", source_topic = "s/#", re = "^s/(\\\\d+)$", dest_topic = "numbers/$1"},
 {action = "subscribe", source_topic = "s/#", re = "^s/(.+)$", dest_topic = "never/$1"},
 {source_topic = "both/#", re = "^both/(.+)$", dest_topic = "one/${clientid}/$1"},
 {source_topic = "user/#", re = "^user/(.+)$", dest_topic = "of/${username}/$1"},
 {action = "publish", source_topic = "bad/#", re = "^bad/(.*)$", dest_topic = "#/$1"},
 {action = "publish", source_topic = "first", re = "^first$", dest_topic = "second"},
 {action = "publish", source_topic = "second", re = "^second$", dest_topic = "third"}]"""


@pytest.fixture
def own(broker_with: Callable[..., Broker]) -> Broker:
    return broker_with(rewrite__rules=RULES)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_goes_where_its_rule_says(own: Broker, connect: Connect, new_id: NewId, placement: str, qos: int) -> None:
    to, sender = connect(client_id=new_id(), on=own), connect(client_id=new_id(), on=own)
    to.subscribe("y/#", 2)
    for number in range(2):  # the second one finds its topic in the cache
        sender.publish(f"y/a/z/b{number % 1}", b"%d" % number, qos)
        message = to.messages_from(sender, qos)
        assert [(one.topic, one.payload) for one in message] == [("y/z/b0", b"%d" % number)]


def test_an_alias_stands_for_the_topic_before_its_rule(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("y/#", 1)
    sender.publish("y/a/z/b", b"1", 1, properties={"topic_alias": 3})
    sender.publish("", b"2", 1, properties={"topic_alias": 3})
    assert [(one.topic, one.payload) for one in to.messages_from(sender, 1)] == [("y/z/b", b"1"), ("y/z/b", b"2")]


def test_a_rule_is_not_applied_to_what_a_rule_made(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("second", 1)
    to.subscribe("third", 1)
    sender.publish("first", b"1", 1)
    assert [one.topic for one in to.messages_from(sender, 1)] == ["second"]


def test_a_subscription_and_its_end_go_by_their_rule(own: Broker, connect: Connect, new_id: NewId, placement: str) -> None:
    to, sender = connect(client_id=new_id(), on=own), connect(client_id=new_id(), on=own)
    to.subscribe("s/1", 1)
    to.subscribe("$share/g/s/2", 1)
    sender.publish("numbers/1", b"1", 1)
    sender.publish("numbers/2", b"2", 1)
    sender.publish("s/1", b"not there", 1)
    assert sorted(one.payload for one in to.messages_from(sender, 1)) == [b"1", b"2"]
    assert to.unsubscribe("s/1", "$share/g/s/2").codes == (0, 0)
    sender.publish("numbers/1", b"3", 1)
    sender.publish("numbers/2", b"4", 1)
    to.expect_nothing_from(sender, 1)


def test_the_first_rule_that_matches_decides_also_if_its_expression_finds_nothing(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("s/word", 1)  # no digits, and the rule behind is not looked at
    sender.publish("s/word", b"1", 1)
    sender.publish("never/word", b"2", 1)
    assert [one.payload for one in to.messages_from(sender, 1)] == [b"1"]


def test_placeholders_are_of_the_client(own: Broker, connect: Connect, new_id: NewId, placement: str) -> None:
    to, sender = connect(client_id=new_id(), on=own), connect(client_id=new_id(), on=own, username="u1", password=b"x")
    to.subscribe("one/#", 1)
    to.subscribe("of/#", 1)
    to.subscribe("user/#", 1)  # it has no user name: stays as it is
    sender.publish("both/a/b", b"1", 1)
    sender.publish("user/c", b"2", 1)
    got = [(one.topic, one.payload) for one in to.messages_from(sender, 1)]
    assert got == [(f"one/{sender.client_id}/a/b", b"1"), ("of/u1/c", b"2")]
    to.publish("user/d", b"3", 1)
    assert [one.topic for one in to.messages_from(to, 1)] == ["user/d"]


def test_what_would_be_no_topic_name_stays(own: Broker, connect: Connect) -> None:
    to, sender = connect(on=own), connect(on=own)
    to.subscribe("bad/#", 1)
    sender.publish("bad/1", b"1", 1)
    assert [one.topic for one in to.messages_from(sender, 1)] == ["bad/1"]


def test_retained_messages_and_wills_go_by_the_rule(
    own: Broker, connect: Connect, new_id: NewId, topic: str, placement: str
) -> None:
    to = connect(client_id=new_id(), on=own)
    sender = connect(client_id=new_id(), on=own, will=Will(f"y/w/z/{topic}/gone", b"gone", 1))
    sender.publish(f"y/a/z/{topic}/kept", b"kept", 1, retain=True)
    to.subscribe(f"y/z/{topic}/#", 1)
    assert to.expect_messages(b"kept")[0].topic == f"y/z/{topic}/kept"
    sender.cut()
    assert to.expect_messages(b"gone")[0].topic == f"y/z/{topic}/gone"
    to.publish(f"y/z/{topic}/kept", b"", 1, retain=True)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('{source_topic = "a/#/b", re = "x", dest_topic = "y"}', "a/#/b"),
        ('{source_topic = "a/#", re = "(", dest_topic = "y"}', "re '('"),
        ('{source_topic = "a/#", re = "x", dest_topic = "$1"}', "has 0 groups"),
        ('{source_topic = "a/#", re = "x", dest_topic = "${host}"}', "${clientid}, ${username}"),
        ('{source_topic = "a/#", re = "x"}', "dest_topic"),
        ('{source_topic = "a/#", re = "x", dest_topic = "y", action = "pub"}', "publish"),
        ("3", "a list of tables"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_at_the_start(rule: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--set", f"rewrite.rules=[{rule}]"]) == 2
    text = capsys.readouterr().err
    assert "rewrite.rules" in text and said in text


@pytest.mark.parametrize("name", ["+", "#", "+/#", "victim/x", "a+"])
def test_a_client_id_or_user_name_reads_no_other_box(own: Broker, connect: Connect, name: str) -> None:
    """The topic stays: it is what the rules of access have looked at."""
    spy, sender = connect(client_id=name, on=own, username=name), connect(on=own)
    victim = connect(client_id="victim", on=own)
    victim.subscribe("box/#", 1)
    for filter in ("box/x", "box/+", "box/x/#", "mine/x", "mine/#"):
        spy.subscribe(filter, 1)
    for topic in ("boxes/victim/x", "boxes/victim/x/x", "victim/x", "victim/x/x"):
        sender.publish(topic, b"secret", 1)
    spy.expect_nothing_from(sender, 1)
    assert len(victim.messages_from(sender, 1)) == 2
    spy.publish("box/x", b"forged", 1)
    victim.expect_nothing_from(spy, 1)
    assert spy.unsubscribe("box/x").codes == (0,)
    spy.unsubscribe("box/+", "box/x/#", "mine/x", "mine/#")


@pytest.mark.parametrize("name", ["$SYS", "$share", "$queue", "$exclusive"])
def test_a_user_name_is_no_dollar_of_a_first_level(own: Broker, connect: Connect, name: str) -> None:
    spy, sender = connect(on=own, username=name), connect(on=own)
    spy.subscribe("mine/g/secret/#", 1)
    spy.subscribe("mine/brokers/#", 1)
    sender.publish("secret/x", b"secret", 1)
    sender.publish("g/secret/x", b"secret", 1)
    spy.expect_none(0.2)
    assert spy.unsubscribe("mine/g/secret/#", "mine/brokers/#").codes == (0, 0)
