"""A fixed load on the protocol core, for counting instructions: `python -m tests.perf.core_load QOS BATCHES [stays|ruled]`.

One publisher and one subscriber on one router, no socket. Each batch is MESSAGES messages of 64 bytes, read in one piece,
with their acknowledgements. With `stays` both sessions do, so all of it is written into a journal; with `ruled` the
publisher is under rules, whose result is known.
"""

import struct
import sys
import tempfile
from pathlib import Path

from shardbroker.config import load
from shardbroker.journal import open_journal
from shardbroker.journal.recorder import JournalRecorder
from shardbroker.mqtt.packets import Connect, Publish, Subscribe
from shardbroker.worker.sansio import SansIoRouter
from tests.sim.simulator import MemoryRoutes

PACKET_IDS = 65_535
MESSAGES = 255
"""A divisor of PACKET_IDS, so that no batch lies on both sides of the turn."""
ANSWERS = {0: (), 1: (0x40,), 2: (0x50, 0x70)}
"""QoS -> first bytes of the subscriber's acknowledgements: PUBACK; PUBREC and PUBCOMP."""


def acknowledgements(first_byte: int) -> bytes:
    """One for every packet id, four bytes each."""
    return b"".join(struct.pack(">BBH", first_byte, 2, i) for i in range(1, PACKET_IDS + 1))


def main(qos: int, batches: int, journal: Path | None = None, ruled: bool = False) -> None:
    """Publishes and delivers MESSAGES messages a batch. journal: a directory for it, if the sessions stay."""
    routes = MemoryRoutes()
    settings = load(None, {}, ["mqtt.max_inflight=1000", "mqtt.max_awaiting_rel=1000"]).settings
    router = SansIoRouter(settings, routes, 0, 1_000)
    routes.shards.append(router)
    if journal is not None:
        router.keep_journal(JournalRecorder(open_journal(journal)))
    publisher, subscriber = (router.connect("127.0.0.1:1", b"") for _ in range(2))
    for channel, client_id in ((publisher, b"publisher"), (subscriber, b"subscriber")):
        channel.receive(Connect(4, client_id, clean_start=journal is None).encode(4))
    subscriber.receive(Subscribe(1, [(b"bench/topic", qos)]).encode(4))
    router.advance(1_000)
    subscriber.take_output()
    if ruled:
        publisher.put_under_rules(b"bench/topic")
    published = b"".join(Publish(b"bench/topic", b"x" * 64, qos, packet_id=i + 1 if qos else 0).encode(4) for i in range(MESSAGES))
    released = acknowledgements(0x62)[: 4 * MESSAGES] * (qos == 2)
    prepared = {
        first_byte: acknowledgements(first_byte) for first_byte in (0x40, 0x50, 0x70)
    }  # all, so that every run starts alike
    answers = [prepared[first_byte] for first_byte in ANSWERS[qos]]
    for batch in range(batches):
        publisher.receive(published)
        publisher.receive(released)
        assert len(subscriber.take_output()) >= MESSAGES * 64, "messages are missing"
        start = batch * MESSAGES % PACKET_IDS * 4
        for answer in answers:
            subscriber.receive(answer[start : start + 4 * MESSAGES])
        publisher.take_output()
        subscriber.take_output()
        router.advance(1_000)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        how = sys.argv[3:]
        main(int(sys.argv[1]), int(sys.argv[2]), Path(directory) if how == ["stays"] else None, how == ["ruled"])
