"""Who a client is counts, not who its CONNECT says it is: names that SCRAM has verified, and bans of them."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardbroker.control import Control
from tests.access.guarded import Guarded, http_server
from tests.access.scram_client import ScramClient
from tests.harness import wire
from tests.harness.client import Client

pytestmark = pytest.mark.own_broker
METHOD = "SCRAM-SHA-256"
NOT_AUTHORIZED, BANNED = 0x87, 0x8A
CONTINUE, AGAIN = 0x18, 0x19
PLUGIN = """
def load(plugin):
    for point in ("client.connect", "client.connack", "client.connected", "session.created"):
        plugin.hook(point, lambda who, *more, point=point: plugin.log("info", f"saw {point} {who.client_id} {who.username}"))
"""


@pytest.fixture(scope="module")
def scram() -> Iterator[Guarded]:
    broker = Guarded({
        "auth.chain": ["scram"],
        "auto_subscribe.topics": '[{ topic = "to/${username}", qos = 1 }]',
        "rewrite.rules": '[{ source_topic = "mine/#", re = "^mine/(.+)$", dest_topic = "of/${username}/$1" }]',
    })  # fmt: skip
    (broker.folder / "names.py").write_text(PLUGIN)
    broker.settings["plugins.dir"] = str(broker.folder)
    for name in ("ada", "eve"):
        broker.admin.add_user(name, "pencil", scram=True)
    with broker:
        for name in ("ada", "eve"):
            broker.admin.add_user(name, "pencil", scram=True)
        yield broker


def fields(data: bytes) -> dict[str, Any]:
    return {"authentication_method": METHOD, "authentication_data": data}


def login(broker: Guarded, client_id: str, name: str, code: int = 0, **options: Any) -> Client:
    said = ScramClient("sha256", name, "pencil")
    client = Client(broker.address, 5, client_id, connect=False, properties=fields(said.first()), **options)
    client.send_raw(client._connect_packet)
    challenge = client.expect(wire.Auth, code=CONTINUE)
    client.send_raw(wire.auth(CONTINUE, fields(said.final(challenge.properties["authentication_data"]))))
    assert client.expect(wire.Connack).code == code
    return client


def again(client: Client, name: str) -> None:
    """Authenticates again; what comes of it is for the caller."""
    said = ScramClient("sha256", name, "pencil")
    client.send_raw(wire.auth(AGAIN, fields(said.first())))
    challenge = client.expect(wire.Auth, code=CONTINUE)
    client.send_raw(wire.auth(CONTINUE, fields(said.final(challenge.properties["authentication_data"]))))


def test_a_banned_user_is_refused_once_its_name_is_known(scram: Guarded) -> None:
    scram.admin.ban("username", "eve")
    scram.admin.ban("username_re", "^mal")
    try:
        for claimed in (None, "ada", "eve"):
            with login(scram, "v1", "eve", BANNED, username=claimed) as client:
                client.expect_close()
        scram.logged("client_id=v1", "banned by username")
        login(scram, "v1", "ada").close()
        with login(scram, "v2", "ada") as client:
            again(client, "eve")
            ended = client.expect_close()
            assert ended is not None and ended.code == NOT_AUTHORIZED
    finally:
        scram.admin.unban("username", "eve")
        scram.admin.unban("username_re", "^mal")


def test_the_name_of_connect_is_used_nowhere(scram: Guarded) -> None:
    with Control(scram.data_dir) as control, login(scram, "watch", "ada") as watch:
        control.call("plugins load", name="names", setting={})
        watch.subscribe("of/#", 1)
        will = wire.Will("mine/will", b"gone", 1)
        with login(scram, "v3", "ada", username="eve", will=will) as client:
            shown = control.call("clients show", clientid="v3")
            assert shown["username"] == "ada"
            topics = [one["topic"] for one in control.call("subscriptions list", clientid="v3")["data"]]
            assert topics == ["to/ada"]
            client.publish("mine/x", b"1", 1)
            assert watch.expect(wire.Publish).topic == "of/ada/x"
            client.subscribe("mine/y", 1)
            watch.publish("of/ada/y", b"2", 1)
            assert client.expect(wire.Publish).topic == "of/ada/y"
            assert watch.expect(wire.Publish).topic == "of/ada/y"
            client.cut()
        assert watch.expect(wire.Publish, payload=b"gone").topic == "of/ada/will"
        scram.logged("saw client.connect v3 None")
        for point in ("client.connack", "client.connected", "session.created"):
            scram.logged(f"saw {point} v3 ada")
        assert not any("v3" in line and "eve" in line for line in scram.output)
        control.call("plugins unload", name="names")


def test_authenticating_again_as_another_user_is_seen_too(scram: Guarded) -> None:
    with Control(scram.data_dir) as control, login(scram, "v4", "ada") as client:
        again(client, "eve")
        client.expect(wire.Auth, code=0)
        assert control.call("clients show", clientid="v4")["username"] == "eve"
        client.subscribe("mine/z", 1)
        client.publish("of/eve/z", b"1", 1)
        assert client.expect(wire.Publish).topic == "of/eve/z"


def test_below_a_mount_point_a_connection_stays_with_its_user() -> None:
    with Guarded({"auth.chain": ["scram"], "listeners.default.mountpoint": "of/${username}/"}) as broker:
        for name in ("ada", "eve"):
            broker.admin.add_user(name, "pencil", scram=True)
        with login(broker, "v5", "ada", username="eve") as client:
            client.subscribe("x", 1)
            again(client, "ada")
            client.expect(wire.Auth, code=0)
            again(client, "eve")
            ended = client.expect_close()
            assert ended is not None and ended.code == NOT_AUTHORIZED
        login(broker, "v5", "eve").close()


def test_a_ban_that_comes_while_a_login_waits() -> None:
    asked, banned = threading.Event(), threading.Event()

    def answer(path: str, given: dict[str, Any]) -> tuple[int, bytes]:
        if given["clientid"] == "v6":
            asked.set()
            assert banned.wait(5)
        return 204, b""

    with http_server() as service:
        service.answer = answer
        secrets = f'[auth.http]\nurl = "{service.url}"\n'
        with Guarded({"auth.chain": ["http"]}, secrets=secrets, workers=1) as broker:
            inside = broker.client("inside", username="late", password="x")
            with Client(broker.address, 5, "v6", connect=False, username="late", password="x") as client:
                client.send_raw(client._connect_packet)
                assert asked.wait(5)
                broker.admin.ban("username", "late")
                inside.expect_close()
                banned.set()
                assert client.expect(wire.Connack).code == BANNED
                client.expect_close()
