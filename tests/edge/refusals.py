"""Every refusal of docs/refusals.md: what provokes it, and what is said of it to the client, in the counters and in the log.

A row is what the page has in its table, and a function that provokes it and returns what the client saw. Rows that need a broker in
a special state name the test that has one.
"""

import contextlib
import functools
import itertools
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from shardbroker.config import load
from shardbroker.management.access import AccessAdmin
from shm.counters import Counters
from tests.access.guarded import Answers, http_server
from tests.access.scram_client import ScramClient
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.websocket import FIN, TEXT, WebSocket, frame, request
from tests.harness import Client, Closed, until, wire
from tests.harness.needed import needed

__all__ = ["ROWS", "Place", "Row", "brokers"]

JWT_SECRET = "a secret that is long enough for HS256"
RULES = '{deny, all, all, ["denied/#"]}.\n{allow, all}.\n'
PACKET_MAX = 65536
CLIENT_ID_MAX = 30


class Place:
    """Two brokers: `own`, with a listener for each way to be refused, and `strict`, which supports little."""

    def __init__(self, own: Edge, strict: Edge, authority: Authority, admin: AccessAdmin, answers: Answers) -> None:
        self.own, self.strict, self.authority, self.admin, self.answers = own, strict, authority, admin, answers
        self._names = (f"refused{number}" for number in itertools.count())
        self.name = next(self._names)
        """Client id, another one for each try: nobody is to be taken for one that flaps."""

    def next_try(self) -> None:
        self.name = next(self._names)

    def counts(self) -> dict[str, int]:
        """Both brokers' counters."""
        sums: dict[str, int] = {}
        for broker in (self.own, self.strict):
            (instance,) = broker._instances
            for name, value in Counters.attach(f"/dev/shm/shardbroker-{instance}/counters").totals().items():
                sums[name] = sums.get(name, 0) + value
        return sums

    def marks(self) -> tuple[int, int]:
        """How long both logs are."""
        return len(self.own.output), len(self.strict.output)

    def lines_since(self, marks: tuple[int, int]) -> list[str]:
        return [*self.own.output[marks[0] :], *self.strict.output[marks[1] :]]

    def dial(self, listener: str) -> Callable[[], socket.socket]:
        address = self.own.address if listener == "default" else self.own.at(listener)
        return lambda: socket.create_connection(address, 5)

    def client(self, version: int, listener: str = "default", client_id: str | None = None, **options: Any) -> Client:
        """Not connected yet."""
        name = self.name if client_id is None else client_id
        return Client(self.own.address, version, name, connect=False, dial=self.dial(listener), **options)

    def inside(self, version: int, **options: Any) -> Client:
        return Client(self.own.address, version, self.name, **options)

    def login(self, version: int, listener: str, **options: Any) -> str:
        """What a CONNECT is answered."""
        with self.client(version, listener, **options) as client:
            client.send_raw(client._connect_packet)
            return told(client)


@dataclass(frozen=True)
class Row:
    """`five`, `three`: what a client of 5.0, or 3.x, sees; empty: it cannot get there. `line`: words of a log line, in order."""

    who: str
    layer: str
    five: str
    three: str
    counters: tuple[str, ...]
    line: tuple[str, ...]
    provoke: Callable[[Place, int], str] | None = None
    tested_by: str = ""

    def cells(self) -> list[str]:
        """As the page has it."""
        return [
            self.who,
            self.layer,
            self.five or "-",
            self.three or "-",
            ", ".join(f"`{name}`" for name in self.counters) or "none",
            f"`{' … '.join(self.line)}`" if self.line else "none",
        ]


