"""What clients may publish and subscribe: rules in files, of users, after a reload, after a session is resumed."""

import os
import signal
from collections.abc import Iterator

import pytest

from shardbroker.control import Control, ControlError
from tests.access.guarded import Guarded
from tests.harness import client_id_on, until, wire
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker

NOT_AUTHORIZED = 0x87
RULES = """
{allow, {user, "boss"}, subscribe, ["$SYS/#"]}.
{deny, all, subscribe, ["$SYS/#", {eq, "#"}, {eq, "+/#"}]}.
{allow, all, all, ["own/${clientid}/#", "shared/+"]}.
{allow, all, {publish, [{qos, 0}, {retain, false}]}, ["weak"]}.
{deny, all, publish, ["never"]}.
"""


@pytest.fixture
def ruled(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    options = getattr(request, "param", {})
    broker = Guarded({"acl.sources": ["file", "builtin"], **options})
    rules = broker.folder / "acl.conf"
    rules.write_text(RULES)
    broker.settings["acl.file.path"] = str(rules)
    with broker:
        yield broker


def test_publish(ruled: Guarded) -> None:
    for version, code in ((5, NOT_AUTHORIZED), (4, 0)):
        with ruled.client(f"p{version}", version) as client, ruled.client(f"q{version}") as sub:
            sub.subscribe("shared/x", 1)
            assert client.publish("shared/x", b"1", 1).code == 0  # type: ignore[union-attr]
            sub.expect(wire.Publish, payload=b"1")
            for qos in (1, 2):
                ack = client.publish("own/other/x", b"no", qos)
                assert ack is not None and ack.code == code
            client.publish("own/other/x", b"no", 0)
            client.ping()
            client.publish("weak", b"", 0)
            if version == 5:
                assert client.publish("weak", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
                assert client.publish("shared/x", b"2", 1).code == 0  # type: ignore[union-attr]
                assert client.publish("shared/x", b"3", 1, properties={"topic_alias": 1}).code == 0  # type: ignore[union-attr]
                assert client.publish("never", b"3", 1, properties={"topic_alias": 1}).code == NOT_AUTHORIZED  # type: ignore[union-attr]
                assert client.publish("", b"3", 1, properties={"topic_alias": 1}).code == NOT_AUTHORIZED  # type: ignore[union-attr]
    assert ruled.count("packets.publish.auth_error") >= 9
    assert "publish own/other/x" in ruled.logged("authorization denied", "client_id=p5")


def test_nothing_denied_is_delivered(ruled: Guarded) -> None:
    with ruled.client("own") as sub, ruled.client("pub") as pub:
        sub.subscribe("own/own/#", 2)
        for qos in (0, 1, 2):
            pub.publish("own/own/x", b"no", qos)
            pub.publish("own/own/x", b"no", qos, retain=True)
        pub.ping()
        sub.ping()
        sub.expect_none(0.1)


def test_subscribe(ruled: Guarded) -> None:
    for version, code in ((5, NOT_AUTHORIZED), (4, 0x80), (3, 0x80)):
        with ruled.client(f"s{version}", version) as client:
            filters = [(f"own/s{version}/#", 1), ("own/other/#", 1), ("#", 0), ("$share/g/shared/+", 1)]
            filters += [("$SYS/#", 0), ("shared/#", 0)]
            assert client.subscribe(filters, check=False).codes == (1, code, code, 1, code, code)
    assert ruled.count("packets.subscribe.auth_error") == 12
    ruled.logged("authorization denied", "client_id=s5", "subscribe own/other/#")


def test_a_will_that_may_not_be_published_is_refused_at_connect(ruled: Guarded) -> None:
    ruled.refused("will", NOT_AUTHORIZED, will=Will("own/other", b"x"))
    ruled.refused("will", 5, 4, will=Will("own/other", b"x"))
    ruled.client("will", will=Will("own/will/x", b"x")).close()
    ruled.logged("client_id=will", "reason=0x87", "will topic denied")


@pytest.mark.parametrize("ruled", [{"acl.deny_action": "disconnect"}], indirect=True)
def test_deny_action_disconnect(ruled: Guarded) -> None:
    for act in (lambda one: one.publish("never", b"", 0), lambda one: one.send_raw(wire.subscribe(1, [("#", 0)], version=5))):
        client = ruled.client("d5")
        act(client)
        ended = client.expect_close()
        assert ended is not None and ended.code == NOT_AUTHORIZED
    old = ruled.client("d4", 4)
    old.publish("never", b"", 1, wait=False)
    assert old.expect_close() is None
    ruled.logged("client_id=d4", "reason=0x87", "not authorized to publish to never")


def test_rules_of_users_clients_and_all(ruled: Guarded) -> None:
    rule = {"permission": "allow", "action": "publish", "topic": "extra/#"}
    client, named, other = ruled.client("c1"), ruled.client("c2", username="ada"), ruled.client("c3")
    ruled.admin.set_rules("clientid", "c1", [rule])
    ruled.admin.add_rule("username", "ada", rule)

    def allowed(one: object, topic: str = "extra/x") -> bool:
        return one.publish(topic, b"", 1).code != NOT_AUTHORIZED  # type: ignore[attr-defined, no-any-return]

    until(lambda: allowed(client) and allowed(named))
    assert not allowed(other)
    ruled.admin.set_rules("all", "", [{"permission": "allow", "topics": ["everybody"]}])
    until(lambda: allowed(other, "everybody"))
    assert not allowed(other, "never"), "the file comes first"
    ruled.admin.set_rules("clientid", "c1", [])
    until(lambda: not allowed(client))


def test_a_reload_ends_subscriptions_that_are_not_allowed_any_more(ruled: Guarded) -> None:
    rules = ruled.folder / "acl.conf"
    with ruled.client("sub") as sub, ruled.client("pub") as pub:
        sub.subscribe("shared/x", 1)
        sub.subscribe("own/sub/x", 1)
        assert pub.publish("shared/x", b"before", 1).code == 0  # type: ignore[union-attr]
        sub.expect(wire.Publish, payload=b"before")
        rules.write_text('{deny, {client, "sub"}, subscribe, ["shared/#"]}.\n{allow, all}.\n')
        assert ruled.admin.reload()
        until(lambda: pub.publish("shared/x", b"after", 1).code == 0x10)  # type: ignore[union-attr]
        while sub.recv(0.1) is not None:
            pass
        pub.publish("own/sub/x", b"still", 1)
        sub.expect(wire.Publish, payload=b"still")
        assert sub.subscribe("shared/x", check=False).codes == (NOT_AUTHORIZED,)
        rules.write_text("{allow, all")
        from shardbroker.management.access import AccessError

        with pytest.raises(AccessError, match=r"line 1: .*ends within a rule"):
            ruled.admin.reload()
        assert sub.subscribe("shared/x", check=False).codes == (NOT_AUTHORIZED,), "the rules before it stay"


@pytest.mark.parametrize("how", ["config reload", "acl reload", "SIGHUP"])
def test_a_changed_file_of_rules_is_read_again_though_no_setting_has_changed(ruled: Guarded, how: str) -> None:
    with ruled.client("c") as client, Control(ruled.data_dir) as control:
        assert client.publish("other", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        (ruled.folder / "acl.conf").write_text("{allow, all}.\n")
        if how == "SIGHUP":
            os.kill(ruled.pid, signal.SIGHUP)
        else:
            control.call(how)
        until(lambda: client.publish("other", b"", 1).code != NOT_AUTHORIZED)  # type: ignore[union-attr]
        (ruled.folder / "acl.conf").write_text("{allow, all")
        if how != "SIGHUP":
            with pytest.raises(ControlError, match=r"line 1: .*ends within a rule"):
                control.call(how)
        assert client.publish("other", b"", 1).code != NOT_AUTHORIZED  # type: ignore[union-attr]


def test_another_setting_does_not_bring_a_changed_file_of_rules_into_some_workers(ruled: Guarded) -> None:
    """The next worker that started would have read it, and the others not."""
    with Control(ruled.data_dir) as control:
        before = control.call("workers list")["data"][0]["starts"]
        (ruled.folder / "acl.conf").write_text("{allow, all}.\n")
        control.call("config set", key="mqtt.max_inflight", value="7")
        control.call("workers restart", worker=0)
        until(lambda: (row := control.call("workers list")["data"][0])["starts"] > before and row["state"] == "ready")
        for worker in range(2):
            with ruled.client(client_id_on(worker, 2, "c")) as client:
                assert client.publish("other", b"", 1).code == NOT_AUTHORIZED, f"worker {worker}"  # type: ignore[union-attr]


def test_a_resumed_session_keeps_only_what_is_allowed(ruled: Guarded) -> None:
    keep = {"properties": {"session_expiry_interval": 600}, "clean": False}
    with ruled.client("back", **keep) as client:
        client.subscribe("shared/x", 1)
        client.subscribe("own/back/x", 1)
    (ruled.folder / "acl.conf").write_text('{deny, {client, "back"}, subscribe, ["shared/#"]}.\n{allow, all}.\n')
    ruled.admin.reload()
    with ruled.client("pub") as pub:
        until(lambda: pub.publish("anything", b"", 1).code == 0x10)  # type: ignore[union-attr]
        with ruled.client("back", **keep) as client:
            assert client.connack is not None and client.connack.session_present
            pub.publish("shared/x", b"denied", 1)
            pub.publish("own/back/x", b"allowed", 1)
            client.expect(wire.Publish, payload=b"allowed")
            client.ping()


def test_superusers_may_do_everything() -> None:
    broker = Guarded({"auth.chain": ["builtin"], "acl.sources": ["builtin"]}, users={"ada": "secret"})
    broker.admin.add_user("root", "secret", superuser=True)
    with broker, broker.client("r", username="root", password="secret") as root:
        root.subscribe("#", 1)
        assert root.publish("a", b"", 1).code == 0  # type: ignore[union-attr]
        with broker.client("a", username="ada", password="secret") as ada:
            assert ada.subscribe("a", check=False).codes == (NOT_AUTHORIZED,), "acl.no_match is deny"
        assert broker.count("authorization.superuser") == 1


def test_no_match_allow() -> None:
    with Guarded({"acl.sources": ["builtin"], "acl.no_match": "allow"}) as broker, broker.client("x") as client:
        client.subscribe("a", 1)
        assert client.publish("a", b"", 1).code == 0  # type: ignore[union-attr]


def test_a_bad_file_of_rules_stops_the_start() -> None:
    broker = Guarded({"acl.sources": ["file"]})
    (broker.folder / "bad.conf").write_text("{allow, all}.\n{deny, nobody}.\n")
    broker.settings["acl.file.path"] = str(broker.folder / "bad.conf")
    what = r"acl.file.path: must be a file of rules, got .*bad.conf.: rules in .*bad.conf: line 2: who: must be all"
    with pytest.raises(AssertionError, match=what), broker:
        pass
    broker.admin.close()
