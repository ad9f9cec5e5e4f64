"""The number of workers changes under their clients: no connection ends, and nothing is lost, doubled or overtaken."""

import itertools
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from shardbroker.cli.ctl import main as ctl
from shardbroker.config import Settings
from shardbroker.control import Control, ControlError
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, all_segment_paths, retired_directories, segment_start
from shardbroker.supervisor.resize import SPARE_DESCRIPTORS, ResizeError, wanted_of
from shm.partitions import Division
from shm.topology import Topology
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import OLDER, PUMPED, dial, speaking
from tests.gateways.conftest import GatewayBroker
from tests.handoff.conftest import (
    WORKERS,
    begin_to_set,
    of_all_transports,
    replace,
    resize,
    set_workers,
    state_of_setting,
    workers_of,
)  # fmt: skip
from tests.handoff.faulty import ONCE, VARIABLE
from tests.handoff.test_handoff import TRANSPORTS, dialler
from tests.harness import Broker, Client, Closed, Publish, client_id_on, free_port, until, wire
from tests.harness.broker import worker_of
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker
NUMBERS = (4, 3)
CROWD = 500
KEPT = {"session_expiry_interval": 100}

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def streamed(authority: Authority) -> Iterator[Edge]:
    with of_all_transports(authority) as broker:
        yield broker


def back_to(broker: Broker, workers: int) -> None:
    if workers_of(broker) != workers:
        assert set_workers(broker, workers)["phase"] == "done"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept_in_streams_from_two_to_four_to_three_workers(streamed: Edge, authority: Authority, qos: int) -> None:
    """A publisher and a subscriber of each transport, half of them with sessions that stay; each one gets everything once."""
    back_to(streamed, 2)
    topic = f"stream/{qos}/{next(numbers)}"
    ends, is_over = threading.Event(), threading.Event()
    sent: dict[int, int] = {}
    got: dict[str, list[bytes]] = {}
    problems: list[BaseException] = []

    def receive(client: Client) -> None:
        try:
            mine = got[client.client_id]
            while not is_over.is_set() or len(mine) < sum(sent.values()):
                waits = is_over.is_set()
                packet = client.recv(30 if waits else 0.1)
                if isinstance(packet, Publish):
                    assert not packet.dup
                    mine.append(packet.payload)
                assert packet is not None or not waits, f"{len(mine)} of {sum(sent.values())} messages arrived"
        except BaseException as error:
            problems.append(error)

    def publish(client: Client, number: int) -> None:
        try:
            for one in itertools.count():
                if ends.is_set():
                    sent[number] = one
                    client.ping()
                    return
                client.publish(topic, b"%d %d" % (number, one), qos)
                time.sleep(0.001)
        except BaseException as error:
            problems.append(error)

    def made(role: str, number: int) -> Client:
        kept = number % 2 == 1
        return Client(
            streamed.address, 5, f"{role}{number}-{next(numbers)}", clean=not kept, timeout=60, properties=KEPT if kept else {},
            dial=dialler(streamed, authority, TRANSPORTS[number]),
        )

    subscribers = [made("to", number) for number in range(len(TRANSPORTS))]
    publishers = [made("from", number) for number in range(len(TRANSPORTS))]
    try:
        for subscriber in subscribers:
            got[subscriber.client_id] = []
            subscriber.subscribe(topic, qos)
        receiving = [threading.Thread(target=receive, args=(one,)) for one in subscribers]
        publishing = [threading.Thread(target=publish, args=(one, number)) for number, one in enumerate(publishers)]
        for thread in (*receiving, *publishing):
            thread.start()
        for workers in NUMBERS:
            assert set_workers(streamed, workers)["phase"] == "done"
            seen = {client_id: len(payloads) for client_id, payloads in got.items()}
            until(lambda seen=seen: problems or all(len(got[one]) > before for one, before in seen.items()), timeout_s=60)
        ends.set()
        for thread in publishing:
            thread.join()
        is_over.set()
        for thread in receiving:
            thread.join()
        assert not problems, problems
        for client_id, payloads in got.items():
            for number, count in sent.items():
                of_one = [one for one in payloads if one.startswith(b"%d " % number)]
                assert of_one == [b"%d %d" % (number, one) for one in range(count)], client_id
    finally:
        ends.set()
        is_over.set()
        for client in (*subscribers, *publishers):
            client.close()


