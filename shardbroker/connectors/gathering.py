"""Requests of the same kind that arrive close together, answered by one request to the server."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from shardbroker.connectors.connector import Connector, retry_delay_s

__all__ = ["Gathering", "NotTogetherError"]

TOGETHER_MAX = 32
"""Requests answered as one; more would save little, and share a failure with more neighbours."""
GATHER_S = 0.001
"""Longest wait for others: short against a login, long enough for several to arrive where there are thousands a second."""
SLOW_S = 0.25
"""Longest wait for the answer to several requests; then each is made alone, and waits for itself only."""
PAUSE_S = 1.0
"""Time after a failure of several in which each request is made alone: a client whose values make requests fail costs little.

Failures in a row lengthen it, as `retry_delay_s`: a server that always needs longer than SLOW_S is rarely tried with several.
"""

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class NotTogetherError(Exception):
    """Requests of this kind can only be made one by one, whatever their values."""


class _SlowError(Exception):
    """Several requests had no answer in time."""

    def __init__(self) -> None:
        super().__init__(f"no answer to several requests within {SLOW_S} s")


class _Entry(NamedTuple):
    request: Any
    answer: "asyncio.Future[Any]"
    deadline: float
    """Time of the event loop."""


class Gathering(Generic[Request, Answer]):
    """Answers requests over the connections of a connector.

    A request is made in the next turn of the event loop, together with those that arrive until then. While another is under way, or
    if there were several last time, it waits for others: until an answer arrives, but no longer than GATHER_S if a connection is
    free. If several fail together, each of them is made again, alone: a failure reaches only the request that causes it.
    """

    def __init__(
        self,
        connector: Connector[Any],
        one: Callable[[Any, Request], Awaitable[Answer]],
        several: Callable[[Any, Sequence[Request]], Awaitable[Sequence[Answer]]],
        *,
        connections: int,
        timeout_s: float,
    ) -> None:
        """one, several: make requests over a connection; several returns an answer for each, in order.

        several may raise NotTogetherError. connections: most that are used at a time. timeout_s: longest wait for an answer.
        """
        self._connector, self._one, self._several = connector, one, several
        self._connections, self._timeout_s = connections, timeout_s
        self._waiting: deque[_Entry] = deque()
        self._alone: deque[_Entry] = deque()
        """Entries that failed with others."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._next: asyncio.Handle | None = None
        self._were_several = False
        self._alone_until = 0.0
        self._failures = 0
        """Of several, in a row."""

    async def answer(self, request: Request) -> Answer:
        """Returns the answer to a request. Raises what the request raises, or TimeoutError."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        entry = _Entry(request, loop.create_future(), now + self._timeout_s)
        self._waiting.append(entry)
        if self._next is None and len(self._under_way) < self._connections:
            if (self._under_way or self._were_several) and now >= self._alone_until:
                self._next = loop.call_later(GATHER_S, self._make)
            else:
                self._next = loop.call_soon(self._make)
        answer: Answer = await entry.answer
        return answer

    def _make(self) -> None:
        """Makes the requests that wait, as far as connections are free."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        loop = asyncio.get_running_loop()
        while len(self._under_way) < self._connections:
            now = loop.time()
            entries = self._taken(self._alone, 1, now)
            entries = entries or self._taken(self._waiting, 1 if now < self._alone_until else TOGETHER_MAX, now)
            if not entries:
                return
            self._were_several = len(entries) > 1
            task = loop.create_task(self._answer_all(entries, now))
            self._under_way.add(task)
            task.add_done_callback(self._ended)
            if len(entries) == 1:
                entries[0].answer.add_done_callback(partial(_give_up, task))

    def _taken(self, queue: deque[_Entry], most: int, now: float) -> list[_Entry]:
        """Returns the first entries of a queue, without those that were given up or waited too long."""
        taken: list[_Entry] = []
        while queue and len(taken) < most:
            entry = queue.popleft()
            if entry.answer.done():
                continue
            if entry.deadline <= now:
                entry.answer.set_exception(TimeoutError("no connection became free in time"))
            else:
                taken.append(entry)
        return taken

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._waiting or self._alone:
            self._make()

    async def _answer_all(self, entries: list[_Entry], now: float) -> None:
        try:
            async with self._connector.connection(entries[0].deadline - now) as connection:
                answers = await self._answers(connection, [entry.request for entry in entries])
        except NotTogetherError:
            self._alone_until = float("inf")
            self._alone.extend(entries)
        except Exception as error:
            if len(entries) > 1:
                self._failures += 1
                pause_s = max(PAUSE_S, retry_delay_s(self._failures))
                self._alone_until = max(self._alone_until, asyncio.get_running_loop().time() + pause_s)
                self._alone.extend(entries)
            elif not entries[0].answer.done():
                entries[0].answer.set_exception(error)
        else:
            if len(entries) > 1:
                self._failures = 0
            for entry, answer in zip(entries, answers, strict=True):
                if not entry.answer.done():
                    entry.answer.set_result(answer)

    async def _answers(self, connection: Any, requests: list[Request]) -> Sequence[Answer]:
        if len(requests) == 1:
            return [await self._one(connection, requests[0])]
        try:
            async with asyncio.timeout(SLOW_S):
                return await self._several(connection, requests)
        except TimeoutError:
            raise _SlowError from None


def _give_up(task: asyncio.Task[None], answer: "asyncio.Future[Any]") -> None:
    """Ends a request whose caller no longer waits."""
    if answer.cancelled():
        task.cancel()
