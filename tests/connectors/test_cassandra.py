"""Statements on their way to Cassandra, with a session in place of the library's whose sockets have no room at first."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

cluster = pytest.importorskip("cassandra.cluster")
connection = pytest.importorskip("cassandra.connection")

from shardbroker.connectors.cassandra import _Requests  # noqa: E402

BUSY = cluster.NoHostAvailable("busy", {"node": connection.ConnectionBusy("overloaded")})
DOWN = cluster.NoHostAvailable("down", {"node": connection.ConnectionShutdown("closed")})


class Answered:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def add_callbacks(
        self, done: Callable[..., None], failed: Callable[..., None], callback_args: tuple[int], errback_args: tuple[int]
    ) -> None:
        if self._error is None:
            done(None, *callback_args)
        else:
            failed(self._error, *errback_args)


class Session:
    """answers: what each attempt meets, in order; then the last one again."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = [*answers]
        self.sent: list[Any] = []

    def execute_async(self, statement: Any) -> Answered:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not BUSY:
            self.sent.append(statement)
        return Answered(answer)


def done(session: Session, statements: int, silence_s: float = 60) -> list[Exception | None]:
    async def scenario() -> list[Exception | None]:
        return await _Requests(session, [*range(statements)], silence_s).done()  # type: ignore[arg-type]

    return asyncio.run(scenario())


def test_statements_without_room_are_sent_again_once_each() -> None:
    session = Session(None, BUSY, BUSY, None, BUSY, None)
    assert done(session, 40) == [None] * 40
    assert sorted(session.sent) == [*range(40)]


def test_a_connection_that_closes_ends_the_others() -> None:
    assert done(Session(None, DOWN, BUSY), 3) == [None, DOWN, DOWN]


def test_room_is_not_waited_for_longer_than_for_an_answer() -> None:
    with pytest.raises(TimeoutError):
        done(Session(BUSY), 3, silence_s=0.1)
