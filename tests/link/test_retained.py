"""Retained messages in link-0, without a broker around it: what a peer must not send, the thread, and a disk that refuses."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import RetainedAck, RetainedBegin, RetainedEnd, RetainedMessages, RetainedRows
from shardbroker.cluster.retained import SUMS_BYTES
from shardbroker.link import tables
from shardbroker.link.retained import RetainedLink
from shardbroker.stores.replicated import ReplicatedStore
from shardbroker.stores.retained import RetainedStoreRefused
from shardbroker.supervisor.layout import tear_down
from tests.cluster.real.nodes import Nodes
from tests.harness.waiting import until
from tests.link.test_signals import Half, two
from tests.stores.test_replicated import NOW_MS, message, row

PEER, NUMBER = 2, 7


class Driven:
    """The driver of a node with one connection."""

    def __init__(self, half: Half) -> None:
        self.sent: list[RetainedMessages] = []
        self.faults: list[PeerFault] = []
        self.dropped = 0
        self.lines: list[str] = []
        self.link = RetainedLink(
            half.topology, lambda _, sent: self.sent.append(sent), lambda _, fault: self.faults.append(fault), self.drop,
            lambda level, line: self.lines.append(f"{level} {line}"),
        )  # fmt: skip
        self.link.follow({NUMBER: PEER})

    def drop(self, messages: int) -> None:
        self.dropped += messages

    async def until(self, condition: Callable[[], object]) -> None:
        running = asyncio.create_task(self.link.run())
        try:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.01)
                    assert not running.done(), running.result()
        finally:
            running.cancel()


@pytest.fixture
def half(tmp_path: Path) -> Iterator[Half]:
    made = Half(Nodes(tmp_path, 2), 1)
    yield made
    tear_down(made.topology)


def rows(*messages: Any, number: int = 1) -> RetainedRows:
    return RetainedRows(number, tuple(row(one) for one in messages))


def test_a_peer_that_sends_more_than_its_window_is_refused(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "INPUT_MAX", 1000)
    driven = Driven(half)
    for number in range(1, 4):
        driven.link.arrived(NUMBER, rows(message(b"t"), number=number), 400)
    assert [fault.reason for fault in driven.faults] == [ByeReason.LIMIT]
    driven.link.arrived(8, rows(message(b"t")), 400)
    driven.link.close()


def test_what_the_disk_refuses_is_taken_again(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RETRY_S", 0.05)
    refusals = [RetainedStoreRefused("no space", 28), RetainedStoreRefused("no space", 28)]
    merge = ReplicatedStore.merge

    def refusing(store: ReplicatedStore, *arguments: Any) -> tuple[int, int]:
        if refusals:
            raise refusals.pop()
        return merge(store, *arguments)

    monkeypatch.setattr(ReplicatedStore, "merge", refusing)
    driven = Driven(half)
    driven.link.arrived(NUMBER, rows(message(b"t")), 100)
    asyncio.run(driven.until(lambda: RetainedAck(1) in driven.sent))
    assert not driven.faults
    assert [line for line in driven.lines if "retained messages not replicated" in line and "no space" in line] == driven.lines
    driven.link.close()
    with ReplicatedStore(half.topology.retained_dir) as store:
        assert store.get(b"t") is not None


def test_limits_of_this_node_count_what_they_refuse(half: Half) -> None:
    driven = Driven(half)
    driven.link._table.store.max_messages = 1
    driven.link._table.follow_settings = lambda: None  # type: ignore[method-assign]
    driven.link.arrived(NUMBER, rows(message(b"a"), message(b"b"), message(b"c")), 100)
    asyncio.run(driven.until(lambda: driven.dropped == 2))
    driven.link.close()


def test_a_peer_that_sends_what_is_no_message_is_refused(tmp_path: Path) -> None:
    with two(tmp_path) as halves:
        bell = halves[1].topology.doorbells[halves[1].topology.slot_of("link")]
        with ReplicatedStore(halves[1].topology.retained_dir, bell=bell) as store:
            store.update([message(b"good", NOW_MS), message(b"a/+", NOW_MS)])  # its clients could not
        with ReplicatedStore(halves[0].topology.retained_dir) as store:
            until(lambda: halves[0].counters.totals()["link.closed"])
            assert store.count() == 0


def test_link_processes_exchange_what_their_stores_have(tmp_path: Path) -> None:
    with two(tmp_path) as halves:
        bells = [half.topology.doorbells[half.topology.slot_of("link")] for half in halves]
        with (
            ReplicatedStore(halves[0].topology.retained_dir, bell=bells[0]) as one,
            ReplicatedStore(halves[1].topology.retained_dir, bell=bells[1]) as other,
        ):
            one.update([message(b"one", NOW_MS)])
            other.update([message(b"other", NOW_MS)])
            until(lambda: one.get(b"other") is not None and other.get(b"one") is not None)
            assert one.stamps.sums() == other.stamps.sums()


def test_what_a_new_connection_sends_during_a_turn_is_not_lost(half: Half) -> None:
    """A comparison that a peer has begun is not begun again: it would last for ever."""
    driven = Driven(half)

    def connect_meanwhile() -> None:
        driven.link._table.follow_settings = lambda: None  # type: ignore[method-assign]
        driven.link.follow({NUMBER: PEER, NUMBER + 1: PEER + 1})
        driven.link.arrived(NUMBER + 1, RetainedBegin(1, bytes(SUMS_BYTES)), SUMS_BYTES)

    driven.link._table.follow_settings = connect_meanwhile  # type: ignore[method-assign]
    asyncio.run(driven.until(lambda: RetainedEnd(1) in driven.sent))
    driven.link.close()
