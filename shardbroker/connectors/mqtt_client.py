"""A client of MQTT 3.1, 3.1.1 and 5.0 over asyncio, which leaves acknowledgements to its user.

One connection follows another with the same client id. Packet ids outlive a connection: an id that is reserved stays with its
message until the server has completed it (MQTT 5.0 §4.4), also if a process before this one has sent it.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.reasons import network_reason
from shardbroker.connectors.server import end_connection
from shardbroker.mqtt.batches import encode_acks, encode_publishes, split_packets
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
)  # fmt: skip
from shardbroker.mqtt.spec import FAILURE, REASON_CODES, PacketType, PropertyId, ReasonCode

__all__ = ["Login", "Message", "MqttClient", "MqttRefused", "ServerLimits"]

PUBACK, PUBREL, PUBCOMP = map(int, (PacketType.PUBACK, PacketType.PUBREL, PacketType.PUBCOMP))
IDS = 65_535
"""Packet ids of a session (MQTT 5.0 §2.2.1)."""
RETURN_CODES = {
    1: "the server does not support this protocol version",
    2: "the server rejects the client id",
    3: "the server is not available",
    4: "the server rejects username or password",
    5: "the server does not authorize this client",
}
"""CONNACK of 3.x (MQTT 3.1.1 §3.2.2.3)."""
CONNACK_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: RETURN_CODES[1],
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: RETURN_CODES[2],
    ReasonCode.SERVER_UNAVAILABLE: RETURN_CODES[3],
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: RETURN_CODES[4],
    ReasonCode.NOT_AUTHORIZED: RETURN_CODES[5],
}
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Of Linux, for one answer at a time: a server that writes small packets without TCP_NODELAY would wait 40 ms for each."""
GATHER_S = 0.001
"""Time in which packets gather before the next read, once a server sends them one by one: a read costs more than a packet."""
QUICK_S, QUICK_READS = 0.0005, 8
"""Reads with so little time between them, one after the other, begin that."""
READ_MIN, READ_GOOD = 4, 16
"""Packets of a read: with fewer than that, nothing gathered; with that many, it pays without."""
PING_SHARE = 0.5
"""Share of the keep alive after which an idle client sends PINGREQ."""
PACKET_MAX = 268_435_455
"""Largest packet of the protocol, bytes."""
RECEIVE_MAXIMUM = 65_535


class MqttRefused(ConnectorError):
    """The server rejects the client, a user name or password among others; another attempt will not change it soon."""


class Message(NamedTuple):
    """A PUBLISH as encode_publishes() takes it; a tuple, since there is one for each row. flags: QoS << 1 | RETAIN, 8: DUP."""

    flags: int
    packet_id: int
    topic: bytes
    properties: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Login:
    """What CONNECT has. session_expiry_s: of version 5, without a clean start."""

    client_id: bytes
    version: int
    clean_start: bool
    keepalive_s: int
    username: bytes | None = None
    password: bytes | None = None
    bridge: bool = False
    receive_maximum: int = RECEIVE_MAXIMUM
    session_expiry_s: int = 0


@dataclass(slots=True)
class ServerLimits:
    """What CONNACK of version 5 has limited, or what holds without it."""

    receive_maximum: int = RECEIVE_MAXIMUM
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int = PACKET_MAX
    shared_subscriptions: bool = True
    wildcards: bool = True


@dataclass(slots=True)
class _Delivery:
    """Messages on their way; codes: the reason code of each, 0 until then."""

    messages: Sequence[Message]
    codes: list[int]
    left: int
    done: asyncio.Future[None]
    next: int = 0


@dataclass(slots=True)
class _Wire:
    """What belongs to one connection."""

    transport: asyncio.Transport
    socket: Any
    received: list[bytes] = field(default_factory=list)
    """Parts of a packet that is not whole."""
    missing: int = 0
    """Bytes without which it is not: parts are put together once, however many they are."""
    pings: deque[asyncio.Future[None]] = field(default_factory=deque)
    connack: asyncio.Future[Connack] | None = None
    subacks: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    quick_reads: int = 0
    """Reads of few packets with little time between them."""
    read_s: float = 0.0
    """Time of the end of the last read."""
    is_gathering: bool = False