@contextmanager
def brokers(authority: Authority, folder: Path) -> Iterator[Place]:
    """Everything that rows need."""
    certificate = {"tls.certfile": str(authority.directory / "broker.pem")}
    mutual = certificate | {
        "type": "ssl",
        "tls.cacertfile": str(authority.cafile),
        "tls.crlfile": str(authority.directory / "revoked.crl"),
        "tls.verify": "verify_peer",
        "tls.fail_if_no_peer_cert": True,
    }
    listeners: dict[str, dict[str, Any]] = {
        "walled": {"access_rules": ["deny all"]},
        "one": {"max_connections": 1},
        "few": {"limiter.messages_rate": "2/s"},
        "mounted": {"mountpoint": "${username}/${clientid}/"},
        "proxied": {"proxy_protocol": True, "proxy_protocol_timeout": "200ms"},
        "ssl": {"type": "ssl", **certificate},
        "mutual": mutual,
        "named": mutual | {"auth_chain": ["certificate"]},
        "quick": {"type": "ssl", "tls.handshake_timeout": "200ms", **certificate},
        "ws": {"type": "ws"},
        "small": {"type": "ws", "websocket.max_frame_size": "1KB"},
        "origin": {"type": "ws", "websocket.check_origins": ["https://plant.example"]},
        "users": {"auth_chain": ["builtin"]},
        "quickdeny": {"enable_authn": "quick_deny_anonymous"},
        "broken": {"auth_chain": ["redis"]},
        "dead": {"auth_chain": ["http"]},
        "scram": {"auth_chain": ["scram"]},
        "tokens": {"auth_chain": ["jwt"]},
    }
    rules = folder / "acl.conf"
    rules.write_text(RULES)
    checked: dict[str, object] = {"acl.sources": "file", "acl.file.path": rules}
    with ExitStack() as stack:
        answers = stack.enter_context(http_server())
        answers.answer = lambda path, fields: None
        settings = checked | {
            "mqtt.idle_timeout": "500ms",
            "mqtt.max_packet_size": PACKET_MAX,
            "mqtt.max_clientid_len": CLIENT_ID_MAX,
            "mqtt.max_awaiting_rel": 2,
            "mqtt.max_topic_alias": 2,
            "mqtt.exclusive_subscription": True,
            "auth.timeout": "2s",
            "auth.max_waiting": 1,
            "auth.http.url": answers.url,
            "auth.redis.server": "127.0.0.1:1",
            "flapping_detect.enable": True,
            "flapping_detect.max_count": 4,
        }
        own = Edge(listeners, 1, settings)
        own.environment["SHARDBROKER__AUTH__JWT__SECRET"] = JWT_SECRET
        stack.enter_context(own)
        admin = AccessAdmin(load(own.file, None, []).settings, own.data_dir)
        stack.callback(admin.close)
        admin.add_user("ada", "secret")
        admin.add_user("sam", "pencil", scram=True)
        little = {f"mqtt.{key}": False for key in ("retain_available", "wildcard_subscription", "shared_subscription")}
        most = {"mqtt.max_qos_allowed": 1, "mqtt.max_subscriptions": 1, "delayed.max_delayed_messages": 1}
        more = most | {"acl.deny_action": "disconnect"}
        strict = Edge({}, 1, checked | little | more)
        stack.enter_context(strict)
        yield Place(own, strict, authority, admin, answers)


ROWS: list[Row] = []


def refusal(
    who: str, layer: str, five: str, three: str, counters: str, *line: str, tested_by: str = ""
) -> Callable[[Callable[[Place, int], str]], Callable[[Place, int], str]]:
    def note(provoke: Callable[[Place, int], str]) -> Callable[[Place, int], str]:
        ROWS.append(Row(who, layer, five, three, tuple(counters.split()), line, provoke))
        return provoke

    if tested_by:
        ROWS.append(Row(who, layer, five, three, tuple(counters.split()), line, None, tested_by))
    return note


# --- what the client sees ---------------------------------------------------------------------------------------------------------


def told(client: Client) -> str:
    """The next thing that says something, in the words of the page. What ends the connection must end it."""
    try:
        packet = client.recv()
    except Closed:
        return "close"
    assert packet is not None, "neither an answer nor an end"
    name = type(packet).__name__.upper()
    if isinstance(packet, wire.Suback):
        return f"SUBACK 0x{packet.codes[0]:02X}"
    if isinstance(packet, wire.Ack):
        return f"{name} 0x{packet.code:02X}" if client.version == 5 else name
    if isinstance(packet, wire.Connack | wire.Disconnect):
        with contextlib.suppress(Closed):
            assert client.recv() is None, "something behind the last packet"
            raise AssertionError("the connection stays open")
        return f"{name} 0x{packet.code:02X}" if client.version == 5 else f"{name} {packet.code}"
    return f"{packet}"


def ending(sock: socket.socket, data: bytes = b"") -> str:
    """How a connection ends that these bytes are sent to: its last words, if there are any."""
    got = b""
    with sock, contextlib.suppress(ConnectionError):
        sock.sendall(data)
        while part := sock.recv(65536):
            got += part
    if got.startswith(b"HTTP/1.1 "):
        return f"HTTP {got[9:12].decode()}"
    return {b"": "close", b"\x15": "alert"}.get(got[:1], repr(got))


def tls_ending(place: Place, listener: str, certificate: Path | None) -> str:
    """How it ends for a client that shows this certificate and waits for what is said."""
    context = place.authority.client(certificate)
    try:
        with context.wrap_socket(place.dial(listener)(), server_hostname="localhost") as tls:
            return "close" if tls.recv(1) == b"" else "let in"
    except ssl.SSLError as error:
        return "alert" if "alert" in str(error).lower() else str(error)


def frames_end(place: Place, data: bytes, listener: str = "ws") -> str:
    opened = WebSocket(place.dial(listener)())
    try:
        opened.under.sendall(data)
        return f"Close {opened.close_code()}"
    finally:
        opened.close()


# --- before MQTT ------------------------------------------------------------------------------------------------------------------


@refusal("from an address that a rule denies", "address", "close", "close", "client.closed.access_rules",
         "client refused", "reason=access_rules")  # fmt: skip
def _(place: Place, version: int) -> str:
    return ending(place.dial("walled")())


@refusal("one above `max_connections`", "socket", "close", "close", "client.closed.max_connections")
def _(place: Place, version: int) -> str:
    with place.client(version, "one", "first") as first:
        first.connect()
        seen = ending(place.dial("one")())
        first.disconnect()  # and waits until its place is free
        return seen


