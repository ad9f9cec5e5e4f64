"""The client of the program's service: for each connection one event after the other, so that they keep their order."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from shardbroker.config.gateways import ExProtoHandler
from shardbroker.gateways.exproto.contract import PACKAGE, methods

__all__ = ["Handler", "HandlerError", "described"]

BACKOFF_MS = (100, 1000)
"""Delays between attempts of a connection to reconnect: the first, and the longest."""
CONNECT_MS = 5000
"""Time for one attempt, handshake included: gRPC takes the least delay for it too."""
MESSAGE_MAX = 300 << 20
"""Size limit of an event, bytes: that of a packet, and BATCH of them fit if they are as small as messages of devices are."""


class HandlerError(Exception):
    """An event was not taken; the text says why."""


class Handler:
    """The connection to the program. Raises HandlerError for certificate files that cannot be read."""

    def __init__(self, settings: ExProtoHandler) -> None:
        self.settings = settings
        self._channel = _channel(settings)
        service = f"{PACKAGE}.{settings.service_name}"
        self._requests = {name: request for name, (request, _) in methods(service).items()}
        self._stubs: dict[str, Any] = {}
        self._streams: dict[str, _Stream] = {}
        for name, (_, answer) in methods(service).items():
            path = f"/{service}/{name}"
            if settings.service_name == "ConnectionUnaryHandler":
                self._stubs[name] = self._channel.unary_unary(path, _serialized, answer.FromString)
            else:
                self._streams[name] = _Stream(self._channel.stream_unary(path, _serialized, answer.FromString))

    async def call(self, method: str, conn: str, fields: dict[str, Any]) -> None:
        """Passes an event on. Raises HandlerError."""
        request = self._requests[method](conn=conn, **fields)
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                if self._stubs:
                    await self._stubs[method](request, timeout=self.settings.request_timeout, wait_for_ready=True)
                else:
                    await self._streams[method].write(request)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, TimeoutError) as error:
            raise HandlerError(f"{self.settings.address}: {method}: {described(error)}") from None

    async def close(self) -> None:
        """Ends the connection; calls under way fail."""
        for stream in self._streams.values():
            stream.close()
        await self._channel.close()


class _Stream:
    """One method with a stream of requests; after a failure the next request opens another one."""

    def __init__(self, open_stream: Any) -> None:
        self._open = open_stream
        self._call: Any = None
        self._turn = asyncio.Lock()

    async def write(self, request: Any) -> None:
        async with self._turn:
            if self._call is None or self._call.done():
                self._call = self._open()
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._call = None
                raise

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()


def described(error: Exception) -> str:
    """Returns an error for people."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"[:200]
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _serialized(request: Any) -> bytes:
    return bytes(request.SerializeToString())


def _channel(settings: ExProtoHandler) -> grpc.aio.Channel:
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", BACKOFF_MS[0]),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", BACKOFF_MS[1]),
        ("grpc.max_send_message_length", MESSAGE_MAX),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    target = urlsplit(settings.address).netloc
    if not settings.ssl_options.enable:
        return grpc.aio.insecure_channel(target, options=options)
    tls = settings.ssl_options
    try:
        root, key, certificate = [Path(name).read_bytes() if name else None for name in (tls.cacertfile, tls.keyfile, tls.certfile)]
    except OSError as error:
        raise HandlerError(f"gateways.exproto.handler.ssl_options: {error.filename}: {error.strerror}") from None
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root, key, certificate), options=options)
