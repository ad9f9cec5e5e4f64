"""The simulator in CI: at least 100,000 random steps. A failing seed is replayed with `python -m tests.sim.simulator`."""

import random

import pytest

from tests.sim.simulator import run

STEPS = 5_000
FIXED_SEEDS = range(10)
RANDOM_SEEDS = 12


@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_no_loss_no_duplicate_no_leak_fixed_seed(seed: int) -> None:
    assert run(seed, STEPS) > 0


@pytest.mark.parametrize("number", range(RANDOM_SEEDS))
def test_no_loss_no_duplicate_no_leak_random_seed(number: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    assert run(seed, STEPS) > 0