def test_a_crowd_stays(streamed: Edge, authority: Authority) -> None:
    back_to(streamed, 2)
    made = [dialler(streamed, authority, transport) for transport in TRANSPORTS]
    crowd = [
        Client(streamed.address, 4 + number % 2, f"crowd{number}", clean=number % 3 > 0, dial=made[number % len(made)], timeout=60)
        for number in range(CROWD)
    ]
    try:
        for number, client in enumerate(crowd):
            client.send_raw(wire.subscribe(1, [(f"crowd/{number}", number % 3), ("crowd/all", 1)], version=client.version))
        for client in crowd:
            client.expect(wire.Suback)
        with Client(streamed.address, 5, "crowd-publisher", timeout=60) as publisher:
            for workers in (*NUMBERS, 2):
                publisher.publish("crowd/all", b"all %d" % workers, 1)
                for number in range(CROWD):
                    publisher.publish(f"crowd/{number}", b"one %d" % workers, number % 3, wait=number % 3 == 2)
                state = set_workers(streamed, workers)
                assert (state["phase"], state["connections"]) == ("done", CROWD + 1)
                publisher.ping()
                for number, client in enumerate(crowd):
                    found = {(packet.topic, packet.payload) for packet in (client.expect(Publish), client.expect(Publish))}
                    assert found == {(f"crowd/{number}", b"one %d" % workers), ("crowd/all", b"all %d" % workers)}
    finally:
        for client in crowd:
            client.close()


def test_weights_move_sessions_and_a_second_time_is_refused() -> None:
    with Broker(2) as broker:
        clients = [Client(broker.address, 5, f"weighed{number}") for number in range(40)]
        weighed = Division(2, (3, 1))
        wanted = sum(weighed.worker_of(client.client_id.encode()) == 0 for client in clients)
        state = set_workers(broker, 2, "3, 1")
        assert (state["phase"], state["weights"]) == ("done", "3,1")
        with Control(broker.data_dir) as control:
            rows = [row for row in control.call("workers list")["data"] if row["name"].startswith("worker-")]
        assert [(row["connections"], row["weight"]) for row in rows] == [(wanted, 3), (40 - wanted, 1)]
        for client in clients:
            client.ping()
            client.close()
        with pytest.raises(ControlError, match="there are 2 workers with these weights already"):
            begin_to_set(broker, 2, "3,1")


@pytest.mark.parametrize("level", ["none", "process", "machine"])
def test_what_waits_in_the_broker(level: str) -> None:
    """Delayed and retained messages, turns of a shared group, an exclusive subscription, and a session without a connection."""
    settings = {"durability.level": level, "mqtt.exclusive_subscription": "true"}
    with Broker(2, settings) as broker, Client(broker.address, 5, "publisher", timeout=60) as publisher:
        members = [Client(broker.address, 5, f"member{number}", timeout=60) for number in range(3)]
        for member in members:
            member.subscribe("$share/group/shared", 1)
        owner, other = (Client(broker.address, 5, name, timeout=60) for name in ("owner", "other"))
        owner.subscribe("$exclusive/only", 1)
        away = Client(broker.address, 5, "away", clean=False, properties=KEPT)
        away.subscribe("away", 2)
        away.close()
        publisher.publish("away", b"before", 2)
        publisher.publish("kept", b"retained", 1, retain=True)
        if level != "none":
            publisher.publish("$delayed/3/away", b"delayed", 1)
        for workers in NUMBERS:
            assert set_workers(broker, workers)["phase"] == "done"
            assert other.subscribe("$exclusive/only", 1, check=False).codes == (0x97,)
            publisher.publish("only", b"%d" % workers, 1)
            owner.expect(Publish, payload=b"%d" % workers)
            for number in range(6):
                publisher.publish("shared", b"%d" % number, 1)
            assert sorted(taken(members, 6)) == [b"%d" % number for number in range(6)]
        with Client(broker.address, 5, "away", clean=False, properties=KEPT, timeout=60) as away:
            assert away.connack is not None
            assert away.connack.session_present
            away.expect(Publish, payload=b"before")
            if level != "none":
                away.expect(Publish, payload=b"delayed")
            away.subscribe("kept", 1)
            away.expect(Publish, payload=b"retained")
        for client in (*members, owner, other):
            client.close()


