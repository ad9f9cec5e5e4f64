"""A process that crashes leaves a trace of what it was doing."""

import os
import signal

import psutil
import pytest

from tests.harness import Broker
from tests.harness.waiting import until

pytestmark = pytest.mark.own_broker


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS])
@pytest.mark.parametrize("title", ["sb-worker", "sb-manager"])
def test_a_crash_has_a_stack(title: str, number: signal.Signals) -> None:
    with Broker(1) as broker:
        broker.expects(number.name)
        broker.expects("Fatal Python error")
        (pid,) = broker.child_pids(title)
        os.kill(pid, number)
        until(lambda: any(f'cause="signal {number.name}"' in line for line in broker.output))
        lines = "".join(broker.output)
        assert "Fatal Python error: " in lines and "most recent call first" in lines, lines
        assert 'File "' in lines.partition("most recent call first")[2]
        (again,) = until(lambda: broker.child_pids(title))
        assert again != pid


def test_a_crash_of_the_supervisor_has_a_stack() -> None:
    with pytest.raises(AssertionError, match="ended by itself with code -11"), Broker(1) as broker:
        children = broker.child_pids()
        os.kill(broker.pid, signal.SIGSEGV)
        until(lambda: any("most recent call first" in line for line in broker.output))
        assert any("supervisor/tree.py" in line for line in until(lambda: [line for line in broker.output if "File" in line]))
        until(lambda: not any(psutil.pid_exists(child) for child in children))
