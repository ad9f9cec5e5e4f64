"""Session tickets: any acceptor resumes a session, for two hours, at the listener that has begun it and under the same trust."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptor.openssl import SessionTickets
from acceptor.tickets import PERIOD_S, TicketKeys
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import NEWER, OLDER, speaking
from tests.harness import Client, until

pytestmark = pytest.mark.own_broker
VERSIONS = [OLDER, NEWER]
ATTEMPTS = 12
"""Connections to two acceptors: that all reach the same one is a chance of 1 in 2,000."""


class Resuming:
    """A client of TLS that presents the session of its last connection."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.address, self.context, self.session = address, context, session
        self.resumed = False
        self._tls: ssl.SSLSocket | None = None

    def dial(self) -> ssl.SSLSocket:
        connection = socket.create_connection(self.address, 5)
        self._tls = self.context.wrap_socket(connection, server_hostname="localhost", session=self.session)
        return self._tls

    def connect(self, client_id: str) -> bool:
        """Connects, publishes to itself, and disconnects; returns whether the session was resumed."""
        with Client(self.address, 5, client_id, dial=self.dial) as client:
            assert self._tls is not None
            client.subscribe(f"{client_id}/own", 1)
            client.publish(f"{client_id}/own", b"x" * 20_000, 1)
            assert client.recv().payload == b"x" * 20_000  # type: ignore[union-attr]
            self.resumed, self.session = bool(self._tls.session_reused), self._tls.session
        return self.resumed


@pytest.fixture
def broker(authority: Authority, tmp_path: Path) -> Iterator[Edge]:
    """Two acceptors; `plain` asks for no certificate, `mutual` does, with a revocation list of the test's own."""
    (tmp_path / "revoked.crl").write_bytes((authority.directory / "revoked.crl").read_bytes())
    tls = {"tls.certfile": str(authority.directory / "broker.pem"), "tls.session_tickets": True}
    mutual = {
        "tls.cacertfile": str(authority.cafile),
        "tls.crlfile": str(tmp_path / "revoked.crl"),
        "tls.verify": "verify_peer",
        "tls.fail_if_no_peer_cert": True,
        "peer_cert_as_username": "cn",
    }
    listeners = {"plain": {"type": "ssl", **tls}, "other": {"type": "ssl", **tls}, "mutual": {"type": "ssl", **tls, **mutual}}
    with Edge(listeners, settings={"process.acceptors": 2}) as made:
        yield made


@pytest.mark.parametrize("version", VERSIONS)
def test_every_acceptor_resumes_also_one_that_has_begun_later(broker: Edge, authority: Authority, version: ssl.TLSVersion) -> None:
    client = Resuming(broker.at("plain"), speaking(authority, version))
    assert not client.connect("first")
    assert all(client.connect(f"again-{number}") for number in range(ATTEMPTS))
    before = broker.child_pids("acceptor")
    for pid in before:
        broker.kill_process(pid)
    until(lambda: len(set(broker.child_pids("acceptor")) - set(before)) == 2)
    assert all(client.connect(f"later-{number}") for number in range(ATTEMPTS))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_client_has_the_name_of_its_certificate(broker: Edge, authority: Authority, version: ssl.TLSVersion) -> None:
    context = speaking(authority, version)
    context.load_cert_chain(authority.directory / "alice.pem")
    client = Resuming(broker.at("mutual"), context)
    client.connect("full")
    with Client(broker.address, 5, "watcher") as watcher:
        watcher.subscribe("$SYS/brokers/+/clients/resumed/disconnected", 1)
        assert client.connect("resumed")
        assert b'"username":"alice"' in watcher.recv().payload  # type: ignore[union-attr]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_ticket_of_one_listener_opens_no_other(broker: Edge, authority: Authority, version: ssl.TLSVersion) -> None:
    context = speaking(authority, version)
    client = Resuming(broker.at("plain"), context)
    client.connect("plain")
    assert client.connect("plain")
    assert not Resuming(broker.at("other"), context, client.session).connect("other")
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        Resuming(broker.at("mutual"), context, client.session).connect("mutual")
    broker.wait_for_log("client refused listener=mutual", "did not return a certificate")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_revoked_certificate_ends_its_sessions(
    authority: Authority, broker: Edge, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    authority.issue("bob", "bob")
    context = speaking(authority, version)
    context.load_cert_chain(authority.directory / "bob.pem")
    client = Resuming(broker.at("mutual"), context)
    client.connect("bob")
    assert client.connect("bob")
    (tmp_path / "new.crl").write_bytes(authority.revoke("bob").read_bytes())
    (tmp_path / "new.crl").replace(tmp_path / "revoked.crl")
    broker.wait_for_log("tls files reloaded listener=mutual")
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        client.connect("bob")
    broker.wait_for_log("client refused listener=mutual", "certificate revoked")
    # Of others too: whether their issuer is still trusted is checked again.
    other = speaking(authority, version)
    other.load_cert_chain(authority.directory / "alice.pem")
    assert not Resuming(broker.at("mutual"), other).connect("alice")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def server(authority: Authority, keys: TicketKeys, label: bytes = b"listener") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.directory / "broker.pem")
    assert keys.of(label).install(context)
    return context


