"""`shardbroker top` in a terminal of its own, and in a pipe."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from shardbroker.cli.keys import ESCAPE
from shardbroker.cli.main import main
from shardbroker.cli.top import FILTER_MAX, SORTS, View
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


@contextlib.contextmanager
def busy(*clients: Client) -> Iterator[None]:
    """They publish all the time."""
    ended = threading.Event()

    def publish(client: Client) -> None:
        while not ended.wait(0.02):
            client.publish("top/busy", b"x")

    threads = [threading.Thread(target=publish, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


class Terminal:
    """`shardbroker top` in a terminal of 80 columns, drawn by an emulator: its lines as a person sees them."""

    def __init__(self, broker: Broker, columns: int = 80, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._terminal, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}
        self.process = subprocess.Popen(
            [PROGRAM, "top", "--data-dir", str(broker.data_dir), "--interval", "0.2"],
            stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(inside)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, pattern: str) -> str:
        """The screen once it has this."""
        deadline = time.monotonic() + 30
        while not re.search(pattern, text := "\n".join(self.screen.display)):
            assert time.monotonic() < deadline, text
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._stream.feed(os.read(self._terminal, 65536))
        return text

    def rest(self) -> int:
        """Reads until the program has ended, and returns its exit code."""
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while os.read(self._terminal, 65536):
                pass
        return self.process.wait(10)


def test_eighty_columns_show_whole_cells_and_keys_are_obeyed(broker: Broker) -> None:
    with Client(broker.address, 5, "filter-me") as one, Client(broker.address, 5, "other") as other, Terminal(broker) as top:
        text = top.until(r"q quit  s sort  / filter  h help +sorted by worker")
        assert "…" not in text
        (head,) = [line for line in text.splitlines() if "in/s" in line and "state" in line]
        assert head.split() == ["worker", "core", "state", "cpu", "memory", "clients", "in/s", "out/s", "lost/s", "waiting", "ring"]
        assert re.findall(r"^\s*(\d+)\s+\S+\s+ready\s+[█·]{4}", text, re.MULTILINE) == [str(n) for n in range(broker.workers)]
        top.type("s")
        top.until("sorted by cpu")
        top.type("SS")
        top.until("sorted by ring")
        top.type("h")
        top.until("sort by the next, the previous column")
        top.type("\x1b[A")  # an arrow is no key
        top.type("x")
        top.until("sorted by ring")
        top.type("/filter-q")
        top.until("filter: filter-q_ +no busy client with it")
        top.type("\x7fme\r")
        with busy(one, other):
            text = top.until(r"(?m)^ ?filter-me ")
        assert "filter: filter-me" in text and not re.search(r"(?m)^ ?other ", text), text
        top.type("\x1b")
        top.until("sorted by ring")
        top.type("q")
        assert top.rest() == 0


def test_keys_choose_and_a_filter_is_bounded() -> None:
    view = View()
    assert view.take("s" * len(SORTS)) and view.sort == "worker"
    assert view.take("/" + "q" * 100) and view.filter == "q" * FILTER_MAX and view.types
    assert view.take("\x07") and view.filter == "q" * FILTER_MAX
    assert view.take(ESCAPE) and (view.filter, view.types) == ("", False)
    assert view.take("h") and view.helps and view.take("q") is False


def test_without_a_broker_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--data-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith("BROKER_DOWN: ")


def test_too_short_an_interval_is_wrong_usage(broker: Broker) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", "--interval", "0.01"])
    assert caught.value.code == 2
