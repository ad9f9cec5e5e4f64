"""Enhanced authentication: SCRAM by AUTH packets, and authenticating again (MQTT 5.0 §3.15, §4.12)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.access.guarded import Guarded
from tests.access.scram_client import ScramClient
from tests.harness import wire
from tests.harness.client import Client
from tests.harness.wire import Auth, Connack

pytestmark = pytest.mark.own_broker

METHOD = "SCRAM-SHA-256"
BAD_PASSWORD, NOT_AUTHORIZED, BAD_METHOD, PROTOCOL_ERROR = 0x86, 0x87, 0x8C, 0x82
CONTINUE, AGAIN = 0x18, 0x19


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    broker = Guarded({"auth.chain": ["scram", "builtin"], "acl.sources": ["builtin"]}, users={"plain": "secret"})
    broker.admin.add_user("ada", "pencil", scram=True)
    broker.admin.add_user("root", "pencil", scram=True, superuser=True)
    broker.admin.set_rules("username", "ada", [{"permission": "allow", "topic": "ada/#"}])
    with broker:
        yield broker


def fields(data: bytes | None, method: str | None = METHOD) -> dict[str, Any]:
    found: dict[str, Any] = {} if method is None else {"authentication_method": method}
    return found | ({} if data is None else {"authentication_data": data})


def begin(broker: Guarded, client_id: str, scram: ScramClient, **options: Any) -> tuple[Client, bytes]:
    """CONNECT with the first message; the client, and what the server's AUTH carries."""
    more = options.pop("properties", {})
    client = Client(broker.address, 5, client_id, connect=False, properties=fields(scram.first()) | more, **options)
    client.send_raw(client._connect_packet)
    challenge = client.expect(Auth, code=CONTINUE)
    assert challenge.properties["authentication_method"] == METHOD
    return client, challenge.properties["authentication_data"]


def finish(client: Client, scram: ScramClient, server_first: bytes) -> Connack:
    client.send_raw(wire.auth(CONTINUE, fields(scram.final(server_first))))
    return client.expect(Connack)


def logged_in(broker: Guarded, client_id: str, name: str = "ada") -> Client:
    scram = ScramClient("sha256", name, "pencil")
    client, first = begin(broker, client_id, scram)
    connack = finish(client, scram, first)
    assert connack.code == 0 and scram.believes(connack.properties["authentication_data"])
    return client


@pytest.mark.statement("5.0", "MQTT-4.12.0-2", "MQTT-4.12.0-5")
def test_scram_lets_in_who_knows_the_password(guarded: Guarded) -> None:
    scram = ScramClient("sha256", "ada", "pencil")
    client, first = begin(guarded, "s1", scram)
    with client:
        connack = finish(client, scram, first)
        assert connack.code == 0 and connack.properties["authentication_method"] == METHOD
        assert scram.believes(connack.properties["authentication_data"])
        client.subscribe("ada/x", 1)
        assert client.subscribe("other", check=False).codes == (NOT_AUTHORIZED,), "its rules are those of the SCRAM user"


@pytest.mark.statement("5.0", "MQTT-4.12.0-4")
@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_who_does_not_is_refused(guarded: Guarded, name: str) -> None:
    scram = ScramClient("sha256", name, "guess")
    client, first = begin(guarded, "s2", scram)
    assert finish(client, scram, first).code == BAD_PASSWORD
    client.expect_close()


@pytest.mark.statement("5.0", "MQTT-4.12.0-4")
def test_data_that_is_no_scram_is_refused(guarded: Guarded) -> None:
    for data in (None, b"", b"\xff\xfe", b"n,,n=ada"):
        client = Client(guarded.address, 5, "s3", connect=False, properties=fields(data))
        client.connect(BAD_PASSWORD)
        client.expect_close()


@pytest.mark.statement("5.0", "MQTT-4.12.0-1")
def test_a_method_that_is_not_offered_is_refused(guarded: Guarded) -> None:
    for method in ("SCRAM-SHA-512", "no-such-method"):
        client = Client(guarded.address, 5, "s4", connect=False, properties=fields(b"n,,n=ada,r=x", method))
        client.connect(BAD_METHOD)
        client.expect_close()


@pytest.mark.statement("5.0", "MQTT-3.1.2-30")
@pytest.mark.parametrize(
    "packet", [wire.publish("ada/x", b"early", version=5), wire.subscribe(1, [("ada/x", 0)], version=5), wire.pingreq(),
               wire.ack(wire.PUBACK, 1), wire.connect("s5", 5)],
    ids=["PUBLISH", "SUBSCRIBE", "PINGREQ", "PUBACK", "CONNECT"],
)  # fmt: skip
def test_only_auth_and_disconnect_may_come_before_connack(guarded: Guarded, packet: bytes) -> None:
    with logged_in(guarded, "watch", "root") as watch:
        watch.subscribe("ada/x")
        client, _ = begin(guarded, "s5", ScramClient("sha256", "ada", "pencil"))
        client.send_raw(packet)
        assert client.expect(Connack).code == PROTOCOL_ERROR
        client.expect_close()
        watch.expect_nothing_from(watch)


