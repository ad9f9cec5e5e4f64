"""What a rebalance leaves on a node, and what of it outlives the manager."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.management.balance import Load, Plan, UnderWay, goal_of, is_within, limit_of, part_of, plan_of
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


CLOSE = Thresholds(1, 1.01, 1, 1.01)


@pytest.mark.parametrize(("average", "absolute", "relative"), [(0, 1, 1.1), (10, 1, 1.1), (1_000, 5, 1.1), (7, 3, 1.01)])
def test_the_limit_is_the_largest_value_within_the_thresholds(average: int, absolute: int, relative: float) -> None:
    limit = limit_of(average, absolute, relative)
    assert is_within(limit, average, absolute, relative) and not is_within(limit + 1, average, absolute, relative)


def test_parts_are_the_whole() -> None:
    for amount in range(20):
        for count in range(1, 8):
            assert sum(part_of(amount, place, count) for place in range(count)) == amount


def test_nodes_with_the_average_or_more_are_donors() -> None:
    loads = [Load("a", 12, 0), Load("b", 7, 3), Load("c", 1, 0), Load("d", 6, 30)]
    assert plan_of(loads, CLOSE, True) == Plan(("a", "b"), ("c", "d"), 7, 9)


def test_sessions_decide_once_clients_are_balanced() -> None:
    loads = [Load("a", 5, 0), Load("b", 5, 20), Load("c", 4, 8)]
    assert plan_of(loads, CLOSE, True) == Plan(("b",), ("a", "c"), 5, 10)
    assert plan_of(loads, CLOSE, False) is None, "sessions of these nodes do not move"


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), min_size=2, max_size=12), st.integers(1, 500))
def test_a_node_is_left_open_and_the_balanced_nodes_have_nothing_to_do(found: list[tuple[int, int]], absolute: int) -> None:
    thresholds = Thresholds(absolute, 1.1, absolute, 1.1)
    loads = [Load(str(number), *one) for number, one in enumerate(found)]
    plan = plan_of(loads, thresholds, True)
    if plan is None:
        return
    assert plan.recipients and plan.donors and {*plan.recipients} | {*plan.donors} == {load.name for load in loads}
    limit = limit_of(plan.connection_goal, absolute, 1.1)
    room = sum(max(0, limit - load.connections) for load in loads if load.name in plan.recipients)
    surplus = sum(max(0, load.connections - plan.connection_goal) for load in loads if load.name in plan.donors)
    if any(load.connections > limit for load in loads):
        assert room >= surplus - len(loads), "there is room for what leaves, but for the rounding of the goal"
    worst = [
        Load(load.name, max(load.connections, limit) if load.name in plan.recipients else min(load.connections, limit), 0)
        for load in loads
    ]
    after = plan_of(worst, thresholds, True)
    assert after is None or not {*after.donors} & {
        load.name for load in worst if load.name in plan.recipients and load.connections < after.connection_goal
    }


def test_what_is_about_to_leave_counts_for_a_while() -> None:
    under_way = UnderWay(4.0)
    under_way.add(0.0, 5)
    under_way.add(1.0, 0)
    under_way.add(2.0, 7)
    assert [under_way.count(now) for now in (3.9, 4.0, 6.0)] == [12, 7, 0]


def test_a_rebalance_is_read_as_it_was_written(tmp_path: Path) -> None:
    rebalance = Evacuation(1, 2, 3.0, "", ("n2",), 4, 5, 6, Thresholds(7, 1.5, 8, 2.5), 9, 10, "n3", ("n1", "n2"), 11, 12)
    for one in (rebalance, replace(rebalance, thresholds=None)):
        write_evacuation(tmp_path, one)
        assert read_evacuation(tmp_path) == one
    assert (rebalance.process, replace(rebalance, thresholds=None).process) == ("rebalance", "evacuation")


def test_a_file_of_an_earlier_version_is_an_evacuation(tmp_path: Path) -> None:
    known = {"conn_rate": 1, "sess_rate": 2, "wait_takeover_s": 3.0, "redirect_to": "", "migrate_to": [], "evicts_from_ms": 4}
    (tmp_path / EVACUATION_FILE).write_text(json.dumps(known))
    found = read_evacuation(tmp_path)
    assert found is not None and found.process == "evacuation"
