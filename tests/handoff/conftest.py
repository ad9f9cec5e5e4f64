"""A broker with a listener of each transport, whose workers are replaced."""

from collections.abc import Iterator
from typing import Any

import pytest

from shardbroker.control import Control
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge, authority  # noqa: F401 - a fixture
from tests.harness import Broker

WORKERS = 2


def replace(broker: Broker, worker: int) -> Any:
    """A new process takes the place of a worker."""
    with Control(broker.data_dir) as control:
        return control.call("workers replace", worker=worker)


def of_all_transports(authority: Authority) -> Edge:  # noqa: F811
    """A broker, not started, with a listener of each transport."""
    certfile = str(authority.directory / "broker.pem")
    listeners = {
        "ssl": {"type": "ssl", "tls.certfile": certfile}, "ws": {"type": "ws"}, "wss": {"type": "wss", "tls.certfile": certfile},
    }  # fmt: skip
    return Edge(listeners, WORKERS, {"log.level": "debug"})


@pytest.fixture(scope="module")
def whole(authority: Authority) -> Iterator[Edge]:  # noqa: F811
    with of_all_transports(authority) as broker:
        yield broker
