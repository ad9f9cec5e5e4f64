"""Bad input of any kind costs the connection that it came on, and nobody else."""

import random
import socket
import time
from collections.abc import Callable

import pytest

from tests.harness import Broker, Client, Publish, wire

Connect = Callable[..., Client]


def ended(connection: socket.socket, seconds: float) -> bool:
    """Whether the broker closes this connection in time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_trickled_connect_ends_at_the_idle_timeout(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(mqtt__idle_timeout="2s")
    whole = wire.connect("trickle", version=5, properties={"user_property": [("k", "v" * 60)]})
    started = time.monotonic()
    # One stops within the acceptor's part (before the client id), one within the worker's (behind it).
    late = wire.connect("trickle2", version=4, will=None, username="u" * 60)
    first, second = socket.create_connection(own.address), socket.create_connection(own.address)
    second.sendall(late[:30])
    with first, second:
        for i in range(len(whole)):
            if time.monotonic() - started > 1.8:
                break
            first.sendall(whole[i : i + 1])
            second.sendall(late[30 + i : 31 + i])
            time.sleep(0.1)
        assert ended(first, 1.5)
        assert ended(second, 1.5)
        assert 1.8 < time.monotonic() - started < 4
    quick = connect(on=own)
    quick.ping()


def test_an_announced_length_over_the_limit_is_refused_at_the_header(connect: Connect, broker: Broker) -> None:
    with socket.create_connection(broker.address) as connection:
        connection.sendall(b"\x10\xff\xff\xff\x7f\0\x04MQTT")
        assert ended(connection, 2)
    client = connect()
    client.send_raw(b"\x30\xff\xff\xff\x7f")
    assert client.expect_close().code == 0x95


def test_an_announced_length_reserves_nothing(connect: Connect, broker: Broker) -> None:
    import psutil

    def memory() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in broker.child_pids("sb-worker"))

    if broker.external:
        pytest.skip("needs the pids of the broker")
    clients = [connect() for _ in range(50)]
    before = memory()
    for client in clients:
        client.send_raw(b"\x30" + wire.varint(1 << 20)[:3] + b"\0\x01t\0")
    for client in clients[:3]:
        client.send_raw(b"x")
    connect().ping()
    assert memory() - before < 10 << 20


def test_port_scans_and_half_closed_sockets(connect: Connect, broker: Broker) -> None:
    witness = connect()
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0", b"\0" * 10):
        with socket.create_connection(broker.address) as connection:
            if data:
                connection.sendall(data)
                assert ended(connection, 2)
    half = connect()
    half.socket.shutdown(socket.SHUT_WR)
    half.expect_close(2)
    witness.ping()


def test_noise_costs_its_connection_only(connect: Connect, topic: str, broker: Broker) -> None:
    witness, publisher = connect(), connect()
    witness.subscribe(topic, 1)
    rng = random.Random(20)
    for i in range(60):
        noisy = connect(rng.choice((3, 4, 5)))
        noisy.send_raw(rng.randbytes(rng.randint(1, 300)))
        noisy.cut()
        if i % 10 == 0:
            publisher.publish(topic, b"%d" % i, 1)
            witness.expect(Publish, payload=b"%d" % i)
