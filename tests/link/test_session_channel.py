"""Both ends of the channel of sessions between link-0 and a worker: order, parts, runs, restarts of either end, bounds."""

import socket
from collections.abc import Iterator
from itertools import count
from typing import Any

import cbor2
import pytest

from shardbroker.cluster.clock import HybridClock, stamp_of
from shardbroker.cluster.messages import End, Key, SessionMessage, State, Wait
from shardbroker.cluster.session_view import SessionView
from shardbroker.link import session_channel as module
from shardbroker.link.session_channel import Budget, FromWorker, Packed, SessionChannel, WorkerEnd, encode_view
from shardbroker.link.session_codec import decode_session, encode_session

KEY = Key(7, 99)
CLOCK_MS = 1_700_000_000_000
VIEW = SessionView(0, 3, ((1, 11), (2, 1 << 62)), b"d" * 16, bytes([1, 2] * 512), frozenset({2, 250}), True, False)
LARGE = State(KEY, 5, 1, bytes(range(256)) * 4096, True)


class Channel:
    """A pair of sockets, which outlives the processes at both ends."""

    def __init__(self) -> None:
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.numbers = count(1)
        self.start_worker()
        self.start_link()

    def start_worker(self) -> None:
        self.clock = HybridClock()
        self.worker = SessionChannel(self.sockets[0].fileno(), self.clock, lambda: CLOCK_MS)

    def start_link(self) -> None:
        self.budget = Budget()
        self.link = WorkerEnd(self.sockets[1].fileno(), self.budget)
        self.link.lost()
        self.show(VIEW)

    def show(self, view: SessionView) -> None:
        self.link.set_view(next(self.numbers), encode_view(view))

    def turn(self) -> tuple[list[Any], list[SessionMessage]]:
        """Has both ends send and receive until nothing is left; returns what the worker and what link-0 received."""
        at_worker: list[Any] = []
        at_link: list[SessionMessage] = []
        idle = 0
        while idle < 3:
            self.worker.flush()
            sent = [decode_session(one.type, one.body) for _, one in self.link.receive()]
            self.link.flush()
            received = self.worker.receive()
            at_worker += received
            at_link += sent
            idle = 0 if sent or received or self.worker.waits or self.link.waits else idle + 1
        return at_worker, at_link

    def begin(self) -> SessionView:
        """Has both ends begin a run; returns the view with which it begins."""
        views, messages = self.turn()
        assert not messages
        return views[-1]

    def close(self) -> None:
        self.worker.close()
        self.link.close()
        for one in self.sockets:
            one.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    one = Channel()
    yield one
    one.close()


def packed(message: SessionMessage, node_id: int = 2, stamp: int = 0) -> Packed:
    return Packed(node_id, *encode_session(message), stamp)


def ended(number: int) -> End:
    return End(KEY, number)


def test_a_run_begins_with_the_view(channel: Channel) -> None:
    assert not channel.worker.is_ready and not channel.worker.send(2, ended(1))
    view = channel.begin()
    assert channel.worker.is_ready
    assert view == VIEW._replace(run=view.run) and view.run > 0


def test_views_and_messages_keep_their_order(channel: Channel) -> None:
    run = channel.begin().run
    for number in range(5):
        channel.link.send(packed(ended(number), number))
        channel.show(VIEW._replace(epoch=number))
    at_worker, _ = channel.turn()
    expected: list[Any] = []
    for number in range(5):
        expected += [(number, ended(number)), VIEW._replace(run=run, epoch=number)]
    assert at_worker == expected


def test_large_messages_travel_in_parts_in_both_directions(channel: Channel) -> None:
    channel.begin()
    sent: list[SessionMessage] = [ended(1), LARGE, ended(2), LARGE._replace(number=2, body=b""), ended(3)]
    for message in sent:
        assert channel.worker.send(2, message)
        assert channel.link.send(packed(message))
    assert channel.worker.waits and channel.link.waits
    at_worker, at_link = channel.turn()
    assert at_link == sent
    assert at_worker == [(2, message) for message in sent]


@pytest.mark.parametrize("size", [0, 1, *(module.PART_BYTES - less for less in (28, 27, 26)), 3 * module.PART_BYTES])
def test_a_message_of_any_size(channel: Channel, size: int) -> None:
    channel.begin()
    message = State(KEY, 1, 1, b"x" * size, True)
    channel.worker.send(2, message)
    channel.link.send(packed(message))
    assert channel.turn() == ([(2, message)], [message])


