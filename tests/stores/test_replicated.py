"""The store of retained messages of a node in a cluster: stamps, deletions, limits, and what other nodes get."""

import random
import time
from itertools import permutations
from pathlib import Path

import pytest

from shardbroker.stores import replicated, retained_stamps
from shardbroker.stores.replicated import ReplicatedStore
from shardbroker.stores.retained import RetainedDeletion, RetainedMessage, RetainedStore, encode_message
from shardbroker.stores.retained_stamps import BUCKETS, TopicState, digest_of

NOW_MS = 1_800_000_000_000
ALL = bytes(16), b"\xff" * 16


def stamp(ms: int, low: int = 0) -> bytes:
    return (ms * 1000).to_bytes(8, "big") + low.to_bytes(8, "big")


def message(topic: bytes, ms: int = NOW_MS, payload: bytes = b"payload", **fields: object) -> RetainedMessage:
    made = RetainedMessage(topic, payload, 1, b"", stamp(ms), ms, 0, b"publisher")
    return made._replace(**fields)  # type: ignore[arg-type]


def deleted(topic: bytes, ms: int = NOW_MS) -> RetainedDeletion:
    return RetainedDeletion(topic, stamp(ms), ms)


def row(change: RetainedMessage | RetainedDeletion) -> bytes:
    if isinstance(change, RetainedDeletion):
        return encode_message(RetainedMessage(change.topic, b"", 0, b"", change.message_id, change.created_ms, 0, b""))
    return encode_message(change)


def store(path: Path, **arguments: int) -> ReplicatedStore:
    return ReplicatedStore(path, map_bytes=1 << 26, **arguments)


def states(kept: ReplicatedStore) -> dict[bytes, tuple[bytes, int]]:
    return {digest: (id, state) for digest, id, state in kept.stamps.entries(*ALL, 10_000)}