refusal("the oldest, when an acceptor holds 8192 that have sent no CONNECT", "socket", "close", "close", "client.closed.refused",
        "client refused", "reason=refused",
        tested_by="tests/acceptor/test_acceptor.py::test_the_oldest_goes_when_there_are_too_many")  # fmt: skip


@refusal("no PROXY header, or a wrong one", "PROXY", "close", "close", "client.closed.proxy",
         "client refused", "reason=proxy", "no PROXY header")  # fmt: skip
def _(place: Place, version: int) -> str:
    return ending(place.dial("proxied")(), wire.connect(place.name, version))


@refusal("a PROXY header not in time", "PROXY", "close", "close", "client.closed.proxy",
         "client refused", "reason=proxy", "in time")  # fmt: skip
def _(place: Place, version: int) -> str:
    return ending(place.dial("proxied")(), b"PROXY TCP4 ")


@refusal("bytes that are no TLS", "TLS", "close", "close", "client.closed.tls", "client refused", "reason=tls")
def _(place: Place, version: int) -> str:
    return ending(place.dial("ssl")(), wire.connect(place.name, version))


@refusal("a version of TLS that is not spoken", "TLS", "alert", "alert", "client.closed.tls",
         "client refused", "reason=tls", "unsupported protocol")  # fmt: skip
def _(place: Place, version: int) -> str:
    host, port = place.own.at("ssl")
    command = [needed("openssl"), "s_client", "-connect", f"{host}:{port}", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=20)
    return "alert" if "alert protocol version" in done.stderr else done.stderr


@refusal("no client certificate, where one is wanted", "TLS", "alert", "alert", "client.closed.tls",
         "client refused", "reason=tls", "did not return a certificate")  # fmt: skip
def _(place: Place, version: int) -> str:
    return tls_ending(place, "mutual", None)


@refusal("a certificate of another authority", "TLS", "alert", "alert", "client.closed.tls",
         "client refused", "reason=tls", "verify failed")  # fmt: skip
def _(place: Place, version: int) -> str:
    return tls_ending(place, "mutual", place.authority.directory / "stranger" / "alice.pem")


@refusal("a certificate that was revoked", "TLS", "alert", "alert", "client.closed.tls",
         "client refused", "reason=tls", "certificate revoked")  # fmt: skip
def _(place: Place, version: int) -> str:
    return tls_ending(place, "mutual", place.authority.directory / "mallory.pem")


@refusal("a handshake not done within `tls.handshake_timeout`", "TLS", "close", "close", "client.closed.tls",
         "client refused", "reason=tls", "no TLS handshake in time")  # fmt: skip
def _(place: Place, version: int) -> str:
    return ending(place.dial("quick")(), b"\x16\x03\x01")


refusal("the oldest of more than 1024 handshakes in one acceptor", "TLS", "close", "close", "client.closed.tls",
        "client refused", "reason=tls", "too many TLS handshakes at a time",
        tested_by="tests/edge/test_attacks.py::test_a_flood_of_handshakes_leaves_others_their_turn")  # fmt: skip

refusal("a record that fails authentication, or breaks another rule of TLS", "TLS", "alert", "alert", "client.closed.tls",
        "client disconnected", "TLS: a record that fails authentication",
        tested_by="tests/edge/test_tls.py::test_a_record_that_was_changed_ends_the_connection")  # fmt: skip

for who, status, listener, data, words in (
    ("bytes that are no HTTP request", 400, "ws", b"GARBAGE\r\n\r\n", "not an HTTP request"),
    ("another method than GET", 405, "ws", request().replace(b"GET", b"POST", 1), "POST"),
    ("a request that is no upgrade", 426, "ws", request(Upgrade=""), "Upgrade"),
    ("headers of more than 16 KiB", 431, "ws", b"A" * 20000, "more than 16384 bytes"),
    ("another path", 404, "ws", request("/other"), "must be /mqtt"),
    ("a page of another origin", 403, "origin", request(Origin="https://evil.example"), "evil.example"),
    ("no subprotocol that is spoken here", 400, "ws", request(subprotocol="chat"), "expected one of mqtt"),
):
    refusal(who, "HTTP", f"HTTP {status}", f"HTTP {status}", "client.closed.upgrade",
            "client refused", "reason=upgrade", words)(
        functools.partial(lambda place, version, listener, data: ending(place.dial(listener)(), data), listener=listener, data=data)
    )  # fmt: skip

for who, code, listener, data, words in (
    ("a text frame", 1003, "ws", frame(b"\xc0\x00", FIN | TEXT), "text frame"),
    ("a frame against the rules", 1002, "ws", frame(b"\xc0\x00", mask=None), "without mask"),
    ("a compressed frame", 1002, "ws", frame(b"\xc0\x00", FIN | 0x40 | 2), "compression"),
    ("a frame above `websocket.max_frame_size`", 1009, "small", frame(b"x" * 2000), "exceeds websocket.max_frame_size"),
):
    refusal(who, "WebSocket", f"Close {code}", f"Close {code}", "client.closed.websocket",
            "client refused", "reason=websocket", words)(
        functools.partial(lambda place, version, listener, data: frames_end(place, data, listener), listener=listener, data=data)
    )  # fmt: skip


