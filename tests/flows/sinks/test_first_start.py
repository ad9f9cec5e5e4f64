"""An action of the configuration gets all that is published from the ready line on, also if the broker is killed at once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flows.bridges.far import Far
from tests.flows.sinks.publishing import publish_all
from tests.harness import until

pytestmark = pytest.mark.own_broker
COUNT = 200
STARTS_S = 3.0
"""Longer than a process flows takes to start; a slower machine sees less in this test, and no failure."""


def test_messages_from_the_ready_line_on_reach_an_action_though_the_broker_is_killed(tmp_path: Path) -> None:
    far = Far(tmp_path, "in/#")
    try:
        with flows_stops_before_the_definitions_are_written(far):
            far.start()
        publish(far, 0)
        far.kill()
        far.start()
        publish(far, COUNT)
        until(lambda: {n for _, n in far.seen().rows} == set(range(2 * COUNT)), lambda: str(len(far.seen().rows)), 30)
    finally:
        far.stop()


def publish(far: Far, begin: int) -> None:
    publish_all(far.address, 0, 1, [b'{"w": 0, "n": %d}' % n for n in range(begin, begin + COUNT)])


@contextmanager
def flows_stops_before_the_definitions_are_written(far: Far) -> Iterator[None]:
    """A process flows that is ready by then stands still from then on; another one goes on, as the broker waits for it."""
    thread = threading.Thread(target=hold_up, args=(far,))
    thread.start()
    yield
    thread.join()


def hold_up(far: Far) -> None:
    manager, flows = one_pid(far, "manager"), 0
    os.kill(manager, signal.SIGSTOP)
    try:
        flows = one_pid(far, "flows")
        time.sleep(STARTS_S)
        os.kill(flows, signal.SIGSTOP)
    finally:
        os.kill(manager, signal.SIGCONT)
    deadline_s = time.monotonic() + STARTS_S
    while not far.ready_line and time.monotonic() < deadline_s:
        time.sleep(0.01)
    if not far.ready_line:
        os.kill(flows, signal.SIGCONT)


def one_pid(far: Far, title: str) -> int:
    """Returns the process of a broker that is starting, at once."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if far.process is not None and (found := far.child_pids(title)):
            return found[0]
        time.sleep(0.001)
    raise AssertionError(f"no process {title}")
