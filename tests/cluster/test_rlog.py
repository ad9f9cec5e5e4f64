"""Streams of routes between two nodes, message by message, and what a peer may not send."""

from typing import Any

import pytest

from shardbroker.cluster import rlog
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    Message,
    Route,
    RouteAck,
    RouteEntries,
    RoutePartAck,
    RoutesBegin,
    RoutesEnd,
    RoutesFrom,
    RoutesPart,
    RoutesResume,
)
from shardbroker.cluster.outputs import SubackDue
from shardbroker.cluster.rlog import ACK_STALL_MS, DumpSlots, MemoryRouteLog, RouteReceiver, RouteSender, SubackWait
from shardbroker.cluster.view import RouteState
from tests.cluster.sim.disk import MemoryRoutes

LOG = 77


def routes(*numbers: int) -> list[Route]:
    return [Route(b"t/%d" % number) for number in numbers]


class Pair:
    """A sender and a receiver, and the messages between them."""

    def __init__(self, log: MemoryRouteLog, store: MemoryRoutes, log_id: int = LOG, slots: DumpSlots | None = None) -> None:
        self.log, self.store = log, store
        self.sender = RouteSender(log, log_id, 2, slots or DumpSlots(), 0)
        self.receiver = RouteReceiver(store, 1, log_id)
        self.seen: list[Message] = []
        self.settle(self.receiver.start())

    def settle(self, to_sender: list[Message] | None = None) -> None:
        up: list[Any] = [*(to_sender or [])]
        down: list[Any] = self.sender.pump(0)
        while up or down or self.receiver.has_work:
            down += [answer for message in up for answer in self.sender.receive(message, 0)]
            self.seen += down
            up = [answer for message in down for answer in self.receiver.receive(message)] + self.receiver.work()
            down = []

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.seen]

    def check(self) -> None:
        assert self.store.routes_of(1) == self.log.routes
        assert self.receiver.state == RouteState.NORMAL and self.sender.is_complete and self.sender.lag == 0


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlog, "BATCH_ROUTES", 3)
    monkeypatch.setattr(rlog, "WINDOW_BATCHES", 2)


def test_bootstrap_then_log_then_resumption() -> None:
    log, store = MemoryRouteLog(), MemoryRoutes()
    log.update(routes(*range(10)))
    pair = Pair(log, store)
    assert pair.kinds() == ["RoutesBegin", *["RoutesPart"] * 4, "RoutesEnd"]
    pair.check()
    log.update([*routes(50), Route(b"t/3", members=0)])
    pair.settle()
    pair.check()
    log.update(routes(51))
    again = Pair(log, store)
    assert again.kinds() == ["RoutesResume", "RouteEntries"]
    again.check()


def test_an_overrun_log_is_a_bootstrap_again_and_removes_old_rows() -> None:
    log, store = MemoryRouteLog(keep=4), MemoryRoutes()
    log.update(routes(1, 2))
    Pair(log, store).check()
    log.update([Route(b"t/1", members=0), *routes(*range(10, 20))])
    again = Pair(log, store)
    assert again.kinds()[0] == "RoutesBegin"
    again.check()
    assert (b"t/1", b"") not in store.routes_of(1)


def test_another_incarnation_is_a_bootstrap_even_with_a_position_in_range() -> None:
    log, store = MemoryRouteLog(), MemoryRoutes()
    log.update(routes(1, 2))
    Pair(log, store).check()
    new = MemoryRouteLog()
    new.update(routes(7, 8, 9))
    again = Pair(new, store, LOG + 1)
    assert again.kinds()[0] == "RoutesBegin"
    again.check()


def test_changes_during_a_dump_arrive_by_the_log() -> None:
    log, store = MemoryRouteLog(), MemoryRoutes()
    log.update(routes(*range(10, 30)))
    sender, receiver = RouteSender(log, LOG, 2, DumpSlots(), 0), RouteReceiver(store, 1, LOG)
    down: list[Any] = sender.receive(receiver.start()[0], 0)  # type: ignore[arg-type]
    number = 0
    while down:
        number += 1
        log.update([Route(b"t/%d" % (9 + number), members=0), Route(b"t/%d" % (100 + number))])
        up = [answer for message in down for answer in receiver.receive(message)]
        down = [answer for message in up for answer in sender.receive(message, 0)]  # type: ignore[arg-type]
        if number > 60:
            break
        if number > 30:
            log.update = lambda changes: log.head  # type: ignore[method-assign]
    assert store.routes_of(1) == log.routes
    assert receiver.state == RouteState.NORMAL


def test_an_interrupted_dump_leaves_no_mark() -> None:
    log, store = MemoryRouteLog(), MemoryRoutes()
    log.update(routes(1))
    Pair(log, store).check()
    receiver = RouteReceiver(store, 1, LOG)
    receiver.start()
    receiver.receive(RoutesBegin(LOG, 5))
    assert RouteReceiver(store, 1, LOG).start() == [RoutesFrom(0, 0)]
    assert (b"t/1", b"") in store.routes_of(1), "old rows serve meanwhile"


def test_dumps_wait_for_a_place_and_give_it_back() -> None:
    log = MemoryRouteLog()
    log.update(routes(1))
    slots = DumpSlots(most=1)
    first, second = (RouteSender(log, LOG, peer, slots, 0) for peer in (2, 3))
    slots.take(9)
    assert first.receive(RoutesFrom(0, 0), 0) == []
    slots.give_back(9)
    assert [type(message) for message in first.pump(0)] == [RoutesBegin, RoutesPart, RoutesEnd]
    assert len(second.receive(RoutesFrom(0, 0), 0)) == 3


