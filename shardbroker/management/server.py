"""Listens on the control socket, checks requests against the table of verbs, and runs their handlers."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardbroker.control import VERBS, ControlError
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame, short_path

__all__ = ["ControlServer", "Handler"]

READ_BYTES = 1 << 18
"""Bytes read at a time."""
CONNECTIONS_MAX = 100
"""Simultaneous connections; further ones are closed."""
REQUESTS_MAX = 32
"""Requests under way on one connection; at that number, reading from it pauses."""

Handler = Callable[[Any], Awaitable[Any] | AsyncIterator[Any]]
"""Called with the parameters; a stream yields items, and its last one is its result."""


class ControlServer:
    """Serves `<data_dir>/ctl.sock`. `audit` is called for every verb that changes something: origin, verb, parameters, code."""

    def __init__(
        self, data_dir: Path, handlers: dict[str, Handler], audit: Callable[[str, str, dict[str, Any], str], None]
    ) -> None:
        self._path = data_dir / SOCKET_NAME
        self._handlers = handlers
        self._audit = audit
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts listening. A socket left by a killed manager is removed first: the data directory belongs to this broker."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            with short_path(self._path) as name:
                self._server = await asyncio.start_unix_server(self._on_connection, name)
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Ends all connections and removes the socket."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        requests: set[asyncio.Task[None]] = set()
        try:
            await self._serve(reader, writer, requests)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except ControlError as error:
            with suppress(ConnectionError):
                writer.write(encode_frame({"id": None, "error": [error.code, str(error)]}))
        finally:
            for request in requests:
                request.cancel()
            writer.close()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: set[asyncio.Task[None]]) -> None:
        frames = Frames()
        while data := await reader.read(READ_BYTES):
            for message in frames.feed(data):
                request = asyncio.create_task(self._answer(message, writer))
                requests.add(request)
                request.add_done_callback(requests.discard)
                while len(requests) >= REQUESTS_MAX:
                    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = message.get("id")

        async def send(**answer: Any) -> None:
            writer.write(encode_frame({"id": number, **answer}))
            await writer.drain()

        with suppress(ConnectionError):
            try:
                await self._carry_out(message, send)
            except ControlError as error:
                await send(error=[error.code, str(error)])

    async def _carry_out(self, message: dict[str, Any], send: Callable[..., Awaitable[None]]) -> None:
        verb = VERBS.get(str(message.get("verb")))
        if verb is None or verb.name not in self._handlers:
            raise ControlError("NOT_FOUND", f"no verb {message.get('verb')!r}")
        given = message.get("params") or {}
        code = "OK"
        try:
            try:
                params = verb.params.model_validate(given)
            except ValidationError as error:
                raise ControlError("BAD_REQUEST", explain(error)) from None
            answer = self._handlers[verb.name](params)
            if inspect.isawaitable(answer):
                await send(result=await answer)
            else:
                last: Any = None
                async for item in answer:
                    await send(item=item)
                    last = item
                await send(result=last)
        except ControlError as error:
            code = error.code
            raise
        except ConnectionError:
            raise
        except Exception as error:
            code = "INTERNAL_ERROR"
            raise ControlError(code, f"{type(error).__name__}: {error}") from error
        finally:
            if verb.changes:
                self._audit(str(message.get("by", "")), verb.name, given, code)


def explain(error: ValidationError) -> str:
    """Returns the errors of parameters, in one line."""
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {problem['msg']}" for problem in error.errors())
