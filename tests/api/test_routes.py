"""Each route of the REST API against a running broker with three workers: what the clients saw is what it tells."""

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from shardbroker.api.reference import reference
from shardbroker.control import Control
from tests.api.rest import RULE, ApiBroker, Rest, asked, segment
from tests.harness import Client, Disconnect, Publish, client_id_on, free_port, until
from tests.servers.otlp import receiver

pytestmark = pytest.mark.own_broker


@pytest.fixture
def come(served: ApiBroker) -> Iterator[Callable[..., Client]]:
    """come(name, **arguments of Client): a client of the broker."""
    with ExitStack() as stack:
        yield lambda name, version=5, **options: stack.enter_context(Client(served.address, version, name, **options))


# --- node -------------------------------------------------------------------------------------------------------------------------


def test_anybody_may_ask_whether_it_runs(served: ApiBroker) -> None:
    stranger = Rest(served.api_port)
    assert "is started\nshardbroker is running" in stranger.good("GET", "/status")
    assert stranger.good("GET", "/status", format="json")["broker_status"] == "started"
    assert {"code": "TOKEN_TIME_OUT", "status": 401} in stranger.good("GET", "/error_codes")
    assert stranger.good("GET", "/api-docs/swagger.json")["openapi"].startswith("3.")


def test_the_node_tells_what_ctl_tells(served: ApiBroker, rest: Rest, come: Callable[..., Client]) -> None:
    come("node-1")
    (node,) = rest.good("GET", "/nodes")
    assert rest.good("GET", "/cluster/topology") == [{"core_node": node["node"], "replicant_nodes": []}]
    assert rest.good("GET", f"/nodes/{node['node']}")["node"] == node["node"]
    with Control(served.data_dir) as control:
        status = control.call("status")
        assert (node["version"], node["pid"], node["workers"]) == (status["version"], served.pid, 3)
        assert node["connections"] == status["connections"] >= 1


def test_counters_are_those_that_the_clients_saw(rest: Rest, come: Callable[..., Client]) -> None:
    subscriber, publisher = come(client_id_on(0, 3, "count-s")), come(client_id_on(1, 3, "count-p"))
    subscriber.subscribe("counted", 1)
    (before,) = rest.good("GET", "/metrics")
    for _ in range(10):
        publisher.publish("counted", b"x", qos=1)
        subscriber.expect(Publish)
    (after,) = rest.good("GET", "/metrics")
    assert after["messages.qos1.received"] - before["messages.qos1.received"] == 10
    assert after["messages.qos1.sent"] - before["messages.qos1.sent"] == 10
    assert (
        sum(rest.good("GET", "/metrics", worker=worker)[0]["messages.qos1.sent"] for worker in range(3))
        == after["messages.qos1.sent"]
    )
    name = after["node"]
    assert rest.good("GET", f"/nodes/{name}/metrics")["messages.qos1.sent"] == after["messages.qos1.sent"]
    (stats,) = rest.good("GET", "/stats")
    assert stats["connections.count"] >= 2 and rest.good("GET", f"/nodes/{name}/stats")["subscriptions.count"] >= 1
    assert "shardbroker_messages_received " in rest.good("GET", "/prometheus/stats")


def test_rates_move_under_load(rest: Rest, come: Callable[..., Client]) -> None:
    publisher = come("rates")

    def moved() -> bool:
        for _ in range(20):
            publisher.publish("rates", b"x", qos=1)
        return bool(rest.good("GET", "/monitor_current")["received_msg_rate"] > 0)

    until(moved)
    assert rest.good("GET", "/monitor_current")["connections"] >= 1


def test_samples_tell_of_the_last_hour(rest: Rest) -> None:
    rows = until(lambda: rest.good("GET", "/monitor"))
    assert {"time_stamp", "received", "sent", "dropped", "connections"} <= set(rows[0])
    assert len(rest.good("GET", "/monitor", latest=1)) <= len(rows)


def test_workers_and_journals_are_listed_and_journals_sealed(served: ApiBroker, rest: Rest) -> None:
    rows = {row["name"]: row for row in rest.good("GET", "/workers")["data"]}
    assert sorted(row["pid"] for name, row in rows.items() if name.startswith("worker-")) == served.child_pids("worker")
    assert [row["worker"] for row in rest.good("GET", "/journal")["data"]] == [0, 1, 2]
    assert [row["worker"] for row in rest.good("POST", "/journal/seal")["data"]] == [0, 1, 2]


def test_a_worker_is_restarted(served: ApiBroker, rest: Rest, come: Callable[..., Client]) -> None:
    client = come(client_id_on(2, 3, "restarted"))
    before = rest.good("GET", "/workers")["data"][2]
    assert rest.good("POST", "/workers/2/restart")["pid"] == before["pid"]
    assert client.expect(Disconnect).code == 0x8B
    until(lambda: (row := rest.good("GET", "/workers")["data"][2])["starts"] > before["starts"] and row["state"] == "ready")


# --- clients ----------------------------------------------------------------------------------------------------------------------


def names(answer: dict[str, Any]) -> list[str]:
    return [row["clientid"] for row in answer["data"]]


