"""Clients that are never to be disconnected, and sessions that move between nodes, while processes of the nodes are replaced."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.cluster.real.moves import KEPT, Receiver
from tests.cluster.real.nodes import Nodes
from tests.harness import Client, Publish, client_id_on
from tests.harness.waiting import until

__all__ = ["Moving", "Stream", "streams"]

PAUSE_S = 0.02
"""Between two messages of a publisher."""
STAY_S = 0.15
"""How long a client that moves stays at a node."""
ARRIVE_S = 60.0


class Stream:
    """A publisher at one node and a subscriber at another, whose connections stay. Every message arrives in order, once."""

    def __init__(self, nodes: Nodes, source: tuple[int, int], target: tuple[int, int], qos: int, workers: int, exact: bool) -> None:
        """source, target: node and worker. exact: also of QoS 0 no message is missing."""
        (at, on), (to, there) = source, target
        self.topic, self.qos = f"stream/{at}/{on}/{to}/{there}/{qos}", qos
        self.exact = exact or qos > 0
        self.sent, self.got, self.problem = 0, list[int](), ""
        self.ends = threading.Event()
        self.subscriber = Client(
            nodes.brokers[to].address, 5, client_id_on(there, workers, f"{self.topic}/s"), keepalive=0, timeout=ARRIVE_S,
            clean=qos != 2, properties=KEPT if qos == 2 else {},
        )  # fmt: skip
        self.publisher = Client(
            nodes.brokers[at].address, 4, client_id_on(on, workers, f"{self.topic}/p"), keepalive=0, timeout=ARRIVE_S
        )
        self.subscriber.subscribe(self.topic, qos)
        self.threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in (self._publish, self._receive)]

    def _run(self, part: "object") -> None:
        try:
            part()  # type: ignore[operator]
        except BaseException as error:
            self.problem = self.problem or f"{self.topic} {part.__name__}: {error!r}"  # type: ignore[attr-defined]

    def _publish(self) -> None:
        while not self.ends.is_set():
            self.publisher.publish(self.topic, b"%d" % self.sent, self.qos)
            self.sent += 1
            time.sleep(PAUSE_S)
        self.publisher.publish(self.topic, b"end", max(self.qos, 1))

    def _receive(self) -> None:
        while (payload := self.subscriber.expect(Publish, timeout=ARRIVE_S, dup=False).payload) != b"end":
            self.got.append(int(payload))

    def check(self) -> str:
        """Returns what is wrong, or nothing; the publisher has ended."""
        for thread in self.threads:
            thread.join(ARRIVE_S)
        if self.problem or any(thread.is_alive() for thread in self.threads):
            return f"{self.problem or self.topic}: {len(self.got)} of {self.sent}"
        wanted = [*range(self.sent)] if self.exact else sorted({*self.got})
        if self.got != wanted:
            lost, twice = sorted({*wanted} - {*self.got}), [one for one, times in Counter(self.got).items() if times > 1]
            return f"{self.topic}: {self.sent} sent, lost {lost[:10]}, twice {twice[:10]}, in order {self.got == sorted(self.got)}"
        return ""

    def close(self) -> None:
        self.ends.set()
        self.subscriber.close()
        self.publisher.close()


class Moving:
    """A client that changes its node all the time, and publishers at all nodes whose messages its session gets.

    Without `exact` it may find no session where its former node has no link at that moment: both are merged, so nothing is lost.
    """

    def __init__(self, nodes: Nodes, worker: int, workers: int, exact: bool) -> None:
        self.nodes, self.exact = nodes, exact
        self.new_sessions = 0
        self.receiver = Receiver(nodes, client_id_on(worker, workers, f"moving{worker}"), must_be_present=exact)
        self.topics = {f"moving/{worker}/1": 1, f"moving/{worker}/2": 2}
        self.receiver.received = {topic: [] for topic in self.topics}
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in self.topics}
        self.problems: list[str] = []
        self.ends, self.moves = threading.Event(), threading.Event()
        self.receiver.connect(1)
        assert self.receiver.connection is not None
        self.receiver.connection.subscribe([*self.topics.items()])
        self.threads = [
            threading.Thread(target=self._run, args=(self._publish, node, topic), daemon=True)
            for node in nodes.brokers for topic in self.topics
        ]  # fmt: skip
        self.mover = threading.Thread(target=self._run, args=(self._move,), daemon=True)

    def _run(self, part: "object", *arguments: "object") -> None:
        try:
            part(*arguments)  # type: ignore[operator]
        except BaseException as error:
            self.problems.append(f"{self.receiver.name}: {error!r}")

    def _publish(self, node: int, topic: str) -> None:
        with Client(self.nodes.brokers[node].address, 5, f"{topic}/{node}", keepalive=0, timeout=ARRIVE_S) as publisher:
            number = 0
            while not self.ends.is_set():
                payload = b"%d %d" % (node, number)
                publisher.publish(topic, payload, self.topics[topic])
                self.acknowledged[topic].append(payload)
                number += 1
                time.sleep(PAUSE_S)

    def _move(self) -> None:
        node = 1
        while not self.moves.is_set():
            self.receiver.read(STAY_S)
            node = node % len(self.nodes.brokers) + 1
            self.receiver.connect(node)
            assert self.receiver.connection is not None and self.receiver.connection.connack is not None
            if not self.receiver.connection.connack.session_present:
                self.new_sessions += 1
                self.receiver.unreleased.clear()
                self.receiver.connection.subscribe([*self.topics.items()])

    def check(self) -> list[str]:
        """Returns what is wrong; the publishers have ended."""
        for thread in self.threads:
            thread.join(ARRIVE_S)
        self.moves.set()
        self.mover.join(ARRIVE_S)
        if self.problems:
            return self.problems

        def complete() -> bool:
            self.receiver.read(0.2)
            return all({*sent} <= {*self.receiver.received[topic]} for topic, sent in self.acknowledged.items())

        def missing() -> str:
            lost = {topic: sorted({*sent} - {*self.receiver.received[topic]}) for topic, sent in self.acknowledged.items()}
            found = {topic: numbers[:5] for topic, numbers in lost.items()}
            return f"{self.receiver.name}: lost {found}, {self.new_sessions} new sessions in {self.receiver.moves} moves"

        until(complete, missing, ARRIVE_S)
        if self.new_sessions:
            return []
        found = []
        for topic, qos in self.topics.items():
            payloads = self.receiver.received[topic]
            twice = [payload for payload, times in Counter(payloads).items() if times > 1]
            if qos == 2 and twice:
                found.append(f"{topic}: {len(twice)} twice, {twice[:5]}")
            last: dict[int, int] = {}
            for payload in dict.fromkeys(payloads):
                node, number = map(int, payload.split())
                if number < last.get(node, -1):
                    found.append(f"{topic}: {number} of node {node} behind {last[node]}")
                last[node] = number
        return found

    def close(self) -> None:
        self.ends.set()
        self.moves.set()
        if self.receiver.connection is not None:
            self.receiver.connection.close()


@contextmanager
def streams(
    nodes: Nodes, workers: int, movers: Sequence[int] = (0, 1), exact: bool = True
) -> Iterator[tuple[list[Stream], list[Moving]]]:
    """Streams of each QoS in both directions between nodes 1 and 2, and a moving client of each of the workers `movers`.

    At the end everything has arrived. exact: no link process ends meanwhile.
    """
    with ExitStack() as stack:
        made: list[Stream] = []
        moving: list[Moving] = []
        for at, to in ((1, 2), (2, 1)):
            for qos in (0, 1, 2):
                one = Stream(nodes, (at, qos % workers), (to, (qos + at) % workers), qos, workers, exact)
                stack.callback(one.close)
                made.append(one)
        for worker in movers:
            found = Moving(nodes, worker, workers, exact)
            stack.callback(found.close)
            moving.append(found)
        for thread in [thread for one in made for thread in one.threads] + [thread for one in moving for thread in one.threads]:
            thread.start()
        for found in moving:
            found.mover.start()
        yield made, moving
        for either in (*made, *moving):
            either.ends.set()
        problems = [problem for one in made if (problem := one.check())] + [text for one in moving for text in one.check()]
        output = "".join(f"--- node {number}\n{nodes.output(number)}" for number in nodes.brokers)
        assert not problems, "\n".join([*problems, output])
