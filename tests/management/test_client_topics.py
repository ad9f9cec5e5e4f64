"""Messages about clients are made only for those who would get them."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from shardbroker.config.settings import SysEvents
from shardbroker.management.client_topics import ClientTopics
from shm.destinations import worker_destination
from shm.epochs import Epochs
from shm.events import KIND_CONNECTED, KIND_DISCONNECTED, ClientEvent
from shm.routes import RouteChange, RouteTable

CLIENTS = b"$SYS/brokers/n@1/clients/"


class Subscriptions:
    """Routes and epochs as the workers keep them."""

    def __init__(self, path: Path) -> None:
        self.routes = RouteTable(path, map_bytes=1 << 22)
        self.epochs = Epochs.create(str(path.parent / f"epochs-{uuid4().hex[:8]}"))
        self.topics = ClientTopics("n@1", SysEvents(), 128, {0: 1883}, self.routes, self.epochs)

    def change(self, filter: bytes, add: bool = True, group: bytes = b"") -> None:
        self.routes.update([RouteChange(add, filter, worker_destination(0), group, 1 if group else 0)])
        self.epochs.bump_of(filter)

    def heard(self, client_id: bytes = b"c", kind: int = KIND_CONNECTED) -> bool:
        self.topics.refresh()
        return self.topics.message(ClientEvent(kind, 0, 0, 5, 60, 1, client_id, "127.0.0.1:5", "")) is not None


@pytest.fixture
def subscriptions(tmp_path: Path) -> Iterator[Subscriptions]:
    made = Subscriptions(tmp_path / "routes")
    yield made
    made.epochs.unlink()
    made.routes.close()


@pytest.mark.parametrize(
    "filter",
    [
        b"$SYS/#",
        b"$SYS/brokers/#",
        b"$SYS/brokers/+/clients/#",
        b"$SYS/+/+/+/+/connected",
        CLIENTS + b"c/connected",
        CLIENTS + b"c/+",
        CLIENTS + b"+/connected",
        CLIENTS + b"#",
    ],
)
def test_filters_that_are_served(subscriptions: Subscriptions, filter: bytes) -> None:
    assert not subscriptions.heard()
    subscriptions.change(filter)
    assert subscriptions.heard()
    subscriptions.change(filter, add=False)
    assert not subscriptions.heard()
    subscriptions.change(filter, group=b"g")
    assert subscriptions.heard()


@pytest.mark.parametrize(
    "filter",
    [
        b"#",
        b"+/brokers/#",
        b"$SYS",
        b"$SYS/brokers",
        b"$SYS/brokers/n@1/clients",
        b"$SYS/brokers/n@1/stats/#",
        b"$SYS/brokers/other/clients/#",
        CLIENTS + b"d/connected",
        CLIENTS + b"c/disconnected",
        CLIENTS + b"c/subscribed",
        CLIENTS + b"connected",
        CLIENTS + b"c/c/connected",
    ],
)
def test_filters_that_match_none(subscriptions: Subscriptions, filter: bytes) -> None:
    subscriptions.change(filter)
    assert not subscriptions.heard()


@pytest.mark.parametrize("client_id", [b"+", b"a#", b"/" * 124, b"c" * 65_535])
def test_client_ids_that_no_topic_can_hold(subscriptions: Subscriptions, client_id: bytes) -> None:
    subscriptions.change(b"$SYS/#")
    assert not subscriptions.heard(client_id)
    assert subscriptions.heard()


@pytest.mark.parametrize("client_id", [b"c" * 600, b"c/" * 100 + b"c" * 500, b"c/d"])
def test_client_ids_of_all_sizes(subscriptions: Subscriptions, client_id: bytes) -> None:
    subscriptions.change(CLIENTS + client_id + b"/disconnected")
    assert subscriptions.heard(client_id, KIND_DISCONNECTED)
    assert not subscriptions.heard(client_id)
    subscriptions.change(b"$SYS/brokers/+/clients/" + client_id + b"/connected")
    assert subscriptions.heard(client_id)


def test_many_subscribers(subscriptions: Subscriptions) -> None:
    for number in range(20):
        subscriptions.change(CLIENTS + b"%d/connected" % number)
        assert subscriptions.heard(b"%d" % number) and subscriptions.heard(b"0")
        assert not subscriptions.heard(b"%d" % (number + 1))
        assert not subscriptions.heard(b"0", KIND_DISCONNECTED)


def test_one_who_never_was_a_client_is_none(subscriptions: Subscriptions) -> None:
    subscriptions.change(b"$SYS/#")
    assert not subscriptions.heard(b"", KIND_DISCONNECTED)


def test_nothing_is_searched_while_the_epoch_stands(subscriptions: Subscriptions) -> None:
    assert not subscriptions.heard()
    subscriptions.routes.update([RouteChange(True, b"$SYS/#", worker_destination(0))])
    assert not subscriptions.heard()
    subscriptions.epochs.bump_of(b"$SYS/#")
    assert subscriptions.heard()
