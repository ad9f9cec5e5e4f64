"""A broker that was started by fork is what one that was started by exec is."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import Broker, until
from tests.harness.broker import PROGRAM
from tests.harness.fork_server import ForkedProcess, ForkServer


@pytest.fixture(params=[True, False], ids=["fork", "exec"])
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(Broker, "by_fork", request.param)
    broker = Broker(2)
    with broker:
        assert isinstance(broker.process, ForkedProcess) == request.param
        yield broker


def test_session_descriptors_and_signals(broker: Broker) -> None:
    process = psutil.Process(broker.pid)
    assert os.getsid(broker.pid) == os.getpgid(broker.pid) == broker.pid
    assert process.name() == "shardbroker"
    assert os.readlink(f"/proc/{broker.pid}/fd/0") == os.devnull
    assert os.readlink(f"/proc/{broker.pid}/fd/1") == os.readlink(f"/proc/{broker.pid}/fd/2") != os.devnull
    status = Path(f"/proc/{broker.pid}/status").read_text()
    assert "SigBlk:\t0000000000000000\n" in status


def kinds_of_descriptors(pid: int) -> list[str]:
    """Sorted: files by name, sockets and others by kind."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(re.sub(r"\[\d+\]|.*/", "", os.readlink(path)))
    return sorted(found)


def test_descriptors_of_others_are_not_open(broker: Broker) -> None:
    """Such as those of the fork server, and of brokers that started before."""
    with Broker(2) as second:
        assert [kinds_of_descriptors(pid) for pid in (broker.pid, *broker.child_pids())] == [
            kinds_of_descriptors(pid) for pid in (second.pid, *second.child_pids())
        ]


@pytest.mark.parametrize("by_fork", [True, False])
def test_exit_codes(by_fork: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "by_fork", by_fork)
    broker = Broker(1, {"mqtt.max_inflight": "no"})
    with pytest.raises(AssertionError, match=r"mqtt\.max_inflight"):
        broker.start()
    assert broker.process is not None and broker.process.returncode == 2
    broker = Broker(1)
    broker.start()
    assert broker.process is not None and broker.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        broker.process.wait(0.05)
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.process.wait(10) == broker.process.poll() == -signal.SIGKILL
    broker.expects("")
    broker.kill()
    broker.clear_shared()


def test_a_process_that_has_ended_is_there_until_it_was_waited_for() -> None:
    with Broker(1) as broker:
        broker.terminate()
        psutil.wait_procs(broker.children(), 10)
        while (status := psutil.Process(broker.pid).status()) != psutil.STATUS_ZOMBIE:
            assert status != psutil.STATUS_DEAD
        os.kill(broker.pid, 0)
        assert broker.process is not None and broker.process.wait(10) == 0
        while psutil.pid_exists(broker.pid):
            pass
        broker.process = None


def test_threads_that_start_first_brokers_have_one_server() -> None:
    server = ForkServer()
    processes: list[subprocess.Popen[str]] = []
    command = [*PROGRAM, "--version"]
    threads = [threading.Thread(target=lambda: processes.append(server.start(command, os.environ))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [process.wait(20) for process in processes] == [0] * 4
    assert all("shardbroker" in process.stdout.read() for process in processes if process.stdout is not None)


def test_threads_that_wait_and_look_all_see_the_end() -> None:
    broker = Broker(1)
    broker.start()
    process, seen = broker.process, []
    assert process is not None
    looking = [threading.Thread(target=lambda: seen.append(until(lambda: process.poll() is not None))) for _ in range(4)]
    waiting = [threading.Thread(target=lambda: seen.append(process.wait(20) is not None)) for _ in range(4)]
    for thread in (*looking, *waiting):
        thread.start()
    broker.terminate()
    for thread in (*looking, *waiting):
        thread.join(20)
    assert seen == [True] * 8
    broker.kill()


def test_what_matters_before_main_goes_by_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable, a limit, a core."""
    broker = Broker(1)
    broker.environment["PYTHONMALLOC"] = "malloc"
    with broker:
        assert not isinstance(broker.process, ForkedProcess)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        with Broker(1) as broker:
            assert not isinstance(broker.process, ForkedProcess)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    broker = Broker(1)
    broker.environment["SHARDBROKER__MQTT__MAX_INFLIGHT"] = "7"
    with broker:
        assert isinstance(broker.process, ForkedProcess)
