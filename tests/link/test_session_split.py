"""Which worker gets what of a message of sessions, and what waits for a peer."""

import random

import pytest

from shardbroker.cluster.messages import (
    Announce,
    Claim,
    Held,
    Key,
    Moved,
    Queued,
    Rebuild,
    Retry,
    SessionMessage,
    Sessions,
    State,
    Tail,
    Take,
    Wait,
)
from shardbroker.cluster.registry import ALL_PARTITIONS, bitmap, partitions_of
from shardbroker.link import session_channel as channel
from shardbroker.link.codec import decode
from shardbroker.link.frames import FrameReader, FrameType
from shardbroker.link.session_channel import Budget, Packed
from shardbroker.link.session_codec import encode_session
from shardbroker.link.sessions import PeerQueue, SessionSplit
from shm.partitions import PARTITIONS, Division

DIVISIONS = [Division(1), Division(2), Division(3, (5, 1, 1)), Division(64)]


def held(partition: int, number: int = 1) -> Held:
    return Held(Key(partition, number), 1, 1, True)


@pytest.mark.parametrize("division", DIVISIONS, ids=str)
def test_a_message_with_a_key_has_one_worker(division: Division) -> None:
    split = SessionSplit(division.owners)
    for partition in range(PARTITIONS):
        key = Key(partition, 5)
        messages: list[SessionMessage] = [
            Claim(1, key, b"", False), Wait(1, key), Retry(1, key), Announce(held(partition)), Take(key, 1, "x", False),
            State(key, 1, 1, b"", True), Tail(key, 1, 1, (Queued(1, b"t", 1),), 1),
        ]  # fmt: skip
        for message in messages:
            [(worker, part)] = split.parts(message)
            assert worker == division.owners[partition] and part is message


@pytest.mark.parametrize("division", DIVISIONS, ids=str)
@pytest.mark.parametrize("make", [lambda bits: Rebuild(3, b"d", bits), Moved], ids=["rebuild", "moved"])
def test_a_bitmap_is_split(division: Division, make: type[Moved]) -> None:
    split, rng = SessionSplit(division.owners), random.Random(1)
    for size in (0, 1, 5, 400, PARTITIONS):
        wanted = {*rng.sample(range(PARTITIONS), size)}
        parts = split.parts(make(bitmap(wanted)))
        assert [worker for worker, _ in parts] == sorted({division.owners[partition] for partition in wanted})
        for worker, part in parts:
            assert isinstance(part, Rebuild | Moved)
            own = {partition for partition in wanted if division.owners[partition] == worker}
            assert part == make(bitmap(own)) and partitions_of(part.partitions) == own


def test_sessions_of_one_worker_stay_as_they_are() -> None:
    division = Division(4)
    message = Sessions(3, 2, bitmap([1, 5, 9]), (held(1), held(9)), True)
    [(worker, part)] = SessionSplit(division.owners).parts(message)
    assert worker == 1 and part is message


def test_sessions_of_several_workers_are_split() -> None:
    """A peer with fewer workers answers for partitions of several; numbers of parts stay without a gap."""
    split = SessionSplit(Division(2).owners)
    bits = bitmap([1, 2, 3])
    first = Sessions(3, 1, bits, (held(1), held(3), held(1, 2)), False)
    last = Sessions(3, 2, bits, (held(2),), True)
    assert split.parts(first) == [
        (0, Sessions(3, 1, bitmap([2]), (), False)),
        (1, Sessions(3, 1, bitmap([1, 3]), (held(1), held(3), held(1, 2)), False)),
    ]
    assert split.parts(last) == [
        (0, Sessions(3, 2, bitmap([2]), (held(2),), True)),
        (1, Sessions(3, 2, bitmap([1, 3]), (), True)),
    ]


def test_sessions_outside_the_answered_partitions_are_dropped() -> None:
    split = SessionSplit(Division(2).owners)
    message = Sessions(3, 1, bitmap([2]), (held(1), held(2)), True)
    assert split.parts(message) == [(0, message._replace(held=(held(2),)))]
    assert split.parts(message._replace(partitions=bitmap([]))) == []


def test_all_partitions_have_a_worker() -> None:
    for division in DIVISIONS:
        parts = SessionSplit(division.owners).parts(Moved(bitmap(ALL_PARTITIONS)))
        assert len(parts) == division.workers


# --- what waits for a peer -------------------------------------------------------------------------------------------------


def packed(size: int, kind: FrameType = FrameType.STATE, stamp: int = 7) -> Packed:
    if kind == FrameType.STATE:
        kind, body = encode_session(State(Key(1, 2), 3, 1, bytes(size), True))
    else:
        kind, body = encode_session(Wait(1, Key(1, 2)))
    return Packed(2, kind, body, stamp)


def test_frames_for_a_peer_keep_their_order_and_stamp() -> None:
    budget = Budget()
    queue = PeerQueue(budget)
    assert queue.put(packed(10)) and queue.put(packed(0, FrameType.WAIT, 8))
    assert budget.used > 0
    reader = FrameReader()
    reader.feed(queue.next_frame() + queue.next_frame())
    first, last = reader.next(), reader.next()
    assert first is not None and last is not None
    assert (decode(first), first.stamp) == (State(Key(1, 2), 3, 1, bytes(10), True), 7)
    assert (decode(last), last.stamp) == (Wait(1, Key(1, 2)), 8)
    assert (len(queue), budget.used) == (0, 0)


def test_large_messages_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BULK_BYTES", 10_000)
    monkeypatch.setattr(channel, "QUEUE_BYTES", 20_000)
    queue = PeerQueue(Budget())
    assert queue.put(packed(9_000))
    assert not queue.put(packed(9_000))
    assert queue.dropped == 1
    while not queue.is_full:
        assert queue.put(packed(0, FrameType.WAIT))
    assert 20_000 < (len(queue) - 1) * (channel.OVERHEAD + 18) + 9_000 + channel.OVERHEAD + 40 < 21_000


def test_the_total_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "TOTAL_BYTES", 10_000)
    budget = Budget()
    one, other = PeerQueue(budget), PeerQueue(budget)
    assert one.put(packed(9_000))
    assert not other.put(packed(9_000)), "another peer has the room"
    assert other.put(packed(0, FrameType.WAIT))
    one.close()
    assert other.put(packed(9_000))
    other.close()
    assert budget.used == 0
