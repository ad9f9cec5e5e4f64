"""What an idle client costs is a promise (docs/performance.md): a field more in these objects is paid for by every client."""

import pytest

from shardbroker.pubsub.subscriptions import Subscription
from shardbroker.session.session import Session
from shardbroker.worker.connection import Connection

BYTES = {Connection: 328, Session: 176, Subscription: 56}
"""Size of an object as it is now. What only some clients need belongs into an object that only they have."""


@pytest.mark.parametrize("kind", BYTES, ids=lambda kind: kind.__name__)
def test_an_idle_client_holds_no_more_than_it_did(kind: type) -> None:
    assert kind.__basicsize__ <= BYTES[kind]
