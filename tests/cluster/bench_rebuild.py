"""What a change of members costs a node with many sessions: its answer to REBUILD, and the registrar that takes it.

    python -m tests.cluster.bench_rebuild [sessions]

CPU time of both, in one process without sockets, and the longest turns: a worker serves no client in one. As in a worker, the
collector of cycles is off.
"""

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardbroker.cluster.claims import Holding
from shardbroker.cluster.messages import Queued, Rebuild
from shardbroker.cluster.outputs import ToNode
from shardbroker.cluster.registry import client_key
from shardbroker.cluster.rendezvous import PARTITIONS
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import NodeSessions, checked
from shardbroker.link.session_codec import decode_session, encode_session

CLUSTER = b"c" * 16
HOLDER, REGISTRAR = 1, 2


class Queues:
    """No session has moved."""

    def queued(self, uid: int, most: int) -> Sequence[Queued]:
        return ()

    def delivered_of(self, uid: int) -> tuple[int, Sequence[int]]:
        return 0, ()


class Turns:
    """Times of the turns of one side, in s of CPU."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def take(self, call: Callable[[], Any]) -> Any:
        begin_s = time.thread_time()
        found = call()
        self.times_s.append(time.thread_time() - begin_s)
        return found

    def show(self, what: str) -> None:
        first, *others = self.times_s
        longest = max(others, default=0.0)
        sums = f"{sum(self.times_s):.2f} s in {len(self.times_s)} turns"
        print(f"{what}: {sums}, the first of {first * 1000:.1f} ms, others of up to {longest * 1000:.1f} ms")


def view(epoch: int, digest: bytes, members: Sequence[int], owners: bytes, other: int) -> SessionView:
    return SessionView(1, epoch, tuple((node, 1) for node in members), digest, owners, frozenset({other}), True, False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bench_rebuild", description=__doc__.partition("\n")[0])
    parser.add_argument("sessions", type=int, nargs="?", default=1_000_000)
    given = parser.parse_args()
    gc.disable()
    holder, registrar = NodeSessions(HOLDER, Queues()), NodeSessions(REGISTRAR, Queues())
    for number in range(given.sessions):
        name = f"client-{number}"
        holder.claims.restore(Holding(client_key(CLUSTER, name), number, name, 1_000 + number), 0)
    owners = bytes([REGISTRAR]) * PARTITIONS
    members = HOLDER, REGISTRAR
    holder.follow(view(1, b"d" * 16, members, owners, REGISTRAR), 0, 0)
    asked = registrar.follow(view(1, b"d" * 16, members, owners, HOLDER), 0, 0)
    to_holder = [one.message for one in asked if isinstance(one, ToNode) and one.node_id == HOLDER]
    [rebuild] = [one for one in to_holder if isinstance(one, Rebuild)]
    answers, entries, freed = Turns(), Turns(), Turns()

    def encoded(outputs: Sequence[Any]) -> list[Any]:
        return [encode_session(one.message) for one in outputs]

    parts = answers.take(lambda: encoded(holder.received(REGISTRAR, rebuild, 0, 0)))
    while parts:
        for part in parts:
            entries.take(lambda part=part: registrar.received(HOLDER, checked(decode_session(*part)), 0, 0))
        parts = answers.take(lambda: encoded(holder.claims.report())) if holder.claims.reports else []
    assert len(registrar.registry) == given.sessions
    answers.show("answer to REBUILD")
    entries.show("entries of the registrar")
    halves = bytes([3]) * (PARTITIONS // 2) + bytes([REGISTRAR]) * (PARTITIONS // 2)
    freed.take(lambda: registrar.follow(view(2, b"e" * 16, (HOLDER, REGISTRAR, 3), halves, HOLDER), 0, 0))
    while registrar.registry._ended:
        freed.take(lambda: registrar.tick(0, 0))
    freed.show("half of them freed for another registrar")


if __name__ == "__main__":
    main()