def session_at(context: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession, bool]:
    """Returns the session after a handshake in memory, and whether it was resumed."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    there = context.wrap_bio(to_server, to_client, server_side=True)
    for end in (here, there, here, there, here):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    with pytest.raises(ssl.SSLWantReadError):
        here.read()  # tickets of TLS 1.3
    assert here.session is not None
    return here.session, bool(here.session_reused)


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_are_replaced_and_the_last_ones_still_read(authority: Authority, version: ssl.TLSVersion, tmp_path: Path) -> None:
    clock = Clock()
    one, other = TicketKeys(tmp_path / "keys", clock), TicketKeys(tmp_path / "keys", clock)
    here, there, client = server(authority, one), server(authority, other), speaking(authority, version)
    session, _ = session_at(here, client, None)
    assert session_at(there, client, session)[1]
    stored = (tmp_path / "keys").read_bytes()
    clock.now_s += PERIOD_S
    one.turn()  # the other one has the former keys, and takes none of the new ones
    renewed, resumed = session_at(here, client, session)
    assert resumed
    assert not session_at(there, client, renewed)[1]
    other.turn()
    assert session_at(there, client, renewed)[1]
    assert session_at(there, client, session)[1]
    (tmp_path / "keys").write_bytes(stored)  # as an acceptor that was not there to replace it
    late = TicketKeys(tmp_path / "keys", clock)
    assert session_at(server(authority, late), client, renewed)[1]
    clock.now_s += PERIOD_S
    for keys in (one, other):
        keys.turn()
    assert not session_at(there, client, session)[1]
    assert session_at(there, client, renewed)[1]
    assert not session_at(server(authority, one, b"another listener"), client, renewed)[1]


def test_the_file_of_keys_is_closed_to_others_and_damage_is_replaced(authority: Authority, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "keys"
    keys = TicketKeys(path, clock)
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    for damaged in (b"", whole[:10], b"\xff" * len(whole), b"\0" * len(whole)):
        path.write_bytes(damaged)
        TicketKeys(path, clock)
        assert len(path.read_bytes()) == len(whole)
        assert path.read_bytes() != damaged
    path.unlink()
    path.mkdir()  # cannot be read: an acceptor goes on by itself
    client = authority.client()
    session, _ = session_at(server(authority, keys), client, None)
    clock.now_s += PERIOD_S
    keys.turn()
    assert session_at(server(authority, keys), client, session)[1]


def test_a_context_that_is_no_server_is_refused() -> None:
    tickets = SessionTickets()
    assert not tickets.install(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    assert tickets.refused
