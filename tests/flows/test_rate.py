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


@pytest.mark.parametrize("idle_s", [0, 1, 3, 9, 10, 11, 299, 300, 301, 5000])
@pytest.mark.parametrize("began", [0, 7, 1234])
def test_seconds_without_a_message_may_be_caught_up(idle_s: int, began: int) -> None:
    """As if each had been sampled, from any second of the caller's clock on."""
    sampled, caught_up = Rate(), Rate()
    second = began
    caught_up.catch_up(second)
    for count in (0, 50, *[50] * 400):
        second += 1
        sampled.tick(count)
        caught_up.catch_up(second - 1)
        caught_up.tick(count)
    assert sampled.now == sampled.last5m == 0
    for _ in range(idle_s):
        sampled.tick(50)
    second += idle_s
    for count in (70, 80, 200):
        second += 1
        sampled.tick(count)
        caught_up.catch_up(second - 1)
        caught_up.tick(count)
        assert sampled.figures() == caught_up.figures()
