"""One device of a gateway: its own transport and the one to the broker, between them a session without I/O."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Protocol, cast

from shardbroker.gateways.proxy import STREAM, encode_proxy_header
from shardbroker.gateways.session import GatewaySession, Link

__all__ = ["Device", "Home", "StreamDevice"]

CLOSE_S = 5.0
"""Longest wait until a device has taken the last bytes sent to it."""
CONNECT_S, AGAIN_S = 10.0, 0.05
"""Longest wait for the internal listener, and time between two attempts."""
CHANGE_S = 2.0
"""Longest wait until the broker has closed a connection that is replaced by another one."""
Peer = tuple[Any, ...]
"""Address of a device as the socket has it: host, port and more for IPv6."""


class Home(Protocol):
    """The listener of a device."""

    broker_path: str
    """Path of the internal listener."""

    def admits(self, device: "Device", peer: Peer) -> bool:
        """Whether the device may connect; counts it if so."""

    def make_session(self, now_s: float) -> GatewaySession:
        """Returns the session of a device that has connected."""

    def gone(self, device: "Device", reason: str) -> None:
        """Notes the end of an admitted device; reason: the error that it got, empty without one."""


class Device:
    """A device of any transport. The broker is read only while the session can handle what it has sent."""

    __slots__ = (
        "_broker", "_home", "_is_broker_paused", "_is_dialed", "_loop", "_opening", "_own", "_reason", "_timer", "_timer_s", "peer",
        "session",
    )  # fmt: skip
    transport: ClassVar[int] = STREAM
    """In the PROXY header."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._broker: _BrokerSide | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._is_dialed = self._is_broker_paused = False
        self._reason = ""
        self._own: Peer = ("", 0)
        self.peer: Peer = ("", 0)
        self.session: GatewaySession | None = None

    # --- for transports -------------------------------------------------------------------------------------------------------

    def _send(self, messages: list[bytes]) -> None:
        """Sends messages of the session to the device."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Ends the side of the device; its session is over."""
        raise NotImplementedError

    def _follow(self, session: GatewaySession) -> None:
        """Pauses or resumes reading of the device as its session wants it."""

    def _link(self) -> Link:
        """Returns the transport as its session sees it."""
        return Link("udp", self.peer, self._own, None, self.flush)

    def _begin(self, session: GatewaySession) -> None:
        self.session = session
        session.began(self._link())
        self._arm(session)

    # --- the broker -----------------------------------------------------------------------------------------------------------

    async def _open(self, again: bool = False) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                broker = await self._connect()
        except (OSError, TimeoutError):
            self._opening = None
            self.broker_lost("the broker is not available; try again")
            return
        self._opening = None
        if self.session is None:
            broker.transport.abort()
            return
        self._broker, self._is_broker_paused = broker, False
        broker.transport.write(encode_proxy_header(self.peer[:2], self._own[:2], self.transport))
        if again:
            self.session.broker_changed()
        self.flush()

    async def _connect(self) -> "_BrokerSide":
        """Waits for an internal listener that is not open yet: after a change of settings the supervisor opens it meanwhile."""
        while True:
            try:
                _, side = await self._loop.create_unix_connection(lambda: _BrokerSide(self), self._home.broker_path)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(AGAIN_S)
            else:
                return side

    def broker_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.from_broker(data, self._loop.time())
            self.flush()

    def slow(self, *, device: bool | None = None, broker: bool | None = None) -> None:
        """Notes that a transport accepts no more for now, or again."""
        session = self.session
        if session is None:
            return
        if device is not None:
            session.is_device_slow = device
        if broker is not None:
            session.is_broker_slow = broker
        if not (device or broker):
            session.go_on(self._loop.time())
        self.flush()

    def broker_lost(self, reason: str = "the broker has closed the connection") -> None:
        self._broker = None
        if self.session is not None:
            self.session.broker_lost(reason)
            self.flush()

    def _change_broker(self, session: GatewaySession, broker: "_BrokerSide") -> None:
        """Opens another connection once the broker has closed this one: so the end of the one is known before the other begins."""
        session.changes_broker = False
        self._broker = None
        broker.leave(self._open_again)

    def _open_again(self) -> None:
        if self.session is not None:
            self._opening = self._loop.create_task(self._open(again=True))

    def _drop_broker(self) -> None:
        """Closes the connection to the broker after the last bytes. Without DISCONNECT among them, the end counts as a failure."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.transport.close()
        if self._opening is not None:
            self._opening.cancel()

    # --- both -----------------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Ends the connection with an error for the device."""
        if self.session is not None:
            self.session.end(reason)
            self.flush()

    def flush(self) -> None:
        """Sends what the session has for both sides, and pauses the sides that it cannot handle now."""
        session = self.session
        if session is None:
            return
        if session.wants_broker and not self._is_dialed:
            self._is_dialed = True
            self._opening = self._loop.create_task(self._open())
        broker = self._broker
        if broker is not None:
            if session.to_broker:
                data = session.to_broker[0] if len(session.to_broker) == 1 else b"".join(session.to_broker)
                session.to_broker.clear()
                broker.transport.write(data)
            if session.changes_broker:
                self._change_broker(session, broker)
        if session.to_device:
            messages, session.to_device = session.to_device, []  # before sending, which may pause and flush again
            self._send(messages)
            if self.session is not session:
                return
        if session.is_over:
            self.session = None
            self._reason = session.reason
            self._drop_broker()
            if self._timer is not None:
                self._timer.cancel()
            self._leave()
            return
        self._follow(session)
        broker = self._broker
        if broker is not None and session.reads_broker == self._is_broker_paused:
            self._is_broker_paused = not self._is_broker_paused
            broker.transport.pause_reading() if self._is_broker_paused else broker.transport.resume_reading()
        self._arm(session)

    def _arm(self, session: GatewaySession) -> None:
        """Sets the timer, unless one fires earlier anyway."""
        deadline_s = session.deadline_s
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