def taken(members: list[Client], count: int) -> list[bytes]:
    """What the members of a group get together."""
    found: list[bytes] = []

    def look() -> bool:
        for member in members:
            packet = member.recv(0.05)
            if isinstance(packet, Publish):
                found.append(packet.payload)
        return len(found) >= count

    until(look, lambda: str(found), timeout_s=30)
    return found


# --- kills ------------------------------------------------------------------------------------------------------------------------

ALL, SOME, NONE = "all connections stay", "those of one worker end", "all end"
STEPS = {
    # a worker before is killed, or fails
    "departure._Departure.look:before": ("failed", SOME),
    "state.part:before": ("failed", SOME),
    "state.part:raise": ("failed", ALL),
    "state.part:after": ("failed", SOME),
    "state.close_journal:before": ("done", SOME),
    "state.close_journal:after": ("done", SOME),
    "departure._Departure.give:before": ("done", SOME),
    "departure._Departure.give:after": ("done", ALL),
    # one that follows is killed, or fails
    "arrival.Arrival.adopt:before": ("done", SOME),
    "arrival.Arrival.adopt:after": ("done", SOME),
    "arrival.Arrival.commit:after": ("done", SOME),
    "arrival.Arrival.finish:before": ("done", SOME),
    "state.adopt_part:raise": ("done", SOME),
    # shared memory is not laid out: the number is that before
    "tree.lay_out_again:raise": ("failed", ALL),
    # the supervisor is killed
    "resize.Departure.rest:after": ("", NONE),
    "resize.Departure.part:after": ("", NONE),
    "resize.Departure.close:after": ("", NONE),
    "resize.Departure.give:after": ("", NONE),
}


@contextmanager
def broken_at(step: str, level: str) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(WORKERS, {"durability.level": level})
        broker.program = (sys.executable, "-m", "tests.handoff.faulty")
        broker.environment = dict(os.environ) | {VARIABLE: step, ONCE: str(Path(folder) / "once")}
        broker.expects('cause="signal SIGKILL"')
        broker.expects(r'process died process=worker-\d .*cause="exit code 1"')
        broker.expects("the fault of the test")
        with broker:
            yield broker


