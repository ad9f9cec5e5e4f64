"""Replacements that fail, or that something else happens to: the worker continues, and nothing is left behind."""

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import lmdb
import psutil
import pytest

from shardbroker.control import Control, ControlError
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.handoff.conftest import WORKERS, of_all_transports, replace
from tests.handoff.faulty import REACHED, VARIABLE
from tests.handoff.test_handoff import TRANSPORTS, dialler, name_on
from tests.harness import Broker, Client, Disconnect, Publish, client_id_on, until, wire

pytestmark = pytest.mark.own_broker
ATTEMPTS = 20
PATIENCE_S = 60.0


@contextmanager
def breaking_at(broker: Broker, step: str) -> Iterator[Broker]:
    broker.program = (sys.executable, "-m", "tests.handoff.faulty")
    broker.environment = dict(os.environ) | {VARIABLE: step}
    broker.expects('cause="signal SIGKILL"')
    with broker:
        yield broker


def logged(broker: Broker, text: str) -> bool:
    return any(text in line for line in list(broker.output))


def held(broker: Broker) -> dict[str, int]:
    """Descriptors by process, without the audit trail, which the manager opens behind the answer of the first verb."""
    processes = [psutil.Process(broker.pid), *broker.children()]
    return {process.name(): len([one for one in files(process.pid) if "/audit.sqlite3" not in one]) for process in processes}


