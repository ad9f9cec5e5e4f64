"""The log never waits for its reader and never grows without bound."""

import os
import re
import time
from collections.abc import Iterator

import pytest

from shardbroker.logs.log import PENDING_MAX, Log
from shardbroker.logs.phrases import Line


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass  # closed by the test


def read_all(reader: int) -> str:
    os.set_blocking(reader, False)
    found = b""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            found += os.read(reader, 1 << 20)
        except BlockingIOError:
            if found.endswith(b"the last\n"):
                return found.decode()
            time.sleep(0.005)
    raise AssertionError(f"no last line: {found[-200:]!r}")


def test_lines_have_time_and_level_and_only_wanted_levels_are_written(pipe: tuple[int, int]) -> None:
    log = Log("warning", pipe[1])
    log.add("debug", Line("no"))
    log.add("info", Line("no"))
    log.add("warning", Line("one"), 1_700_000_000_123)
    log.add("error", Line("the last"), 0)
    log.close()
    assert read_all(pipe[0]) == "2023-11-14T22:13:20.123+00:00 WARNING one\n1970-01-01T00:00:00.000+00:00 ERROR the last\n"
    assert log.enabled("error") and not log.enabled("info")


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_costs_lines_not_memory_or_time(pipe: tuple[int, int], blocking: bool) -> None:
    os.set_blocking(pipe[1], blocking)
    log = Log("info", pipe[1])
    line = "x" * 1000
    count = 4 * PENDING_MAX // len(line)
    started = time.monotonic()
    for _ in range(count):
        log.add("info", Line(line))
        log.flush()
    assert time.monotonic() - started < 5
    assert len(log._gathered) <= PENDING_MAX
    os.set_blocking(pipe[0], False)
    lines, deadline = "", time.monotonic() + 10
    while accounted(lines, line) < count and time.monotonic() < deadline:
        try:
            lines += os.read(pipe[0], 1 << 20).decode()
        except BlockingIOError:
            time.sleep(0.005)
    assert accounted(lines, line) == count
    assert "log lines dropped" in lines
    log.add("info", Line("the last"))
    log.close()
    assert read_all(pipe[0]).endswith(" INFO the last\n")


def accounted(lines: str, line: str) -> int:
    """Returns how many lines were written whole or counted as dropped, in what was read."""
    whole = lines[: lines.rfind("\n") + 1]
    return whole.count(f"{line}\n") + sum(int(count) for count in re.findall(r"log lines dropped count=(\d+)", whole))


def test_a_reader_that_went_away_stops_nothing(pipe: tuple[int, int]) -> None:
    log = Log("info", pipe[1])
    os.close(pipe[0])
    for _ in range(3):
        log.add("info", Line("nobody listens"))
        log.flush()
        time.sleep(0.02)
    log.close()
    assert not log._thread.is_alive()


def test_close_does_not_wait_for_a_reader_for_ever(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.logs.log.CLOSE_TIMEOUT_S", 0.1)
    log = Log("info", pipe[1])
    log.add("info", Line("x" * (PENDING_MAX // 2)))
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 2
    os.read(pipe[0], 1 << 20)
