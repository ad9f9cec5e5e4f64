"""SUBACKs that wait until other nodes have their routes (cluster.suback = cluster): the part of the worker."""

import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from acceptor.handover import encode_header, send_one
from shardbroker.config import load
from shardbroker.link.subacks import MESSAGE_BYTES, decode_request, encode_answer
from shardbroker.mqtt import packets as mqtt
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import Cursor, RetainedMessage
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from shardbroker.worker.subacks import GIVE_UP_MS
from shm.counters import Counter, Counters
from shm.epochs import Epochs
from shm.ring import Inbox
from shm.routes import RouteTable
from tests.sim.simulator import MemoryRoutes

NOW_MS = 1_700_000_000_000
SUBACK, PUBLISH = 9, 3
LATE = int(Counter.SUBACK_LATE)


class LoggedRoutes(MemoryRoutes):
    """A route table whose every commit is one entry of the log."""

    position = 0

    def update(self, changes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> int:
        super().update(changes)
        self.position += 1
        return self.position


class OneRetained:
    """A store of one retained message, at `r`."""

    def holds_only_sys(self) -> bool:
        return False

    def scan(
        self, filter: bytes, after: Cursor | None, limit: int, byte_limit: int, now_ms: int
    ) -> tuple[list[RetainedMessage], Cursor | None]:
        return [RetainedMessage(b"r", b"kept", 0, b"", bytes(16), now_ms, 0, b"")], None


class Held:
    """A router that holds SUBACKs, the far end of its channel, and a clock."""

    def __init__(self) -> None:
        self.link, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.near = far
        self.link.setblocking(False)
        self.near.setblocking(False)
        self.routes = LoggedRoutes()
        self.router = SansIoRouter(load(None, {}, []).settings, self.routes, 0, NOW_MS, OneRetained(), 1)
        self.routes.shards = [self.router]
        self.router.subacks.wait_for_peers(self.near.fileno())
        self.now_ms = NOW_MS

    def connect(self, client_id: bytes) -> SansIoChannel:
        channel = self.router.connect("127.0.0.1:1")
        channel.receive(mqtt.Connect(4, client_id).encode(4))
        self.step()
        assert channel.take_output()
        return channel

    def subscribe(self, channel: SansIoChannel, filter: bytes) -> None:
        channel.receive(mqtt.Subscribe(1, [(filter, 0)]).encode(4))
        self.step()

    def step(self, ms: int = 0) -> None:
        """Ends a pass, so much later."""
        self.now_ms += ms
        self.router.advance(self.now_ms)

    def request(self) -> tuple[int, int]:
        return decode_request(self.link.recv(MESSAGE_BYTES))

    def answer(self, ticket: int) -> None:
        self.link.send(encode_answer(ticket, False))
        self.step()

    @property
    def late(self) -> int:
        return self.router.counted(LATE)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.link.close()
    held.near.close()


def kinds(channel: SansIoChannel) -> list[int]:
    """Packet types that were sent since the last call."""
    data, found = channel.take_output(), []
    while data:
        found.append(data[0] >> 4)
        data = data[2 + data[1] :]
    return found


def test_a_suback_waits_for_the_answer_of_the_link(held: Held) -> None:
    channel = held.connect(b"a")
    held.subscribe(channel, b"t")
    ticket, position = held.request()
    assert position == held.routes.position
    held.step(GIVE_UP_MS - 1)
    assert kinds(channel) == []
    held.answer(ticket)
    assert kinds(channel)[0] == SUBACK and held.late == 0


def test_without_a_link_it_waits_for_the_commit_alone() -> None:
    held = Held()
    router = SansIoRouter(load(None, {}, []).settings, held.routes, 0, NOW_MS, None, 1)
    held.router = held.routes.shards[0] = router
    channel = held.connect(b"a")
    held.subscribe(channel, b"t")
    assert kinds(channel) == [SUBACK]


def test_a_session_whose_route_exists_waits_for_it_too(held: Held) -> None:
    """Its SUBACK makes the same promise, and the peers may not have the route yet."""
    first, second, third = held.connect(b"a"), held.connect(b"b"), held.connect(b"c")
    held.subscribe(first, b"t")
    ticket, position = held.request()
    held.subscribe(second, b"t")
    next_ticket, same_position = held.request()
    assert kinds(second) == [] and same_position == position and next_ticket != ticket
    held.answer(next_ticket)
    assert SUBACK in kinds(second) and kinds(first) == []
    held.answer(ticket)
    assert SUBACK in kinds(first)
    held.subscribe(third, b"t")
    assert SUBACK in kinds(third), "the peers have the route by now"


def test_a_link_that_does_not_answer_is_given_up(held: Held) -> None:
    channel = held.connect(b"a")
    held.subscribe(channel, b"t")
    ticket, _ = held.request()
    held.step(GIVE_UP_MS)
    assert SUBACK in kinds(channel) and held.late == 1
    held.answer(ticket)  # of a link that was slow, or to a worker that died
    assert SUBACK not in kinds(channel) and held.late == 1


def test_a_link_that_takes_no_request_delays_nothing(held: Held) -> None:
    channel = held.connect(b"a")
    held.link.close()
    held.subscribe(channel, b"t")
    assert SUBACK in kinds(channel) and held.late == 1


def test_tickets_of_a_successor_are_others(held: Held) -> None:
    """The answer to a worker that died reaches the next one through the same pair."""
    held.subscribe(held.connect(b"a"), b"t")
    ticket, _ = held.request()
    successor = SansIoRouter(load(None, {}, []).settings, held.routes, 0, NOW_MS + 1, None, 1)
    successor.subacks.wait_for_peers(held.near.fileno())
    channel = successor.connect("127.0.0.1:1")
    channel.receive(mqtt.Connect(4, b"b").encode(4) + mqtt.Subscribe(1, [(b"u", 0)]).encode(4))
    successor.advance(NOW_MS + 1)
    channel.take_output()
    held.link.send(encode_answer(ticket, False))
    successor.advance(NOW_MS + 2)
    assert kinds(channel) == []


def test_messages_arrive_while_a_suback_is_held(held: Held) -> None:
    """The routes are committed: a PUBLISH of the same client forces no further commit."""
    channel, other = held.connect(b"a"), held.connect(b"b")
    held.subscribe(other, b"u")
    held.answer(held.request()[0])
    held.subscribe(channel, b"t")
    commits = held.routes.position
    other.receive(mqtt.Unsubscribe(2, [b"u"]).encode(4))
    channel.receive(mqtt.Publish(b"t", b"1", 0).encode(4))
    assert kinds(channel) == [PUBLISH] and held.routes.position == commits
    held.answer(held.request()[0])
    assert SUBACK in kinds(channel)


def test_retained_messages_follow_the_suback(held: Held) -> None:
    channel = held.connect(b"a")
    held.subscribe(channel, b"r")
    held.step()
    assert kinds(channel) == []
    held.answer(held.request()[0])
    assert kinds(channel) == [SUBACK, PUBLISH]


def test_no_retained_message_for_a_subscription_that_ended_meanwhile(held: Held) -> None:
    channel = held.connect(b"a")
    held.subscribe(channel, b"r")
    channel.receive(mqtt.Unsubscribe(2, [b"r"]).encode(4))
    held.step()
    kinds(channel)
    held.answer(held.request()[0])
    held.step()
    assert kinds(channel) == [SUBACK]


def test_a_connection_that_ends_meanwhile_is_no_error(held: Held) -> None:
    channel, other = held.connect(b"a"), held.connect(b"b")
    channel.receive(mqtt.Subscribe(1, [(b"t", 0)]).encode(4))
    held.subscribe(other, b"t")
    held.router.cut(channel)
    held.answer(held.request()[0])
    assert SUBACK in kinds(other) and SUBACK not in kinds(channel)


def test_a_worker_holds_them_with_the_route_log(tmp_path: Path) -> None:
    """The same through a socket, the loop of a worker and the log of the route table."""
    options = [f"process.data_dir={tmp_path}", "process.workers=1", "process.acceptors=1", "durability.level=none"]
    topology = lay_out(load(None, {}, [*options, "listeners.default.bind=127.0.0.1:0"]).settings, [0])
    link, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client, handed_over = socket.socketpair()
    near.setblocking(False)
    client.setblocking(False)
    try:
        counters, epochs = Counters.attach(topology.counters_name), Epochs.attach(topology.epochs_name)
        routes = RouteTable(topology.routes_dir, log=True)
        worker = assemble(
            topology, 0, counters, routes, None, epochs, Registry(topology.registry_dir(0), create=True),
            Inbox.attach(topology.inbox_name(0)), MemoryWatch(counters, 0, 1, 0),
        )  # fmt: skip
        worker.serve()
        worker.hold_subacks(near.fileno())
        handed_over.setblocking(False)
        header = encode_header("127.0.0.1:1", "default", time.monotonic_ns() // 1_000_000, b"")
        assert send_one(topology.sending_ends("handover")[0], handed_over.fileno(), b"", header)
        client.sendall(mqtt.Connect(4, b"a").encode(4) + mqtt.Subscribe(1, [(b"t/#", 0)]).encode(4))
        for _ in range(3):
            worker.one_pass(0)
        assert client.recv(1 << 10)[0] >> 4 == 2  # CONNACK
        ticket, position = decode_request(link.recv(MESSAGE_BYTES))
        assert position > 0
        worker.one_pass(0)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        link.send(encode_answer(ticket, False))
        worker.one_pass(0)
        assert client.recv(1 << 10)[0] >> 4 == SUBACK
        routes.close()
    finally:
        for end in (link, near, client, handed_over):
            end.close()
        tear_down(topology)
