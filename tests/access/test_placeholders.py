"""What a client calls itself stands in rules and topics. It never reaches beyond its own level (the class of CVE-2017-7650)."""

import json
import time
from collections.abc import Iterator

import jwt
import pytest

from shardbroker.access.acl_conf import parse_acl_conf
from shardbroker.access.contract import AuthRequest
from shardbroker.access.contract import Client as Who
from shardbroker.access.placeholders import Template, UnfitValueError
from shardbroker.access.rules import RuleSet, client_rules, rule_of
from tests.access.guarded import Guarded, http_server
from tests.harness import wire
from tests.harness.client import Client

NOT_AUTHORIZED = 0x87
VICTIM = "devices/victim/x"
UNFIT = ["+", "#", "+/#", "victim/x", "victim/#", "victim/", "/victim", "/", "a+", "a#"]
"""Client ids and user names that would be other topics than their own if they were put into a rule as they are."""
ALLOWING = """
{allow, all, all, ["devices/${clientid}/#", "users/${username}/#", "${clientid}/#", {eq, "eq/${clientid}/#"}, {eq, "${username}"}]}.
{allow, {user, "publisher"}, publish, ["#", "$secret/#"]}.
"""
DENYING = """
{deny, all, all, ["devices/${clientid}/private/#", {eq, "eq/${clientid}"}, "${username}/#"]}.
{allow, all, all, ["#", "$secret/#"]}.
"""


def decide(text: str, action: str, topic: str, client: Who) -> bool | None:
    return RuleSet(parse_acl_conf(text)).for_client(client).decide(AuthRequest(action, topic, 0))


# --- rules ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*UNFIT, ""])
def test_an_unfit_value_allows_nothing(value: str) -> None:
    levels = [value, *value.split("/"), "victim", "+", "#"]
    roots, ends = ("devices/", "users/", "eq/", ""), ("", "/x", "/#", "/+/#")
    asked = {f"{root}{level}{end}" for root in roots for level in levels for end in ends}
    for client in (Who(value, "fit"), Who("fit", value)):
        for topic in asked:
            assert decide(ALLOWING, "subscribe", topic, client) is None, f"{client} {topic}"
            assert decide(ALLOWING, "publish", topic, client) is None, f"{client} {topic}"


def test_a_fit_value_is_one_level() -> None:
    client = Who("$odd id", "ada")
    assert decide(ALLOWING, "subscribe", "devices/$odd id/#", client) is True
    assert decide(ALLOWING, "subscribe", "eq/$odd id/#", client) is True
    assert decide(ALLOWING, "subscribe", "eq/$odd id/x", client) is None
    assert decide(ALLOWING, "subscribe", "users/ada/+", client) is True
    assert decide(ALLOWING, "subscribe", "users/+/x", client) is None
    assert decide(ALLOWING, "subscribe", "ada", client) is True


@pytest.mark.parametrize("value", ["$SYS", "$share", "$delayed"])
def test_no_value_is_the_dollar_of_a_first_level(value: str) -> None:
    for topic in (f"{value}/#", f"{value}/1/x", value):
        assert decide(ALLOWING, "subscribe", topic, Who(value, value)) is None
        assert decide(DENYING, "subscribe", topic, Who("fit", value)) is False


@pytest.mark.parametrize("value", UNFIT)
def test_what_an_unfit_value_could_mean_is_denied(value: str) -> None:
    """As it is written, as a wildcard, and as levels; and what a client with a fit value is denied is no more than its own."""
    topics = [f"devices/{value}/private/x", "devices/victim/private/x", "devices/+/private/#", "devices/#", f"eq/{value}", "eq/a/b"]
    for topic in topics:
        assert decide(DENYING, "subscribe", topic, Who(value, "fit")) is False, topic
    for topic in (f"{value}/x", "victim/x", "$secret/x"):
        assert decide(DENYING, "subscribe", topic, Who("fit", value)) is False, topic
    assert decide(DENYING, "subscribe", "other/x", Who(value, "fit")) is True
    assert decide(DENYING, "subscribe", "devices/victim/private/x", Who("fit", "fit")) is True
    assert decide(DENYING, "subscribe", "devices/fit/private/x", Who("fit", "fit")) is False


