"""Black-box test harness: real brokers, raw clients, bytes under full control.

wire    builds any packet, right or wrong, and parses strictly what a server sends. Shares no code with the
        broker's codec, so that an error in one cannot hide an error in the other.
client  a synchronous client on a real socket; `fence` orders events across connections without sleeping.
broker  starts a shardbroker on a free port with a temporary data directory and checks that it ends clean,
        or takes one that is already running (`pytest --broker HOST:PORT`).
segments  looks at journals while a broker writes them.
fork_server  starts those brokers by fork where exec would make no difference.

Fixtures are in tests/conftest.py. Tests say what they cover with `@statement("3.1.1", "MQTT-3.1.2-1", ...)`.
"""

import pytest

from tests.harness import wire
from tests.harness.broker import AnyBroker, Broker, ExternalBroker, client_id_on, free_port, worker_of
from tests.harness.client import Client, Closed
from tests.harness.waiting import until
from tests.harness.wire import (
    Auth,
    Connack,
    Disconnect,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    Will,
)

__all__ = [
    "AnyBroker",
    "Auth",
    "Broker",
    "Client",
    "Closed",
    "Connack",
    "Disconnect",
    "ExternalBroker",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Unsuback",
    "Will",
    "client_id_on",
    "free_port",
    "statement",
    "until",
    "wire",
    "worker_of",
]

statement = pytest.mark.statement
"""Marks a test with the version of the standard and the ids of the statements that it covers."""
