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
