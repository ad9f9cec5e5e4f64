"""The acceptor against clients that trickle, stay silent, talk nonsense, or come while a worker is down."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import psutil
import pytest

from shm.counters import ProcessState
from tests.acceptor.conftest import FakeBroker, wait_until
from tests.acceptor.connects import connect, id_for, user_property, worker_of

Fake = Callable[..., FakeBroker]
UNAVAILABLE = {3: b"\x20\x02\x00\x03", 4: b"\x20\x02\x00\x03", 5: b"\x20\x03\x00\x88\x00"}
HOLD_LIMIT_S = 5.0


def rest_of(client: socket.socket) -> bytes:
    """All that the other side sends until it closes; a reset counts as closing."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_trickled_connect(fake: Fake, version: int) -> None:
    broker = fake()
    client_id = id_for(1, 2)
    packet = connect(client_id, version, user_property(5))
    started_ms = time.monotonic() * 1000
    with broker.connect() as client:
        for i in range(len(packet)):
            client.send(packet[i : i + 1])
            time.sleep(0.002)
        got = broker.receive(1)
        with socket.socket(fileno=got.fd) as received:
            assert got.data == packet[: len(got.data)] and client_id in got.data
            assert got.assigned_id == b"" and got.listener == "default"
            assert got.peer == "{}:{}".format(*client.getsockname())
            assert started_ms - 1100 <= got.accepted_ms <= started_ms + 100
            assert received.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            received.send(b"answer")
            assert client.recv(10) == b"answer"


def test_socket_that_was_handed_over_wakes_the_acceptor_no_more(fake: Fake) -> None:
    broker = fake()
    with broker.connect() as client:
        time.sleep(0.1)
        client.send(connect(id_for(0, 2)))
        got = broker.receive(0)
        with socket.socket(fileno=got.fd) as received:
            client.send(b"\xc0\x00")
            time.sleep(0.2)
            assert received.recv(100, socket.MSG_DONTWAIT) == b"\xc0\x00"
            received.close()
            assert rest_of(client) == b""
    assert broker.count("client.closed.reset") == 0


def test_idle_timeout_runs_from_accept(fake: Fake) -> None:
    broker = fake(idle_timeout=0.4)
    packet = connect(b"slow", rest=b"")
    with broker.connect() as silent, broker.connect() as trickling:
        started = time.monotonic()
        trickling.setblocking(False)
        for byte in packet[:8]:
            trickling.send(bytes([byte]))
            time.sleep(0.02)
        trickling.settimeout(5)
        assert rest_of(silent) == rest_of(trickling) == b""
        assert 0.3 < time.monotonic() - started < 2
    wait_until(lambda: broker.count("client.closed.idle_timeout") == 2)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\xc0\x00"])
def test_not_connect(fake: Fake, data: bytes) -> None:
    broker = fake()
    with broker.connect() as client:
        client.send(data)
        assert rest_of(client) == b""
    wait_until(lambda: broker.count("client.closed.not_connect") == 1)


def test_too_large_is_refused_at_the_header(fake: Fake) -> None:
    broker = fake(max_packet_size=1024)
    with broker.connect() as client:
        client.send(connect(b"c", 5, user_property(2000))[:4])
        assert rest_of(client) == b""
    wait_until(lambda: broker.count("client.closed.too_large") == 1)


def test_gone_before_its_connect(fake: Fake) -> None:
    broker = fake()
    broker.connect().close()
    wait_until(lambda: broker.count("client.closed.reset") == 1)


def test_empty_client_ids_get_different_ones(fake: Fake) -> None:
    broker = fake(workers=2)
    ids: list[bytes] = []
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(broker.connect()).send(connect(b""))

        def collect() -> bool:
            for worker in (0, 1):
                while (got := broker.try_receive(worker)) is not None:
                    socket.close(got.fd)
                    assert got.data == connect(b"")
                    assert worker_of(got.assigned_id, 2) == worker
                    ids.append(got.assigned_id)
            return len(ids) == 20

        wait_until(collect)
    assert len(set(ids)) == 20
    assert all(len(one) == 27 and one.startswith(b"auto-") for one in ids)


