"""Requests that are gathered, over a connector without a server: which are made together, and who gets a failure."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from shardbroker.connectors import gathering
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.gathering import Gathering, NotTogetherError


class NoServer(Connector[int]):
    """A stand-in: it lends numbers."""

    def __init__(self) -> None:
        super().__init__(60)
        self.lent = 0

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[int]:
        self.lent += 1
        yield self.lent

    async def _ping(self, lent: int) -> None:
        pass

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError)

    async def _close(self) -> None:
        pass


class Requests:
    """Answers n by -n. What `made` has are the requests in the order they were made."""

    def __init__(self, connections: int = 8, timeout_s: float = 60) -> None:
        self.made: list[list[int]] = []
        self.wrong = -1
        """A request that fails, and those made with it."""
        self.slow = -1
        """A request that gets no answer, and those made with it."""
        self.are_single = False
        self.gathering: Gathering[int, int] = Gathering(
            NoServer(), self._one, self._several, connections=connections, timeout_s=timeout_s
        )

    async def all(self, *numbers: int) -> list[int | BaseException]:
        return await asyncio.gather(*map(self.gathering.answer, numbers), return_exceptions=True)

    async def _one(self, connection: int, number: int) -> int:
        self.made.append([number])
        await self._answered([number])
        return -number

    async def _several(self, connection: int, numbers: Sequence[int]) -> list[int]:
        if self.are_single:
            raise NotTogetherError
        self.made.append([*numbers])
        await self._answered(numbers)
        return [-number for number in numbers]

    async def _answered(self, numbers: Sequence[int]) -> None:
        if self.slow in numbers:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.wrong in numbers:
            raise ValueError(self.wrong)


def test_those_of_one_turn_are_made_together_each_with_its_own_answer() -> None:
    async def run() -> None:
        requests = Requests()
        assert await requests.all(1) == [-1]
        assert await requests.all(*range(100)) == [-number for number in range(100)]
        parts = [*range(32)], [*range(32, 64)], [*range(64, 96)], [*range(96, 100)]
        assert requests.made == [[1], *parts]

    asyncio.run(run())


def test_those_that_arrive_while_one_is_under_way_wait_for_each_other() -> None:
    async def run() -> None:
        requests = Requests(connections=2)
        requests.slow = 1
        first = asyncio.create_task(requests.gathering.answer(1))
        while not requests.made:
            await asyncio.sleep(0)
        second = asyncio.create_task(requests.gathering.answer(2))
        await asyncio.sleep(0)
        assert await requests.all(3) == [-3] and await second == -2  # over another connection
        assert requests.made == [[1], [2, 3]]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await requests.all(4) == [-4]

    asyncio.run(run())


def test_a_failure_reaches_only_the_request_that_causes_it() -> None:
    async def run() -> None:
        requests = Requests()
        requests.wrong = 2
        answers = await requests.all(1, 2, 3)
        assert [answers[0], repr(answers[1]), answers[2]] == [-1, "ValueError(2)", -3]
        assert requests.made == [[1, 2, 3], [1], [2], [3]]
        requests.made.clear()
        assert await requests.all(4, 5) == [-4, -5]
        assert requests.made == [[4], [5]]  # for a while
        requests.gathering._alone_until = 0.0
        assert await requests.all(6, 7) == [-6, -7]
        assert requests.made[2:] == [[6, 7]]

    asyncio.run(run())


def test_failures_in_a_row_are_followed_by_longer_pauses() -> None:
    async def run() -> None:
        requests = Requests()
        requests.wrong = 2
        pauses = []
        for _ in range(12):
            requests.gathering._alone_until = 0.0
            await requests.all(1, 2)
            pauses.append(requests.gathering._alone_until - asyncio.get_running_loop().time())
        assert pauses[0] <= 1 and pauses[-1] > 5
        requests.gathering._alone_until = 0.0
        assert await requests.all(3, 4) == [-3, -4]
        requests.gathering._alone_until = 0.0
        await requests.all(1, 2)
        assert requests.gathering._alone_until - asyncio.get_running_loop().time() <= 1

    asyncio.run(run())


def test_those_with_one_that_gets_no_answer_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SLOW_S", 0.01)

    async def run() -> None:
        requests = Requests(timeout_s=2)
        requests.slow = 2
        answers = await requests.all(1, 2, 3)
        assert [answers[0], type(answers[1]), answers[2]] == [-1, TimeoutError, -3]

    asyncio.run(run())


def test_all_connections_are_in_use_and_none_becomes_free() -> None:
    async def run() -> None:
        requests = Requests(connections=1, timeout_s=0.2)
        requests.slow = 1
        answers = await requests.all(1)
        assert isinstance(answers[0], TimeoutError)
        first = asyncio.create_task(requests.all(1))
        while len(requests.made) < 2:
            await asyncio.sleep(0)
        answers = await requests.all(2, 3)  # one turn later: they wait a little less for the connection than it is in use
        assert await first and all(isinstance(one, TimeoutError) or one in (-2, -3) for one in answers)
        assert await requests.all(4) == [-4]

    asyncio.run(run())


def test_requests_that_cannot_be_made_together() -> None:
    async def run() -> None:
        requests = Requests(connections=2)
        requests.are_single = True
        assert await requests.all(1, 2, 3, 4, 5) == [-1, -2, -3, -4, -5]
        assert await requests.all(6, 7) == [-6, -7]
        assert requests.made == [[number] for number in range(1, 8)]

    asyncio.run(run())


def test_a_request_that_is_given_up_is_not_made() -> None:
    async def run() -> None:
        requests = Requests()
        tasks = [asyncio.create_task(requests.gathering.answer(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        assert await asyncio.gather(tasks[0], tasks[2]) == [-1, -3]
        assert requests.made == [[1, 3]]

    asyncio.run(run())
