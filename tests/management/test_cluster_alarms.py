"""Alarms about the cluster, over time."""

import json
from typing import Any

import pytest

from shardbroker.management.alarms import Alarm
from shardbroker.management.cluster_view import HELD_MS, SKEW_MS, ClusterAlarms, Peer

UP = Peer("n2@b", 2, "b:5370", "running", 1, "up", "normal", 0, 0)


def told(alarms: ClusterAlarms, peer: Peer, at_ms: int, is_isolated: bool = False) -> list[tuple[str, bool, dict[str, Any]]]:
    """Returns name, whether it is active, fields."""

    def of(alarm: Alarm) -> tuple[str, bool, dict[str, Any]]:
        fields = json.loads(alarm.payload)
        return fields["name"], alarm.topic.endswith("/activate"), fields

    return [of(alarm) for alarm in alarms.look(is_isolated, [peer], at_ms) if alarm is not None]


@pytest.mark.parametrize(("skew_ms", "text"), [(-3_600_000, "n2@b 3600 s behind"), (SKEW_MS + 500, "n2@b 1.5 s ahead")])
def test_clocks_that_differ(skew_ms: int, text: str) -> None:
    alarms = ClusterAlarms("n1@a")
    assert told(alarms, UP._replace(skew_ms=SKEW_MS), 0) == []
    [(name, is_active, fields)] = told(alarms, UP._replace(skew_ms=skew_ms), 1)
    assert (name, is_active, fields["details"]) == ("cluster_clock_skew", True, {"peers": ["n2@b"]})
    assert text in fields["message"]
    assert told(alarms, UP._replace(skew_ms=skew_ms * 2), 2) == []
    [(name, is_active, _)] = told(alarms, UP._replace(skew_ms=0), 3)
    assert (name, is_active) == ("cluster_clock_skew", False)


def test_nodes_with_another_registry() -> None:
    alarms = ClusterAlarms("n1@a")
    assert not any(alarms.look(False, [UP], 0))
    [alarm] = filter(None, alarms.look(False, [UP], 1, ["n2@b", "n3@c"]))
    fields = json.loads(alarm.payload)
    assert (fields["name"], fields["details"]) == ("cluster_registry_differs", {"peers": ["n2@b", "n3@c"]})
    assert "cluster.registry differs at n2@b, n3@c" in fields["message"]
    assert not any(alarms.look(False, [UP], 2, ["n2@b", "n3@c"]))
    [alarm] = filter(None, alarms.look(False, [UP], 3))
    assert alarm.topic.endswith("/deactivate")


def test_the_clock_of_a_peer_that_is_not_linked_is_no_alarm() -> None:
    assert told(ClusterAlarms("n1@a"), UP._replace(skew_ms=9_000, state="stopped"), 0) == []


def test_a_peer_that_is_down_and_a_node_that_is_isolated() -> None:
    alarms, down = ClusterAlarms("n1@a"), UP._replace(link="down", state="stopped")
    assert told(alarms, down, 0, True) == []
    assert [one[:2] for one in told(alarms, down, HELD_MS, True)] == [("cluster_isolated", True), ("cluster_peer_down", True)]
    assert [one[:2] for one in told(alarms, UP, HELD_MS + 1)] == [("cluster_isolated", False), ("cluster_peer_down", False)]