def test_the_clock_of_the_worker_is_in_each_message(channel: Channel) -> None:
    channel.begin()
    assert channel.worker.send(2, ended(1))
    [(view, message)] = channel.link.receive()
    assert (view, message.stamp) == (1, stamp_of(CLOCK_MS))
    channel.link.send(packed(ended(2), 2, stamp_of(CLOCK_MS + 9)))
    channel.turn()
    assert channel.clock.now(CLOCK_MS) > stamp_of(CLOCK_MS + 9)
    channel.link.send(packed(ended(2), 2, stamp_of(CLOCK_MS + 999_999)))
    channel.turn()
    assert channel.clock.now(CLOCK_MS) < stamp_of(CLOCK_MS + 10), "a clock that is too far ahead"


def test_a_message_names_the_view_that_the_worker_had(channel: Channel) -> None:
    channel.begin()
    channel.show(VIEW._replace(epoch=4))
    channel.worker.send(2, ended(1))
    assert [number for number, _ in channel.link.receive()] == [1]
    channel.turn()
    channel.worker.send(2, ended(1))
    assert [number for number, _ in channel.link.receive()] == [2]


# --- ends that are started again -------------------------------------------------------------------------------------------


def test_another_worker_takes_nothing_of_what_was_sent_to_the_first(channel: Channel) -> None:
    first = channel.begin().run
    for _ in range(3):
        channel.link.send(packed(LARGE))
    channel.worker.receive()  # the first parts of a message
    channel.worker.send(2, ended(1))
    channel.start_worker()
    at_worker, at_link = channel.turn()
    assert at_link == [ended(1)], "sent by the first worker, and taken before the second one began"
    [view] = at_worker
    assert view == VIEW._replace(run=view.run) and view.run > first
    channel.link.send(packed(ended(5)))
    assert channel.turn() == ([(2, ended(5))], [])


def test_a_worker_that_dies_in_the_middle_of_a_message(channel: Channel) -> None:
    channel.begin()
    channel.worker.send(2, LARGE)
    channel.start_worker()
    at_worker, at_link = channel.turn()
    assert len(at_worker) == 1 and at_link == []
    channel.worker.send(2, ended(5))
    assert channel.turn() == ([], [ended(5)])


def test_another_link_process_begins_a_run(channel: Channel) -> None:
    first = channel.begin().run
    channel.worker.send(2, LARGE)
    channel.worker.send(2, ended(1))
    channel.link.send(packed(LARGE))
    channel.start_link()
    at_worker, at_link = channel.turn()
    assert at_link == [], "what was sent to the first process may be incomplete"
    views = [one for one in at_worker if isinstance(one, SessionView)]
    assert views == at_worker and views[-1].run > first
    channel.link.send(packed(ended(5)))
    channel.worker.send(2, ended(6))
    assert channel.turn() == ([(2, ended(5))], [ended(6)])


def test_without_a_worker_nothing_waits(channel: Channel) -> None:
    """A worker without sessions that move reads nothing."""
    channel.start_link()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        link = WorkerEnd(other.fileno(), channel.budget)
        link.lost()
        for number in range(1, 1_000):
            link.set_view(number, encode_view(VIEW))
            assert not link.send(packed(LARGE))
        assert not link.waits and not channel.budget.used and not link.dropped
        link.close()


# --- bounds ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BULK_BYTES", 4 << 20)
    monkeypatch.setattr(module, "QUEUE_BYTES", 5 << 20)


@pytest.mark.usefixtures("small")
def test_a_worker_that_stands_still_loses_large_messages_first(channel: Channel) -> None:
    run = channel.begin().run
    results = [channel.link.send(packed(LARGE)) for _ in range(10)]
    assert results == [True] * 3 + [False] * 7
    assert channel.link.send(packed(ended(1)))
    assert channel.link.dropped == 7
    assert channel.turn()[0] == [(2, LARGE)] * 3 + [(2, ended(1))]
    channel.show(VIEW)
    assert channel.turn()[0] == [VIEW._replace(run=run)], "the run goes on"


@pytest.mark.usefixtures("small")
def test_a_worker_that_stands_still_begins_another_run(channel: Channel) -> None:
    first = channel.begin().run
    sent = next(number for number in count() if not channel.link.send(packed(Wait(number, KEY))))
    assert channel.budget.used <= module.OVERHEAD
    assert channel.link.dropped > sent / 2
    assert not channel.link.send(packed(ended(1))), "until the worker has begun"
    channel.show(VIEW._replace(epoch=9))
    at_worker, _ = channel.turn()
    view = at_worker.pop()
    assert view == VIEW._replace(run=view.run, epoch=9) and view.run > first
    assert at_worker == [(2, Wait(number, KEY)) for number in range(len(at_worker))], "what the socket had"


