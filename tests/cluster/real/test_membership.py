"""Nodes find each other, know who is there, and refuse those that do not belong to them."""

import json
import time

import pytest

from shardbroker import __version__
from shardbroker.control import Control, ControlError
from tests.cluster.real.nodes import Nodes, running
from tests.harness.broker import Broker, free_port
from tests.harness.waiting import until


def test_two_nodes_see_each_other() -> None:
    with running(2) as nodes:
        for own, other in (1, 2), (2, 1):
            nodes.await_links(own, **{f"n{other}": "up"})
            status = nodes.status(own)
            assert [(one["name"], one["state"]) for one in status["nodes"]] == [
                (nodes.name(own), "running"), (nodes.name(other), "running"),
            ]  # fmt: skip
            linked = {"name": nodes.name(other), "link": "up", "routes": "normal", "lag": 0}
            until(lambda own=own: nodes.status(own)["peers"][0]["data"] == "up")
            linked |= {"retained": "synced", "access": "synced"}
            until(lambda own=own, linked=linked: linked.items() <= nodes.status(own)["peers"][0].items())
            assert nodes.status(own)["peers"] == [{**linked, "data": "up", "spool_bytes": 0, "error": ""}]
            assert not status["isolated"]
            assert status["epoch"] > 1
            assert status["self"] == nodes.name(own)
        incarnations = [{one["name"]: one["incarnation"] for one in nodes.status(number)["nodes"]} for number in (1, 2)]
        assert incarnations[0] == incarnations[1] and 0 not in incarnations[0].values()
        assert nodes.counters(1)["link.established"] == 1
        assert "shardbroker_cluster_nodes_running 2\n" in metrics(nodes)


def metrics(nodes: Nodes) -> str:
    with Control(nodes.brokers[1].data_dir) as control:
        return str(control.call("prometheus"))


def test_a_link_process_that_is_killed_comes_back_alone() -> None:
    with running(2) as nodes:
        before = nodes.status(1)
        workers = nodes.brokers[1].child_pids("worker")
        for number, other in (1, "n2"), (2, "n1"):
            closed = nodes.counters(3 - number)["link.closed"]
            pid = nodes.kill_link(number)
            until(lambda number=number, pid=pid: nodes.brokers[number].child_pids("link-0") not in ([], [pid]))
            until(lambda number=number, closed=closed: nodes.counters(3 - number)["link.closed"] > closed)  # "up" until then
            nodes.await_links(number, **{other: "up"})
            nodes.await_links(3 - number, **{f"n{number}": "up"})
        after = nodes.status(1)
        incarnations = [[one["incarnation"] for one in status["nodes"]] for status in (before, after)]
        assert incarnations[0] == incarnations[1], "incarnations are those of the brokers"
        assert nodes.brokers[1].child_pids("worker") == workers
        assert nodes.counters(2)["link.closed"] == 1


def test_a_node_that_is_killed_is_stopped_and_returns() -> None:
    with running(3) as nodes:
        for peer in "n1", "n2":
            nodes.await_links(3, **{peer: "up"})
        first = nodes.status(1)["nodes"][2]["incarnation"]
        nodes.brokers[3].kill()
        nodes.await_links(1, n2="up", n3="down")
        states = {one["name"]: one["state"] for one in nodes.status(1)["nodes"]}
        assert states == {nodes.name(1): "running", nodes.name(2): "running", nodes.name(3): "stopped"}
        assert not nodes.status(1)["isolated"]
        nodes.brokers[2].kill()
        nodes.await_links(1, n2="down", n3="down")
        assert nodes.status(1)["isolated"]
        nodes.await_line(1, "alarm activated name=cluster_peer_down")
        nodes.await_line(1, "alarm activated name=cluster_isolated")
        nodes.start([2, 3])
        nodes.await_links(1, n2="up", n3="up")
        status = nodes.status(1)
        assert not status["isolated"]
        assert status["nodes"][2]["incarnation"] not in (first, 0)
        nodes.await_line(1, "alarm deactivated name=cluster_isolated")


