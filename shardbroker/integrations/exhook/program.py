"""One program: its availability, its requirements, and the connections to it."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import grpc
import grpc.aio

from shardbroker.access.contract import BackendError
from shardbroker.config.exhook import ExHookServer
from shardbroker.hooks.exhook import FORWARDED, Wanted, presumed
from shardbroker.integrations.exhook.contract import LOADED, METHODS, SERVICES, UNLOADED, Method
from shardbroker.integrations.exhook.requests import Requests
from shardbroker.integrations.failures import Report
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter

__all__ = ["Figures", "Program"]

EVENTS_MAX = 10_000
"""Limit of the events that wait for one program; further ones are dropped."""
EVENT_BYTES_MAX = 16 << 20
"""Limit of their size, bytes."""
UNLOAD_TIMEOUT_S = 1.0
"""Timeout of the last call, when the program is no longer used, seconds."""
BACKOFF_MS = (100, 1000)
"""Delays between attempts of a connection to reconnect: the first, and the longest."""
CONNECT_MS = 5000
"""Time for one attempt, handshake included: gRPC takes the least delay for it too."""
NEVER_MS = 2**31 - 1
MESSAGE_OVERHEAD = 1 << 20
"""Size limit of a request beside its payload and topic, bytes."""
LEVELS_MAX = 65535
CONNECTING, CONNECTED, DISCONNECTED = "connecting", "connected", "disconnected"
"""The states of a program."""


@dataclass(slots=True)
class Figures:
    """Outcomes of the calls of one point."""

    succeeded: int = 0
    failed: int = 0
    dropped: int = 0


class Program:
    """The connections to one program. `limit`: size limit of a message, bytes; `on_change`: called when `wanted` may have changed.

    Raises BackendError for certificate files that cannot be read.
    """

    def __init__(
        self, settings: ExHookServer, requests: Requests, limit: int, log: Report, on_change: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.state = CONNECTING
        self.figures = {point: Figures() for point in FORWARDED}
        self._settled = asyncio.Event()
        """Cleared while the program is being connected: a request then waits for the outcome."""
        self._requests, self._on_change = requests, on_change
        self._log = log
        self._wanted: Wanted | None = None
        self._service = SERVICES[0]
        self._lost = asyncio.Event()
        size = limit + MESSAGE_OVERHEAD
        options = [
            ("grpc.use_local_subchannel_pool", 1),  # one connection per lane
            ("grpc.enable_http_proxy", 0),
            ("grpc.client_idle_timeout_ms", NEVER_MS),  # the end of a connection means that the program is gone
            ("grpc.initial_reconnect_backoff_ms", BACKOFF_MS[0]),
            ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", BACKOFF_MS[1]),
            ("grpc.max_send_message_length", size),
            ("grpc.max_receive_message_length", size),
        ]
        self._lanes = [_Lane(self, _channel(settings, options)) for _ in range(settings.pool_size)]
        self._tasks: list[asyncio.Task[None]] = []
        self._queued = self._queued_bytes = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_loaded()), *(asyncio.create_task(lane.run()) for lane in self._lanes)]

    @property
    def wanted(self) -> Wanted:
        """Returns the reported requirements of the program, or the presumed ones."""
        return self._wanted or presumed([self.settings])[0]

    @property
    def known(self) -> bool:
        """Returns whether `wanted` is final, so that there is nothing to wait for."""
        return self._wanted is not None or self._settled.is_set()

    async def when_known(self) -> None:
        if not self.known:
            await self._settled.wait()

    def _report(self, text: str) -> None:
        self._log(f"exhook.{self.settings.name}", text)

    # --- coming and going -----------------------------------------------------------------------------------------------------

    async def _keep_loaded(self) -> None:
        """Connects to the program, and reconnects to it when the connection is lost."""
        again_s = self.settings.auto_reconnect
        while True:
            loaded = await self._load()
            self._settled.set()
            self._on_change()
            if loaded:
                await self._until_lost()
                self.state = DISCONNECTED
                for lane in self._lanes:
                    lane.drop_events()
                self._report("connection lost")
            if again_s is None:
                return
            if loaded:
                self._settled.clear()
            else:
                await asyncio.sleep(again_s)

    async def _until_lost(self) -> None:
        """Waits until the connection is lost.

        A connection that was lost and restored counts as lost too: a waiting call has restored it, and the program at its other end
        has not reported its requirements.
        """
        channel, ready = self._lanes[0].channel, grpc.ChannelConnectivity.READY
        if not self._lost.is_set() and channel.get_state() == ready:
            waits = [asyncio.ensure_future(one) for one in (self._lost.wait(), channel.wait_for_state_change(ready))]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
        self._lost.clear()

    async def _load(self) -> bool:
        try:
            answer = await self._call_loaded()
            points = dict(self._specs(answer))
        except (grpc.aio.AioRpcError, TimeoutError, BackendError) as error:
            self.state = DISCONNECTED
            self._report(f"OnProviderLoaded failed at {self.settings.url}: {_described(error)}")
            return False
        self._wanted = Wanted(points, self.settings.failed_action == "deny", self.settings.request_timeout)
        self.state = CONNECTED
        return True

    async def _call_loaded(self) -> Any:
        """Calls OnProviderLoaded, under the first name of the service that the program supports."""
        for service in SERVICES:
            self._service = service
            try:
                return await self._lanes[0].call(LOADED, self._requests.loaded(), False)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        raise BackendError(f"service: must be {' or '.join(SERVICES)}, got neither")

    def _specs(self, answer: Any) -> Any:
        for one in answer.hooks:
            if one.name not in FORWARDED:
                self._report(f"hook ignored: must be one of {', '.join(FORWARDED)}, got {one.name!r}")
                continue
            filters = list(one.topics) if one.name.startswith("message.") else []
            for filter in filters:
                try:
                    check_topic_filter(filter.encode(), LEVELS_MAX)
                except MqttError as error:
                    raise BackendError(f"{one.name}: topics: must be topic filters, got {filter!r}: {error}") from None
            yield one.name, filters

    def note_failure(self, point: str, error: Exception) -> None:
        """Counts and reports a failed call. If the program was not reachable, it counts as gone."""
        self.figures[point].failed += 1
        self._report(f"{point}: {_described(error)}")
        if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE:
            self._lost.set()

    async def close(self) -> None:
        """Notifies the program, if it is connected, and closes the connections."""
        for task in self._tasks:
            task.cancel()
        self._settled.set()  # requests that wait for it fail now
        with suppress(grpc.aio.AioRpcError, TimeoutError):
            if self.state == CONNECTED:
                self.state = DISCONNECTED
                async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                    await self._lanes[0].call(UNLOADED, self._requests.unloaded(), False)
        for lane in self._lanes:
            await lane.channel.close()

    # --- calls ----------------------------------------------------------------------------------------------------------------

    @property
    def service(self) -> str:
        return self._service

    def _lane_of(self, client_id: str) -> "_Lane":
        """Returns the lane of a client: it keeps the client's calls in order."""
        return self._lanes[crc32(client_id.encode()) % len(self._lanes)]

    async def call(self, point: str, client_id: str, request: Any) -> Any:
        """Returns the answer of the program, or None after an error."""
        try:
            if not self._settled.is_set():
                async with asyncio.timeout(self.settings.request_timeout):
                    await self._settled.wait()
            if self.state != CONNECTED:
                raise BackendError("not connected")
            answer = await self._lane_of(client_id).call(METHODS[point], request)
        except (grpc.aio.AioRpcError, TimeoutError, BackendError) as error:
            self.note_failure(point, error)
            return None
        self.figures[point].succeeded += 1
        return answer

    def notify(self, point: str, client_id: str, request: Any) -> None:
        """Queues an event without waiting."""
        size = request.ByteSize()
        if self.state != CONNECTED or self._queued >= EVENTS_MAX or self._queued_bytes + size > EVENT_BYTES_MAX:
            self.figures[point].dropped += 1
            return
        self._queued += 1
        self._queued_bytes += size
        self._lane_of(client_id).put(point, request, size)

    def taken(self, size: int) -> None:
        """Records that an event was sent, or has failed."""
        self._queued -= 1
        self._queued_bytes -= size

    def state_line(self) -> dict[str, Any]:
        """Returns the state for ctl, REST and metrics."""
        return {
            "settings": self.settings.model_dump(mode="json"),
            "status": self.state,
            "hooks": {} if self._wanted is None else self._wanted.points,
            "queued": self._queued,
            "metrics": {
                point: [of.succeeded, of.failed, of.dropped]
                for point, of in self.figures.items()
                if of.succeeded or of.failed or of.dropped or (self._wanted is not None and point in self._wanted.points)
            },
        }


