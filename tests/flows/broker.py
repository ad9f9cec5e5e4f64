"""A broker with rules about `in/#`. The tests write their definitions and the route of FROM, as nothing else does so far."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shm.destinations import FEED_DESTINATION
from tests.harness import Broker, until
from tests.harness.routes import Routes

REPUBLISH = {"function": "republish", "args": {"topic": "out/${clientid}", "qos": 1}}


def rule(id: str, sql: str, *actions: object) -> dict[str, Any]:
    """The definition of a rule."""
    return {"id": id, "name": id, "sql": sql, "enable": True, "description": "", "actions": list(actions), "created_ms": 0}


class RulesBroker(Broker):
    """`define` puts rules in force. They must be there before the start too, or no process flows is started."""

    def __init__(self, workers: int, data_dir: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(workers, settings or {}, data_dir)
        self.generation = 0
        (data_dir / "flows.json").write_text(json.dumps({"generation": 0, "rules": [{"id": "any"}]}))

    def start(self) -> None:
        super().start()
        Routes(self).change(True, b"in/#", FEED_DESTINATION)

    @property
    def runtime_dir(self) -> Path:
        (found,) = [path for path in self.leftovers() if path.is_dir()]
        return found

    def define(self, *rules: dict[str, Any]) -> None:
        """Returns when all processes have loaded them."""
        self.generation += 1
        path = self.runtime_dir / "flows.json"
        path.with_suffix(".new").write_text(json.dumps({"generation": self.generation, "rules": rules}))
        path.with_suffix(".new").rename(path)
        until(lambda: self.figures().get("generation") == self.generation)

    def figures(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.runtime_dir / "flows-0.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def rule_figures(self, id: str, names: Iterable[str] = ("matched", "passed", "failed")) -> list[int]:
        figures = self.figures().get("rules", {}).get(id, {})
        return [figures.get(name, 0) for name in names]
