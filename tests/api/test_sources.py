"""Sources over REST: the shapes of EMQX, secrets of their connector, refusals, and each route once. No server answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.rest import ApiBroker, Rest
from tests.harness import until

CONNECTOR: dict[str, Any] = {
    "type": "rabbitmq", "name": "main", "server": "127.0.0.1", "port": 1, "username": "guest", "password": "s3cret",
    "timeout": "1s", "virtual_host": "/", "heartbeat": "30s", "pool_size": 2, "ssl": {"enable": False},
    "resource_opts": {"start_timeout": "5s"},
}  # fmt: skip
SOURCE: dict[str, Any] = {
    "type": "rabbitmq", "name": "in", "connector": "main", "tags": ["a"],
    "parameters": {"queue": "in", "no_ack": True, "wait_for_publish_confirmations": True},
    "resource_opts": {"health_check_interval": "15s", "resume_interval": "5s", "worker_pool_size": 4},
}  # fmt: skip
"""As EMQX has them."""


@pytest.fixture
def made(rest: Rest) -> Iterator[Rest]:
    rest.good("POST", "/connectors", CONNECTOR)
    rest.good("POST", "/sources", SOURCE)
    yield rest
    rest.good("DELETE", "/connectors/rabbitmq:main", also_delete_dep_actions="true")
    assert rest.good("GET", "/sources") == []


def test_they_have_the_shape_of_emqx(made: Rest, viewer: Rest) -> None:
    source = viewer.good("GET", "/sources/rabbitmq%3Ain")
    assert [one["id"] for one in viewer.good("GET", "/sources")] == ["rabbitmq:in"]
    assert (source["type"], source["name"], source["connector"], source["tags"]) == ("rabbitmq", "in", "main", ["a"])
    assert source["parameters"]["queue"] == "in" and source["rules"] == []
    assert source["node_status"][0]["status"] == source["status"]
    assert source["resource_opts"] == {"health_check_interval": "15s"}
    connector = viewer.good("GET", "/connectors/rabbitmq:main")
    assert (connector["server"], connector["password"], connector["sources"], connector["actions"]) == (
        "127.0.0.1:1", "******", ["rabbitmq:in"], [],
    )  # fmt: skip
    (summary,) = viewer.good("GET", "/sources_summary")
    assert summary["name"] == "in" and "parameters" not in summary
    assert "rabbitmq" in viewer.good("GET", "/source_types")
    until(lambda: made.good("GET", "/sources/rabbitmq:in")["status"] == "disconnected")
    assert made.good("GET", "/sources/rabbitmq:in")["status_reason"] == "connection refused"


def test_what_is_read_can_be_sent_back(made: Rest) -> None:
    source = made.good("GET", "/sources/rabbitmq:in")
    assert made.good("PUT", "/sources/rabbitmq:in", {**source, "description": "x"})["parameters"] == source["parameters"]


def test_they_are_enabled_disabled_started_and_stopped(made: Rest) -> None:
    path = "/sources/rabbitmq:in"
    made.good("PUT", f"{path}/enable/false")
    found = made.good("GET", path)
    assert (found["enable"], found["status"], found["status_reason"]) == (False, "stopped", "disabled")
    assert made.refused("POST", f"{path}/start") == (400, "BAD_REQUEST")
    made.good("PUT", f"{path}/enable/true")
    made.good("POST", f"{path}/stop")
    until(lambda: made.good("GET", path)["status"] == "stopped")
    made.good("POST", f"{path}/start")
    until(lambda: made.good("GET", path)["status"] == "disconnected")
    made.good("POST", f"{path}/restart")
    made.good("POST", "/connectors/rabbitmq:main/stop")


def test_figures(made: Rest) -> None:
    metrics = made.good("GET", "/sources/rabbitmq:in/metrics")
    assert set(metrics["metrics"]) >= {"received", "published", "failed", "matched", "success", "rate_last5m"}
    assert metrics["node_metrics"][0]["metrics"] == metrics["metrics"]
    made.good("PUT", "/sources/rabbitmq:in/metrics/reset")
    assert made.refused("GET", "/sources/rabbitmq:none/metrics")[0] == 404


def test_rules_name_them(made: Rest) -> None:
    for id, name in (("new", "$sources/rabbitmq:in"), ("old", "$bridges/rabbitmq:in")):
        made.good("POST", "/rules", {"id": id, "sql": f'SELECT * FROM "{name}"', "actions": []})
    assert made.good("GET", "/sources/rabbitmq:in")["rules"] == ["new", "old"]
    status, answer = made("DELETE", "/sources/rabbitmq:in")
    assert (status, answer["code"]) == (400, "BAD_REQUEST") and "rule new" in answer["message"]
    for name in ("$sources/none:in", "$sources/http:in", "$sources/rabbitmq", "$sources/rabbitmq:+", "$bridges/#"):
        assert made.refused("POST", "/rules", {"id": "x", "sql": f'SELECT * FROM "{name}"', "actions": []})[0] == 400
    for id in ("new", "old"):
        made.good("DELETE", f"/rules/{id}")


def test_one_whose_server_answers_is_tried_made_and_removed(rest: Rest, served: ApiBroker) -> None:
    """The server is this broker."""
    rest.good("POST", "/connectors", {"type": "mqtt", "name": "own", "server": f"127.0.0.1:{served.address[1]}"})
    source = {"type": "mqtt", "name": "in", "connector": "own", "parameters": {"topic": "in/#"}}
    rest.good("POST", "/sources_probe", source)
    rest.good("POST", "/sources", source)
    until(lambda: rest.good("GET", "/sources/mqtt:in")["status"] == "connected")
    rest.good("DELETE", "/sources/mqtt:in")
    assert rest.refused("GET", "/sources/mqtt:in")[0] == 404
    rest.good("DELETE", "/connectors/mqtt:own")


def test_a_probe_says_what_is_wrong(made: Rest) -> None:
    status, answer = made("POST", "/sources_probe", {**SOURCE, "name": "new"})
    assert (status, answer["code"], answer["message"]) == (400, "TEST_FAILED", "connection refused")
    assert made.refused("POST", "/sources_probe", {**SOURCE, "connector": "none"}) == (400, "BAD_REQUEST")


WRONG: list[dict[str, Any]] = [
    {"type": "http"}, {"type": "none"}, {"name": "a b"}, {"connector": "none"}, {"unknown": 1}, {"parameters": {"prefetch": 0}},
    {"parameters": {"queue": ""}},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_one_is_refused(made: Rest, change: dict[str, Any]) -> None:
    assert made.refused("POST", "/sources", {**SOURCE, "name": "other", **change}) == (400, "BAD_REQUEST")
    assert len(made.good("GET", "/sources")) == 1


def test_a_viewer_changes_nothing(made: Rest, viewer: Rest) -> None:
    for method, path, body in (
        ("POST", "/sources", SOURCE), ("PUT", "/sources/rabbitmq:in", SOURCE), ("DELETE", "/sources/rabbitmq:in", None),
        ("POST", "/sources_probe", SOURCE), ("POST", "/sources/rabbitmq:in/stop", None),
    ):  # fmt: skip
        assert viewer.refused(method, path, body)[0] == 403
