"""A fixed load on two whole workers in one process, for counting instructions: `python -m tests.perf.worker_load QOS BATCHES`.

    publisher -- socket -- worker 0 -- ring -- worker 1 -- socket -- subscriber

Sockets are handed over as acceptors do, rings and routes are real. Passes are called in turn, and Unix sockets deliver at once
where TCP may leave it to another thread of the kernel, so that every run does the same. Each batch is MESSAGES messages of 64 bytes
with their acknowledgements. Durability is `none`: tests.perf.core_load counts the journal. System calls are not counted,
since valgrind counts a process and not the kernel.
"""

import sys
import tempfile
from pathlib import Path

from shardbroker.mqtt.packets import Publish, Subscribe
from tests.harness.workers import take, workers_in_process
from tests.perf.core_load import ANSWERS, MESSAGES, acknowledgements

TURNS = 4
"""Passes of both workers for each step of an exchange: all that a step leads to has arrived after three."""


def main(qos: int, batches: int, data_dir: Path) -> None:
    """Publishes and delivers MESSAGES messages a batch."""
    with workers_in_process(data_dir, ["mqtt.max_inflight=1000", "mqtt.max_awaiting_rel=1000"]) as workers:
        publisher, subscriber = workers.connect(0, "publisher"), workers.connect(1, "subscriber")
        workers.turn(TURNS)
        subscriber.sendall(Subscribe(1, [(b"bench/topic", qos)]).encode(4))
        workers.turn(TURNS)
        assert take(subscriber) and take(publisher)
        published = b"".join(
            Publish(b"bench/topic", b"x" * 64, qos, packet_id=i + 1 if qos else 0).encode(4) for i in range(MESSAGES)
        )
        released = acknowledgements(0x62)[: 4 * MESSAGES] * (qos == 2)
        prepared = {first_byte: acknowledgements(first_byte) for first_byte in (0x40, 0x50, 0x70)}
        answers = [prepared[first_byte] for first_byte in ANSWERS[qos]]
        for batch in range(batches):
            publisher.sendall(published)
            workers.turn(TURNS)
            if released:
                publisher.sendall(released)
                workers.turn(TURNS)
            got = len(take(subscriber))
            assert got >= MESSAGES * 64, f"{got} bytes of {MESSAGES} messages"
            start = batch * MESSAGES % 65_535 * 4
            for answer in answers:
                subscriber.sendall(answer[start : start + 4 * MESSAGES])
                workers.turn(TURNS)
            take(publisher)
            take(subscriber)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(directory))
