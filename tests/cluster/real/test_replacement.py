"""Workers of a node of a cluster are replaced under clients, streams between nodes and sessions that move."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle

import pytest

from shardbroker.control import ControlError
from tests.cluster.real.moves import FAILED, KEPT, MOVING
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.patient import patient
from tests.cluster.real.streams import streams
from tests.cluster.real.test_messages import linked
from tests.handoff.conftest import replace
from tests.handoff.faulty import REACHED, VARIABLE
from tests.handoff.test_kills import RESTARTS, STAYS, STEPS
from tests.harness import Client, Closed, Publish, client_id_on, wire
from tests.harness.waiting import until

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]
WORKERS = 2
ROUNDS = 3
MOVED_S = 60.0
REFUSED = 0x97


def settings(level: str = "process") -> dict[str, str]:
    return {**MOVING, "durability.level": level, "mqtt.max_mqueue_len": "0", "mqtt.exclusive_subscription": "true"}


@contextmanager
def broken_at(fault: str, broken: int = 1, level: str = "process", is_patient: bool = True) -> Iterator[Nodes]:
    """Two nodes. In one of them a process is killed, or waits, at a step of a replacement."""

    def prepare(nodes: Nodes) -> None:
        if is_patient:
            patient(nodes)
        broker = nodes.brokers[broken]
        broker.program = (sys.executable, "-m", "tests.cluster.real.patient" if is_patient else "tests.handoff.faulty")
        broker.environment = dict(os.environ) | {VARIABLE: fault}
        broker.expects('cause="signal SIGKILL"')
        broker.expects(r'process died process=worker-0 .*cause="exit code [01]"')

    with running(2, workers=WORKERS, prepare=prepare, **settings(level)) as nodes:
        linked(nodes)
        yield nodes


def session(stack: ExitStack, nodes: Nodes, node: int, name: str, **more: object) -> Client:
    address = nodes.brokers[node].address
    return stack.enter_context(Client(address, 5, name, clean=False, timeout=MOVED_S, properties=KEPT, **more))  # type: ignore[arg-type]


def names_on(worker: int, count: int, prefix: str) -> list[str]:
    return [client_id_on(worker, WORKERS, f"{prefix}{number}-") for number in range(count)]


def in_background(call: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with suppress(ControlError):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def reached(nodes: Nodes, node: int = 1) -> None:
    """Waits until the fault has begun."""
    until(lambda: REACHED in nodes.output(node), lambda: nodes.output(node))


@pytest.mark.parametrize("level", ["none", "process", "machine"])
def test_workers_are_replaced_under_traffic_and_takeovers(level: str) -> None:
    """Each worker of node 1 three times: no client is disconnected but by a takeover, nothing is lost, doubled or overtaken."""
    with running(2, workers=WORKERS, prepare=patient, **settings(level)) as nodes:
        linked(nodes)
        with streams(nodes, WORKERS) as (_, moving):
            for _ in range(ROUNDS):
                for worker in range(WORKERS):
                    pid = nodes.brokers[1].child_pids(f"worker-{worker}")
                    before = [one.receiver.moves for one in moving]
                    replace(nodes.brokers[1], worker)
                    assert nodes.brokers[1].child_pids(f"worker-{worker}") != pid
                    deadline = time.monotonic() + MOVED_S
                    while any(one.receiver.moves < then + 2 for one, then in zip(moving, before, strict=True)):
                        problems = [problem for one in moving for problem in one.problems]
                        assert time.monotonic() < deadline and not problems, problems
                        time.sleep(0.05)
        for number in nodes.brokers:
            for line in FAILED:
                assert line not in nodes.output(number), nodes.output(number)


@pytest.mark.parametrize(("step", "level"), [*zip(STEPS, cycle(("process", "machine")), strict=False)])
def test_a_kill_costs_no_more_than_a_restart(step: str, level: str) -> None:
    """The predecessor or the successor is killed at a step: sessions are there, at this node and then at the other one."""
    names, ends = names_on(0, 3, "kept"), STEPS[step]
    with broken_at(step, level=level) as nodes, ExitStack() as stack:
        publisher = session(stack, nodes, 2, "publisher")
        kept = [session(stack, nodes, 2, name) for name in names]
        for client in kept:
            client.subscribe("kept", 2)
        kept = [session(stack, nodes, 1, name) for name in names]      # worker 0 has sessions that it has taken
        publisher.publish("kept", b"before", 2)
        for client in kept:
            client.expect(Publish, payload=b"before")
            client.ping()
        pid = nodes.brokers[1].child_pids("worker-0")
        with suppress(ControlError):
            replace(nodes.brokers[1], 0)
        assert ends == STAYS or until(lambda: nodes.brokers[1].child_pids("worker-0") not in ([], pid))
        publisher.publish("kept", b"behind", 2)
        if ends == RESTARTS:
            for client in kept:
                with pytest.raises(Closed):
                    while True:
                        client.recv(20)
            kept = [session(stack, nodes, 1, name) for name in names]
            assert all(client.connack is not None and client.connack.session_present for client in kept)
        else:
            assert (nodes.brokers[1].child_pids("worker-0") == pid) == (ends == STAYS)
        for client in kept:
            client.expect(Publish, payload=b"behind")
            client.ping()
        for name in names:
            moved = session(stack, nodes, 2, name)
            assert moved.connack is not None and moved.connack.session_present, nodes.output(2)
            publisher.publish("kept", b"moved", 2)
            moved.expect(Publish, payload=b"moved")


@pytest.mark.parametrize("link", [0, 1])
@pytest.mark.parametrize("step", ["predecessor._be_quiet:late", "state.collect:late", "successor.Succession.adopt:late"])
def test_a_link_process_that_is_killed_in_a_replacement_costs_nothing(link: int, step: str) -> None:
    [name] = names_on(0, 1, "kept")
    with broken_at(step) as nodes, ExitStack() as stack:
        publisher, client = session(stack, nodes, 2, "publisher"), session(stack, nodes, 1, name)
        client.subscribe("kept", 2)
        publisher.publish("kept", b"before", 2)
        client.expect(Publish, payload=b"before")
        pid = nodes.brokers[1].child_pids("worker-0")
        replacing = in_background(lambda: replace(nodes.brokers[1], 0))
        reached(nodes)
        nodes.kill_link(1, link)
        publisher.publish("kept", b"meanwhile", 2)
        replacing.join()
        assert nodes.brokers[1].child_pids("worker-0") != pid, nodes.output(1)
        client.expect(Publish, payload=b"meanwhile")
        client.ping()
        linked(nodes)
        moved = session(stack, nodes, 2, name)
        assert moved.connack is not None and moved.connack.session_present
        publisher.publish("kept", b"behind", 2)
        moved.expect(Publish, payload=b"behind")


def test_a_session_is_waited_for_while_its_worker_is_being_replaced() -> None:
    """The pause is longer than nodes wait for an answer (0.3 s for WHO, 1 s for TAKE): other nodes learn that it is one."""
    names = names_on(0, 6, "kept")
    with broken_at("successor.Succession.adopt:long", is_patient=False) as nodes, ExitStack() as stack:
        for name in names:
            session(stack, nodes, 1, name).subscribe(name, 1)
        replacing = in_background(lambda: replace(nodes.brokers[1], 0))
        reached(nodes)
        with ThreadPoolExecutor(len(names)) as pool:
            moved = [*pool.map(lambda name: session(stack, nodes, 2, name), names)]
        replacing.join()
        until(lambda: "worker replaced" in nodes.output(1), lambda: nodes.output(1))
        for client, name in zip(moved, names, strict=True):
            assert client.connack is not None and client.connack.session_present, f"{name}: {nodes.output(1)}"
            session(stack, nodes, 1, f"p-{name}").publish(name, b"behind", 1)
            client.expect(Publish, payload=b"behind")


def test_a_worker_that_continues_takes_messages_of_nodes_again() -> None:
    """The successor fails once other nodes have been told to wait."""
    [name] = names_on(0, 1, "kept")
    with broken_at("state.adopt:raise") as nodes, ExitStack() as stack:
        session(stack, nodes, 1, name).subscribe("kept", 1)
        with pytest.raises(ControlError):
            replace(nodes.brokers[1], 0)
        began = time.monotonic()
        moved = session(stack, nodes, 2, name)
        assert moved.connack is not None and moved.connack.session_present
        back = session(stack, nodes, 1, name)
        assert back.connack is not None and back.connack.session_present
        assert time.monotonic() - began < MOVED_S / 6, "a claim waited for its end"


def test_an_exclusive_subscription_has_one_holder_over_replacements() -> None:
    with running(2, workers=WORKERS, prepare=patient, **settings()) as nodes, ExitStack() as stack:
        linked(nodes)
        holders = [session(stack, nodes, 1, name) for worker in range(WORKERS) for name in names_on(worker, 2, "holder")]
        for number, holder in enumerate(holders):
            assert holder.subscribe(f"$exclusive/x/{number}", 1).codes == (1,)
        other = session(stack, nodes, 2, "other")
        for worker in range(WORKERS):
            for node in nodes.brokers:
                replace(nodes.brokers[node], worker)
            for number, holder in enumerate(holders):
                assert other.subscribe(f"$exclusive/x/{number}", 1, check=False).codes == (REFUSED,)
                other.publish(f"x/{number}", b"%d" % worker, 1)
                holder.expect(Publish, payload=b"%d" % worker)
        for number, holder in enumerate(holders):
            holder.unsubscribe(f"$exclusive/x/{number}")
            until(lambda number=number: other.subscribe(f"$exclusive/x/{number}", 1, check=False).codes == (1,))


def test_shared_groups_of_both_nodes_get_each_message_once() -> None:
    with running(2, workers=WORKERS, prepare=patient, **settings()) as nodes, ExitStack() as stack:
        linked(nodes)
        members = [
            session(stack, nodes, node, name)
            for node in nodes.brokers for worker in range(WORKERS) for name in names_on(worker, 1, f"member{node}-")
        ]  # fmt: skip
        for member in members:
            member.subscribe("$share/g/s", 2)
        publishers = [session(stack, nodes, node, f"publisher{node}") for node in nodes.brokers]
        sent = []
        for round_ in range(ROUNDS):
            replacing = [in_background(partial(replace, broker, round_ % WORKERS)) for broker in nodes.brokers.values()]
            while any(thread.is_alive() for thread in replacing) or len(sent) % 100:
                payload = b"%d" % len(sent)
                publishers[len(sent) % 2].publish("s", payload, 1 + len(sent) % 2)
                sent.append(payload)
        got: list[bytes] = []

        def complete() -> bool:
            for member in members:
                while (packet := member.recv(0.05)) is not None:
                    if isinstance(packet, wire.Publish):
                        got.append(packet.payload)
            return len({*got}) == len(sent)

        until(complete, lambda: f"{len({*got})} of {len(sent)}", MOVED_S)
        assert sorted(got) == sorted(sent)
        until(lambda: all("worker replaced" in nodes.output(node) for node in nodes.brokers))
