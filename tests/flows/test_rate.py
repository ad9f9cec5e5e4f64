"""Rates of a count that is sampled once a second."""

import pytest

from shardbroker.flows.rate import Rate


def test_rates_of_a_steady_stream() -> None:
    rate = Rate()
    for second in range(1, 601):
        rate.tick(second * 100)
        assert rate.now == 100 and rate.last5m == pytest.approx(100)
    assert rate.figures() == {"matched.rate": 100, "matched.rate.max": 100, "matched.rate.last5m": 100}


def test_rates_of_a_burst() -> None:
    rate = Rate()
    seen = []
    for second in range(1, 700):
        rate.tick(0 if second < 100 else 6000)
        seen.append((rate.now, rate.max, rate.last5m))
    assert max(now for now, _, _ in seen) == 1200 == rate.max
    assert [now for now, _, _ in seen].count(1200) == 5
    assert seen[299][2] == pytest.approx(20, rel=0.05)
    assert rate.now == rate.last5m == 0


def test_rates_begin_with_what_there_is() -> None:
    rate = Rate()
    rate.tick(10)
    assert (rate.now, rate.last5m) == (10, 10)
    rate.tick(10)
    assert (rate.now, rate.last5m) == (5, 5)