def test_clients_are_found_by_page_by_cursor_and_by_filter(rest: Rest, come: Callable[..., Client]) -> None:
    wanted = {f"list-{number}" for number in range(12)}
    for name in sorted(wanted):
        come(name, username="lister")
    until(lambda: set(names(rest.good("GET", "/clients", username="lister"))) == wanted)
    pages = [rest.good("GET", "/clients", username="lister", limit=5, page=page) for page in (1, 2, 3)]
    assert [len(page["data"]) for page in pages] == [5, 5, 2]
    assert [page["meta"]["hasnext"] for page in pages] == [True, True, False]
    assert {name for page in pages for name in names(page)} == wanted
    found: list[str] = []
    query: dict[str, Any] = {"like_clientid": "list-", "limit": 5}
    while True:
        page = rest.good("GET", "/clients_v2", **query)
        found += names(page)
        if not page["meta"]["hasnext"]:
            break
        query["cursor"] = page["meta"]["cursor"]
    assert sorted(found) == sorted(wanted)
    everybody = rest.good("GET", "/clients")
    assert everybody["meta"]["count"] == rest.good("GET", "/sessions_count") >= 12
    row = rest.good("GET", "/clients", clientid="list-3", proto_ver=5, gte_connected_at="2020-01-01T00:00:00Z")["data"][0]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z", row["connected_at"])
    assert rest.good("GET", "/clients", clientid="list-3", proto_ver=4)["data"] == []


def test_one_client_is_shown_and_kicked(rest: Rest, come: Callable[..., Client]) -> None:
    name = "a/b c?ä#1"
    client = come(name, clean=False, properties={"session_expiry_interval": 3600})
    client.subscribe("kick/+", 1)
    shown = rest.good("GET", f"/clients/{segment(name)}")
    assert (shown["clientid"], shown["connected"], shown["subscriptions_cnt"]) == (name, True, 1)
    assert rest.good("GET", f"/sessions/{segment(name)}")["durable"] is True
    rest.good("DELETE", f"/clients/{segment(name)}")
    assert client.expect(Disconnect).code == 0x98
    assert rest.refused("GET", f"/clients/{segment(name)}") == (404, "CLIENTID_NOT_FOUND")


def test_several_are_kicked_and_those_that_are_not_there_do_not_matter(rest: Rest, come: Callable[..., Client]) -> None:
    clients = [come(f"bulk-{number}") for number in range(5)]
    kicked = rest.good("POST", "/clients/kickout/bulk", [client.client_id for client in clients] + ["nobody-at-all"])
    assert sorted(kicked) == sorted(client.client_id for client in clients)
    for client in clients:
        assert client.expect(Disconnect).code == 0x98
    assert rest.good("POST", "/clients/kickout/bulk", ["nobody-at-all"]) == []


def test_an_administrator_subscribes_and_unsubscribes_a_client(rest: Rest, come: Callable[..., Client]) -> None:
    client = come("subscribed")
    path = f"/clients/{client.client_id}"
    assert rest.good("POST", f"{path}/subscribe", {"topic": "given/1", "qos": 1})["qos"] == 1
    assert len(rest.good("POST", f"{path}/subscribe/bulk", [{"topic": "given/2"}, {"topic": "given/+/x", "qos": 2}])) == 2
    rows = rest.good("GET", f"{path}/subscriptions")
    assert {(row["topic"], row["qos"]) for row in rows} == {("given/1", 1), ("given/2", 0), ("given/+/x", 2)}
    rest.good("POST", "/publish", {"topic": "given/1", "payload": "for you", "qos": 1})
    assert client.expect(Publish).payload == b"for you"
    until(lambda: rest.good("GET", "/subscriptions", match_topic="given/2")["data"])
    assert names(rest.good("GET", "/subscriptions", topic="given/2")) == ["subscribed"]
    assert rest.good("GET", f"/topics/{segment('given/+/x')}")["destinations"]
    assert "given/1" in [row["topic"] for row in rest.good("GET", "/topics", limit=1000)["data"]]
    assert rest.good("GET", "/routes", topic="given/1")["data"][0]["destination"].startswith("worker-")
    rest.good("POST", f"{path}/unsubscribe", {"topic": "given/1"})
    rest.good("POST", f"{path}/unsubscribe/bulk", [{"topic": "given/2"}, {"topic": "given/+/x"}])
    assert rest.good("GET", f"{path}/subscriptions") == []


# --- messages ---------------------------------------------------------------------------------------------------------------------


def test_a_published_message_arrives_with_its_properties(rest: Rest, come: Callable[..., Client]) -> None:
    clients = [come(client_id_on(worker, 3, "listen")) for worker in range(3)]
    for client in clients:
        client.subscribe("published", 2)
    properties = {"content_type": "text/plain", "user_properties": {"a": "b"}, "message_expiry_interval": 60}
    body = {"topic": "published", "payload": "aGVsbG8=", "payload_encoding": "base64", "qos": 1, "properties": properties}
    assert len(rest.good("POST", "/publish", body)["id"]) == 32
    for client in clients:
        message = client.expect(Publish)
        assert (message.payload, message.qos) == (b"hello", 1)
        assert message.properties is not None and message.properties["content_type"] == "text/plain"
    assert rest("POST", "/publish", {"topic": "published/nobody"})[0] == 202


