"""Connectors and actions over REST: the shapes of EMQX, secrets, refusals, and each route once."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.api.rest import Rest

CONNECTOR: dict[str, Any] = {"type": "webhook", "name": "main", "url": "", "headers": {"a": "s3cret"}, "ssl": {"enable": False}}
ACTION: dict[str, Any] = {"type": "http", "name": "out", "connector": "main", "parameters": {"path": "/x", "max_retries": 2}}


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_OPTIONS = do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def made(rest: Rest, url: str) -> Iterator[Rest]:
    """With a connector and an action."""
    rest.good("POST", "/connectors", {**CONNECTOR, "url": url})
    rest.good("POST", "/actions", ACTION)
    yield rest
    rest.good("DELETE", "/connectors/http:main", also_delete_dep_actions="true")


def test_they_have_the_shape_of_emqx(made: Rest, viewer: Rest, url: str) -> None:
    connector = viewer.good("GET", "/connectors/http%3Amain")
    assert viewer.good("GET", "/connectors") == [connector]
    assert (connector["type"], connector["name"], connector["url"], connector["actions"]) == ("http", "main", url, ["http:out"])
    assert connector["headers"] == {"a": "******"}
    (node,) = connector["node_status"]
    assert node["status"] == connector["status"] and "@" in node["node"]
    action = viewer.good("GET", "/actions/http:out")
    assert viewer.good("GET", "/actions") == [action]
    assert action["connector"] == "main" and action["parameters"]["path"] == "/x" and action["rules"] == []
    assert action["resource_opts"]["health_check_interval"] == "15s"
    assert isinstance(action["created_at"], int) and action["last_modified_at"] >= action["created_at"]
    (summary,) = viewer.good("GET", "/actions_summary")
    assert summary["name"] == "out" and "parameters" not in summary
    assert "http" in viewer.good("GET", "/action_types")


def test_what_is_read_can_be_sent_back(made: Rest) -> None:
    before = made.good("GET", "/connectors/http:main")
    after = made.good("PUT", "/connectors/http:main", {**before, "pool_size": 3})
    assert {**after, "pool_size": 8, "last_modified_at": 0, "status": "", "node_status": []} == {
        **before, "last_modified_at": 0, "status": "", "node_status": [],
    }  # fmt: skip
    action = made.good("GET", "/actions/http:out")
    assert made.good("PUT", "/actions/http:out", action)["parameters"] == action["parameters"]


def test_they_are_enabled_and_disabled_started_and_stopped(made: Rest) -> None:
    for path in ("/connectors/http:main", "/actions/http:out"):
        made.good("PUT", f"{path}/enable/false")
        found = made.good("GET", path)
        assert (found["enable"], found["status"], found["status_reason"]) == (False, "stopped", "disabled")
        assert made.refused("POST", f"{path}/start") == (400, "BAD_REQUEST")
        made.good("PUT", f"{path}/enable/true")
        assert made.good("GET", path)["enable"] is True
    for path in ("/connectors/http:main", "/actions/http:out"):
        for verb in ("stop", "start", "restart"):
            made.good("POST", f"{path}/{verb}")


def test_figures_and_the_cursor_of_an_action(made: Rest) -> None:
    metrics = made.good("GET", "/actions/http:out/metrics")
    assert set(metrics["metrics"]) >= {"matched", "success", "failed", "dropped.queue_full", "inflight", "rate_last5m"}
    assert metrics["node_metrics"][0]["metrics"] == metrics["metrics"]
    made.good("PUT", "/actions/http:out/metrics/reset")
    assert set(made.good("GET", "/actions/http:out/cursor")) == {"id", "cursor", "lag_records", "lag_seconds"}
    made.good("PUT", "/actions/http:out/cursor", {"at": "latest"})
    for at in ("soon", "1h..2h", ""):
        assert made.refused("PUT", "/actions/http:out/cursor", {"at": at}) == (400, "BAD_REQUEST")
    assert made.refused("GET", "/actions/http:none/metrics")[0] == 404


def test_a_used_one_is_not_deleted(made: Rest) -> None:
    status, answer = made("DELETE", "/connectors/http:main")
    assert (status, answer["code"]) == (400, "BAD_REQUEST") and "action http:out" in answer["message"]
    made.good("POST", "/rules", {"id": "uses", "sql": 'SELECT * FROM "none"', "actions": ["webhook:out"]})
    assert made.good("GET", "/actions/http:out")["rules"] == ["uses"]
    details = made.good("GET", "/rules/uses")["action_details"]
    assert [one["name"] for one in details] == ["out"]
    assert "rule uses" in made("DELETE", "/actions/http:out")[1]["message"]
    made.good("DELETE", "/actions/http:out", also_delete_dep_actions="true")
    assert made.good("GET", "/rules/uses")["actions"] == []
    made.good("DELETE", "/rules/uses")


def test_probes(made: Rest, url: str) -> None:
    made.good("POST", "/connectors_probe", {**CONNECTOR, "name": "new", "url": url})
    masked = {"type": "http", "name": "main", "url": url, "headers": {"a": "******"}}
    made.good("POST", "/connectors_probe", masked)
    assert made.refused("POST", "/connectors_probe", {**masked, "name": "new"}) == (400, "BAD_REQUEST")
    made.good("POST", "/actions_probe", ACTION)
    assert made.refused("POST", "/actions_probe", {**ACTION, "connector": "none"}) == (400, "BAD_REQUEST")


WRONG: list[dict[str, Any]] = [
    {"type": "none"}, {"name": "a b"}, {"url": 3}, {"ssl": {"enable": True, "verify": 1}}, {"unknown": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_one_is_refused(rest: Rest, change: dict[str, Any]) -> None:
    assert rest.refused("POST", "/connectors", {**CONNECTOR, "url": "http://a/", **change}) == (400, "BAD_REQUEST")
    assert rest.good("GET", "/connectors") == []


def test_a_viewer_changes_nothing(made: Rest, viewer: Rest) -> None:
    for method, path, body in (
        ("POST", "/connectors", CONNECTOR), ("PUT", "/actions/http:out", ACTION), ("DELETE", "/actions/http:out", None),
        ("POST", "/connectors_probe", CONNECTOR), ("PUT", "/actions/http:out/cursor", {"at": "earliest"}),
        ("POST", "/actions/http:out/stop", None),
    ):  # fmt: skip
        assert viewer.refused(method, path, body)[0] == 403
