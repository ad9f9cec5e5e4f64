"""stomp.py against the STOMP gateway, in each version of the protocol."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
import stomp

from tests.docs.pages import ROOT, Example, parts_of
from tests.gateways.conftest import GatewayBroker
from tests.harness import Client, wire

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 10.0
CONNECTIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Puts what comes into queues."""

    def __init__(self) -> None:
        self.messages: Queue[Any] = Queue()
        self.receipts: Queue[str] = Queue()
        self.errors: Queue[Any] = Queue()
        self.gone = threading.Event()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_disconnected(self) -> None:
        self.gone.set()


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayBroker]:
    with GatewayBroker() as broker:
        broker.stomp().socket.close()
        yield broker


@pytest.fixture(params=["1.0", "1.1", "1.2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connected(gateway: GatewayBroker, version: str) -> Iterator[tuple[Any, Listener]]:
    connection, listener = CONNECTIONS[version]([gateway.at]), Listener()
    connection.set_listener("", listener)
    connection.connect("user", "password", wait=True)
    yield connection, listener
    if connection.is_connected():
        connection.disconnect()


@pytest.mark.parametrize("mode", ["auto", "client"])
def test_messages(gateway: GatewayBroker, connected: tuple[Any, Listener], version: str, mode: str) -> None:
    connection, listener = connected
    topic = f"stomp.py/{version}/{mode}"
    connection.subscribe(topic, id="1", ack=mode, headers={"receipt": "subscribed"})
    assert listener.receipts.get(timeout=TIMEOUT_S) == "subscribed"
    with Client(gateway.address, 5, f"stomp-py-{version}-{mode}") as mqtt:
        mqtt.subscribe(topic, 1)
        connection.send(topic, "grüße", headers={"receipt": "sent", "colour": "a:b"})
        assert mqtt.expect(wire.Publish, topic=topic).payload == "grüße".encode()
        mqtt.publish(topic, b"back", 1)
    for body in ("grüße", "back"):
        frame = listener.messages.get(timeout=TIMEOUT_S)
        assert (frame.body, frame.headers["destination"], frame.headers["subscription"]) == (body, topic, "1")
        assert body == "back" or frame.headers["colour"] == "a:b"
        if mode == "client":
            if version == "1.1":
                connection.ack(frame.headers["message-id"], "1")
            else:
                connection.ack(frame.headers["ack" if version == "1.2" else "message-id"])
    assert listener.receipts.get(timeout=TIMEOUT_S) == "sent"
    connection.disconnect(receipt="bye")
    assert listener.receipts.get(timeout=TIMEOUT_S) == "bye"
    assert listener.errors.empty()


def test_transactions(connected: tuple[Any, Listener], version: str) -> None:
    connection, listener = connected
    topic = f"stomp.py/{version}/transactions"
    connection.subscribe(topic, id="1")
    for end in (connection.abort, connection.commit):
        transaction = connection.begin()
        connection.send(topic, end.__name__, transaction=transaction)
        end(transaction)
    assert listener.messages.get(timeout=TIMEOUT_S).body == "commit"
    assert listener.errors.empty()


def test_heart_beats(gateway: GatewayBroker) -> None:
    connection, listener = stomp.Connection12([gateway.at], heartbeats=(1000, 1000)), Listener()
    connection.set_listener("", listener)
    connection.connect(wait=True)
    assert not listener.gone.wait(4.5), "the heart-beats of one side did not reach the other"
    connection.disconnect()


def test_errors(connected: tuple[Any, Listener]) -> None:
    connection, listener = connected
    connection.send("a/#", "no topic")
    assert "destination" in listener.errors.get(timeout=TIMEOUT_S).headers["message"]
    assert listener.gone.wait(TIMEOUT_S)


def test_the_program_of_the_page(gateway: GatewayBroker) -> None:
    """The one of docs/gateway-stomp.md, to the letter but for the port."""
    page = ROOT / "docs" / "gateway-stomp.md"
    (text,) = (part.text for part in parts_of(page) if isinstance(part, Example) and part.kind == "python")
    assert "61613" in text
    program = [sys.executable, "-u", "-c", text.replace("61613", str(gateway.at[1]))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdin is not None and running.stdout is not None
            wanted = {"receipt subscribed", "plant/1/temperature 21.5", "receipt sent", "Enter ends it"}
            found: set[str] = set()
            while found != wanted:
                line = running.stdout.readline().rstrip()
                assert line in wanted, line
                found.add(line)
            running.stdin.write("\n")
            assert "receipt bye" in running.communicate(timeout=TIMEOUT_S)[0]
            assert running.returncode == 0
        finally:
            running.kill()
