"""Orders of the supervisor arrive as they were, with the socket of a listener, and leave no descriptor behind."""

import os
import socket
from collections.abc import Iterator

import pytest

from acceptor.control import Order, discard_orders, receive_order, send_answer, send_order, take_answer
from shardbroker.config.listeners import Listener
from shm.topology import ListenerSockets

PLAIN = Listener()
SECURE = Listener.model_validate({
    "bind": "[::1]:8883", "type": "ssl", "max_conn_rate": "1000/s", "access_rules": ["allow 10.0.0.0/8", "deny all"],
    "proxy_protocol_timeout": "1500ms", "mountpoint": "t/${username}/",
    "tls": {"certfile": "/c.pem", "password": "secret", "versions": ["tlsv1.3"], "sni": {"a.example": {"certfile": "/a.pem"}}},
})  # fmt: skip


def listener(settings: Listener = PLAIN) -> ListenerSockets:
    return ListenerSockets("x", 3, settings, (7, 8), "ssl://[::1]:8883", 8883, activated=True)


@pytest.fixture
def channel() -> Iterator[tuple[int, int]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield near.fileno(), far.fileno()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("settings", [PLAIN, SECURE])
def test_an_order_arrives_as_it_was(channel: tuple[int, int], settings: Listener) -> None:
    """Rates without a limit, secrets and lists of the settings too."""
    order = Order("put", listener(settings))
    with socket.socket() as listening:
        send_order(channel[0], order, listening.fileno())
        received = receive_order(channel[1], Listener.model_validate)
        assert received is not None and received[0] == order
        assert os.fstat(received[1]).st_ino == os.fstat(listening.fileno()).st_ino
        os.close(received[1])
    assert order.listener.settings.tls.password.get_secret_value() == received[0].listener.settings.tls.password.get_secret_value()
    assert receive_order(channel[1], Listener.model_validate) is None


def test_an_order_without_a_socket_and_its_answer(channel: tuple[int, int]) -> None:
    send_order(channel[0], Order("reload", listener()), None)
    received = receive_order(channel[1], Listener.model_validate)
    assert received is not None and received[0].verb == "reload" and received[1] == -1
    for problem in ("", "no such file"):
        send_answer(channel[1], problem)
        assert take_answer(channel[0], 1.0) == problem
    assert take_answer(channel[0], 0) is None


def test_orders_that_were_not_read_leave_no_descriptor(channel: tuple[int, int]) -> None:
    before = descriptors()
    with socket.socket() as listening:
        for _ in range(3):
            send_order(channel[0], Order("put", listener()), listening.fileno())
    discard_orders(channel[1])
    assert descriptors() == before
    assert receive_order(channel[1], Listener.model_validate) is None