def test_unclear_connects_go_to_workers_in_turn(fake: Fake) -> None:
    broker = fake(workers=2)
    with broker.connect() as one, broker.connect() as other:
        one.send(b"\x10\x02\x00\x09")
        other.send(b"\x10\x02\x00\x09")
        for worker in (0, 1):
            got = broker.receive(worker)
            socket.close(got.fd)
            assert (got.data, got.assigned_id) == (b"\x10\x02\x00\x09", b"")


@pytest.mark.parametrize("size", [40_000, 300_000])
def test_large_connect_goes_through_a_memfd(fake: Fake, size: int) -> None:
    broker = fake()
    client_id = id_for(0, 2)
    properties = b"".join(user_property(min(60_000, size - at)) for at in range(0, size, 60_000))
    packet = connect(client_id, 5, properties)
    with broker.connect() as client:
        client.sendall(packet)
        got = broker.receive(0)
        socket.close(got.fd)
    assert got.data == packet[: len(got.data)] and len(got.data) > size


@pytest.mark.parametrize("version", [4, 5])
def test_held_while_the_worker_is_down_then_handed_over(fake: Fake, version: int) -> None:
    broker = fake(workers=2)
    broker.counters.set_state(1, ProcessState.DOWN)
    packet = connect(id_for(1, 2), version, rest=b"\0" * 100)
    with broker.connect() as client, broker.connect() as other:
        client.send(packet)
        other.send(connect(id_for(0, 2)))
        socket.close(broker.receive(0).fd)  # the other worker's clients do not wait
        time.sleep(0.3)
        assert broker.nothing_for(1)
        broker.counters.set_state(1, ProcessState.READY)
        got = broker.receive(1)
        socket.close(got.fd)
        assert got.data == packet


def test_held_in_order(fake: Fake) -> None:
    broker = fake(workers=1)
    broker.counters.set_state(0, ProcessState.STARTING)
    with ExitStack() as stack:
        for number in range(10):
            stack.enter_context(broker.connect()).send(connect(b"client%d" % number))
            time.sleep(0.01)
        broker.counters.set_state(0, ProcessState.READY)
        for number in range(10):
            got = broker.receive(0)
            socket.close(got.fd)
            assert got.data == connect(b"client%d" % number)


def test_refused_when_the_worker_stays_down(fake: Fake) -> None:
    broker = fake(workers=1)
    broker.counters.set_state(0, ProcessState.DOWN)
    with ExitStack() as stack:
        clients = {}
        for version in UNAVAILABLE:
            clients[version] = stack.enter_context(broker.connect())
            # More than the CONNECT: closing with unread bytes must not cost the client its answer.
            clients[version].send(connect(b"c", version) + b"\xc0\x00" * 50_000)
        started = time.monotonic()
        for version, client in clients.items():
            assert rest_of(client) == UNAVAILABLE[version]
        assert HOLD_LIMIT_S - 0.5 < time.monotonic() - started < HOLD_LIMIT_S + 2
    wait_until(lambda: broker.count("client.closed.refused") == 3)
    assert broker.count("packets.connack.error") == 3
    assert broker.nothing_for(0)


def test_nothing_is_lost_when_the_channel_is_full(fake: Fake) -> None:
    broker = fake(workers=1)
    packets = [connect(b"full%d" % number) for number in range(400)]
    with ExitStack() as stack:
        for packet in packets:
            stack.enter_context(broker.connect()).send(packet)
        time.sleep(0.2)
        got = [broker.receive(0) for _ in packets]
        for handover in got:
            socket.close(handover.fd)
    assert sorted(handover.data for handover in got) == sorted(packets)


def test_the_oldest_goes_when_there_are_too_many(fake: Fake) -> None:
    broker = fake(workers=1, descriptors=100)
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(60)]
        wait_until(lambda: broker.count("client.closed.refused") == 10)
        assert all(rest_of(client) == b"" for client in clients[:10])
        clients[10].send(connect(b"still here"))
        socket.close(broker.receive(0).fd)


