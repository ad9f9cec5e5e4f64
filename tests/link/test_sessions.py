"""Messages of sessions between workers of two nodes, by real link processes: order, split, restarts, and whole takeovers."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.messages import (
    Announce,
    End,
    Held,
    Key,
    Moved,
    Queued,
    Rebuild,
    SessionMessage,
    Sessions,
    Starting,
    State,
    Take,
    Wait,
    Who,
)
from shardbroker.cluster.outputs import Accepted, Create, Export, Import, MovedAway, SessionOutput, ToNode
from shardbroker.cluster.registry import ALL_PARTITIONS, bitmap, client_key
from shardbroker.cluster.session_view import SessionView
from shardbroker.cluster.sessions import NodeSessions
from shardbroker.link import signals
from shardbroker.link.frames import Frame
from shardbroker.link.session_channel import BULK_BYTES, Budget, Packed, SessionChannel
from shardbroker.link.session_codec import decode_session, encode_session
from shardbroker.link.sessions import SessionDispatcher
from shm.topology import Topology
from tests.harness.waiting import until
from tests.link.test_signals import Half, two

WORKERS = {1: 2, 2: 3}
EACH = [{"process.workers": count} for count in WORKERS.values()]
ONE_MB = bytes(range(256)) * 4096


class Worker:
    """The end of a worker, and what has arrived there."""

    def __init__(self, topology: Topology, number: int) -> None:
        self.number = number
        self.channel = SessionChannel(topology.sending_ends("sessions", number)[0], HybridClock())
        self.views: list[SessionView] = []
        self.found: list[tuple[int, SessionMessage]] = []

    def read(self) -> None:
        self.channel.flush()
        for one in self.channel.receive():
            if isinstance(one, SessionView):
                self.views.append(one)
            else:
                self.found.append(one)

    def is_linked(self, node: int) -> bool:
        return bool(self.channel.is_ready and self.views and node in self.views[-1].linked and self.views[-1].all_up)


class Ends:
    """The ends of all workers of two nodes."""

    def __init__(self, halves: list[Half]) -> None:
        self.halves = halves
        self.workers = {
            (node, number): Worker(half.topology, number)
            for node, half in enumerate(halves, 1)
            for number in range(WORKERS[node])
        }  # fmt: skip
        self.until_linked()

    def read(self) -> None:
        for worker in self.workers.values():
            worker.read()

    def until(self, condition: Callable[[], object]) -> None:
        def is_met() -> object:
            self.read()
            return condition()

        until(is_met)

    def until_linked(self) -> None:
        self.until(lambda: all(worker.is_linked(3 - node) for (node, _), worker in self.workers.items()))

    def restart(self, node: int, number: int) -> Worker:
        self.workers[node, number].channel.close()
        worker = self.workers[node, number] = Worker(self.halves[node - 1].topology, number)
        return worker

    def close(self) -> None:
        for worker in self.workers.values():
            worker.channel.close()


@contextmanager
def linked(directory: Path, **more: Any) -> Iterator[Ends]:
    with two(directory, each=EACH, **more) as halves:
        ends = Ends(halves)
        try:
            yield ends
        finally:
            ends.close()


def key(partition: int) -> Key:
    return Key(partition, 1 << 63)


def test_messages_reach_the_worker_of_their_partition_in_order(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        sender = ends.workers[1, 1]
        sent: dict[int, list[SessionMessage]] = {number: [] for number in range(3)}
        for partition in range(30):
            messages: list[SessionMessage] = [Wait(partition, key(partition)), State(key(partition), 9, 1, b"part", False)]
            if partition < 3:
                messages.append(State(key(partition), 9, 2, ONE_MB, True))
            messages.append(End(key(partition), 9))
            for message in messages:
                assert sender.channel.send(2, message)
                sent[partition % 3].append(message)
        total = sum(map(len, sent.values()))
        ends.until(lambda: sum(len(ends.workers[2, number].found) for number in range(3)) == total)
        for number, messages in sent.items():
            assert ends.workers[2, number].found == [(1, message) for message in messages]
        assert not any(ends.workers[1, number].found for number in range(2))


def test_both_directions_with_megabytes(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        states = [State(key(6), 1, number, ONE_MB, number == 12) for number in range(1, 13)]
        for state in states:
            assert ends.workers[1, 0].channel.send(2, state) and ends.workers[2, 0].channel.send(1, state)
        ends.until(lambda: all(len(ends.workers[node, 0].found) == 12 for node in (1, 2)))
        assert ends.workers[2, 0].found == [(1, state) for state in states]
        assert ends.workers[1, 0].found == [(2, state) for state in states]


def test_a_rebuild_is_split_and_its_answers_come_back(tmp_path: Path) -> None:
    """Node 1 has two workers, node 2 three: a REBUILD of one worker is answered by three streams."""
    with linked(tmp_path) as ends:
        asker = ends.workers[1, 1]
        own = {partition for partition in ALL_PARTITIONS if partition % 2 == 1}
        assert asker.channel.send(2, Rebuild(7, b"d" * 16, bitmap(own)))
        ends.until(lambda: all(ends.workers[2, number].found for number in range(3)))
        answered = set()
        for number in range(3):
            [(node, message)] = ends.workers[2, number].found
            bits = bitmap(partition for partition in own if partition % 3 == number)
            assert (node, message) == (1, Rebuild(7, b"d" * 16, bits))
            held = Held(Key(next(partition for partition in own if partition % 3 == number), 5), 1, 1, True)
            answer = Sessions(7, 1, bits, (held,), True)
            assert ends.workers[2, number].channel.send(1, answer)
            answered.add(answer)
        ends.until(lambda: len(asker.found) == 3)
        assert {message for _, message in asker.found} == answered
        assert not ends.workers[1, 0].found


def test_what_belongs_to_several_workers_is_split(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        ends.workers[1, 0].channel.send(2, Moved(bitmap([0, 1, 3])))
        ends.workers[1, 0].channel.send(2, Announce(Held(key(5), 1, 1, True)))
        ends.until(lambda: ends.workers[2, 2].found)
        assert [ends.workers[2, number].found for number in range(3)] == [
            [(1, Moved(bitmap([0, 3])))],
            [(1, Moved(bitmap([1])))],
            [(1, Announce(Held(key(5), 1, 1, True)))],
        ]


def test_a_worker_that_is_started_again(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        first = ends.workers[2, 0]
        for number in range(1, 6):
            ends.workers[1, 0].channel.send(2, State(key(0), 1, number, ONE_MB, False))
        ends.until(lambda: first.found)
        second = ends.restart(2, 0)
        ends.until(lambda: second.is_linked(1))
        assert second.views[0].run > first.views[-1].run and 1 in second.views[0].linked
        ends.workers[1, 0].channel.send(2, End(key(0), 5))
        second.channel.send(1, End(key(2), 6))
        ends.until(lambda: (1, End(key(0), 5)) in second.found and (2, End(key(2), 6)) in ends.workers[1, 0].found)
        assert all(isinstance(message, State | End) for _, message in second.found)


def test_a_link_process_that_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REJOIN_VIEW_MS", 60_000)
    with linked(tmp_path) as ends:
        one, other = ends.workers[1, 0], ends.workers[2, 0]
        runs = one.views[-1].run, other.views[-1].run
        members = other.views[-1].members
        one.channel.send(2, State(key(0), 1, 1, ONE_MB, False))
        half = ends.halves[0]
        half.process.kill()
        half.process.join()
        one.channel.send(2, State(key(0), 1, 2, ONE_MB, True))
        one.channel.send(2, End(key(0), 1))
        ends.until(lambda: 1 not in other.views[-1].linked)
        assert other.views[-1].members == members[1:] and not other.views[-1].all_up
        half.start()
        ends.until(lambda: one.views[-1].run > runs[0])
        assert all(view.members == members for view in one.views if view.run > runs[0]), "no view without node 2"
        ends.until_linked()
        assert other.views[-1].run == runs[1], "the run of the other node goes on"
        assert other.views[-1].members == one.views[-1].members == members
        assert (1, End(key(0), 1)) not in other.found, "sent to the process that has ended"
        one.channel.send(2, End(key(0), 2))
        other.channel.send(1, End(key(0), 3))
        ends.until(lambda: (1, End(key(0), 2)) in other.found and (2, End(key(0), 3)) in one.found)


def test_a_link_process_that_is_started_again_while_its_peer_is_down(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        one = ends.workers[1, 0]
        run = one.views[-1].run
        for half in ends.halves:
            half.process.kill()
            half.process.join()
        ends.halves[0].start()
        ends.until(lambda: one.views[-1].run > run)
        assert [node for node, _ in one.views[-1].members] == [1] and not one.views[-1].linked


def test_a_peer_that_stands_still_gets_what_there_was_room_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = 100
    with linked(tmp_path, **{"cluster.suspect": "60s", "cluster.link.send_timeout": "60s"}) as ends:
        one, other = ends.workers[1, 0], ends.workers[2, 0]
        process = psutil.Process(ends.halves[0].process.pid)
        before = process.memory_info().rss
        psutil.Process(ends.halves[1].process.pid).suspend()
        for number in range(1, sent + 1):
            while not one.channel.send(2, State(key(0), 1, number, ONE_MB, number == sent)):
                ends.read()  # link-0 takes it from the worker
        assert one.channel.send(2, End(key(0), 1))
        ends.until(lambda: not one.channel.waits)
        assert process.memory_info().rss - before < 2 * BULK_BYTES
        ends.until(lambda: "session messages dropped" in capfd.readouterr().err)
        psutil.Process(ends.halves[1].process.pid).resume()
        ends.until(lambda: (1, End(key(0), 1)) in other.found)
        numbers = [message.number for _, message in other.found if isinstance(message, State)]
        assert BULK_BYTES >> 20 > len(numbers) - 20 > 50, "and what the sockets have taken"
        assert numbers == sorted(numbers)
        assert ends.halves[0].counters.totals()["link.closed"] == 0


def test_a_message_out_of_range_ends_the_connection(tmp_path: Path) -> None:
    with linked(tmp_path) as ends:
        other = ends.workers[2, 0]
        seen = len(other.views)
        ends.workers[1, 0].channel.send(2, End(Key(1024, 1), 1))
        ends.until(lambda: any(1 not in view.linked for view in other.views[seen:]))
        assert ends.halves[1].counters.totals()["link.closed"] == 1
        ends.until_linked()
        assert not other.found


# --- whole takeovers -------------------------------------------------------------------------------------------------------


class Core:
    """The session cores of one worker with a driver that keeps sessions in memory."""

    def __init__(self, topology: Topology, number: int) -> None:
        self.clock = HybridClock()
        self.channel = SessionChannel(topology.sending_ends("sessions", number)[0], self.clock)
        own = [partition for partition, worker in enumerate(topology.division.owners) if worker == number]
        self.core = NodeSessions(topology.settings.node.id, self, self.clock, partitions=own, number=time.time_ns() // 1000)
        self.sessions: dict[int, tuple[bytes, ...]] = {}
        self.accepted: dict[int, tuple[bytes, ...] | None] = {}
        """Ticket of each accepted client to its session, or None if that is new."""
        self.is_linked = False

    def now(self) -> tuple[int, int]:
        return time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000

    def queued(self, uid: int, most: int) -> list[Queued]:
        return []

    def delivered_of(self, uid: int) -> tuple[int, list[int]]:
        return 0, []

    def connect(self, session: Key, name: str, ticket: int) -> None:
        self.perform(self.core.deliver(self.core.claims.connect(session, name, False, ticket, *self.now()), *self.now()))

    def run(self) -> None:
        self.channel.flush()
        for one in self.channel.receive():
            if isinstance(one, SessionView):
                self.is_linked = one.all_up and len(one.members) == 2
                self.perform(self.core.follow(one, *self.now()))
            else:
                self.perform(self.core.received(*one, *self.now()))
        self.perform(self.core.tick(*self.now()))

    def perform(self, outputs: list[SessionOutput]) -> None:
        claims = self.core.claims
        for output in outputs:
            done: Any = []
            match output:
                case ToNode(node_id, message):
                    self.channel.send(node_id, message)
                case Accepted(ticket, uid, present):
                    self.accepted[ticket] = self.sessions[uid] if present else None
                case Create(session):
                    uid = len(self.sessions) + 1
                    self.sessions[uid] = ()
                    done = claims.created(session, uid, 0, *self.now())
                case Export(uid, generation):
                    done = claims.exported(uid, generation, self.sessions[uid])
                case Import(session, parts=parts):
                    uid = len(self.sessions) + 1
                    self.sessions[uid] = parts
                    done = claims.imported(session, uid, 0, *self.now())
                case MovedAway(uid):
                    self.sessions[uid] = ()
            if done:
                self.perform(self.core.deliver(done, *self.now()))


class Client(NamedTuple):
    name: str
    key: Key


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[int, int], Core]]:
    with two(tmp_path_factory.mktemp("cores"), each=EACH) as halves:
        found = {
            (node, number): Core(half.topology, number)
            for node, half in enumerate(halves, 1)
            for number in range(WORKERS[node])
        }  # fmt: skip
        run_until(found, lambda: all(core.is_linked for core in found.values()))
        yield found
        for core in found.values():
            core.channel.close()


def run_until(cores: dict[tuple[int, int], Core], condition: Callable[[], object]) -> None:
    def is_met() -> object:
        for core in cores.values():
            core.run()
        return condition()

    until(is_met)


def at(cores: dict[tuple[int, int], Core], node: int, client: Client) -> Core:
    return cores[node, client.key.partition % WORKERS[node]]


def connect(cores: dict[tuple[int, int], Core], node: int, clients: list[Client], tickets: list[int]) -> list[Any]:
    """Connects clients at a node; returns their sessions once all are accepted."""
    for client, ticket in zip(clients, tickets, strict=True):
        at(cores, node, client).connect(client.key, client.name, ticket)
    pairs = [(at(cores, node, client), ticket) for client, ticket in zip(clients, tickets, strict=True)]
    run_until(cores, lambda: all(ticket in core.accepted for core, ticket in pairs))
    return [core.accepted[ticket] for core, ticket in pairs]


def test_sessions_follow_their_clients(cores: dict[tuple[int, int], Core]) -> None:
    """Registrar and holder are any workers of both nodes."""
    clients = [Client(f"c{number}", client_key(b"c" * 16, f"c{number}")) for number in range(60)]
    assert connect(cores, 1, clients, [*range(60)]) == [None] * 60
    for number, client in enumerate(clients):
        core = at(cores, 1, client)
        core.sessions[core.core.claims.sessions[client.key].uid] = (b"session", b"%d" % number)
    assert connect(cores, 2, clients, [*range(100, 160)]) == [(b"session", b"%d" % number) for number in range(60)]
    assert not any(core.core.claims.sessions for (node, _), core in cores.items() if node == 1)
    assert connect(cores, 1, clients, [*range(200, 260)]) == [(b"session", b"%d" % number) for number in range(60)]


def test_the_largest_session_moves(cores: dict[tuple[int, int], Core]) -> None:
    client = Client("large", client_key(b"c" * 16, "large"))
    assert connect(cores, 1, [client], [1001]) == [None]
    core = at(cores, 1, client)
    parts = core.sessions[core.core.claims.sessions[client.key].uid] = tuple(
        number.to_bytes(2, "big") + ONE_MB[2:] for number in range(64)
    )
    [taken] = connect(cores, 2, [client], [1002])
    assert taken == parts


# --- the dispatcher alone --------------------------------------------------------------------------------------------------


class Loop:
    """An event loop that only notes what is waited for."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, descriptor: int, call: Callable[[], None]) -> None:
        self.readers[descriptor] = call


