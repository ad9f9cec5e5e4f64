"""Definitions of connectors and actions, checked, and the origin of a data directory."""

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from shardbroker.flows.sinks.definitions import full_id, limits_of, read_definitions
from shardbroker.flows.sinks.origin import origin_of


def action(id: str, **settings: Any) -> dict[str, Any]:
    return {"id": id, "type": id.partition(":")[0], "name": id.partition(":")[2], "settings": {"connector": "c", **settings}}


def problems(*actions: dict[str, Any]) -> dict[str, str]:
    return read_definitions({"actions": list(actions)}).problems


def test_ids_have_the_name_of_the_type() -> None:
    assert [full_id(id) for id in ("webhook:x", "http:x", "file:a-b", "none")] == ["http:x", "http:x", "disk_log:a-b", "none"]


def test_loops_of_fallbacks_are_refused() -> None:
    a = action("http:a", fallback_actions=["disk_log:b"])
    b = action("disk_log:b", fallback_actions=["http:c"])
    c = action("http:c", fallback_actions=["http:d"])
    assert problems(a, b, c, action("http:d")) == {}
    back = action("http:d", fallback_actions=["file:b"])
    assert set(problems(a, b, c, back)) == {"disk_log:b", "http:c", "http:d"}
    assert problems(action("http:a", fallback_actions=["webhook:a"])) == {
        "http:a": "fallback_actions: must not lead back to the action"
    }


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (action("none:a"), "type: must be "),
        (action("http:a", no_such=1), "no_such: "),
        (action("http:a", resource_opts={"batch_size": 0}), "resource_opts.batch_size: "),
        ({"id": "http:a", "type": "http", "settings": None}, ": "),
    ],
)
def test_what_is_wrong_with_one_is_a_problem_of_it_alone(one: dict[str, Any], problem: str) -> None:
    found = read_definitions({"actions": [one, action("http:right"), {"no": "id"}, 5], "connectors": "none"})
    assert list(found.actions) == ["http:right"] and list(found.problems) == [one["id"]]
    assert found.problems[one["id"]].startswith(problem) or problem == ": "


def test_what_is_disabled_is_left_out() -> None:
    connector = {"id": "http:c", "type": "http", "name": "c", "settings": {"url": "http://x", "enable": False}}
    found = read_definitions({"actions": [action("http:a", enable=False)], "connectors": [connector]})
    assert (found.actions, found.connectors, found.problems, found.disabled) == ({}, {}, {}, {"http:c"})


def test_limits_are_those_of_the_options() -> None:
    (found,) = read_definitions({"actions": [action("http:a", resource_opts={"batch_time": "50ms"})]}).actions.values()
    limits = limits_of(found.settings.resource_opts, by_journal=True)
    assert (limits.batch_time_s, limits.lanes, limits.by_journal) == (0.05, 4, True)


def test_the_origin_of_a_directory_stays_and_differs(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
    with get_context("fork").Pool(4) as pool:
        found = pool.map(origin_of, [places[0]] * 20)
    assert len(set(found)) == 1 and len(found[0]) == 32
    assert origin_of(places[1]) != found[0]
    assert [one.name for one in places[0].iterdir()] == ["origin"]
    (places[0] / "origin").write_text("")
    with pytest.raises(ValueError, match="hexadecimal digits"):
        origin_of(places[0])