class StreamDevice(asyncio.Protocol, Device):
    """A device that is connected by a stream. Each side is read only while the other side takes what follows from it."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._transport: asyncio.Transport | None = None
        self._is_admitted = self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if peer is None or own is None:
            self._transport.abort()  # it has gone again
            return
        self.peer, self._own = peer, own
        if not self._home.admits(self, self.peer):
            self._transport.abort()
            return
        self._is_admitted = True
        self._begin(self._home.make_session(self._loop.time()))

    def _link(self) -> Link:
        assert self._transport is not None
        kind = "tcp" if self._transport.get_extra_info("ssl_object") is None else "ssl"
        return Link(kind, self.peer, self._own, self._transport.get_extra_info("peercert"), self.flush)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.from_device(data, self._loop.time())
            self.flush()

    def pause_writing(self) -> None:
        self.slow(device=True)

    def resume_writing(self) -> None:
        self.slow(device=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.session is not None:
            self.session.device_lost()
            self.session = None
            self._drop_broker()
        if self._is_admitted:
            self._home.gone(self, self._reason)
        if self._timer is not None:
            self._timer.cancel()

    def end(self, reason: str) -> None:
        if self.session is None and self._transport is not None:
            self._transport.abort()
        super().end(reason)

    def _send(self, messages: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(messages))

    def _leave(self) -> None:
        if self._transport is not None:
            self._timer = self._loop.call_later(CLOSE_S, self._transport.abort)
            self._transport.close()

    def _follow(self, session: GatewaySession) -> None:
        if self._transport is not None and session.reads_device == self._is_paused:
            self._is_paused = not self._is_paused
            self._transport.pause_reading() if self._is_paused else self._transport.resume_reading()


class _BrokerSide(asyncio.Protocol):
    """The connection of a device to the broker."""

    __slots__ = ("_device", "_then", "transport")

    def __init__(self, device: Device) -> None:
        self._device: Device | None = device
        self._then: Callable[[], None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def leave(self, then: Callable[[], None]) -> None:
        """Ignores what still arrives; calls `then` when the broker has closed the connection."""
        self._device, self._then = None, then
        self.transport.resume_reading()
        asyncio.get_running_loop().call_later(CHANGE_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._device is not None:
            self._device.broker_received(data)

    def pause_writing(self) -> None:
        if self._device is not None:
            self._device.slow(broker=True)

    def resume_writing(self) -> None:
        if self._device is not None:
            self._device.slow(broker=False)

    def connection_lost(self, error: Exception | None) -> None:
        if self._device is not None:
            self._device.broker_lost()
        if self._then is not None:
            self._then()
