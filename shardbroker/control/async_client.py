"""Client of the control channel for programs on asyncio."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.control.errors import ControlError
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame, short_path

__all__ = ["AsyncCalls", "AsyncControl"]

TIMEOUT_S = 60.0
"""Longest wait for a response; all timeouts of the manager are shorter."""
READ_BYTES = 1 << 18
"""Bytes read at a time."""
ITEMS_MAX = 100
"""Items of a stream that wait for who takes them; then the connection is not read."""


Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class AsyncCalls:
    """One connection for any number of concurrent requests, opened on demand by `open`, and again once it is lost.

    Raises ControlError: BROKER_DOWN if there is no connection or no response in time, otherwise with the code of the response; and
    what `open` raises.
    """

    def __init__(self, open: Open, name: str = "the broker", timeout_s: float = TIMEOUT_S) -> None:
        """name: of the other side, for errors."""
        self._open = open
        self._name = name
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._items: dict[int, asyncio.Queue[Any]] = {}
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def call(
        self,
        verb: str,
        /,
        requested_by: str = "",
        at_node: str = "",
        of_all_nodes: bool = False,
        patience_s: float | None = None,
        **params: Any,
    ) -> Any:
        """Returns the result of a verb; of one that streams, its last item. requested_by: the author for the audit log. at_node:
        the node of the cluster that carries it out; empty: the one that is asked. of_all_nodes: a list, with the rows of all.
        patience_s: longest wait, for verbs that stream since they take long."""
        patience_s = patience_s or self._timeout_s
        number, answer = await self._ask(verb, requested_by, at_node, of_all_nodes, params)
        try:
            return await asyncio.wait_for(answer, patience_s)
        except TimeoutError:
            raise ControlError("BROKER_DOWN", f"{self._name} did not respond within {patience_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def stream(self, verb: str, /, requested_by: str = "", **params: Any) -> AsyncIterator[Any]:
        """Yields the items of a verb that streams. For a connection of its own: closing it is what ends the verb."""
        items: asyncio.Queue[Any] = asyncio.Queue(ITEMS_MAX)
        number, answer = await self._ask(verb, requested_by, "", False, params, items)
        item = asyncio.ensure_future(items.get())
        try:
            while True:
                await asyncio.wait([item, answer], return_when=asyncio.FIRST_COMPLETED)
                if not item.done() and items.empty():
                    await answer
                    return
                yield await item
                item = asyncio.ensure_future(items.get())
        finally:
            item.cancel()
            self._waiting.pop(number, None)
            self._items.pop(number, None)

    async def _ask(
        self, verb: str, by: str, at_node: str, of_all_nodes: bool, params: dict[str, Any], items: asyncio.Queue[Any] | None = None
    ) -> tuple[int, asyncio.Future[Any]]:
        number = next(self._ids)
        message = {"id": number, "verb": verb, "params": params, "by": by}
        if at_node or of_all_nodes:
            message |= {"node": at_node} if at_node else {"all_nodes": True}
        frame = encode_frame(message)
        writer = await self._connected()
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        if items is not None:
            self._items[number] = items
        try:
            writer.write(frame)
            await writer.drain()
        except OSError as error:
            self._waiting.pop(number, None)
            self._items.pop(number, None)
            raise ControlError("BROKER_DOWN", f"connection to {self._name} lost: {error.strerror or error}") from None
        return number, answer

    async def close(self) -> None:
        """Closes the connection and cancels the requests under way."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await self._open()
                self._reading = asyncio.create_task(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        try:
            with suppress(OSError, ControlError):
                while data := await reader.read(READ_BYTES):
                    for answer in frames.feed(data):
                        if (items := self._items.get(answer.get("id", 0))) is not None and "item" in answer:
                            await items.put(answer["item"])
                        else:
                            self._take(answer)
        finally:
            writer.close()
            self._writer = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ControlError("BROKER_DOWN", f"{self._name} has closed the connection"))

    def _take(self, answer: dict[str, Any]) -> None:
        waiting = self._waiting.get(answer.get("id", 0))
        if waiting is None or waiting.done() or "item" in answer:
            return
        if "error" in answer:
            waiting.set_exception(ControlError(*answer["error"]))
        else:
            waiting.set_result(answer.get("result"))


class AsyncControl(AsyncCalls):
    """The control socket of the broker with this data directory; connected again after a restart of the broker."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(self._dial)
        self._path = data_dir / SOCKET_NAME

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            with short_path(self._path) as name:
                return await asyncio.open_unix_connection(name)
        except OSError as error:
            raise ControlError("BROKER_DOWN", f"the manager of the broker is down: {error.strerror or error}") from None