def test_bytes_that_wait_for_the_rest_of_a_connect_are_bounded(fake: Fake) -> None:
    """32 MiB together: connections beyond are closed, and later ones are served."""
    broker = fake(workers=1)
    process = psutil.Process(broker.process.pid)
    packet = connect(b"long", 5, user_property(60_000) * 8)
    before = process.memory_info().rss
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(80)]
        for client in clients:
            with suppress(ConnectionError):
                client.sendall(packet[:-8])
        wait_until(lambda: broker.count("client.closed.too_large") >= len(clients) - (32 << 20) // (len(packet) - 8))
        assert process.memory_info().rss - before < 48 << 20
    with broker.connect() as client:
        client.sendall(packet)
        socket.close(broker.receive(0).fd)


def test_out_of_descriptors_accepting_pauses(fake: Fake) -> None:
    broker = fake(workers=1, descriptors=-4)
    process = psutil.Process(broker.process.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(8)]
        time.sleep(0.2)
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        assert sum(process.cpu_times()[:2]) - before < 0.1, "it spins"
        for client in clients[:6]:
            client.close()
        clients[7].send(connect(b"the last"))
        socket.close(broker.receive(0).fd)


def test_two_hundred_at_once(fake: Fake) -> None:
    broker = fake(workers=2)
    ids = [f"many{n}".encode() for n in range(200)]
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in ids]
        for client, client_id in zip(clients, ids, strict=True):
            client.send(connect(client_id))
        for worker in (0, 1):
            expected = {connect(i) for i in ids if worker_of(i, 2) == worker}
            while expected:
                got = broker.receive(worker)
                socket.close(got.fd)
                expected.remove(got.data)


def test_connections_per_second(fake: Fake) -> None:
    broker = fake(workers=1, listener={"max_conn_rate": 10.0})
    with ExitStack() as stack:
        started = time.monotonic()
        for number in range(20):
            stack.enter_context(broker.connect()).send(connect(b"c%d" % number))
        for _ in range(20):
            socket.close(broker.receive(0).fd)
        assert 0.8 < time.monotonic() - started < 3  # ten at once, the others at ten a second


def test_max_connections(fake: Fake) -> None:
    broker = fake(workers=1, listener={"max_connections": 3})
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(4)]
        assert rest_of(clients[3]) == b""
        clients[0].send(connect(b"c"))
        socket.close(broker.receive(0).fd)  # with the worker now, and still one of the three
        assert rest_of(stack.enter_context(broker.connect())) == b""
        assert broker.counters.sockets(0) == 3
        clients[1].close()
        wait_until(lambda: broker.counters.sockets(0) == 2)
        stack.enter_context(broker.connect()).send(connect(b"d"))
        socket.close(broker.receive(0).fd)
    assert broker.count("client.closed.max_connections") == 2


def test_sigterm_hands_over_what_is_complete(fake: Fake) -> None:
    broker = fake(workers=1)
    with broker.connect() as complete, broker.connect() as waiting:
        broker.counters.set_state(0, ProcessState.DOWN)
        complete.send(connect(b"complete"))
        waiting.send(connect(b"waiting")[:5])
        time.sleep(0.1)
        broker.counters.set_state(0, ProcessState.READY)
        assert broker.terminate() == 0
        got = broker.receive(0)
        socket.close(got.fd)
        assert got.data == connect(b"complete")
        assert rest_of(waiting) == b""
    assert broker.state() == ProcessState.DOWN


def test_sigterm_refuses_what_is_held(fake: Fake) -> None:
    broker = fake(workers=1)
    broker.counters.set_state(0, ProcessState.DOWN)
    with broker.connect() as client:
        client.send(connect(b"held", 5))
        time.sleep(0.1)
        assert broker.terminate() == 0
        assert rest_of(client) == UNAVAILABLE[5]
