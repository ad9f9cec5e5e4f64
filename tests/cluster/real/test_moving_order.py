"""The order of messages at clients that change their node all the time, while link processes are killed."""

import pytest

from tests.cluster.real.moves import FAILED, MOVING
from tests.cluster.real.nodes import running
from tests.cluster.real.patient import patient
from tests.cluster.real.streams import streams
from tests.cluster.real.test_messages import linked
from tests.harness.waiting import until

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(300)]
WORKERS = 2
ROUNDS = 8
MOVES_BETWEEN = 3


@pytest.mark.parametrize("link", [0, 1])
def test_messages_stay_in_order_while_a_link_process_is_replaced(link: int) -> None:
    """What the former node of a session has not received yet is waited for."""
    with running(2, workers=WORKERS, prepare=patient, **{**MOVING, "mqtt.max_mqueue_len": "0"}) as nodes:
        linked(nodes)
        with streams(nodes, WORKERS, exact=False) as (_, moving):
            for number in range(ROUNDS):
                nodes.kill_link(1 + number % 2, link)
                linked(nodes)
                moves = [one.receiver.moves for one in moving]
                until(
                    lambda moves=moves: all(  # type: ignore[misc]
                        one.problems or one.receiver.moves >= then + MOVES_BETWEEN for one, then in zip(moving, moves, strict=True)
                    )
                )
        for number in nodes.brokers:
            for line in FAILED:
                assert line not in nodes.output(number), nodes.output(number)
