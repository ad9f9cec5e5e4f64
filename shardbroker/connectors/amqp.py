"""RabbitMQ, by AMQP 0-9-1: a pool of connections with a channel each, on which messages are published and confirmed in batches, and
connections that receive from a queue.

    connection.start -> start-ok, tune -> tune-ok, open -> open-ok, channel.open -> open-ok

Texts of the server about a connection or channel that it closes name what the settings name: vhost, exchange, queue, user.
"""

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from shardbroker.config.connectors import RabbitmqConnection
from shardbroker.connectors.amqp_wire import (
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PREAMBLE,
    AmqpFault,
    Reader,
    method,
    octets,
    short_text,
    table,
)
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectorError, one_line
from shardbroker.connectors.server import address_of, end_connection, tls_of

__all__ = ["Amqp", "AmqpChannelClosed", "AmqpConnection", "AmqpLost", "Confirmed", "Delivery"]

Method = tuple[int, int]
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
SECURE = (10, 20)
CLOSE, CLOSE_OK, BLOCKED, UNBLOCKED = (10, 50), (10, 51), (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 10), (20, 11), (20, 40), (20, 41)
DECLARE, DECLARE_OK, EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (50, 10), (50, 11), (40, 10), (40, 11)
QOS, QOS_OK, CONSUME, CONSUME_OK, CANCEL = (60, 10), (60, 11), (60, 20), (60, 21), (60, 30)
RETURN, DELIVER, ACK, NACK = (60, 50), (60, 60), (60, 80), (60, 120)
CONFIRM, CONFIRM_OK = (85, 10), (85, 11)
ACK_START = struct.pack(">HH", *ACK)
CHANNEL = 1
"""The only channel of a connection."""
FRAME_MAX = 131_072
"""Bytes of a frame with its 8 bytes around the payload; the server may want less."""
FRAME_LEAST = 4096
"""Every peer takes frames of this size."""
RECEIVED_MAX = 512 << 20
"""Bytes of a message that is received; RabbitMQ has the same limit."""
MISSED = 2
"""Intervals of heartbeats without a byte of the server, after which it is lost."""
CAPABILITIES = {
    b"authentication_failure_close": True, b"basic.nack": True, b"connection.blocked": True, b"consumer_cancel_notify": True,
    b"publisher_confirms": True,
}  # fmt: skip


class AmqpLost(ConnectorError):
    """The connection is closed, or was never open."""


class AmqpChannelClosed(AmqpLost):
    """The server has closed the channel: `code` of AMQP, such as 404, and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Delivery(NamedTuple):
    """A message of a queue."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: dict[str, Any]
    """Texts are str if they are UTF-8, otherwise bytes."""
    body: bytes


class Confirmed(NamedTuple):
    """The outcome of a batch, by position in it."""

    refused: list[int]
    """Negative confirms: the server could not take the message."""
    returned: dict[bytes, int]
    """Message id -> times that a message with it was returned as unroutable."""