@refusal("likewise once a worker has it", "WebSocket", "Close 1002", "Close 1002", "client.closed.websocket",
         "client disconnected", "reason=0x82", "WebSocket: ")  # fmt: skip
def _(place: Place, version: int) -> str:
    opened = WebSocket(place.dial("ws")())
    with Client(place.own.address, version, place.name, dial=lambda: opened):
        opened.under.sendall(frame(b"\xc0\x00", mask=None))
        return f"Close {opened.close_code()}"


# --- CONNECT ----------------------------------------------------------------------------------------------------------------------


@refusal("no CONNECT within `mqtt.idle_timeout` of accept", "MQTT", "close", "close", "client.closed.idle_timeout")
def _(place: Place, version: int) -> str:
    return ending(place.dial("default")(), wire.connect(place.name, version)[:-1])


@refusal("first bytes that are no CONNECT", "MQTT", "close", "close", "client.closed.not_connect")
def _(place: Place, version: int) -> str:
    return ending(place.dial("default")(), wire.pingreq())


@refusal("a CONNECT longer than `mqtt.max_packet_size`, or than 512 KB", "MQTT", "close", "close", "client.closed.too_large")
def _(place: Place, version: int) -> str:
    return ending(place.dial("default")(), b"\x10\xff\xff\xff\x7f" + b"x" * 100)


refusal("a connection that waited 5 s for a worker that is down", "MQTT", "CONNACK 0x88", "CONNACK 3", "client.closed.refused",
        tested_by="tests/acceptor/test_acceptor.py::test_refused_when_the_worker_stays_down")  # fmt: skip


@refusal("a version of MQTT that is not spoken", "CONNECT", "", "CONNACK 1", "client.closed.refused packets.connack.error",
         "client disconnected", "reason=0x84")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.client(version) as client:
        client.send_raw(wire.connect(place.name, 4).replace(b"MQTT\x04", b"MQTT\x06"))
        return told(client)


@refusal("a CONNECT that is malformed", "CONNECT", "CONNACK 0x81", "close", "client.closed.malformed",
         "client disconnected", "reason=0x81")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.client(version) as client:
        client.send_raw(wire.packet(wire.CONNECT, wire.connect(place.name, version)[2:] + b"tail"))
        return told(client)


@refusal("an empty client id without a clean session", "CONNECT", "", "CONNACK 2", "client.closed.refused packets.connack.error",
         "client disconnected", "reason=0x85")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", client_id="", clean=False)


@refusal("a client id longer than `mqtt.max_clientid_len`", "CONNECT", "CONNACK 0x85", "CONNACK 2",
         "client.closed.refused packets.connack.error", "client disconnected", "reason=0x85", "client id exceeds")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", client_id="x" * (CLIENT_ID_MAX + 1))


def strict_login(place: Place, version: int, will: wire.Will) -> str:
    with Client(place.strict.address, version, place.name, connect=False, will=will) as client:
        client.send_raw(client._connect_packet)
        return told(client)


@refusal("a will above `mqtt.max_qos_allowed`", "CONNECT", "CONNACK 0x9B", "close", "client.closed.refused",
         "client disconnected", "reason=0x9b")  # fmt: skip
def _(place: Place, version: int) -> str:
    return strict_login(place, version, wire.Will("w", b"", 2))


@refusal("a retained will without `mqtt.retain_available`", "CONNECT", "CONNACK 0x9A", "close", "client.closed.refused",
         "client disconnected", "reason=0x9a")  # fmt: skip
def _(place: Place, version: int) -> str:
    return strict_login(place, version, wire.Will("w", b"", 0, True))


refusal("a client without the certificate that `peer_cert_as_username` or `peer_cert_as_clientid` wants", "CONNECT", "CONNACK 0x86",
        "CONNACK 4", "authentication.failure client.closed.refused",
        "client disconnected", "reason=0x86", "client certificate missing or without the required name",
        tested_by="tests/edge/test_certificate_chain.py::test_who_has_no_certificate_is_refused_where_it_gives_names")  # fmt: skip


@refusal("a client id that has no place in `mountpoint`", "CONNECT", "CONNACK 0x85", "CONNACK 2", "client.closed.refused",
         "client disconnected", "reason=0x85", "the client id is part of the listener's mountpoint")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "mounted", client_id="a/b", username="ada")


@refusal("a user name that has no place in `mountpoint`", "CONNECT", "CONNACK 0x86", "CONNACK 4", "client.closed.refused",
         "client disconnected", "reason=0x86", "the user name is part of the listener's mountpoint")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "mounted")


refusal("a client without a session, while memory is short", "CONNECT", "CONNACK 0x97", "CONNACK 3", "client.closed.overload",
        "client disconnected", "reason=0x97", "memory limit reached",
        tested_by="tests/overload/test_overload.py::test_newcomers_are_refused_while_memory_is_short")  # fmt: skip
