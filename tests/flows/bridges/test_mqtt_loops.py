"""Brokers that are bridged both ways on `#`: a message is there once on each side, and does not return."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.bridges.far import Far
from tests.flows.sinks.publishing import publish_all
from tests.harness import until
from tests.servers.mosquitto import mosquitto_server

pytestmark = pytest.mark.own_broker
QUIET_S = 2.0
VERSIONS = pytest.mark.parametrize("version", ["v3", "v4", "v5"])


def both_ways(server: str, version: str) -> dict[str, dict[str, Any]]:
    return {
        "connectors.mqtt.far": {"server": server, "proto_ver": version, "bridge_mode": version != "v5", "timeout": "2s"},
        "actions.mqtt.far": {"connector": "far", "parameters": {"qos": 1}},
        "rules.out": {"sql": 'SELECT * FROM "#"', "actions": ["mqtt:far"]},
        "sources.mqtt.far": {"connector": "far", "parameters": {"topic": "#", "local": {"topic": "${topic}"}}},
    }


def publish(broker: Far, w: int, count: int = 20) -> None:
    publish_all(broker.address, 0, 1, [b'{"w": %d, "n": %d}' % (w, n) for n in range(count)], b"t/a")


def connected(broker: Far, address: tuple[str, int]) -> None:
    """Waits until messages pass both ways. address: of the server."""

    def look() -> bool:
        return broker.source("mqtt:far").get("status") == "connected" == broker.action("mqtt:far").get("status")

    until(look, lambda: f"{broker.source('mqtt:far')} {broker.action('mqtt:far')} {broker.output[-5:]}", 30)
    broker.await_source(lambda payload: publish_all(address, 0, 1, [payload], b"t/first"))


def assert_once(*brokers: Far) -> None:
    """Asserts that each broker has the messages of both once, and that nothing is under way any more."""
    expected = sorted((w, n) for w in range(2) for n in range(20))
    for one in brokers:
        until(lambda one=one: set(one.seen().rows) >= set(expected), lambda one=one: f"{one.output[-5:]}", 30)
    time.sleep(QUIET_S)
    for one in brokers:
        assert sorted(one.seen().rows) == expected
        assert one.seen().is_ordered()


@VERSIONS
def test_a_bridge_to_another_broker_of_this_kind(place: Path, version: str) -> None:
    with Far(place / "far", "#") as far, Far(place / "near", "#", sections=both_ways(far.server, version)) as near:
        connected(near, far.address)
        publish(near, 0)
        publish(far, 1)
        assert_once(near, far)


@VERSIONS
def test_two_brokers_with_mosquitto_between_them(place: Path, version: str) -> None:
    with mosquitto_server("max_queued_messages 0") as between:
        sections = both_ways(f"127.0.0.1:{between.port}", version)
        names = [{"node.name": name} for name in ("one@127.0.0.1", "two@127.0.0.1")]
        with (
            Far(place / "one", "#", sections=sections, settings=names[0]) as one,
            Far(place / "two", "#", sections=sections, settings=names[1]) as two,
        ):
            connected(one, ("127.0.0.1", between.port))
            connected(two, ("127.0.0.1", between.port))
            publish(one, 0)
            publish(two, 1)
            assert_once(one, two)


def test_bridges_on_both_sides_end_with_mqtt_5(place: Path) -> None:
    """Each side sends what the other one has sent, once: the user property ends it."""
    with Far(place / "one", "#") as one, Far(place / "two", "#") as two:
        for broker, other in ((one, two), (two, one)):
            sections = both_ways(other.server, "v5")
            broker.change(**{name.replace(".", "__"): values for name, values in sections.items()})
        connected(one, two.address)
        connected(two, one.address)
        publish(one, 0)
        until(lambda: len(set(two.seen().rows)) == 20, timeout_s=30)
        time.sleep(QUIET_S)
        counts = len(one.seen().rows), len(two.seen().rows)
        time.sleep(QUIET_S)
        assert (len(one.seen().rows), len(two.seen().rows)) == counts
        assert max(counts) <= 60
