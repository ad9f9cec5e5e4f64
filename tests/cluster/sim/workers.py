"""Sessions that move, with the cores of several workers in each node: nodes have other numbers of them, and messages pass codec and
split as in link-0."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from shardbroker.cluster.claims import Holding
from shardbroker.cluster.messages import Key, SessionMessage, Tail
from shardbroker.cluster.outputs import SessionOutput, ToNode
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import NodeSessions, checked
from shardbroker.link.session_codec import decode_session, encode_session
from shardbroker.link.sessions import SessionSplit
from shm.partitions import Division
from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import RoamingCluster, RoamingNode

__all__ = ["WorkersCluster"]

WORKERS = 1, 3, 2
"""Workers of the nodes, in turn."""
K, V = TypeVar("K"), TypeVar("V")


class Merged(MutableMapping[K, V]):
    """Maps of all workers as one. `worker`: that of a new item."""

    def __init__(self, maps: Sequence[dict[K, V]], worker: Callable[[K, V], int]) -> None:
        self._maps, self._worker = maps, worker

    def __getitem__(self, key: K) -> V:
        return next((one[key] for one in self._maps if key in one), None) or self._maps[0][key]

    def __setitem__(self, key: K, value: V) -> None:
        self._maps[self._worker(key, value)][key] = value

    def __delitem__(self, key: K) -> None:
        for one in self._maps:
            if key in one:
                del one[key]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._maps)

    def __len__(self) -> int:
        return sum(map(len, self._maps))


class WorkerClaims:
    """Claims of all workers as one."""

    def __init__(self, cores: Sequence[NodeSessions], owners: Sequence[int]) -> None:
        self._each = [core.claims for core in cores]
        self._owners = owners
        self.sessions: Merged[Key, Holding] = Merged([one.sessions for one in self._each], lambda key, _: owners[key.partition])
        self.leaving: Merged[int, Holding] = Merged([one.leaving for one in self._each], lambda _, one: owners[one.key.partition])
        self._claims: Merged[Key, Any] = Merged([one._claims for one in self._each], lambda key, _: owners[key.partition])

    def __getattr__(self, name: str) -> Any:
        """Returns a method whose first argument is a key."""
        return lambda key, *rest: getattr(self._each[self._owners[key.partition]], name)(key, *rest)

    @property
    def _digest(self) -> bytes:
        return self._each[0]._digest

    def is_settled(self, now_ms: int) -> bool:
        return all(one.is_settled(now_ms) for one in self._each)

    def restore(self, holding: Holding, now_ms: int) -> None:
        self._each[self._owners[holding.key.partition]].restore(holding, now_ms)

    def merged(self, node: int, tail: Tail) -> list[SessionOutput]:
        return self._each[self._owners[tail.key.partition]].merged(node, tail)

    def exported(self, uid: int, generation: int, parts: Sequence[bytes]) -> list[SessionOutput]:
        return [output for one in self._each for output in one.exported(uid, generation, parts)]

    def arrived(self, uid: int, now_ms: int) -> list[SessionOutput]:
        return [output for one in self._each for output in one.arrived(uid, now_ms)]


class WorkerCores:
    """Cores of all workers of a node, behind what link-0 does."""

    def __init__(self, node: RoamingNode, workers: int) -> None:
        owners = Division(workers).owners
        self._node_id = node.node_id
        self._split = SessionSplit(owners)
        self._cores = [
            NodeSessions(
                node.node_id, node, node.clock, node.claim_settings, [one for one, of in enumerate(owners) if of == worker]
            )
            for worker in range(workers)
        ]  # fmt: skip
        self.claims = WorkerClaims(self._cores, owners)
        self.split = 0
        """Messages for more than one worker."""

    @property
    def _seen(self) -> tuple[int, int]:
        return self._cores[0]._seen

    def follow(self, view: SessionView, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        return [output for core in self._cores for output in core.follow(view, now_ms, clock_ms)]

    def received(self, node: int, message: SessionMessage, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        parts = self._split.parts(checked(decode_session(*encode_session(message))))
        self.split += len(parts) > 1
        return [output for worker, part in parts for output in self._cores[worker].received(node, part, now_ms, clock_ms)]

    def deliver(self, outputs: Sequence[SessionOutput], now_ms: int, clock_ms: int) -> list[SessionOutput]:
        done: list[SessionOutput] = []
        for output in outputs:
            if isinstance(output, ToNode) and output.node_id == self._node_id:
                # It is of a key, which has one worker.
                [(worker, message)] = self._split.parts(output.message)
                done += self._cores[worker].received(self._node_id, message, now_ms, clock_ms)
            else:
                done.append(output)
        return done

    def tick(self, now_ms: int, clock_ms: int) -> list[SessionOutput]:
        return [output for core in self._cores for output in core.tick(now_ms, clock_ms)]


class WorkersNode(RoamingNode):
    """A node with several workers that have sessions."""

    def make_core(self) -> Any:
        return WorkerCores(self, WORKERS[self.node_id % len(WORKERS)])


class WorkersCluster(RoamingCluster):
    """A cluster of them."""

    def make_node(self, index: int) -> Node:
        return WorkersNode(self, index)

    @property
    def split(self) -> int:
        """Returns how many messages were for more than one worker, in the last life of each node."""
        return sum(node.core.split for node in self.nodes if isinstance(node, WorkersNode))
