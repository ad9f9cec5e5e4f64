"""A short run of the torture with workers that are replaced and nodes that are upgraded, on nodes with a network of their own."""

import pytest

from tests.cluster.real.network import why_not
from tests.cluster.real.torture import MOVES, run

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(600)]
SECONDS = 12.0


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
@pytest.mark.parametrize("interrupted", [0.0, 0.7])
def test_nothing_is_lost_by_moves(interrupted: float) -> None:
    outcome = run(7, 0, SECONDS, count_=2, kinds=MOVES, interrupted=interrupted)
    assert outcome.is_good, str(outcome)
    assert outcome.replaced, str(outcome)
    assert outcome.interrupted or not outcome.disconnects, str(outcome)
