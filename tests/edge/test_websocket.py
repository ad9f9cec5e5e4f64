"""WebSocket listeners: the upgrade, and MQTT in frames (RFC 6455; MQTT 3.1.1 §6, 5.0 §6)."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.websocket import BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, TEXT, WebSocket, frame, request
from tests.harness import Client, Closed, Disconnect, Will, statement, wire

pytestmark = pytest.mark.own_broker
Alive = Callable[[], None]


def opened(edge: Edge, listener: str = "ws", piece: int = 0) -> Callable[[], WebSocket]:
    return lambda: WebSocket(socket.create_connection(edge.at(listener), 5), piece)


def answer_to(edge: Edge, data: bytes, listener: str = "ws") -> str:
    """All that comes until the broker closes."""
    with socket.create_connection(edge.at(listener), 5) as client:
        client.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(65536):
                got += part
        return got.decode()


@statement("3.1.1", "MQTT-6.0.0-3", "MQTT-6.0.0-4")
@statement("5.0", "MQTT-6.0.0-3", "MQTT-6.0.0-4")
@pytest.mark.parametrize(("offered", "chosen"), [("mqtt", "mqtt"), ("chat, mqtt-v5, mqtt", "mqtt"), ("mqtt-v3.1.1", "mqtt-v3.1.1")])
def test_subprotocol(edge: Edge, offered: str, chosen: str) -> None:
    with socket.create_connection(edge.at("ws"), 5) as client:
        client.sendall(request(subprotocol=offered, Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
        head = client.recv(65536).decode()
    assert head.startswith("HTTP/1.1 101")
    assert f"Sec-WebSocket-Protocol: {chosen}\r\n" in head
    assert "Extensions" not in head  # compression is not agreed upon


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (request(subprotocol=None), 400, "missing subprotocol"),
        (request(subprotocol="chat"), 400, "expected one of mqtt"),
        (request("/other"), 404, "must be /mqtt"),
        (request(Upgrade=""), 426, "Upgrade"),
        (request(Sec_WebSocket_Version="12"), 400, "Sec-WebSocket-Version"),
        (request(Sec_WebSocket_Key="short"), 400, "Sec-WebSocket-Key"),
        (request().replace(b"GET", b"POST", 1), 405, "POST"),
        (b"GARBAGE\r\n\r\n", 400, "not an HTTP request"),
        (request(X_Long="x" * 9000), 431, "not an HTTP request"),
        (request(**{f"X_{n}": "x" * 900 for n in range(30)}), 431, "more than 16384 bytes"),
        (request(**{f"X_{n}": "x" for n in range(129)}), 431, "no more than 128 headers"),
        (b"A" * 20000, 431, "more than 16384 bytes"),
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc", 0, "not an HTTP request"),
    ],
)
def test_upgrades_that_are_refused(edge: Edge, alive: Alive, data: bytes, status: int, words: str) -> None:
    answer = answer_to(edge, data)
    assert answer.startswith(f"HTTP/1.1 {status} ") if status else answer == ""
    edge.wait_for_log("client refused listener=ws", "reason=upgrade", words)
    alive()


def test_origins(edge: Edge) -> None:
    assert answer_to(edge, request(Origin="https://evil.example"), "small").startswith("HTTP/1.1 403")
    with socket.create_connection(edge.at("small"), 5) as client:
        client.sendall(request(Origin="https://plant.example"))
        assert client.recv(65536).startswith(b"HTTP/1.1 101")


@statement("3.1.1", "MQTT-6.0.0-2")
@statement("5.0", "MQTT-6.0.0-2")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("piece", [0, 1, 3, 1000])
def test_packets_and_frames_need_not_be_aligned(edge: Edge, name: str, version: int, piece: int) -> None:
    """One packet over many frames, and many packets in one."""
    with Client(edge.address, version, name, dial=opened(edge, piece=piece)) as client:
        client.send_raw(
            wire.subscribe(1, [(name, 1)], version=version) + wire.publish(name, b"together", version=version) + wire.pingreq()
        )
        client.recv()
        assert {type(client.recv()).__name__, type(client.recv()).__name__} == {"Publish", "Pingresp"}
        for size in (0, 125, 126, 127, 5000, *((65535, 65536, 300_000) if piece in (0, 1000) else ())):
            client.publish(name, b"x" * size, 1)
            assert client.recv().payload == b"x" * size  # type: ignore[union-attr]


def test_a_message_in_fragments_with_a_ping_between(edge: Edge, name: str) -> None:
    socket_ = opened(edge)()
    with Client(edge.address, 5, name, dial=lambda: socket_) as client:
        packet = wire.subscribe(1, [(name, 0)], version=5)
        parts = [
            frame(packet[:2], BINARY),
            frame(b"how are you", FIN | PING),
            frame(b"", CONTINUATION),
            frame(packet[2:], FIN | CONTINUATION),
        ]
        socket_.under.sendall(b"".join(parts))
        assert type(client.recv()).__name__ == "Suback"
        assert socket_.controls == [(PONG, b"how are you")]
        socket_.under.sendall(frame(b"unasked", FIN | PONG))
        client.ping()


def test_frames_byte_by_byte(edge: Edge, name: str) -> None:
    under = socket.create_connection(edge.at("ws"), 5)
    under.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request():
        under.sendall(bytes([byte]))
    head = under.recv(65536)
    assert head.startswith(b"HTTP/1.1 101") and head.endswith(b"\r\n\r\n")
    for byte in frame(wire.connect(name, 4)) + frame(wire.pingreq()):
        under.sendall(bytes([byte]))
    got = b""
    while not got.endswith(b"\xd0\x00"):
        got += under.recv(100)
    assert got in (b"\x82\x04\x20\x02\x00\x00\x82\x02\xd0\x00", b"\x82\x06\x20\x02\x00\x00\xd0\x00")
    under.close()


WRONG = [
    pytest.param(frame(b"\xc0\x00", FIN | TEXT), 1003, "text frame", id="text"),
    pytest.param(frame(b"\xc0\x00", mask=None), 1002, "without mask", id="no mask"),
    pytest.param(frame(b"\xc0\x00", FIN | 0x40 | BINARY), 1002, "compression", id="compressed"),
    pytest.param(frame(b"\xc0\x00", FIN | 0x10 | BINARY), 1002, "reserved bit", id="reserved bit"),
    pytest.param(frame(b"\xc0\x00", FIN | 3), 1002, "opcode 3", id="opcode"),
    pytest.param(frame(b"\xc0\x00", FIN | CONTINUATION), 1002, "continuation without a message", id="continuation"),
    pytest.param(frame(b"\xc0", BINARY) + frame(b"\x00"), 1002, "within another", id="interleaved"),
    pytest.param(frame(b"", PING), 1002, "fragmented", id="fragmented ping"),
    pytest.param(frame(b"x" * 126, FIN | PING), 1002, "too long", id="long ping"),
    pytest.param(frame(b"\x03", FIN | CLOSE), 1002, "close code", id="short close"),
    pytest.param(frame(b"\0\0", FIN | CLOSE) + frame(wire.pingreq()), 1002, "close code 0", id="close of 0"),
    pytest.param(frame(struct.pack("!H", 1005), FIN | CLOSE), 1002, "close code 1005", id="close without status"),
    pytest.param(frame(struct.pack("!H", 65535), FIN | CLOSE), 1002, "close code 65535", id="close beyond all"),
    pytest.param(struct.pack("!BBH4s", 0x82, 0x80 | 126, 5, b"abcd") + b"x" * 5, 1002, "shortest form", id="long length"),
    pytest.param(struct.pack("!BBQ4s", 0x82, 0x80 | 127, 1 << 63, b"abcd"), 1002, "shortest form", id="endless length"),
    pytest.param(struct.pack("!BBQ4s", 0x82, 0x80 | 127, 1 << 62, b"abcd"), 1009, "max_frame_size (1048576)", id="huge"),
]


@statement("3.1.1", "MQTT-6.0.0-1")
@statement("5.0", "MQTT-6.0.0-1")
@pytest.mark.parametrize(("data", "code", "words"), WRONG)
@pytest.mark.parametrize("connected", [False, True], ids=["before CONNECT", "after"])
def test_frames_against_the_rules(edge: Edge, alive: Alive, name: str, data: bytes, code: int, words: str, connected: bool) -> None:
    socket_ = opened(edge)()
    if connected:
        Client(edge.address, 5, name, dial=lambda: socket_)
    socket_.under.sendall(data)
    assert socket_.close_code() == code
    if connected:
        assert words in edge.wait_for_log(f"client disconnected client_id={name}", "WebSocket: ")
    else:
        edge.wait_for_log("client refused listener=ws", "reason=websocket", words)
    socket_.close()
    alive()


def test_limit_of_the_frame_size(edge: Edge, name: str) -> None:
    socket_ = opened(edge, "small")
    with contextlib.suppress(AssertionError):
        socket_()  # without an origin
    with socket.create_connection(edge.at("small"), 5) as under:
        under.sendall(request(Origin="https://plant.example"))
        assert under.recv(65536).startswith(b"HTTP/1.1 101")
        connect = wire.connect(name, 5)
        under.sendall(frame(connect) + frame(wire.publish(name, b"x" * 1200, version=5)))
        got = b""
        while part := under.recv(65536):
            got += part
        assert got.endswith(b"\x88\x02" + struct.pack("!H", 1009))


def test_close_frames_are_answered(edge: Edge, name: str) -> None:
    will = Will(f"{name}/will", b"gone")
    with Client(edge.address, 5, f"{name}-w") as watcher:
        watcher.subscribe(f"{name}/will")
        for payload, code in ((struct.pack("!H", 1001) + b"bye", 1001), (b"", 1000)):
            socket_ = opened(edge)()
            Client(edge.address, 5, name, will=will, dial=lambda under=socket_: under)
            socket_.under.sendall(frame(payload, FIN | CLOSE))
            assert socket_.close_code() == code
            assert watcher.recv().payload == b"gone"  # type: ignore[union-attr]
            socket_.close()


def test_disconnect_before_a_close_frame_counts(edge: Edge, name: str) -> None:
    socket_ = opened(edge)()
    Client(edge.address, 5, name, dial=lambda: socket_)
    socket_.under.sendall(frame(wire.disconnect(version=5)) + frame(struct.pack("!H", 1000), FIN | CLOSE))
    assert socket_.close_code() == 1000
    edge.wait_for_log(f"client disconnected client_id={name}", "reason=0x00", "side=client")
    socket_.close()


def test_whoever_is_sent_away_gets_disconnect_and_close(edge: Edge, name: str) -> None:
    socket_ = opened(edge)()
    first = Client(edge.address, 5, name, dial=lambda: socket_)
    with Client(edge.address, 5, name):
        assert first.expect(Disconnect).code == 0x8E
        with pytest.raises(Closed):
            first.recv()
        assert socket_.close_code() == 1000
        first.close()


def test_many_pings_get_some_pongs(edge: Edge, name: str) -> None:
    socket_ = opened(edge)()
    with Client(edge.address, 5, name, dial=lambda: socket_) as client:
        socket_.under.sendall(frame(b"p" * 125, FIN | PING) * 2000)
        client.ping()
        assert socket_.controls and set(socket_.controls) == {(PONG, b"p" * 125)}


def test_a_client_that_takes_nothing_for_a_while_gets_whole_frames(edge: Edge, name: str) -> None:
    count, payload = 300, b"q" * 20_000
    with (
        Client(edge.address, 5, f"{name}-slow", dial=opened(edge), timeout=20) as slow,
        Client(edge.address, 5, f"{name}-fast", dial=opened(edge), timeout=20) as fast,
    ):
        slow.subscribe(name, 1)
        for number in range(count):
            fast.publish(name, payload + b"%d" % number, 1, wait=False)
        fast.ping()
        got = [slow.recv().payload for _ in range(count)]  # type: ignore[union-attr]
        assert got == [payload + b"%d" % number for number in range(count)]


def test_websocket_over_tls(edge: Edge, authority: Authority, name: str) -> None:
    def dial() -> Any:
        context: ssl.SSLContext = authority.client()
        return WebSocket(context.wrap_socket(socket.create_connection(edge.at("wss"), 5), server_hostname="localhost"))

    with Client(edge.address, 5, name, dial=dial) as client:
        client.subscribe(name, 1)
        for size in (0, 100, 70_000, 900_000):
            client.publish(name, b"y" * size, 1)
            assert client.recv().payload == b"y" * size  # type: ignore[union-attr]
