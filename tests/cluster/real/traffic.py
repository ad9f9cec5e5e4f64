"""Messages from one node to a session on another while something fails, and what has become of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from operator import le
from typing import NamedTuple

from tests.cluster.real.nodes import Nodes
from tests.harness import Client, Closed, until
from tests.harness.wire import Publish

__all__ = ["Traffic", "flowing"]

KEPT = {"session_expiry_interval": 300}
PAUSE_S = 0.002
"""Between two messages of a publisher."""
ACK_S = 25.0
"""Longest wait of a publisher for an acknowledgement: what is parked for longer fails the test."""
COMPLETE_S = 10.0
QUIET_S = 0.2
"""Silence after which no message is on its way any more."""


class Acknowledged(NamedTuple):
    """A message with its acknowledgement, and the monotonic times of both."""

    number: int
    sent: float
    at: float


class Traffic:
    """A publisher on one node, which alternates QoS 1 and 2, and a session on another, which stays.

    Without `reads` the client of the session is absent until `check`: the death of its node would interrupt deliveries.
    """

    def __init__(self, nodes: Nodes, source: int, target: int, reads: bool = True, size: int = 0) -> None:
        self.nodes, self.source, self.target = nodes, source, target
        self._filling = bytes(size)
        self.topic = f"from/{source}/to/{target}"
        self.acknowledged: dict[int, list[Acknowledged]] = {1: [], 2: []}
        self.received: dict[int, list[tuple[int, float]]] = {1: [], 2: []}
        self._subscriber: Client | None = self._session()
        self._subscriber.subscribe(self.topic, 2)
        if not reads:
            self._close()
        self._ended, self._caught_up = threading.Event(), threading.Event()
        self._publisher = threading.Thread(target=self._publish)
        self._reader = threading.Thread(target=self._read)
        self.failure: BaseException | None = None

    def _session(self) -> Client:
        return self.nodes.connect(self.target, self.topic, clean=False, timeout=5, properties=KEPT)

    def start(self) -> None:
        self._publisher.start()
        if self._subscriber is not None:
            self._reader.start()

    def _publish(self) -> None:
        try:
            with self.nodes.connect(self.source, f"{self.topic}/publisher", timeout=ACK_S) as publisher:
                for number in count():
                    if self._ended.is_set():
                        return
                    qos, sent = 1 + number % 2, time.monotonic()
                    publisher.publish(self.topic, b"%d " % number + self._filling, qos=qos)
                    self.acknowledged[qos].append(Acknowledged(number, sent, time.monotonic()))
                    time.sleep(PAUSE_S)
        except BaseException as failure:
            self.failure = failure

    def _read(self) -> None:
        assert self._subscriber is not None
        while not self._caught_up.is_set():
            self._take(self._subscriber, 0.05)

    def _take(self, subscriber: Client, timeout_s: float) -> bool:
        packet = subscriber.recv(timeout_s)
        if packet is None:
            return False
        assert isinstance(packet, Publish), packet
        self.received[packet.qos].append((int(packet.payload.split(b" ")[0]), time.monotonic()))
        return True

    # --- what is measured ----------------------------------------------------------------------------------------------

    def await_arrival(self, since: float, timeout_s: float = COMPLETE_S) -> float:
        """Waits until messages that were sent after a moment arrive, and returns the time from it to the arrival of the first."""

        def arrived() -> float | None:
            sent = [one.number for one in self.acknowledged[1] if one.sent > since]
            return next((at for number, at in reversed(self.received[1]) if sent and number >= sent[0]), None)

        until(arrived, self.describe, timeout_s)
        first = next(one.number for one in self.acknowledged[1] if one.sent > since)
        return next(at for number, at in self.received[1] if number >= first) - since

    def longest_ack_s(self, since: float = 0.0) -> float:
        """Returns the longest wait of the publisher for an acknowledgement that has arrived since a moment."""
        return max((one.at - one.sent for found in self.acknowledged.values() for one in found if one.at >= since), default=0.0)

    def published(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    # --- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the publisher, once its last message is acknowledged."""
        self._ended.set()
        if self._publisher.ident is not None:
            self._publisher.join(ACK_S + 5)

    def close(self) -> None:
        self.end()
        self._stop_reading()
        self._close()

    def _stop_reading(self) -> None:
        self._caught_up.set()
        if self._reader.ident is not None:
            self._reader.join()

    def _close(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None

    def describe(self) -> str:
        lost = self._lost()
        text = ", ".join(
            f"QoS {qos}: {len(found)} of {len(self.acknowledged[qos])} missing, {found[:5]}" for qos, found in lost.items()
        )
        output = "".join(f"--- node {number}\n{self.nodes.output(number)}" for number in (self.source, self.target))
        return f"{self.topic}: {text}; publisher: {self.failure}\n{output}"

    def _lost(self, before: float = float("inf")) -> dict[int, list[int]]:
        return {
            qos: sorted({one.number for one in found if one.at < before} - {number for number, _ in self.received[qos]})
            for qos, found in self.acknowledged.items()
        }

    def collect(self, before: float = float("inf")) -> None:
        """Waits until all messages that were acknowledged before a moment have arrived, and nothing more does."""
        self._stop_reading()
        if self._subscriber is None:
            self._subscriber = self._session()
        deadline = time.monotonic() + COMPLETE_S
        while self._take(self._subscriber, QUIET_S) or any(self._lost(before).values()):
            assert time.monotonic() < deadline, self.describe()

    def check(self, least: int = 100, once: bool = True) -> None:
        """Asserts that what was acknowledged has arrived, QoS 2 once, and in order."""
        self.end()
        assert self.failure is None, self.describe()
        assert self.published() >= least
        self.collect()
        self.check_order(once)

    def check_order(self, once: bool = True) -> None:
        """Asserts that QoS 2 has arrived once, and the first arrivals of both are in the order of the publisher."""
        twice = [number for number, times in Counter(number for number, _ in self.received[2]).items() if times > 1]
        assert not twice or not once, f"{self.topic}: QoS 2: {len(twice)} twice, {twice[:5]}"
        for qos, found in self.received.items():
            numbers = [*dict.fromkeys(number for number, _ in found)]
            assert all(map(le, numbers, numbers[1:])), f"{self.topic}: QoS {qos}: order of the first arrivals"


@contextmanager
def flowing(nodes: Nodes, *ways: tuple[int, int], absent: Sequence[int] = (), size: int = 0) -> Iterator[list[Traffic]]:
    """Traffic on these ways, payloads of about `size` bytes; the clients of sessions on the nodes `absent` are away."""
    made: list[Traffic] = []
    try:
        for source, target in ways:
            made.append(Traffic(nodes, source, target, target not in absent, size))
        for one in made:
            one.start()
        for one in made:
            until(lambda one=one: one.published() >= 20, one.describe)
        yield made
    finally:
        for one in made:
            with suppress(OSError, Closed):
                one.close()