@pytest.mark.parametrize("level", ["process", "machine"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_costs_no_more_than_a_restart(step: str, level: str) -> None:
    phase, ends = STEPS[step]
    names = [
        next(name for one in itertools.count() if (worker_of(name := f"kept{one}", WORKERS), worker_of(name, 3)) == place)
        for place in itertools.product(range(WORKERS), range(3))
    ]

    def connect(name: str) -> Client:
        return Client(broker.address, 5, name, clean=False, properties=KEPT, auto_ack=False, timeout=60)

    with broken_at(step, level) as broker:
        kept = [connect(name) for name in names]
        for client in kept:
            client.subscribe("kept", 2)
        kept[0].send_raw(wire.publish("unreleased", b"", version=5, qos=2, packet_id=9))
        kept[0].expect(wire.Pubrec)
        with Client(broker.address, 5, "first", timeout=60) as publisher:
            publisher.publish("kept", b"in flight", 2)
            publisher.publish("kept", b"in flight too", 2)
        first = [
            (client.expect(Publish, payload=b"in flight"), client.expect(Publish, payload=b"in flight too")) for client in kept
        ]
        if phase:
            assert set_workers(broker, 3)["phase"] == phase
        else:
            begin_to_set(broker, 3)
            until(lambda: broker.process is not None and broker.process.poll() is not None, timeout_s=30)
            broker.kill()
            broker.start()
        until(lambda: workers_of(broker) == (3 if phase == "done" else WORKERS), timeout_s=30)
        stayed = 0
        for number, name in enumerate(names):
            try:
                kept[number].ping()
                stayed += 1
            except Closed:
                kept[number].close()
                kept[number] = again = connect(name)
                assert again.connack is not None
                assert again.connack.session_present
                for message in first[number]:
                    again.expect(Publish, payload=message.payload, packet_id=message.packet_id, dup=True)
        assert (stayed == len(kept)) == (ends == ALL), stayed
        assert (stayed == 0) == (ends == NONE), stayed
        with Client(broker.address, 5, "second", timeout=60) as publisher:
            publisher.publish("kept", b"behind", 2)
        for client, messages in zip(kept, first, strict=True):
            behind = client.expect(Publish, payload=b"behind", dup=False)
            assert behind.packet_id == messages[1].packet_id + 1
            for message in messages:
                client.ack(message)
                client.expect(wire.Pubrel, packet_id=message.packet_id)
        kept[0].release(9)
        for client in kept:
            client.close()


def test_it_is_done_once_the_next_change_may_follow() -> None:
    with broken_at("departure._Departure.give:lingers", "process") as broker, Client(broker.address, 5, "stays") as client:
        for workers in (3, 2):
            assert set_workers(broker, workers)["phase"] == "done"
            client.ping()


# --- what is refused --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> Iterator[Broker]:
    with Broker(2, {"process.ring_size": "1MB"}) as broker:
        yield broker


@pytest.mark.parametrize(
    ("workers", "weights", "reason"),
    [
        (0, "auto", "greater than or equal to 1"),
        (1025, "auto", "less than or equal to 1024"),
        (2, "auto", "there are 2 workers with these weights already"),
        (3, "1,2", "one for each of process.workers = 3"),
        (3, "1,2,x", "process.worker_weights: must be auto, or a number from 1 to 100 for each worker"),
        (2, "1," * 4000, "at most 4096 characters"),
        (300, "auto", "/dev/shm"),
    ],
)
def test_a_number_that_is_not_possible_is_refused(plain: Broker, workers: int, weights: str, reason: str) -> None:
    pids = plain.child_pids("")
    with Client(plain.address, 5, "stays") as client:
        with pytest.raises(ControlError, match=reason):
            begin_to_set(plain, workers, weights)
        client.ping()
    assert plain.child_pids("") == pids
    assert state_of_setting(plain) == {"phase": "none"}


def test_a_replacement_under_way_and_an_obstacle_are_refused() -> None:
    with Broker(2, {"durability.level": "none"}) as broker, Client(broker.address, 5, "stays") as client:
        client.publish("$delayed/100/later", b"x", 1)
        with pytest.raises(ControlError, match="deferred messages are in memory only"):
            begin_to_set(broker, 3)
        client.ping()
    with Broker(2) as broker, Client(broker.address, 5, "stays") as client:
        (worker,) = broker.child_pids("worker-0")
        with stopped(worker):
            thread = threading.Thread(target=lambda: suppressed(broker))
            thread.start()
            until(lambda: len(broker.child_pids("worker-0")) == 2)
            with pytest.raises(ControlError, match="worker-0 is being replaced"):
                begin_to_set(broker, 3)
        thread.join()
        client.ping()


def suppressed(broker: Broker) -> None:
    with suppress(ControlError):
        replace(broker, 0)


def test_a_node_of_a_cluster_is_refused() -> None:
    with pytest.raises(ResizeError, match="this is a node of a cluster"):
        wanted_of(cast(Topology, SimpleNamespace(links=2)), Settings(), 3, "auto", [0])


def test_tls_that_stays_in_an_acceptor_is_refused(streamed: Edge, authority: Authority) -> None:
    workers = workers_of(streamed)
    dialled = dial(streamed.at("ssl"), speaking(authority, OLDER, PUMPED))
    with Client(streamed.address, 5, "pumped", dial=dialled) as client:
        with pytest.raises(ControlError, match="1 TLS connections stay in it, and would end"):
            begin_to_set(streamed, workers % 4 + 1)
        client.ping()
    assert workers_of(streamed) == workers


def test_connections_that_one_worker_may_not_have_are_refused() -> None:
    """Behind the check of the pairs, once it is known which worker gets which connections."""
    with Broker(2) as broker:
        crowd = [Client(broker.address, 5, f"crowd{number}", timeout=60) for number in range(60)]
        supervisor = psutil.Process(broker.pid)
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        pids = broker.child_pids("worker")
        limit = supervisor.num_fds() + 2 * 2 + SPARE_DESCRIPTORS + len(crowd) // 2
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        state = set_workers(broker, 1)
        assert state["phase"] == "failed" and "one worker would have 60 connections" in state["problem"]
        assert broker.child_pids("worker") == pids
        for client in crowd:
            client.ping()
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        assert set_workers(broker, 1)["phase"] == "done"
        for client in crowd:
            client.ping()
            client.close()


def test_ctl_follows_it_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(1) as broker, Client(broker.address, 5, "stays") as client:
        command = ["--data-dir", str(broker.data_dir), "workers", "set", "2", "--weights", "2,1"]
        assert ctl(command) == 0
        text = capfd.readouterr().out
        assert "workers 1 -> 2, 1 connections stayed" in text
        assert "a start of the service reads process.workers, now 1" in text
        assert ctl(command) == 1
        assert "there are 2 workers with these weights already" in capfd.readouterr().err
        client.ping()


def test_rules_go_on_and_lose_nothing() -> None:
    """The process flows restarts behind the last block of the workers before."""
    with Broker(2) as broker, Client(broker.address, 5, "subscriber", timeout=60) as subscriber:
        action = {"function": "republish", "args": {"topic": "out", "payload": "${payload}", "qos": 1}}
        with Control(broker.data_dir) as control:
            control.call("rules create", id="copied", sql='SELECT * FROM "in"', actions=json.dumps([action]))
        subscriber.subscribe("out", 1)
        publishers = [Client(broker.address, 5, f"publisher{number}", timeout=60) for number in range(4)]
        sent = []
        for round_, workers in enumerate((*NUMBERS, 2)):
            for number, publisher in enumerate(publishers):
                for one in range(20):
                    sent.append(b"%d %d %d" % (round_, number, one))
                    publisher.publish("in", sent[-1], 1)
            assert set_workers(broker, workers)["phase"] == "done"
        got: set[bytes] = set()
        while missing := set(sent) - got:
            packet = subscriber.recv(60)
            assert packet is not None, missing
            if isinstance(packet, Publish):
                got.add(packet.payload)
        for publisher in publishers:
            publisher.close()


def test_retired_journals_are_read_and_removed_by_the_rules_of_journals() -> None:
    """A stream keeps what the last of four workers has journalled. Without it the age does, and the end of the journal stays until
    a worker of its number writes again."""
    payloads = [b"%d" % number for number in range(20)]
    with Broker(4, {"journal.retention.age": "1s", "journal.capture": "other"}) as broker:
        with Control(broker.data_dir) as control:
            control.call("streams add", name="kept", topic_filter="log/#")
        with Client(broker.address, 5, client_id_on(3, 4, "publisher")) as publisher:
            for payload in payloads:
                publisher.publish("log/a", payload, 1)
        journal = broker.data_dir / "journal" / "3"
        begun = all_segment_paths(journal)[0].name
        assert set_workers(broker, 2)["phase"] == "done"
        assert not journal.exists() and [path.name for path in retired_directories(journal)]
        with Client(broker.address, 5, "reader", timeout=60) as reader:
            reader.subscribe("$stream/kept", 1, properties={"user_property": [("stream-offset", "earliest")]})
            assert [reader.expect(Publish).payload for _ in payloads] == payloads
        assert all_segment_paths(journal)[0].name == begun
        with Control(broker.data_dir) as control:
            control.call("streams delete", name="kept")
        until(lambda: [path.stat().st_size for path in all_segment_paths(journal)] == [SEGMENT_HEADER_BYTES], timeout_s=30)
        last = segment_start(all_segment_paths(journal)[0])
        assert set_workers(broker, 4)["phase"] == "done"
        with Client(broker.address, 5, client_id_on(3, 4, "publisher")) as publisher:
            publisher.publish("other", b"", 1)
        until(lambda: not retired_directories(journal), timeout_s=30)
        assert segment_start(all_segment_paths(journal)[0]) > last


def test_clients_of_a_gateway_connect_again() -> None:
    with GatewayBroker(workers=2) as broker, Client(broker.address, 5, "stays", timeout=60) as client:
        with broker.stomp() as device:
            device.connect()
            assert set_workers(broker, 3)["phase"] == "done"
            frame = device.recv(30)
            assert frame is None or frame.command == "ERROR"
        with broker.stomp() as device:
            device.connect()
            device.send("SUBSCRIBE", id="1", destination="to/device", receipt="r")
            device.expect("RECEIPT")
            client.publish("to/device", b"behind", 1)
            assert device.expect("MESSAGE").body == b"behind"


def test_what_was_set_while_the_broker_runs_stays() -> None:
    port = free_port()
    with Broker(2) as broker, Client(broker.address, 5, "stays", timeout=60) as client:
        with Control(broker.data_dir) as control:
            control.call("config set", key="mqtt.max_inflight", value="7")
            control.call("listeners add", name="late", settings=[f"bind=127.0.0.1:{port}"])
        with Client(("127.0.0.1", port), 5, "late", timeout=60) as late:
            assert set_workers(broker, 3)["phase"] == "done"
            late.ping()
            client.ping()
            with Control(broker.data_dir) as control:
                assert control.call("config get", key="mqtt.max_inflight")["data"][0]["value"] == "7"
                assert {row["name"]: row["current_connections"] for row in control.call("listeners list")["data"]} == {
                    "default": 1, "late": 1,
                }  # fmt: skip
        Client(("127.0.0.1", port), 5, "again", timeout=60).close()


def test_a_worker_that_stands_still_keeps_all_as_they_are() -> None:
    with Broker(2, {"durability.level": "machine"}) as broker:
        subscriber = Client(broker.address, 5, client_id_on(1, 2, "subscriber"), timeout=60)
        publisher = Client(broker.address, 5, client_id_on(0, 2, "publisher"), timeout=60)
        subscriber.subscribe("synced", 1)
        (other,) = broker.child_pids("worker-1")
        pids = broker.child_pids("worker")
        with stopped(other):
            begin_to_set(broker, 3)
            state = until(lambda: (state := state_of_setting(broker)) and state["phase"] != "moving" and state, timeout_s=60)
            assert (state["phase"], state["problem"].partition(":")[0]) == ("failed", "worker-1")
            publisher.ping()
        publisher.publish("synced", b"behind", 1)
        subscriber.expect(Publish, payload=b"behind")
        assert broker.child_pids("worker") == pids
        assert set_workers(broker, 3)["phase"] == "done"
        publisher.publish("synced", b"after", 1)
        subscriber.expect(Publish, payload=b"after")
        subscriber.close()
        publisher.close()


def test_a_restart_reads_the_configuration_again() -> None:
    with Broker(2) as broker:
        kept = Client(broker.address, 5, "kept", clean=False, properties=KEPT)
        kept.subscribe("kept", 1)
        resize(broker)
        assert workers_of(broker) == 4
        assert state_of_setting(broker)["lasts"] == "until the broker ends; a start of the service reads process.workers, now 2"
        broker.terminate()
        assert broker.process is not None
        assert broker.process.wait(30) == 0
        kept.close()
        broker.start()
        assert workers_of(broker) == 2
        with Client(broker.address, 5, "publisher") as publisher:
            publisher.publish("kept", b"queued", 1)
        with Client(broker.address, 5, "kept", clean=False, properties=KEPT) as kept:
            kept.expect(Publish, payload=b"queued")