def test_messages_in_bulk_are_told_of_one_by_one(rest: Rest, come: Callable[..., Client]) -> None:
    client = come("bulk-listen")
    client.subscribe("bulk/#", 1)
    status, answers = rest("POST", "/publish/bulk", [{"topic": f"bulk/{n}", "qos": 1} for n in range(3)])
    assert status == 200 and all(set(one) == {"id"} for one in answers)
    assert [client.expect(Publish).topic for _ in range(3)] == ["bulk/0", "bulk/1", "bulk/2"]
    status, answers = rest("POST", "/publish/bulk", [{"topic": "bulk/+"}, {"topic": "bulk/4"}, {"topic": "nobody/here"}])
    assert status == 202
    assert [one.get("code") or one.get("reason_code") for one in answers] == ["BAD_REQUEST", None, 16]
    assert client.expect(Publish).topic == "bulk/4"


def test_retained_messages_are_listed_shown_and_deleted(rest: Rest) -> None:
    for number in range(5):
        rest.good("POST", "/publish", {"topic": f"kept/{number}/ä", "payload": "kept", "retain": True, "qos": 1})
    page = rest.good("GET", "/mqtt/retainer/messages", topic="kept/+/+", limit=3)
    rest_of_it = rest.good("GET", "/mqtt/retainer/messages", topic="kept/+/+", limit=3, page=2)
    topics = [row["topic"] for row in page["data"] + rest_of_it["data"]]
    assert sorted(topics) == [f"kept/{number}/ä" for number in range(5)]
    path = f"/mqtt/retainer/message/{segment('kept/3/ä')}"
    assert rest.good("GET", path)["payload"] == "a2VwdA=="
    rest.good("DELETE", path)
    assert rest.refused("GET", path) == (404, "NOT_FOUND")


def test_the_retainer_is_configured_live(rest: Rest) -> None:
    assert rest.good("PUT", "/mqtt/retainer", {"max_payload_size": "2MB"})["max_payload_size"] == "2MB"
    assert rest.good("GET", "/mqtt/retainer")["max_payload_size"] == "2MB"
    rest.good("POST", "/configs_reset/retainer.max_payload_size")


def test_delayed_messages_are_listed_shown_and_deleted(rest: Rest, come: Callable[..., Client]) -> None:
    to = come("delayed-to")
    to.subscribe("delayed/soon", 1)
    for worker in range(3):
        come(client_id_on(worker, 3, "delayed")).publish(f"$delayed/{300 + worker}/delayed/{worker}", b"later", qos=1)
    pages = [rest.good("GET", "/mqtt/delayed/messages", limit=2, page=page) for page in (1, 2)]
    rows = pages[0]["data"] + pages[1]["data"]
    assert {row["topic"]: row["delayed_interval"] for row in rows} == {f"delayed/{worker}": 300 + worker for worker in range(3)}
    assert rest.good("GET", "/mqtt/delayed/messages", limit=2, cursor="")["meta"]["hasnext"]
    assert rows[0]["expected_at"] > rows[0]["publish_at"] and rows[0]["from_clientid"].startswith("delayed")
    for row in rows:
        path = f"/mqtt/delayed/messages/{row['node']}/{row['msgid']}"
        assert rest.good("GET", path)["payload"] == "bGF0ZXI="
        assert rest.refused("DELETE", f"/mqtt/delayed/messages/elsewhere/{row['msgid']}") == (404, "NOT_FOUND")
        rest.good("DELETE", path)
        assert rest.refused("GET", path) == rest.refused("DELETE", path) == (404, "NOT_FOUND")
    assert rest.refused("GET", f"/mqtt/delayed/messages/{rows[0]['node']}/12") == (400, "BAD_REQUEST")
    rest.good("POST", "/publish", {"topic": "$delayed/1/delayed/soon", "payload": "soon", "qos": 1})
    assert to.expect(Publish).payload == b"soon"
    assert rest.refused("POST", "/publish", {"topic": "$delayed/soon/x"}) == (400, "BAD_REQUEST")


def test_delayed_messages_are_configured_live(rest: Rest) -> None:
    assert rest.good("PUT", "/mqtt/delayed", {"max_delayed_messages": 7})["max_delayed_messages"] == 7
    assert rest.good("GET", "/mqtt/delayed") == {"enable": True, "max_delayed_messages": 7}
    rest.good("POST", "/configs_reset/delayed.max_delayed_messages")


# --- access -----------------------------------------------------------------------------------------------------------------------


def test_a_ban_sends_away_and_keeps_out(rest: Rest, come: Callable[..., Client]) -> None:
    client = come("villain")
    added = rest.good("POST", "/banned", {"as": "clientid", "who": "villain", "reason": "rude", "until": "2099-01-01T00:00:00Z"})
    assert (added["by"], added["reason"], added["until"][:10]) == ("admin", "rude", "2099-01-01")
    client.expect(Disconnect)
    assert [row["who"] for row in rest.good("GET", "/banned")["data"]] == ["villain"]
    rest.good("DELETE", "/banned/clientid/villain")
    assert rest.good("GET", "/banned")["data"] == []


