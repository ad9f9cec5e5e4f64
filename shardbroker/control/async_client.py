"""Client of the control channel for programs on asyncio."""

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.control.errors import ControlError
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame, short_path

__all__ = ["AsyncControl"]

TIMEOUT_S = 60.0
"""Longest wait for a response; all timeouts of the manager are shorter."""
READ_BYTES = 1 << 18
"""Bytes read at a time."""


class AsyncControl:
    """One connection for any number of concurrent requests, opened on demand and reopened after a restart of the broker.

    Raises ControlError: BROKER_DOWN if the broker does not respond, otherwise with the code of the response.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / SOCKET_NAME
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def call(self, verb: str, /, requested_by: str = "", **params: Any) -> Any:
        """Returns the result of a verb; of one that streams, its last item. `requested_by` is the author for the audit log."""
        number = next(self._ids)
        frame = encode_frame({"id": number, "verb": verb, "params": params, "by": requested_by})
        writer = await self._connected()
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            writer.write(frame)
            await writer.drain()
            return await asyncio.wait_for(answer, TIMEOUT_S)
        except TimeoutError:
            raise ControlError("BROKER_DOWN", "the broker did not respond in time") from None
        except OSError as error:
            raise ControlError("BROKER_DOWN", f"connection to the broker lost: {error.strerror or error}") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Closes the connection and cancels the requests under way."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                try:
                    with short_path(self._path) as name:
                        reader, self._writer = await asyncio.open_unix_connection(name)
                except OSError as error:
                    raise ControlError("BROKER_DOWN", f"the manager of the broker is down: {error.strerror or error}") from None
                self._reading = asyncio.create_task(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        try:
            with suppress(OSError, ControlError):
                while data := await reader.read(READ_BYTES):
                    for answer in frames.feed(data):
                        self._take(answer)
        finally:
            writer.close()
            self._writer = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ControlError("BROKER_DOWN", "the broker has closed the connection"))

    def _take(self, answer: dict[str, Any]) -> None:
        waiting = self._waiting.get(answer.get("id", 0))
        if waiting is None or waiting.done() or "item" in answer:
            return
        if "error" in answer:
            waiting.set_exception(ControlError(*answer["error"]))
        else:
            waiting.set_result(answer.get("result"))
