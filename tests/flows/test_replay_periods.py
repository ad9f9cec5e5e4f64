"""Periods of `$replay/...`, and whether a filter is covered by another one."""

from itertools import product

import pytest

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import ReasonCode
from shardbroker.mqtt.topics import covers, matches, parse_subscription
from shardbroker.pubsub.periods import FOREVER, parse_period

NOW_US = 1_764_050_400_000_000


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        (b"90s", (NOW_US - 90_000_000, FOREVER)),
        (b"15m", (NOW_US - 900_000_000, FOREVER)),
        (b"1w", (NOW_US - 604_800_000_000, FOREVER)),
        (b"999999999w", (0, FOREVER)),
        (b"earliest", (0, FOREVER)),
        (b"latest", (NOW_US, FOREVER)),
        (b"1764050400000", (NOW_US, FOREVER)),
        (b"1764050400000000", (NOW_US, FOREVER)),
        (b"100000000000000", (10**14, FOREVER)),
        (b"99999999999999", (10**17 - 1000, FOREVER)),
        (b"9" * 18, (10**18 - 1, FOREVER)),
        (b"2025-11-25T06:00:00Z", (NOW_US, FOREVER)),
        (b"2025-11-25T07:00:00.5-01:00", (NOW_US + 7_200_500_000, FOREVER)),
        (b"2h..1h", (NOW_US - 7_200_000_000, NOW_US - 3_600_000_000)),
        (b"earliest..2025-11-25T06:00:00Z", (0, NOW_US)),
    ],
)
def test_periods(period: bytes, expected: tuple[int, int]) -> None:
    assert parse_period(period, NOW_US) == expected


@pytest.mark.parametrize(
    "period",
    [
        b"", b"..", b"1h..", b"..1h", b"1h..2h", b"1h..1h", b"latest..latest", b"1h..2h..3h", b"-1h", b"1 h", b"1y", b"h", b"1e3",
        b"9999999999s", b"2025-11-25", b"2025-11-25T06:00:00", b"2025-13-25T06:00:00Z", b"0000-01-01T00:00:00Z", b"1" * 19, b"\xff",
        "\N{ARABIC-INDIC DIGIT ONE}h".encode(),
    ],
)  # fmt: skip
def test_wrong_periods(period: bytes) -> None:
    with pytest.raises(MqttError, match=r"\$replay/<period>: must be") as refused:
        parse_period(period, NOW_US)
    assert refused.value.reason_code == ReasonCode.TOPIC_FILTER_INVALID


def test_a_replay_is_a_subscription_to_the_filter_behind_the_period() -> None:
    assert parse_subscription(b"$replay/1h/a/+/#") == (None, b"a/+/#")
    for wrong in (b"$replay/", b"$replay/1h", b"$replay/1h/", b"$replay//a", b"$share/g/$replay/1h/a", b"$queue/$replay/1h/a"):
        with pytest.raises(MqttError):
            parse_subscription(wrong)


def test_covers_agrees_with_what_filters_match() -> None:
    """All filters and topics of up to three levels of few words: a filter covers another one if it matches all of its topics."""
    words = (b"a", b"b", b"", b"$x", b"c")
    topics = [b"/".join(levels) for count in range(1, 5) for levels in product(words, repeat=count)]
    levels = (b"a", b"", b"$x", b"+")
    filters = [b"/".join(one) for count in range(1, 4) for one in product(levels, repeat=count)]
    filters += [b"#", *(one + b"/#" for one in filters if one.count(b"/") < 2)]
    matched = {filter: frozenset(topic for topic in topics if matches(filter, topic)) for filter in filters}
    for outer, inner in product(filters, filters):
        assert covers(outer, inner) == (matched[inner] <= matched[outer]), (outer, inner)
