"""DTLS of gateways over UDP, with OpenSSL's s_client and libcoap's coap-client."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from acceptor.dtls import build_dtls
from acceptor.tls import TlsError
from shardbroker.gateways.dtls import DtlsPeers
from tests.edge.certificates import Authority
from tests.gateways import mqttsn_client as norm
from tests.gateways.conftest import GatewayBroker
from tests.harness import Client, free_port, until, wire

pytestmark = pytest.mark.own_broker
needs_libcoap = pytest.mark.skipif(shutil.which("coap-client-openssl") is None, reason="libcoap3-bin is not installed")
PEER = ("127.0.0.1", 5000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    one = Authority(tmp_path_factory.mktemp("dtls"))
    one.issue("broker", "broker", ("localhost", "127.0.0.1"))
    one.issue("device", "device", ())
    return one


def settings_of(authority: Authority, **more: Any) -> SimpleNamespace:
    found = {
        "certfile": str(authority.directory / "broker.pem"), "keyfile": "", "password": SecretStr(""), "ciphers": "",
        "verify": "verify_none", "cacertfile": "", "fail_if_no_peer_cert": False,
    }  # fmt: skip
    return SimpleNamespace(**(found | more))


class Wire:
    """A client of OpenSSL and the connections of a listener, without a network."""

    def __init__(self, authority: Authority, limit: int = 10, peers: DtlsPeers | None = None, peer: Any = PEER) -> None:
        from OpenSSL import SSL

        self.ssl: Any = SSL
        self.out: list[tuple[bytes, Any]] = []
        self.peer = peer
        if peers is None:
            context = build_dtls(settings_of(authority), bytes(32))
            peers = DtlsPeers(context, 5.0, limit, lambda data, to: self.out.append((data, to)))
        self.peers = peers
        context = SSL.Context(SSL.DTLS_CLIENT_METHOD)
        context.set_options(SSL.OP_NO_QUERY_MTU)
        self.client: Any = SSL.Connection(context, None)
        self.client.set_connect_state()
        self.client.set_ciphertext_mtu(1200)
        self.got: list[bytes] = []

    def step(self) -> bytes:
        """The client's next datagram."""
        try:
            self.client.do_handshake()
        except self.ssl.WantReadError:
            pass
        try:
            return bytes(self.client.bio_read(65536))
        except self.ssl.WantReadError:
            return b""

    def receive(self, data: bytes, now_s: float = 0.0) -> list[bytes]:
        found = list(self.peers.received(data, self.peer, now_s))
        for one, _ in self.out:
            assert len(one) <= 1200
            self.client.bio_write(one)
        return found

    def shake(self) -> None:
        while data := self.step():
            self.out.clear()
            self.receive(data)


def test_a_sender_without_a_cookie_leaves_nothing_and_gets_no_more_than_it_sent(authority: Authority) -> None:
    one = Wire(authority)
    hello = one.step()
    assert one.receive(hello) == []
    assert len(one.peers) == 0 and sum(len(data) for data, _ in one.out) <= len(hello)
    one.out.clear()
    with_cookie = one.step()
    one.peer = ("127.0.0.2", 5000)  # the cookie is that of another address
    one.receive(with_cookie)
    assert len(one.peers) == 0 and sum(len(data) for data, _ in one.out) <= len(with_cookie)


def test_messages_in_both_directions(authority: Authority) -> None:
    one = Wire(authority)
    one.shake()
    assert len(one.peers) == 1
    one.client.send(b"up")
    assert one.receive(one.client.bio_read(65536)) == [b"up"]
    one.out.clear()
    assert one.peers.send(b"down", PEER)
    one.client.bio_write(one.out[0][0])
    assert one.client.recv(100) == b"down"
    assert not one.peers.send(b"x", ("127.0.0.1", 1))


