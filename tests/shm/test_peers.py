"""The other process of a pair: named by its pid, which another process may have by then."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from shm.peers import ENDED, Peer, await_end
from tests.shm.processes import running


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        yield own, other


def test_a_process_that_runs_is_awaited(ends: tuple[socket.socket, socket.socket]) -> None:
    own, other = ends
    with running(signal.pause) as child:
        other.close()  # the child has it
        process = Peer(own).process(child.pid)
        assert process != ENDED
        assert not await_end(process, 0.01)
        child.kill()
        assert await_end(process, 10)
        os.close(process)


def test_a_process_that_was_reaped_has_ended_and_its_messages_are_read(ends: tuple[socket.socket, socket.socket]) -> None:
    own, other = ends
    Peer(other).send({"adopted": 1}, 0.0)
    with running(signal.pause) as child:
        other.close()
    peer = Peer(own)
    assert peer.process(child.pid) == ENDED
    assert await_end(ENDED, 0)
    assert peer.receive(0.0)[0] == {"adopted": 1}


def test_a_pid_that_another_process_has_by_now_is_not_that_process(ends: tuple[socket.socket, socket.socket]) -> None:
    own, other = ends
    other.close()
    assert Peer(own).process(os.getpid()) == ENDED
