"""What the manager asks of the supervisor, over a real pair of sockets."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from shm.requests import answer, call, end_requests, take_request

PATIENCE_S = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Of the manager, of the supervisor."""
    manager, supervisor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with manager, supervisor:
        yield manager.fileno(), supervisor.fileno()


def test_a_request_is_answered(ends: tuple[int, int]) -> None:
    got: list[object] = []
    asking = threading.Thread(target=lambda: got.append(call(ends[0], {"verb": "access"}, PATIENCE_S)))
    asking.start()
    while (request := take_request(ends[1])) is None:
        time.sleep(0.01)
    answer(ends[1], {"problem": ""})
    asking.join(PATIENCE_S)
    assert request == {"verb": "access"} and got == [{"problem": ""}]


def test_a_request_ends_with_a_supervisor_that_stops(ends: tuple[int, int]) -> None:
    """It waited for 30 s, longer than the manager may take to stop, and the manager was killed."""
    failed: list[BaseException] = []

    def asks() -> None:
        try:
            call(ends[0], {"verb": "access"}, PATIENCE_S)
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=asks)
    asking.start()
    time.sleep(0.2)
    end_requests(ends[1])
    asking.join(5)
    assert not asking.is_alive() and not isinstance(failed[0], TimeoutError)
    asks()
    assert len(failed) == 2, "the next one ends at once, too"