refusal("any, while the node is evacuated", "CONNECT", "CONNACK 0x9C", "CONNACK 3", "client.closed.refused",
        "client disconnected", "reason=0x9c", "this node is evacuated",
        tested_by="tests/behaviour/test_evacuation.py::test_clients_are_turned_away_and_disconnected_at_a_rate")  # fmt: skip
refusal("a session that stays, while the disk takes no writes", "CONNECT", "CONNACK 0x88", "CONNACK 3", "client.closed.refused",
        "client disconnected", "reason=0x88", "disk refuses writes",
        tested_by="tests/behaviour/test_refusing_disk.py"
                  "::test_at_the_limit_memory_stays_bounded_and_new_sessions_that_stay_are_refused")  # fmt: skip

# --- who is it? -------------------------------------------------------------------------------------------------------------------


@refusal("banned, coming", "bans", "CONNACK 0x8A", "CONNACK 5", "client.banned packets.connack.auth_error",
         "client disconnected", "reason=0x8a", "banned by clientid")  # fmt: skip
def _(place: Place, version: int) -> str:
    place.admin.ban("clientid", place.name)
    return place.login(version, "default")


@refusal("banned while connected", "bans", "DISCONNECT 0x98", "close", "client.banned",
         "client disconnected", "reason=0x98", "banned by clientid")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.inside(version) as client:
        place.admin.ban("clientid", place.name)
        return told(client)


@refusal("came and went too often", "bans", "CONNACK 0x8A", "CONNACK 5", "client.flapping client.banned",
         "WARNING client flapping")  # fmt: skip
def _(place: Place, version: int) -> str:
    for _ in range(4):
        place.inside(version).disconnect()
    return place.login(version, "default")


@refusal("no user name, `quick_deny_anonymous`", "chain", "CONNACK 0x87", "CONNACK 5", "authentication.failure",
         "client disconnected", "reason=0x87", "user name is required (auth.quick_deny_anonymous)")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "quickdeny")


@refusal("wrong password", "chain", "CONNACK 0x86", "CONNACK 4", "authentication.failure packets.connack.auth_error",
         "client disconnected", "reason=0x86", "denied by builtin")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "users", username="ada", password="wrong")


@refusal("an unknown user name", "chain", "CONNACK 0x86", "CONNACK 4", "authentication.failure packets.connack.auth_error",
         "client disconnected", "reason=0x86", "no authenticator knows this client")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "users", username="eve", password="wrong")


@refusal("no user name, and unknown to every authenticator", "chain", "CONNACK 0x87", "CONNACK 5", "authentication.failure",
         "client disconnected", "reason=0x87", "no authenticator knows this client")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "users")


@refusal("a back end that might know it failed", "chain", "CONNACK 0x88", "CONNACK 3", "authentication.unavailable",
         "client disconnected", "reason=0x88", "redis failed")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "broken", username="ada", password="x")


@refusal("no response within the timeout", "chain", "CONNACK 0x88", "CONNACK 3", "authentication.unavailable",
         "client disconnected", "reason=0x88", "no response within the timeout")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "dead", username="ada", password="x")


@refusal("too many wait for a result", "chain", "CONNACK 0x89", "CONNACK 3", "authentication.unavailable",
         "client disconnected", "reason=0x89", "pending login limit (auth.max_waiting) reached")  # fmt: skip
def _(place: Place, version: int) -> str:
    asked = len(place.answers.asked)
    with place.client(version, "dead", "waits", username="ada", password="x") as waits:
        waits.send_raw(waits._connect_packet)
        until(lambda: len(place.answers.asked) > asked)  # the broker has one worker, and max_waiting is 1
        seen = place.login(version, "dead", username="ada", password="x")
        assert "0x88" in told(waits) or version < 5, "it had its turn"
        return seen


@refusal("another certificate than the user name's", "chain", "CONNACK 0x86", "CONNACK 4", "authentication.failure",
         "client disconnected", "reason=0x86", "denied by certificate")  # fmt: skip
def _(place: Place, version: int) -> str:
    context = place.authority.client(place.authority.directory / "alice.pem")
    tls = context.wrap_socket(place.dial("named")(), server_hostname="localhost")
    with Client(place.own.address, version, place.name, connect=False, username="bob", dial=lambda: tls) as client:
        client.send_raw(client._connect_packet)
        return told(client)


@refusal("unknown authentication method", "chain", "CONNACK 0x8C", "", "packets.connack.auth_error",
         "client disconnected", "reason=0x8c", "unsupported authentication method")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "users", properties={"authentication_method": "KERBEROS"})


@refusal("another packet than AUTH before CONNACK", "chain", "CONNACK 0x82", "", "client.closed.protocol_error",
         "client disconnected", "reason=0x82")  # fmt: skip