def test_a_device_that_starts_again_at_its_address(authority: Authority) -> None:
    one = Wire(authority)
    one.shake()
    again = Wire(authority, peers=one.peers)
    one.peers._send = lambda data, to: again.out.append((data, to))  # type: ignore[method-assign]
    hello = again.step()
    again.receive(hello)
    one.client.send(b"still")
    assert list(one.peers.received(one.client.bio_read(65536), PEER, 0.0)) == [b"still"], "a forged hello ends nothing"
    again.out.clear()
    again.shake()
    again.client.send(b"new")
    assert list(one.peers.received(again.client.bio_read(65536), PEER, 0.0)) == [b"new"] and len(one.peers) == 1


def test_connections_and_handshakes_are_bounded(authority: Authority) -> None:
    first = Wire(authority, limit=3)
    first.shake()
    for n in range(5):
        other = Wire(authority, peers=first.peers, peer=("127.0.0.1", 6000 + n))
        first.peers._send = lambda data, to, other=other: other.out.append((data, to))  # type: ignore[method-assign, misc]
        other.receive(other.step())
        other.out.clear()
        other.receive(other.step())
    assert len(first.peers) == 3 and not first.peers.send(b"x", PEER)
    first.peers.tick(4.9)
    assert len(first.peers) == 3
    first.peers.tick(5.1)
    assert len(first.peers) == 0


def test_garbage(authority: Authority) -> None:
    one = Wire(authority)
    hello = one.step()
    for data in (b"", b"\x16", b"\x16\xfe\xfd" + bytes(10) + b"\x01", hello[:40], hello[:-1], b"\x17" + hello[1:], b"x" * 2000):
        assert one.receive(data) == []
    assert len(one.peers) == 0
    one.receive(hello)
    one.shake()
    for data in (b"", b"x" * 100, b"\x17\xfe\xfd" + bytes(8) + b"\x00\x20" + bytes(32)):
        assert one.receive(data) == []
    one.client.send(b"still there")
    assert one.receive(one.client.bio_read(65536)) == [b"still there"]


