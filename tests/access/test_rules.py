"""Rules: which topics and filters they cover, whom they concern, how they are read."""

from pathlib import Path

import pytest

from shardbroker.access.acl_conf import parse_acl_conf
from shardbroker.access.auth_client import AuthClient
from shardbroker.access.contract import AuthRequest, Client
from shardbroker.access.files import FileError, read_passwords, read_rules
from shardbroker.access.rules import RuleError, RuleSet, client_rules, rule_of
from shardbroker.access.stores import RuleStore, StoreError, UserStore

ADA = Client("c1", "ada", None, "10.1.2.3", 5000, "default")


def decide(text: str, action: str, topic: str, client: Client = ADA, qos: int = 0, retain: bool = False) -> bool | None:
    return RuleSet(parse_acl_conf(text)).for_client(client).decide(AuthRequest(action, topic, qos, retain))


@pytest.mark.parametrize(
    ("filter", "asked", "allowed", "denied"),
    [
        ("a/b", "a/b", True, True),
        ("a/b", "a/c", None, None),
        ("a/+", "a/b", True, True),
        ("a/+", "a/b/c", None, None),
        ("a/+", "a/+", True, True),
        ("a/+", "a/#", None, True),  # it would get more than is allowed; where it is denied, that is denied too
        ("a/#", "a", True, True),
        ("a/#", "a/b/c", True, True),
        ("a/#", "a/#", True, True),
        ("a/#", "#", None, None),
        ("a/b", "a/+", None, None),
        ("#", "a/b", True, True),
        ("#", "$SYS/x", None, None),
        ("+/x", "$SYS/x", None, None),
        ("$SYS/#", "$SYS/x", True, True),
    ],
)  # fmt: skip
def test_what_a_rule_covers(filter: str, asked: str, allowed: bool | None, denied: bool | None) -> None:
    assert decide(f'{{allow, all, subscribe, ["{filter}"]}}.', "subscribe", asked) is allowed
    assert decide(f'{{deny, all, subscribe, ["{filter}"]}}.', "subscribe", asked) is (None if denied is None else False)


def test_eq_is_literal() -> None:
    rule = '{deny, all, subscribe, [{eq, "#"}, {eq, "+/#"}]}. {allow, all}.'
    assert decide(rule, "subscribe", "#") is False
    assert decide(rule, "subscribe", "+/#") is False
    assert decide(rule, "subscribe", "a/#") is True


def test_the_first_rule_that_matches_decides() -> None:
    text = '{allow, {user, "ada"}, all, ["x"]}.\n%% a comment\n{deny, all, all, ["x"]}.'
    assert decide(text, "publish", "x") is True
    assert decide(text, "publish", "x", Client("c2", "bob")) is False
    assert decide(text, "publish", "y") is None


@pytest.mark.parametrize(
    ("who", "matches"),
    [
        ("all", True),
        ('{user, "ada"}', True),
        ('{username, "bob"}', False),
        ('{user, {re, "^a"}}', True),
        ('{client, {re, "^x"}}', False),
        ('{clientid, "c1"}', True),
        ('{ipaddr, "10.0.0.0/8"}', True),
        ('{ipaddr, "127.0.0.1"}', False),
        ('{ipaddrs, ["127.0.0.1", "10.1.2.3"]}', True),
        ('{\'and\', [{user, "ada"}, {ipaddr, "127.0.0.1"}]}', False),
        ('{\'or\', [{user, "bob"}, {client, "c1"}]}', True),
        ("{listener, default}", True),
    ],
)
def test_whom_a_rule_concerns(who: str, matches: bool) -> None:
    assert (decide(f"{{allow, {who}}}.", "publish", "x") is True) is matches


def test_qos_and_retain_of_an_action() -> None:
    rule = '{allow, all, {publish, [{qos, [1, 2]}, {retain, false}]}, ["x"]}.'
    assert decide(rule, "publish", "x", qos=1) is True
    assert decide(rule, "publish", "x", qos=0) is None
    assert decide(rule, "publish", "x", qos=1, retain=True) is None
    assert decide('{allow, all, {subscribe, [{qos, 0}]}, ["x"]}.', "subscribe", "x", qos=1) is None