def _(place: Place, version: int) -> str:
    method = {"authentication_method": "SCRAM-SHA-256", "authentication_data": ScramClient("sha256", "sam", "pencil").first()}
    with place.client(version, "scram", properties=method) as client:
        client.send_raw(client._connect_packet)
        assert isinstance(client.recv(), wire.Auth)
        client.send_raw(wire.pingreq())
        return told(client)


@refusal("re-authentication that fails", "chain", "DISCONNECT 0x87", "", "authentication.failure",
         "client disconnected", "reason=0x87", "re-authentication: ")  # fmt: skip
def _(place: Place, version: int) -> str:
    def fields(data: bytes) -> dict[str, Any]:
        return {"authentication_method": "SCRAM-SHA-256", "authentication_data": data}

    scram = ScramClient("sha256", "sam", "pencil")
    with place.client(version, "scram", properties=fields(scram.first())) as client:
        client.send_raw(client._connect_packet)
        challenge = client.expect(wire.Auth)
        client.send_raw(wire.auth(0x18, fields(scram.final(challenge.properties["authentication_data"]))))
        client.expect(wire.Connack, code=0)
        wrong = ScramClient("sha256", "sam", "pen")
        client.send_raw(wire.auth(0x19, fields(wrong.first())))
        challenge = client.expect(wire.Auth)
        client.send_raw(wire.auth(0x18, fields(wrong.final(challenge.properties["authentication_data"]))))
        return told(client)


@refusal("credentials that expire", "chain", "DISCONNECT 0xA0", "close", "client.disconnected",
         "client disconnected", "reason=0xa0", "credentials expired")  # fmt: skip
def _(place: Place, version: int) -> str:
    token = jwt.encode({"exp": int(time.time()) + 2}, JWT_SECRET, "HS256")
    with place.client(version, "tokens", username="ada", password=token) as client:
        client.connect()
        return told(client)


# --- what may it do? --------------------------------------------------------------------------------------------------------------


@refusal("a will that may not be published", "rules", "CONNACK 0x87", "CONNACK 5", "packets.connack.auth_error",
         "client disconnected", "reason=0x87", "will topic denied")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", will=wire.Will("denied/x", b""))


@refusal("PUBLISH of QoS 1 denied", "rules", "PUBACK 0x87", "PUBACK", "authorization.deny packets.publish.auth_error",
         "authorization denied", "publish denied/x")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("denied/x", b"", version=version, qos=1, packet_id=1))


@refusal("PUBLISH of QoS 2 denied", "rules", "PUBREC 0x87", "PUBREC", "authorization.deny packets.publish.auth_error",
         "authorization denied", "publish denied/x")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("denied/x", b"", version=version, qos=2, packet_id=1))


@refusal("SUBSCRIBE denied", "rules", "SUBACK 0x87", "SUBACK 0x80", "authorization.deny packets.subscribe.auth_error",
         "authorization denied", "subscribe denied/x")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("denied/x", 0)], version=version))


@refusal("PUBLISH denied, `acl.deny_action = disconnect`", "rules", "DISCONNECT 0x87", "close",
         "authorization.deny packets.publish.auth_error",
         "client disconnected", "reason=0x87", "not authorized to publish to denied/x")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("denied/x", b"", version=version, qos=1, packet_id=1), place.strict)


@refusal("SUBSCRIBE denied, `acl.deny_action = disconnect`", "rules", "DISCONNECT 0x87", "close",
         "authorization.deny packets.subscribe.auth_error",
         "client disconnected", "reason=0x87", "not authorized to subscribe to denied/x")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("denied/x", 0)], version=version), place.strict)


refusal("a subscription that is not allowed any more", "rules", "nothing", "nothing", "", "authorization denied", "subscription ",
        tested_by="tests/access/test_topics.py::test_a_reload_ends_subscriptions_that_are_not_allowed_any_more")  # fmt: skip


def told_of(client: Client, data: bytes) -> str:
    client.send_raw(data)
    return told(client)


# --- packets of clients that are in -----------------------------------------------------------------------------------------------


def answer(place: Place, version: int, data: bytes, broker: Edge | None = None, **options: Any) -> str:
    """What a client that is in gets for these bytes."""
    with Client((broker or place.own).address, version, place.name, auto_ack=False, **options) as client:
        client.send_raw(data)
        return told(client)


@refusal("a packet longer than `mqtt.max_packet_size`", "packets", "DISCONNECT 0x95", "close", "client.closed.too_large",
         "client disconnected", "reason=0x95")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, b"\x30\xff\xff\xff\x7f")


@refusal("a CONNACK longer than the client's Maximum Packet Size", "CONNECT", "CONNACK 0x95", "", "client.closed.refused",
         "client disconnected", "reason=0x95", "CONNACK exceeds the client's Maximum Packet Size")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", properties={"maximum_packet_size": 12})


@refusal("SUBSCRIBE or UNSUBSCRIBE whose answer is longer than the client's Maximum Packet Size", "packets", "DISCONNECT 0x95", "",
         "client.closed.too_large", "client disconnected", "reason=0x95", "exceeds the client's Maximum Packet Size")  # fmt: skip