def test_wrong_files_are_named(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    for more, text in (
        ({"keyfile": "/nowhere"}, "key /nowhere"), ({"keyfile": str(tmp_path / "x.pem")}, "key "),
        ({"certfile": "/nowhere"}, "certificate /nowhere"), ({"certfile": str(tmp_path / "x.pem")}, "certificate "),
        ({"ciphers": "NOTHING"}, "ciphers 'NOTHING'"), ({"verify": "verify_peer", "cacertfile": "/nowhere"}, "CA certificates"),
    ):  # fmt: skip
        with pytest.raises(TlsError, match=text):
            build_dtls(settings_of(authority, **more), bytes(32))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("type=dtls", "tls.certfile"),
        ("tls.certfile=/x", "only for type dtls"),
    ],
)
def test_wrong_settings_are_named(setting: str, text: str) -> None:
    program = Path(sys.executable).with_name("shardbroker")
    command = [program, "config", "check", "--set=gateways.coap.enable=true", f"--set=gateways.coap.listeners.default.{setting}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode != 0 and text in found.stdout + found.stderr, found


# --- with a broker ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[GatewayBroker]:
    """CoAP with DTLS, where devices need a certificate; MQTT-SN with DTLS, where they need none."""
    port = free_port()
    settings = {
        "listeners.default.type": "dtls", "listeners.default.tls.certfile": authority.directory / "broker.pem",
        "listeners.default.tls.verify": "verify_peer", "listeners.default.tls.cacertfile": authority.cafile,
        "listeners.default.tls.fail_if_no_peer_cert": "true",
    }  # fmt: skip
    sn = {
        "gateways__mqttsn__enable": "true", "gateways__mqttsn__listeners__default__bind": f"127.0.0.1:{port}",
        "gateways__mqttsn__listeners__default__type": "dtls",
        "gateways__mqttsn__listeners__default__tls__certfile": authority.directory / "broker.pem",
    }  # fmt: skip
    with GatewayBroker(2, settings, "coap", **sn) as broker:
        broker.sn_at = ("127.0.0.1", port)  # type: ignore[attr-defined]
        broker.wait_for_log("gateway listener opened", "coap:dtls:default")
        broker.wait_for_log("gateway listener opened", "mqttsn:dtls:default")
        yield broker


@needs_libcoap
def test_libcoap_over_dtls(secure: GatewayBroker, authority: Authority) -> None:
    """The commands of docs/gateway-coap.md. An observer without a connection needs no ping: DTLS has proven its address."""
    base = f"coaps://127.0.0.1:{secure.at[1]}"
    certificates = ["-C", str(authority.cafile), "-c", str(authority.directory / "device.pem")]
    observe = ["coap-client-openssl", *certificates, "-s", "8", "-w", "-m", "get", f"{base}/ps/dtls/down"]
    with Client(secure.address, 5, "dtls-mqtt") as mqtt, subprocess.Popen(observe, stdout=subprocess.PIPE) as observer:
        mqtt.subscribe("dtls/up", 1)
        subprocess.run(
            ["coap-client-openssl", *certificates, "-m", "post", "-e", "21.5", f"{base}/ps/dtls/up"], check=True, timeout=60
        )  # fmt: skip
        assert mqtt.expect(wire.Publish).payload == b"21.5"
        until(lambda: [one for one in secure.ctl("subscriptions list")["data"] if one["topic"] == "dtls/down"])
        mqtt.publish("dtls/down", b"on", 1)
        assert observer.communicate(timeout=60)[0].split() == [b"on"]
    (row,) = [one for one in secure.ctl("gateways list")["data"] if one["name"] == "coap"]
    assert row["listeners"][0]["id"] == "coap:dtls:default"


@needs_libcoap
def test_a_device_without_a_certificate_is_rejected(secure: GatewayBroker, authority: Authority) -> None:
    command = ["coap-client-openssl", "-C", str(authority.cafile), "-B", "3", "-m", "post", "-e", "forged"]
    with Client(secure.address, 5, "dtls-none") as mqtt:
        mqtt.subscribe("dtls/forged", 1)
        subprocess.run([*command, f"coaps://127.0.0.1:{secure.at[1]}/ps/dtls/forged"], timeout=60, capture_output=True)
        mqtt.publish("dtls/forged", b"end", 1)
        assert mqtt.expect(wire.Publish).payload == b"end"


def test_plain_datagrams_get_no_answer(secure: GatewayBroker) -> None:
    with secure.coap() as device:
        device.raw(b"\x40\x00\x00\x07")
        device.raw(b"\x16\xfe\xff" + bytes(100))
        device.expect_nothing()


def test_mqttsn_over_dtls(secure: GatewayBroker, authority: Authority) -> None:
    host, port = secure.sn_at  # type: ignore[attr-defined]
    command = ["openssl", "s_client", "-dtls1_2", "-quiet", "-connect", f"{host}:{port}", "-CAfile", str(authority.cafile)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(norm.connect("dtls-sn"))
        client.stdin.flush()
        assert client.stdout.read(3) == b"\x03\x05\x00"
        (row,) = until(lambda: secure.ctl("clients list", clientid="dtls-sn")["data"])
        assert row["listener"] == "mqttsn:dtls:default"
        client.stdin.write(b"\x02\x16")
        client.stdin.flush()
        assert client.stdout.read(2) == b"\x02\x17"
        client.kill()


def test_changed_files_hold_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    certfile = tmp_path / "broker.pem"
    certfile.write_bytes((authority.directory / "broker.pem").read_bytes())
    settings = {"listeners.default.type": "dtls", "listeners.default.tls.certfile": certfile}
    with GatewayBroker(1, settings, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        certfile.write_text("nothing")
        broker.wait_for_log("gateway tls files not reloaded")
        authority.issue("other", "another", ("localhost",))
        certfile.write_bytes((authority.directory / "other.pem").read_bytes())
        command = ["openssl", "s_client", "-dtls1_2", "-connect", f"127.0.0.1:{broker.at[1]}"]

        def is_renewed() -> bool:
            found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
            return "CN = another" in found.stdout or "CN=another" in found.stdout

        until(is_renewed, timeout_s=30)