@pytest.mark.parametrize("id", ["password_based:built_in_database", "scram:built_in_database"])
def test_users_of_the_built_in_database(rest: Rest, id: str) -> None:
    path = f"/authentication/{id}/users"
    assert isinstance(rest.good("GET", "/authentication"), list)
    assert rest("POST", path, {"user_id": "anna/x", "password": "first", "is_superuser": True})[0] == 201
    assert rest.refused("POST", path, {"user_id": "anna/x", "password": "again"}) == (409, "ALREADY_EXISTS")
    assert rest.good("GET", path, like_user_id="nna", is_superuser=True)["meta"]["count"] == 1
    assert rest.good("GET", f"{path}/{segment('anna/x')}") == {"user_id": "anna/x", "is_superuser": True}
    assert rest.good("PUT", f"{path}/{segment('anna/x')}", {"password": "second"})["is_superuser"] is False
    rest.good("DELETE", f"{path}/{segment('anna/x')}")
    assert rest.refused("GET", f"{path}/{segment('anna/x')}") == (404, "NOT_FOUND")


def test_rules_of_users_clients_and_all(rest: Rest) -> None:
    rules = [{"topic": "r/#", "permission": "deny", "action": "publish", "qos": [1, 2], "retain": True}]
    base = "/authorization/sources/built_in_database/rules"
    for of, field in (("users", "username"), ("clients", "clientid")):
        rest.good("POST", f"{base}/{of}", [{field: "ruled/x", "rules": rules}])
        (row,) = rest.good("GET", f"{base}/{of}")["data"]
        assert row[field] == "ruled/x" and row["rules"][0]["topic"] == "r/#"
        one = f"{base}/{of}/{segment('ruled/x')}"
        rest.good("PUT", one, {"rules": [{"topic": "s", "permission": "allow", "action": "all"}]})
        assert rest.good("GET", one)["rules"][0]["topic"] == "s"
        rest.good("DELETE", one)
        assert rest.refused("GET", one) == (404, "NOT_FOUND")
    rest.good("POST", f"{base}/all", {"rules": rules})
    assert rest.good("GET", f"{base}/all")["rules"][0]["topic"] == "r/#"
    rest.good("DELETE", f"{base}/all")
    assert rest.good("GET", f"{base}/all") == {"rules": []}
    assert rest.good("GET", "/authorization/sources") == {"sources": [{"type": "built_in_database", "enable": True}]}
    rest.good("POST", "/authorization/reload")


def test_rules_are_tried_out(rest: Rest, come: Callable[..., Client]) -> None:
    path = "/authorization/sources/built_in_database/rules/users/tried"
    rest.good("PUT", path, {"rules": [{"topic": "own/${clientid}/#", "permission": "deny", "action": "publish"}]})
    asked = {"action": "publish", "username": "tried", "clientid": "c7"}
    denied = rest.good("GET", "/authorization/test", topic="own/c7/x", **asked)
    assert denied == {"allowed": False, "decided_by": "builtin", "sources": [{"source": "builtin", "says": "deny"}]}
    allowed = rest.good("GET", "/authorization/test", topic="own/c8/x", **asked)
    assert (allowed["allowed"], allowed["decided_by"]) == (True, "acl.no_match")
    client = come("c7", username="tried")
    assert client.publish("own/c7/x", b"", qos=1).code == 0x87  # type: ignore[union-attr]
    rest.good("DELETE", path)


def test_settings_of_authorization_change_at_once(rest: Rest) -> None:
    assert rest.good("GET", "/authorization/settings")["no_match"] == "allow"
    answer = rest.good("PUT", "/authorization/settings", {"deny_action": "disconnect"})
    assert answer["changed"]["applied"] == ["acl.deny_action"] and answer["changed"]["needs_restart"] == []
    rest.good("POST", "/configs_reset/acl.deny_action")
    assert rest.good("PUT", "/authorization/settings", {"no_match": "deny"})["changed"]["shadowed_by"] == {"acl.no_match": "--set"}
    rest.good("POST", "/configs_reset/acl.no_match")


# --- configuration ----------------------------------------------------------------------------------------------------------------


def test_a_section_is_changed_live_and_as_a_whole_or_not_at_all(rest: Rest) -> None:
    before = rest.good("GET", "/configs/mqtt")
    changed = rest.good("PUT", "/configs/mqtt", {"max_inflight": 7, "mqueue_priorities": {"a/b": 9}, "retain_available": False})
    assert sorted(changed["changed"]["applied"]) == ["mqtt.max_inflight", "mqtt.mqueue_priorities", "mqtt.retain_available"]
    assert (changed["max_inflight"], changed["mqueue_priorities"]) == (7, {"a/b": 9})
    (row,) = rest.good("GET", "/configs", key="mqtt.max_inflight")["data"]
    assert row["value"] == "7" and "runtime.toml" in row["source"] and row["live"] is True
    assert rest.refused("PUT", "/configs/mqtt", {"max_inflight": 8, "max_qos_allowed": 3}) == (400, "BAD_REQUEST")
    assert rest.good("GET", "/configs/mqtt")["max_inflight"] == 7
    for key in ("max_inflight", "mqueue_priorities", "retain_available"):
        rest.good("POST", f"/configs_reset/mqtt.{key}")
    assert rest.good("GET", "/configs/mqtt") == before
    assert rest.good("POST", "/configs/reload") == {"applied": [], "needs_restart": []}


