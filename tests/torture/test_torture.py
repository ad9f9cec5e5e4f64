"""The crash test in CI's time. A failing seed is run again with `python -m tests.torture.torture --seed ...`; to leave it out:
`pytest -m "not torture"`."""

import random

import pytest

from tests.torture.checker import RESIZE, Seen
from tests.torture.killer import KINDS, POWER
from tests.torture.mover import MOVES
from tests.torture.torture import Options, Outcome, run

CONTENDED = {Seen.HELD, Seen.HELD_OVER_A_KILL, Seen.REFUSED, Seen.PASSED_ON}
"""What only a run with exclusive subscriptions sees."""
MOVED = {Seen.REPLACED, Seen.UPGRADED, Seen.CUT_SHORT, Seen.KEPT}
"""What only a run with replacements and upgrades sees."""


def torture(kills: int, exclusive: bool = False, **options: object) -> Outcome:
    """Runs the crash test with a random seed. exclusive: clients contend for exclusive subscriptions as well."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    outcome = run(Options(seed, kills, exclusive=exclusive, **options))  # type: ignore[arg-type]
    print(outcome)
    assert outcome.kills >= kills
    return outcome


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_acceptors_and_the_manager_are_killed() -> None:
    outcome = torture(50, kinds=("acceptor", "manager"), acceptors=8)
    assert not outcome.faults, str(outcome)
    # Without the death of a worker it is chance whether a publisher that is cut off has something unacknowledged.
    unseen = {Seen.DELAYED_OVER_A_KILL, *CONTENDED, *MOVED}
    assert unseen <= set(outcome.unseen) <= unseen | {Seen.SENT_AGAIN, Seen.ARRIVED_AGAIN}, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_anything_is_killed() -> None:
    outcome = torture(200, exclusive=True, kinds=KINDS, acceptors=4)
    assert not outcome.faults, str(outcome)
    assert set(outcome.unseen) == MOVED, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_no_client_is_disconnected_by_replacements_and_an_upgrade() -> None:
    """Connections of all transports. Kills hit some moves, and disconnect the clients of that worker alone."""
    outcome = torture(8, kinds=(*MOVES, "worker"), everywhere=True)
    assert not outcome.faults, str(outcome)
    assert Seen.KEPT not in outcome.unseen, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", ["process", "machine"])
def test_no_client_is_disconnected_by_another_number_of_workers(level: str) -> None:
    outcome = torture(8, kinds=(RESIZE, "worker"), everywhere=True, level=level)
    assert not outcome.faults, str(outcome)
    assert Seen.KEPT not in outcome.unseen, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_the_number_of_workers_changes() -> None:
    outcome = torture(6, kinds=("worker", "supervisor"), resize=True)
    assert not outcome.faults, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", ["process", "machine"])
def test_nothing_is_lost_when_anything_is_killed_and_journals_turn_over(level: str) -> None:
    kinds = (*KINDS, POWER) if level == "machine" else KINDS
    outcome = torture(30, kinds=kinds, level=level, small=True)
    assert not outcome.faults, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_queues_are_full_and_push_back() -> None:
    """Absent clients lose what waits for them, but no client stalls, so that a loss shows."""
    outcome = torture(30, kinds=(*KINDS, "replace"), push_back=True)
    assert not outcome.faults, str(outcome)
    stalled = {client for (client, _), drops in outcome.history.overflows.items() if any(one.stalled for one in drops)}
    assert len(stalled) < 3, str(stalled)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_at_level_machine_when_processes_are_killed() -> None:
    outcome = torture(20, kinds=KINDS, acceptors=4, level="machine")
    assert not outcome.faults, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_at_level_machine_when_the_power_goes() -> None:
    outcome = torture(20, kinds=(POWER, "worker"), level="machine", rate=600.0, small=True)
    assert not outcome.faults, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_the_power_goes_and_workers_are_replaced() -> None:
    outcome = torture(8, kinds=(POWER, *MOVES), level="machine", small=True)
    assert not outcome.faults, str(outcome)
    assert Seen.KEPT not in outcome.unseen, str(outcome)


@pytest.mark.torture
@pytest.mark.own_broker
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_the_power_goes_and_the_number_of_workers_changes() -> None:
    outcome = torture(5, kinds=(POWER,), level="machine", rate=600.0, small=True, resize=True)
    assert not outcome.faults, str(outcome)