@pytest.mark.usefixtures("small")
def test_views_for_a_worker_that_stands_still_are_bounded(channel: Channel) -> None:
    first = channel.begin().run
    for number in range(2, 10_000):
        channel.link.set_view(number, encode_view(VIEW._replace(epoch=number)))
        assert channel.budget.used <= module.QUEUE_BYTES
    view = channel.turn()[0][-1]
    assert view == VIEW._replace(run=view.run, epoch=9_999) and view.run > first


@pytest.mark.usefixtures("small")
def test_a_link_process_that_stands_still_is_sent_large_messages_up_to_a_limit(channel: Channel) -> None:
    channel.begin()
    assert [channel.worker.send(2, LARGE) for _ in range(10)] == [True] * 3 + [False] * 7
    assert channel.worker.send(2, ended(1))
    assert channel.turn()[1] == [LARGE] * 3 + [ended(1)]


@pytest.mark.usefixtures("small")
def test_a_link_process_that_stands_still_gets_another_run(channel: Channel) -> None:
    first = channel.begin().run
    sent = next(number for number in count() if not channel.worker.send(2, Wait(number, KEY)))
    assert not channel.worker.is_ready and channel.worker.dropped > sent / 2
    at_worker, at_link = channel.turn()
    assert len(at_link) < sent and at_worker[-1].run > first
    channel.worker.send(2, ended(1))
    assert channel.turn() == ([], [ended(1)])


def test_a_turn_is_bounded(channel: Channel) -> None:
    channel.begin()
    for number in range(module.PACKETS_A_TURN + 10):
        channel.link.send(packed(ended(number)))
        channel.worker.send(2, ended(number))
    assert len(channel.worker.receive()) == len(channel.link.receive()) == module.PACKETS_A_TURN
    assert len(channel.worker.receive()) == len(channel.link.receive()) == 10


def test_the_largest_session_is_sent_at_once(channel: Channel) -> None:
    channel.begin()
    for number in range(1, 65):
        assert channel.worker.send(2, LARGE._replace(number=number, is_last=number == 64))
    _, at_link = channel.turn()
    assert [message.number for message in at_link if isinstance(message, State)] == [*range(1, 65)]


def test_messages_between_workers_are_passed_on_in_parts_and_in_a_run_only(channel: Channel) -> None:
    large = bytes(range(256)) * 800
    assert not channel.worker.send_worker(1, b"early"), "no view has arrived"
    channel.begin()
    assert channel.worker.send_worker(3, large)
    found = []
    while not found:
        channel.worker.flush()
        found = [one for _, one in channel.link.receive()]
    assert found == [FromWorker(3, large)]
    assert channel.link.send_from(2, large)
    channel.link.send(packed(Wait(1, KEY)))
    at_worker, _ = channel.turn()
    assert at_worker == [FromWorker(2, large), (2, Wait(1, KEY))]
    channel.link.lost()
    assert not channel.link.send_from(2, b"late")


def test_a_process_that_replaces_the_worker_goes_on_with_the_run(channel: Channel) -> None:
    """In the middle of a large message in each direction, and with what waits in the socket."""
    channel.begin()
    for number in range(3):
        assert channel.worker.send(2, LARGE._replace(generation=number))
        assert channel.link.send(Packed(2, *encode_session(LARGE._replace(generation=10 + number)), 0))
    channel.worker.receive()
    image = cbor2.loads(cbor2.dumps(channel.worker.image()))
    clock = HybridClock()
    channel.worker = SessionChannel(channel.sockets[0].fileno(), clock, lambda: CLOCK_MS, begins=False)
    channel.worker.take_image(image)
    at_worker, at_link = channel.turn()
    assert [one.generation for one in at_link] == [0, 1, 2]
    assert [message.generation for _, message in at_worker] == [10, 11, 12]


def test_a_worker_pauses_for_a_while(channel: Channel) -> None:
    channel.begin()
    channel.worker.pause()
    channel.turn()
    assert channel.link.is_paused
    channel.worker.resume()
    channel.turn()
    assert not channel.link.is_paused
    channel.worker.pause()
    channel.turn()
    channel.start_worker()
    channel.turn()
    assert not channel.link.is_paused, "another process begins a run"