def test_a_peer_that_does_not_acknowledge_ends() -> None:
    log = MemoryRouteLog()
    log.update(routes(1))
    sender = RouteSender(log, LOG, 2, DumpSlots(), 0)
    sender.receive(RoutesFrom(0, 0), 0)
    sender.pump(ACK_STALL_MS - 1)
    with pytest.raises(PeerFault) as caught:
        sender.pump(ACK_STALL_MS)
    assert caught.value.reason == ByeReason.STALLED


BEGUN: list[Any] = [RoutesBegin(LOG, 5)]
ENDED: list[Any] = [*BEGUN, RoutesPart(1, tuple(routes(1))), RoutesEnd(1, 5)]


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ([], RoutesPart(1, tuple(routes(1)))),
        ([], RouteEntries(LOG, 1, tuple(routes(1)))),
        ([], RoutesResume(LOG, 0, 0)),
        ([], RoutesBegin(LOG + 1, 5)),
        ([], RoutesBegin(LOG, -1)),
        ([], RoutesBegin(LOG, 1 << 63)),
        (BEGUN, RoutesPart(2, tuple(routes(1)))),
        (BEGUN, RoutesPart(1, ())),
        (BEGUN, RoutesPart(1, tuple(routes(1, 2, 3, 4)))),
        (BEGUN, RoutesPart(1, tuple(routes(2, 1)))),
        (BEGUN, RoutesPart(1, tuple(routes(1, 1)))),
        (BEGUN, RoutesPart(1, (Route(b""),))),
        (BEGUN, RoutesPart(1, (Route(b"x" * 65_536),))),
        (BEGUN, RoutesPart(1, (Route(b"x", b"g" * 65_536),))),
        (BEGUN, RoutesPart(1, (Route(b"x", members=0),))),
        (BEGUN, RoutesPart(1, (Route(b"x", b"g", 10_000_001),))),
        (BEGUN, RoutesPart(1, (Route(b"x", flags=256),))),
        (BEGUN, RoutesPart(1, (Route(b"x\0y"),))),
        (BEGUN, RoutesPart(1, (Route(b"x", b"\xff"),))),
        (BEGUN, RoutesEnd(1, 5)),
        (BEGUN, RoutesEnd(0, 4)),
        (ENDED, RouteEntries(LOG, 7, tuple(routes(1)))),
        (ENDED, RouteEntries(LOG, 5, tuple(routes(1)))),
        (ENDED, RouteEntries(LOG + 1, 6, tuple(routes(1)))),
        (ENDED, RouteEntries(LOG, 6, (Route(b"x", members=-1),))),
        (ENDED, RoutesEnd(1, 5)),
        (ENDED, RoutesBegin(LOG, 4)),
    ],
)
def test_a_receiver_refuses_what_is_out_of_order_or_range(before: list[Any], message: Any) -> None:
    store = MemoryRoutes()
    receiver = RouteReceiver(store, 1, LOG)
    receiver.start()
    for one in before:
        receiver.receive(one)
    known = store.routes_of(1)
    with pytest.raises(PeerFault):
        receiver.receive(message)
    assert store.routes_of(1) == known


@pytest.mark.parametrize("message", [RoutesFrom(LOG, 0), RouteAck(3), RouteAck(0), RoutePartAck(1), RoutePartAck(0)])
def test_a_sender_refuses_acknowledgements_out_of_range(message: Any) -> None:
    log = MemoryRouteLog()
    log.update(routes(1, 2))
    sender = RouteSender(log, LOG, 2, DumpSlots(), 0)
    sender.receive(RoutesFrom(LOG, 1), 0)
    with pytest.raises(PeerFault):
        sender.receive(message, 0)


def test_too_many_routes_of_a_peer_end_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlog, "ROUTES_MAX", 4)
    log = MemoryRouteLog()
    log.update(routes(*range(5)))
    with pytest.raises(PeerFault, match="must be at most 4"):
        Pair(log, MemoryRoutes())


def test_large_filters_are_cut_into_batches_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlog, "BATCH_BYTES", 100)
    log, store = MemoryRouteLog(), MemoryRoutes()
    log.update(Route(b"%d" % number + b"x" * 90) for number in range(5))
    pair = Pair(log, store)
    assert [len(message.rows) for message in pair.seen if isinstance(message, RoutesPart)] == [2, 2, 1]
    pair.check()


def test_a_suback_waits_for_peers_that_are_up_and_not_longer_than_its_limit() -> None:
    wait = SubackWait()
    assert wait.hold(1, 5, 0) == [] and wait.hold(2, 6, 0) == []
    assert wait.release([5, 9], 10) == [SubackDue(1, False)]
    assert wait.release([5], 99) == []
    assert wait.release([5], 100) == [SubackDue(2, True)]
    assert (wait.late, wait.sent) == (1, 6)
    wait.hold(3, 7, 200)
    assert wait.release([], 200) == [SubackDue(3, False)], "no peer is up"


def test_a_local_suback_does_not_wait() -> None:
    assert SubackWait(is_local=True).hold(1, 5, 0) == [SubackDue(1, False)]


def test_waiting_subacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlog, "SUBACKS_MAX", 2)
    wait = SubackWait()
    assert [wait.hold(ticket, 1, 0) for ticket in (1, 2, 3)] == [[], [], [SubackDue(1, True)]]