class _Lane:
    """One connection, and its queue of events, which are sent one after the other."""

    def __init__(self, program: Program, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._program = program
        self._events: deque[tuple[str, Any, int]] = deque()
        self._filled = asyncio.Event()
        self._sending: asyncio.Future[Any] | None = None
        """The call of an event under way."""
        self._stubs: dict[tuple[str, str], Any] = {}

    async def call(self, method: Method, request: Any, waits: bool = True) -> Any:
        """Calls a method. `waits`: for a connection under way, since another lane has reached the program.

        Raises AioRpcError, TimeoutError.
        """
        key = self._program.service, method.name
        stub = self._stubs.get(key)
        if stub is None:
            stub = self._stubs[key] = self.channel.unary_unary(
                f"/{key[0]}/{key[1]}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=method.response.FromString,
            )
        return await stub(request, timeout=self._program.settings.request_timeout, wait_for_ready=waits)

    def put(self, point: str, request: Any, size: int) -> None:
        self._events.append((point, request, size))
        self._filled.set()

    def drop_events(self) -> None:
        """Drops the queued events and the one under way: the program may require other points after it connects again."""
        if self._sending is not None:
            self._sending.cancel()
        while self._events:
            point, _, size = self._events.popleft()
            self._program.figures[point].dropped += 1
            self._program.taken(size)

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            while self._events:
                point, request, size = self._events.popleft()
                try:
                    if self._program.state != CONNECTED:
                        self._program.figures[point].dropped += 1
                        continue
                    self._sending = asyncio.ensure_future(self.call(METHODS[point], request))
                    await self._sending
                    self._program.figures[point].succeeded += 1
                except asyncio.CancelledError:
                    if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                        raise  # this lane is closed
                    self._program.figures[point].dropped += 1
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    self._program.note_failure(point, error)
                finally:
                    self._program.taken(size)
            self._filled.clear()


def _channel(settings: ExHookServer, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
    target = urlsplit(settings.url).netloc
    if not settings.ssl.enable:
        return grpc.aio.insecure_channel(target, options=options)
    files = (settings.ssl.cacertfile, settings.ssl.keyfile, settings.ssl.certfile)
    try:
        root, key, certificate = [Path(name).read_bytes() if name else None for name in files]
    except OSError as error:
        raise BackendError(f"exhook {settings.name}: {error.filename}: {error.strerror}") from None
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root, key, certificate), options=options)


def _described(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {(error.details() or '').strip()[:200]}"
    return str(error) or "no response in time"


