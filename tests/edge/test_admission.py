"""Who is let in by which listener: addresses, PROXY headers, IPv6 and unix sockets, and what the log says of the others."""

import socket
import stat
import struct
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest

from acceptor.proxy import parse_proxy_header
from acceptor.refusal import Refused
from acceptor.rules import AccessRules
from tests.edge.conftest import Edge
from tests.harness import Client, Closed, wire

pytestmark = pytest.mark.own_broker
Alive = Callable[[], None]
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def version_2(source: str, port: int, tlvs: bytes = b"", command: int = 0x21) -> bytes:
    packed = ip_address(source).packed
    body = packed + packed + struct.pack("!HH", port, 1883) + tlvs
    return SIGNATURE + struct.pack("!BBH", command, 0x11 if len(packed) == 4 else 0x21, len(body)) + body


def common_name(name: bytes) -> bytes:
    inner = struct.pack("!BI", 1, 0) + struct.pack("!BH", 0x22, len(name)) + name
    return struct.pack("!BH", 0x04, 0) + struct.pack("!BH", 0x20, len(inner)) + inner


def test_ipv6(edge: Edge, name: str) -> None:
    port = int(next(part for part in edge.ready_line.split(", ") if "[::1]" in part).rpartition(":")[2])
    with Client(("::1", port), 5, name) as client:
        client.ping()
    edge.wait_for_log(f"client_id={name} peer=[::1]:")


def test_unix_socket(edge: Edge, name: str) -> None:
    path: str = edge.unix_path  # type: ignore[attr-defined]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o660

    def dial() -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        return one

    with Client(edge.address, 5, name, dial=dial) as client:
        client.subscribe(name, 1)
        client.publish(name, b"x" * 100_000, 1)
        assert len(client.recv().payload) == 100_000  # type: ignore[union-attr]


def test_the_path_of_a_unix_socket_is_taken_over_from_a_dead_broker_only(edge: Edge, tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(dead))
    with Edge({"unix": {"bind": f"unix:{dead}"}}, 1):
        pass
    assert not dead.exists()
    file = tmp_path / "file"
    file.write_text("mine")
    for taken in (edge.unix_path, file):  # type: ignore[attr-defined]
        own = Edge({"unix": {"bind": f"unix:{taken}"}}, 1)
        with pytest.raises(AssertionError, match="not ready"), own:
            pass
        assert f"listener unix: cannot listen on unix:{taken}" in own.log()
    assert file.read_text() == "mine"


def test_access_rules(edge: Edge, name: str, alive: Alive) -> None:
    def from_address(address: str) -> Callable[[], socket.socket]:
        return lambda: socket.create_connection(edge.at("walled"), 5, source_address=(address, 0))

    for address in ("127.0.0.2", "127.0.0.9"):
        with Client(edge.address, 5, name, dial=from_address(address)) as client:
            client.ping()
    for address in ("127.0.0.1", "127.0.0.3"):
        with pytest.raises(Closed):
            Client(edge.address, 5, name, dial=from_address(address))
        edge.wait_for_log("client refused listener=walled", f"peer={address}:", "reason=access_rules")
    alive()


def test_first_rule_that_matches_decides() -> None:
    def allowed(address: str, *rules: str) -> bool:
        return AccessRules(rules).allow(ip_address(address).packed)

    assert allowed("10.1.2.3")
    assert allowed("10.1.2.3", "deny 10.2.0.0/16")
    assert not allowed("10.2.2.3", "deny 10.2.0.0/16", "allow all")
    assert allowed("10.2.2.3", "allow 10.2.2.3", "deny all")
    assert not allowed("10.2.2.4", "allow 10.2.2.3", "deny all")
    assert not allowed("fe80::1", "allow 10.0.0.0/8", "deny fe80::/10", "allow all")
    assert allowed("::a01:203", "deny 10.1.2.3/32")  # an IPv4 network says nothing about IPv6


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 50312 1883\r\n", "192.0.2.7:50312"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 50312 1883\r\n", "[2001:db8::7]:50312"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1:"),
        (version_2("192.0.2.8", 4711), "192.0.2.8:4711"),
        (version_2("2001:db8::8", 4711, common_name(b"carol")), "[2001:db8::8]:4711"),
        (version_2("192.0.2.8", 4711, command=0x20), "127.0.0.1:"),
    ],
)
@pytest.mark.parametrize("trickled", [False, True])
def test_proxy_headers(edge: Edge, name: str, header: bytes, peer: str, trickled: bool) -> None:
    def dial() -> socket.socket:
        one = socket.create_connection(edge.at("proxied"), 5)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in [header[at : at + 1] for at in range(len(header))] if trickled else [header + wire.connect(name, 5)]:
            one.sendall(part)
        if trickled:
            one.sendall(wire.connect(name, 5))
        return one

    with Client(edge.address, 5, name, dial=dial, connect=False) as client:
        client.recv()
        client.disconnect()
    edge.wait_for_log(f"client disconnected client_id={name} peer={peer}")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc", "no PROXY header"),
        (b"PROXY TCP4 nonsense 192.0.2.1 50312 1883\r\n", "nonsense"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.1 70000 1883\r\n", "70000"),
        (b"PROXY TCP4 192.0.2.1\r\n", "must have a protocol"),
        (b"PROXY " + b"x" * 200, "more than 107 bytes"),
        (SIGNATURE + b"\x31\x11\x00\x0c" + b"x" * 12, "0x31"),
        (SIGNATURE + b"\x21\x11\xff\xff", "limit 4096"),
        (SIGNATURE + b"\x21\x11\x00\x04abcd", "too short"),
        (version_2("192.0.2.8", 1, b"\x20\xff\xff"), "that exceeds it"),
        (b"PRO", "no PROXY header in time"),
    ],
)
def test_proxy_headers_that_are_wrong(edge: Edge, alive: Alive, header: bytes, words: str) -> None:
    with socket.create_connection(edge.at("proxied"), 5) as client:
        client.sendall(header)
        started = time.monotonic()
        try:
            assert client.recv(10) == b""
        except ConnectionResetError:
            pass
        assert time.monotonic() - started < 3
    edge.wait_for_log("client refused listener=proxied", "reason=proxy", words)
    alive()


@pytest.mark.parametrize(
    "whole", [b"PROXY TCP4 192.0.2.7 192.0.2.1 50312 1883\r\n", version_2("192.0.2.8", 4711, common_name(b"carol"))]
)
def test_a_proxy_header_cut_anywhere(whole: bytes) -> None:
    for size in range(1, len(whole)):
        assert parse_proxy_header(whole[:size]) is None
    found = parse_proxy_header(whole + b"rest")
    assert found is not None and found.size == len(whole)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x55
        try:
            parse_proxy_header(bytes(changed))
        except Refused:
            pass