def _(place: Place, version: int) -> str:
    packet = wire.subscribe(1, [("t", 0)] * 60, version=version)
    return answer(place, version, packet, properties={"maximum_packet_size": 60})


@refusal("an acknowledgement of the wrong type, such as PUBACK for QoS 2", "packets", "DISCONNECT 0x82", "close",
         "client.closed.protocol_error packets.puback.missed",
         "client disconnected", "reason=0x82", "expected PUBREC")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.inside(version, auto_ack=False) as client, Client(place.own.address, 5, f"{place.name}o") as other:
        client.subscribe(place.name, 2)
        other.publish(place.name, b"", 2)
        client.send_raw(wire.puback(client.expect(wire.Publish).packet_id))
        return told(client)


@refusal("a malformed packet", "packets", "DISCONNECT 0x81", "close", "client.closed.malformed",
         "client disconnected", "reason=0x81")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.packet(wire.SUBSCRIBE, wire.subscribe(1, [("a", 0)], version=version)[2:], flags=0))


@refusal("an invalid topic name", "packets", "DISCONNECT 0x90", "close", "client.closed.protocol_error",
         "client disconnected", "reason=0x90")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("a/#", b"", version=version))


@refusal("a packet against the protocol, such as a second CONNECT", "packets", "DISCONNECT 0x82", "close",
         "client.closed.protocol_error", "client disconnected", "reason=0x82", "second CONNECT on one connection")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.connect(place.name, version))


@refusal("silence for `keepalive_multiplier` times the keep alive", "packets", "DISCONNECT 0x8D", "close",
         "client.closed.keepalive", "client disconnected", "reason=0x8d")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, b"", keepalive=1)


@refusal("QoS above `mqtt.max_qos_allowed`", "packets", "DISCONNECT 0x9B", "close", "client.closed.protocol_error",
         "client disconnected", "reason=0x9b")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("t", b"", version=version, qos=2, packet_id=1), place.strict)


@refusal("RETAIN without `mqtt.retain_available`", "packets", "DISCONNECT 0x9A", "close", "client.closed.protocol_error",
         "client disconnected", "reason=0x9a")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("t", b"", version=version, retain=True), place.strict)


@refusal("aliases whose topics take more than 8 MB", "packets", "DISCONNECT 0x97", "", "client.closed.protocol_error",
         "client disconnected", "reason=0x97", "topic aliases of")  # fmt: skip
def _(place: Place, version: int) -> str:
    with Client(place.strict.address, version, place.name) as client:
        for alias in range(1, 141):
            client.send_raw(wire.publish("x" * 60_000, b"", properties={"topic_alias": alias}))
        return told(client)


@refusal("more than 256 user properties, PUBLISH apart", "packets", "DISCONNECT 0x97", "", "client.closed.protocol_error",
         "client disconnected", "reason=0x97", "more than 256 user properties")  # fmt: skip
def _(place: Place, version: int) -> str:
    properties = {"user_property": [("", "")] * 257}
    return answer(place, version, wire.subscribe(1, [("t", 0)], version=version, properties=properties))


@refusal("a topic alias that is not allowed", "packets", "DISCONNECT 0x94", "", "client.closed.protocol_error",
         "client disconnected", "reason=0x94")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("t", b"", version=version, properties={"topic_alias": 3}))


@refusal("more than `mqtt.max_awaiting_rel` messages of QoS 2 without PUBREL", "packets", "DISCONNECT 0x93", "close",
         "messages.dropped.receive_maximum", "client disconnected", "reason=0x93")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.inside(version, auto_ack=False) as client:
        for packet_id in (1, 2, 3):
            client.send_raw(wire.publish("t", b"", version=version, qos=2, packet_id=packet_id))
        client.expect(wire.Pubrec)
        client.expect(wire.Pubrec)
        return told(client)


@refusal("a packet id that is in use", "packets", "PUBREC 0x91", "", "packets.pubrec.sent")
def _(place: Place, version: int) -> str:
    with place.inside(version, auto_ack=False) as client:
        for _ in range(2):
            client.send_raw(wire.publish("t", b"", version=version, qos=2, packet_id=1))
        client.expect(wire.Pubrec)
        return told(client)


@refusal("a payload that is not the UTF-8 that it is said to be", "packets", "PUBACK 0x99", "", "packets.publish.error")
def _(place: Place, version: int) -> str:
    return answer(
        place, version,
        wire.publish("t", b"\xff", version=version, qos=1, packet_id=1, properties={"payload_format_indicator": 1}),
    )  # fmt: skip


@refusal("PUBLISH of QoS 1 above a limit that clients share", "packets", "PUBACK 0x97", "",
         "packets.publish.quota_exceeded packets.publish.error")  # fmt: skip
def _(place: Place, version: int) -> str:
    with Client(place.own.address, version, place.name, dial=place.dial("few")) as client:
        while (seen := told_of(client, wire.publish("t", b"", version=version, qos=1, packet_id=1))) != "PUBACK 0x97":
            assert seen in ("PUBACK 0x00", "PUBACK 0x10")
        return seen