class AmqpConnection(asyncio.Protocol):
    """One connection, with one channel. Made by Amqp.open()."""

    def __init__(self, settings: RabbitmqConnection) -> None:
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answers: dict[Method, asyncio.Future[Reader]] = {}
        self.error: Exception | None = None
        """Why it cannot be used any more; None: it can."""
        self.frame_max = FRAME_LEAST
        self._blocked = ""
        self._heartbeat_s = 0.0
        self._ticking: asyncio.TimerHandle | None = None
        self._heard = False
        self._silent = 0
        self._content: tuple[Method, Reader] | None = None
        """The method whose message is under way."""
        self._properties: dict[str, Any] = {}
        self._body: list[bytes] = []
        self._left = 0
        self._confirms: _Confirms | None = None
        self._on_delivery: Callable[[Delivery], None] | None = None
        self._lost = asyncio.Event()

    # --- asyncio --------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PREAMBLE)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(AmqpLost("the server has closed the connection") if error is None else error)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        try:
            while end - at >= 8:
                if buffer.startswith(b"AMQP", at):
                    raise AmqpFault("the server speaks another version of AMQP than 0-9-1")
                kind, _, size = struct.unpack_from(">BHI", buffer, at)
                if size + 8 > max(self.frame_max, FRAME_MAX):
                    raise AmqpFault(f"a frame must be at most {max(self.frame_max, FRAME_MAX)} bytes, got {size + 8}")
                if end - at < size + 8:
                    break
                if buffer[at + 7 + size] != FRAME_END:
                    raise AmqpFault("a frame does not end where it should")
                payload = bytes(memoryview(buffer)[at + 7 : at + 7 + size])
                at += size + 8
                self._on_frame(kind, payload)
        except (AmqpFault, struct.error, IndexError) as error:
            fault = error if isinstance(error, AmqpFault) else "a frame is too short"
            self._fail(AmqpLost(f"protocol error: {fault}"))
            return
        del buffer[:at]

    # --- frames ---------------------------------------------------------------------------------------------------------------

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == METHOD and len(payload) == 13 and payload.startswith(ACK_START) and self._confirms is not None:
            self._confirms.take(int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1), False)
        elif kind == METHOD:
            self._on_method(struct.unpack_from(">HH", payload), Reader(payload, 4))
        elif kind == HEADER:
            self._left, self._properties = Reader(payload).properties()
            self._body = []
            if self._left > RECEIVED_MAX:
                raise AmqpFault(f"a message must be at most {RECEIVED_MAX} bytes, got {self._left}")
            if not self._left:
                self._on_content()
        elif kind == BODY:
            self._body.append(payload)
            self._left -= len(payload)
            if self._left <= 0:
                self._on_content()
        elif kind != HEARTBEAT:
            raise AmqpFault(f"no frame has the type {kind}")

    def _on_method(self, number: Method, arguments: Reader) -> None:
        if number in (ACK, NACK):
            tag, bits = arguments.number(">Q"), arguments.number(">B")
            if self._confirms is not None:
                self._confirms.take(tag, bool(bits & 1), number == NACK)
        elif number in (DELIVER, RETURN):
            self._content = number, arguments
        elif number == CLOSE:
            code, text = arguments.number(">H"), arguments.text()
            self.write(method(0, CLOSE_OK))
            self._fail(AmqpLost(self._reason(code, text)))
        elif number == CHANNEL_CLOSE:
            code, text = arguments.number(">H"), arguments.text()
            self.write(method(CHANNEL, CHANNEL_CLOSE_OK))
            self._fail(AmqpChannelClosed(code, self._reason(code, text)))
        elif number == CANCEL:
            self._fail(AmqpLost("the server has ended the consumer: the queue was deleted, or has moved"))
        elif number == BLOCKED:
            self._blocked = one_line(arguments.text()) or "a limit of the server"
        elif number == UNBLOCKED:
            self._blocked = ""
        elif (waiting := self._answers.pop(number, None)) is not None and not waiting.done():
            waiting.set_result(arguments)

    def _reason(self, code: int, text: str) -> str:
        if code == 403 and "login" in text.lower():
            return f"login refused for user {self._settings.username!r} ({code})"
        return f"{one_line(text)} ({code})"

    def _on_content(self) -> None:
        if self._content is None:
            raise AmqpFault("a message without its method")
        (number, arguments), self._content = self._content, None
        if number == RETURN:
            if self._confirms is not None:
                id = self._properties.get("message_id", "")
                self._confirms.give_back(id.encode() if isinstance(id, str) else id)
            return
        arguments.short()  # the tag of the only consumer
        tag, bits = arguments.number(">Q"), arguments.number(">B")
        exchange, routing_key = arguments.text(), arguments.text()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if self._on_delivery is not None:
            self._on_delivery(Delivery(tag, bool(bits & 1), exchange, routing_key, self._properties, body))

    def write(self, data: bytes) -> None:
        """Writes frames; nothing once the connection is lost."""
        if self._transport is not None and self.error is None:
            self._transport.write(data)

    async def call(self, answer: Method, request: bytes = b"") -> Reader:
        """Returns the arguments of the answer to a request. Raises the error that ends the connection."""
        if self.error is not None:
            raise self.error
        waiting: asyncio.Future[Reader] = asyncio.get_running_loop().create_future()
        self._answers[answer] = waiting
        if request:
            self.write(request)
        try:
            return await waiting
        finally:
            self._answers.pop(answer, None)

    def _fail(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # the caller may be gone
        if self._confirms is not None:
            self._confirms.changed.set()
        if self._ticking is not None:
            self._ticking.cancel()
        self._lost.set()
        if self._transport is not None:
            end_connection(self._transport)

    def abort(self) -> None:
        """Closes the connection at once: what was written and not confirmed may be there or not."""
        self._fail(AmqpLost("closed"))
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes the connection behind what was written."""
        self.write(method(0, CLOSE, struct.pack(">H", 200), short_text(b"closed"), struct.pack(">HH", 0, 0)))
        self._fail(AmqpLost("closed"))

    # --- handshake ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Logs in, opens the virtual host, and a channel. Raises ConnectorError, OSError."""
        settings = self._settings
        arguments = await self.call(START)
        arguments.number(">H")
        arguments.table()
        mechanisms = arguments.long().split()
        if b"PLAIN" not in mechanisms:
            raise AmqpLost("the server has no login by user name and password (PLAIN)")
        login = b"\0" + settings.username.encode() + b"\0" + settings.password.encode()
        own = table({b"product": b"shardbroker", b"capabilities": CAPABILITIES})
        tuned = asyncio.ensure_future(self.call(TUNE))
        self.write(method(0, START_OK, own, short_text(b"PLAIN"), octets(login), short_text(b"en_US")))
        arguments = await tuned
        channels, largest, heartbeat = arguments.number(">H"), arguments.number(">I"), arguments.number(">H")
        self.frame_max = max(min(largest or FRAME_MAX, FRAME_MAX), FRAME_LEAST)
        wanted = int(settings.heartbeat)
        interval = min(wanted, heartbeat) if wanted and heartbeat else max(wanted, heartbeat)
        self.write(method(0, TUNE_OK, struct.pack(">HIH", channels, self.frame_max, interval)))
        await self.call(OPEN_OK, method(0, OPEN, short_text(settings.virtual_host.encode()), b"\0\0"))
        await self.call(CHANNEL_OPEN_OK, method(CHANNEL, CHANNEL_OPEN, b"\0"))
        if interval:
            self._heartbeat_s = interval / 2
            self._tick()

    def _tick(self) -> None:
        """Sends a heartbeat twice in each interval; two intervals without a byte are a loss."""
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent > 2 * MISSED:
            self._fail(AmqpLost("the server has sent no heartbeat"))
            if self._transport is not None:
                self._transport.abort()
            return
        self.write(HEARTBEAT_FRAME)
        self._ticking = asyncio.get_running_loop().call_later(self._heartbeat_s, self._tick)

    async def confirm(self) -> None:
        """Has the server confirm what is published from now on."""
        await self.call(CONFIRM_OK, method(CHANNEL, CONFIRM, b"\0"))
        self._confirms = _Confirms()

    async def look(self) -> None:
        """Checks that the server answers."""
        await self.call(QOS_OK, method(CHANNEL, QOS, struct.pack(">IHB", 0, 0, 0)))

    # --- publishing -----------------------------------------------------------------------------------------------------------

    async def publish(self, count: int, data: bytes, timeout_s: float) -> Confirmed:
        """Writes `count` messages as frames; returns once all are confirmed. timeout_s: longest wait without progress.

        Raises AmqpLost, TimeoutError, OSError: the outcome is not known then.
        """
        confirms, transport = self._confirms, self._transport
        assert confirms is not None and transport is not None, "confirm() has been called"
        if self._blocked:
            raise AmqpLost(f"the server takes no messages: {self._blocked}")
        confirms.begin(count)
        self.write(data)
        progress = -1
        while confirms.left and self.error is None:
            confirms.changed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await confirms.changed.wait()
            except TimeoutError:
                now = confirms.left + transport.get_write_buffer_size()
                if self._blocked:
                    raise AmqpLost(f"the server takes no messages: {self._blocked}") from None
                if now == progress:
                    raise
                progress = now
        if confirms.left:
            assert self.error is not None
            raise self.error
        return confirms.outcome()

    async def check_exchange(self, exchange: str) -> None:
        """Checks that an exchange exists. Raises AmqpChannelClosed."""
        name = short_text(exchange.encode())
        passive = b"\x01"
        await self.call(
            EXCHANGE_DECLARE_OK, method(CHANNEL, EXCHANGE_DECLARE, b"\0\0", name, short_text(b"direct"), passive, octets(b""))
        )

    async def messages_of(self, queue: str) -> int:
        """Returns the number of messages of a queue that are ready. Raises AmqpChannelClosed if there is no such queue."""
        passive = b"\x01"
        found = await self.call(DECLARE_OK, method(CHANNEL, DECLARE, b"\0\0", short_text(queue.encode()), passive, octets(b"")))
        found.short()
        count: int = found.number(">I")
        return count

    # --- receiving ------------------------------------------------------------------------------------------------------------

    async def consume(self, queue: str, prefetch: int, on_delivery: Callable[[Delivery], None]) -> None:
        """Begins to receive from a queue; at most `prefetch` messages are not acknowledged. Raises AmqpChannelClosed."""
        await self.call(QOS_OK, method(CHANNEL, QOS, struct.pack(">IHB", 0, prefetch, 0)))
        self._on_delivery = on_delivery
        name = short_text(queue.encode())
        await self.call(CONSUME_OK, method(CHANNEL, CONSUME, b"\0\0", name, short_text(b""), b"\0", octets(b"")))

    def acknowledge(self, tag: int) -> None:
        """Acknowledges all messages up to one; nothing once the connection is lost."""
        self.write(method(CHANNEL, ACK, struct.pack(">QB", tag, 1)))

    async def wait_lost(self) -> Exception:
        """Returns why the connection has ended, once it has."""
        await self._lost.wait()
        assert self.error is not None
        return self.error


class _Confirms:
    """The messages of a channel that are not confirmed. Delivery tags count from 1."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._first = self._low = self._end = 1
        """Tags of the batch: its first one, the lowest that is not confirmed, and the one behind it."""
        self._ahead: set[int] = set()
        """Confirmed, above the lowest that is not."""
        self._refused: list[int] = []
        self._returned: dict[bytes, int] = {}

    @property
    def left(self) -> int:
        return self._end - self._low - len(self._ahead)

    def begin(self, count: int) -> None:
        self._first = self._low = self._end
        self._end += count
        self._ahead.clear()
        self._refused, self._returned = [], {}

    def take(self, tag: int, multiple: bool, is_refused: bool) -> None:
        if not self._first <= tag < self._end:
            return
        if is_refused:
            begin = self._low if multiple else tag
            self._refused += [one - self._first for one in range(begin, tag + 1) if one not in self._ahead]
        if multiple:
            self._low = max(self._low, tag + 1)
            self._ahead = {one for one in self._ahead if one >= self._low}
        elif tag >= self._low:
            self._ahead.add(tag)
        while self._low in self._ahead:
            self._ahead.remove(self._low)
            self._low += 1
        self.changed.set()

    def give_back(self, id: bytes) -> None:
        self._returned[id] = self._returned.get(id, 0) + 1

    def outcome(self) -> Confirmed:
        return Confirmed(self._refused, self._returned)


class Amqp(Connector[AmqpConnection]):
    """Lends connections that confirm what is published. Each one is used for one batch at a time."""

    def __init__(self, settings: RabbitmqConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self.settings = settings
        self._address = address_of(settings, key)
        self._tls: ssl.SSLContext | None = tls_of(settings, key)
        self._places = asyncio.Semaphore(settings.pool_size)
        self._idle: deque[AmqpConnection] = deque()
        self._lent: set[AmqpConnection] = set()

    async def open(self) -> AmqpConnection:
        """Returns a connection of its own, which the caller closes. Raises ConnectorError, OSError, TimeoutError."""
        host, port = self._address
        loop = asyncio.get_running_loop()
        connection = AmqpConnection(self.settings)
        try:
            async with asyncio.timeout(self._timeout_s):
                name = host if self._tls is not None else None
                await loop.create_connection(lambda: connection, host, port, ssl=self._tls, server_hostname=name)
                await connection.start()
        except BaseException:
            connection.abort()
            raise
        return connection

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[AmqpConnection]:
        """Lends a connection for a batch, as `connection` does, but without a time limit for all of it."""
        try:
            async with self._lend() as lent:
                yield lent
        except Exception as error:
            if self._is_lost(error):
                self.health.lost(error)
            raise
        self.health.reached()

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[AmqpConnection]:
        async with self._places:
            connection = self._take_idle()
            if connection is None:
                connection = await self.open()
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await connection.confirm()
                except BaseException:
                    connection.abort()
                    raise
            self._lent.add(connection)
            try:
                yield connection
            except BaseException:
                connection.abort()  # its confirms are not known
                raise
            finally:
                self._lent.discard(connection)
            if connection.error is None:
                self._idle.append(connection)

    def _take_idle(self) -> AmqpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.error is None:
                return connection
        return None

    async def _ping(self, lent: AmqpConnection) -> None:
        await lent.look()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, AmqpLost | OSError) and not isinstance(error, AmqpChannelClosed)

    async def _close(self) -> None:
        for connection in (*self._idle, *self._lent):
            with suppress(Exception):
                connection.close()
        self._idle.clear()
