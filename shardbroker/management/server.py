"""Listens on the control socket, checks requests against the table of verbs, and runs their handlers."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shardbroker.control import VERBS, ControlError, Verb
from shardbroker.control.protocol import SOCKET_NAME, Frames, encode_frame, short_path
from shardbroker.management.audit import AUTHOR

if TYPE_CHECKING:
    from shardbroker.management.nodes import Nodes

__all__ = ["ControlServer", "Handler"]

READ_BYTES = 1 << 18
"""Bytes read at a time."""
CONNECTIONS_MAX = 100
"""Simultaneous connections of programs of this machine; further ones are closed."""
NODE_CONNECTIONS_MAX = 20
"""Likewise of each other node, apart from those: one for all its verbs, and one for each that streams."""
BY_MAX = 256
"""Characters of an author that another node names, which the audit log keeps."""
REQUESTS_MAX = 32
"""Requests under way on one connection; at that number, reading from it pauses."""

Handler = Callable[[Any], Awaitable[Any] | AsyncIterator[Any]]
"""Called with the parameters; a stream yields items, and its last one is its result."""


class ControlServer:
    """Serves `<data_dir>/ctl.sock` of the node `node`. `audit` is called for every verb that changes something: origin, verb,
    parameters, code."""

    def __init__(
        self, data_dir: Path, node: str, handlers: dict[str, Handler], audit: Callable[[str, str, dict[str, Any], str], None]
    ) -> None:
        self._node = node
        self._path = data_dir / SOCKET_NAME
        self._handlers = handlers
        self._audit = audit
        self.nodes: Nodes | None = None
        """The other nodes; None without a cluster."""
        self._connections: dict[asyncio.Task[None], str] = {}
        """With the node that asks; empty: a program of this machine."""
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

    async def serve_node(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], node: str) -> None:
        """Answers the manager of another node until it closes the connection."""
        await self._on_connection(*streams, node)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str = "") -> None:
        """node: the node that asks; empty: a program of this machine."""
        task = asyncio.current_task()
        assert task is not None
        most = NODE_CONNECTIONS_MAX if node else CONNECTIONS_MAX
        if [*self._connections.values()].count(node) >= most:
            writer.close()
            return
        self._connections[task] = node
        requests: set[asyncio.Task[None]] = set()
        try:
            await self._serve(reader, writer, requests, node)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except ControlError as error:
            with suppress(ConnectionError):
                writer.write(encode_frame({"id": None, "error": [error.code, str(error)]}))
        finally:
            for request in requests:
                request.cancel()
            writer.close()
            self._connections.pop(task, None)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: set[asyncio.Task[None]], node: str
    ) -> None:
        frames = Frames()
        while data := await reader.read(READ_BYTES):
            for message in frames.feed(data):
                request = asyncio.create_task(self._answer(message, writer, node))
                requests.add(request)
                request.add_done_callback(requests.discard)
                while len(requests) >= REQUESTS_MAX:
                    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, message: dict[str, Any], writer: asyncio.StreamWriter, node: str) -> None:
        number = message.get("id")

        async def send(**answer: Any) -> None:
            writer.write(encode_frame({"id": number, **answer}))
            await writer.drain()

        with suppress(ConnectionError):
            try:
                await self._carry_out(message, send, node)
            except ControlError as error:
                await send(error=[error.code, str(error)])

    async def _carry_out(self, message: dict[str, Any], send: Callable[..., Awaitable[None]], asking: str) -> None:
        verb = VERBS.get(str(message.get("verb")))
        if verb is None or verb.name not in self._handlers:
            raise ControlError("NOT_FOUND", f"no verb {message.get('verb')!r}")
        given, by = message.get("params") or {}, str(message.get("by", ""))
        if asking:
            assert self.nodes is not None
            self.nodes.check(verb)
            await self._do(verb, given, f"{by[:BY_MAX]}@{asking}", send)
        elif wanted := message.get("node"):
            await self._do_at(str(wanted), verb, given, by, send)
        elif message.get("all_nodes"):
            await send(result=await self._rows(verb, given, by))
        elif verb.is_of_client and self.nodes is not None:
            await send(result=await self.nodes.holder(verb, given, by, partial(self._result, verb, by)))
        else:
            await self._do(verb, given, by, send)

    async def _rows(self, verb: Verb, given: dict[str, Any], by: str) -> dict[str, Any]:
        """Returns a list with the rows of all nodes."""
        checked(verb, given)
        if not verb.columns or verb.is_of_client:
            raise ControlError("BAD_REQUEST", f"{verb.name}: must be a list for all nodes; a node can be named")
        if self.nodes is not None:
            return await self.nodes.rows(verb, given, by, partial(self._result, verb, by))
        found: dict[str, Any] = await self._result(verb, by, given)
        return {**found, "data": [{"node": self._node, **row} for row in found["data"]], "missing": []}

    async def _do_at(self, node: str, verb: Verb, given: dict[str, Any], by: str, send: Callable[..., Awaitable[None]]) -> None:
        if node == self._node:
            await self._do(verb, given, by, send)
        elif self.nodes is None:
            raise ControlError("NOT_FOUND", f"no node {node!r}: this is {self._node}")
        elif not verb.stream:
            await send(result=await self.nodes.call(node, verb.name, given, by))
        else:
            await send_all(self.nodes.stream(node, verb.name, given, by), send)

    async def _result(self, verb: Verb, by: str, given: dict[str, Any]) -> Any:
        """Returns the result of a verb that does not stream, from this node."""
        found: list[Any] = []

        async def keep(result: Any) -> None:
            found.append(result)

        await self._do(verb, given, by, keep)
        return found[0]

    async def _do(self, verb: Verb, given: dict[str, Any], by: str, send: Callable[..., Awaitable[None]]) -> None:
        """Carries a verb out on this node."""
        code = "OK"
        AUTHOR.set(by)
        try:
            answer = self._handlers[verb.name](checked(verb, given))
            if inspect.isawaitable(answer):
                await send(result=await answer)
            else:
                await send_all(answer, send)
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
                self._audit(by, verb.name, given, code)


async def send_all(items: AsyncIterator[Any], send: Callable[..., Awaitable[None]]) -> None:
    """Sends the items of a verb that streams, and the last one as its result."""
    last: Any = None
    async for item in items:
        await send(item=item)
        last = item
    await send(result=last)


def checked(verb: Verb, given: dict[str, Any]) -> Any:
    """Returns the parameters of a verb. Raises ControlError."""
    try:
        return verb.params.model_validate(given)
    except ValidationError as error:
        raise ControlError("BAD_REQUEST", explain(error)) from None


def explain(error: ValidationError) -> str:
    """Returns the errors of parameters, in one line."""
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {problem['msg']}" for problem in error.errors())
