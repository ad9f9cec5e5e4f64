"""What one message costs, in instructions: the same on every run, however busy the machine is.

Twice: in the protocol core alone, and on the whole way from a socket through two workers and a ring to a socket.

A limit is a little above what was counted when it was last set: a change that makes a message dearer fails here, and one that makes
it cheaper has to lower the limit.
"""

import re
import shutil
import subprocess
import sys

import pytest

from tests.perf.core_load import MESSAGES

COUNTED = {0: 1_173, 1: 2_313, 2: 3_902}
"""QoS -> instructions for one message from the publisher's PUBLISH to the subscriber's, acknowledgements included."""
COUNTED_THAT_STAY = {1: 2_978, 2: 4_960}
"""The same between sessions that stay, with everything that a recovery needs written into a journal."""
COUNTED_THROUGH_WORKERS: dict[int, int] = {0: 2_382, 1: 3_598, 2: 5_493}
"""The same from the publisher's socket on one worker to the subscriber's on another, in both workers together."""
TOLERANCE = 1.02
RULES_MAX = 1.05
"""How much dearer a message may be whose publisher is under rules, the result being known."""
BATCHES, BATCHES_THROUGH_WORKERS = 2000, 500
"""So many that what differs from one start of Python to the next is 0.5 % of them; through workers, starts are left out."""

pytestmark = [
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind"),
    pytest.mark.timeout(900),  # valgrind is fifty times slower, and other tests may want the machine too
]


def instructions(qos: int, batches: int, *how: str, load: str = "core_load") -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, sys.executable, "-m", f"tests.perf.{load}", str(qos), str(batches), *how],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert found, done.stderr
    return int(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def start() -> int:
    """Instructions of a run without messages; the second one, as the first may compile modules."""
    instructions(0, 0)
    return instructions(0, 0)


def check(counted: int, total: int, start: int, batches: int = BATCHES) -> None:
    per_message = (total - start) / (batches * MESSAGES)
    assert per_message < counted * TOLERANCE, f"{per_message:.0f} instructions a message, {counted} when the limit was set"
    assert per_message > counted / TOLERANCE, f"{per_message:.0f} instructions a message: better, so lower the limit from {counted}"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_instructions_per_message(qos: int, start: int) -> None:
    check(COUNTED[qos], instructions(qos, BATCHES), start)


@pytest.mark.parametrize("qos", [1, 2])
def test_instructions_per_message_of_sessions_that_stay(qos: int, start: int) -> None:
    check(COUNTED_THAT_STAY[qos], instructions(qos, BATCHES, "stays"), start)


@pytest.mark.parametrize("qos", [0, 1])
def test_rules_that_are_known_cost_next_to_nothing(qos: int, start: int) -> None:
    plain, ruled = (instructions(qos, BATCHES, *how) - start for how in ((), ("ruled",)))
    print(f"QoS {qos}: {plain / (BATCHES * MESSAGES):.0f} without rules, {ruled / (BATCHES * MESSAGES):.0f} with")
    assert ruled < plain * RULES_MAX


@pytest.fixture(scope="module")
def compiled() -> None:
    """A run before those that count, as the first may compile modules."""
    instructions(0, 0, load="worker_load")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_instructions_per_message_through_two_workers(qos: int, compiled: None) -> None:
    few = BATCHES_THROUGH_WORKERS // 10
    first, second = (instructions(qos, batches, load="worker_load") for batches in (few, few + BATCHES_THROUGH_WORKERS))
    check(COUNTED_THROUGH_WORKERS[qos], second, first, BATCHES_THROUGH_WORKERS)
