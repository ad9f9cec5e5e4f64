"""A broker with a listener of each transport, whose workers are replaced, one or all by another number."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge, authority  # noqa: F401 - a fixture
from tests.harness import Broker, until

WORKERS = 2
NEXT = {2: 4, 4: 3, 3: 2}
"""The number of workers that a broker gets next."""
SET_S = 60.0


def replace(broker: Broker, worker: int) -> Any:
    """A new process takes the place of a worker."""
    with Control(broker.data_dir) as control:
        return control.call("workers replace", worker=worker)


def workers_of(broker: Broker) -> int:
    """How many workers the broker has."""
    with Control(broker.data_dir) as control:
        return sum(row["name"].startswith("worker-") for row in control.call("workers list")["data"])


def begin_to_set(broker: Broker, workers: int, weights: str = "auto") -> Any:
    with Control(broker.data_dir) as control:
        return control.call("workers set", workers=workers, weights=weights)


def state_of_setting(broker: Broker) -> Any:
    """The state, or None: the manager is being replaced."""
    try:
        with Control(broker.data_dir) as control:
            return control.call("workers setting")
    except ControlError as error:
        if error.code not in ("BROKER_DOWN", "NOT_AVAILABLE"):
            raise
        return None


def set_workers(broker: Broker, workers: int, weights: str = "auto") -> Any:
    """Another number of workers takes the place of all; returns the state at the end."""
    begin_to_set(broker, workers, weights)
    return until(lambda: (state := state_of_setting(broker)) and state["phase"] in ("done", "failed") and state, timeout_s=SET_S)


def replace_first(broker: Broker) -> None:
    replace(broker, 0)


def resize(broker: Broker) -> None:
    """The next number of workers takes the place of all."""
    workers = NEXT[workers_of(broker)]
    state = set_workers(broker, workers)
    assert (state["phase"], state["workers"], state["problem"]) == ("done", workers, ""), state


@pytest.fixture(params=[replace_first, resize])
def move(request: pytest.FixtureRequest) -> Callable[[Broker], None]:
    """Another process takes over the connections of worker 0."""
    found: Callable[[Broker], None] = request.param
    return found


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
