"""Progress in a terminal of 80 and of 40 columns, and elsewhere."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perf.live import Live, Progress, duration, time_of_day
from perf.plan import Plan
from tests.harness.broker import AnyBroker

PROGRAM = str(Path(sys.executable).with_name("shardbroker"))
CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
HELD = Plan(scenario="conn", publishers=0, subscribers=0, others=4, seconds=10)


def in_terminal(columns: int, command: list[str], more: Mapping[str, str] | None = None) -> tuple[str, str, int]:
    """Runs a command whose stderr is a terminal of so many columns; returns that, its stdout and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    environment |= {"TERM": "xterm", "PYTHONUTF8": "1", **(more or {})}
    with subprocess.Popen([PROGRAM, *command], stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # no process has the terminal any more
                break
            if not part:
                break
            seen += part
        assert process.stdout
        out = process.stdout.read().decode()
    os.close(ours)
    return seen.decode(), out, process.returncode


def snapshot(**values: float) -> dict[str, float]:
    names = ("opened", "failed", "gone", "published", "delivered", "changes", "p99_us", "elapsed", "running")
    return dict.fromkeys(names, 0.0) | values


def shown(lines: str) -> list[str]:
    """The texts of a terminal, without codes."""
    return [line for line in CODE.sub("", lines).replace("\r", "\n").split("\n") if line]


@pytest.mark.parametrize("columns", [80, 40])
def test_bar_in_a_terminal(broker: AnyBroker, columns: int) -> None:
    host, port = broker.address
    began = time.time()
    command = ["perf", "p2p", "-h", host, "-p", str(port), "--pairs", "2", "--rate", "1000", "--seconds", "2"]
    seen, out, code = in_terminal(columns, command)
    assert code == 0 and out.startswith("p2p 2-2 qos 0")
    lines = shown(seen)
    assert max(map(len, lines)) < columns, "a line that is as wide as the terminal, or wider, wraps"
    bars = [line for line in lines if line.startswith("measuring")]
    assert len(bars) >= 4
    percents = [int(found[1]) for line in bars if (found := re.search(r"[█░]{6,}  +(\d+)%", line))]
    assert len(percents) == len(bars) and percents == sorted(percents) and percents[0] < 40 and percents[-1] > 60
    for line in bars:
        at = re.search(r"ends (\d\d):(\d\d):(\d\d)$", line)
        assert at, line
        seconds = int(at[1]) * 3600 + int(at[2]) * 60 + int(at[3])
        local = time.localtime(began)
        after = (seconds - local.tm_hour * 3600 - local.tm_min * 60 - local.tm_sec) % 86_400
        assert 1 <= after <= 20, "it ends about two seconds after its clients are connected"
        assert columns == 40 or re.search(r"\d s left, ends", line)
    assert any("received" in line for line in lines)
    assert "\x1b[32m" in seen and seen.endswith("\x1b[J"), "what was drawn is removed at the end"


def test_terminals_without_colours_or_codes(broker: AnyBroker) -> None:
    host, port = broker.address
    command = ["perf", "p2p", "-h", host, "-p", str(port), "--rate", "100", "--seconds", "1.5"]
    seen, _, code = in_terminal(80, command, {"NO_COLOR": "1"})
    assert code == 0 and "█" in seen and "\x1b[K" in seen and not re.search(r"\x1b\[[0-9;]*m", seen)
    seen, _, code = in_terminal(80, command, {"TERM": "dumb"})
    assert code == 0 and "\x1b" not in seen and "clients" in seen
    seen, _, code = in_terminal(80, command, {"PYTHONIOENCODING": "ascii"})
    assert code == 0 and re.search(r"measuring +#+-+ ", CODE.sub("", seen))


def test_without_a_terminal_the_end_is_shown_once(broker: AnyBroker) -> None:
    host, port = broker.address
    command = [PROGRAM, "perf", "p2p", "-h", host, "-p", str(port), "--rate", "100", "--seconds", "3.5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["delivered"] > 0
    lines = done.stderr.splitlines()
    assert len(lines) >= 3 and "\x1b" not in done.stderr and "\r" not in done.stderr
    assert [number for number, line in enumerate(lines) if re.search(r"ends \d\d:\d\d:\d\d$", line)] == [0]


def test_rounds_of_a_comparison() -> None:
    command = ["perf", "compare", "--rounds", "2", "--seconds", "1", "--scenario", "p2p:rate=100", "--broker-core", "-1",
               "--load-core", "-1"]  # fmt: skip
    own = f"{PROGRAM} serve --listen tcp://127.0.0.1:{{port}} --data-dir {{dir}} --workers 1 --acceptors 1 --set api.bind=disabled"
    seen, _, code = in_terminal(80, [*command, "--broker", own, "--against", own])
    assert code == 0
    lines = shown(seen)
    assert max(map(len, lines)) < 80
    for text in ("round 1 of 2, run 1 of 4, broker, p2p", "round 2 of 2, run 3 of 4, against, p2p, all end about "):
        assert any(line.startswith(text) for line in lines), text
    assert any(line.startswith("measuring") for line in lines)


def test_phases() -> None:
    def of(plan: Plan, **values: float) -> tuple[str, float | None, float | None]:
        found = Progress(plan, snapshot(**values))
        return found.phase, found.done, found.left_s

    assert of(HELD) == ("connecting", 0, None)
    assert of(HELD, opened=1, elapsed=2.0) == ("connecting", 0.25, 6.0)
    assert of(HELD, opened=3, failed=1, elapsed=2.0) == ("preparing", None, None)
    assert of(HELD, opened=4, elapsed=4.0, running=True) == ("measuring", 0.4, 6.0)
    assert of(HELD, opened=4, elapsed=11.0, running=True) == ("finishing", 1, 0)
    load = Plan(messages=1000, seconds=10)
    assert of(load, opened=10, published=500, elapsed=1.0, running=True) == ("measuring", 0.5, 1.0), "messages end before the time"
    assert of(load, opened=10, published=500, elapsed=9.0, running=True) == ("measuring", 0.9, 1.0), "the time ends before"
    places = Plan(scenario="takeover", publishers=0, subscribers=0, others=5, messages=100, seconds=10)
    assert of(places) == ("preparing", None, None), "clients are connected while it is measured"
    assert of(places, changes=50, elapsed=1.0, running=True) == ("measuring", 0.5, 1.0)
    kept = Plan(scenario="retained", publishers=1, subscribers=4, topics=100)
    assert of(kept, published=100, delivered=100, elapsed=1.0, running=True) == ("measuring", 0.25, 3.0)
    endless = Plan(scenario="pub", publishers=1, subscribers=0, messages=0, seconds=0, topic=("t",))
    assert of(endless, published=5, elapsed=1.0, running=True) == ("measuring", None, None)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [1, 5, 12, 20, 30, 40, 57, 80, 200])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"opened": 1.0, "elapsed": 86_000.0},
        {"opened": 1e6, "elapsed": 5.0},
        {"opened": 1e6, "published": 1e12, "delivered": 1e12, "p99_us": 1e9, "elapsed": 2.0, "running": True},
        {"opened": 1e6, "failed": 1e6, "gone": 1e6, "published": 1e12, "elapsed": 90_000.0, "running": True},
    ],
)
def test_no_line_is_wider_than_the_terminal(columns: int, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    plan = Plan(scenario="conn", publishers=0, subscribers=0, others=1_000_000, seconds=86_400)
    live = Live(plan, ("round 100 of 1,000", "run 1 of 18,000", "against", "conn"), out=Terminal())
    for line in live.drawn(Progress(plan, snapshot(**values)), snapshot(**values), 1.0, columns):
        assert len(line) <= max(1, columns - 1)


def test_durations_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [duration(seconds) for seconds in (0, 11.4, 60, 125, 3599.9, 3725)] == [
        "0 s", "12 s", "1 min 00 s", "2 min 05 s", "1 h 00 min", "1 h 02 min",
    ]  # fmt: skip
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)  # 2023-11-14 22:13:20
        assert time_of_day(10) == "22:13:30"
        assert time_of_day(7200) == "2023-11-15 00:13:20"
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
