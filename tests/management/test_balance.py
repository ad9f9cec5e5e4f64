"""What a rebalance leaves on a node, and what of it outlives the manager."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardbroker.management.balance import UnderWay, goal_of, is_within
from shardbroker.stores.evacuation import EVACUATION_FILE, Evacuation, Thresholds, read_evacuation, write_evacuation


@pytest.mark.parametrize(
    ("own", "others", "goal"),
    [(100, [0], 50), (100, [0, 0], 34), (7, [], 7), (0, [10], 5), (10, [(1 << 32) - 1], ((1 << 32) + 10) // 2)],
)
def test_the_goal_is_the_average(own: int, others: list[int], goal: int) -> None:
    assert goal_of(own, others) == goal


def test_no_claim_of_others_takes_more_than_the_share_of_this_node() -> None:
    for count in range(1, 250):
        assert goal_of(1_000, [0] * count) * (1 + count) >= 1_000


def test_one_threshold_is_enough() -> None:
    assert is_within(1_500, 1_000, 1_000, 1.1)
    assert is_within(11_000, 10_000, 100, 1.1)
    assert not is_within(11_001, 10_000, 1_000, 1.1)
    assert not is_within(2, 0, 1, 1.1)


def test_what_is_about_to_leave_counts_for_a_while() -> None:
    under_way = UnderWay(4.0)
    under_way.add(0.0, 5)
    under_way.add(1.0, 0)
    under_way.add(2.0, 7)
    assert [under_way.count(now) for now in (3.9, 4.0, 6.0)] == [12, 7, 0]


def test_a_rebalance_is_read_as_it_was_written(tmp_path: Path) -> None:
    rebalance = Evacuation(1, 2, 3.0, "", ("n2",), 4, 5, 6, Thresholds(7, 1.5, 8, 2.5), 9, 10)
    for one in (rebalance, replace(rebalance, thresholds=None)):
        write_evacuation(tmp_path, one)
        assert read_evacuation(tmp_path) == one
    assert (rebalance.process, replace(rebalance, thresholds=None).process) == ("rebalance", "evacuation")


def test_a_file_of_an_earlier_version_is_an_evacuation(tmp_path: Path) -> None:
    known = {"conn_rate": 1, "sess_rate": 2, "wait_takeover_s": 3.0, "redirect_to": "", "migrate_to": [], "evicts_from_ms": 4}
    (tmp_path / EVACUATION_FILE).write_text(json.dumps(known))
    found = read_evacuation(tmp_path)
    assert found is not None and found.process == "evacuation"
