"""Clients of one node in a process of their own: publishers with a rate, and subscribers that stay connected.

    python -m tests.cluster.real.station SPECIFICATION      {"address": [HOST, PORT], "publishers": [[TOPIC, QOS, RATE], ...],
                                                             "subscribers": [[CLIENT_ID, [[FILTER, QOS], ...]], ...]}

It writes a line once all are connected. The first line of input begins to publish; the second ends the publishers, and is answered
by the number of acknowledged messages of each topic; each further one is answered by what has arrived so far (Arrivals), by topic.
Answers are lines of JSON. The process ends with its input. Payloads are numbers from 0 on.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.harness import Client, wire

BATCH = 10
"""Messages that a publisher sends before it waits for their acknowledgements."""
SHOWN = 5
"""Faults of a kind that an answer has."""
ACK_S = 25.0
"""Longest wait for an acknowledgement: what is parked for longer fails the test."""


class Publisher(threading.Thread):
    """Sends numbers to a topic until it is told to end; `acknowledged` counts them."""

    def __init__(self, client: Client, topic: str, qos: int, rate: float) -> None:
        super().__init__()
        self.topic, self.acknowledged, self.ended, self.failure = topic, 0, False, ""
        self._client, self._qos, self._interval_s = client, qos, BATCH / rate

    def run(self) -> None:
        due = time.monotonic()
        try:
            while not self.ended:
                self._send()
                due += self._interval_s
                time.sleep(max(0.0, due - time.monotonic()))
        except (AssertionError, OSError) as failure:
            self.failure = f"{self.topic}, behind {self.acknowledged}: {failure}"

    def _send(self) -> None:
        client = self._client
        ids = [client.next_id() for _ in range(BATCH)]
        numbers = range(self.acknowledged, self.acknowledged + BATCH)
        client.send_raw(
            b"".join(
                wire.publish(self.topic, b"%d" % number, version=5, qos=self._qos, packet_id=packet_id)
                for number, packet_id in zip(numbers, ids, strict=True)
            )
        )
        if self._qos == 1:
            self._await(wire.Puback)
        else:
            self._await(wire.Pubrec)
            client.send_raw(b"".join(map(wire.pubrel, ids)))
            self._await(wire.Pubcomp)
        self.acknowledged += BATCH

    def _await(self, kind: type[wire.Packet]) -> None:
        for _ in range(BATCH):
            packet = self._client.expect(kind, ACK_S)
            assert getattr(packet, "code", 0) < 0x80, packet


@dataclass
class Arrivals:
    """What has arrived of one topic."""

    numbers: set[int] = field(default_factory=set)
    highest: int = -1
    twice: list[int] = field(default_factory=list)
    turned: list[tuple[int, int]] = field(default_factory=list)
    """A number that has arrived for the first time behind a higher one, with that."""

    def add(self, number: int) -> None:
        if number in self.numbers:
            self.twice.append(number)
            return
        self.numbers.add(number)
        if number < self.highest:
            self.turned.append((number, self.highest))
        self.highest = max(self.highest, number)

    def summary(self) -> dict[str, Any]:
        """Returns the count of different numbers, and the first faults."""
        return {"count": len(self.numbers), "twice": self.twice[:SHOWN], "turned": self.turned[:SHOWN]}


class Subscriber(threading.Thread):
    """Takes what arrives, until the process ends."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.received: defaultdict[str, Arrivals] = defaultdict(Arrivals)
        self.failure = ""
        self._client = client

    def run(self) -> None:
        try:
            while True:
                packet = self._client.recv(1.0)
                if packet is None:
                    continue
                assert isinstance(packet, wire.Publish), packet
                self.received[packet.topic].add(int(packet.payload))
        except (AssertionError, OSError) as failure:
            self.failure = f"{self._client.client_id}: {failure}"


def main(specification: str) -> None:
    asked = json.loads(specification)
    address = tuple(asked["address"])
    with ExitStack() as stack:

        def connect(name: str) -> Client:
            return stack.enter_context(Client(address, 5, name, timeout=ACK_S, properties={"session_expiry_interval": 300}))

        subscribers = {}
        for name, filters in asked["subscribers"]:
            client = connect(name)
            client.subscribe([(one, qos) for one, qos in filters])
            subscribers[name] = Subscriber(client)
        publishers = [
            Publisher(connect(f"to/{topic}"), topic, qos, rate) for topic, qos, rate in asked["publishers"]
        ]
        for subscriber in subscribers.values():
            subscriber.start()
        print("ready", flush=True)
        if sys.stdin.readline():
            for publisher in publishers:
                publisher.start()
        if sys.stdin.readline():
            for publisher in publishers:
                publisher.ended = True
            for publisher in publishers:
                publisher.join()
            failures = [one.failure for one in publishers if one.failure]
            answer({"acknowledged": {one.topic: one.acknowledged for one in publishers}, "failures": failures})
        while sys.stdin.readline():
            failures = [one.failure for one in subscribers.values() if one.failure]
            received = {topic: found.summary() for one in subscribers.values() for topic, found in one.received.copy().items()}
            answer({"received": received, "failures": failures})


def answer(found: object) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
