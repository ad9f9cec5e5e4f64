"""Retained messages between nodes: the core with stores in memory, over a network that delays, reorders links and loses them."""

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from random import Random

import pytest

from shardbroker.cluster import retained
from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.messages import (
    RetainedAck,
    RetainedBegin,
    RetainedEnd,
    RetainedMessages,
    RetainedRange,
    RetainedRows,
    RetainedSummary,
    RetainedWant,
)
from shardbroker.cluster.retained import COMPARE_MS, SUMS_BYTES, Replication
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import FrameReader

LIVE, DELETED, REFUSED = 0, 1, 2


def digest_of(topic: int) -> bytes:
    return blake2b(topic.to_bytes(4, "big"), digest_size=16).digest()


class Table:
    """What a store has to do, without one. A row: digest, id, state, payload."""

    def __init__(self, node: int = 0, kept: int = 1 << 30) -> None:
        self.node = node
        self.entries_: dict[bytes, tuple[bytes, int, bytes]] = {}
        self.changes: list[bytes] = []
        self.kept = kept
        self.ready = True
        self.merged = 0
        self.refuses: set[bytes] = set()

    def put(self, topic: int, stamp: int, payload: bytes = b"x") -> None:
        """A change of this node."""
        digest = digest_of(topic)
        above = self.entries_.get(digest, (b"",))[0]
        if stamp.to_bytes(8, "big") + self.node.to_bytes(8, "big") <= above:
            stamp = int.from_bytes(above[:8], "big") + 1
        id = stamp.to_bytes(8, "big") + self.node.to_bytes(8, "big")
        self.entries_[digest] = (id, LIVE if payload else DELETED, payload)
        self.changes.append(digest)

    def is_ready(self) -> bool:
        return self.ready

    def head(self) -> int:
        return len(self.changes)

    def changes_behind(self, number: int, most: int) -> tuple[int, list[bytes]] | None:
        if number < len(self.changes) - self.kept:
            return None
        found = self.changes[number : number + most]
        return number + len(found), found

    def sums(self) -> bytes:
        sums = [0] * 4096
        for digest, (id, _, _) in self.entries_.items():
            sums[int.from_bytes(digest[:2], "big") >> 4] ^= int.from_bytes(blake2b(digest + id, digest_size=8).digest(), "big")
        return b"".join(one.to_bytes(8, "big") for one in sums)

    def entries(self, first: bytes, last: bytes, most: int) -> list[tuple[bytes, bytes, int]]:
        found = sorted(digest for digest in self.entries_ if first <= digest <= last)[:most]
        return [(digest, *self.entries_[digest][:2]) for digest in found]

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        known = [(digest, self.entries_[digest]) for digest in digests if digest in self.entries_]
        return [digest + id + bytes([state]) + payload for digest, (id, state, payload) in known if state != REFUSED], len(digests)

    def merge(self, rows: Sequence[bytes]) -> None:
        for row in rows:
            if len(row) < 33:
                raise ValueError("no row")
            digest, id, state, payload = row[:16], row[16:32], row[32], row[33:]
            if id > self.entries_.get(digest, (b"", 0, b""))[0]:
                self.merged += 1
                self.entries_[digest] = (id, REFUSED, b"") if digest in self.refuses else (id, state, payload)


