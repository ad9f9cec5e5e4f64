"""Alarms about actions, from their states over time."""

import json

from shardbroker.management.action_alarms import CALM_MS, DOWN_MS, LATE_S, SHOWN, ActionAlarms, ActionState

Told = list[tuple[str, bool, str]]


def state(status: str = "connected", lag: float = 0.0, dropped: int = 0) -> ActionState:
    return ActionState(status, "no route" if status == "disconnected" else "", lag, dropped)


def told(alarms: ActionAlarms, at_ms: int, **actions: ActionState) -> Told:
    """Returns name, whether it is active, text."""
    found = []
    for alarm in alarms.look(actions, at_ms):
        fields = json.loads(alarm.payload)
        found.append((fields["name"], alarm.topic.endswith("/activate"), fields["message"]))
    return found


def test_an_action_is_down_after_a_while() -> None:
    alarms = ActionAlarms("n")
    assert told(alarms, 0, a=state("disconnected"), b=state("connecting")) == []
    assert told(alarms, DOWN_MS - 1, a=state("disconnected")) == []
    assert told(alarms, DOWN_MS, a=state("disconnected")) == [("action_down", True, "a: no route")]
    assert told(alarms, DOWN_MS + 1, a=state("disconnected")) == []
    assert told(alarms, DOWN_MS + 2, a=state()) == [("action_down", False, "all actions have their servers")]


def test_a_server_that_restarts_is_no_alarm() -> None:
    alarms = ActionAlarms("n")
    assert told(alarms, 0, a=state("disconnected")) == []
    assert told(alarms, DOWN_MS - 1, a=state()) == []
    assert told(alarms, DOWN_MS, a=state("disconnected")) == []


def test_an_action_that_is_removed_ends_its_alarm() -> None:
    alarms = ActionAlarms("n")
    told(alarms, 0, a=state("disconnected"))
    assert told(alarms, DOWN_MS, a=state("disconnected")) != []
    assert told(alarms, DOWN_MS + 1) == [("action_down", False, "all actions have their servers")]


def test_an_action_lags_until_it_has_caught_up_well() -> None:
    alarms = ActionAlarms("n")
    assert told(alarms, 0, a=state(lag=LATE_S - 1)) == []
    assert told(alarms, 1, a=state(lag=LATE_S)) == [("action_lagging", True, "a is 60 s behind")]
    assert told(alarms, 2, a=state(lag=LATE_S - 1)) == []
    assert told(alarms, 3, a=state(lag=1)) == [("action_lagging", False, "no action is behind")]


def test_dropped_rows_are_an_alarm_until_none_was_dropped_for_a_minute() -> None:
    alarms = ActionAlarms("n")
    assert told(alarms, 0, a=state(dropped=100)) == [], "an earlier manager has reported them"
    assert told(alarms, 0, a=state(dropped=0)) == [], "the process has started again"
    assert told(alarms, 0, a=state(dropped=2)) == [("action_dropped", True, "a has dropped 2 rows")]
    assert told(alarms, 1, a=state(dropped=5), b=state(dropped=1)) == [
        ("action_dropped", True, "a has dropped 5 rows; b has dropped 1 rows")
    ]
    assert told(alarms, 2, a=state(dropped=0), b=state(dropped=1)) == [], "the figures were reset"
    assert told(alarms, CALM_MS, a=state(), b=state(dropped=1)) == []
    ended = [("action_dropped", False, "no more rows are dropped; 6 were")]
    assert told(alarms, CALM_MS + 1, a=state(), b=state(dropped=1)) == ended
    assert told(alarms, 3 * CALM_MS, a=state(), b=state(dropped=1)) == []


def test_an_alarm_names_some_actions() -> None:
    alarms = ActionAlarms("n")
    told(alarms, 0)
    ((_, _, text),) = told(alarms, 0, **{f"a{number}": state(dropped=number + 1) for number in range(20)})
    assert text.startswith("a19 has dropped 20 rows") and text.count("dropped") == SHOWN
