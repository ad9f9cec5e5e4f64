"""Rules over REST that are refused, or have no id; test_routes.py makes one from nothing."""

from typing import Any

import pytest

from tests.api.rest import RULE, Rest


def test_an_id_is_made(rest: Rest) -> None:
    made = rest.good("POST", "/rules", {"sql": 'SELECT * FROM "rest/in"'})
    assert made["id"].startswith("rule_")
    rest.good("DELETE", f"/rules/{made['id']}")


@pytest.mark.parametrize("change", [{"sql": "no"}, {"id": "a b"}, {"actions": [{"function": "none"}]}, {"unknown": 1}])
def test_a_wrong_rule_is_refused(rest: Rest, change: dict[str, Any]) -> None:
    assert rest.refused("POST", "/rules", {**RULE, **change}) == (400, "BAD_REQUEST")
    assert rest.good("GET", "/rules")["data"] == []


def test_a_viewer_makes_no_rule(viewer: Rest) -> None:
    assert viewer.refused("POST", "/rules", RULE)[0] == 403


def test_a_rule_is_tried(rest: Rest) -> None:
    tried = {"sql": 'SELECT payload.t AS t, clientid FROM "a/#"', "context": {"topic": "a/b", "payload": '{"t": 7}'}}
    assert rest.good("POST", "/rule_test", tried) == {"t": 7, "clientid": "c_emqx"}
    tried["context"] = {"event_type": "client_connected", "clientid": "mine"}
    tried["sql"] = 'SELECT event, clientid FROM "$events/client_connected"'
    assert rest.good("POST", "/rule_test", tried) == {"event": "client.connected", "clientid": "mine"}


@pytest.mark.parametrize(
    ("sql", "refusal"),
    [
        ('SELECT * FROM "b"', (412, "NOT_MATCH")),
        ('SELECT * FROM "a" WHERE false', (412, "NOT_MATCH")),
        ("SELECT", (400, "BAD_REQUEST")),
        ('SELECT 1 + x FROM "a"', (400, "BAD_REQUEST")),
    ],
)
def test_a_rule_that_gives_nothing_is_refused(rest: Rest, sql: str, refusal: tuple[int, str]) -> None:
    assert rest.refused("POST", "/rule_test", {"sql": sql, "context": {"topic": "a"}}) == refusal


def test_events_are_listed(rest: Rest) -> None:
    events = rest.good("GET", "/rule_events")
    connected = next(one for one in events if one["event"] == "$events/client/connected")
    assert set(connected["columns"]) == set(connected["test_columns"]) and "keepalive" in connected["columns"]
    assert connected["title"] == {"en": "client connected"} and connected["sql_example"].endswith('"$events/client/connected"')


def test_metadata_are_kept(rest: Rest) -> None:
    metadata = {"owner": "ann", "nested": {"numbers": [1, 2.5, None]}}
    made = rest.good("POST", "/rules", {**RULE, "id": "with_metadata", "metadata": metadata})
    assert made["metadata"] == metadata
    assert rest.good("GET", "/rules/with_metadata")["metadata"] == metadata
    assert rest.good("GET", "/rules")["data"][0]["metadata"] == metadata
    changed = rest.good("PUT", "/rules/with_metadata", {"sql": RULE["sql"], "metadata": {"a": 1}})
    assert changed["metadata"] == {"a": 1}
    rest.good("DELETE", "/rules/with_metadata")


@pytest.mark.parametrize("metadata", [[], "text", {"a": "x" * 16_384}])
def test_wrong_metadata_are_refused(rest: Rest, metadata: Any) -> None:
    assert rest.refused("POST", "/rules", {**RULE, "metadata": metadata}) == (400, "BAD_REQUEST")


def test_a_trace_of_a_rule(rest: Rest) -> None:
    made = rest.good("POST", "/trace", {"name": "of_rule", "type": "ruleid", "ruleid": "one"})
    assert (made["type"], made["ruleid"], made["status"]) == ("ruleid", "one", "running")
    rest.good("DELETE", "/trace/of_rule")
    assert rest.refused("POST", "/trace", {"name": "x", "type": "ruleid", "clientid": "one"}) == (400, "BAD_REQUEST")


def test_what_holds_for_all_rules(rest: Rest) -> None:
    before = rest.good("GET", "/rule_engine")
    assert before == {"ignore_sys_message": True, "jq_function_default_timeout": "1s", "jq_implementation_module": "jq_port"}
    changed = rest.good("PUT", "/rule_engine", {**before, "ignore_sys_message": False, "jq_function_default_timeout": 2500})
    assert (changed["ignore_sys_message"], changed["jq_function_default_timeout"]) == (False, "2500ms")
    assert rest.good("GET", "/rule_engine") == changed
    assert rest.good("PUT", "/rule_engine", before) == before


@pytest.mark.parametrize(
    "change",
    [{"jq_implementation_module": "jq_nif"}, {"jq_function_default_timeout": "11s"}, {"rules": {}}, {"ignore_sys_message": 7}],
)
def test_a_wrong_setting_of_all_rules_is_refused(rest: Rest, change: dict[str, Any]) -> None:
    assert rest.refused("PUT", "/rule_engine", change) == (400, "BAD_REQUEST")
