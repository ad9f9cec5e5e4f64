"""Connections of devices to the broker: order, back-pressure, the end from both sides."""

import asyncio
import marshal
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shardbroker.gateways.uplinks import WAITING_HIGH, Uplink, Uplinks


class User:
    """A device; `ends`: how often its connection was lost."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ends = 0
        self.slow: list[bool] = []

    def broker_received(self, data: bytes) -> None:
        self.got += data

    def broker_lost(self) -> None:
        self.ends += 1

    def broker_slow(self, is_slow: bool) -> None:
        self.slow.append(is_slow)


class World:
    """A broker that accepts, and the connections to it."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "inner.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.uplinks = Uplinks(asyncio.get_running_loop())

    def connect(self, user: User) -> tuple[Uplink, socket.socket]:
        uplink = self.uplinks.connect(self.path, user)
        other, _ = self.listener.accept()
        other.settimeout(10)
        return uplink, other


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def play(tmp_path: Path, script: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World(tmp_path)
        descriptors = len(os.listdir("/proc/self/fd"))
        await script(world)
        world.uplinks.close()
        world.listener.close()
        assert len(os.listdir("/proc/self/fd")) <= descriptors, "a descriptor is left open"

    asyncio.run(run())


def test_bytes_in_both_directions(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        users = [User() for _ in range(3)]
        pairs = [world.connect(user) for user in users]
        for n, (uplink, other) in enumerate(pairs):
            uplink.write(b"to the broker %d" % n)
            other.send(b"from the broker %d" % n)
            assert other.recv(100) == b"to the broker %d" % n
        await until(lambda: all(user.got == b"from the broker %d" % n for n, user in enumerate(users)))
        for uplink, other in pairs:
            uplink.close()
            assert other.recv(100) == b""
            other.close()
        assert [user.ends for user in users] == [0, 0, 0], "one that closes is not told"

    play(tmp_path, script)


def test_a_broker_that_does_not_read_makes_its_device_slow_and_gets_all_in_order(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        user = User()
        uplink, other = world.connect(user)
        sent = b"".join(b"%07d " % n for n in range(200_000))
        for at in range(0, len(sent), 4000):
            uplink.write(sent[at : at + 4000])
        assert user.slow == [True]
        got = bytearray()
        other.settimeout(0)
        while len(got) < len(sent):
            await asyncio.sleep(0)
            try:
                got += other.recv(1 << 20)
            except BlockingIOError:
                continue
        assert got == sent
        await until(lambda: user.slow == [True, False])
        other.close()
        await until(lambda: user.ends == 1)

    play(tmp_path, script)


def test_close_sends_what_waits_and_abort_does_not(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        user = User()
        uplink, other = world.connect(user)
        data = bytes(4 * WAITING_HIGH + (1 << 20))
        uplink.write(data)
        uplink.close()
        other.settimeout(0)
        size = 0
        while True:
            await asyncio.sleep(0)
            try:
                part = other.recv(1 << 20)
            except BlockingIOError:
                continue
            if not part:
                break
            size += len(part)
        assert size == len(data)
        other.close()
        uplink, other = world.connect(user)
        uplink.write(data)
        uplink.abort()
        assert user.ends == 1
        other.close()

    play(tmp_path, script)


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_end_by_the_broker_is_noticed_with_its_last_bytes_also_while_paused(tmp_path: Path, is_paused: bool) -> None:
    async def script(world: World) -> None:
        user = User()
        uplink, other = world.connect(user)
        uplink.pause(is_paused)
        other.send(b"last words")
        await asyncio.sleep(0.05)
        assert user.got == (b"" if is_paused else b"last words")
        other.close()
        await until(lambda: user.ends == 1)
        assert user.got == b"last words"
        uplink.write(b"nothing happens")
        uplink.close()

    play(tmp_path, script)


def test_a_paused_connection_is_read_on_later(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        user = User()
        uplink, other = world.connect(user)
        uplink.pause(True)
        other.send(b"waits")
        uplink.write(b"still written")
        assert other.recv(100) == b"still written"
        await asyncio.sleep(0.05)
        assert not user.got
        uplink.pause(False)
        await until(lambda: user.got == b"waits")
        other.close()
        await until(lambda: user.ends == 1)

    play(tmp_path, script)


def test_a_connection_that_is_replaced_ends_before_the_next_begins(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        user, ended = User(), []
        uplink, other = world.connect(user)
        uplink.leave(lambda: ended.append(True))
        other.send(b"ignored")
        await asyncio.sleep(0.05)
        assert not ended and not user.got
        other.close()
        await until(lambda: bool(ended))
        assert user.ends == 0

    play(tmp_path, script)


def test_errors_of_connecting_are_those_of_the_kernel(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        with pytest.raises(FileNotFoundError):
            world.uplinks.connect(str(tmp_path / "nothing"), User())
        with pytest.raises(BlockingIOError):
            for _ in range(20):
                world.uplinks.connect(world.path, User())
        world.listener.close()
        with pytest.raises(ConnectionRefusedError):
            world.uplinks.connect(world.path, User())

    play(tmp_path, script)


def test_another_process_continues_a_connection(tmp_path: Path) -> None:
    """With the bytes that wait, paused as it was; and one that is closing ends behind its last bytes."""

    async def script(world: World) -> None:
        users = [User(), User()]
        pairs = [world.connect(user) for user in users]
        data = bytes(range(256)) * 8192
        for uplink, _ in pairs:
            uplink.write(data)
        pairs[0][0].pause(True)
        pairs[1][0].close()
        assert users[0].slow == [True]
        after = Uplinks(asyncio.get_running_loop())
        adopted = [
            after.adopt(os.dup(uplink.number), user, marshal.loads(marshal.dumps(uplink.image())))
            for (uplink, _), user in zip(pairs, (users[0], None), strict=True)
        ]
        before, world.uplinks = world.uplinks, after
        before.close()  # the earlier process ends
        users[0].ends = 0
        pairs[0][1].send(b"while it is paused")
        for _, other in pairs:
            got = bytearray()
            other.settimeout(0)
            while len(got) < len(data):
                await asyncio.sleep(0)
                with suppress(BlockingIOError):
                    got += other.recv(1 << 20)
            assert got == data
        await until(lambda: users[0].slow == [True, False] and adopted[1].number < 0)
        assert not users[0].got
        adopted[0].pause(False)
        await until(lambda: users[0].got == b"while it is paused")
        for _, other in pairs:
            other.close()
        await until(lambda: users[0].ends == 1)

    play(tmp_path, script)
