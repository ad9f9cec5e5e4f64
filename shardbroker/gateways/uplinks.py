"""The connections of devices to the broker: one epoll for all of them, whose own descriptor is in the loop.

A connection costs a small object and an entry of a list here, where a transport of the loop would cost over 1 KB: most devices
sleep or are silent most of the time.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

__all__ = ["Uplink", "Uplinks"]

CHANGE_S = 2.0
"""Longest wait until the broker has closed a connection that is replaced by another one."""
READ = 65_536
"""Bytes that are read of one connection before the next one."""
EVENTS = 256
"""Connections that are handled before the loop continues."""
WAITING_HIGH, WAITING_LOW = 65_536, 16_384
"""Bytes that wait for a worker above which its device is not read, and below which it is read again."""


class User(Protocol):
    """The device of a connection."""

    def broker_received(self, data: bytes) -> None:
        """Handles received bytes."""

    def broker_lost(self) -> None:
        """Notes that the broker has closed the connection."""

    def broker_slow(self, is_slow: bool) -> None:
        """Notes that the connection accepts no more for now, or again."""


class Uplinks:
    """All connections of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.epoll = select.epoll()
        self.buffer = bytearray(READ)
        self.view = memoryview(self.buffer)
        self._by_number: list[Uplink | None] = []
        """By descriptor."""
        loop.add_reader(self.epoll.fileno(), self._ready)

    def connect(self, path: str, user: User) -> "Uplink":
        """Returns a connection to the internal listener. Raises OSError; BlockingIOError: its queue is full."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
            one.connect(path)
            number = one.detach()
        try:
            self.epoll.register(number, select.EPOLLIN)
        except OSError:
            os.close(number)
            raise
        return self._noted(Uplink(self, user, number), number)

    def adopt(self, number: int, user: User | None, values: Mapping[str, Any]) -> "Uplink":
        """Returns the connection of another process, with what `Uplink.image` has of it. Raises OSError."""
        self.epoll.register(number, 0)
        return self._noted(Uplink.adopted(self, user, number, values), number)

    def _noted(self, uplink: "Uplink", number: int) -> "Uplink":
        while len(self._by_number) <= number:
            self._by_number.append(None)
        self._by_number[number] = uplink
        return uplink

    def __iter__(self) -> "Iterator[Uplink]":
        """Yields all connections that are open."""
        return (one for one in self._by_number if one is not None)

    def forget(self, number: int) -> None:
        """Closes a descriptor."""
        self._by_number[number] = None
        os.close(number)  # it leaves the epoll by this

    def close(self) -> None:
        """Ends at the end of the process."""
        self.loop.remove_reader(self.epoll.fileno())
        for one in self._by_number:
            if one is not None:
                one.abort()
        self.epoll.close()

    def _ready(self) -> None:
        for number, events in self.epoll.poll(0, EVENTS):
            uplink = self._by_number[number]
            if uplink is None:
                continue  # closed by what was handled before
            if events & select.EPOLLOUT:
                uplink.drain()
            if events & ~select.EPOLLOUT:
                uplink.read(bool(events & select.EPOLLHUP))


class Uplink:
    """One connection. `close` sends what waits, `abort` drops it."""

    __slots__ = ("_is_closing", "_is_ended", "_is_paused", "_is_slow", "_number", "_then", "_uplinks", "_user", "_waiting")

    def __init__(self, uplinks: Uplinks, user: User | None, number: int) -> None:
        self._uplinks, self._number = uplinks, number
        self._user = user
        self._then: Callable[[], None] | None = None
        self._waiting: bytearray | None = None
        self._is_paused = self._is_slow = self._is_closing = False
        self._is_ended = False
        """The broker has closed the connection: what it had sent is read also of one that is paused, up to the end. A session
        that was taken over or ended is noticed by this while its device sleeps."""

    @property
    def number(self) -> int:
        """Returns the descriptor; -1: closed."""
        return self._number

    @property
    def is_closing(self) -> bool:
        """Returns whether the connection ends behind its last bytes."""
        return self._is_closing

    @property
    def then(self) -> Callable[[], None] | None:
        """Returns what follows once the broker has closed the connection, as `leave` got it."""
        return self._then

    def image(self) -> dict[str, Any]:
        """Returns the state as plain values."""
        return {
            "waiting": None if self._waiting is None else bytes(self._waiting), "is_paused": self._is_paused,
            "is_slow": self._is_slow, "is_closing": self._is_closing,
        }  # fmt: skip

    @classmethod
    def adopted(cls, uplinks: Uplinks, user: User | None, number: int, values: Mapping[str, Any]) -> "Uplink":
        """Returns a connection as another process had it; `Uplinks.adopt` has registered its descriptor."""
        made = cls(uplinks, user, number)
        made._waiting = None if values["waiting"] is None else bytearray(values["waiting"])
        made._is_paused, made._is_slow, made._is_closing = values["is_paused"], values["is_slow"], values["is_closing"]
        made._watch()
        return made

    def write(self, data: bytes) -> None:
        """Sends bytes, now or as soon as there is room."""
        if self._waiting is not None:
            self._waiting += data
        elif self._number >= 0:
            try:
                sent = os.write(self._number, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return  # the end of the connection is read
            if sent == len(data):
                return
            self._waiting = bytearray(memoryview(data)[sent:])
            self._watch()
        if self._user is not None and not self._is_slow and len(self._waiting or ()) > WAITING_HIGH:
            self._is_slow = True
            self._user.broker_slow(True)

    def drain(self) -> None:
        """Sends what waits, as far as there is room."""
        waiting = self._waiting
        if waiting is None:
            return
        try:
            del waiting[: os.write(self._number, waiting)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            waiting.clear()
        if not waiting:
            self._waiting = None
            if self._is_closing:
                self.abort()
                return
            self._watch()
        if self._is_slow and len(waiting) <= WAITING_LOW:
            self._is_slow = False
            if self._user is not None:
                self._user.broker_slow(False)

    def pause(self, is_paused: bool) -> None:
        """Stops or resumes reading."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._watch()

    def read(self, is_ended: bool) -> None:
        """Reads what is there. is_ended: the broker has closed the connection."""
        if is_ended and not self._is_ended:
            self._is_ended = True
            self._watch()
        if self._number < 0 or (self._is_paused and not self._is_ended):
            return
        try:
            size = os.readv(self._number, (self._uplinks.buffer,))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if self._user is not None and size:
            self._user.broker_received(bytes(self._uplinks.view[:size]))
        elif not size:
            self.abort()

    def _watch(self) -> None:
        if self._number >= 0:
            events = 0 if self._is_paused and not self._is_ended else select.EPOLLIN
            self._uplinks.epoll.modify(self._number, events | (select.EPOLLOUT if self._waiting is not None else 0))

    def leave(self, then: Callable[[], None]) -> None:
        """Ignores what still arrives; calls `then` when the broker has closed the connection."""
        self._user, self._then = None, then
        self.pause(False)
        self._uplinks.loop.call_later(CHANGE_S, self.abort)

    def close(self) -> None:
        """Closes the connection behind the last bytes; the user is not told."""
        self._user = None
        if self._waiting is None:
            self.abort()
        else:
            self._is_closing = True

    def abort(self) -> None:
        """Closes the connection."""
        if self._number < 0:
            return
        number, self._number, self._waiting = self._number, -1, None
        with suppress(OSError):
            self._uplinks.forget(number)
        user, self._user = self._user, None
        then, self._then = self._then, None
        if user is not None:
            user.broker_lost()
        if then is not None:
            then()
