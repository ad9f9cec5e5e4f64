"""TLS listeners against real clients of TLS: Python's ssl and openssl s_client."""

import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.websocket import WebSocket
from tests.harness import Client, Closed, Disconnect, Publish, Will, until, wire
from tests.harness.needed import needed

pytestmark = pytest.mark.own_broker
Alive = Callable[[], None]

OLDER, NEWER = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
PUMPED = "ECDHE-ECDSA-AES128-SHA256"
"""A cipher that only OpenSSL speaks: TLS stays in the acceptor, which pumps the plaintext."""
WAYS = [(NEWER, ""), (OLDER, ""), (OLDER, PUMPED)]
CONNACK, PINGREQ, PINGRESP = b"\x20\x02\x00\x00", b"\xc0\x00", b"\xd0\x00"
SUITES = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]


def speaking(authority: Authority, version: ssl.TLSVersion, ciphers: str = "") -> ssl.SSLContext:
    """A client's context that speaks this alone."""
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def dial(address: tuple[str, int], context: ssl.SSLContext, name: str = "localhost") -> Callable[[], ssl.SSLSocket]:
    return lambda: context.wrap_socket(socket.create_connection(address, 5), server_hostname=name)


def upgraded(dialled: Callable[[], ssl.SSLSocket]) -> Callable[[], WebSocket]:
    return lambda: WebSocket(dialled())


def s_client(address: tuple[str, int], *options: str) -> str:
    command = [needed("openssl"), "s_client", "-connect", f"{address[0]}:{address[1]}", "-brief", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("version", "spoken"), [("-tls1_1", ""), ("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")])
def test_versions_of_tls(edge: Edge, authority: Authority, version: str, spoken: str) -> None:
    told = s_client(edge.at("ssl"), version, "-CAfile", str(authority.cafile), "-cipher", "DEFAULT@SECLEVEL=0", "-alpn", "mqtt")
    assert (f"Protocol version: {spoken}" in told) if spoken else ("CONNECTION ESTABLISHED" not in told)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize("length", [512, 4096])
