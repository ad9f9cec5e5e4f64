"""Strangers that hold or flood what comes before a session. The broker serves its other clients throughout."""

import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack

import psutil
import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.websocket import request
from tests.harness import Client, until, wire

pytestmark = pytest.mark.own_broker
PATIENCE_S = 30.0
"""Others get their turn, however slow the machine is that also has to attack."""
HANDSHAKES_MAX = 1024
"""As acceptor/acceptor.pyx has it."""
HALF_OPEN = 10_000
"""Fits the descriptors of the test and of two acceptors, 20,000 each."""


@pytest.mark.parametrize("listener", ["default", "ws"])
def test_trickling_ends_at_the_idle_timeout(listener: str) -> None:
    """CONNECT, and an upgrade request, a byte at a time: it counts from accept, whatever comes in between."""
    data = request() if listener == "ws" else wire.connect("slow", 5, username="u" * 200)
    with Edge({"ws": {"type": "ws"}}, settings={"mqtt.idle_timeout": "1s"}) as own, Client(own.address, 5, "stays") as stays:
        address = own.at("ws") if listener == "ws" else own.address
        with socket.create_connection(address, 5) as slow:
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            started = time.monotonic()
            with contextlib.suppress(ConnectionError):
                for byte in data:
                    slow.sendall(bytes([byte]))
                    time.sleep(0.03)
                    if time.monotonic() - started > 5:
                        break
            assert 0.5 < time.monotonic() - started < 4
        stays.ping()


@pytest.mark.parametrize("listener", ["default", "ssl", "ws"])
def test_ten_thousand_half_open_sockets(edge: Edge, name: str, listener: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < HALF_OPEN + 1000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HALF_OPEN + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    address = edge.address if listener == "default" else edge.at(listener)
    with Client(edge.address, 5, f"{name}-before") as before, ExitStack() as stack:
        before.subscribe(name, 1)
        slowest = 0.0
        for number in range(HALF_OPEN):
            stack.enter_context(socket.create_connection(address, 10))
            if number % 1000 == 999:
                started = time.monotonic()
                before.ping()
                with Client(edge.address, 5, f"{name}-{number}") as now:
                    now.publish(name, b"%d" % number, 1)
                assert before.recv().payload == b"%d" % number  # type: ignore[union-attr]
                slowest = max(slowest, time.monotonic() - started)
        assert slowest < 5.0
    with Client(edge.address, 5, f"{name}-after") as after:
        after.ping()


def test_a_flood_of_handshakes_leaves_others_their_turn(edge: Edge, authority: Authority, name: str) -> None:
    """Hundreds of handshakes wait at once; a client over TLS that is in gets its answers meanwhile."""
    context = authority.client()

    def dial() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection(edge.at("ssl"), PATIENCE_S), server_hostname="localhost")

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    with Client(edge.address, 5, name, dial=dial, timeout=PATIENCE_S) as inside, ExitStack() as stack:
        for _ in range(2000):  # more than HANDSHAKES_MAX of each acceptor lets stand
            one = stack.enter_context(socket.create_connection(edge.at("ssl"), PATIENCE_S))
            one.sendall(hello)
        for _ in range(10):
            inside.ping()
        with Client(edge.address, 5, f"{name}-now", dial=dial, timeout=PATIENCE_S) as now:
            now.ping()


def test_lengths_that_promise_much_cost_nothing(edge: Edge, alive: Callable[[], None]) -> None:
    with socket.create_connection(edge.address, 5) as client:
        client.sendall(b"\x10\xff\xff\xff\x7f" + b"x" * 100)
        assert client.recv(10) == b""
    alive()


def test_acceptors_keep_nothing_of_those_who_are_gone(edge: Edge, name: str) -> None:
    def descriptors() -> int:
        return sum(psutil.Process(pid).num_fds() for pid in edge.child_pids("acceptor"))

    until(lambda: not descriptors() - _settled(descriptors))
    before = descriptors()
    for listener in ("ssl", "ws", "proxied"):
        with ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(socket.create_connection(edge.at(listener), 5)).sendall(b"G")
    until(lambda: descriptors() <= before)


def _settled(look: Callable[[], int]) -> int:
    first = look()
    time.sleep(0.3)
    return min(first, look())


def test_handshakes_at_a_time_are_bounded(authority: Authority, name: str) -> None:
    """1,024 per acceptor: the oldest is closed for a further one."""
    options = {"type": "ssl", "tls.certfile": str(authority.directory / "broker.pem")}
    with Edge({"ssl": options}, settings={"process.acceptors": 1}) as own, ExitStack() as stack:
        begun = []
        for _ in range(HANDSHAKES_MAX + 10):
            begun.append(stack.enter_context(socket.create_connection(own.at("ssl"), 5)))
            begun[-1].sendall(b"\x16\x03\x01\x02\x00")  # the header of a ClientHello
        for closed in begun[:10]:
            closed.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionResetError):
                assert closed.recv(1) == b""
        begun[10].setblocking(False)
        with pytest.raises(BlockingIOError):
            begun[10].recv(1)
        dialled = authority.client().wrap_socket(socket.create_connection(own.at("ssl"), 5), server_hostname="localhost")
        with Client(own.address, 5, name, dial=lambda: dialled) as client:
            client.ping()
