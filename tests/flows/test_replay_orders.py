"""What a process flows takes from workers. A replay and a look-up belong to a worker: two workers may choose the same number.

A stand-in for the topology and the lanes, since workers choose the same number only if they start in the same millisecond.
"""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardbroker.flows.lanes import Lanes
from shardbroker.flows.lookups import Lookups
from shardbroker.flows.replays import Replays
from shm.replays import encode
from shm.topology import Topology

NUMBER = 7
FROM_THE_START: tuple[Any, ...] = (0, None, {}, {}, 0, 0, None)


class Orders:
    """A process flows with two workers, and what it has let go of."""

    def __init__(self, directory: Path) -> None:
        (directory / "journal").mkdir()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self._workers, self._ends = [one for one, _ in pairs], [other for _, other in pairs]
        for end in self._ends:
            end.setblocking(False)
        topology = SimpleNamespace(
            data_dir=directory,
            receiving_ends=lambda *_: [end.fileno() for end in self._ends],
            places_of=lambda _: [None],
        )
        self.lookups = Lookups(cast(Any, None), cast(Lanes, None), dict, None, lambda *_: None)
        self.replays = Replays(cast(Topology, topology), 0, cast(Lanes, None), lambda *_: None, self.lookups)

    def send(self, worker: int, verb: str, *values: object) -> None:
        self._workers[worker].send(encode(verb, *values))
        self.replays.take_orders()

    def close(self) -> None:
        self.replays.close()
        for one in (*self._workers, *self._ends):
            one.close()


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    made = Orders(tmp_path)
    yield made
    made.close()


def test_two_workers_may_choose_the_same_number(orders: Orders) -> None:
    for worker in range(2):
        orders.send(worker, "begin", NUMBER, b"t", *FROM_THE_START)
    assert len(orders.replays) == 2
    orders.send(0, "end", NUMBER)
    assert len(orders.replays) == 1
    orders.send(0, "end", NUMBER)
    assert len(orders.replays) == 1
    orders.send(1, "reset")
    assert len(orders.replays) == 0


def test_look_ups_of_two_workers_with_the_same_number(orders: Orders) -> None:
    for worker in range(2):
        orders.send(worker, "lookup", NUMBER, "d", b"c", b"t", b"", b"\xff" * 16, 10, False, "http", [], {}, 0)
    taken = list(orders.lookups._new)
    assert [one.worker for one in taken] == [0, 1]
    assert [orders.lookups._is_wanted(one) for one in taken] == [True, True]
    orders.send(0, "lookup_end", NUMBER)
    assert [orders.lookups._is_wanted(one) for one in taken] == [False, True]
    orders.send(1, "reset")
    assert [orders.lookups._is_wanted(one) for one in taken] == [False, False]
