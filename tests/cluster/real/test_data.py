"""An import at one node is in force at the others, also over what was deleted since the export; files are managed from any node."""

from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.cluster.real.nodes import Nodes, running
from tests.cluster.real.test_access import SOON_S, await_same, named
from tests.harness import until


def ask(nodes: Nodes, number: int, verb: str, at_node: str = "", **params: Any) -> Any:
    with Control(nodes.brokers[number].data_dir, at_node=at_node) as control:
        return control.call(verb, **params)


def retained(nodes: Nodes, number: int) -> list[str]:
    return sorted(row["topic"] for row in ask(nodes, number, "retained list")["data"])


def test_an_import_at_one_node_reaches_the_others() -> None:
    with running(2, workers=2) as nodes:
        nodes.await_links(1, n2="up")
        ask(nodes, 1, "users add", name="ada", password="secret")
        ask(nodes, 1, "banned add", kind="clientid", value="bad")
        ask(nodes, 1, "publish", topic="r/1", payload=b"first", retain=True)
        await_same(nodes, "users list", named("ada"))
        until(lambda: retained(nodes, 2) == ["r/1"], lambda: str(retained(nodes, 2)), SOON_S)
        made = ask(nodes, 1, "data export", nodes.name(2))
        name = made["filename"]
        assert ask(nodes, 1, "data list")["data"] == []
        assert [row["filename"] for row in ask(nodes, 1, "data list", nodes.name(2))["data"]] == [name]
        ask(nodes, 1, "users delete", name="ada")
        ask(nodes, 1, "banned delete", kind="clientid", value="bad")
        ask(nodes, 1, "retained delete", topic="r/1")
        await_same(nodes, "users list", [])
        await_same(nodes, "banned list", [])
        until(lambda: retained(nodes, 2) == [], lambda: str(retained(nodes, 2)), SOON_S)

        with pytest.raises(ControlError) as refused:
            ask(nodes, 1, "data import", filename=name)
        assert refused.value.code == "NOT_FOUND"
        done = ask(nodes, 1, "data import", nodes.name(2), filename=name)
        assert done["db_errors"] == done["config_errors"] == {} and done["parts"]["retained"]["imported"] == 1
        await_same(nodes, "users list", named("ada"))
        until(lambda: [row["value"] for row in ask(nodes, 1, "banned list")["data"]] == ["bad"], timeout_s=SOON_S)
        until(lambda: retained(nodes, 1) == ["r/1"], lambda: str(retained(nodes, 1)), SOON_S)
        with Control(nodes.brokers[1].data_dir, of_all_nodes=True) as control:
            rows = control.call("data list")["data"]
        assert [(row["node"], row["filename"]) for row in rows] == [(nodes.name(2), name)]