def files(pid: int) -> Iterator[str]:
    """What the descriptors of a process refer to."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


def no_more(broker: Broker, before: dict[str, int]) -> None:
    """No process has more descriptors than before, when the connection of a verb that had just ended may have been among them."""

    def look() -> bool:
        now = held(broker)
        return now.keys() == before.keys() and all(now[name] <= count for name, count in before.items())

    until(look, lambda: f"{held(broker)}, before {before}")


def readers(broker: Broker) -> int:
    """Processes that have a place as readers of the registry of worker 0."""
    (file,) = {
        one.path for process in broker.children() for one in process.memory_maps() if one.path.endswith("/registry-0/data.mdb")
    }
    with lmdb.open(os.path.dirname(file), readonly=True, lock=True) as opened:
        return opened.readers().count("\n")


@pytest.mark.parametrize("step", ["state.adopt:raise", "state.collect:raise"])
def test_failed_attempts_leave_nothing_open_and_clients_go_on(authority: Authority, step: str) -> None:
    """The state was taken from each connection, keys of TLS too, and is used further by the worker that it belongs to."""
    with ExitStack() as stack:
        broker = of_all_transports(authority)
        stack.enter_context(breaking_at(broker, step))
        clients = [
            stack.enter_context(Client(broker.address, 5, name_on(0), auto_ack=False, dial=made, timeout=PATIENCE_S))
            for made in [dialler(broker, authority, one) for one in TRANSPORTS]
        ]
        other = stack.enter_context(Client(broker.address, 5, name_on(1), timeout=PATIENCE_S))
        other.subscribe("back", 2)
        for client in clients:
            client.subscribe("to", 1)
        before = None
        for attempt in range(ATTEMPTS):
            cut = wire.publish("back", b"cut" * 50, version=5, qos=1, packet_id=clients[0].next_id())
            clients[0].send_raw(cut[:30])
            with pytest.raises(ControlError, match="was not replaced"):
                replace(broker, 0)
            clients[0].send_raw(cut[30:])
            clients[0].expect(wire.Puback)
            other.expect(Publish, payload=b"cut" * 50)
            other.publish("to", b"%d" % attempt, 1)
            for client in clients:
                client.ack(client.expect(Publish, payload=b"%d" % attempt, dup=False))
                client.publish("back", b"%d" % attempt, 1)
                assert other.expect(Publish).payload == b"%d" % attempt
            before = before or held(broker)
        no_more(broker, before or {})


def test_many_replacements_leave_nothing_open(whole: Edge) -> None:
    with Client(whole.address, 5, name_on(0)) as client:
        client.subscribe("many", 1)
        replace(whole, 0)
        before, read = held(whole), readers(whole)
        for number in range(ATTEMPTS):
            replace(whole, 0)
            client.publish("many", b"%d" % number, 1)
            client.expect(Publish, payload=b"%d" % number)
        no_more(whole, before)
        assert readers(whole) <= read + 1


def test_without_descriptors_the_worker_continues() -> None:
    """The limit is lowered to what is open, and then to a little more."""
    with Broker(WORKERS) as broker, Client(broker.address, 5, name_on(0), timeout=PATIENCE_S) as client:
        (worker,) = broker.child_pids("worker-0")
        process = psutil.Process(worker)
        _, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        for spare, reason in ((0, "no descriptor is left"), (4, "descriptors are open")):
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (process.num_fds() + spare, hard))
            with pytest.raises(ControlError, match="was not replaced"):
                replace(broker, 0)
            until(lambda reason=reason: logged(broker, reason))
            client.ping()
        assert len(broker.output) < 20, broker.output
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (hard, hard))
        replace(broker, 0)
        client.ping()
        supervisor = psutil.Process(broker.pid)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (supervisor.num_fds() + 1, hard))
        with pytest.raises(ControlError, match="Too many open files"):
            replace(broker, 0)
        client.ping()
        # The successor has fewer descriptors than the worker, whose limit is higher.
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (supervisor.num_fds() + 20, hard))
        crowd = [Client(broker.address, 5, name_on(0), timeout=PATIENCE_S) for _ in range(100)]
        with pytest.raises(ControlError, match="was not replaced"):
            replace(broker, 0)
        for one in (client, *crowd):
            one.ping()
            one.close()


def test_without_memory_for_a_second_process_the_worker_continues() -> None:
    settings = {"overload.memory_high_water": "600MB", "mqtt.max_mqueue_len": 100_000}
    with Broker(WORKERS, settings) as broker, Client(broker.address, 5, name_on(1), timeout=PATIENCE_S) as other:
        kept = {"session_expiry_interval": 100}
        with Client(broker.address, 5, name_on(0), clean=False, properties=kept) as absent:
            absent.subscribe("memory", 1)
        replace(broker, 0)
        for number in range(3000):
            other.publish("memory", b"x" * 90_000, 1, wait=number % 100 == 99)
        with pytest.raises(ControlError, match="was not replaced"):
            replace(broker, 0)
        until(lambda: logged(broker, "MB for a second process are not left of overload.memory_high_water"))
        other.ping()


def in_background(broker: Broker, problems: list[Any], worker: int = 0) -> threading.Thread:
    def run() -> None:
        try:
            replace(broker, worker)
        except (ControlError, OSError) as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "step",
    [
        "successor.Succession.receive:sleep",
        "predecessor._be_quiet:late",
        "successor.Succession.adopt:late",
        "state.leave:late",
        "successor.Succession.finish:late",
    ],
)
def test_a_stop_in_the_middle_sends_clients_away(step: str) -> None:
    """Which one of the two processes has them by then makes no difference."""
    with ExitStack() as stack:
        broker = stack.enter_context(breaking_at(Broker(WORKERS), step))
        client = stack.enter_context(Client(broker.address, 5, name_on(0), timeout=PATIENCE_S))
        client.subscribe("stop", 1)
        thread = in_background(broker, [])
        until(lambda: logged(broker, REACHED), timeout_s=PATIENCE_S)
        broker.terminate()
        packet = client.recv(PATIENCE_S)
        assert isinstance(packet, Disconnect)
        assert packet.code == 0x8B
        thread.join()


def test_a_second_replacement_and_a_restart_in_the_middle() -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(breaking_at(Broker(WORKERS), "successor.Succession.receive:late"))
        client = stack.enter_context(Client(broker.address, 5, name_on(0), timeout=PATIENCE_S))
        (pid,) = broker.child_pids("worker-0")
        problems: list[Any] = []
        thread = in_background(broker, problems)
        until(lambda: logged(broker, REACHED), timeout_s=PATIENCE_S)
        with pytest.raises(ControlError, match="is being replaced already"):
            replace(broker, 0)
        with Control(broker.data_dir) as control:
            control.call("workers restart", worker=0)
        thread.join()
        assert until(lambda: broker.child_pids("worker-0") not in ([], [pid]))
        with suppress(Exception):
            client.recv(1)
        with Client(broker.address, 5, name_on(0), timeout=PATIENCE_S) as again:
            again.ping()


def test_a_successor_that_hangs_is_killed_without_a_manager() -> None:
    """The supervisor has nothing else to wake up for."""
    with breaking_at(Broker(WORKERS), "successor.Succession.receive:sleep") as broker:
        (pid,) = broker.child_pids("worker-0")
        with Client(broker.address, 5, name_on(0), timeout=PATIENCE_S) as client:
            thread = in_background(broker, [])
            until(lambda: logged(broker, REACHED), timeout_s=PATIENCE_S)
            for manager in broker.child_pids("manager"):
                broker.kill_process(manager)
            thread.join()
            until(lambda: broker.child_pids("worker-0") == [pid], timeout_s=PATIENCE_S)
            client.ping()
            assert client.publish("hangs", b"", 1).code in (0, 0x10)  # type: ignore[union-attr]


def test_a_worker_that_ends_late_is_replaced_all_the_same() -> None:
    """The successor has everything, and is not killed as one that is late."""
    with breaking_at(Broker(WORKERS), "state.leave:slow") as broker, Client(
        broker.address, 5, name_on(0), timeout=PATIENCE_S
    ) as client:
        replace(broker, 0)
        client.ping()
        assert not logged(broker, "SIGKILL")


def test_a_trace_that_begins_meanwhile_has_what_comes_afterwards() -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(breaking_at(Broker(WORKERS), "successor.Succession.receive:late"))
        client = stack.enter_context(Client(broker.address, 5, name_on(0), timeout=PATIENCE_S))
        thread = in_background(broker, [])
        until(lambda: logged(broker, REACHED), timeout_s=PATIENCE_S)
        with Control(broker.data_dir) as control:
            control.call("trace start", name="meanwhile", type="clientid", value=client.client_id)
            thread.join()
            client.publish("traced/afterwards", b"x", 1)
            until(lambda: "traced/afterwards" in str(control.call("trace read", name="meanwhile")))


def test_records_that_a_worker_takes_while_its_successor_starts_are_behind_it() -> None:
    """The successor has the rings open by then. What waits in one of them keeps it from sleeping, and from a look at all others."""
    with ExitStack() as stack:
        broker = stack.enter_context(breaking_at(Broker(3), "successor.Succession.receive:late"))
        busy, other, client, crowd = (
            stack.enter_context(Client(broker.address, 5, client_id_on(worker, 3, name), timeout=PATIENCE_S))
            for worker, name in ((0, "busy"), (1, "other"), (2, "client"), (2, "crowd"))
        )
        crowd.subscribe("busy", 0)
        client.subscribe("ring", 1)
        problems: list[Any] = []
        thread = in_background(broker, problems, 2)
        until(lambda: logged(broker, REACHED), timeout_s=PATIENCE_S)
        for number in range(10):
            other.publish("ring", b"%d" % number, 1)
            client.expect(Publish, payload=b"%d" % number)
        while thread.is_alive():
            busy.publish("busy", b"x" * 100)
        thread.join()
        assert not problems
        for number in range(10):
            other.publish("ring", b"behind %d" % number, 1)
            client.expect(Publish, payload=b"behind %d" % number)
        with Control(broker.data_dir) as control:
            totals = control.call("load")["totals"]
        assert totals["messages.dropped.failed"] == 0
