"""Durations and sizes: what is read, and that what is written reads back."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from shardbroker.config import machine_memory
from shardbroker.config.units import (
    Duration,
    Limit,
    MemoryMark,
    OptionalDuration,
    Rate,
    Size,
    format_duration,
    format_rate,
    format_size,
    mark_bytes,
)

DURATION: TypeAdapter[float] = TypeAdapter(Duration)
RATE: TypeAdapter[float] = TypeAdapter(Rate)
SIZE: TypeAdapter[int] = TypeAdapter(Size)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15), ("2h", 7200), ("500ms", 0.5), ("1d", 86400), ("1m30s", 90), ("1.5s", 1.5), ("infinity", inf), (7, 7), ("0s", 0)],
)
def test_durations(text: object, seconds: float) -> None:
    assert DURATION.validate_python(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "15", "-1s", "1 s", "1w", "5 minutes", "1s2", "\u0663s", True, float("nan"), None, [1]])
def test_no_durations(text: object) -> None:
    with pytest.raises(ValidationError):
        DURATION.validate_python(text)


@pytest.mark.parametrize(
    ("text", "size"), [("1MB", 1 << 20), ("256KB", 256 << 10), ("64kb", 65536), ("1GB", 1 << 30), ("12", 12), ("3 B", 3), (5, 5)]
)
def test_sizes(text: object, size: int) -> None:
    assert SIZE.validate_python(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1.5MB", "-1KB", "1TB", "1MiB", True, 1.5, None])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValidationError):
        SIZE.validate_python(text)


def test_disabled_and_no_limit() -> None:
    assert TypeAdapter(OptionalDuration).validate_python("disabled") is None
    assert TypeAdapter(Limit).validate_python("infinity") == 0


@given(st.integers(0, 10**12))
def test_milliseconds_read_back(milliseconds: int) -> None:
    seconds = DURATION.validate_python(f"{milliseconds}ms")
    assert DURATION.validate_python(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@given(st.integers(0, 1 << 40))
def test_sizes_read_back(size: int) -> None:
    assert SIZE.validate_python(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [(10, 10), ("10", 10), ("1000/s", 1000), ("50/10s", 5), ("30/m", 0.5), ("1/500ms", 2), ("1.5/s", 1.5), ("infinity", inf)],
)
def test_rates(text: object, rate: float) -> None:
    assert RATE.validate_python(text) == rate
    assert RATE.validate_python(format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "/s", "0", "0/s", "5/0s", "-1", "10/w", "10/s/s", "1/2d", "1e9", True, None, 10**10])
def test_no_rates(text: object) -> None:
    with pytest.raises(ValidationError):
        RATE.validate_python(text)


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.sampled_from("smh"))
def test_what_is_written_as_a_rate_reads_back(count: int, units: int, unit: str) -> None:
    rate = count / (units * {"s": 1, "m": 60, "h": 3600}[unit])
    if rate >= 1 / 86400:
        assert RATE.validate_python(format_rate(rate)) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "expected"), [("70%", 700 << 20), ("12.5 %", 128 << 20), ("1GB", 1 << 30), ("disabled", 0), ("1%", 128 << 20)]
)
def test_memory_mark(text: str, expected: int) -> None:
    assert mark_bytes(text, 1000 << 20) == expected


@pytest.mark.parametrize("value", ["0%", "101%", "70", "1MB", "-1GB", "", "x", True, None])
def test_no_memory_mark(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(MemoryMark).validate_python(value)


def test_memory_of_the_machine() -> None:
    assert 64 << 20 < machine_memory() < 1 << 50