def test_a_client_may_give_up(guarded: Guarded) -> None:
    client, _ = begin(guarded, "s6", ScramClient("sha256", "ada", "pencil"))
    client.disconnect()


@pytest.mark.statement("5.0", "MQTT-4.12.0-3")
@pytest.mark.parametrize("code", [0x00, AGAIN])
def test_an_answer_with_another_reason_code_is_refused(guarded: Guarded, code: int) -> None:
    scram = ScramClient("sha256", "ada", "pencil")
    client, first = begin(guarded, "s7", scram)
    client.send_raw(wire.auth(code, fields(scram.final(first))))
    assert client.expect(Connack).code == PROTOCOL_ERROR
    client.expect_close()


@pytest.mark.statement("5.0", "MQTT-4.12.0-5")
def test_an_answer_with_another_method_is_refused(guarded: Guarded) -> None:
    scram = ScramClient("sha256", "ada", "pencil")
    client, first = begin(guarded, "s8", scram)
    client.send_raw(wire.auth(CONTINUE, fields(scram.final(first), "SCRAM-SHA-512")))
    assert client.expect(Connack).code == PROTOCOL_ERROR
    client.expect_close()


@pytest.mark.statement("5.0", "MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_a_small_maximum_packet_size_is_kept_by_auth_too(guarded: Guarded) -> None:
    scram = ScramClient("sha256", "ada", "pencil")
    client, first = begin(guarded, "s9", scram, properties={"maximum_packet_size": 200})
    client.send_raw(wire.auth(CONTINUE, fields(scram.final(first))))
    assert client.expect(Connack).code == 0
    client.close()
    tiny = Client(guarded.address, 5, "s9", connect=False, properties=fields(scram.first()) | {"maximum_packet_size": 40})
    answer = tiny.connect(None)
    assert answer.code == NOT_AUTHORIZED and len(answer.raw) <= 40
    tiny.expect_close()


@pytest.mark.statement("5.0", "MQTT-4.12.0-6")
def test_without_a_method_there_is_no_auth(guarded: Guarded) -> None:
    with guarded.client("s10", username="plain", password="secret") as client:
        assert client.connack is not None and "authentication_method" not in client.connack.properties
        client.send_raw(wire.auth(AGAIN, fields(b"")))
        ended = client.expect_close()
        assert ended is not None and ended.code == PROTOCOL_ERROR


def test_authenticating_again(guarded: Guarded) -> None:
    with logged_in(guarded, "r1") as client:
        client.subscribe("ada/x", 1)
        for _ in range(2):
            scram = ScramClient("sha256", "ada", "pencil")
            client.send_raw(wire.auth(AGAIN, fields(scram.first())))
            challenge = client.expect(Auth, code=CONTINUE)
            client.publish("ada/x", b"meanwhile", 1)
            client.expect(wire.Publish, payload=b"meanwhile")
            client.send_raw(wire.auth(CONTINUE, fields(scram.final(challenge.properties["authentication_data"]))))
            done = client.expect(Auth, code=0)
            assert done.properties["authentication_method"] == METHOD
            assert scram.believes(done.properties["authentication_data"])
        client.publish("ada/x", b"still here", 1)
        client.expect(wire.Publish, payload=b"still here")


def test_authenticating_again_as_somebody_else_changes_what_is_allowed(guarded: Guarded) -> None:
    with logged_in(guarded, "r2", "root") as client:
        client.subscribe("everything/#", 1)
        scram = ScramClient("sha256", "ada", "pencil")
        client.send_raw(wire.auth(AGAIN, fields(scram.first())))
        challenge = client.expect(Auth, code=CONTINUE)
        client.send_raw(wire.auth(CONTINUE, fields(scram.final(challenge.properties["authentication_data"]))))
        client.expect(Auth, code=0)
        assert client.publish("everything/x", b"", 1).code == NOT_AUTHORIZED  # type: ignore[union-attr]
        with logged_in(guarded, "r3", "root") as root:
            assert root.publish("everything/x", b"", 1).code == 0x10  # type: ignore[union-attr]


@pytest.mark.statement("5.0", "MQTT-4.12.1-1")
def test_authenticating_again_by_another_method_is_refused(guarded: Guarded) -> None:
    client = logged_in(guarded, "r4")
    client.send_raw(wire.auth(AGAIN, fields(b"n,,n=ada,r=x", "SCRAM-SHA-512")))
    ended = client.expect_close()
    assert ended is not None and ended.code == PROTOCOL_ERROR


@pytest.mark.statement("5.0", "MQTT-4.12.1-2")
def test_authenticating_again_with_a_wrong_password_ends_the_connection(guarded: Guarded) -> None:
    client = logged_in(guarded, "r5")
    scram = ScramClient("sha256", "ada", "forgotten")
    client.send_raw(wire.auth(AGAIN, fields(scram.first())))
    challenge = client.expect(Auth, code=CONTINUE)
    client.send_raw(wire.auth(CONTINUE, fields(scram.final(challenge.properties["authentication_data"]))))
    ended = client.expect_close()
    assert ended is not None and ended.code == NOT_AUTHORIZED