class MqttClient(asyncio.Protocol):
    """host, port, tls: of the server. timeout_s: longest wait without any byte of the server, while an answer is due. most:
    messages of QoS 1 and 2 on their way to the server, besides its Receive Maximum. most_untold: those of QoS 2 in 3.x.

    on_publish: is called with each message that arrives; acknowledge() and the two steps of QoS 2 are left to it. on_release: is
    called with the id of a PUBREL, and has it answered. on_lost: is called when a connection has ended.
    """

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, login: Login, timeout_s: float, most: int, most_untold: int
    ) -> None:
        self.login, self._host, self._port, self._tls = login, host, port, tls
        self._timeout_s, self._most, self._most_untold = timeout_s, most, most_untold
        self.limits = ServerLimits()
        self.is_resumed = False
        """Whether the server has kept the session."""
        self.connections = 0
        """How often the server has accepted a connection: another number means another connection."""
        self.on_publish: Callable[[Publish], None] | None = None
        self.on_release: Callable[[int], None] | None = None
        self.on_lost: Callable[[ConnectorError], None] | None = None
        self._wire: _Wire | None = None
        self._opening = asyncio.Lock()
        self.turn = asyncio.Lock()
        """Of the actions that send messages of QoS 2."""
        self._room = self._most_room = 0
        """Messages that may be sent before an acknowledgement, and their number at first (MQTT 5.0 §4.9)."""
        self._room_of_qos2 = self._most_of_qos2 = 0
        """The same of those of QoS 2 alone: servers of 3.x have a limit that they do not name."""
        self._acks: dict[int, tuple[_Delivery, int]] = {}
        self._releases: dict[int, _Delivery] = {}
        self._reserved: set[int] = set()
        self._last_id = 0
        self._waiting: deque[_Delivery] = deque()
        """Deliveries with messages that are not sent."""
        self._heard_s = self._sent_s = 0.0
        self._due_s: float | None = None
        """Since when an answer is due, as _watch() has seen it."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._keepalive_s = login.keepalive_s
        self._is_paused = False

    # --- connection -----------------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._wire is not None and self._wire.connack is None

    async def connect(self) -> None:
        """Returns once the server has accepted the client; at once if it is connected.

        Raises MqttRefused, ConnectorError, OSError, TimeoutError.
        """
        async with self._opening:
            if self.is_connected:
                return
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._connect()
            except BaseException:
                self.drop(ConnectorError("the connection was not opened"))
                raise

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._host, self._port, ssl=self._tls)
        wire, login = self._wire, self.login
        if wire is None:
            raise ConnectorError("the connection was closed")
        answer = wire.connack = loop.create_future()
        properties: dict[int, Any] = {}
        if login.version == 5:
            properties[PropertyId.RECEIVE_MAXIMUM] = login.receive_maximum
            if not login.clean_start and login.session_expiry_s:
                properties[PropertyId.SESSION_EXPIRY_INTERVAL] = login.session_expiry_s
        connect = Connect(
            login.version, login.client_id, login.clean_start, login.keepalive_s, login.username, login.password,
            properties=properties or None, bridge=login.bridge and login.version < 5,
        )  # fmt: skip
        wire.transport.write(connect.encode(login.version))
        connack = await answer
        if connack.reason_code:
            raise _refusal(connack, login.version)

    def _accepted(self, connack: Connack) -> None:
        assert self._wire is not None
        given = connack.properties or {}
        self.limits = ServerLimits(
            given.get(PropertyId.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM),
            given.get(PropertyId.MAXIMUM_QOS, 2),
            bool(given.get(PropertyId.RETAIN_AVAILABLE, 1)),
            given.get(PropertyId.MAXIMUM_PACKET_SIZE, PACKET_MAX),
            bool(given.get(PropertyId.SHARED_SUBSCRIPTION_AVAILABLE, 1)),
            bool(given.get(PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE, 1)),
        )
        self._keepalive_s = given.get(PropertyId.SERVER_KEEP_ALIVE, self.login.keepalive_s)
        self.is_resumed = connack.session_present
        self._room = self._most_room = min(self._most, self.limits.receive_maximum)
        self._room_of_qos2 = self._most_of_qos2 = self._room if self.login.version == 5 else min(self._room, self._most_untold)
        self.connections += 1
        self._wire.connack = None
        self._heard_s = self._sent_s = asyncio.get_running_loop().time()
        self._watch()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = _Wire(cast(asyncio.Transport, transport), transport.get_extra_info("socket"))
        self._is_writable.set()
        self._is_paused = False

    def connection_lost(self, error: Exception | None) -> None:
        reason = "the connection was closed" if error is None else network_reason(error)
        is_refused = self._wire is not None and self._wire.connack is not None and self._tls is None
        self.drop(ConnectorError(f"{reason}, as if the server expects TLS" if is_refused else reason))

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def close(self) -> None:
        """Ends the connection as its client; the server keeps the session unless it was a clean one."""
        wire = self._wire
        if wire is not None and wire.connack is None:
            wire.transport.write(Disconnect().encode(self.login.version))
            end_connection(wire.transport)
        self.drop(ConnectorError("the client was closed"))

    def drop(self, error: ConnectorError) -> None:
        """Ends the connection; everything that waits for it fails."""
        wire, self._wire = self._wire, None
        self._room = self._room_of_qos2 = 0
        self._is_writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wire is None:
            return
        wire.transport.abort() if not wire.transport.is_closing() else None
        deliveries = {id(one): one for one, _ in self._acks.values()}
        deliveries |= {id(one): one for one in (*self._releases.values(), *self._waiting)}
        self._acks.clear()
        self._releases.clear()
        self._waiting.clear()
        futures: list[asyncio.Future[Any]] = [one.done for one in deliveries.values()]
        futures += [*wire.pings, *wire.subacks.values(), *([wire.connack] if wire.connack is not None else [])]
        for one in futures:
            if not one.done():
                one.set_exception(error)
                one.exception()  # also those that are awaited no more
        if self.on_lost is not None and wire.connack is None:
            self.on_lost(error)

    def _watch(self) -> None:
        """Sends PINGREQ after idle times, and ends a connection whose server is silent while an answer is due."""
        loop = asyncio.get_running_loop()
        wire, now_s = self._wire, loop.time()
        if wire is None:
            return
        if self._is_paused or not (self._acks or self._releases or wire.pings or wire.subacks):
            self._due_s = None
        elif self._due_s is None:
            self._due_s = now_s
        elif now_s - max(self._heard_s, self._due_s) > self._timeout_s:
            self.drop(ConnectorError("no response in time"))
            return
        idle_s = self._keepalive_s * PING_SHARE
        if self._keepalive_s and now_s - self._sent_s >= idle_s and not wire.pings:
            self._keep(self.ping())
        wait_s = min(self._timeout_s / 4, max(idle_s / 4, 0.05) if self._keepalive_s else self._timeout_s)
        self._timer = loop.call_later(wait_s, self._watch)

    @staticmethod
    def _keep(work: Any) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda one: one.cancelled() or one.exception())

    def _write(self, data: bytes) -> None:
        wire = self._wire
        if wire is None or wire.connack is not None:
            raise ConnectorError("the client is not connected")
        self._sent_s = asyncio.get_running_loop().time()
        wire.transport.write(data)

    def pause_reading(self) -> None:
        """Stops reading; silence of the server means nothing meanwhile."""
        if self._wire is not None:
            self._is_paused = True
            self._wire.transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if self._wire is not None and self._is_paused:
            self._heard_s = asyncio.get_running_loop().time()
            self._wire.transport.resume_reading()
        self._is_paused = False

    async def ping(self) -> None:
        """Returns once the server has answered, so it has handled all that was sent before. Raises ConnectorError."""
        self._write(Pingreq().encode(self.login.version))
        assert self._wire is not None
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wire.pings.append(answer)
        await answer

    # --- packets of the server ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        if QUICK_ACK is not None and wire.socket is not None:
            wire.socket.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)
        if wire.received:
            wire.received.append(data)
            wire.missing -= len(data)
            if wire.missing > 0:
                return
            data = b"".join(wire.received)
            wire.received.clear()
        try:
            packets, used = split_packets(data, self.login.version, PACKET_MAX)
            if used < len(data):
                wire.received.append(data[used:])
                wire.missing = _missing_bytes(data, used)
            for packet in packets:
                self._handle(packet, wire)
                if self._wire is not wire:
                    return
        except MqttError as error:
            self.drop(ConnectorError(f"the server violates the protocol: {error.message[:200]!r}"))
            return
        if self._waiting:
            self._send_waiting()
        self._gather(len(packets), wire, loop)

    def _gather(self, packets: int, wire: _Wire, loop: asyncio.AbstractEventLoop) -> None:
        """Leaves packets in the socket for a moment while there are many small reads."""
        if wire.is_gathering:
            goes_on = packets >= READ_MIN
        else:
            goes_on = packets < READ_GOOD and self._heard_s - wire.read_s < QUICK_S
        wire.quick_reads = wire.quick_reads + 1 if goes_on else 0
        wire.is_gathering = wire.quick_reads >= QUICK_READS and not self._is_paused
        if wire.is_gathering:
            wire.transport.pause_reading()
            loop.call_later(GATHER_S, self._gathered, wire)
        wire.read_s = loop.time()

    def _gathered(self, wire: _Wire) -> None:
        if wire is self._wire and not self._is_paused:
            wire.transport.resume_reading()

    def _handle(self, packet: Any, wire: _Wire) -> None:
        if type(packet) is tuple:
            kind, packet_id, code = packet
            if kind == PUBREL:
                if self.on_release is not None:
                    self.on_release(packet_id)
                else:
                    self._write(Pubcomp(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND).encode(self.login.version))
            elif kind == PUBCOMP:
                self._completed(packet_id)
            else:
                self._acknowledged(kind, packet_id, code)
        elif type(packet) is Publish:
            if self.on_publish is not None:
                self.on_publish(packet)
        elif type(packet) is Pingresp:
            if wire.pings and not (answer := wire.pings.popleft()).done():
                answer.set_result(None)
        elif type(packet) is Connack and wire.connack is not None:
            answer = wire.connack
            if not packet.reason_code:
                self._accepted(packet)  # at once: messages may follow in the same read
            if not answer.done():
                answer.set_result(packet)
        elif type(packet) in (Suback, Unsuback):
            suback = wire.subacks.pop(packet.packet_id, None)
            if suback is not None and not suback.done():
                suback.set_result(packet)
        elif type(packet) is Disconnect:
            self.drop(ConnectorError(f"the server has ended the connection: {_name_of(packet.reason_code)}"))
        else:
            self.drop(ConnectorError("the server violates the protocol: a packet that only clients send"))

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        """PUBACK, or PUBREC, which gives its room back once it is completed, unless it has failed (MQTT 5.0 §4.9)."""
        found = self._acks.pop(packet_id, None)
        if found is None:
            return
        delivery, index = found
        if kind != PUBACK:
            if code >= FAILURE:
                self._give_back()
        elif self._room < self._most_room:
            self._room += 1
        if code:
            delivery.codes[index] = code
        delivery.left -= 1
        if not delivery.left and not delivery.done.done():
            delivery.done.set_result(None)

    def _give_back(self) -> None:
        """Notes that a message of QoS 2 is completed."""
        self._room = min(self._room + 1, self._most_room)
        self._room_of_qos2 = min(self._room_of_qos2 + 1, self._most_of_qos2)

    def _completed(self, packet_id: int) -> None:
        delivery = self._releases.pop(packet_id, None)
        if delivery is None:
            return
        self._give_back()
        self._reserved.discard(packet_id)
        delivery.left -= 1
        if not delivery.left and not delivery.done.done():
            delivery.done.set_result(None)

    # --- messages to the server -----------------------------------------------------------------------------------------------

    @property
    def reserved(self) -> Set[int]:
        """The ids of messages of QoS 2 that are not completed."""
        return self._reserved

    @property
    def room(self) -> int:
        """Messages of QoS 2 that can be sent before one is completed."""
        return min(self._room, self._room_of_qos2)

    def reserve(self, packet_id: int) -> None:
        """Keeps an id for a message of QoS 2 that was sent before."""
        self._reserved.add(packet_id)

    def take_ids(self, count: int) -> list[int]:
        """Reserves ids for messages of QoS 2. Raises ConnectorError if there are not so many."""
        if len(self._reserved) + len(self._acks) + count > IDS:
            raise ConnectorError("all packet ids are in use")
        found = []
        for _ in range(count):
            found.append(self._next_id())
            self._reserved.add(found[-1])
        return found

    def free_id(self, packet_id: int) -> None:
        """Ends the reservation of an id."""
        self._reserved.discard(packet_id)

    def _next_id(self) -> int:
        number = self._last_id
        while True:
            number = number + 1 if number < IDS else 1
            if number not in self._acks and number not in self._reserved:
                self._last_id = number
                return number

    async def publish(self, messages: Sequence[Message]) -> list[int]:
        """Sends messages in order; returns their reason codes once the server has answered all, a PINGREQ for those of QoS 0.

        Messages of QoS 1 get their ids here, those of QoS 2 have reserved ones and are answered by PUBREC. Raises ConnectorError.
        """
        await self._is_writable.wait()
        if self._wire is None:
            raise ConnectorError("the client is not connected")
        unanswered = sum(1 for one in messages if not one[0] & 6)
        delivery = _Delivery(messages, [0] * len(messages), len(messages) - unanswered, asyncio.get_running_loop().create_future())
        if not delivery.left:
            delivery.done.set_result(None)
        self._waiting.append(delivery)
        self._send_waiting()
        await delivery.done
        if unanswered:
            while delivery.next < len(messages):
                await self.ping()
            await self.ping()
        return delivery.codes

    def _send_waiting(self) -> None:
        """Sends as many messages as there is room for, those of the first delivery first."""
        waiting = self._waiting
        while waiting:
            delivery = waiting[0]
            out = self._next_of(delivery)
            if out:
                self._write(encode_publishes(out, self.login.version))
            if delivery.next < len(delivery.messages):
                return
            waiting.popleft()

    def _next_of(self, delivery: _Delivery) -> list[Message]:
        out: list[Any] = []
        messages, acks, at, room = delivery.messages, self._acks, delivery.next, self._room
        while at < len(messages):
            message = messages[at]
            flags, _, topic, properties, payload = message
            if not flags & 6:
                out.append(message)
            elif not room:
                break
            elif flags & 4:
                if not self._room_of_qos2:
                    break
                self._room_of_qos2 -= 1
                room -= 1
                acks[message.packet_id] = delivery, at
                out.append(message)
            else:
                number = self._next_id()
                room -= 1
                acks[number] = delivery, at
                out.append((flags, number, topic, properties, payload))
            at += 1
        delivery.next, self._room = at, room
        return out

    async def wait_for_room(self) -> None:
        """Returns when a message of QoS 2 can be sent. Raises ConnectorError."""
        while not (self.room and self._is_writable.is_set()):
            await self._is_writable.wait()
            if not self.room:
                await self.ping()

    async def release(self, packet_ids: Sequence[int]) -> None:
        """Sends PUBREL for messages of QoS 2; returns when all are completed and their ids free. Raises ConnectorError."""
        if not packet_ids:
            return
        delivery = _Delivery((), [], len(packet_ids), asyncio.get_running_loop().create_future())
        for one in packet_ids:
            self._releases[one] = delivery
        self._write(encode_acks(Pubrel.first, list(packet_ids)))
        await delivery.done

    # --- messages from the server ---------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[tuple[bytes, int]]) -> list[int]:
        """Subscribes to filters, each with its options; returns the reason code of each. Raises ConnectorError."""
        number = self._next_id()
        answer: asyncio.Future[Suback] = asyncio.get_running_loop().create_future()
        self._write(Subscribe(number, list(topics)).encode(self.login.version))
        assert self._wire is not None
        self._wire.subacks[number] = answer
        return list((await answer).codes)

    def acknowledge(self, packet_ids: Sequence[tuple[int, int]]) -> None:
        """Sends PUBACK for (id, QoS 1) and PUBREC for (id, QoS 2). Raises ConnectorError."""
        received = [one for one, qos in packet_ids if qos == 2]
        if len(received) < len(packet_ids):
            self._write(encode_acks(Puback.first, [one for one, qos in packet_ids if qos == 1]))
        if received:
            self._write(encode_acks(Pubrec.first, received))

    def complete(self, packet_ids: Sequence[int]) -> None:
        """Sends PUBCOMP. Raises ConnectorError."""
        self._write(encode_acks(Pubcomp.first, list(packet_ids)))


def _missing_bytes(data: bytes, at: int) -> int:
    """Returns how many bytes a packet lacks that begins at `at`; 1 if its length is not whole either."""
    size = shift = 0
    for place in range(at + 1, len(data)):
        size |= (data[place] & 127) << shift
        shift += 7
        if data[place] < 128:
            return place + 1 + size - len(data)
    return 1


def _refusal(connack: Connack, version: int) -> ConnectorError:
    code = connack.reason_code
    text = (CONNACK_CODES if version == 5 else RETURN_CODES).get(code) or f"the server rejects the connection: {_name_of(code)}"
    return MqttRefused(text)


def _name_of(code: int) -> str:
    name = REASON_CODES[code][0] if code in REASON_CODES else "unknown"
    return f"{name} (0x{code:02x})"
