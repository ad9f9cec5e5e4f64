"""Definitions of rules, and a broker with rules."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardbroker.control import Control
from tests.harness import Broker

REPUBLISH = {"function": "republish", "args": {"topic": "out/${clientid}", "qos": 1}}


def rule(id: str, sql: str, *actions: object) -> dict[str, Any]:
    """The definition of a rule."""
    return {"id": id, "name": id, "sql": sql, "enable": True, "description": "", "actions": list(actions), "created_ms": 0}


class RulesBroker(Broker):
    """A broker whose rules are made with the verbs of `ctl`."""

    def __init__(self, workers: int, data_dir: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(workers, settings or {}, data_dir)

    @property
    def runtime_dir(self) -> Path:
        (found,) = [path for path in self.leftovers() if path.is_dir()]
        return found

    def define(self, *rules: dict[str, Any]) -> None:
        """Returns when they are in force."""
        with Control(self.data_dir) as control:
            for one in rules:
                control.call("rules create", id=one["id"], sql=one["sql"], actions=json.dumps(one["actions"]))

    def figures(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.runtime_dir / "flows-0.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def rule_figures(self, id: str, names: Iterable[str] = ("matched", "passed", "failed")) -> list[int]:
        figures = self.figures().get("rules", {}).get(id, {})
        return [figures.get(name, 0) for name in names]
