"""What one message costs the protocol core, in instructions: the same on every run, however busy the machine is.

A limit is a tenth above what was counted when it was last set. Whoever makes a message dearer sees it here, and whoever makes it
cheaper lowers the limit.
"""

import re
import shutil
import subprocess
import sys

import pytest

from tests.perf.core_load import MESSAGES

COUNTED = {0: 1_235, 1: 2_339, 2: 3_967}
"""QoS -> instructions for one message from the publisher's PUBLISH to the subscriber's, acknowledgements included."""
TOLERANCE = 1.1
BATCHES = 500
"""So many that what differs from one start of Python to the next is 2 % of them."""

pytestmark = [
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions"),
    pytest.mark.timeout(900),  # valgrind is fifty times slower, and other tests may want the machine too
]


def instructions(qos: int, batches: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.perf.core_load", str(qos), str(batches)],
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


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_instructions_per_message(qos: int, start: int) -> None:
    per_message = (instructions(qos, BATCHES) - start) / (BATCHES * MESSAGES)
    assert per_message < COUNTED[qos] * TOLERANCE, (
        f"{per_message:.0f} instructions a message, {COUNTED[qos]} when the limit was set"
    )
    assert per_message > COUNTED[qos] / TOLERANCE, f"{per_message:.0f} instructions: better, so lower COUNTED from {COUNTED[qos]}"