class Cluster:
    """Nodes whose messages pass the codec, one at a time in random order of the links."""

    def __init__(self, count: int, seed: int = 1, **table: int) -> None:
        self.tables = [Table(node, **table) for node in range(count)]
        self.cores = [Replication(one) for one in self.tables]
        self.rng = Random(seed)
        self.now_ms = 0
        self.links: dict[frozenset[int], int] = {}
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.numbers = 0
        self.bytes = 0

    def link(self, one: int, other: int) -> None:
        self.numbers += 1
        self.links[frozenset((one, other))] = self.numbers
        self.queues[one, other], self.queues[other, one] = deque(), deque()
        self.follow()

    def cut(self, one: int, other: int) -> None:
        if self.links.pop(frozenset((one, other)), None) is not None:
            del self.queues[one, other], self.queues[other, one]
            self.follow()

    def link_all(self) -> None:
        for one in range(len(self.cores)):
            for other in range(one):
                if frozenset((one, other)) not in self.links:
                    self.link(one, other)

    def restart(self, node: int) -> None:
        """Its process ends: links are gone, the table stays."""
        for other in range(len(self.cores)):
            self.cut(node, other)
        self.cores[node] = Replication(self.tables[node])

    def follow(self) -> None:
        for node, core in enumerate(self.cores):
            own = {number: node == min(pair) for pair, number in self.links.items() if node in pair}
            core.follow(own, self.now_ms)

    def peer(self, node: int, number: int) -> int | None:
        return next((next(iter(pair - {node})) for pair, one in self.links.items() if one == number), None)

    def send(self, node: int, sent: list[tuple[int, RetainedMessages]]) -> None:
        for number, message in sent:
            other = self.peer(node, number)
            if other is not None:
                frame = encode(message)
                self.bytes += len(frame)
                self.queues[node, other].append(frame)

    def step(self) -> bool:
        """Delivers a message, or lets a node work. Returns whether there was anything to do."""
        waiting = [pair for pair, queue in self.queues.items() if queue]
        if waiting and self.rng.random() < 0.6:
            source, target = self.rng.choice(waiting)
            reader = FrameReader(1 << 21)
            reader.feed(self.queues[source, target].popleft())
            frame = reader.next()
            assert frame is not None
            message = decode(frame)
            number = self.links[frozenset((source, target))]
            self.send(target, self.cores[target].received(number, message, self.now_ms))  # type: ignore[arg-type]
            return True
        busy = bool(waiting)
        for node in self.rng.sample(range(len(self.cores)), len(self.cores)):
            sent, more = self.cores[node].work(self.now_ms)
            self.send(node, sent)
            busy = busy or bool(sent) or more
        return busy

    def run(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("does not end")

    def are_equal(self) -> bool:
        return all(one.entries_ == self.tables[0].entries_ for one in self.tables)


def test_changes_reach_all_nodes_and_the_greater_stamp_wins() -> None:
    cluster = Cluster(3)
    cluster.link_all()
    cluster.run()
    cluster.tables[0].put(1, 5, b"first")
    cluster.tables[1].put(1, 6, b"second")
    cluster.tables[2].put(2, 1, b"")
    cluster.run()
    assert cluster.are_equal()
    assert cluster.tables[2].entries_[digest_of(1)][2] == b"second"
    assert cluster.tables[0].entries_[digest_of(2)][1] == DELETED


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_cuts_and_restarts_end_equal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "SUMMARY_ENTRIES", 7)
    monkeypatch.setattr(retained, "STEP_ENTRIES", 3)
    monkeypatch.setattr(retained, "ROWS_MAX", 3)
    monkeypatch.setattr(retained, "WINDOW_BYTES", 200)
    cluster = Cluster(4, seed, kept=5)
    rng, greatest = Random(seed), {}
    cluster.link_all()
    for stamp in range(1, 400):
        node, topic = rng.randrange(4), rng.randrange(60)
        match rng.randrange(12):
            case 0:
                cluster.cut(node, (node + 1) % 4)
            case 1:
                cluster.restart(node)
            case 2:
                cluster.link_all()
            case _:
                cluster.tables[node].put(topic, stamp + rng.randrange(20), b"%d" % stamp if rng.random() < 0.7 else b"")
                id = cluster.tables[node].entries_[digest_of(topic)][0]
                greatest[topic] = max(greatest.get(topic, b""), id)
        for _ in range(rng.randrange(6)):
            cluster.step()
    cluster.link_all()
    for _ in range(3):
        cluster.now_ms += COMPARE_MS
        cluster.run()
    assert cluster.are_equal()
    assert {digest_of(topic): id for topic, id in greatest.items()} == {d: e[0] for d, e in cluster.tables[0].entries_.items()}
    numbers = cluster.links.values()
    assert all(core.is_synced(number) for core in cluster.cores for number in numbers if number in core._peers)


def test_a_new_node_gets_everything_and_two_equal_ones_exchange_sums_alone() -> None:
    cluster = Cluster(2)
    for topic in range(3000):
        cluster.tables[topic % 2].put(topic, topic + 1)
    cluster.link(0, 1)
    cluster.run()
    assert cluster.are_equal() and len(cluster.tables[0].entries_) == 3000
    cluster.restart(0)
    cluster.tables[0].put(1, 9_999)
    cluster.bytes = 0
    cluster.link(0, 1)
    cluster.run()
    assert cluster.are_equal()
    assert cluster.bytes < SUMS_BYTES + 2_000, "differences only"


def test_what_a_lost_node_has_sent_to_one_only_reaches_the_others() -> None:
    cluster = Cluster(3)
    cluster.link_all()
    cluster.run()
    cluster.cut(0, 2)
    cluster.run()
    cluster.tables[0].put(7, 3)
    cluster.now_ms += 1_000
    cluster.run()
    assert digest_of(7) in cluster.tables[1].entries_ and digest_of(7) not in cluster.tables[2].entries_
    cluster.cut(0, 1)
    cluster.now_ms += retained.LOST_MS
    cluster.run()
    assert digest_of(7) in cluster.tables[2].entries_


def test_a_peer_behind_the_kept_changes_is_compared() -> None:
    cluster = Cluster(2, kept=10)
    cluster.link(0, 1)
    cluster.run()
    for node in (0, 1):
        for topic in range(100):
            cluster.tables[node].put(1000 * node + topic, topic + 1)
    cluster.run()
    assert cluster.are_equal() and len(cluster.tables[0].entries_) == 200


