"""Traces, slow subscriptions, metrics of topics, alarms, listeners and journals over HTTP, in EMQX's shapes."""

import io
import json
import time
import zipfile
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.api.rest import ApiBroker, Rest, asked
from tests.harness import Client, Publish, client_id_on, free_port, until

pytestmark = pytest.mark.own_broker


def download(served: ApiBroker, rest: Rest, path: str) -> tuple[str, bytes]:
    """Name and body of an answer that is no text."""
    asked.add(("GET", f"/api/v5{path.partition('?')[0]}"))
    request = Request(f"http://127.0.0.1:{served.api_port}/api/v5{path}", headers={"Authorization": rest.authorization})
    with urlopen(request) as answer:
        return str(answer.headers["Content-Disposition"]), answer.read()


def test_a_trace_is_started_read_downloaded_stopped_and_deleted(served: ApiBroker, rest: Rest) -> None:
    name = client_id_on(1, 3, "rest-traced")
    end = "2099-01-01T00:00:00Z"
    made = rest.good("POST", "/trace", {"name": "t1", "type": "clientid", "clientid": name, "end_at": end, "formatter": "json"})
    assert (made["clientid"], made["status"], made["end_at"]) == (name, "running", "2099-01-01T00:00:00.000Z")
    assert made["payload_encode"] == "text" and list(made["log_size"].values()) == [0]
    rest.good("GET", "/journal")  # asks each worker, behind what it was told
    with Client(served.address, 5, name) as client:
        client.publish("rest/traced", b"hello", qos=1)
    text = until(lambda: "disconnected" in (text := rest.good("GET", "/trace/t1/log", bytes=100_000)["items"]) and text)
    rows = [json.loads(line) for line in text.splitlines()]
    assert any(row["event"] == "received" and row.get("payload") == "hello" for row in rows)
    first = rest.good("GET", "/trace/t1/log", bytes=10)
    assert first["meta"] == {"position": 10, "bytes": 10}
    rest_of = rest.good("GET", "/trace/t1/log", bytes=100_000, position=10)
    assert first["items"] + rest_of["items"] == text
    assert rest.good("PUT", "/trace/t1/stop") == {"name": "t1", "enable": False}
    read = {"bytes": 100_000}
    whole = until(lambda: (found := rest.good("GET", "/trace/t1/log", **read))["meta"].get("hint") and found)["items"]
    (detail,) = rest.good("GET", "/trace/t1/log_detail")
    assert detail["size"] == len(whole.encode()) and detail["mtime"] > 0
    disposition, body = download(served, rest, "/trace/t1/download")
    assert 'filename="t1.zip"' in disposition
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        (inside,) = archive.namelist()
        assert inside == f"{detail['node']}/t1.log" and archive.read(inside).decode() == whole
    assert download(served, rest, "/trace/t1/download?format=text")[1].decode() == whole
    (row,) = rest.good("GET", "/trace")
    assert (row["name"], row["status"], row["stopped_by"]) == ("t1", "stopped", "somebody")
    rest.good("DELETE", "/trace/t1")
    rest.good("POST", "/trace", {"name": "t2", "type": "topic", "topic": "a/#"})
    rest.good("DELETE", "/trace")
    assert rest.good("GET", "/trace") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "code"),
    [
        ("POST", "/trace", {"name": "x", "type": "clientid"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", {"name": "x", "type": "clientid", "topic": "a"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", {"name": "x", "type": "topic", "topic": "a/#/b"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", {"name": "x y", "type": "clientid", "clientid": "a"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", {"name": "x", "type": "ip_address", "ip_address": "300.1.1.1"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", {"name": "x", "type": "clientid", "clientid": "a", "end_at": "yesterday"}, {}, "BAD_REQUEST"),
        ("POST", "/trace", b"{", {}, "BAD_REQUEST"),
        ("GET", "/trace/nowhere/log", None, {}, "NOT_FOUND"),
        ("GET", "/trace/nowhere/log_detail", None, {}, "NOT_FOUND"),
        ("GET", "/trace/nowhere/download", None, {}, "NOT_FOUND"),
        ("GET", "/trace/nowhere/log", None, {"bytes": 1 << 30}, "BAD_REQUEST"),
        ("GET", "/trace/nowhere/log", None, {"node": "somewhere@else"}, "NOT_FOUND"),
        ("GET", "/trace/..%2F..%2Fetc/log", None, {}, "BAD_REQUEST"),
        ("PUT", "/trace/nowhere/stop", None, {}, "NOT_FOUND"),
        ("DELETE", "/trace/nowhere", None, {}, "NOT_FOUND"),
        ("PUT", "/slow_subscriptions/settings", {"threshold": "soon"}, {}, "BAD_REQUEST"),
        ("PUT", "/slow_subscriptions/settings", {"top_k_num": 1001}, {}, "BAD_REQUEST"),
        ("POST", "/mqtt/topic_metrics", {"topic": "a/#/b"}, {}, "BAD_REQUEST"),
        ("POST", "/mqtt/topic_metrics", {}, {}, "BAD_REQUEST"),
        ("PUT", "/mqtt/topic_metrics", {"action": "reset", "topic": "not/there"}, {}, "NOT_FOUND"),
        ("PUT", "/mqtt/topic_metrics", {"action": "set"}, {}, "BAD_REQUEST"),
        ("GET", "/mqtt/topic_metrics/not%2Fthere", None, {}, "NOT_FOUND"),
        ("DELETE", "/mqtt/topic_metrics/not%2Fthere", None, {}, "NOT_FOUND"),
        ("GET", "/clients_loudest", None, {"limit": 101}, "BAD_REQUEST"),
        ("GET", "/alarms", None, {"limit": 10_001}, "BAD_REQUEST"),
        ("GET", "/alarms", None, {"activated": "perhaps"}, "BAD_REQUEST"),
        ("POST", "/listeners/tcp:nowhere/stop", None, {}, "NOT_FOUND"),
        ("POST", "/listeners/tcp:default/shake", None, {}, "BAD_REQUEST"),
        ("GET", "/journal/segments", None, {"cursor": "rubbish"}, "BAD_REQUEST"),
    ],
)
def test_bad_input_is_refused_with_a_code_and_changes_nothing(
    rest: Rest, viewer: Rest, method: str, path: str, body: Any, query: dict[str, Any], code: str
) -> None:
    def state() -> Any:
        return [rest.good("GET", one) for one in ("/trace", "/configs", "/mqtt/topic_metrics", "/listeners")]

    before = state()
    assert rest.refused(method, path, body, **query)[1] == code
    if method != "GET":
        assert viewer.refused(method, path, body, **query) == (403, "FORBIDDEN")
    assert Rest(rest.port, "Bearer over").refused(method, path, body, **query) == (401, "BAD_TOKEN")
    assert state() == before


def test_slow_subscriptions_are_measured_listed_and_forgotten(served: ApiBroker, rest: Rest) -> None:
    settings = rest.good("PUT", "/slow_subscriptions/settings", {"enable": True, "threshold": "1ms", "stats_type": "response"})
    assert settings["threshold"] == "1ms" and rest.good("GET", "/slow_subscriptions/settings")["enable"] is True
    with Client(served.address, 5, "slow-rest", auto_ack=False) as client:
        client.subscribe("slow/rest", 1)
        client.publish("slow/rest", b"", qos=1)
        message = client.expect(Publish)
        time.sleep(0.1)
        client.ack(message)
        (row,) = until(lambda: rest.good("GET", "/slow_subscriptions"))
    assert (row["clientid"], row["topic"]) == ("slow-rest", "slow/rest")
    assert row["timespan"] >= 100 and row["last_update_time"] > 0 and row["node"]
    rest.good("DELETE", "/slow_subscriptions")
    assert rest.good("GET", "/slow_subscriptions") == []
    for key in ("enable", "threshold", "stats_type"):
        rest.good("POST", f"/configs_reset/slow_subs.{key}")


def test_a_topic_is_counted_reset_and_forgotten(served: ApiBroker, rest: Rest) -> None:
    made = rest.good("POST", "/mqtt/topic_metrics", {"topic": "counted/a"})
    assert made["topic"] == "counted/a" and made["metrics"]["messages.in.count"] == 0 and made["reset_time"] is None
    with Client(served.address, 5, "counted-rest") as client:
        rest.good("GET", "/journal")
        client.publish("counted/a", b"", qos=1)
        row = rest.good("GET", "/mqtt/topic_metrics/counted%2Fa")
        assert (row["metrics"]["messages.in.count"], row["metrics"]["messages.dropped.count"]) == (1, 1)
    rest.good("PUT", "/mqtt/topic_metrics", {"action": "reset"})
    (row,) = rest.good("GET", "/mqtt/topic_metrics")
    assert row["metrics"]["messages.in.count"] == 0 and row["reset_time"]
    rest.good("DELETE", "/mqtt/topic_metrics/counted%2Fa")
    assert rest.good("GET", "/mqtt/topic_metrics") == []
    rest.good("POST", "/configs_reset/topic_metrics.topics")


def test_loud_clients_and_alarms_are_listed(served: ApiBroker, rest: Rest) -> None:
    with Client(served.address, 5, "loud-rest") as client:

        def heard() -> bool:
            for _ in range(20):
                client.publish("loud/rest", b"", qos=1)
            return "loud-rest" in [row["clientid"] for row in rest.good("GET", "/clients_loudest", limit=5)["data"]]

        until(heard, 20)
    assert rest.good("GET", "/alarms")["meta"]["hasnext"] is False
    assert rest.good("GET", "/alarms", activated="false")["data"] == []
    rest.good("DELETE", "/alarms")


def test_a_listener_is_stopped_and_started_again(served: ApiBroker, rest: Rest) -> None:
    port = free_port()
    rest.good("POST", "/listeners", {"id": "tcp:steered", "bind": f"127.0.0.1:{port}"})
    with Client(("127.0.0.1", port), 5, "came-before") as client:
        stopped = rest.good("POST", "/listeners/tcp:steered/stop")
        assert (stopped["running"], stopped["enable"], stopped["bind"]) == (False, False, f"127.0.0.1:{port}")
        client.ping()
        with pytest.raises(ConnectionRefusedError):
            Client(("127.0.0.1", port), 5, "comes-too-late")
        assert rest.good("PUT", "/listeners/tcp:steered", {"max_connections": 7})["running"] is False
        started = rest.good("POST", "/listeners/tcp:steered/start")
        assert (started["running"], started["max_connections"]) == (True, 7)
        with Client(("127.0.0.1", port), 5, "comes-again"):
            pass
        assert rest.good("POST", "/listeners/tcp:steered/restart")["running"] is True
        client.ping()
    rest.good("POST", "/listeners/tcp:steered/stop")
    rest.good("DELETE", "/listeners/tcp:steered")
    assert [row["id"] for row in rest.good("GET", "/listeners")] == ["tcp:default"]


def test_all_retained_messages_go_and_segments_are_listed(served: ApiBroker, rest: Rest) -> None:
    rest.good("POST", "/publish", {"topic": "all/retained", "payload": "x", "retain": True})
    rest.good("DELETE", "/mqtt/retainer/messages")
    assert rest.good("GET", "/mqtt/retainer/messages")["data"] == []
    with Client(served.address, 5, "in-the-journal", clean=False, properties={"session_expiry_interval": 60}):
        rest.good("POST", "/journal/seal")
    page = rest.good("GET", "/journal/segments", limit=1)
    assert page["data"][0]["segment"].endswith(".sbj") and page["data"][0]["begins_at"].endswith("Z")
    assert rest.good("GET", "/journal/exports") == {"data": []}
