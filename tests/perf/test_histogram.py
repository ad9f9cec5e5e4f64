"""Percentiles are those of the sorted values, to the width of a step."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.histogram import Histogram

STEP = 1 / 64


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_percentiles(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(1, ceil(round(len(values) * percent / 100, 9))) - 1]
    assert abs(histogram.percentile(percent) - exact) <= exact * STEP + 1
    assert histogram.largest == max(values)
    assert histogram.summary()["count"] == len(values)


def test_empty() -> None:
    assert Histogram().percentile(99) == 0
    assert Histogram().summary()["mean_us"] == 0.0


@pytest.mark.parametrize("value", [0, 1, 63, 64, 65, 127, 128, 2**64 - 1])
def test_edges_of_steps(value: int) -> None:
    histogram = Histogram()
    histogram.record(value)
    assert abs(histogram.percentile(50) - value) <= value * STEP