def test_a_wrong_cookie_is_refused_by_both_sides() -> None:
    with running(1) as other:
        cookie = other.write_cookie("other", b"a secret of somebody else")
        with running(2, each={2: {"cluster.cookie_file": cookie}}, **{"cluster.join_timeout": "1s"}) as nodes:
            for number, peer in (1, 2), (2, 1):
                nodes.await_line(number, "compare cluster.cookie_file")
                status = nodes.status(number)
                assert [one["state"] for one in status["nodes"]] == ["running", "stopped"]
                assert status["peers"][0].pop("link") in ("down", "hello")
                assert "cookie" in until(lambda number=number: nodes.status(number)["peers"][0]["error"])
                assert status["peers"][0].pop("error") in ("", nodes.status(number)["peers"][0]["error"])
                known = {"name": nodes.addresses[peer - 1], "routes": "bootstrap", "lag": 0}
                assert status["peers"] == [{**known, "data": "down", "spool_bytes": 0, "retained": "none", "access": "none"}]
            assert nodes.counters(1)["link.refused"] and nodes.counters(2)["link.refused"]
            assert COOKIES_NEVER_SHOWN not in nodes.output(1) + nodes.output(2)


def test_nodes_know_the_load_of_each_other_and_what_waits_for_them() -> None:
    with running(2) as nodes, nodes.connect(1, "publisher") as publisher:
        for number, other in (1, "n2"), (2, "n1"):
            nodes.await_links(number, **{other: "up"})
        with nodes.connect(2, "away", properties={"session_expiry_interval": 600}) as away:
            away.subscribe("t", 1)

        def loads(number: int) -> list[dict[str, object]]:
            return [
                {name: one[name] for name in ("connections", "sessions", "accepts_clients", "version")}
                for one in nodes.status(number)["nodes"]
            ]

        expected = [
            {"connections": 1, "sessions": 1, "accepts_clients": True, "version": __version__},
            {"connections": 0, "sessions": 1, "accepts_clients": True, "version": __version__},
        ]
        until(lambda: (loads(1), loads(2)) == (expected, expected[::-1]), lambda: f"{loads(1)}\n{loads(2)}")
        for one in nodes.status(1)["nodes"]:
            assert 0 < one["uptime_ms"] < 600_000 and one["load1"] >= 0

        def publish() -> None:
            for _ in range(20):
                publisher.publish("t", b"x" * 1000, 1)

        publish()
        until(lambda: max(one["received_rate"] for one in nodes.status(2)["nodes"]) > 0)
        nodes.brokers[2].kill()
        nodes.await_links(1, n2="down")
        publish()
        peer = until(lambda: (found := nodes.status(1)["peers"][0])["spool_bytes"] > 20_000 and found["error"] and found)
        assert peer["data"] == "down"
        assert nodes.status(1)["nodes"][1]["connections"] is None
        nodes.start([2])
        nodes.await_links(1, n2="up")
        until(lambda: (found := nodes.status(1)["peers"][0])["data"] == "up" and not found["spool_bytes"] and not found["error"])


COOKIES_NEVER_SHOWN = "a secret of"


def test_a_node_id_twice_is_refused_by_name() -> None:
    with running(2, each={2: {"node.id": 1}}, **{"cluster.join_timeout": "1s"}) as nodes:
        for number in 1, 2:
            nodes.await_line(number, "node.id must be unique")
            assert nodes.status(number)["peers"][0]["link"] in ("down", "hello")


def test_a_node_that_is_no_member_is_refused() -> None:
    address = f"127.0.0.1:{free_port()}"  # below those of the members, so that it dials them
    with running(2) as nodes:
        nodes.await_links(1, n2="up")
        stranger = {
            **nodes.settings(1), "node.id": 3, "node.name": "n3@127.0.0.1", "cluster.link.bind": address,
            "cluster.static.seeds": json.dumps([address, *nodes.addresses]), "cluster.join_timeout": "1s",
        }  # fmt: skip
        with Broker(1, stranger) as third:
            needle = f"{address} is missing from cluster.static.seeds"
            until(lambda: any(needle in line for line in [*third.output, *nodes.brokers[1].output]), timeout_s=20)
        assert len(nodes.status(1)["nodes"]) == 2
        assert nodes.links(1) == {nodes.name(2): "up"}


def test_a_node_that_starts_alone_serves_after_the_join_timeout() -> None:
    with running(1) as nodes:
        assert nodes.status(1)["peers"] == []
    begun = time.monotonic()
    with running(2, each={2: {"cluster.name": "other"}}, **{"cluster.join_timeout": "2s"}) as nodes:
        assert time.monotonic() - begun > 2
        nodes.await_line(1, "cluster joined without all members")
        nodes.await_line(1, "compare cluster.name")


def test_without_a_cluster_the_status_says_so() -> None:
    with Broker(1) as broker, Control(broker.data_dir) as control:
        with pytest.raises(ControlError, match=r"cluster\.enable = false") as found:
            control.call("cluster status")
        assert found.value.code == "NOT_AVAILABLE"
        assert not broker.child_pids("link")
