"""A listener of datagrams: devices by their address, and a bound on what unknown senders can cause.

A sender is unknown until one of its datagrams opens a device. What it may get and cause before is decided by a door without I/O
(`Door`); datagrams above `max_unknown_rate` are dropped unread. A device that has sent nothing since it was accepted may be one of
a forged address: when `max_connections` is reached, the oldest of them makes place for a new one. With DTLS (dtls.py) all senders
have shown that their address is their own.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, Protocol

from shardbroker.gateways.connection import Device, Home, Peer
from shardbroker.gateways.dtls import RECEIVE, DtlsPeers
from shardbroker.gateways.proxy import DATAGRAM
from shardbroker.gateways.session import GatewaySession, Link

__all__ = ["DatagramHome", "DatagramServer", "Door", "Knock", "Verdict"]

HANDSHAKES_S = 0.5
"""Time between two looks at handshakes of DTLS that are not complete."""
BATCH = 64
"""Datagrams that are read at a time."""
RECEIVE_BUFFER = 4 << 20
"""Bytes that wait in the socket while this process is busy; the kernel caps it with net.core.rmem_max."""


class Verdict(Enum):
    """What becomes of a datagram of an unknown sender."""

    DROP = auto()
    OPEN = auto()
    """The sender becomes a device."""
    PUBLISH = auto()
    """It is a message for which no connection is needed."""
    MOVE = auto()
    """The sender is a device that has another address now, if its token is the right one."""


class Knock(NamedTuple):
    """The verdict, and the answer to the sender, empty for none: short, as the protocol bounds it, since the sender may be forged.
    claim: client id and token for MOVE, whose answer is for a wrong one."""

    verdict: Verdict
    answer: bytes = b""
    claim: tuple[str, bytes] = ("", b"")


class Door(Protocol):
    """What a protocol decides about datagrams before there is a device."""

    @property
    def max_size(self) -> int:
        """Longest datagram that is accepted, bytes."""

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Returns the head that an answer has to have, the name of the device behind that address, and the message; None for
        another kind of datagram."""

    def busy(self, message: bytes) -> bytes:
        """Returns the answer to a datagram that would open a device if there were place for it."""

    def knock(self, message: bytes) -> Knock:
        """Returns what becomes of a message of an unknown sender."""

    def advertisement(self) -> tuple[bytes, str, float] | None:
        """Returns a datagram that is sent at intervals, its address (HOST:PORT) and the interval, seconds; None: none."""

    def make_publisher(self, now_s: float) -> GatewaySession:
        """Returns a session that publishes what needs no connection."""


class DatagramHome(Home, Protocol):
    """The listener of a gateway as its datagrams see it."""

    figures: dict[str, int]

    @property
    def is_first(self) -> bool:
        """Whether what is done once for all processes of the gateway is done here."""

    @property
    def is_full(self) -> bool:
        """Whether no more devices are admitted."""

    @property
    def max_unknown_rate(self) -> float:
        """Datagrams of unknown senders per second."""


class DatagramDevice(Device):
    """A device that is known by its address, and behind a forwarder by its node id too."""

    __slots__ = ("_head", "_name", "_server", "is_silent", "key")
    transport: ClassVar[int] = DATAGRAM

    def __init__(self, server: "DatagramServer", home: Home, key: Any, peer: Peer, head: bytes) -> None:
        super().__init__(home)
        self._server, self._head, self._own = server, head, server.own
        self.key, self.peer = key, peer
        self._name = ""
        self.is_silent = True
        """It has sent nothing since it was accepted, or its address is not proven."""

    def _link(self) -> Link:
        return Link("dtls" if self._server.is_secure else "udp", self.peer, self._own, None, self.flush)

    @classmethod
    def adopted(cls, server: "DatagramServer", home: Home, values: Mapping[str, Any]) -> "DatagramDevice":
        """Returns a device of another process."""
        made = cls(server, home, values["key"], values["peer"], values["head"])
        made.adopt(values, home.make_session(home.loop.time()))
        return made

    def open(self, message: bytes) -> None:
        """Begins with the message that has opened the device."""
        now_s = self._home.loop.time()
        session = self._home.make_session(now_s)
        if self._server.is_secure:
            session.address_proven()
        self._begin(session)
        self.received(message, now_s)

    def image(self) -> dict[str, Any]:
        is_named = self._server.names.get(self._name) is self
        return super().image() | {"key": self.key, "head": self._head, "name": self._name if is_named else ""}

    def adopt(self, values: Mapping[str, Any], session: GatewaySession) -> None:
        super().adopt(values, session)
        self._name, self.is_silent = values["name"], False

    def received(self, message: bytes, now_s: float) -> None:
        if self.session is not None:
            self.session.from_device(message, now_s)

    def _send(self, messages: list[bytes]) -> None:
        for one in messages:
            self._server.send(self._head + one if self._head else one, self.peer)

    def _follow(self, session: GatewaySession) -> None:
        if session.is_accepted and session.client_id != self._name:
            self._name = self._server.note_name(self, self._name, session.client_id)

    def _leave(self) -> None:
        self._server.forget(self, self._name)
        self._home.gone(self, self._reason)


