"""Limits of a listener: each has its own, over all acceptors and workers."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.harness import Broker, Client, Closed, client_id_on, free_port

Connect = Callable[..., Client]

pytestmark = pytest.mark.own_broker
LIMIT = 6


def try_to_connect(address: tuple[str, int], client_id: str, stack: ExitStack) -> bool:
    """Whether a client is let in; it stays until the stack ends."""
    client = stack.enter_context(Client(address, 5, client_id, connect=False))
    try:
        client.connect()
    except Closed:
        return False
    return True


def test_connections_of_one_listener(connect: Connect) -> None:
    other = ("127.0.0.1", free_port())
    settings = {"listeners.default.max_connections": LIMIT, "process.acceptors": 2}
    with Broker(2, settings, arguments=(f"--listen=tcp://127.0.0.1:{other[1]}",)) as own, ExitStack() as stack:
        with ExitStack() as first:
            # Held by an acceptor, which waits for a CONNECT, and by both workers.
            idle = first.enter_context(socket.create_connection(own.address))
            inside = [try_to_connect(own.address, client_id_on(n % 2, 2, f"in{n}x"), first) for n in range(3 * LIMIT)]
            assert sum(inside) <= LIMIT - 1
            assert sum(inside) >= LIMIT - 2  # two acceptors may both refuse the last one
            for n in range(LIMIT):
                assert try_to_connect(other, f"other{n}", stack)
            del idle
        # All are gone: there is room for as many again, and no more.
        deadline = time.monotonic() + 5
        let_in = 0
        while let_in < LIMIT and time.monotonic() < deadline:
            let_in += try_to_connect(own.address, f"again{let_in}", stack)
        assert let_in == LIMIT
        assert not try_to_connect(own.address, "one too many", stack)


def test_a_worker_that_died_has_no_connections() -> None:
    with Broker(2, {"listeners.default.max_connections": LIMIT}) as own, ExitStack() as stack:
        with ExitStack() as first:
            for n in range(LIMIT):
                assert try_to_connect(own.address, client_id_on(0, 2, f"first{n}x"), first)
            assert not try_to_connect(own.address, client_id_on(1, 2), first)
            (victim,) = own.child_pids("worker-0")
            own.kill_process(victim)
        deadline = time.monotonic() + 10
        while not try_to_connect(own.address, client_id_on(0, 2, "later"), stack):
            assert time.monotonic() < deadline, "the dead worker's connections still count"
            time.sleep(0.05)
        let_in = 1
        while let_in < LIMIT:
            assert try_to_connect(own.address, client_id_on(let_in % 2, 2, f"second{let_in}x"), stack)
            let_in += 1
        assert not try_to_connect(own.address, client_id_on(1, 2, "over"), stack)


def test_connections_a_second(connect: Connect) -> None:
    with Broker(1, {"listeners.default.max_conn_rate": "10/s", "process.acceptors": 1}) as own, ExitStack() as stack:
        started = time.monotonic()
        for n in range(20):
            assert try_to_connect(own.address, f"rate{n}", stack)
        assert 0.8 < time.monotonic() - started < 4  # ten at once, the others at ten a second, and nobody is sent away
