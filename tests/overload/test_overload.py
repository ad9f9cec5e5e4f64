"""Under overload others are served, memory stays below its limit, and drops follow the rules.

Bounds are generous, as other things run on the machines that test this; exact figures come from bench_overload.
"""

import os

import pytest

from tests.overload import scenarios
from tests.overload.scenarios import Outcome

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(90)]

LIMIT_MB = 400
P99_S = 1.0
LONGEST_S = 5.0
BACK_MB = 80
"""What may be left: caches, and a heap that was larger."""


def check(outcome: Outcome) -> None:
    """What holds in every scenario."""
    print(outcome)
    assert outcome.most < LIMIT_MB, outcome
    assert outcome.after < outcome.before + BACK_MB, outcome
    for trips in (outcome.same, outcome.other, outcome.across):
        assert trips.count > 20, outcome
        assert trips.p99 < P99_S and trips.longest < LONGEST_S, outcome


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_subscribers_that_stop_reading(qos: int) -> None:
    outcome = scenarios.stuck_subscribers(qos, blocks=250)
    check(outcome)
    # QoS 0 has no queue while its client is connected; QoS 1 and 2 wait in theirs until that is full.
    assert outcome.dropped == {"output_full" if qos == 0 else "queue_full"}


def test_publishers_ten_times_faster_than_subscribers() -> None:
    outcome = scenarios.slow_subscribers(seconds=2)
    check(outcome)
    assert outcome.seen["received"] > 100, "slow is not stopped"


@pytest.mark.parametrize("qos", [0, 1])
def test_flooding_publishers(qos: int) -> None:
    outcome = scenarios.flooding_publishers(seconds=1, qos=qos, least_mb=2)
    check(outcome)
    assert outcome.seen["read_mb"] > 1


def test_flood_through_a_ring() -> None:
    check(scenarios.flooding_publishers(seconds=1, workers_apart=True))


@pytest.mark.parametrize("one_packet", [False, True])
def test_many_filters(one_packet: bool) -> None:
    check(scenarios.many_filters(one_packet=one_packet))


def test_retained_messages_to_many() -> None:
    outcome = scenarios.retained_to_many(10_000, 10, deadline_s=30)
    check(outcome)
    assert outcome.seen["complete"] == 10


def test_unread_answers() -> None:
    outcome = scenarios.ping_flood(clients=5, seconds=1)
    check(outcome)
    assert outcome.counters["metrics.overload.output_stopped"] >= 5, outcome


@pytest.mark.skipif(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2 << 30, reason="needs memory")
def test_queues_of_absent_clients() -> None:
    outcome = scenarios.offline_queues(sessions=5)
    check(outcome)
    assert outcome.seen["queued"] == 100_000


@pytest.mark.parametrize("apart", [False, True])
def test_memory_runs_short(apart: bool) -> None:
    outcome = scenarios.memory_runs_short(apart, limit_mb=300)
    check(outcome)
    assert outcome.most < 300
    # Queues have no limit here: nothing is dropped, the publishers wait until there is room.
    assert outcome.dropped == set()
    assert outcome.counters["metrics.overload.publishers_paused"] >= 4
    assert outcome.seen["alarm"] and outcome.seen["alarm_ended"] and outcome.seen["accepted_again"]


@pytest.mark.parametrize("in_steps", [False, True])
def test_newcomers_are_refused_while_memory_is_short(in_steps: bool) -> None:
    outcome = scenarios.too_many_connections(limit_mb=200, in_steps=in_steps)
    check(outcome)
    assert outcome.most < 200
    assert (outcome.seen["refused_v5"], outcome.seen["refused_v4"]) == (0x97, 0x03)
    assert outcome.seen["session_present"], "who has a session may come to empty its queue"
    assert outcome.seen["suback"] == 0x97
    assert outcome.seen["accepted_again"]