def test_placeholders_are_no_wildcards() -> None:
    rule = '{allow, all, all, ["own/${clientid}/#", "user/${username}"]}.'
    assert decide(rule, "publish", "own/c1/x") is True
    assert decide(rule, "publish", "own/c2/x") is None
    for evil in ("+", "#", "+/#"):
        for action, topic in (("publish", "own/c2/x"), ("subscribe", "own/c2/x"), ("subscribe", f"own/{evil}/#")):
            assert decide(rule, action, topic, Client(evil)) is None
    assert decide(rule, "publish", "own/a/b/x", Client("a/b")) is None, "that is in the tree of a"
    assert decide(rule, "publish", "user/x", Client("c9")) is None, "a client without a user name has no such topic"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{allow, all}", "ends within a rule"),
        ("{allow, everybody}.", "line 1: who: must be"),
        ('{allow, all, fly, ["x"]}.', "line 1: action: must be publish, subscribe or all, got 'fly'"),
        ('{allow, all}.\n\n{permit, all, all, ["x"]}.', "line 3: rule: must be {allow | deny, Who}"),
        ('{allow, all, all, ["a/#/b"]}.', "must have # at the end only"),
        ('{allow, all, all, ["a+"]}.', "whole levels only"),
        ('{allow, all, all, ["${password}"]}.', "${password}"),
        ('{allow, {ipaddr, "ten"}}.', "got 'ten'"),
        ('{allow, {user, {re, "("}}}.', "pattern '('"),
        ('{allow, {zone, "z"}}.', "zone: not supported"),
        ("{allow, all}. ?", "is not an Erlang term"),
        ("{" * 100, "nested deeper than 32 levels"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(RuleError, match="line") as caught:
        parse_acl_conf(text)
    assert told in str(caught.value)


def test_the_same_rules_in_toml(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "rules.toml"
    file.write_text("""
[[rules]]
permission = "allow"
who = { and = [{ username = "ada" }, { ipaddr = "10.0.0.0/8" }] }
action = "publish"
qos = [1, 2]
retain = false
topics = ["x/${clientid}", "eq +"]

[[rules]]
permission = "deny"
""")
    rules = RuleSet(read_rules(file))
    assert rules.for_client(ADA).decide(AuthRequest("publish", "x/c1", 1)) is True
    assert rules.for_client(ADA).decide(AuthRequest("publish", "x/c1", 0)) is False
    assert rules.for_client(Client("c1", "bob")).decide(AuthRequest("publish", "x/c1", 1)) is False
    file.write_text('[[rules]]\npermission = "allow"\n[[rules]]\npermission = "maybe"\n')
    with pytest.raises(FileError, match=r"rule 2: permission: must be allow or deny, got 'maybe'"):
        read_rules(file)


def test_rows_of_databases() -> None:
    row = {"permission": "allow", "action": "publish", "topic": "eq a/+", "qos": "1,2", "retain": 0, "username": "ada"}
    rules = RuleSet([rule_of(row)])
    assert rules.for_client(ADA).decide(AuthRequest("publish", "a/+", 1)) is True
    assert rules.for_client(ADA).decide(AuthRequest("publish", "a/b", 1)) is None
    assert rules.for_client(Client("c1", "bob")).decide(AuthRequest("publish", "a/+", 1)) is None


def test_rules_of_a_token() -> None:
    old = client_rules({"pub": ["a/#"], "sub": ["b/${clientid}"]}).for_client(ADA)
    assert old.decide(AuthRequest("publish", "a/x", 0)) is True
    assert old.decide(AuthRequest("subscribe", "b/c1", 0)) is True
    assert old.decide(AuthRequest("subscribe", "a/x", 0)) is False, "what is not listed is denied"
    new = client_rules([{"permission": "deny", "action": "all", "topic": "secret/#"}]).for_client(ADA)
    assert new.decide(AuthRequest("publish", "secret/x", 0)) is False
    assert new.decide(AuthRequest("publish", "other", 0)) is None, "the sources are asked"
    for wrong in ("x", {"pub": "a"}, [{"permission": "allow", "action": 1}], [1]):
        with pytest.raises(RuleError):
            client_rules(wrong)


def test_password_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "passwords"
    file.write_text("# users\nada:abc:salt:superuser\nbob:$2b$10$x\n\n")
    users = read_passwords(file)
    assert users["ada"].is_superuser and users["ada"].salt == "salt" and users["bob"].hash == "$2b$10$x"
    file.write_text("ada\n")
    with pytest.raises(FileError, match="line 1: must be name:hash"):
        read_passwords(file)


@pytest.mark.parametrize("kind", ["clientid", "username", "all"])
def test_the_store_takes_a_hundred_rules_of_one(tmp_path: Path, kind: str) -> None:
    store = RuleStore(tmp_path)
    try:
        rule = {"permission": "allow", "action": "all", "topic": "a"}
        store.put_rules(kind, "x", [rule] * 100)
        with pytest.raises(StoreError, match="got 101"):
            store.put_rules(kind, "x", [rule] * 101)
        assert len(store.get_rules(kind, "x")) == 100
    finally:
        store.close()


@pytest.mark.parametrize("store", [UserStore, RuleStore])
def test_stores_are_of_the_owner_alone(tmp_path: Path, store: type[UserStore | RuleStore]) -> None:
    store(tmp_path / "store").close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "store").iterdir())
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_lines_about_denied_topics_are_bounded() -> None:
    gate = AuthClient.__new__(AuthClient)
    gate._logged_s = gate._logged = 0
    assert [sum(gate.may_report(second * 1000 + ms) for ms in range(0, 1000, 10)) for second in (5, 6)] == [10, 10]