def test_a_change_of_this_node_is_the_newest_whatever_its_clock(tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept:
        ahead = message(b"t", NOW_MS + 3_600_000, b"from a clock that is ahead")
        assert kept.merge([row(ahead)], NOW_MS) == (1, 0)
        kept.update([message(b"t", NOW_MS, b"later")])
        found = kept.get(b"t")
        assert found is not None and found.payload == b"later" and found.message_id > ahead.message_id
        kept.update([deleted(b"t", NOW_MS)])
        assert kept.get(b"t") is None
        (id, state) = states(kept)[digest_of(b"t")]
        assert id > found.message_id and state == TopicState.DELETED
        assert kept.merge([row(ahead)], NOW_MS) == (0, 0)
        assert kept.get(b"t") is None


def test_the_greatest_id_of_all_is_not_exceeded(tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept, store(tmp_path / "other") as other:
        greatest = (retained_stamps.ID_HIGH_MAX).to_bytes(8, "big")
        for low in (bytes(8), b"\xff" * 8):
            hostile = message(b"t", message_id=greatest + low)
            assert kept.merge([row(hostile)], NOW_MS) == (1, 0)
            kept.update([message(b"t", payload=b"own", message_id=stamp(NOW_MS, 1))])
            other.merge(kept.rows([digest_of(b"t")], 1000)[0], NOW_MS)  # no fault: they are linked on
            assert states(kept) == states(other)


def test_a_change_that_a_journal_repeats_is_as_old_as_it_was(tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept:
        kept.merge([row(message(b"t", NOW_MS + 5_000, b"newer"))], NOW_MS)
        again = message(b"t", NOW_MS, b"older", created_ms=NOW_MS + 60_000)
        assert kept.update([again]) == 0
        kept.update([RetainedDeletion(b"t", stamp(NOW_MS), NOW_MS + 60_000)])
        found = kept.get(b"t")
        assert found is not None and found.payload == b"newer"


def test_any_order_of_arrival_has_the_same_result(tmp_path: Path) -> None:
    of_t = message(b"t", NOW_MS + 1, b"1"), deleted(b"t", NOW_MS + 2), message(b"t", NOW_MS + 3, b"3")
    changes = [*of_t, deleted(b"u", NOW_MS + 1), message(b"u", NOW_MS, b"0")]
    results = set()
    for number, order in enumerate(permutations(changes)):
        with store(tmp_path / f"{number}") as kept:
            for change in order:
                kept.merge([row(change)], NOW_MS + 10)
            found = kept.get(b"t")
            assert found is not None and found.payload == b"3" and kept.get(b"u") is None
            results.add((kept.stamps.sums(), tuple(sorted(states(kept).items()))))
    assert len(results) == 1


def test_sums_are_those_of_the_topics(tmp_path: Path) -> None:
    rng = random.Random(5)
    with store(tmp_path / "one") as one, store(tmp_path / "two") as two:
        for _ in range(300):
            topic, ms = b"t/%d" % rng.randrange(40), NOW_MS + rng.randrange(1000)
            one.update([message(topic, ms) if rng.random() < 0.7 else deleted(topic, ms)])
        rows, covered = one.rows([digest for digest in states(one)], 1 << 20)
        assert covered == 40
        rng.shuffle(rows)
        two.merge(rows, NOW_MS + 2000)
        assert one.stamps.sums() == two.stamps.sums() != bytes(8 * BUCKETS)
        assert states(one) == states(two)
        assert {item.topic for item in one.scan(b"#", None, 99, 1 << 20, NOW_MS)[0]} == {
            item.topic for item in two.scan(b"#", None, 99, 1 << 20, NOW_MS)[0]
        }


def test_deletions_are_forgotten_after_a_day_and_the_oldest_of_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store(tmp_path / "r") as kept:
        kept.update([deleted(b"a"), deleted(b"b", NOW_MS + 1), message(b"c")])
        assert kept.sweep(NOW_MS + replicated.TOMBSTONE_MS - 1) == 0
        assert kept.sweep(NOW_MS + replicated.TOMBSTONE_MS) == 1
        assert {*states(kept)} == {digest_of(b"b"), digest_of(b"c")}
        monkeypatch.setattr(retained_stamps, "TOMBSTONES_MAX", 3)
        for number in range(10):
            kept.update([deleted(b"n/%d" % number, NOW_MS + 10 + number)])
        assert {*states(kept)} == {digest_of(one) for one in (b"c", b"n/7", b"n/8", b"n/9")}
        # What another node still has of it is not taken again, nor is it an error.
        assert kept.merge([row(deleted(b"a"))], NOW_MS + replicated.TOMBSTONE_MS) == (0, 0)


def test_an_expired_message_leaves_its_stamp(tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept:
        kept.update([message(b"t", NOW_MS, expires_ms=NOW_MS + 1000)])
        before = kept.stamps.sums()
        assert kept.clear_expired(NOW_MS + 1000, 10) == 1
        assert kept.stamps.sums() == before, "nodes that have cleared it and others are equal"
        assert kept.merge([row(message(b"t", NOW_MS - 1, b"older"))], NOW_MS + 2000) == (0, 0)
        assert kept.merge([row(message(b"u", NOW_MS, expires_ms=NOW_MS + 1))], NOW_MS + 2) == (1, 0)
        assert kept.get(b"t") is None and kept.get(b"u") is None


def test_what_a_limit_refuses_is_not_kept_nor_asked_for_again(tmp_path: Path) -> None:
    with store(tmp_path / "r", max_messages=1) as kept, store(tmp_path / "other") as other:
        rows = [row(message(b"a")), row(message(b"b"))]
        assert kept.merge(rows, NOW_MS) == (2, 1)
        assert kept.merge([row(message(b"a", NOW_MS + 1, b"x" * 100))], NOW_MS, 99) == (1, 1)
        assert kept.count() == 0, "an outdated message is worse than none"
        other.merge([rows[1], row(message(b"a", NOW_MS + 1, b"x" * 100))], NOW_MS)
        assert kept.stamps.sums() == other.stamps.sums()
        assert kept.rows([digest_of(b"a"), digest_of(b"b")], 1 << 20) == ([], 2), "others get it from nodes that have it"
        assert kept.merge([row(message(b"b", NOW_MS + 2))], NOW_MS) == (1, 0)


def test_changes_of_this_node_alone_are_for_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_stamps, "CHANGES_KEPT", 4)
    with store(tmp_path / "r") as kept:
        assert kept.stamps.head() == 0 and kept.stamps.changes_behind(0, 9) == (0, [])
        kept.update([message(b"$SYS/brokers"), message(b"a"), b"b"])
        kept.merge([row(message(b"c"))], NOW_MS)
        assert kept.stamps.changes_behind(0, 9) == (2, [digest_of(b"a"), digest_of(b"b")])
        kept.update([message(b"%d" % number) for number in range(4)])
        assert kept.stamps.changes_behind(0, 9) is None
        assert kept.stamps.changes_behind(2, 3) == (5, [digest_of(b"%d" % number) for number in range(3)])
        assert digest_of(b"$SYS/brokers") not in states(kept)


def test_a_store_without_stamps_gets_them_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "BUILD_MESSAGES", 7)
    topics = [b"t/%d" % number for number in range(30)] + [b"long/" + b"x" * 600, b"$SYS/brokers"]
    with RetainedStore(tmp_path / "r", map_bytes=1 << 26) as plain:
        plain.update([message(topic) for topic in topics])
    with store(tmp_path / "r") as kept:
        assert not kept.is_built
        kept.build()
        assert kept.merge([row(message(b"t/9", NOW_MS - 1, b"older"))], NOW_MS) == (0, 0), "it is not stamped yet"
        kept.update([message(b"t/8", NOW_MS - 1, b"newer")])
    with store(tmp_path / "r") as kept:
        while not kept.build():
            pass
        assert kept.is_built and len(states(kept)) == 31
        found = kept.get(b"t/8")
        assert found is not None and (found.payload, states(kept)[digest_of(b"t/8")][0]) == (b"newer", found.message_id)
    with store(tmp_path / "r", sync=True) as kept:
        assert kept.is_built
    with RetainedStore(tmp_path / "r", map_bytes=1 << 26) as plain:
        assert plain.count() == 31
        plain.update([b"t/1"])
    with store(tmp_path / "r") as kept:
        assert not kept.is_built, "a broker without a cluster has changed messages"
        while not kept.build():
            pass
        assert len(states(kept)) == 30


@pytest.mark.parametrize("damage", [
    b"", b"x" * 60, row(message(b"t"))[:-1], row(message(b"a/+")), row(message(b"$SYS/brokers")), row(message(b"t", qos=3)),
    row(message(b"t", properties=b"\xff\xff")), row(message(b"t", properties=b"\x23\0\1")), row(message(b"")),
    row(message(b"t", message_id=b"\xff" * 16)), row(message(b"\xff")),
])  # fmt: skip
def test_a_row_that_is_no_message_is_refused(damage: bytes, tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept, pytest.raises(ValueError, match="retained message"):
        kept.merge([row(message(b"good")), damage], NOW_MS)
    with store(tmp_path / "r") as kept:
        assert kept.count() == 0


def test_rows_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store(tmp_path / "r") as kept:
        kept.update([message(b"%d" % number, payload=b"x" * 1000) for number in range(5)])
        digests = [digest_of(b"%d" % number) for number in range(5)]
        rows, covered = kept.rows(digests, 2500)
        assert len(rows) == covered == 2
        assert len(kept.rows(digests[2:], 1)[0]) == 1
        monkeypatch.setattr(replicated, "ROW_BYTES_MAX", 100)
        assert kept.rows(digests, 2500) == ([], 5) and kept.too_large == 5


def test_a_full_file_refuses_single_messages(tmp_path: Path) -> None:
    with ReplicatedStore(tmp_path / "r", map_bytes=1 << 19) as kept:
        rows = [row(message(b"%d" % number, payload=b"x" * (1 << 20))) for number in range(2)] + [row(message(b"small"))]
        assert kept.merge_each(rows, NOW_MS) == (3, 2)
        assert kept.get(b"small") is not None


def test_a_deletion_of_this_moment(tmp_path: Path) -> None:
    with store(tmp_path / "r") as kept:
        kept.update([message(b"t", time.time_ns() // 1_000_000 - 5)])
        kept.update([b"t"])
        assert kept.get(b"t") is None and states(kept)[digest_of(b"t")][1] == TopicState.DELETED