def test_what_was_sent_before_a_connection_was_known_is_dropped() -> None:
    """The peer may be another incarnation, with the same numbers."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        sent: list[tuple[int, Packed]] = []
        dispatcher = SessionDispatcher(
            [other.fileno()], (0,) * 1024, Budget(), lambda *message: sent.append(message) or True, lambda _: False  # type: ignore[func-returns-value]
        )
        loop = Loop()
        dispatcher.start(loop)  # type: ignore[arg-type]
        [read] = loop.readers.values()
        view = SessionView(0, 1, ((1, 1), (2, 2)), b"d" * 16, bytes([1]) * 1024, frozenset({2}), True, False)
        dispatcher.follow(view, {2: 10})
        channel = SessionChannel(one.fileno(), HybridClock())
        for _ in range(3):
            read()
            channel.receive()
        assert channel.send(2, End(key(1), 1))
        read()
        assert [number for number, _ in sent] == [10]
        assert channel.send(2, End(key(1), 2))
        assert channel.send(3, End(key(1), 2)), "a node that is not linked"
        dispatcher.follow(view._replace(epoch=2), {2: 11})
        read()
        assert len(sent) == 1
        channel.receive()
        assert channel.send(2, End(key(1), 3))
        dispatcher.follow(view._replace(epoch=3), {2: 11})
        read()
        assert [number for number, _ in sent] == [10, 11]
        dispatcher.arrived(2, End(key(1), 4), Frame(*encode_session(End(key(1), 4))))
        assert channel.receive()[1:] == [(2, End(key(1), 4))]
        channel.close()


def test_questions_to_a_worker_that_is_being_started_are_answered_for_it() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        sent: list[tuple[int, Packed]] = []
        starting = {0}
        dispatcher = SessionDispatcher(
            [other.fileno()], (0,) * 1024, Budget(), lambda *message: sent.append(message) or True, starting.__contains__  # type: ignore[func-returns-value]
        )
        dispatcher.start(Loop())  # type: ignore[arg-type]
        dispatcher.follow(SessionView(0, 1, linked=frozenset({2})), {2: 10})
        for message in (Take(key(1), 70, "c", False), Who(80, key(1), b""), End(key(1), 4)):
            dispatcher.arrived(2, message, Frame(*encode_session(message), stamp=5))
            dispatcher.arrived(3, message, Frame(*encode_session(message), stamp=5))
        answers = [decode_session(packed.type, packed.body) for _, packed in sent]
        assert answers == [Starting(70, key(1)), Starting(80, key(1))]
        assert {(number, packed.node_id, packed.stamp) for number, packed in sent} == {(10, 2, 5)}
        starting.clear()
        dispatcher.arrived(2, Take(key(1), 90, "c", False), Frame(*encode_session(Take(key(1), 90, "c", False))))
        assert len(sent) == 2


def test_questions_to_a_worker_that_is_being_replaced_are_answered_for_it() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        sent: list[tuple[int, Packed]] = []
        dispatcher = SessionDispatcher(
            [other.fileno()], (0,) * 1024, Budget(), lambda *message: sent.append(message) or True, lambda worker: False  # type: ignore[func-returns-value]
        )
        channel = SessionChannel(one.fileno(), HybridClock())
        dispatcher.start(Loop())  # type: ignore[arg-type]
        dispatcher.follow(SessionView(0, 1, linked=frozenset({2})), {2: 10})
        take = Take(key(1), 70, "c", False)
        for paused in (True, False):
            channel.receive()
            (channel.pause if paused else channel.resume)()
            dispatcher._read(dispatcher._ends[0])
            dispatcher.arrived(2, take, Frame(*encode_session(take), stamp=5))
        assert [decode_session(packed.type, packed.body) for _, packed in sent] == [Starting(70, key(1))]
        channel.close()


def test_a_dropped_message_is_counted() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        dispatcher = SessionDispatcher([other.fileno()], (0,) * 1024, Budget(), lambda *_: False, lambda _: False)
        loop = Loop()
        dispatcher.start(loop)  # type: ignore[arg-type]
        [read] = loop.readers.values()
        dispatcher.follow(SessionView(0, 1, linked=frozenset({2})), {2: 10})
        channel = SessionChannel(one.fileno(), HybridClock())
        for _ in range(3):
            read()
            channel.receive()
        channel.send(2, End(key(1), 1))
        channel.send(3, End(key(1), 1))
        read()
        assert dispatcher.dropped == 1
        channel.close()
