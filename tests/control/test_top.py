"""`shardbroker top` in a terminal of its own, and in a pipe."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardbroker.cli.main import main
from tests.harness import Broker, Client

pytestmark = pytest.mark.own_broker
PROGRAM = str(Path(sys.executable).with_name("shardbroker"))


def test_one_look_has_a_line_for_each_worker(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(broker.address, 5, "top-client"):
        assert main(["top", "--data-dir", str(broker.data_dir), "--once", "--interval", "0.2"]) == 0
    text = capsys.readouterr().out
    pids = [int(found) for found in re.findall(r"^\s*\d+\s+\d+\s+\d+\s+(\d+)\s+ready", text, re.MULTILINE)]
    assert sorted(pids) == broker.child_pids("worker")
    assert "ring hop p50" in text and re.search(r"connections [1-9]", text)


def test_it_lives_in_a_terminal_until_it_is_interrupted(broker: Broker) -> None:
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    command = [PROGRAM, "top", "--data-dir", str(broker.data_dir), "--interval", "0.2"]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True)
    os.close(inside)
    seen = b""
    try:
        deadline = time.monotonic() + 30
        while seen.count(b"loop pass") < 3 and time.monotonic() < deadline:
            seen += os.read(terminal, 65536)
        assert seen.count(b"loop pass") >= 3, seen[-2000:]
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while data := os.read(terminal, 65536):
                seen += data
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"\x1b[?1049l" in seen  # the screen is as it was before


def test_without_a_broker_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--data-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith("BROKER_DOWN: ")


def test_too_short_an_interval_is_wrong_usage(broker: Broker) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", "--interval", "0.01"])
    assert caught.value.code == 2
