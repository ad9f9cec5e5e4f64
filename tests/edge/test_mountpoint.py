"""Clients below a mount point: they live in a tree of their own, and do not see its name."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.edge.conftest import Edge
from tests.edge.websocket import WebSocket
from tests.harness import Client, wire
from tests.harness.wire import Will

pytestmark = pytest.mark.own_broker
VERSIONS = pytest.mark.parametrize("version", [4, 5])
CLIENT_ID_NOT_VALID, BAD_USER_NAME, NOT_AUTHORIZED = 0x85, 0x86, 0x87
RULES = """
{allow, {user, "ada"}, all, ["free/#", "$share/g/free/x"]}.
{deny, {user, "ada"}, all, ["#"]}.
{allow, all}.
"""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """Plain `default`; `fixed` below plant/, `own` below tenants/<user name>/devices/<client id>/."""
    rules = tmp_path_factory.mktemp("rules") / "acl.conf"
    rules.write_text(RULES)
    listeners: dict[str, dict[str, Any]] = {
        "fixed": {"mountpoint": "plant/"},
        "own": {"mountpoint": "tenants/${username}/devices/${clientid}/"},
        "head": {"mountpoint": "${username}/"},
        "ws": {"type": "ws", "mountpoint": "plant/"},
    }
    old = '[{ source_topic = "old/#", re = "^old/(.+)$", dest_topic = "new/$1", action = "subscribe" }]'
    settings = {"acl.sources": "file", "acl.file.path": rules, "mqtt.max_topic_alias": 10, "rewrite.rules": old}
    settings["mqtt.exclusive_subscription"] = "true"
    with Edge(listeners, 3, settings) as broker:
        yield broker


def below(broker: Edge, listener: str, version: int, client_id: str, **options: Any) -> Client:
    return Client(broker.address, version, client_id, dial=lambda: socket.create_connection(broker.at(listener), 5), **options)


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_get_the_prefix_and_lose_it(mounted: Edge, name: str, version: int, qos: int) -> None:
    with (
        Client(mounted.address, version, f"{name}-out") as outside,
        below(mounted, "fixed", version, f"{name}-in") as inside,
        below(mounted, "fixed", version, f"{name}-too") as other,
    ):
        outside.subscribe(f"+/{name}/#", 2)
        other.subscribe(f"{name}/+", 2)
        inside.publish(f"{name}/a", b"in", qos)
        assert outside.expect(wire.Publish, payload=b"in").topic == f"plant/{name}/a"
        assert other.expect(wire.Publish, payload=b"in", qos=qos).topic == f"{name}/a"
        outside.publish(f"plant/{name}/b", b"out", qos)
        assert other.expect(wire.Publish, payload=b"out").topic == f"{name}/b"
        outside.publish(f"{name}/c", b"elsewhere", qos)
        outside.publish(f"plant/{name}/d", b"last", qos)
        assert other.expect(wire.Publish, payload=b"last").topic == f"{name}/d", "nothing from outside its tree"
        assert other.socket is not None
        other.send_raw(wire.unsubscribe(77, [f"{name}/+"], version=version))
        other._wait_ack(wire.Unsuback, 77)
        outside.publish(f"plant/{name}/e", b"", qos)
        other.expect_none()


def test_placeholders_give_everybody_a_tree(mounted: Edge, name: str) -> None:
    with (
        Client(mounted.address, 5, f"{name}-out") as outside,
        below(mounted, "own", 5, f"{name}-1", username="bob") as first,
        below(mounted, "own", 5, f"{name}-2", username="bob") as second,
    ):
        outside.subscribe("tenants/#", 1)
        first.subscribe("#", 1)
        second.subscribe("#", 1)
        first.publish("x", name.encode(), 1)
        assert outside.expect(wire.Publish).topic == f"tenants/bob/devices/{name}-1/x"
        assert first.expect(wire.Publish).topic == "x"
        second.publish("y", name.encode(), 1)
        assert second.expect(wire.Publish).topic == "y", "and nothing of the first"


@pytest.mark.parametrize("clean", [True, False])
def test_wills_are_mounted(mounted: Edge, name: str, clean: bool) -> None:
    with below(mounted, "fixed", 5, f"{name}-watch") as watcher:
        watcher.subscribe(f"{name}/will", 1)
        below(mounted, "fixed", 5, f"{name}-dies", will=Will(f"{name}/will", b"gone", 1), clean=clean).cut()
        assert watcher.expect(wire.Publish, payload=b"gone").topic == f"{name}/will"


def test_retained_messages_are_those_of_the_tree(mounted: Edge, name: str) -> None:
    with Client(mounted.address, 5, f"{name}-out") as outside, below(mounted, "fixed", 5, f"{name}-in") as inside:
        inside.publish(f"{name}/r", b"kept", 1, retain=True)
        outside.publish(f"{name}/r", b"other", 1, retain=True)
        inside.subscribe(f"{name}/#", 1)
        message = inside.expect(wire.Publish, payload=b"kept")
        assert message.topic == f"{name}/r" and message.retain
        inside.publish(f"{name}/r", b"", 1, retain=True)
        assert inside.expect(wire.Publish).payload == b""
        outside.subscribe(f"plant/{name}/r", 1)
        outside.expect_none()
        outside.publish(f"{name}/r", b"", 1, retain=True)


def test_filters_are_rewritten_before_they_are_mounted(mounted: Edge, name: str) -> None:
    with Client(mounted.address, 5, f"{name}-out") as outside, below(mounted, "fixed", 5, name) as inside:
        inside.subscribe(f"old/{name}", 1)
        outside.publish(f"plant/new/{name}", b"", 1)
        assert inside.expect(wire.Publish).topic == f"new/{name}"
        inside.send_raw(wire.unsubscribe(70, [f"old/{name}"], version=5))
        assert inside._wait_ack(wire.Unsuback, 70).codes == (0,)


@VERSIONS
def test_shared_groups(mounted: Edge, name: str, version: int) -> None:
    """The prefix stands behind the group's name: members inside and outside are of the same group."""
    with (
        Client(mounted.address, version, f"{name}-pub") as outside,
        Client(mounted.address, version, f"{name}-m1") as first,
        below(mounted, "fixed", version, f"{name}-m2") as second,
    ):
        first.subscribe(f"$share/g{name}/plant/{name}", 1)
        second.subscribe(f"$share/g{name}/{name}", 1)
        for _ in range(4):
            outside.publish(f"plant/{name}", b"", 1)
        for client, topic, packet_id in ((first, f"plant/{name}", 71), (second, name, 72)):
            for _ in range(2):
                assert client.expect(wire.Publish).topic == topic
            group = f"$share/g{name}/{topic}"
            client.send_raw(wire.unsubscribe(packet_id, [group], version=version))
            client._wait_ack(wire.Unsuback, packet_id)