def test_the_log_level_changes_at_once(rest: Rest) -> None:
    assert rest.good("GET", "/log/level") == {"level": "info"}
    assert rest.good("PUT", "/log/level", {"level": "warning"}) == {"level": "warning"}
    rest.good("PUT", "/log/level", {"level": "info"})


def test_a_listener_comes_changes_and_goes(rest: Rest) -> None:
    port = free_port()
    added = rest.good("POST", "/listeners", {"id": "tcp:second", "bind": f"127.0.0.1:{port}", "max_connections": 5})
    assert (added["id"], added["max_connections"], added["status"]["running"]) == ("tcp:second", 5, True)
    with Client(("127.0.0.1", port), 5, "by-the-second"):
        assert rest.good("GET", "/listeners/tcp:second")["current_connections"] == 1
    assert rest.good("PUT", "/listeners/tcp:second", {"max_connections": 6})["max_connections"] == 6
    assert {row["id"] for row in rest.good("GET", "/listeners_status")} == {"tcp:default", "tcp:second"}
    rest.good("DELETE", "/listeners/tcp:second")
    assert [row["id"] for row in rest.good("GET", "/listeners")] == ["tcp:default"]


# --- accounts ---------------------------------------------------------------------------------------------------------------------


def test_an_account_comes_changes_and_goes(served: ApiBroker, rest: Rest) -> None:
    body = {"username": "carl", "password": "carls password", "role": "viewer", "description": "nights"}
    assert rest.good("POST", "/users", body)["role"] == "viewer"
    assert {"admin", "carl"} <= {row["username"] for row in rest.good("GET", "/users")}
    carl = Rest.logged_in(served, "carl", "carls password")
    assert carl.refused("POST", "/publish", {"topic": "x"}) == (403, "FORBIDDEN")
    assert rest.good("PUT", "/users/carl", {"role": "administrator"})["description"] == "nights"
    carl.good("POST", "/publish", {"topic": "x"})
    carl.good("POST", "/users/carl/change_pwd", {"old_pwd": "carls password", "new_pwd": "another password"})
    assert carl.refused("GET", "/clients") == (401, "BAD_TOKEN")
    carl = Rest.logged_in(served, "carl", "another password")
    carl.good("POST", "/logout")
    assert carl.refused("GET", "/clients") == (401, "BAD_TOKEN")
    carl = Rest.logged_in(served, "carl", "another password")
    rest.good("DELETE", "/users/carl")
    assert carl.refused("GET", "/clients") == (401, "BAD_TOKEN")


def test_a_key_comes_changes_and_goes(served: ApiBroker, rest: Rest) -> None:
    made = rest.good("POST", "/api_key", {"name": "robot", "role": "viewer", "desc": "arm 3"})
    robot = Rest.with_key(served, made["api_key"], made["api_secret"])
    assert robot.good("GET", "/clients")["meta"]["page"] == 1
    assert robot.refused("POST", "/publish", {"topic": "x"}) == (403, "FORBIDDEN")
    (row,) = rest.good("GET", "/api_key")
    assert (row["name"], row["desc"], row["expired_at"]) == ("robot", "arm 3", "infinity") and "api_secret" not in row
    assert rest.good("PUT", "/api_key/robot", {"enable": False})["enable"] is False
    assert robot.refused("GET", "/clients") == (401, "BAD_API_KEY_OR_SECRET")
    rest.good("PUT", "/api_key/robot", {"enable": True, "role": "administrator"})
    robot.good("POST", "/publish", {"topic": "x"})
    assert rest.good("PUT", "/api_key/robot", {"expired_at": "2020-01-01T00:00:00Z"})["expired"] is True
    assert robot.refused("GET", "/clients") == (401, "BAD_API_KEY_OR_SECRET")
    assert rest.good("GET", "/api_key/robot")["expired_at"] == "2020-01-01T00:00:00.000Z"
    rest.good("DELETE", "/api_key/robot")
    assert rest.refused("GET", "/api_key/robot") == (404, "NOT_FOUND")


def test_the_audit_log_tells_who_changed_what_and_no_secrets(served: ApiBroker, rest: Rest) -> None:
    rest.good("POST", "/users", {"username": "audited", "password": "not for the log", "role": "viewer"})
    rest.refused("DELETE", "/users/nobody")
    newest, before = rest.good("GET", "/audit", limit=2, by="rest:admin")["data"]
    assert (newest["operation_name"], newest["operation_result"], newest["args"]) == (
        "admins delete",
        "NOT_FOUND",
        {"name": "nobody"},
    )
    assert before["operation_name"] == "admins add" and before["args"]["name"] == "audited"
    assert "not for the log" not in str(rest.good("GET", "/audit", limit=1000)) + served.log
    second = rest.good("GET", "/audit", limit=1, page=2)["data"]
    assert second == [before]
    rest.good("DELETE", "/users/audited")


def test_plugins_and_hooks(rest: Rest, tmp_path: Path) -> None:
    """More about them: tests/hooks."""
    (tmp_path / "looks.py").write_text("def load(plugin): plugin.hook('client.connected', lambda client, connection: None)")
    rest.good("PUT", "/configs/plugins", {"dir": str(tmp_path)})
    assert [row["state"] for row in rest.good("GET", "/plugins")] == ["not loaded"]
    assert rest.good("PUT", "/plugins/looks/start") == {"name": "looks", "workers": 3, "points": ["client.connected"]}
    assert [row["point"] for row in rest.good("GET", "/hooks") if row["callback"]] == ["client.connected"]
    rest.good("PUT", "/plugins/looks/stop")
    rest.good("POST", "/configs_reset/plugins.dir")


