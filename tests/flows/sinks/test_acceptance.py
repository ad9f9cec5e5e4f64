"""What every type of sink has to show, against its server, one type after the other; see `acceptance.py` and `kinds.py`."""

from collections.abc import Iterator

import pytest

from tests.api.rest import ApiBroker
from tests.flows.sinks.acceptance import Outage, Trial, broker_of_trials, trial
from tests.flows.sinks.kinds import KINDS

pytestmark = pytest.mark.own_broker
OUTAGE = Outage(4000, 1.1)
"""Longer than a connector waits for an answer."""
WAITING = 2000
POISONED = [name for name, kind in KINDS.items() if kind.poison is not None]


@pytest.fixture(scope="module")
def broker() -> Iterator[ApiBroker]:
    with broker_of_trials() as found:
        yield found


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest, broker: ApiBroker) -> Iterator[Trial]:
    """Of one type at a time."""
    with trial(request.param, broker) as found:
        yield found


@pytest.mark.parametrize("one", KINDS, indirect=True)
def test_a_wrong_connector_is_refused_and_a_row_keeps_its_types(one: Trial) -> None:
    one.types()


@pytest.mark.parametrize("one", KINDS, indirect=True)
def test_no_row_is_missing_after_the_server_was_stopped_and_gone(one: Trial) -> None:
    if one.sink.server is None:
        pytest.skip("needs the right to mount a small tmpfs")
    one.outage(OUTAGE)


@pytest.mark.parametrize("one", KINDS, indirect=True)
def test_a_restart_loses_no_waiting_row_and_a_rewind_repeats_them(one: Trial) -> None:
    one.restart(WAITING)


@pytest.mark.parametrize("one", POISONED, indirect=True)
def test_a_row_that_is_rejected_fails_alone(one: Trial) -> None:
    one.poison()
