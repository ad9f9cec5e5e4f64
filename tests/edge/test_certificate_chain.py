"""Client certificates in the chain: who shows one is who it says, and nobody else; revoked while the broker runs."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config import load
from shardbroker.management.access import AccessAdmin
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import dial
from tests.edge.websocket import WebSocket
from tests.harness import Client, Closed, until, wire

pytestmark = pytest.mark.own_broker
BAD, NOT_AUTHORIZED = 0x86, 0x87
RULES = """
{allow, {user, "alice"}, all, ["user/alice/#"]}.
{allow, {client, "alice"}, all, ["client/${clientid}/#"]}.
"""


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("chain"))
    made.issue("broker", "broker", ("localhost",))
    made.issue("alice", "alice", organization="Plant")
    made.issue("bob", "bob")
    made.revoke()
    return made


def edge_with(ca: Authority, identity: str, tmp_path: Path) -> Edge:
    mutual: dict[str, Any] = {
        "type": "ssl",
        "tls.certfile": str(ca.directory / "broker.pem"),
        "tls.cacertfile": str(ca.cafile),
        "tls.crlfile": str(ca.directory / "revoked.crl"),
        "tls.verify": "verify_peer",
    }
    listeners = {
        "asked": mutual | {"auth_chain": ["certificate", "builtin"]},
        "user": mutual | {"auth_chain": ["certificate"], "peer_cert_as_username": "cn"},
        "bound": mutual | {"peer_cert_as_username": "cn"},
        "bound-id": mutual | {"peer_cert_as_clientid": "cn"},
        "proxied": {"proxy_protocol": True, "peer_cert_as_username": "cn"},
        "client": mutual | {"auth_chain": ["certificate"], "peer_cert_as_clientid": "cn", "type": "wss"},
    }
    rules = tmp_path / "acl.conf"
    rules.write_text(RULES)
    settings = {"auth.certificate.identity": identity, "acl.sources": "file", "acl.file.path": rules}
    return Edge(listeners, 2, settings)


@pytest.fixture(scope="module")
def named(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """The common name has to be the user name."""
    broker = edge_with(ca, "cn", tmp_path_factory.mktemp("rules"))
    admin = AccessAdmin(load(broker.file, None, []).settings, broker.data_dir)
    admin.add_user("carol", "secret")
    admin.close()
    with broker:
        yield broker


def came(broker: Edge, ca: Authority, listener: str, certificate: str, **options: Any) -> int:
    """What CONNACK says."""
    context = ca.client(ca.directory / f"{certificate}.pem" if certificate else None)
    with Client(broker.address, 5, connect=False, dial=dial(broker.at(listener), context), **options) as client:
        client.send_raw(client._connect_packet)
        return int(client.expect(wire.Connack).code)


def test_the_common_name_has_to_be_the_user_name(named: Edge, ca: Authority) -> None:
    assert came(named, ca, "asked", "alice", username="alice") == 0
    assert came(named, ca, "asked", "alice", username="bob") == BAD
    assert came(named, ca, "asked", "alice", username="carol", password="secret") == BAD, "denied ends the chain"
    named.wait_for_log("client disconnected", "reason=0x86", "denied by certificate")


def test_without_a_certificate_the_next_of_the_chain_is_asked(named: Edge, ca: Authority) -> None:
    assert came(named, ca, "asked", "", username="carol", password="secret") == 0
    assert came(named, ca, "asked", "", username="carol", password="guess") == BAD
    assert came(named, ca, "user", "", username="alice") == BAD, "a name alone is worth nothing"
    assert came(named, ca, "user", "") == NOT_AUTHORIZED


@pytest.mark.parametrize("listener", ["bound", "bound-id"])
@pytest.mark.parametrize("version", [4, 5])
def test_who_has_no_certificate_is_refused_where_it_gives_names(named: Edge, ca: Authority, listener: str, version: int) -> None:
    """Nothing else asks who it is there: it would be whom it says it is."""
    opened = dial(named.at(listener), ca.client())
    for username, codes in (("alice", (BAD, 4)), (None, (NOT_AUTHORIZED, 5))):
        with Client(named.address, version, "alice", username=username, connect=False, dial=opened) as client:
            client.send_raw(client._connect_packet)
            assert client.expect(wire.Connack).code == codes[version == 4]
            client.expect_close()
    named.wait_for_log("client disconnected", "client_id=alice", "client certificate missing or without the required name")
    assert came(named, ca, listener, "alice", username="bob") == 0


def test_where_a_balancer_gives_names_a_client_without_is_refused(named: Edge) -> None:
    def proxied() -> socket.socket:
        made = socket.create_connection(named.at("proxied"), 5)
        made.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.1 50312 1883\r\n")
        return made

    with Client(named.address, 5, username="alice", connect=False, dial=proxied) as client:
        client.send_raw(client._connect_packet)
        assert client.expect(wire.Connack).code == BAD
        client.expect_close()


@pytest.mark.parametrize("version", [4, 5])
def test_the_certificate_is_the_user_name(named: Edge, ca: Authority, version: int) -> None:
    """Whatever CONNECT says, rules see whom the certificate names."""
    context = ca.client(ca.directory / "alice.pem")
    with Client(named.address, version, "u1", username="bob", dial=dial(named.at("user"), context)) as client:
        client.subscribe("user/alice/x", 1)
        client.publish("user/alice/x", b"mine", 1)
        assert client.recv().payload == b"mine"  # type: ignore[union-attr]
        assert client.subscribe("user/bob/x", check=False).codes == ((NOT_AUTHORIZED,) if version == 5 else (0x80,))


def test_the_certificate_is_the_client_id_over_websocket(named: Edge, ca: Authority) -> None:
    context = ca.client(ca.directory / "alice.pem")

    def opened() -> WebSocket:
        return WebSocket(dial(named.at("client"), context)())

    with Client(named.address, 5, "victim", username="alice", dial=opened) as client:
        client.subscribe("client/alice/x", 1)
        assert client.subscribe("client/victim/x", check=False).codes == (NOT_AUTHORIZED,)
        with Client(named.address, 5, "another", username="alice", dial=opened):
            assert client.expect(wire.Disconnect).code == 0x8E, "both are alice"


@pytest.mark.parametrize(
    ("identity", "username", "code"), [("dn", "O=Plant,CN=alice", 0), ("dn", "alice", BAD), ("any", "whoever", 0)]
)
def test_what_of_the_certificate_counts(ca: Authority, tmp_path: Path, identity: str, username: str, code: int) -> None:
    with edge_with(ca, identity, tmp_path) as broker:
        assert came(broker, ca, "asked", "alice", username=username) == code
        assert came(broker, ca, "asked", "", username=username) == BAD


def test_a_certificate_that_is_revoked_meanwhile(named: Edge, ca: Authority) -> None:
    """Who is connected stays; who comes with it afterwards gets no further than TLS."""
    context = ca.client(ca.directory / "bob.pem")
    with Client(named.address, 5, "bob", username="bob", dial=dial(named.at("asked"), context)) as stays:
        ca.revoke("bob")

        def refused() -> bool:
            try:
                return came(named, ca, "asked", "bob", username="bob") < 0
            except (ssl.SSLError, Closed, ConnectionError):
                return True

        until(refused)
        named.wait_for_log("client refused listener=asked", "certificate revoked")
        assert came(named, ca, "asked", "alice", username="alice") == 0
        stays.ping()