def test_sys_topics_are_those_of_the_tree(mounted: Edge, name: str) -> None:
    """As in EMQX: a client below a mount point sees nothing of the broker's own topics, and may have its own of that name."""
    with below(mounted, "fixed", 5, f"{name}-1") as inside, Client(mounted.address, 5, f"{name}-2") as outside:
        inside.subscribe("$SYS/#", 1)
        outside.subscribe(f"plant/$SYS/{name}", 1)
        assert inside.publish(f"$SYS/{name}", b"mine", 1).code == 0  # type: ignore[union-attr]
        assert inside.expect(wire.Publish, payload=b"mine").topic == f"$SYS/{name}"
        assert outside.expect(wire.Publish).topic == f"plant/$SYS/{name}"


def test_topic_aliases_in_both_directions(mounted: Edge, name: str) -> None:
    with below(mounted, "fixed", 5, f"{name}", properties={"topic_alias_maximum": 5}) as client:
        client.subscribe(f"{name}/#", 1)
        client.publish(f"{name}/a", b"1", 1, properties={"topic_alias": 3})
        client.publish("", b"2", 1, properties={"topic_alias": 3})
        first, second = client.expect(wire.Publish), client.expect(wire.Publish)
        assert (first.topic, first.payload, second.topic, second.payload) == (f"{name}/a", b"1", "", b"2")
        assert first.properties["topic_alias"] == second.properties["topic_alias"]


def test_messages_that_wait_for_a_session(mounted: Edge, name: str) -> None:
    def come() -> Client:
        return below(mounted, "fixed", 5, name, clean=False, properties={"session_expiry_interval": 60})

    with come() as client:
        client.subscribe(f"{name}/+", 1)
        client.disconnect()
    with Client(mounted.address, 5, f"{name}-out") as outside:
        outside.publish(f"plant/{name}/a", b"waited", 1)
    with come() as client:
        assert client.connack is not None and client.connack.session_present
        assert client.expect(wire.Publish, payload=b"waited").topic == f"{name}/a"
        client.disconnect()  # a connection that takes a session over may come before the PUBACK is read
    with Client(mounted.address, 5, name, clean=False) as client, Client(mounted.address, 5, f"{name}-out") as outside:
        outside.publish(f"plant/{name}/b", b"by another listener", 1)
        assert client.expect(wire.Publish).topic == f"plant/{name}/b"


