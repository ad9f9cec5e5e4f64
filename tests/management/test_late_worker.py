"""Orders of the manager while a worker starts: it takes commands only once it serves, and reads before that what is in force."""

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from shm.counters import ProcessState
from tests.harness import Broker, Client, client_id_on, until

pytestmark = pytest.mark.own_broker
WORKERS = 2
SERVER_BUSY_S = 30


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(WORKERS, {}, tmp_path)
    broker.program = (sys.executable, "-m", "tests.management.late_worker")
    broker.expects('cause="signal SIGKILL"')
    with broker:
        yield broker


def call(broker: Broker, verb: str, **given: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **given)


def state(broker: Broker) -> str:
    return str(next(row["state"] for row in call(broker, "workers list")["data"] if row["name"] == "worker-1"))


def evacuate(broker: Broker) -> None:
    call(broker, "node evacuate start", wait="0s", wait_takeover="0s")
    until(lambda: call(broker, "node evacuate status")["state"] not in ("disabled", "waiting_health_check"))


def is_stopped(broker: Broker) -> bool:
    with suppress(ControlError):
        call(broker, "node evacuate stop")
        return True
    return False


def restart_worker(broker: Broker) -> None:
    """Returns while it recovers its sessions."""
    (pid,) = broker.child_pids("worker-1")
    broker.kill_process(pid)
    until(lambda: state(broker) == ProcessState.STARTING.name.lower(), timeout_s=SERVER_BUSY_S)


def test_an_evacuation_that_ends_while_a_worker_starts(broker: Broker) -> None:
    name = client_id_on(1, WORKERS)
    evacuate(broker)
    restart_worker(broker)
    call(broker, "node evacuate stop")
    until(lambda: state(broker) == ProcessState.READY.name.lower(), timeout_s=SERVER_BUSY_S)
    with Client(broker.address, 5, name) as client:
        client.fence()


def test_a_trace_that_begins_while_a_worker_starts(broker: Broker) -> None:
    name = client_id_on(1, WORKERS)
    restart_worker(broker)
    call(broker, "trace start", name="t", type="clientid", value=name)
    until(lambda: state(broker) == ProcessState.READY.name.lower(), timeout_s=SERVER_BUSY_S)
    with Client(broker.address, 5, name) as client:
        client.fence()
    until(lambda: name in str(call(broker, "trace read", name="t")), lambda: str(call(broker, "trace read", name="t")))


def test_an_evacuation_that_ends_while_the_broker_starts(broker: Broker) -> None:
    """Worker 0 waits for worker 1, and looks at its rings meanwhile."""
    evacuate(broker)
    broker.stop()
    starts = threading.Thread(target=broker.start)
    starts.start()
    until(lambda: is_stopped(broker), timeout_s=SERVER_BUSY_S)
    starts.join()
    for worker in range(WORKERS):
        with Client(broker.address, 5, client_id_on(worker, WORKERS)) as client:
            client.fence()