class _Publisher(Device):
    """The session that publishes what needs no connection."""

    __slots__ = ()
    transport: ClassVar[int] = DATAGRAM

    def __init__(self, home: Home, own: Peer, session: GatewaySession, values: Mapping[str, Any] | None = None) -> None:
        """values: of that of another process."""
        super().__init__(home)
        self.peer = self._own = own
        if values is None:
            self._begin(session)
        else:
            self.adopt(values, session)

    def _send(self, messages: list[bytes]) -> None:
        """There is no device."""

    def _leave(self) -> None:
        """There is no device."""


class DatagramServer:
    """One bound socket."""

    def __init__(
        self, home: DatagramHome, door: Door, listening: socket.socket, dtls: Any = None, handshake_s: float = 0.0, peers: int = 0
    ) -> None:
        """dtls: the context of acceptor.dtls; handshake_s, peers: longest time of a handshake, and most connections."""
        self._home, self._door, self._socket = home, door, listening
        self._dtls = None if dtls is None else DtlsPeers(dtls, handshake_s, peers, self._send)
        self._loop = asyncio.get_running_loop()
        self.own: Peer = listening.getsockname()
        self.devices: dict[Any, DatagramDevice] = {}
        self.names: dict[str, DatagramDevice] = {}
        """Devices by client id."""
        self._silent: dict[DatagramDevice, None] = {}
        """Devices that have sent nothing since they were accepted, oldest first."""
        self._publisher: _Publisher | None = None
        self._tokens, self._filled_s = home.max_unknown_rate, self._loop.time()
        self._advertiser = self._loop.create_task(self._advertise() if self._dtls is None else self._look_after(self._dtls))
        self._loop.add_reader(listening, self._read)

    def close(self) -> None:
        """Ends all devices, which get no datagrams without this socket."""
        self._advertiser.cancel()
        self._loop.remove_reader(self._socket)
        for device in [*self.devices.values(), self._publisher]:
            if device is not None:
                device.end("the listener is closed")
        if self._dtls is not None:
            self._dtls.close()
        self._socket.close()

    # --- for the process that replaces this one -------------------------------------------------------------------------------

    @property
    def socket(self) -> socket.socket:
        """Returns the bound socket."""
        return self._socket

    @property
    def movable(self) -> "list[Device]":
        """Returns the devices that move, in the order of `image`. Keys of DTLS are in OpenSSL, which gives none of them away."""
        if self._dtls is not None:
            return []
        publishers = [] if self._publisher is None or self._publisher.session is None else [self._publisher]
        return [*(one for one in self.devices.values() if one.session is not None), *publishers]

    def image(self) -> dict[str, Any]:
        """Returns the state as plain values."""
        devices = self.movable
        places = {device: place for place, device in enumerate(devices)}
        return {
            "devices": [device.image() for device in devices if device is not self._publisher],
            "publisher": self._publisher.image() if self._publisher in places else None,
            "silent": [places[one] for one in self._silent if one in places],
            "tokens": self._tokens, "filled_s": self._filled_s,
        }  # fmt: skip

    def adopt(self, values: Mapping[str, Any]) -> list[Device]:
        """Takes the devices of another process, and returns them in the order of `movable`."""
        now_s = self._loop.time()
        devices = [DatagramDevice.adopted(self, self._home, one) for one in values["devices"]]
        for device, one in zip(devices, values["devices"], strict=True):
            self.devices[device.key] = device
            if one["name"]:
                self.names[one["name"]] = device
        for place in values["silent"]:
            devices[place].is_silent = True
            self._silent[devices[place]] = None
        self._tokens, self._filled_s = values["tokens"], values["filled_s"]
        if values["publisher"] is None:
            return [*devices]
        self._publisher = _Publisher(self._home, self.own, self._door.make_publisher(now_s), values["publisher"])
        return [*devices, self._publisher]

    def shift(self, by_s: float) -> None:
        """Notes a time in which no device was read."""
        for device in [*self.devices.values(), self._publisher]:
            if device is not None and device.session is not None:
                device.session.shift(by_s)

    def end_secure(self) -> None:
        """Ends what does not move, once another process has everything else."""
        if self._dtls is not None:
            for device in [*self.devices.values(), self._publisher]:
                if device is not None:
                    device.end("the gateway is upgraded, which ends connections with DTLS")
            self._dtls.close()

    @property
    def is_secure(self) -> bool:
        """Whether it has DTLS."""
        return self._dtls is not None

    def use(self, dtls: Any) -> None:
        """Takes another context of DTLS, for later connections."""
        if self._dtls is not None:
            self._dtls.use(dtls)

    def send(self, data: bytes, peer: Peer) -> None:
        """Sends a message. If there is no connection for it or the kernel does not take it, it is lost, as any datagram may be."""
        if self._dtls is None:
            self._send(data, peer)
        elif not self._dtls.send(data, peer):
            self._home.figures["lost"] += 1

    def _send(self, data: bytes, peer: Peer) -> None:
        try:
            self._socket.sendto(data, peer)
        except OSError:
            self._home.figures["lost"] += 1

    def note_name(self, device: DatagramDevice, old: str, new: str) -> str:
        """Notes the client id that a device is accepted with, and ends one that has had it at another address."""
        if self.names.get(old) is device:
            del self.names[old]
        rival = self.names.get(new)
        self.names[new] = device
        if rival is not None and rival is not device:
            rival.broker_lost("the client has connected from another address")
        return new

    def move(self, device: DatagramDevice, key: Any, peer: Peer) -> None:
        """Notes another address of a device."""
        if self.devices.get(device.key) is device:
            del self.devices[device.key]
        device.key, device.peer = key, peer
        self.devices[key] = device

    def forget(self, device: DatagramDevice, name: str) -> None:
        """Drops a device that has ended."""
        if self.names.get(name) is device:
            del self.names[name]
        if self.devices.get(device.key) is device:
            del self.devices[device.key]
        self._silent.pop(device, None)

    # --- reading --------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Handles the datagrams that are there, at most BATCH, then sends what follows from them."""
        touched: dict[Device, None] = {}
        receive, now_s, dtls = self._socket.recvfrom, self._loop.time(), self._dtls
        size = self._door.max_size + 1 if dtls is None else RECEIVE
        for _ in range(BATCH):
            try:
                data, peer = receive(size)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                continue  # an earlier datagram could not be delivered
            if dtls is None:
                messages: Iterable[bytes] = (data,)
            elif dtls.knows(data, peer) or self._admits_unknown(now_s):
                messages = dtls.received(data, peer, now_s)
            else:
                continue
            for message in messages:
                device = self._handle(message, peer, now_s)
                if device is not None:
                    touched[device] = None
        for device in touched:
            device.flush()

    def _handle(self, data: bytes, peer: Peer, now_s: float) -> Device | None:
        found = self._door.split(data)
        if found is None:
            self._home.figures["malformed"] += 1
            return None
        head, node, message = found
        key = (peer, node) if node else peer
        device = self.devices.get(key)
        if device is None:
            return self._unknown(key, head, message, peer, now_s)
        if device.is_silent and device.session is not None and device.session.is_proven:
            device.is_silent = False
            self._silent.pop(device, None)
        device.received(message, now_s)
        return device

    def _admits_unknown(self, now_s: float) -> bool:
        """Returns whether a datagram of an unknown sender is to be handled, as max_unknown_rate allows it."""
        rate = self._home.max_unknown_rate
        self._tokens = min(rate, self._tokens + (now_s - self._filled_s) * rate) if rate != float("inf") else rate
        self._filled_s = now_s
        if self._tokens < 1:
            self._home.figures["unknown_dropped"] += 1
            return False
        self._tokens -= 1
        return True

    def _unknown(self, key: Any, head: bytes, message: bytes, peer: Peer, now_s: float) -> Device | None:
        if not self._admits_unknown(now_s):
            return None
        knock = self._door.knock(message)
        if knock.verdict is Verdict.OPEN:
            return self._open(key, head, message, peer)
        if knock.verdict is Verdict.PUBLISH:
            publisher = self._publisher
            if publisher is None or publisher.session is None:
                publisher = self._publisher = _Publisher(self._home, self.own, self._door.make_publisher(now_s))
            if publisher.session is not None:
                publisher.session.from_device(message, now_s)
            return publisher
        if knock.verdict is Verdict.MOVE:
            device = self.names.get(knock.claim[0])
            if device is not None and device.session is not None and device.session.has_token(knock.claim[1]):
                self.move(device, key, peer)
                device.received(message, now_s)
                return device
        if knock.answer:
            self.send(head + knock.answer, peer)
        return None

    def _open(self, key: Any, head: bytes, message: bytes, peer: Peer) -> Device | None:
        if self._home.is_full and self._silent:
            next(iter(self._silent)).end("another device has taken its place: it has sent nothing since CONNECT")
        device = DatagramDevice(self, self._home, key, peer, head)
        if not self._home.admits(device, peer):
            if self._home.is_full:
                self.send(head + self._door.busy(message), peer)
            return None
        self.devices[key] = device
        if self._dtls is None:
            self._silent[device] = None
        device.open(message)
        return device

    async def _look_after(self, dtls: DtlsPeers) -> None:
        while True:
            await asyncio.sleep(HANDSHAKES_S)
            dtls.tick(self._loop.time())

    # --- advertising ----------------------------------------------------------------------------------------------------------

    async def _advertise(self) -> None:
        while True:
            found = self._door.advertisement() if self._home.is_first else None
            if found is None:
                await asyncio.sleep(1.0)  # settings may change
                continue
            data, address, interval_s = found
            host, _, port = address.rpartition(":")
            self.send(data, (host.strip("[]"), int(port)))
            await asyncio.sleep(interval_s)