def test_rules_see_topics_as_the_client_names_them(mounted: Edge, name: str) -> None:
    with Client(mounted.address, 5, f"{name}-out") as outside, below(mounted, "own", 5, name, username="ada") as client:
        outside.subscribe(f"tenants/ada/devices/{name}/#", 1)
        assert client.publish("free/x", b"yes", 1).code in (0, 0x10)  # type: ignore[union-attr]
        assert client.publish("bound/x", b"no", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        assert client.subscribe("free/#", check=False).codes == (0,)
        assert client.subscribe("bound/#", check=False).codes == (NOT_AUTHORIZED,)
        assert outside.expect(wire.Publish).payload == b"yes"
    mounted.wait_for_log("authorization denied", f"client_id={name}", '"publish bound/x"')


def test_bad_filters_and_topics_are_bad_below_a_mount_point_too(mounted: Edge, name: str) -> None:
    with below(mounted, "fixed", 5, name) as client:
        for wrong in ("a#", "a+/b", "$share/g", "$share/+/a", "x" * 65_534):
            assert client.subscribe(wrong, check=False).codes == (0x8F,)
        client.send_raw(wire.publish("y" * 65_534, b"", version=5))
        assert client.expect(wire.Disconnect).code == 0x90


@pytest.mark.parametrize(
    ("client_id", "username", "code", "code3"),
    [
        ("a/b", "u", CLIENT_ID_NOT_VALID, 2), ("+", "u", CLIENT_ID_NOT_VALID, 2), ("a#", "u", CLIENT_ID_NOT_VALID, 2),
        ("c", "u/v", BAD_USER_NAME, 4), ("c", "+", BAD_USER_NAME, 4), ("c", "", BAD_USER_NAME, 4), ("c", None, BAD_USER_NAME, 4),
    ],
)  # fmt: skip
def test_names_that_would_lead_into_other_trees_are_refused(
    mounted: Edge, client_id: str, username: str | None, code: int, code3: int
) -> None:
    for version, expected in ((5, code), (4, code3)):
        address = mounted.at("own")
        with Client(address, version, client_id, connect=False, username=username) as client:
            client.send_raw(client._connect_packet)
            assert client.expect(wire.Connack).code == expected
            client.expect_close()


@pytest.mark.parametrize("username", ["$share", "$delayed", "$exclusive", "$queue", "$SYS"])
def test_a_name_that_would_be_a_prefix_of_the_broker_is_refused(mounted: Edge, username: str) -> None:
    """Below `$share/` a client would subscribe to `secret/#` as `g/secret/#`, below `$delayed/` publish as `0/secret/x`."""
    with below(mounted, "head", 5, "head", connect=False, username=username) as client:
        client.send_raw(client._connect_packet)
        assert client.expect(wire.Connack).code == BAD_USER_NAME
        client.expect_close()
    below(mounted, "head", 5, "head", username="ada").close()


def test_over_websocket(mounted: Edge, name: str) -> None:
    def dial() -> WebSocket:
        return WebSocket(socket.create_connection(mounted.at("ws"), 5))

    with Client(mounted.address, 5, f"{name}-out") as outside, Client(mounted.address, 5, name, dial=dial) as client:
        client.subscribe(name, 1)
        outside.publish(f"plant/{name}", b"x" * 100_000, 1)
        assert client.expect(wire.Publish).topic == name


@VERSIONS
def test_delayed_messages_and_exclusive_subscriptions_are_below_it_too(mounted: Edge, name: str, version: int) -> None:
    with (
        Client(mounted.address, version, f"{name}-out") as outside,
        below(mounted, "fixed", version, f"{name}-in", will=Will(f"$delayed/0/{name}/will", b"gone", 1)) as inside,
        below(mounted, "own", version, f"{name}-own", username="u") as own,
    ):
        assert outside.subscribe(f"$exclusive/plant/{name}/+", 1).codes == (1,)
        assert inside.subscribe(f"$exclusive/{name}/+", 1, check=False).codes[0] >= 0x80
        assert own.subscribe(f"$exclusive/{name}/+", 1).codes == (1,)
        inside.publish(f"$delayed/0/{name}/t", b"1", 1)
        assert outside.expect(wire.Publish, payload=b"1").topic == f"plant/{name}/t"
        own.publish(f"$delayed/0/{name}/t", b"2", 1, properties={"topic_alias": 1} if version == 5 else None)
        assert own.expect(wire.Publish, payload=b"2").topic == f"{name}/t"
        own.unsubscribe(f"$exclusive/{name}/+")
        assert own.subscribe(f"$exclusive/{name}/+", 1).codes == (1,)
        inside.cut()
        assert outside.expect(wire.Publish, payload=b"gone").topic == f"plant/{name}/will"
