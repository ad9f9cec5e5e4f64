"""Idle and slow connections to the REST API are closed; those with requests stay open."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request

from shardbroker.api.timeouts import TimeoutProtocol


class Short(TimeoutProtocol):
    check_interval_s = 0.3


@pytest.fixture
def port() -> Iterator[int]:
    app = FastAPI()

    @app.get("/")
    async def quick() -> str:
        return "x"

    @app.post("/")
    async def reads(request: Request) -> int:
        return len(await request.body())

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, http=Short, log_config=None))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"])
def test_an_incomplete_request_is_closed(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(sent)
        assert one.recv(1000) == b""


def test_a_slow_head_is_closed_after_a_complete_request(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        one.sendall(b"GET /")
        with pytest.raises(OSError):
            for _ in range(100):
                time.sleep(0.1)
                one.sendall(b"a")


def test_a_connection_with_requests_stays(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    began: Any = None
    for _ in range(10):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b'"x"'
        began = began or connection.sock
        time.sleep(0.1)
    assert connection.sock is began
    connection.close()
