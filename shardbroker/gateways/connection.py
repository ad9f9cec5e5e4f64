"""One device of a gateway: its own transport and the one to the broker, between them a session without I/O."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Protocol, cast

from shardbroker.gateways.proxy import STREAM, encode_proxy_header
from shardbroker.gateways.session import GatewaySession, Link
from shardbroker.gateways.timers import NEVER, Timers
from shardbroker.gateways.uplinks import Uplink, Uplinks

__all__ = ["Device", "Home", "StreamDevice"]

CLOSE_S = 5.0
"""Longest wait until a device has taken the last bytes sent to it."""
CONNECT_S, AGAIN_S = 10.0, 0.05
"""Longest wait for the internal listener, and time between two attempts."""
Peer = tuple[Any, ...]
"""Address of a device as the socket has it: host, port and more for IPv6."""
NOWHERE: Peer = ("", 0)


class Home(Protocol):
    """The listener of a device."""

    broker_path: str
    """Path of the internal listener."""
    loop: asyncio.AbstractEventLoop
    uplinks: Uplinks
    timers: Timers

    def admits(self, device: "Device", peer: Peer) -> bool:
        """Whether the device may connect; counts it if so."""

    def make_session(self, now_s: float) -> GatewaySession:
        """Returns the session of a device that has connected."""

    def gone(self, device: "Device", reason: str) -> None:
        """Notes the end of an admitted device; reason: the error that it got, empty without one."""


class Device:
    """A device of any transport. The broker is read only while the session can handle what it has sent."""

    __slots__ = ("_broker", "_home", "_is_dialed", "_opening", "_own", "_reason", "_timer", "peer", "session")
    transport: ClassVar[int] = STREAM
    """In the PROXY header."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._broker: Uplink | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer = NEVER
        self._is_dialed = False
        self._reason = ""
        self._own: Peer = NOWHERE
        self.peer: Peer = NOWHERE
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

    def _dial(self, again: bool = False) -> None:
        """Connects to the broker, now if its listener is ready for it. again: in place of an earlier connection."""
        try:
            self._connect(again)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            self._opening = self._home.loop.create_task(self._dial_later(again))
        except OSError:
            self._not_connected()

    async def _dial_later(self, again: bool) -> None:
        """Waits for an internal listener that is not open yet: after a change of settings the supervisor opens it meanwhile."""
        try:
            async with asyncio.timeout(CONNECT_S):
                while self._broker is None:
                    await asyncio.sleep(AGAIN_S)
                    with suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                        self._connect(again)
        except (OSError, TimeoutError):
            self._not_connected()
        self._opening = None
        self.flush()

    def _connect(self, again: bool) -> None:
        self._broker = self._home.uplinks.connect(self._home.broker_path, self)
        self._broker.write(encode_proxy_header(self.peer[:2], self._own[:2], self.transport))
        if again and self.session is not None:
            self.session.broker_changed()

    def _not_connected(self) -> None:
        if self.session is not None:
            self.session.broker_lost("the broker is not available; try again")

    def broker_received(self, data: bytes) -> None:
        """Notes bytes of the broker."""
        if self.session is not None:
            self.session.from_broker(data, self._home.loop.time())
            self.flush()

    def broker_slow(self, is_slow: bool) -> None:
        """Notes that the broker accepts no more for now, or again."""
        session = self.session
        if session is not None:
            session.is_broker_slow = is_slow
            self._eased(session, is_slow)

    def device_slow(self, is_slow: bool) -> None:
        """Notes that the device accepts no more for now, or again."""
        session = self.session
        if session is not None:
            session.is_device_slow = is_slow
            self._eased(session, is_slow)

    def _eased(self, session: GatewaySession, is_slow: bool) -> None:
        if not is_slow:
            session.go_on(self._home.loop.time())
        self.flush()

    def broker_lost(self, reason: str = "the broker has closed the connection") -> None:
        """Notes that the connection to the broker has ended."""
        self._broker = None
        if self.session is not None:
            self.session.broker_lost(reason)
            self.flush()

    def _change_broker(self, session: GatewaySession, broker: Uplink) -> None:
        """Opens another connection once the broker has closed this one: so the end of the one is known before the other begins."""
        session.changes_broker = False
        self._broker = None
        broker.leave(self.open_again)

    def open_again(self) -> None:
        """Opens the connection to the broker that takes the place of one that the broker has closed."""
        if self.session is not None:
            self._dial(again=True)
            self.flush()

    def _drop_broker(self) -> None:
        """Closes the connection to the broker after the last bytes. Without DISCONNECT among them, the end counts as a failure."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
        if self._opening is not None:
            self._opening.cancel()

    # --- for the process that replaces this one -------------------------------------------------------------------------------

    @property
    def broker(self) -> Uplink | None:
        """Returns the connection to the broker."""
        return self._broker

    def image(self) -> dict[str, Any]:
        """Returns the state as plain values, except for the connection to the broker."""
        assert self.session is not None
        return {
            "peer": self.peer, "own": self._own, "is_dialed": self._is_dialed, "is_opening": self._opening is not None,
            "reason": self._reason, "session": self.session.image(),
        }  # fmt: skip

    def adopt(self, values: Mapping[str, Any], session: GatewaySession) -> None:
        """Takes the state of a device of another process. session: a new one, which gets the state, too."""
        self.peer, self._own = tuple(values["peer"]), tuple(values["own"])
        self._is_dialed, self._reason = values["is_dialed"], values["reason"]
        self.session = session
        session.began(self._link())
        session.adopt(values["session"])

    def adopt_broker(self, uplink: Uplink) -> None:
        """Takes the connection to the broker."""
        self._broker = uplink

    def leave_broker(self, uplink: Uplink) -> None:
        """Takes a connection to the broker that is replaced by another one as soon as the broker has closed it."""
        uplink.leave(self.open_again)

    def serve(self, is_opening: bool, by_s: float) -> None:
        """Continues after a time in which the device was not read. is_opening: the connection to the broker was being opened."""
        session = self.session
        if session is None:
            return
        session.shift(by_s)
        if is_opening:
            again = session.is_changing_broker
            self._opening = self._home.loop.create_task(self._dial_later(again))
        self._arm(session)

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
            self._dial()
        broker = self._broker
        if broker is not None:
            if session.to_broker:
                data = session.to_broker[0] if len(session.to_broker) == 1 else b"".join(session.to_broker)
                session.to_broker.clear()
                broker.write(data)
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
            self._timer.discard(self)
            self._timer = NEVER
            self._leave()
            return
        self._follow(session)
        if self._broker is not None:
            self._broker.pause(not session.reads_broker)
        self._arm(session)

    def _arm(self, session: GatewaySession) -> None:
        """Sets the timer, unless one fires earlier anyway."""
        deadline_s = session.deadline_s
        if deadline_s < self._timer.at_s:
            self._timer = self._home.timers.set(self, deadline_s, self._timer)

    def tick(self) -> None:
        """Does what is due."""
        self._timer = NEVER
        if self.session is not None:
            self.session.tick(self._home.loop.time())
            self.flush()


class StreamDevice(asyncio.Protocol, Device):
    """A device that is connected by a stream. Each side is read only while the other side takes what follows from it."""

    __slots__ = ("_is_admitted", "_is_paused", "_transport")

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
        self._begin(self._home.make_session(self._home.loop.time()))

    def _link(self) -> Link:
        assert self._transport is not None
        kind = "tcp" if self._transport.get_extra_info("ssl_object") is None else "ssl"
        return Link(kind, self.peer, self._own, self._transport.get_extra_info("peercert"), self.flush)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.from_device(data, self._home.loop.time())
            self.flush()

    def pause_writing(self) -> None:
        self.device_slow(True)

    def resume_writing(self) -> None:
        self.device_slow(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.session is not None:
            self.session.device_lost()
            self.session = None
            self._drop_broker()
        if self._is_admitted:
            self._home.gone(self, self._reason)
        self._timer.discard(self)
        self._timer = NEVER

    def end(self, reason: str) -> None:
        if self.session is None and self._transport is not None:
            self._transport.abort()
        super().end(reason)

    def _send(self, messages: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(messages))

    def _leave(self) -> None:
        if self._transport is not None:
            self._home.loop.call_later(CLOSE_S, self._transport.abort)
            self._transport.close()

    def _follow(self, session: GatewaySession) -> None:
        if self._transport is not None and session.reads_device == self._is_paused:
            self._is_paused = not self._is_paused
            self._transport.pause_reading() if self._is_paused else self._transport.resume_reading()