def test_programs_behind_hooks(rest: Rest) -> None:
    """More about them: tests/hooks/test_exhook.py."""
    off = {"name": "off", "url": "http://127.0.0.1:1", "enable": False}
    rest.good("PUT", "/configs/exhook", {"servers": [off]})
    assert [row["name"] for row in rest.good("GET", "/exhooks")] == ["off"]
    assert rest.good("GET", "/exhooks/off")["status"] == "disabled"
    assert rest.good("GET", "/exhooks/off/hooks") == []
    rest.good("POST", "/configs_reset/exhook.servers")
    assert rest.refused("GET", "/exhooks/off") == (404, "NOT_FOUND")


def test_gateways(rest: Rest) -> None:
    """More about them: tests/gateways."""
    assert [(row["name"], row["status"]) for row in rest.good("GET", "/gateways")] == [
        ("coap", "unloaded"), ("exproto", "unloaded"), ("mqttsn", "unloaded"), ("stomp", "unloaded"),
    ]  # fmt: skip
    assert rest.good("GET", "/gateways/stomp")["listeners"][0]["id"] == "stomp:tcp:default"
    assert rest.good("GET", "/gateways/stomp/clients")["data"] == []
    rest.good("PUT", "/gateways/stomp/enable/false")
    assert rest.refused("GET", "/gateways/none") == (404, "NOT_FOUND")
    rest.good("POST", "/configs_reset/gateways.stomp.enable")


# --- all of them ------------------------------------------------------------------------------------------------------------------


def test_a_broker_alone_is_a_cluster_of_one(rest: Rest) -> None:
    node = rest.good("GET", "/nodes")[0]["node"]
    assert rest.good("GET", "/cluster") == {"name": "shardbroker", "nodes": [node], "self": node}
    assert rest.refused("DELETE", "/cluster/another/force_leave") == (409, "NOT_AVAILABLE")
    asked.add(("DELETE", "/api/v5/cluster/another/force_leave"))  # nodes are removed in tests/cluster/real/test_core.py


def test_an_evacuation_begins_is_shown_to_load_balancers_and_ends(served: ApiBroker, rest: Rest, viewer: Rest) -> None:
    node, balancer = rest.good("GET", "/nodes")[0]["node"], Rest(served.api_port)
    path = f"/load_rebalance/{node}/evacuation"
    assert rest.good("GET", "/load_rebalance/status") == {"status": "disabled"}
    assert balancer.good("GET", "/load_rebalance/availability_check") == {}
    assert viewer.refused("POST", f"{path}/start")[0] == 403
    assert rest.refused("POST", "/load_rebalance/another/evacuation/start") == (404, "NOT_FOUND")
    assert rest.refused("POST", f"{path}/start", {"conn_evict_rate": 0}) == (400, "BAD_REQUEST")
    assert rest.refused("POST", f"{path}/stop") == (400, "BAD_REQUEST")
    given = {"wait_health_check": 3600, "wait_takeover": "10s", "conn_evict_rate": 10, "sess_evict_rate": 20, "redirect_to": "a:1"}
    rest.good("POST", f"{path}/start", given)
    try:
        found = rest.good("GET", "/load_rebalance/status")
        assert (found["status"], found["process"], found["state"]) == ("enabled", "evacuation", "waiting_health_check")
        assert (found["connection_eviction_rate"], found["session_eviction_rate"], found["session_recipients"]) == (10, 20, [])
        assert set(found["stats"]) == {"initial_connected", "current_connected", "initial_sessions", "current_sessions"}
        (shown,) = rest.good("GET", "/load_rebalance/global_status")["evacuations"]
        assert (shown["node"], shown["state"]) == (node, "waiting_health_check")
        assert balancer.refused("GET", "/load_rebalance/availability_check") == (503, "NODE_EVACUATING")
        assert balancer.refused("GET", "/load_rebalance/status")[0] == 401
        assert "is started" in balancer.good("GET", "/status")
    finally:
        rest.good("POST", f"{path}/stop")
    assert balancer.good("GET", "/load_rebalance/availability_check") == {}
    assert rest.good("GET", "/load_rebalance/global_status") == {"evacuations": [], "purges": [], "rebalances": []}


def test_a_rebalance_needs_another_node(rest: Rest, viewer: Rest) -> None:
    path = f"/load_rebalance/{rest.good('GET', '/nodes')[0]['node']}"
    assert viewer.refused("POST", f"{path}/start")[0] == 403
    assert rest.refused("POST", f"{path}/start", {"rel_conn_threshold": 1}) == (400, "BAD_REQUEST")
    assert rest.refused("POST", f"{path}/start", {"abs_conn_threshold": 5, "wait_health_check": 60}) == (400, "BAD_REQUEST")
    assert rest.refused("POST", f"{path}/stop") == (400, "BAD_REQUEST")
    for verb in ("start", "stop"):
        asked.add(("POST", f"/api/v5{path}/{verb}"))  # it is carried out in tests/cluster/real/test_rebalance.py