def test_records_are_no_longer_than_a_small_client_has_room_for(edge: Edge, version: str, length: int) -> None:
    """max_fragment_length of RFC 6066, as mbedTLS and wolfSSL use it: s_client ends the connection at a longer record."""
    host, port = edge.at("ssl")
    topic, payload = f"fragments{version}{length}", b"f" * 20_000
    with Client(edge.address, 4) as publisher:
        publisher.publish(topic, payload, 1, retain=True)
        command = ["openssl", "s_client", "-quiet", "-connect", f"{host}:{port}", version, "-maxfraglen", str(length)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as client:
            assert client.stdin is not None and client.stdout is not None and client.stderr is not None
            try:
                client.stdin.write(wire.connect(topic, 4) + wire.subscribe(1, [(topic, 0)], version=4))
                client.stdin.flush()
                expected = wire.publish(topic, payload, version=4, retain=True)
                got = client.stdout.read(4 + 5 + len(expected))  # CONNACK, SUBACK; ends early if s_client does
                told = client.stderr.read().decode(errors="replace") if len(got) < len(expected) else ""
                assert got[9:] == expected, (len(got), told)
            finally:
                client.kill()
                publisher.publish(topic, b"", 1, retain=True)


def test_alpn_names(edge: Edge, authority: Authority) -> None:
    context = authority.client()
    context.set_alpn_protocols(["mqtt", "http/1.1"])
    for listener, chosen in (("ssl", "mqtt"), ("wss", "http/1.1")):
        with dial(edge.at(listener), context)() as tls:
            assert tls.selected_alpn_protocol() == chosen
    context.set_alpn_protocols(["h2"])
    with dial(edge.at("ssl"), context)() as tls:
        assert tls.selected_alpn_protocol() is None  # let in all the same


@pytest.mark.parametrize(("version", "ciphers"), WAYS)
def test_messages_of_all_sizes_in_both_directions(
    edge: Edge, authority: Authority, name: str, version: ssl.TLSVersion, ciphers: str
) -> None:
    context = speaking(authority, version, ciphers)
    with Client(edge.address, 5, name, dial=dial(edge.at("ssl"), context)) as client:
        client.subscribe(name, 2)
        for qos in (0, 1, 2):
            for size in (0, 1, 16384, 16385, 300_000, 1_000_000):
                payload = bytes((size + i) & 0xFF for i in range(251)) * (size // 251 + 1)
                client.publish(name, payload[:size], qos)
                message = client.recv()
                assert message.payload == payload[:size]  # type: ignore[union-attr]


@pytest.mark.parametrize(("version", "ciphers"), WAYS)
@pytest.mark.parametrize("listener", ["ssl", "wss"])
def test_a_client_that_takes_nothing_for_a_while_gets_everything(
    edge: Edge, authority: Authority, name: str, listener: str, version: ssl.TLSVersion, ciphers: str
) -> None:
    """What the client does not take waits, and where there is a pump, what the worker does not take."""
    count, payload = 400, b"p" * 20_000
    context = speaking(authority, version, ciphers)
    secure = dial(edge.at(listener), context)
    dialled = upgraded(secure) if listener == "wss" else secure
    with (
        Client(edge.address, 5, f"{name}-slow", dial=dialled, timeout=20) as slow,
        Client(edge.address, 5, f"{name}-fast", dial=dial(edge.at("ssl"), context), timeout=20) as fast,
    ):
        slow.subscribe(name, 1)
        for number in range(count):
            fast.publish(name, payload + b"%d" % number, 1, wait=False)
        fast.ping()
        got = [slow.recv().payload for _ in range(count)]  # type: ignore[union-attr]
        assert got == [payload + b"%d" % number for number in range(count)]


@pytest.mark.parametrize("at_once", [False, True], ids=["behind CONNACK", "all at once"])
def test_what_comes_together_with_the_end_counts(edge: Edge, authority: Authority, name: str, at_once: bool) -> None:
    """A PUBLISH is delivered, and DISCONNECT keeps the will from going out [MQTT-3.1.2-10]."""
    connect = wire.connect(name, 4, will=Will(name, b"will"))
    message, disconnect = wire.publish(name, b"last", version=4), wire.disconnect(version=4)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with Client(edge.address, 5, f"{name}-w") as watcher, socket.create_connection(edge.at("ssl"), 5) as end:
        watcher.subscribe(name, 1)
        tls = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")

        def until_done(step: Callable[[], object]) -> None:
            while True:
                try:
                    step()
                    return
                except ssl.SSLWantReadError:
                    end.sendall(outgoing.read())
                    incoming.write(end.recv(65536))

        until_done(tls.do_handshake)
        if not at_once:
            tls.write(connect)
            until_done(lambda: tls.read(100))
        tls.write((connect if at_once else b"") + message + disconnect)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        end.sendall(outgoing.read())
        got = watcher.recv()
        assert isinstance(got, Publish) and got.payload == b"last"
        watcher.expect_none()


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_the_end_of_the_handshake_is_acknowledged_at_once(
    edge: Edge, authority: Authority, name: str, version: ssl.TLSVersion
) -> None:
    """A client with Nagle's algorithm sends CONNECT once its last bytes are acknowledged, which the kernel does after 40 ms.

    The quickest of many counts, as a busy machine may delay any.
    """
    context = speaking(authority, version)
    took = []
    for number in range(20):
        with dial(edge.at("ssl"), context)() as tls:
            begin = time.monotonic()
            tls.sendall(wire.connect(f"{name}-{number}", 4))
            assert tls.recv(4) == CONNACK
            took.append(time.monotonic() - begin)
    assert min(took) < 0.035


def test_certificate_of_the_client_names_it(edge: Edge, authority: Authority, name: str) -> None:
    context = authority.client(authority.directory / "alice.pem")
    with (
        Client(edge.address, 5, f"{name}-w") as watcher,
        Client(edge.address, 5, "somebody-else", username="root", dial=dial(edge.at("mutual"), context)) as client,
    ):
        watcher.subscribe("$SYS/brokers/+/clients/alice/disconnected", 1)
        client.disconnect()
        told = watcher.recv()
        assert b'"username":"O=Plant\\\\, West,CN=alice"' in told.payload  # type: ignore[union-attr]
    edge.wait_for_log("client disconnected client_id=alice")


@pytest.mark.parametrize(
    ("certificate", "words"),
    [("", "did not return a certificate"), ("mallory", "certificate revoked"), ("stranger", "verify failed")],
)
def test_clients_with_the_wrong_certificate(
    edge: Edge, authority: Authority, name: str, alive: Alive, certificate: str, words: str, tmp_path: Path
) -> None:
    path = authority.directory / f"{certificate}.pem"
    if certificate == "stranger":
        path = Authority(tmp_path).issue("stranger", "alice")
    context = authority.client(path if certificate else None)
    with pytest.raises((ssl.SSLError, Closed, ConnectionError)):
        Client(edge.address, 5, name, dial=dial(edge.at("mutual"), context))
    edge.wait_for_log("client refused listener=mutual", "reason=tls", words)
    alive()


def test_revoked_certificate_with_openssl(edge: Edge, authority: Authority) -> None:
    for certificate, refused in (("alice", False), ("mallory", True)):
        path = str(authority.directory / f"{certificate}.pem")
        told = s_client(edge.at("mutual"), "-tls1_2", "-CAfile", str(authority.cafile), "-cert", path, "-key", path)
        assert ("certificate revoked" in told) == refused


def test_certificates_by_host_name(edge: Edge, authority: Authority, alive: Alive) -> None:
    for asked, subject in (("localhost", "broker"), ("broker.example", "other"), ("BROKER.example", "other")):
        with dial(edge.at("ssl"), authority.client(), asked)() as tls:
            certificate = tls.getpeercert()
            assert certificate and certificate["subject"][-1][0][1] == subject
    # A client that looks for another name goes away; the broker serves the others.
    with pytest.raises(ssl.SSLCertVerificationError):
        dial(edge.at("ssl"), authority.client(), "else.example")()
    alive()


def test_bytes_that_are_no_tls(edge: Edge, alive: Alive) -> None:
    for data in (
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"x" * 70000,
    ):
        with socket.create_connection(edge.at("ssl"), 5) as client, contextlib.suppress(ConnectionError):
            client.sendall(data)
            while client.recv(65536):
                pass
    edge.wait_for_log("client refused listener=ssl", "reason=tls")
    alive()


def test_an_end_without_close_notify_is_an_end(edge: Edge, authority: Authority, name: str) -> None:
    client = Client(edge.address, 5, name, dial=dial(edge.at("ssl"), authority.client()))
    client.cut()
    edge.wait_for_log(f"client disconnected client_id={name}")


def test_a_client_that_is_sent_away_reads_why(edge: Edge, authority: Authority, name: str) -> None:
    first = Client(edge.address, 5, name, dial=dial(edge.at("ssl"), authority.client()))
    with Client(edge.address, 5, name, dial=dial(edge.at("ssl"), authority.client())):
        assert first.expect(Disconnect).code == 0x8E
        with pytest.raises(Closed):
            first.recv()


def test_a_stop_of_the_broker_reaches_clients_over_tls(authority: Authority, name: str) -> None:
    with Edge({"ssl": {"type": "ssl", "tls.certfile": str(authority.directory / "broker.pem")}}) as own:
        client = Client(own.address, 5, name, dial=dial(own.at("ssl"), authority.client()))
        assert own.process is not None
        own.terminate()
        assert client.expect(Disconnect).code == 0x8B
        client.close()
        assert own.process.wait(10) == 0
        own.process = None


def test_handshakes_that_trickle_end_in_time(edge: Edge, authority: Authority, alive: Alive) -> None:
    hello = _client_hello(authority)
    with socket.create_connection(edge.at("quick"), 5) as client:
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in hello:
                client.sendall(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - started > 5:
                    break
        assert time.monotonic() - started < 3
    edge.wait_for_log("listener=quick", "reason=tls", "no TLS handshake in time")


def _client_hello(authority: Authority) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_files_that_cannot_be_used_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for options, words in (
        ({"tls.certfile": "/no/such.pem"}, "certificate /no/such.pem: No such file"),
        ({"tls.certfile": str(empty)}, f"certificate {empty}"),
    ):
        own = Edge({"ssl": {"type": "ssl", **options}})
        with pytest.raises(AssertionError, match="not ready"), own:
            pass
        assert "listeners.ssl.tls.certfile: " in own.log() and words in own.log()


def test_new_files_are_taken_without_dropping_anyone(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    certfile = authority.issue("broker", "before", ("localhost",))
    authority.issue("bob", "bob")
    authority.revoke()
    options = {
        "type": "ssl",
        "tls.certfile": str(certfile),
        "tls.cacertfile": str(authority.cafile),
        "tls.crlfile": str(tmp_path / "revoked.crl"),
        "tls.verify": "verify_peer",
    }
    context = authority.client(tmp_path / "bob.pem")
    with Edge({"ssl": options}) as own:

        def subject() -> str:
            with dial(own.at("ssl"), authority.client())() as tls:
                certificate = tls.getpeercert()
                assert certificate
                return str(certificate["subject"][-1][0][1])

        with Client(own.address, 5, name, dial=dial(own.at("ssl"), context)) as stays:
            stays.subscribe(name)
            assert subject() == "before"
            authority.issue("broker", "after", ("localhost",))
            own.wait_for_log("INFO supervisor: tls files reloaded listener=ssl")
            until(lambda: subject() == "after")
            authority.revoke("bob")

            def is_revoked() -> bool:
                try:
                    Client(own.address, 5, f"{name}-again", dial=dial(own.at("ssl"), context)).close()
                except (ssl.SSLError, Closed, ConnectionError):
                    return True
                return False

            until(is_revoked)
            certfile.write_text("nonsense")
            own.wait_for_log("ERROR supervisor: tls files not reloaded listener=ssl", "certificate")
            assert subject() == "after"
            stays.publish(name, b"still here")
            assert stays.recv().payload == b"still here"  # type: ignore[union-attr]


def test_an_acceptor_that_dies_leaves_tls_connections_alone(authority: Authority, name: str) -> None:
    """Their keys are with the workers. A pumped one goes with it: its place is free again, and what it left is told."""
    options = {"type": "ssl", "tls.certfile": str(authority.directory / "broker.pem"), "max_connections": 5}
    with Edge({"ssl": options}) as own:
        at = own.at("ssl")
        stay = [Client(own.address, 5, f"{name}-{v.name}", dial=dial(at, speaking(authority, v))) for v in (OLDER, NEWER)]
        for round_ in range(3):
            pumped = [Client(own.address, 5, f"{name}-{n}", dial=dial(at, speaking(authority, OLDER, PUMPED))) for n in range(3)]
            for pid in own.child_pids("acceptor"):
                own.kill_process(pid)
            for client in pumped:
                with pytest.raises((Closed, ConnectionError, ssl.SSLError)):
                    client.ping()
                client.close()
            for client in stay:
                client.ping()
            gone = f"client disconnected client_id={name}-"
            until(lambda count=3 * round_ + 3, gone=gone: sum(gone in line for line in own.output) >= count)
        for client in stay:
            client.close()


class ByOpenSsl:
    """s_client as an MQTT client. A line with K makes it change its keys and ask for new ones of ours, k changes its own."""

    def __init__(self, edge: Edge, authority: Authority, name: str, suite: str) -> None:
        command = [needed("openssl"), "s_client", "-connect", "{}:{}".format(*edge.at("ssl")), "-CAfile", str(authority.cafile)]
        command += ["-tls1_3", "-ciphersuites", suite, "-servername", "localhost"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.say(wire.connect(name, 4))
        self.read_until(b"New, TLSv1.3, Cipher is " + suite.encode())
        self.read_until(CONNACK)

    def __enter__(self) -> "ByOpenSsl":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read_until(self, words: bytes) -> None:
        assert self.process.stdout
        seen = b""
        while words not in seen:
            byte = self.process.stdout.read(1)
            assert byte, seen
            seen += byte


@pytest.mark.parametrize("suite", SUITES)
def test_suites_and_new_keys_with_openssl(edge: Edge, authority: Authority, name: str, suite: str) -> None:
    with ByOpenSsl(edge, authority, name, suite) as client:
        for line in (b"K\n", b"k\n", b"K\n", b"K\n"):
            client.say(line)
            client.read_until(b"KEYUPDATE\n")
            client.say(PINGREQ)
            client.read_until(PINGRESP)


def test_new_keys_without_end_are_refused(edge: Edge, authority: Authority, name: str) -> None:
    with ByOpenSsl(edge, authority, name, SUITES[0]) as client, contextlib.suppress(BrokenPipeError, AssertionError):
        for _ in range(100):
            client.say(b"k\n")
            client.read_until(b"KEYUPDATE\n")
    edge.wait_for_log(f"client disconnected client_id={name}", "TLS: a message that is not allowed after the handshake")


@pytest.mark.parametrize("version", [OLDER, NEWER])
def test_a_record_that_was_changed_ends_the_connection(
    edge: Edge, authority: Authority, name: str, version: ssl.TLSVersion
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = speaking(authority, version).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(edge.at("ssl"), 5) as client, Client(edge.address, 5, f"{name}-w") as watcher:
        watcher.subscribe(f"$SYS/brokers/+/clients/{name}/disconnected", 1)

        def step(work: Callable[[], object], answers: bool = True) -> None:
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    work()
                    answers = False
                client.sendall(outgoing.read())
                if not answers:
                    return
                incoming.write(client.recv(65536))

        step(tls.do_handshake)
        step(lambda: tls.write(wire.connect(name, 4)))
        assert tls_read(tls, incoming, client) == CONNACK
        tls.write(PINGREQ)
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        client.sendall(record)
        with pytest.raises(ssl.SSLError, match=r"(?i)bad record mac"):
            tls_read(tls, incoming, client)
        assert watcher.recv()
    edge.wait_for_log(f"client disconnected client_id={name}", "TLS: a record that fails authentication")


def tls_read(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, client: socket.socket) -> bytes:
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return tls.read(65536)
        data = client.recv(65536)
        assert data, "closed without an alert"
        incoming.write(data)
