"""`clientinfo_override.clientid`: client ids of a template, for each gateway; no client gets that of another one."""

import itertools
from contextlib import ExitStack

import pytest

from shardbroker.config import load
from shardbroker.config.errors import ConfigError
from shardbroker.config.gateways import ClientInfoOverride
from shardbroker.gateways.session import IdentityError, client_id_of
from tests.gateways import mqttsn_client as norm
from tests.gateways.coap_client import POST, PUT
from tests.gateways.conftest import GatewayBroker
from tests.gateways.test_exproto import World
from tests.harness import until

OVERRIDE = "clientinfo_override.clientid"


@pytest.mark.parametrize(
    ("template", "sent"),
    [("", b"id"), ("x-${clientid}", b"x-id"), ("${username}", b"user"), ("${username}/${clientid}.", b"user/id."),
     ("${clientid}@${username}", b"id@user"), ("$${clientid}{", b"$id{")],
)  # fmt: skip
def test_templates(template: str, sent: bytes) -> None:
    assert client_id_of(ClientInfoOverride(clientid=template), b"id", b"user") == sent


@pytest.mark.parametrize("template", ["${username}-${clientid}", "${clientid}aba${username}", "p${username}aa${clientid}aas"])
def test_no_two_clients_get_the_same_one(template: str) -> None:
    """All short texts of the letters of the template: an attacker chooses both."""
    override = ClientInfoOverride(clientid=template)
    texts = [bytes(one) for size in range(1, 5) for one in itertools.product(b"ab-", repeat=size)]
    found: dict[bytes, tuple[bytes, bytes]] = {}
    for pair in itertools.product(texts, texts):
        try:
            name = client_id_of(override, *pair)
        except IdentityError:
            continue
        assert found.setdefault(name, pair) == pair, name
    assert len(found) > 1000


@pytest.mark.parametrize(
    ("template", "client_id", "username", "text"),
    [("${username}", b"id", None, "needs a username"), ("${username}-${clientid}", b"id", b"a-b", "must not contain '-'"),
     ("x${clientid}", b"i" * 65_535, None, "at most 65535 bytes, got 65536")],
)  # fmt: skip
def test_clients_that_get_none(template: str, client_id: bytes, username: bytes | None, text: str) -> None:
    with pytest.raises(IdentityError, match=text):
        client_id_of(ClientInfoOverride(clientid=template), client_id, username)


@pytest.mark.parametrize(
    ("setting", "text"),
    [("stomp.clientinfo_override.clientid=same", r"allowed is text with one of the placeholders \$\{clientid\}, \$\{username\}"),
     ("stomp.clientinfo_override.clientid=x${password}", r"allowed is text with the placeholders .*, not \$\{password\}"),
     ("coap.clientinfo_override.clientid=${username}${clientid}", "allowed is text between two placeholders"),
     ("mqttsn.clientinfo_override.clientid=${username}", "devices have no user names")],
)  # fmt: skip
def test_wrong_templates_are_named(setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(None, None, [f"gateways.{setting}"], {})


# --- with a broker ----------------------------------------------------------------------------------------------------------------


@pytest.mark.own_broker
def test_mqttsn(name: str) -> None:
    with GatewayBroker(2, {OVERRIDE: "sn-${clientid}"}, "mqttsn") as broker, ExitStack() as stack:
        device, other = (stack.enter_context(broker.mqttsn()) for _ in range(2))
        device.connect(name, flags=0)
        (row,) = until(lambda: broker.ctl("clients list", clientid=f"sn-{name}")["data"])
        assert row["clientid"] == f"sn-{name}" and not broker.ctl("clients list", clientid=name)["data"]
        device.subscribe(f"{name}/x")
        device.sleep(600)
        device.send("PINGREQ", f"sn-{name}".encode())
        device.expect("DISCONNECT")
        device.send("PINGREQ", name.encode())
        device.expect("PINGRESP")
        other.connect(name, flags=0)
        device.expect("DISCONNECT")
        broker.ctl("publish", topic=f"{name}/x", payload="still subscribed", qos=1)
        assert other.take()[2] == b"still subscribed"


@pytest.mark.own_broker
def test_coap_clients_of_two_users_with_one_id_keep_their_sessions(name: str) -> None:
    with GatewayBroker(2, {OVERRIDE: "${username}/${clientid}"}, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        with broker.coap() as first, broker.coap() as second, broker.coap() as moved:
            first.connect(name, username="a", password="x")
            second.connect(name, username="b", password="x")
            until(lambda: len(broker.ctl("clients list", clientid=f"a/{name}")["data"]) == 1)
            until(lambda: len(broker.ctl("clients list", clientid=f"b/{name}")["data"]) == 1)
            first.good(PUT, "mqtt/connection")
            second.good(PUT, "mqtt/connection")
            moved.auth = {**first.auth, "username": "b"}
            assert moved.request(POST, f"ps/{name}", b"x").text == "4.01", "the token is that of another client"
            moved.auth = first.auth
            assert moved.request(POST, f"ps/{name}", b"x").text == "4.01", "it does not say whose session it is"
            moved.auth = {**first.auth, "username": "a"}
            assert moved.request(POST, f"ps/{name}", b"x").text == "2.04"
            moved.auth = {}
            assert moved.request(POST, "mqtt/connection", clientid="z", username="a/b").text == "4.00"
            assert moved.request(POST, "mqtt/connection", clientid="z").text == "4.00"


@pytest.mark.own_broker
def test_stomp(name: str) -> None:
    with GatewayBroker(2, {OVERRIDE: "${username}:${clientid}"}) as broker:
        with broker.stomp() as first, broker.stomp() as second, broker.stomp() as third:
            first.connect(client_id=name, login="a")
            second.connect(client_id=name, login="b")
            for user in "ab":
                until(lambda user=user: broker.ctl("clients list", clientid=f"{user}:{name}")["data"])  # type: ignore[misc]
            for one in (first, second):
                one.send("SEND", b"x", destination=name, receipt="r")
                one.expect("RECEIPT")
            third.send("CONNECT", **{"accept-version": "1.2", "host": "x", "login": "a:b", "client-id": name})
            assert b"username: must not contain ':'" in third.expect("ERROR").body
        with broker.stomp() as fourth:
            fourth.send("CONNECT", **{"accept-version": "1.2", "host": "x", "client-id": name})
            assert b"needs a username" in fourth.expect("ERROR").body


@pytest.mark.own_broker
def test_a_device_whose_id_would_be_too_long_is_rejected() -> None:
    settings = {OVERRIDE: "x" * 1000 + "${clientid}", "max_datagram_size": 65_507}
    with GatewayBroker(1, settings, "mqttsn") as broker, broker.mqttsn() as device:
        device.connect("short")
        with broker.mqttsn() as other:
            other.knock(norm.connect("i" * 65_000))
            assert other.recv().fields == (3,)


@pytest.mark.own_broker
def test_exproto(name: str) -> None:
    with World(**{OVERRIDE: "${username}|${clientid}"}) as world, ExitStack() as stack:
        stack.enter_context(world.connected("first a"))
        second, third, fourth = (stack.enter_context(world.device()) for _ in range(3))
        second.connect(name, "a", "x")
        third.connect(name, "b", "x")
        for user in "ab":
            until(lambda user=user: world.broker.ctl("clients list", clientid=f"{user}|{name}")["data"])  # type: ignore[misc]
        assert second.ask("SUB 1 x") == third.ask("SUB 1 x") == "CODE 0 ", "both are connected"
        assert "must not contain '|'" in fourth.ask(f"CONNECT {name} a|b")
