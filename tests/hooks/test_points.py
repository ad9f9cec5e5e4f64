"""Every hook point is fired with its arguments, and what its callbacks return holds; three workers, real clients."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbroker.control import Control
from shardbroker.hooks import POINTS
from shardbroker.hooks.reference import reference
from tests.harness import Client, Disconnect, Publish, Will, client_id_on
from tests.harness.client import Closed
from tests.harness.waiting import until
from tests.hooks.plugged import Plugged

pytestmark = pytest.mark.own_broker
ROOT = Path(__file__).parents[2]
Connect = Callable[..., Client]


def is_from(client: Client) -> Callable[[list[object]], bool]:
    return lambda arguments: isinstance(arguments[0], dict) and arguments[0].get("client_id") == client.client_id


def test_the_bits_that_the_data_plane_tests_are_those_of_the_table() -> None:
    text = (ROOT / "shardbroker/hooks/masks.pxd").read_text()
    bits = {name: 1 << int(place) for name, place in re.findall(r"HOOK_(\w+) = 1 << (\d+)", text)}
    assert bits == {name.replace(".", "_").upper(): point.bit for name, point in POINTS.items()}


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs/hooks.md").read_text() == reference()


# --- clients ------------------------------------------------------------------------------------------------------------------


def test_a_connect_is_seen_changed_and_refused(plugged: Plugged, connect: Connect) -> None:
    plugged.witness("client.connect", returns="ok(last | {'session_expiry_interval': 7})")
    client = connect(on=plugged, username="ann", properties={"session_expiry_interval": 99, "receive_maximum": 5}, keepalive=33)
    who, connection, properties = plugged.arguments("client.connect")
    assert (who["client_id"], who["username"], who["peerhost"], who["version"]) == (client.client_id, "ann", "127.0.0.1", 5)
    assert who["password"] is None and who["listener"]
    assert connection == {"keepalive": 33, "clean_start": True, "expiry_interval": 99, "connected_at": 0}
    assert properties == {"session_expiry_interval": 99, "receive_maximum": 5}
    assert client.connack is not None and client.connack.properties["session_expiry_interval"] == 7
    assert plugged.control.call("clients show", clientid=client.client_id)["expiry_interval"] == 7
    plugged.witness("client.connect", returns="stop(Refusal(0x9C, 'elsewhere'))")
    with pytest.raises(AssertionError, match="156"):
        connect(on=plugged)


def test_a_connack_is_seen_and_changed(plugged: Plugged, connect: Connect) -> None:
    plugged.witness("client.connack", returns="ok(last | {'user_property': [('a', 'b')]})")
    client = connect(on=plugged)
    who, code, properties = plugged.arguments("client.connack")
    assert (who["client_id"], code, properties["topic_alias_maximum"]) == (client.client_id, 0, 65535)
    assert client.connack is not None and client.connack.properties["user_property"] == [("a", "b")]
    connect(3, on=plugged)
    refused = connect(on=plugged, connect=False, will=Will("a", b"", qos=0), properties={"authentication_method": "none"})
    refused.connect(expect_code=0x8C)
    assert plugged.arguments("client.connack", lambda arguments: arguments[1] == 0x8C)


def test_pings_logins_and_decisions_are_seen(plugged: Plugged, connect: Connect) -> None:
    plugged.witness("client.ping", "client.check_authn_complete")
    client = connect(on=plugged, username="ann", keepalive=20)
    assert plugged.arguments("client.check_authn_complete", is_from(client))[1:] == [0, False, True]
    client.ping()
    assert plugged.arguments("client.ping", is_from(client))[1]["keepalive"] == 20
    plugged.witness("client.authorize", "client.check_authz_complete", returns="ok(False) if last is None else None")
    client.publish("denied/x", b"", 1, wait=False)
    found = plugged.arguments("client.check_authz_complete", is_from(client))
    assert (found[1]["action"], found[1]["topic"], found[2:]) == ("publish", "denied/x", [False, "hook"])


def test_clients_that_come_and_go_are_seen(plugged: Plugged, connect: Connect) -> None:
    plugged.witness("client.connected", "client.disconnected")
    for worker in range(3):
        client = connect(on=plugged, client_id=client_id_on(worker, 3, "comes"), version=4, keepalive=20)
        who, connection = plugged.arguments("client.connected", is_from(client))
        assert (who["version"], connection["keepalive"], connection["clean_start"]) == (4, 20, True)
        assert connection["connected_at"] > 1_600_000_000_000
        client.disconnect()
        who, code, connection = plugged.arguments("client.disconnected", is_from(client))
        assert (code, connection["keepalive"]) == (0, 20)
    gone = connect(on=plugged)
    gone.socket.close()
    assert plugged.arguments("client.disconnected", is_from(gone))[1] == 0x80
    assert {call["worker"] for call in plugged.seen("client.connected")} == {0, 1, 2}


def test_callbacks_let_clients_in_and_keep_them_out(plugged: Plugged, connect: Connect) -> None:
    rule = "stop(allow()) if last_client.password == b'right' else stop(deny(0x87)) if last_client.password else None"
    plugged.witness("client.authenticate", returns=rule.replace("last_client", "arguments[0]"))
    connect(on=plugged, username="u", password="right").ping()
    refused = connect(on=plugged, connect=False, username="u", password="wrong")
    refused.connect(expect_code=0x87)
    connect(on=plugged).ping()  # it says nothing about who has no password, and nobody else is asked
    who, answer = plugged.arguments("client.authenticate")
    assert (who["username"], who["password"], answer["outcome"]) == ("u", "right", "Outcome.IGNORE")


def test_callbacks_decide_what_clients_may_do(plugged: Plugged, connect: Connect, topic: str) -> None:
    before = connect(on=plugged)  # came while nobody was asked
    before.subscribe(f"{topic}/no")
    plugged.witness("client.authorize", returns="ok(False) if '/no' in arguments[1].topic else None")
    client = connect(on=plugged)
    assert client.subscribe(f"{topic}/no", check=False).codes == (0x87,)
    client.subscribe(f"{topic}/yes", 1)
    ack = client.publish(f"{topic}/no", b"x", qos=1)
    assert ack is not None and ack.code == 0x87
    assert client.publish(f"{topic}/yes", b"x", qos=1, retain=True)
    who, question, allowed = plugged.arguments("client.authorize", lambda arguments: arguments[1]["action"] == "publish")
    assert who["client_id"] == client.client_id and allowed is None
    assert question == {"action": "publish", "topic": f"{topic}/no", "qos": 1, "retain": False}
    with pytest.raises(AssertionError, match="135"):
        connect(on=plugged, will=Will(f"{topic}/no", b"bye"))
    until(lambda: not plugged.control.call("subscriptions list", clientid=before.client_id)["data"])


def test_a_subscribe_and_an_unsubscribe_are_seen_and_changed(plugged: Plugged, connect: Connect, topic: str) -> None:
    change = "ok([Subscription('other/' + one.topic, 1) if hasattr(one, 'topic') else 'other/' + one for one in last])"
    plugged.witness("client.subscribe", "client.unsubscribe", "session.subscribed", "session.unsubscribed", returns=change)
    client = connect(on=plugged)
    assert client.subscribe([(topic, 2 | 4 | 8 | 32)], properties={"subscription_identifier": 9}).codes == (1,)
    who, properties, subscriptions = plugged.arguments("client.subscribe")
    wanted = {"topic": topic, "qos": 2, "no_local": True, "retain_as_published": True, "retain_handling": 2}
    assert (who["client_id"], properties, subscriptions) == (client.client_id, {"subscription_identifier": 9}, [wanted])
    held = {"topic": f"other/{topic}", "qos": 1, "no_local": False, "retain_as_published": False, "retain_handling": 0}
    assert plugged.arguments("session.subscribed", is_from(client))[1] == held
    assert client.unsubscribe(topic).codes == (0,)
    assert plugged.arguments("client.unsubscribe", is_from(client))[1:] == [{}, [topic]]
    assert plugged.arguments("session.unsubscribed", is_from(client))[1] == f"other/{topic}"


@pytest.mark.parametrize(
    ("point", "returned", "error"),
    [
        ("client.connack", "{'reason_string': 5}", "is not valid"),
        ("client.subscribe", "[]", "must be 1 Subscription"),
        ("client.subscribe", "[Subscription('a/#/b')]", "a/#/b"),
        ("client.subscribe", "[Subscription('a', 3)]", "must be 0, 1 or 2, got 3"),
        ("client.subscribe", "[Subscription('a', no_local=5)]", "no_local"),
        ("client.unsubscribe", "['']", "filter"),
    ],
)
def test_what_may_not_be_returned_is_as_if_it_had_not_been(
    plugged: Plugged, connect: Connect, topic: str, point: str, returned: str, error: str
) -> None:
    before = len(plugged.output)
    plugged.witness(point, returns=f"ok({returned})")
    client = connect(on=plugged)
    client.subscribe(topic)
    client.publish(topic, b"hey")
    client.expect(Publish)
    assert client.unsubscribe(topic).codes == (0,)
    plugged.logged(f"hook callback failed point={point} callback=witness:.*{re.escape(error)}", before)


DECIDING = pytest.mark.parametrize(
    ("point", "returned", "error"),
    [
        ("client.connect", "ok(Refusal(0))", "reason_code: must be a failure code of CONNACK, got 0"),
        ("client.connect", "ok(Refusal(0x87, 'x' * 300))", "up to 200 bytes"),
        ("client.connect", "ok({'content_type': 'a'})", "not allowed in CONNECT"),
        ("client.connect", "ok([])", "a dictionary"),
        ("client.connect", "1 / 0", "ZeroDivisionError"),
        ("client.authenticate", "ok(True)", "must be allow(...)"),
        ("client.authenticate", "ok(deny(5))", "reason_code: must be a failure code of CONNACK, got 5"),
        ("client.authenticate", "False", "got bool"),
        ("client.authenticate", "1 / 0", "ZeroDivisionError"),
        ("client.authorize", "ok('yes')", "must be True, False or None"),
        ("client.authorize", "False", "got bool"),
        ("client.authorize", "1 / 0", "ZeroDivisionError"),
        ("client.authorize", "exit()", "SystemExit"),
    ],
)


@DECIDING
def test_a_callback_that_decides_and_fails_refuses(
    plugged: Plugged, connect: Connect, topic: str, point: str, returned: str, error: str
) -> None:
    inside = connect(on=plugged)
    before = len(plugged.output)
    plugged.witness(point, returns=returned)
    if point == "client.authorize":
        client = connect(on=plugged)
        assert client.subscribe(topic, check=False).codes == (0x87,)
        for qos in (1, 2):
            ack = client.publish(topic, b"x", qos)
            assert ack is not None and ack.code == 0x87
        connect(on=plugged, connect=False, will=Will(topic, b"bye")).connect(expect_code=0x87)
    else:
        for version, code in ((5, 0x88), (4, 3)):
            refused = connect(version, on=plugged, connect=False, username="u", password="p")
            refused.connect(expect_code=code)
            refused.expect_close()
    plugged.logged(f"hook callback failed point={point} callback=witness:.*{re.escape(error)}", before)
    inside.ping()


@DECIDING
def test_a_callback_that_says_so_is_skipped_when_it_fails(
    plugged: Plugged, connect: Connect, topic: str, point: str, returned: str, error: str
) -> None:
    before = len(plugged.output)
    plugged.witness(point, returns=returned, on_error="ignore")
    client = connect(on=plugged)
    client.subscribe(topic)
    client.publish(topic, b"hey")
    client.expect(Publish)
    plugged.logged(f"hook callback failed point={point} callback=witness:.*{re.escape(error)}", before)


def test_a_denial_because_of_an_error_is_not_remembered(plugged: Plugged, connect: Connect, topic: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    plugged.witness("client.authorize", returns=f"1 / 0 if __import__('os').path.exists('{broken}') else ok(True)")
    client = connect(on=plugged)
    for code in (0x87, 0x10):
        for _ in range(2):
            ack = client.publish(topic, b"x", 1)
            assert ack is not None and ack.code == code
        broken.unlink(missing_ok=True)


# --- sessions -----------------------------------------------------------------------------------------------------------------


def test_the_life_of_a_session_is_seen(plugged: Plugged, connect: Connect, new_id: Callable[..., str]) -> None:
    points = ("created", "resumed", "discarded", "takenover", "terminated")
    plugged.witness(*(f"session.{name}" for name in points))
    client_id = new_id()
    stays = {"session_expiry_interval": 60}
    first = connect(on=plugged, client_id=client_id, clean=False, properties=stays)
    first.subscribe("a/#")
    who, session = plugged.arguments("session.created")
    assert who["client_id"] == session["client_id"] == client_id and session["created_at"] > 1_600_000_000_000
    second = connect(on=plugged, client_id=client_id, clean=False, properties=stays)
    first.expect_close()
    assert plugged.arguments("session.takenover")[1]["expiry_interval"] == 60
    assert plugged.arguments("session.resumed")[1]["subscriptions"] == 1
    third = connect(on=plugged, client_id=client_id, clean=True)
    second.expect_close()
    assert plugged.arguments("session.discarded")[1]["client_id"] == client_id
    assert plugged.arguments("session.terminated")[1] == "discarded"
    third.disconnect()
    assert plugged.arguments("session.terminated", lambda arguments: arguments[1] == "disconnected")
    fourth = connect(on=plugged, client_id=client_id, clean=False, properties=stays)
    fourth.disconnect(0, {"session_expiry_interval": 1})
    who, _, session = plugged.arguments(
        "session.terminated", lambda arguments: arguments[0]["client_id"] == client_id and arguments[1] == "expired"
    )
    assert who["client_id"] == client_id == session["client_id"] and who["peerhost"] == ""


# --- messages -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_is_seen_and_changed_in_every_way(plugged: Plugged, connect: Connect, topic: str, qos: int) -> None:
    changes = f"topic='{topic}/new', payload=last.payload + b'!', qos=1, retain=True, properties=dict(content_type='text')"
    plugged.witness("message.publish", returns=f"ok(last.replace({changes})) if last.topic.endswith('/old') else None")
    subscriber = connect(on=plugged, client_id=client_id_on(0, 3, f"sub{qos}"))
    subscriber.subscribe(f"{topic}/#", 2, retain_as_published=True)
    publisher = connect(on=plugged, client_id=client_id_on(1, 3, f"pub{qos}"))
    ack = publisher.publish(f"{topic}/old", b"hey", qos, properties={"message_expiry_interval": 60, "user_property": [("a", "b")]})
    assert qos == 0 or (ack is not None and ack.code == 0)
    got = subscriber.expect(Publish, topic=f"{topic}/new", payload=b"hey!", qos=1, retain=True)
    assert got.properties == {"content_type": "text"}
    message = plugged.arguments("message.publish")[0]
    assert (message["topic"], message["payload"], message["qos"], message["retain"]) == (f"{topic}/old", "hey", qos, False)
    assert (message["client_id"], message["dropped"]) == (publisher.client_id, False)
    assert message["properties"] == {"message_expiry_interval": 60, "user_property": [["a", "b"]]}
    late = connect(on=plugged)
    late.subscribe(f"{topic}/new")
    assert late.expect(Publish, retain=True).payload == b"hey!"
    late.publish(f"{topic}/new", b"", retain=True)


def test_a_message_is_dropped_and_its_publisher_told_that_nobody_listens(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.witness("message.publish", "message.dropped", returns="stop(last.drop()) if hasattr(last, 'drop') else None")
    client = connect(on=plugged)
    client.subscribe(topic, 2)
    for qos in (1, 2):
        ack = client.publish(topic, b"x", qos)
        assert ack is not None and (qos == 2 or ack.code == 0x10)
    client.publish(topic, b"y")
    client.ping()
    client.expect_none()
    assert plugged.arguments("message.dropped")[1] == "hook"
    with Control(plugged.data_dir) as control:
        assert control.call("metrics")["messages.dropped.hook"] >= 3
        assert control.call("status")["losses"].keys().isdisjoint({"hook", "no_subscribers"})


def test_a_will_and_a_message_of_ctl_are_seen(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.witness("message.publish", returns="ok(last.replace(payload=last.payload + b'?'))")
    subscriber = connect(on=plugged)
    subscriber.subscribe(topic)
    connect(on=plugged, will=Will(topic, b"gone")).socket.close()
    assert subscriber.expect(Publish).payload == b"gone?"
    plugged.control.call("publish", topic=topic, payload=b"asked")
    assert subscriber.expect(Publish).payload == b"asked?"


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("last.replace(topic='a/#')", "not a topic name"),
        ("last.replace(topic='')", "topic"),
        ("last.replace(topic='$SYS/x')", "must not be below $SYS/"),
        ("last.replace(topic='x' * 70000)", "got 70000"),
        ("last.replace(payload='text')", "payload: must be bytes"),
        ("last.replace(payload=bytes(2000000))", "mqtt.max_packet_size"),
        ("last.replace(qos=3)", "(mqtt.max_qos_allowed), got 3"),
        ("last.replace(retain=1)", "retain"),
        ("last.replace(properties={'nonsense': 1})", "nonsense"),
        ("last.replace(properties={'topic_alias': 1})", "topic_alias"),
        ("last.replace(properties={'response_topic': 'a/+'})", "response topic"),
        ("last.replace(topic='a\\ud800')", "surrogates"),
        ("5", "must be a Message"),
    ],
)
def test_a_message_that_may_not_be_is_left_as_it_was(
    plugged: Plugged, connect: Connect, topic: str, returned: str, error: str
) -> None:
    before = len(plugged.output)
    plugged.witness("message.publish", returns=f"ok({returned})")
    client = connect(on=plugged)
    client.subscribe(topic)
    client.publish(topic, b"as it was")
    client.expect(Publish, topic=topic, payload=b"as it was")
    plugged.logged(f"hook callback failed point=message.publish callback=witness:.*{re.escape(error)}", before)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_deliveries_and_acknowledgements_are_seen(plugged: Plugged, connect: Connect, topic: str, qos: int) -> None:
    plugged.witness("message.delivered", "message.acked")
    subscriber, publisher = (connect(on=plugged, client_id=client_id_on(worker, 3, f"d{qos}")) for worker in (0, 1))
    subscriber.subscribe(topic, qos)
    publisher.publish(topic, b"hey", qos, properties={"content_type": "text"})
    subscriber.expect(Publish)
    who, message = plugged.arguments("message.delivered")
    assert (who["client_id"], message["topic"], message["qos"]) == (subscriber.client_id, topic, qos)
    assert (message["client_id"], message["properties"], len(message["id"])) == (publisher.client_id, {"content_type": "text"}, 32)
    subscriber.ping()
    if qos:
        assert plugged.arguments("message.acked") == [who, message]
    assert len(plugged.seen("message.acked")) == (1 if qos else 0)


def test_a_message_that_nobody_wants_is_seen(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.witness("message.dropped")
    client = connect(on=plugged)
    client.publish(topic, b"lost", qos=1)
    message, reason = plugged.arguments("message.dropped")
    assert (message["topic"], message["payload"], reason) == (topic, "lost", "no_subscribers")


def test_dropped_deliveries_are_seen(plugged: Plugged, connect: Connect, topic: str) -> None:
    plugged.witness("delivery.dropped")
    client = connect(on=plugged)
    client.subscribe(f"{topic}/mine", no_local=True)
    client.publish(f"{topic}/mine", b"me")
    assert plugged.arguments("delivery.dropped", lambda arguments: arguments[2] == "no_local")[1]["payload"] == "me"
    small = connect(on=plugged, properties={"maximum_packet_size": 50})
    small.subscribe(f"{topic}/large")
    client.publish(f"{topic}/large", b"x" * 100)
    who, message, _ = plugged.arguments("delivery.dropped", lambda arguments: arguments[2] == "too_large")
    assert (who["client_id"], message["topic"]) == (small.client_id, f"{topic}/large")
    away = connect(on=plugged, clean=False, properties={"session_expiry_interval": 60})
    away.subscribe(f"{topic}/away", 1)
    away.disconnect()
    client.publish(f"{topic}/away", b"late", 1, properties={"message_expiry_interval": 1})
    for number in range(1001):
        client.publish(f"{topic}/away", b"%d" % number, 1, wait=number == 1000)
    who, message, _ = plugged.arguments("delivery.dropped", lambda arguments: arguments[2] == "queue_full")
    assert (who["client_id"], who["peerhost"], message["payload"]) == (away.client_id, "", "late")


def test_a_refused_client_is_not_connected_and_has_no_session(plugged: Plugged, connect: Connect) -> None:
    plugged.witness("client.connected", "client.disconnected", "session.created", "client.connack")
    client = connect(on=plugged, connect=False, properties={"authentication_method": "none"})
    client.connect(expect_code=0x8C)
    with pytest.raises(Closed):
        client.expect(Disconnect)
    assert [call["point"] for name in POINTS for call in plugged.seen(name)] == ["client.connack"]