def test_a_rule_from_nothing_to_nothing(served: ApiBroker, rest: Rest, viewer: Rest) -> None:
    made = rest.good("POST", "/rules", RULE)
    assert made["id"] == "hot" and made["from"] == ["rest/in"] and made["enable"] is True and made["created_at"].startswith("20")
    with Client(served.address, 5, "rest-rules") as client:
        client.subscribe("rest/out", 1)
        client.publish("rest/in", b'{"t": 11}', 1)
        client.expect(Publish, topic="rest/out", payload=b'{"t": 11}')
    assert [row["id"] for row in viewer.good("GET", "/rules", **{"from": "rest/in", "enable": "true"})["data"]] == ["hot"]
    assert viewer.good("GET", "/rules", like_id="cold")["data"] == []
    assert viewer.good("GET", "/rules/hot")["actions"] == RULE["actions"]
    metrics = viewer.good("GET", "/rules/hot/metrics")
    assert metrics["id"] == "hot" and set(metrics["metrics"]) >= {"matched", "passed", "failed", "actions.success"}
    rest.good("PUT", "/rules/hot/metrics/reset")
    context = {"topic": "rest/in", "payload": '{"t": 20}', "event_type": "message_publish"}
    tried = rest.good("POST", "/rules/hot/test", {"context": context})
    assert tried["result"] and tried["actions"]
    assert rest.refused("POST", "/rules/hot/test", {"context": {"topic": "other"}})[0] == 412
    assert viewer.good("GET", "/rule_events")[0]["event"] == "t/#"
    engine = rest.good("PUT", "/rule_engine", {"ignore_sys_message": True})
    assert engine["ignore_sys_message"] is True and viewer.good("GET", "/rule_engine") == engine
    assert rest.good("POST", "/rule_test", {"sql": 'SELECT qos FROM "t/#"', "context": {"topic": "t/a", "qos": 2}}) == {"qos": 2}
    assert rest.good("POST", "/rule_test/past", {"sql": 'SELECT qos FROM "never/sent"', "last": 10})["data"] == []
    changed = rest.good("PUT", "/rules/hot", {"sql": 'SELECT * FROM "rest/other"', "enable": False})
    assert (changed["from"], changed["enable"], changed["actions"], changed["status"]) == (["rest/other"], False, [], "disabled")
    rest.good("DELETE", "/rules/hot")
    assert rest.refused("GET", "/rules/hot")[0] == 404


def test_a_stream_from_nothing_to_nothing(served: ApiBroker, rest: Rest, viewer: Rest) -> None:
    path = "/message_streams/streams"
    given = {"name": "s.1", "topic_filter": "rest/stream/#", "is_lastvalue": True, "data_retention_period": 3_600_000}
    made = rest.good("POST", path, given)
    assert made["key_expression"] == "message.from" and made["limits"]["max_shard_message_bytes"] == "1GB"
    assert {name: made[name] for name in given} == given
    assert rest.refused("POST", path, given) == (409, "ALREADY_EXISTS")
    with Client(served.address, 5, "rest-stream") as client:
        for payload in (b"old", b"new"):
            client.publish("rest/stream/a", payload, 1)
        client.subscribe("$stream/s.1", 1, properties={"user_property": [("stream-offset", "earliest")]})
        client.expect(Publish, topic="rest/stream/a", payload=b"new")
        until(lambda: viewer.good("GET", f"{path}/s.1")["subscribers"] == 1)
    assert [row["name"] for row in viewer.good("GET", path, like_name="s.")["data"]] == ["s.1"]
    change = {"key_expression": "message.topic", "data_retention_period": "infinity", "enable": False}
    changed = rest.good("PUT", f"{path}/s.1", change)
    shown = ("topic_filter", "is_lastvalue", "key_expression", "data_retention_period", "enable", "oldest_at")
    assert [changed[name] for name in shown] == ["rest/stream/#", False, "message.topic", "infinity", False, None]
    for wrong in ({"key_expression": "jq(.)"}, {"data_retention_period": "soon"}, {"limits": {"max_shard_message_bytes": 1}}):
        assert rest.refused("PUT", f"{path}/s.1", wrong) == (400, "BAD_REQUEST")
    assert viewer.refused("DELETE", f"{path}/s.1")[0] == 403
    rest.good("DELETE", f"{path}/s.1")
    assert rest.refused("GET", f"{path}/s.1")[0] == rest.refused("DELETE", f"{path}/s.1")[0] == 404


def test_the_number_of_workers_changes_under_a_client() -> None:
    """The process of the API is replaced, too."""
    with ApiBroker(1) as broker, Client(broker.address, 5, "stays", timeout=60) as client:
        rest = Rest.logged_in(broker)
        assert rest.good("GET", "/workers/setting") == {"phase": "none"}
        for wrong in ({}, {"workers": 0}, {"workers": 1}, {"workers": 2, "weights": "1"}, {"workers": 2, "weights": "1" * 5000}):
            assert rest.refused("PUT", "/workers/setting", wrong) == (400, "BAD_REQUEST"), wrong
        begun = rest.good("PUT", "/workers/setting", {"workers": 2, "weights": "2,1"})
        assert (begun["phase"], begun["before"], begun["workers"], begun["weights"]) == ("moving", 1, 2, "2,1")

        def found() -> Any:
            with suppress(OSError, http.client.HTTPException, AssertionError):
                return Rest.logged_in(broker).good("GET", "/workers/setting")
            return None

        ended = until(lambda: (state := found()) and state["phase"] != "moving" and state, timeout_s=60)
        assert (ended["phase"], ended["problem"], ended["connections"]) == ("done", "", 1)
        client.ping()


