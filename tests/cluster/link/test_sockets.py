"""How a connection to another node is opened."""

import asyncio
import socket

import pytest

from shardbroker.config.cluster import Cluster, Links
from shardbroker.link import sockets
from shardbroker.link.frames import preface

ADDRESS = "127.0.0.1:5370"


class Attempts:
    """Attempts to connect, each of which goes on until the test ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[asyncio.Future[socket.socket]] = []
        monkeypatch.setattr(sockets, "_connect", self._connect)
        monkeypatch.setattr(sockets, "ATTEMPT_S", 0.01)

    async def _connect(self, address: str, cluster: Cluster) -> socket.socket:
        assert address == ADDRESS
        attempt = asyncio.get_running_loop().create_future()
        self.begun.append(attempt)
        return await attempt

    async def begin(self, count: int, **settings: float) -> asyncio.Task[socket.socket]:
        """Returns a call of `dial` with so many attempts under way."""
        dialling = asyncio.create_task(sockets.dial(ADDRESS, 0, Cluster(link=Links(**settings))))
        async with asyncio.timeout(5):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)
        return dialling


def pair() -> tuple[socket.socket, socket.socket]:
    own, peer = socket.socketpair()
    own.setblocking(False)
    return own, peer


def test_attempts_overlap_and_the_first_that_succeeds_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        attempts = Attempts(monkeypatch)
        dialling = await attempts.begin(3)
        (one, its_peer), (other, other_peer) = pair(), pair()
        attempts.begun[1].set_result(one)
        attempts.begun[0].set_result(other)
        with await dialling, its_peer, other_peer:
            await asyncio.sleep(0)
            assert attempts.begun[2].cancelled()
            received = sorted([its_peer.recv(100), other_peer.recv(100)])
            assert received == [b"", preface(0)], "one connection is used, the other one is closed"

    asyncio.run(run())


def test_a_refusal_ends_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        attempts = Attempts(monkeypatch)
        dialling = await attempts.begin(2)
        attempts.begun[1].set_exception(ConnectionRefusedError())
        with pytest.raises(ConnectionRefusedError):
            await dialling
        await asyncio.sleep(0)
        assert attempts.begun[0].cancelled()

    asyncio.run(run())


def test_attempts_end_with_the_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        attempts = Attempts(monkeypatch)
        dialling = await attempts.begin(2, connect_timeout=0.1)
        with pytest.raises(TimeoutError):
            await dialling
        await asyncio.sleep(0)
        assert all(attempt.cancelled() for attempt in attempts.begun)

    asyncio.run(run())
