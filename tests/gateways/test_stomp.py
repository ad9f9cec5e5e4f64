"""The STOMP gateway with a client written from the norm: each statement about servers, and what this gateway makes of the rest.

The table of statements is stomp_statements.md; test_statements.py compares it with the tests here.
"""

import re
import socket
import time
from pathlib import Path

import pytest

from tests.gateways.conftest import GatewayBroker
from tests.gateways.stomp_client import StompClient
from tests.harness import Client, until, wire

pytestmark = pytest.mark.own_broker
VERSIONS = pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])


# --- CONNECT ----------------------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_connected_has_the_version(gateway: GatewayBroker, version: str, command: str) -> None:
    with gateway.stomp() as client:
        client.send(command, accept_version=version, host="h")
        frame = client.expect("CONNECTED", version=version)
        assert re.fullmatch(r"shardbroker/[0-9.]+\S*", frame.headers["server"])
        assert frame.headers["session"].startswith("stomp-")


def test_the_highest_common_version_is_used(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.send("CONNECT", accept_version="1.0,1.1,2.0", host="h")
        client.expect("CONNECTED", version="1.1")


def test_without_accept_version_it_is_1_0(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.send("CONNECT")
        client.expect("CONNECTED", version="1.0")


def test_without_a_common_version_there_is_an_error(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.send("CONNECT", accept_version="2.0", host="h")
        assert client.expect_error("no common version").headers["version"] == "1.2,1.1,1.0"


def test_headers_of_connect_are_not_escaped(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        frame = client.connect(client_id=rf"{name}\x")
        assert frame.headers["session"] == rf"{name}\x"


def test_another_frame_before_connect_is_an_error(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.send("SEND", destination="a")
        client.expect_error("first frame must be CONNECT")


def test_a_second_connect_is_an_error(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.send("CONNECT", accept_version="1.2", host="h")
        client.expect_error("already open")


def test_what_is_no_stomp_is_an_error(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        client.expect_error("unknown command")


def test_silence_before_connect_ends_the_connection(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.expect_error("no CONNECT within idle_timeout = 6 s")


# --- heart-beats ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "agreed"), [("0,0", "0,0"), ("5000,7000", "7000,5000"), ("10,0", "0,1000"), ("0,10", "1000,0")]
)
def test_heart_beats_are_agreed_on(gateway: GatewayBroker, asked: str, agreed: str) -> None:
    with gateway.stomp() as client:
        assert client.connect(heart_beat=asked).headers["heart-beat"] == agreed


@pytest.mark.parametrize("wrong", ["1", "a,b", "-1,0", "1,2,3"])
def test_a_wrong_heart_beat_is_an_error(gateway: GatewayBroker, wrong: str) -> None:
    with gateway.stomp() as client:
        client.send("CONNECT", accept_version="1.2", host="h", heart_beat=wrong)
        client.expect_error("heart-beat must be two numbers")


def test_the_server_sends_its_heart_beats(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect(heart_beat="0,4000")
        client.data = b""
        start_s = time.monotonic()
        for _ in range(2):
            assert client.socket.recv(1) == b"\n"
        assert time.monotonic() - start_s < 10


def test_a_client_without_heart_beats_is_gone(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect(heart_beat="1000,0")
        start_s = time.monotonic()
        client.expect_error("no heart-beat within 2 s")
        assert time.monotonic() - start_s > 1.5


def test_any_byte_is_a_heart_beat(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect(heart_beat="3000,0")
        for _ in range(5):
            time.sleep(1.5)
            client.raw(b"\n")
        client.done("SEND", destination="a")


# --- SEND, RECEIPT ----------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_message_reaches_mqtt(gateway: GatewayBroker, name: str, version: str) -> None:
    with gateway.stomp() as client, Client(gateway.address, 5, f"{name}-sub") as subscriber:
        subscriber.subscribe(f"{name}/#", 2)
        client.connect(version)
        client.done("SEND", b"a\0b", destination=f"{name}/x", content_type="text/x", content_length="3", foo="bar")
        message = subscriber.expect(wire.Publish, topic=f"{name}/x", payload=b"a\0b", qos=1)
        assert message.properties["user_property"] == [("foo", "bar")]
        assert message.properties["content_type"] == "text/x"


def test_a_receipt_means_acknowledged(gateway: GatewayBroker, name: str) -> None:
    """The message is in the broker when the receipt comes: a client that connects then finds it retained."""
    with gateway.stomp() as client:
        client.connect()
        client.done("SEND", b"kept", destination=f"{name}/r", retain="true")
        with Client(gateway.address, 5, f"{name}-sub") as subscriber:
            subscriber.subscribe(f"{name}/r", 1)
            subscriber.expect(wire.Publish, payload=b"kept", retain=True)


def test_every_frame_gets_its_receipt(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.done("SUBSCRIBE", id="1", destination=f"{name}/+", ack="client")
        client.send("SEND", b"x", destination=f"{name}/a")
        ack = client.expect("MESSAGE").headers["ack"]
        client.done("ACK", id=ack)
        client.done("BEGIN", transaction="t")
        client.done("SEND", b"y", destination=f"{name}/b", transaction="t")
        client.done("ABORT", transaction="t")
        client.done("UNSUBSCRIBE", id="1")
        client.done("DISCONNECT")
        assert client.recv() is None


def test_destinations_that_are_no_topics_are_an_error(gateway: GatewayBroker) -> None:
    for destination in ("a/+", "a/#", ""):
        with gateway.stomp() as client:
            client.connect()
            client.send("SEND", destination=destination, receipt="7")
            assert client.expect_error("SEND").headers["receipt-id"] == "7"


@pytest.mark.parametrize(
    ("command", "headers", "missing"),
    [
        ("SEND", {}, "destination"), ("SUBSCRIBE", {"destination": "a"}, "id"), ("SUBSCRIBE", {"id": "a"}, "destination"),
        ("UNSUBSCRIBE", {}, "id"), ("ACK", {}, "id"), ("NACK", {}, "id"), ("BEGIN", {}, "transaction"),
        ("COMMIT", {}, "transaction"), ("ABORT", {}, "transaction"),
    ],
)  # fmt: skip
def test_required_headers(gateway: GatewayBroker, command: str, headers: dict[str, str], missing: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.send(command, **headers, receipt="r")
        assert client.expect_error(command, f"header {missing} is missing").headers["receipt-id"] == "r"


@pytest.mark.parametrize(
    "data",
    [
        b"SEND\n" + b"a:b\n" * 5000,
        b"SEND\na:" + b"x" * 100_000,
        b"SEND\ndestination:a\ncontent-length:70000\n\n",
        b"SEND\ndestination:a\n\n" + b"x" * 200_000,
        b"SUBSCRIBE\nid:1\ndestination:a\n\nbody\0",
        b"SEND\ndestination:a\nk:\\t\n\n\0",
    ],
)
def test_floods_and_malformed_frames_are_an_error(gateway: GatewayBroker, data: bytes) -> None:
    with gateway.stomp() as client:
        client.connect()
        try:
            client.raw(data)
        except OSError:
            return  # closed while it was sending
        frame = client.recv()
        assert frame is None or frame.command == "ERROR", frame


# --- SUBSCRIBE, MESSAGE -----------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_message_of_mqtt_arrives(gateway: GatewayBroker, name: str, version: str) -> None:
    with gateway.stomp() as client, Client(gateway.address, 5, f"{name}-pub") as publisher:
        client.connect(version)
        client.done("SUBSCRIBE", id="s:1" if version == "1.0" else r"s\c1", destination=f"{name}/+")
        for qos in (0, 1, 2):
            publisher.publish(f"{name}/x", b"a\0\nb", qos)
            frame = client.expect("MESSAGE", destination=f"{name}/x", content_length="4")
            assert frame.body == b"a\0\nb"
            assert frame.headers["subscription"] == ("s:1" if version == "1.0" else r"s\c1")
            assert frame.headers["message-id"] == str(qos + 1)


def test_headers_and_content_type_pass(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as sender, gateway.stomp() as client:
        client.connect("1.2")
        client.done("SUBSCRIBE", id="1", destination=f"{name}/h")
        sender.connect("1.2")
        sender.send("SEND", b"{}", destination=f"{name}/h", content_type="application/json", colour=r"a\nb\cc\\d", colour2="ä")
        frame = client.expect("MESSAGE", content_type="application/json", colour=r"a\nb\cc\\d", colour2="ä")
        assert "ack" not in frame.headers


def test_1_0_subscribes_without_id(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect("1.0")
        client.done("SUBSCRIBE", destination=f"{name}/x")
        client.send("SEND", b"1", destination=f"{name}/x")
        assert "subscription" not in client.expect("MESSAGE").headers
        client.done("UNSUBSCRIBE", destination=f"{name}/x")
        client.done("SEND", b"2", destination=f"{name}/x")


def test_each_subscription_gets_its_copy(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        for id, destination in (("1", f"{name}/x"), ("2", f"{name}/x"), ("3", f"{name}/+")):
            client.done("SUBSCRIBE", id=id, destination=destination)
        client.send("SEND", b"m", destination=f"{name}/x")
        assert {client.expect("MESSAGE").headers["subscription"] for _ in range(3)} == {"1", "2", "3"}
        client.done("UNSUBSCRIBE", id="1")
        client.send("SEND", b"n", destination=f"{name}/x")
        assert {client.expect("MESSAGE").headers["subscription"] for _ in range(2)} == {"2", "3"}
        client.expect_nothing()


def test_message_ids_are_unique(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        for id in "12":
            client.done("SUBSCRIBE", id=id, destination=f"{name}/x")
        for _ in range(5):
            client.send("SEND", destination=f"{name}/x")
        ids = [client.expect("MESSAGE").headers["message-id"] for _ in range(10)]
        assert len(set(ids)) == 10


def test_the_same_id_twice_is_an_error(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.send("SUBSCRIBE", id="1", destination=f"{name}/y")
        client.expect_error("exists")


@pytest.mark.parametrize(("headers", "word"), [({"ack": "other"}, "ack must be"), ({"destination": "a/#/b"}, "destination")])
def test_wrong_subscriptions_are_an_error(gateway: GatewayBroker, headers: dict[str, str], word: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.send("SUBSCRIBE", **{"id": "1", "destination": "a", **headers})
        client.expect_error(word)


def test_subscribe_and_unsubscribe_for_ever(gateway: GatewayBroker, name: str) -> None:
    """What a subscription had is forgotten with it."""
    with gateway.stomp() as client:
        client.connect()
        for n in range(300):
            client.send("SUBSCRIBE", id=str(n), destination=f"{name}/{n % 3}")
            client.send("UNSUBSCRIBE", id=str(n))
        client.done("SUBSCRIBE", id="last", destination=f"{name}/1")
        client.send("SEND", b"m", destination=f"{name}/1")
        client.expect("MESSAGE", subscription="last")


# --- ACK, NACK --------------------------------------------------------------------------------------------------------------------


def take(client: StompClient, count: int) -> list[dict[str, str]]:
    return [client.expect("MESSAGE").headers for _ in range(count)]


def test_a_message_without_ack_comes_again(gateway: GatewayBroker, name: str) -> None:
    for mode, kept in (("auto", []), ("client", [b"0", b"1"]), ("client-individual", [b"0", b"1"])):
        id = f"{name}-{mode}"
        with gateway.stomp() as client:
            client.connect(client_id=id)
            client.done("SUBSCRIBE", id="1", destination=f"{name}/{mode}", ack=mode)
            for n in range(2):
                client.send("SEND", str(n).encode(), destination=f"{name}/{mode}")
            take(client, 2)
            client.done("DISCONNECT")
        with gateway.stomp() as client:
            client.connect(client_id=id)
            client.send("SUBSCRIBE", id="other", destination=f"{name}/{mode}", ack="client", receipt="s")
            frames = [client.expect("MESSAGE") for _ in kept]
            assert [frame.body for frame in frames] == kept
            assert all(frame.headers["subscription"] == "other" for frame in frames)
            client.expect("RECEIPT", receipt_id="s")
            client.done("UNSUBSCRIBE", id="other")


@pytest.mark.parametrize(("mode", "left"), [("client", []), ("client-individual", [b"0"])])
def test_ack_is_cumulative_in_client_mode_alone(gateway: GatewayBroker, name: str, mode: str, left: list[bytes]) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x", ack=mode)
        for n in range(2):
            client.send("SEND", str(n).encode(), destination=f"{name}/x")
        client.done("ACK", id=take(client, 2)[1]["ack"])
        client.done("DISCONNECT")
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.send("SUBSCRIBE", id="1", destination=f"{name}/x", ack="client", receipt="s")
        assert [client.expect("MESSAGE").body for _ in left] == left
        client.expect("RECEIPT", receipt_id="s")


def test_ack_in_each_version(gateway: GatewayBroker, name: str) -> None:
    for version, headers in (("1.0", ("message-id",)), ("1.1", ("message-id", "subscription")), ("1.2", ("ack",))):
        with gateway.stomp() as client:
            client.connect(version)
            client.done("SUBSCRIBE", id="1", destination=f"{name}/{version}", ack="client")
            client.send("SEND", destination=f"{name}/{version}")
            message = client.expect("MESSAGE").headers
            assert ("ack" in message) == (version == "1.2")
            client.done("ACK", **{"id" if one == "ack" else one: message[one] for one in headers})


@pytest.mark.parametrize("command", ["ACK", "NACK"])
def test_ack_of_what_was_never_sent_is_an_error(gateway: GatewayBroker, command: str) -> None:
    for wrong in ("1", "x", "0", "99999999999999999999999"):
        with gateway.stomp() as client:
            client.connect()
            client.send(command, id=wrong)
            client.expect_error(f"{command}: no message")


def test_nack_gives_a_message_up(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x", ack="client-individual")
        client.send("SEND", b"0", destination=f"{name}/x")
        client.done("NACK", id=take(client, 1)[0]["ack"])
        client.done("DISCONNECT")
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.expect_nothing()


def test_nack_is_not_in_1_0(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect("1.0")
        client.send("NACK", message_id="1")
        client.expect_error("not part of STOMP 1.0")


# --- transactions -----------------------------------------------------------------------------------------------------------------


def test_a_transaction_is_sent_at_commit(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.done("BEGIN", transaction="t")
        for n in range(3):
            client.done("SEND", str(n).encode(), destination=f"{name}/x", transaction="t")
        client.expect_nothing()
        client.send("COMMIT", transaction="t", receipt="c")
        frames = [client.recv() for _ in range(4)]
        assert [frame.body for frame in frames if frame is not None and frame.command == "MESSAGE"] == [b"0", b"1", b"2"]
        assert [frame.headers for frame in frames if frame is not None and frame.command == "RECEIPT"] == [{"receipt-id": "c"}]


def test_abort_drops_a_transaction(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.send("BEGIN", transaction="t")
        client.send("SEND", destination=f"{name}/x", transaction="t")
        client.done("ABORT", transaction="t")
        client.expect_nothing()
        client.done("BEGIN", transaction="t")


def test_the_end_of_a_connection_aborts_its_transactions(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as other:
        other.connect()
        other.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        with gateway.stomp() as client:
            client.connect()
            client.send("BEGIN", transaction="t")
            client.send("SEND", destination=f"{name}/x", transaction="t")
            client.done("DISCONNECT")
        other.expect_nothing()


def test_ack_in_a_transaction(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x", ack="client-individual")
        for n in range(2):
            client.send("SEND", str(n).encode(), destination=f"{name}/x")
        first, second = take(client, 2)
        for transaction, ack, end in (("a", first, "ABORT"), ("b", second, "COMMIT")):
            client.send("BEGIN", transaction=transaction)
            client.send("ACK", id=ack["ack"], transaction=transaction)
            client.done(end, transaction=transaction)
        client.done("DISCONNECT")
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.send("SUBSCRIBE", id="1", destination=f"{name}/x")
        assert client.expect("MESSAGE").body == b"0"


@pytest.mark.parametrize("command", ["SEND", "ACK", "COMMIT", "ABORT"])
def test_an_unknown_transaction_is_an_error(gateway: GatewayBroker, command: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.send(command, destination="a", id="1", transaction="none")
        client.expect_error("no transaction")


def test_a_transaction_begins_once(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect()
        client.send("BEGIN", transaction="t")
        client.send("BEGIN", transaction="t")
        client.expect_error("exists")


def test_transactions_are_bounded(gateway: GatewayBroker) -> None:
    with gateway.stomp() as client:
        client.connect()
        for n in range(11):
            client.send("BEGIN", transaction=str(n))
        client.expect_error("max_transactions = 10")
    with gateway.stomp() as client:
        client.connect()
        client.send("BEGIN", transaction="a")
        client.send("BEGIN", transaction="b")
        for n in range(101):
            client.send("SEND", destination="a", transaction="ab"[n % 2])
        client.expect_error("max_transaction_frames = 100")


# --- DISCONNECT -------------------------------------------------------------------------------------------------------------------


def test_the_receipt_of_disconnect_is_the_last_frame(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect()
        for n in range(500):
            client.send("SEND", str(n).encode(), destination=f"{name}/x", receipt=str(n))
        client.send("DISCONNECT", receipt="last")
        client.send("SEND", destination=f"{name}/x", receipt="after")
        ids = [client.expect("RECEIPT").headers["receipt-id"] for _ in range(501)]
        assert ids == [*map(str, range(500)), "last"]
        assert client.recv() is None


# --- sessions ---------------------------------------------------------------------------------------------------------------------


def test_a_session_outlives_its_connection(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x", ack="client")
        client.done("DISCONNECT")
    with Client(gateway.address, 5, f"{name}-pub") as publisher:
        for n in range(5):
            publisher.publish(f"{name}/x", str(n).encode(), 1)
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.send("SUBSCRIBE", id="2", destination=f"{name}/x", ack="client")
        assert [client.expect("MESSAGE").body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_without_their_subscription_end_the_connection(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.done("DISCONNECT")
    with Client(gateway.address, 5, f"{name}-pub") as publisher:
        publisher.publish(f"{name}/x", b"m", 1)
    with gateway.stomp() as client:
        client.connect(client_id=name)
        client.expect_error("clean-session:true")
    with gateway.stomp() as client:
        client.connect(client_id=name, clean_session="true")
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        client.expect_nothing()


def test_the_same_client_id_takes_the_session_over(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as first, gateway.stomp() as second:
        first.connect(client_id=name)
        second.connect(client_id=name)
        first.expect_error("the broker has ended the session")
        second.done("SEND", destination=f"{name}/x")


@pytest.mark.timeout(300)
def test_a_slow_client_does_not_fill_the_gateway(gateway: GatewayBroker, name: str) -> None:
    """The gateway stops reading from the broker, whose queue is bounded; the messages arrive in order once they are read."""
    count = 600
    with gateway.stomp() as client, Client(gateway.address, 5, f"{name}-pub") as publisher:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.connect()
        client.done("SUBSCRIBE", id="1", destination=f"{name}/x")
        for n in range(count):
            publisher.publish(f"{name}/x", b"%06d" % n + b"x" * 10_000, 1)
        got = []
        for _ in range(count):  # the longer the publisher took, the rarer TCP probes the window that was closed
            frame = client.recv(60.0)
            assert frame is not None and frame.command == "MESSAGE", frame
            got.append(int(frame.body[:6]))
        assert got == list(range(count))


# --- what is in the broker --------------------------------------------------------------------------------------------------------


def test_the_broker_knows_address_and_listener(gateway: GatewayBroker, name: str) -> None:
    with gateway.stomp() as client:
        client.connect(client_id=name, login="ada")
        port = client.socket.getsockname()[1]
        row = until(lambda: next(iter(gateway.ctl("clients list", clientid=name)["data"]), None), "no client")
        assert (row["ip_address"], row["port"], row["username"]) == ("127.0.0.1", port, "ada")
        assert (row["listener"], row["proto_name"]) == ("stomp:tcp:default", "STOMP")
        rows = gateway.ctl("gateways clients", name="stomp")["data"]
        assert name in [one["clientid"] for one in rows]
        until(lambda: gateway.ctl("gateways list")["data"][-1]["current_connections"] >= 1, "not counted")
        gateway.ctl("clients kick", clientids=[name])
        client.expect_error("the broker has ended the session")


def test_the_internal_socket_is_closed_to_others(gateway: GatewayBroker) -> None:
    (path,) = [one for root in gateway.leftovers() if root.is_dir() for one in root.glob("stomp-default.sock")]
    assert path.stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