def test_metrics_and_traces_by_opentelemetry_are_switched(served: ApiBroker, rest: Rest, viewer: Rest) -> None:
    port = free_port()
    with receiver(port) as collector:
        before = rest.good("GET", "/opentelemetry")
        assert before["metrics"] == {"enable": False, "interval": "10s"} and before["exporter"]["headers"] == {}
        metrics = {"enable": True, "interval": "1s"}
        changed = rest.good("PUT", "/opentelemetry", {
            **before, "exporter": {**before["exporter"], "endpoint": f"http://127.0.0.1:{port}"}, "metrics": metrics,
        })  # fmt: skip
        assert changed["changed"]["needs_restart"] == [] and changed["metrics"] == metrics
        assert viewer.good("GET", "/opentelemetry")["metrics"] == metrics
        until(lambda: collector.received, lambda: served.log, timeout_s=60)
        for wrong in (
            {"metrics": {"interval": "1ms"}}, {"exporter": {"endpoint": "grpc://127.0.0.1:4317"}}, {"exporter": {"port": 1}},
            {"exporter": {"headers": {"authorization": "Bearer x"}}}, {"exporter": {"headers": 7}}, {"logs": {"enable": True}},
            {"traces": {"filter": {"sample_ratio": 2}}}, {"traces": {"filter": {"trace_mode": "e2e"}}},
            {"traces": {"max_queue_size": 0}},
            {},
        ):  # fmt: skip
            assert rest.refused("PUT", "/opentelemetry", wrong) == (400, "BAD_REQUEST"), wrong
        assert viewer.refused("PUT", "/opentelemetry", {"metrics": {"enable": False}})[0] == 403
        assert rest.good("PUT", "/opentelemetry", {"metrics": {"enable": False}})["metrics"] == {"enable": False, "interval": "1s"}
        filter = {"trace_all": True, "sample_ratio": 1.0}
        traces = {**before["traces"], "enable": True, "scheduled_delay": "200ms", "filter": filter}
        assert before["traces"] == {
            "enable": False, "max_queue_size": 2048, "scheduled_delay": "5s", "max_spans_per_second": 1000,
            "filter": {"trace_all": False, "sample_ratio": 1.0},
        }  # fmt: skip
        changed = rest.good("PUT", "/opentelemetry", {"traces": traces})
        assert changed["changed"]["needs_restart"] == [] and changed["traces"] == traces
        with Client(served.address, 4) as client:
            client.publish("a", b"x", 1)
        assert until(lambda: collector.spans, lambda: served.log, timeout_s=60)[0].name == "process_message"
        keys = ("exporter.endpoint", "metrics.enable", "metrics.interval", "traces.enable", "traces.scheduled_delay",
                "traces.filter.trace_all")  # fmt: skip
        for key in keys:
            rest.good("POST", f"/configs_reset/opentelemetry.{key}")


def test_headers_of_metrics_are_masked_and_may_be_sent_back() -> None:
    port = free_port()
    broker = ApiBroker(1)
    broker.environment["SHARDBROKER__OPENTELEMETRY__EXPORTER__HEADERS"] = '{authorization = "Bearer hidden"}'
    with receiver(port) as collector, broker:
        rest = Rest.logged_in(broker)
        exporter = rest.good("GET", "/opentelemetry")["exporter"]
        assert exporter["headers"] == {"authorization": "******"}
        changed = rest.good("PUT", "/opentelemetry", {
            "exporter": {**exporter, "endpoint": f"http://127.0.0.1:{port}"}, "metrics": {"enable": True, "interval": "1s"},
        })  # fmt: skip
        assert changed["exporter"]["headers"] == {"authorization": "******"}
        until(lambda: collector.received, lambda: broker.log, timeout_s=60)
        assert collector.received[0].headers["authorization"] == "Bearer hidden"
        assert "hidden" not in broker.log


def test_every_route_was_asked(rest: Rest, request: pytest.FixtureRequest) -> None:
    """Runs last (see conftest.py), and only says something when all modules here have run: each asks some."""
    if request.config.option.keyword or any(".py" in argument for argument in request.config.args):
        pytest.skip("only some tests of the module run")
    left = []
    for path, methods in rest.good("GET", "/api-docs/swagger.json")["paths"].items():
        shape = re.compile(re.sub(r"\\{\w+\\}", "[^?]+", re.escape(path)))
        left += [f"{method.upper()} {path}" for method in methods if not any(
            method.upper() == used and shape.fullmatch(address) for used, address in asked)]  # fmt: skip
    assert not left


def test_the_page_of_routes_is_up_to_date() -> None:
    assert (Path(__file__).parents[2] / "docs" / "rest.md").read_text() == reference(), "make docs"