@refusal("a will below `$SYS/` or `$event/`", "CONNECT", "CONNACK 0x87", "CONNACK 5", "client.closed.refused",
         "client disconnected", "reason=0x87", "are reserved")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", will=wire.Will("$delayed/0/$SYS/x", b"", 1, True))


@refusal("a will with an invalid time or topic of `$delayed/`", "CONNECT", "CONNACK 0x90", "close", "packets.connect.received",
         "client disconnected", "reason=0x90")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", will=wire.Will("$delayed/soon/t", b""))


@refusal("a will whose payload is not the UTF-8 that it is said to be", "CONNECT", "CONNACK 0x99", "", "client.closed.refused",
         "client disconnected", "reason=0x99")  # fmt: skip
def _(place: Place, version: int) -> str:
    return place.login(version, "default", will=wire.Will("t", b"\xff", properties={"payload_format_indicator": 1}))


refusal("a will that may not be published any more, when it is due", "rules", "nothing", "nothing",
        "authorization.deny messages.dropped", "authorization denied", "will ",
        tested_by="tests/access/test_wills.py::test_a_will_that_is_not_allowed_any_more_is_dropped")  # fmt: skip


@refusal("PUBLISH below `$SYS/` or `$event/`", "packets", "PUBACK 0x87", "PUBACK", "packets.publish.error")
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("$SYS/x", b"", version=version, qos=1, packet_id=1))


@refusal("an invalid time or topic of `$delayed/`", "packets", "PUBACK 0x90", "PUBACK", "packets.publish.error")
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.publish("$delayed/soon/t", b"", version=version, qos=1, packet_id=1))


@refusal("one more than `delayed.max_delayed_messages`", "packets", "PUBACK 0x97", "PUBACK", "packets.publish.error")
def _(place: Place, version: int) -> str:
    with Client(place.strict.address, version, place.name) as client:
        packet = wire.publish("$delayed/1000/t", b"", version=version, qos=1, packet_id=1)
        told_of(client, packet)
        return told_of(client, packet)


@refusal("an invalid topic filter", "packets", "SUBACK 0x8F", "SUBACK 0x80", "packets.subscribe.error")
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("a#", 0)], version=version))


@refusal("a wildcard without `mqtt.wildcard_subscription`", "packets", "SUBACK 0xA2", "SUBACK 0x80", "packets.subscribe.error")
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("a/+", 0)], version=version), place.strict)


@refusal("a shared subscription without `mqtt.shared_subscription`", "packets", "SUBACK 0x9E", "SUBACK 0x80",
         "packets.subscribe.error")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("$share/g/a", 0)], version=version), place.strict)


@refusal("an exclusive subscription without `mqtt.exclusive_subscription`", "packets", "SUBACK 0x8F", "SUBACK 0x80",
         "packets.subscribe.error")  # fmt: skip
def _(place: Place, version: int) -> str:
    return answer(place, version, wire.subscribe(1, [("$exclusive/a", 0)], version=version), place.strict)


@refusal("an exclusive subscription that another session has", "packets", "SUBACK 0x97", "SUBACK 0x80", "packets.subscribe.error")
def _(place: Place, version: int) -> str:
    with Client(place.own.address, version, f"{place.name}o") as other:
        other.subscribe("$exclusive/taken", 0)
        return answer(place, version, wire.subscribe(1, [("$exclusive/taken", 0)], version=version))


@refusal("one more than `mqtt.max_subscriptions`", "packets", "SUBACK 0x97", "SUBACK 0x80", "packets.subscribe.error")
def _(place: Place, version: int) -> str:
    with Client(place.strict.address, version, place.name) as client:
        client.subscribe("one", 0)
        client.send_raw(wire.subscribe(9, [("two", 0)], version=version))
        return told(client)


# --- ended by others --------------------------------------------------------------------------------------------------------------


@refusal("another connection with its client id", "session", "DISCONNECT 0x8E", "close", "session.takenover",
         "client disconnected", "reason=0x8e")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.inside(version) as first, place.inside(version):
        return told(first)


refusal("`shardbroker ctl node evacuate`", "management", "DISCONNECT 0x9C", "close", "client.disconnected",
        "client disconnected", "reason=0x9c", "this node is evacuated",
        tested_by="tests/behaviour/test_evacuation.py::test_clients_are_turned_away_and_disconnected_at_a_rate")  # fmt: skip


@refusal("`shardbroker ctl clients kick`", "management", "DISCONNECT 0x98", "close", "client.closed.kicked",
         "client disconnected", "reason=0x98")  # fmt: skip
def _(place: Place, version: int) -> str:
    with place.inside(version) as client:
        command = [place.own.program[0], "ctl", "--data-dir", str(place.own.data_dir), "clients", "kick", place.name]
        subprocess.run(command, check=True, capture_output=True, timeout=20)
        return told(client)


refusal("the broker stops", "management", "DISCONNECT 0x8B", "close", "client.disconnected", "client disconnected", "reason=0x8b",
        tested_by="tests/edge/test_tls.py::test_a_stop_of_the_broker_reaches_clients_over_tls")  # fmt: skip
