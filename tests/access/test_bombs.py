"""Answers of a back end that would be enormous if they were believed: nobody unpacks or gathers them."""

import asyncio
import gzip
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from shardbroker.access.contract import BackendError, Client
from shardbroker.config import load
from shardbroker.connectors.errors import ConnectorError
from shardbroker.integrations.auth.http import HttpService
from shardbroker.integrations.auth.jwt import Tokens
from tests.access.guarded import Guarded

pytestmark = pytest.mark.own_broker
UNAVAILABLE = 0x88
BOMB_BYTES = 200_000_000
GROWTH_MAX = 50_000_000

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


def compressed(body: bytes, encoding: bytes = b"gzip") -> bytes:
    """An answer that is compressed, though that was not asked for."""
    body = gzip.compress(body, 1)
    return HEAD + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body)) + body


def bomb(start: bytes = b'{"result": "allow", "more": "') -> bytes:
    """A small body that unpacks to BOMB_BYTES."""
    return compressed(start + b" " * BOMB_BYTES + b'"}')


@pytest.fixture
def server() -> Iterator[tuple[socket.socket, list[bytes]]]:
    """Answers every request with the same bytes, whatever HTTP says."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        answers: list[bytes] = []

        def serve() -> None:
            while True:
                try:
                    peer = listening.accept()[0]
                except OSError:
                    return
                with peer:
                    try:
                        peer.recv(65536)
                        peer.sendall(answers[0])
                    except OSError:
                        pass  # it has heard enough

        threading.Thread(target=serve, daemon=True).start()
        yield listening, answers


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/"


@pytest.mark.parametrize(
    "answer",
    [bomb(), HEAD + b"Content-Length: 1000000000000\r\n\r\n" + b"x" * 1_000_000, HEAD + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n"],
    ids=["compressed", "announced", "header"],
)
def test_an_enormous_answer_is_a_failure(server: tuple[socket.socket, list[bytes]], answer: bytes) -> None:
    listening, answers = server
    answers.append(answer)
    settings = {"auth.chain": ["http"], "auth.http.url": f"http://127.0.0.1:{listening.getsockname()[1]}/"}
    with Guarded(settings) as broker:
        (pid,) = broker.child_pids("integrations")
        before = psutil.Process(pid).memory_info().rss
        for number in range(3):
            broker.refused(f"b{number}", UNAVAILABLE, username="ada", password="x")
        assert psutil.Process(pid).memory_info().rss - before < GROWTH_MAX
        broker.logged("ERROR integrations: backend failed backend=http ")


def test_a_jwks_of_more_than_a_megabyte_is_a_failure(server: tuple[socket.socket, list[bytes]]) -> None:
    listening, answers = server
    section = load(None, None, ["auth.jwt.algorithm=public-key", f"auth.jwt.endpoint={url_of(listening)}"]).settings.auth.jwt
    client = Client("c", "ada", jwt.encode({}, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "k"}).encode())

    async def ask() -> None:
        tokens = Tokens(section)
        try:
            await tokens.authenticate(client)
        finally:
            await tokens.close()

    for size, failure in ((1 << 20, "JWKS endpoint: response of more than 1048576 bytes"), (1000, "PyJWKSetError")):
        body = b'{"keys": [], "x": "' + b"x" * size + b'"}'
        for answer in (HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, compressed(body)):
            answers[:] = [answer]
            with pytest.raises(BackendError, match=failure):
                asyncio.run(ask())
    answers[:] = [bomb(b'{"keys": [], "x": "')]
    tracemalloc.start()
    try:
        with pytest.raises(BackendError, match="JWKS endpoint: response of more than 1048576 bytes"):
            asyncio.run(ask())
        assert tracemalloc.get_traced_memory()[1] < GROWTH_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("encoding", "refused"), [(b"gzip", ""), (b"br", "content encoding 'br'"), (b"gzip, gzip", "content encoding 'gzip, gzip'")]
)
def test_a_small_answer_that_is_compressed_though_that_was_not_asked_for(
    server: tuple[socket.socket, list[bytes]], encoding: bytes, refused: str
) -> None:
    listening, answers = server
    answers.append(compressed(b'{"result": "allow"}', encoding))
    section = load(None, None, [f"auth.http.url={url_of(listening)}"]).settings.auth.http

    async def ask() -> tuple[int, object]:
        service = HttpService(section, "auth.http")
        try:
            return await service.call({})
        finally:
            await service.close()

    if refused:
        with pytest.raises(ConnectorError, match=refused):
            asyncio.run(ask())
    else:
        assert asyncio.run(ask()) == (200, {"result": "allow"})


def test_a_redirect_is_not_followed(server: tuple[socket.socket, list[bytes]]) -> None:
    listening, answers = server
    location = url_of(listening).encode()
    answers.append(b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    section = load(None, None, [f"auth.http.url={url_of(listening)}"]).settings.auth.http

    async def ask() -> tuple[int, object]:
        service = HttpService(section, "auth.http")
        try:
            return await service.call({})
        finally:
            await service.close()

    assert asyncio.run(ask()) == (302, None)