def test_what_a_limit_has_refused_is_not_asked_for_nor_spread() -> None:
    cluster = Cluster(3)
    cluster.tables[0].put(1, 5)
    cluster.tables[1].refuses = {digest_of(1)}
    cluster.link(0, 1)
    cluster.run()
    assert cluster.tables[1].entries_[digest_of(1)][1] == REFUSED
    cluster.link(1, 2)
    for _ in range(3):
        cluster.now_ms += COMPARE_MS
        cluster.run()
    assert cluster.tables[1].merged == 1 and digest_of(1) not in cluster.tables[2].entries_
    cluster.link(0, 2)
    cluster.run()
    assert cluster.tables[2].entries_[digest_of(1)][1] == LIVE


def test_a_comparison_waits_for_the_sums_of_both() -> None:
    cluster = Cluster(2)
    cluster.tables[0].put(1, 5)
    cluster.tables[1].ready = False
    cluster.link(0, 1)
    cluster.run()
    assert not cluster.tables[1].entries_
    cluster.tables[0].put(2, 6)
    cluster.run()
    assert [*cluster.tables[1].entries_] == [digest_of(2)], "changes do not wait"
    cluster.tables[1].ready = True
    cluster.run()
    assert cluster.are_equal()


def test_rows_on_the_way_are_bounded() -> None:
    table = Table()
    core = Replication(table)
    core.follow({1: False}, 0)
    for topic in range(3000):
        table.put(topic, 1, b"x" * 5000)
    sent = []
    for _ in range(50):
        sent += [message for _, message in core.work(0)[0] if isinstance(message, RetainedRows)]
    assert 1 <= len(sent) <= 3, "each has 200 rows here, of 1 MB"
    core.received(1, RetainedAck(1), 0)
    assert [message for _, message in core.work(0)[0] if isinstance(message, RetainedRows)]


SUMS = bytes(SUMS_BYTES)
WIDE = RetainedRange(bytes(16), b"\xff" * 16, b"")
FIRST, SECOND = digest_of(1), digest_of(2)


@pytest.mark.parametrize("message", [
    RetainedRows(2, (bytes(33),)), RetainedRows(1, (b"short",)), RetainedAck(1), RetainedAck(1 << 63), RetainedEnd(1),
    RetainedBegin(1, b"short"), RetainedSummary(1, 1, (WIDE,)), RetainedWant(1, 1, b""),
])  # fmt: skip
def test_what_no_peer_sends_is_a_fault(message: RetainedMessages) -> None:
    core = Replication(Table())
    core.follow({1: False}, 0)
    with pytest.raises(PeerFault, match=r"RETAINED|row"):
        core.received(1, message, 0)


@pytest.mark.parametrize("ranges", [
    (RetainedRange(b"", b"\xff" * 16, b""),), (RetainedRange(b"\xff" * 16, bytes(16), b""),), (WIDE, WIDE),
    (RetainedRange(bytes(16), b"\xff" * 16, b"x" * 32),), (RetainedRange(bytes(15) + b"\1", bytes(15) + b"\2", FIRST + bytes(17)),),
    (RetainedRange(bytes(15) + b"\1", b"\xff" * 16, FIRST + bytes(17) + FIRST + bytes(17)),),
])  # fmt: skip
def test_a_summary_out_of_order_is_a_fault(ranges: tuple[RetainedRange, ...]) -> None:
    core = Replication(Table())
    core.follow({1: True}, 0)
    ((_, begin),) = core.work(0)[0]
    assert isinstance(begin, RetainedBegin)
    with pytest.raises(PeerFault, match="RETAINED_SUMMARY"):
        core.received(1, RetainedSummary(begin.round, 1, ranges), 0)


def test_more_wanted_than_offered_is_a_fault() -> None:
    table = Table()
    table.put(1, 5)
    core = Replication(table)
    core.follow({1: False}, 0)
    core.received(1, RetainedBegin(1, SUMS), 0)
    ((_, summary),) = core.work(0)[0]
    assert isinstance(summary, RetainedSummary)
    with pytest.raises(PeerFault, match="at most 1 topics"):
        core.received(1, RetainedWant(1, 1, FIRST + SECOND), 0)


def test_noise_in_frames_is_a_fault_or_a_message() -> None:
    rng = Random(9)
    messages = [
        RetainedRows(1, (b"a" * 40, b"b")), RetainedAck(3), RetainedBegin(1, SUMS), RetainedEnd(2), RetainedWant(1, 2, FIRST),
        RetainedSummary(1, 1, (RetainedRange(bytes(16), FIRST, FIRST + bytes(17)), RetainedRange(FIRST, b"\xff" * 16, b""))),
    ]  # fmt: skip
    for message in messages:
        reader = FrameReader(1 << 21)
        reader.feed(encode(message))
        frame = reader.next()
        assert frame is not None and decode(frame) == message
        for _ in range(300):
            body = bytearray(frame.body)
            if rng.random() < 0.5:
                del body[rng.randrange(len(body)) :]
            else:
                for _ in range(3):
                    body[rng.randrange(min(len(body), 60))] = rng.randrange(256)
            try:
                decode(frame._replace(body=bytes(body)))
            except PeerFault:
                pass
