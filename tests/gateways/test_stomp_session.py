"""A session of STOMP alone, with a broker that answers when the test wants it to."""

import pytest

from shardbroker.config.gateways import StompGateway
from shardbroker.gateways.stomp.session import FIGURES, WINDOW, StompSession
from shardbroker.mqtt.packets import Connack, Unsuback


@pytest.fixture
def session() -> StompSession:
    """Connected, with the greatest number of packet ids that an MQTT broker may grant."""
    one = StompSession(StompGateway(), 128, "stomp-1", "shardbroker/0", dict.fromkeys(FIGURES, 0), 0.0)
    one.from_device(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0", 0.0)
    one.from_broker(Connack(False, 0).encode(5), 0.0)
    one.to_broker.clear()
    return one


def test_a_flood_of_subscriptions_waits_for_the_broker(session: StompSession) -> None:
    pair = b"SUBSCRIBE\nid:1\ndestination:a\n\n\0UNSUBSCRIBE\nid:1\n\n\0"
    for _ in range(40):
        session.from_device(pair * 1000, 0.0)  # more than there are packet ids
    assert len(session.to_broker) == WINDOW and not session.reads_device and not session.is_over
    session.from_broker(Unsuback(2, b"\0").encode(5), 0.0)
    assert len(session.to_broker) == WINDOW + 1