def test_every_place_rules_come_from() -> None:
    topic = "devices/${clientid}/#"
    row = {"permission": "allow", "action": "all", "topic": topic}
    for rules in (RuleSet([rule_of(row)]), client_rules([row]), client_rules({"sub": [topic], "pub": [topic]})):
        assert rules.for_client(Who("victim")).decide(AuthRequest("subscribe", VICTIM, 0)) is True
        for value in UNFIT:
            for asked in (VICTIM, f"devices/{value}/#", "devices/+/#"):
                assert not rules.for_client(Who(value)).decide(AuthRequest("subscribe", asked, 0)), (value, asked)


def test_a_filled_topic_keeps_its_shape() -> None:
    for text in ("${username}/x", "$share/g/${username}/x", "$queue/${username}", "$exclusive/${username}", "$share/g/${username}"):
        with pytest.raises(UnfitValueError, match="must not begin with"):
            Template.parse(text).fill_topic({"username": "$SYS"})
        assert Template.parse(text).fill_topic({"username": "ada"}) == text.replace("${username}", "ada")
        assert Template.parse(text).fill_topic({"username": None}) is None
    assert Template.parse("a/${username}/b").fill_topic({"username": "$x"}) == "a/$x/b"
    assert Template.parse("x${username}").fill_topic({"username": "$x"}) == "x$x"
    for value in ("", "+", "#", "a/b", "a\0b"):
        with pytest.raises(UnfitValueError, match="must not be empty"):
            Template.parse("a${username}").fill_topic({"username": value})


# --- against the broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def allowing() -> Iterator[Guarded]:
    broker = Guarded({"acl.sources": ["file", "builtin"]})
    (broker.folder / "acl.conf").write_text(ALLOWING)
    broker.settings["acl.file.path"] = str(broker.folder / "acl.conf")
    with broker:
        yield broker


def gets_nothing(broker: Guarded, spy: Client, filters: list[str]) -> None:
    """All filters are refused, and what others publish does not come; the worker of the client is still there to say so."""
    assert spy.subscribe([(one, 1) for one in filters], check=False).codes == (NOT_AUTHORIZED,) * len(filters)
    with broker.client("publisher", username="publisher") as publisher:
        for topic in ("devices/victim/x", "users/victim/x", "victim/x", "eq/victim/x", "$secret/x"):
            publisher.publish(topic, b"secret", 1)
    spy.ping()
    spy.expect_none(0.05)


def is_filter(text: str) -> bool:
    levels = text.split("/")
    return "#" not in levels[:-1] and all(level in ("+", "#") or not set(level) & set("+#") for level in levels)


@pytest.mark.own_broker
@pytest.mark.parametrize("value", UNFIT)
def test_a_client_with_an_unfit_name_reads_nothing_of_others(allowing: Guarded, value: str) -> None:
    own = [f"devices/{value}/#", f"eq/{value}/#", f"users/{value}/#", f"{value}/#", value]
    with allowing.client(value, username=value) as spy:
        gets_nothing(allowing, spy, [*filter(is_filter, own), "devices/+/#", "users/+/#", "eq/+/#", "+/#", "#", VICTIM])
        for topic in (VICTIM, "victim/x", "users/victim/x"):
            assert spy.publish(topic, b"forged", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]


@pytest.mark.own_broker
def test_a_client_with_a_fit_name_reads_its_own(allowing: Guarded) -> None:
    with allowing.client("victim", username="victim") as client:
        client.subscribe("devices/victim/#", 1)
        client.publish(VICTIM, b"mine", 1)
        assert client.expect(wire.Publish).payload == b"mine"


@pytest.mark.own_broker
def test_rules_of_the_store_of_tokens_and_of_answers() -> None:
    """`builtin`, a claim of a token, and what an HTTP service says come to the same."""
    secret = "a secret of at least thirty-two bytes"
    acl = [{"permission": "allow", "action": "all", "topic": "devices/${clientid}/#"}]
    with http_server() as service:
        service.answer = lambda path, fields: (200, json.dumps({"result": "allow", "acl": acl}).encode())
        secrets = f'[auth.jwt]\nsecret = "{secret}"\n[auth.http]\nurl = "{service.url}"\n'
        with Guarded({"auth.chain": ["jwt", "http"], "acl.sources": ["builtin"]}, secrets=secrets) as broker:
            broker.admin.set_rules("username", "stored", acl)
            token = jwt.encode({"exp": int(time.time()) + 60, "acl": acl}, secret, "HS256")
            for username, password in (("token", token), ("http", "x")):
                with broker.client("victim", username=username, password=password) as victim:
                    victim.subscribe("devices/victim/#", 1)
                with broker.client("+", username=username, password=password) as spy:
                    gets_nothing(broker, spy, ["devices/+/#", VICTIM])
