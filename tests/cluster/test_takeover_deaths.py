"""Deaths of the nodes of a takeover at many of its steps, and takeovers among nodes whose clocks are an hour apart."""

import pytest

from shardbroker.cluster.clock import HybridClock, stamp_of
from shardbroker.cluster.outbound import Level
from tests.cluster.sim.clocks import HOUR_MS, ClocksCluster
from tests.cluster.sim.cluster import run
from tests.cluster.sim.deaths import STEPS, Role, takeover
from tests.cluster.sim.mutants import mutated

STRIDE = 7
"""Every so manieth step; `python -m tests.cluster.sim --deaths` takes all of them."""


@pytest.mark.parametrize(("level", "power_cut"), [(Level.PROCESS, False), (Level.MACHINE, True)], ids=["killed", "power cut"])
@pytest.mark.parametrize("role", Role)
def test_a_node_dies_during_a_takeover(role: Role, level: Level, power_cut: bool) -> None:
    steps = range(1, STEPS[role], STRIDE)
    assert sum(takeover(role, step, level, power_cut) for step in steps) > len(steps) // 3


@pytest.mark.parametrize("name", ["MOVED before STATE_ACK", "REVOKE ignored", "merge without the delivered ids"])
def test_a_mutant_is_found_by_deaths_during_takeovers(name: str) -> None:
    with mutated(name):
        for step in range(1, 120, 10):
            for role in (Role.HOLDER, Role.NEW):
                try:
                    takeover(role, step)
                except (AssertionError, KeyError):
                    return
    pytest.fail(f"{name}: not found")


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("role", Role)
def test_a_clock_that_is_wrong_by_an_hour_delays_no_takeover(role: Role, hours: int) -> None:
    for step in range(1, 60, 20):
        takeover(role, step, skew_ms=hours * HOUR_MS)


@pytest.mark.parametrize("seed", range(1, 7))
def test_clocks_that_jump(seed: int) -> None:
    one = run(seed, 4, 200, ClocksCluster)
    assert isinstance(one, ClocksCluster)
    assert one.jumps and one.takeovers and one.merges


def test_generations_by_the_wall_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_the_wall_clock(self: HybridClock, clock_ms: int) -> int:
        self.last = max(stamp_of(clock_ms), self.last % stamp_of(1)) + 1
        return self.last

    monkeypatch.setattr(HybridClock, "now", by_the_wall_clock)
    for seed in range(1, 7):
        try:
            run(seed, 4, 200, ClocksCluster)
        except (AssertionError, KeyError):
            return
    pytest.fail("not found")
