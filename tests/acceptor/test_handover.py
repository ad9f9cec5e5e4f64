"""A socket arrives with all that was read from it, and no descriptor is left over."""

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from acceptor.handover import encode_header, receive_one, send_one

INLINE_MAX = 32768


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def channel() -> Iterator[tuple[int, int]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield near.fileno(), far.fileno()


@pytest.mark.parametrize("size", [0, 1, INLINE_MAX, INLINE_MAX + 1, 3 << 20])
def test_round_trip(channel: tuple[int, int], size: int) -> None:
    near, far = channel
    data = os.urandom(size)
    client, ours = socket.socketpair()
    before = descriptors()
    with client, ours:
        header = encode_header("[::1]:5", "tls", 1 << 40, b"auto-1", {"subject": "CN=a"})
        assert send_one(near, ours.fileno(), data, header)
        got = receive_one(far)
        with socket.socket(fileno=got.fd) as received:
            assert (got.data, got.peer, got.listener) == (data, "[::1]:5", "tls")
            assert (got.accepted_ms, got.assigned_id, got.extra) == (1 << 40, b"auto-1", {"subject": "CN=a"})
            received.send(b"hello")
            assert client.recv(10) == b"hello"
            assert not os.get_inheritable(got.fd)
        assert descriptors() == before
    assert receive_one(far) is None


def test_long_client_id_fits_beside_the_inline_bytes(channel: tuple[int, int]) -> None:
    near, far = channel
    with socket.socket() as client:
        assert send_one(near, client.fileno(), b"x" * INLINE_MAX, encode_header("", "l", 0, b"i" * 65535))
    got = receive_one(far)
    os.close(got.fd)
    assert len(got.data) == INLINE_MAX and len(got.assigned_id) == 65535


@pytest.mark.parametrize("data", [0, 100, INLINE_MAX, 1 << 20])
@pytest.mark.parametrize("extra", [100_000, 131_072, 300_000])
def test_a_header_larger_than_a_message_arrives(channel: tuple[int, int], extra: int, data: int) -> None:
    """A long chain of certificates, for one. Before, the socket was closed and its listener counted it for ever."""
    near, far = channel
    before, sent = descriptors(), os.urandom(data)
    client, ours = socket.socketpair()
    with client, ours:
        header = encode_header("[::1]:5", "tls", 1 << 40, b"i" * 65535, {"chain": "c" * extra})
        assert send_one(near, ours.fileno(), sent, header)
        got = receive_one(far)
        with socket.socket(fileno=got.fd) as received:
            received.send(b"hello")
            assert client.recv(10) == b"hello"
        assert (got.data, got.listener, got.assigned_id, got.extra) == (sent, "tls", b"i" * 65535, {"chain": "c" * extra})
    assert descriptors() == before


def test_a_message_that_is_cut_short_names_its_listener(channel: tuple[int, int]) -> None:
    """So that the worker can count the socket as closed."""
    near, far = channel
    client, ours = socket.socketpair()
    with client, ours:
        header = encode_header("[::1]:5", "tls", 1, b"", {"chain": "c" * 150_000})
        for broken in (header, header[:-1000], encode_header("", "tls", 1, b"", {"a": 1})[:-1]):
            socket.send_fds(socket.socket(fileno=os.dup(near)), [broken], [ours.fileno()])
            got = receive_one(far)
            assert (got.fd, got.listener) == (-1, "tls")
        ours.close()
        assert client.recv(1) == b""


@pytest.mark.parametrize("size", [10, INLINE_MAX + 1])
def test_full_channel_says_so_and_loses_nothing(channel: tuple[int, int], size: int) -> None:
    near, far = channel
    before = descriptors()
    with socket.socket() as client:
        sent = 0
        while send_one(near, client.fileno(), b"x" * size, encode_header("", "l", sent, b"")):
            sent += 1
        assert sent > 1
        for number in range(sent):
            got = receive_one(far)
            os.close(got.fd)
            assert got.accepted_ms == number
        assert send_one(near, client.fileno(), b"", encode_header("", "l", 0, b""))
        os.close(receive_one(far).fd)
    assert descriptors() == before


def test_other_end_gone_is_not_an_error() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, socket.socket() as client:
        far.close()
        assert not send_one(near.fileno(), client.fileno(), b"", encode_header("", "l", 0, b""))


def test_bad_descriptor_is(channel: tuple[int, int]) -> None:
    with pytest.raises(OSError):
        send_one(channel[0], 1 << 20, b"", encode_header("", "l", 0, b""))


def test_message_without_a_socket_is_left_out(channel: tuple[int, int]) -> None:
    os.write(channel[0], b"\xff\xff\xff\xff")
    assert receive_one(channel[1]) is None


def test_a_socket_that_finds_no_descriptor_is_not_lost_without_a_word(channel: tuple[int, int]) -> None:
    client, ours = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with client, ours:
        assert send_one(channel[0], ours.fileno(), b"data", encode_header("p", "tls", 1, b""))
        ours.close()
        spare = os.dup(client.fileno())
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
        try:
            got = receive_one(channel[1])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (got.fd, got.listener) == (-1, "tls")
        assert client.recv(1) == b""
