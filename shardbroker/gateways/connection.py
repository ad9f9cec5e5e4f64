"""One device of a gateway: its own transport and the one to the broker, between them a session without I/O."""

import asyncio
from math import inf
from typing import Protocol, cast

from shardbroker.gateways.proxy import encode_proxy_header

__all__ = ["Device", "Home", "Session"]

CLOSE_S = 5.0
"""Longest wait until a device has taken the last bytes sent to it."""
CONNECT_S, AGAIN_S = 10.0, 0.05
"""Longest wait for the internal listener, and time between two attempts."""


class Session(Protocol):
    """What a session of a gateway's protocol has; shardbroker/gateways/stomp/session.py explains each."""

    to_device: list[bytes]
    to_broker: list[bytes]
    wants_broker: bool
    is_over: bool
    is_device_slow: bool
    is_broker_slow: bool
    reason: str

    @property
    def client_id(self) -> str: ...
    @property
    def reads_device(self) -> bool: ...
    @property
    def reads_broker(self) -> bool: ...
    @property
    def deadline_s(self) -> float: ...
    def from_device(self, data: bytes, now_s: float) -> None: ...
    def from_broker(self, data: bytes, now_s: float) -> None: ...
    def go_on(self, now_s: float) -> None: ...
    def broker_lost(self, reason: str) -> None: ...
    def end(self, reason: str) -> None: ...
    def tick(self, now_s: float) -> None: ...


class Home(Protocol):
    """The listener of a device."""

    broker_path: str
    """Path of the internal listener."""

    def admits(self, device: "Device", peer: tuple[str, int]) -> bool:
        """Whether the device may connect; counts it if so."""

    def make_session(self, now_s: float) -> Session:
        """Returns the session of a device that has connected."""

    def gone(self, device: "Device", reason: str) -> None:
        """Notes the end of an admitted device; reason: the text of its ERROR, empty without one."""


class Device(asyncio.Protocol):
    """One connection. Each side is read only while the session can handle what it has sent, and the other side takes the result."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._broker: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._is_admitted = self._is_paused = self._is_broker_paused = False
        self._reason = ""
        self.peer: tuple[str, int] = ("", 0)
        self.session: Session | None = None

    # --- the device -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if peer is None or own is None:
            self._transport.abort()  # it has gone again
            return
        self.peer = (peer[0], peer[1])
        self._own = (own[0], own[1])
        if not self._home.admits(self, self.peer):
            self._transport.abort()
            return
        self._is_admitted = True
        self.session = self._home.make_session(self._loop.time())
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.from_device(data, self._loop.time())
            self.flush()

    def pause_writing(self) -> None:
        self._slow(True)

    def resume_writing(self) -> None:
        self._slow(False)

    def _slow(self, is_slow: bool) -> None:
        if self.session is not None:
            self.session.is_device_slow = is_slow
            if not is_slow:
                self.session.go_on(self._loop.time())
            self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.session is not None:
            self.session = None
            self._drop_broker()
        if self._is_admitted:
            self._home.gone(self, self._reason)
        if self._timer is not None:
            self._timer.cancel()

    # --- the broker -----------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                transport = await self._connect()
        except (OSError, TimeoutError):
            self.broker_lost("the broker is not available; try again")
            return
        if self.session is None:
            transport.abort()
            return
        self._broker = transport
        transport.write(encode_proxy_header(self.peer, self._own))
        self.flush()

    async def _connect(self) -> asyncio.Transport:
        """Waits for an internal listener that is not open yet: after a change of settings the supervisor opens it meanwhile."""
        while True:
            try:
                transport, _ = await self._loop.create_unix_connection(lambda: _BrokerSide(self), self._home.broker_path)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(AGAIN_S)
            else:
                return transport

    def broker_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.from_broker(data, self._loop.time())
            self.flush()

    def broker_slow(self, is_slow: bool) -> None:
        if self.session is not None:
            self.session.is_broker_slow = is_slow
            if not is_slow:
                self.session.go_on(self._loop.time())
            self.flush()

    def broker_lost(self, reason: str = "the broker has closed the connection") -> None:
        self._broker = None
        if self.session is not None:
            self.session.broker_lost(reason)
            self.flush()

    def _drop_broker(self) -> None:
        """Closes the connection to the broker after the last bytes. Without DISCONNECT among them, the end counts as a failure."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
        if self._opening is not None:
            self._opening.cancel()

    # --- both -----------------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Ends the connection with an error for the device."""
        if self.session is not None:
            self.session.end(reason)
            self.flush()
        elif self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Sends what the session has for both sides, and pauses the sides that it cannot handle now."""
        session, transport = self.session, self._transport
        if session is None or transport is None:
            return
        if session.wants_broker and self._opening is None:
            self._opening = self._loop.create_task(self._open())
        if session.to_broker and self._broker is not None:
            data = b"".join(session.to_broker)
            session.to_broker.clear()
            self._broker.write(data)
        if session.to_device:
            data = b"".join(session.to_device)
            session.to_device.clear()
            transport.write(data)
            if self.session is not session:
                return
        if session.is_over:
            self.session = None
            self._drop_broker()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_S, transport.abort)
            self._reason = session.reason
            transport.close()
            return
        if session.reads_device == self._is_paused:
            self._is_paused = not self._is_paused
            transport.pause_reading() if self._is_paused else transport.resume_reading()
        if self._broker is not None and session.reads_broker == self._is_broker_paused:
            self._is_broker_paused = not self._is_broker_paused
            self._broker.pause_reading() if self._is_broker_paused else self._broker.resume_reading()
        self._arm()

    def _arm(self) -> None:
        """Sets the timer, unless one fires earlier anyway."""
        assert self.session is not None
        deadline_s = self.session.deadline_s
        if deadline_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._timer_s = inf
        if self.session is not None:
            self.session.tick(self._loop.time())
            self.flush()


class _BrokerSide(asyncio.Protocol):
    """The connection of a device to the broker."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def data_received(self, data: bytes) -> None:
        self._device.broker_received(data)

    def pause_writing(self) -> None:
        self._device.broker_slow(True)

    def resume_writing(self) -> None:
        self._device.broker_slow(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._device.broker_lost()
