"""A broker with rules and actions of its configuration, which a test may change while it runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardbroker.control import Control
from tests.flows.broker import RulesBroker
from tests.harness import until

__all__ = ["SinksBroker", "toml"]


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns tables such as {"actions.disk_log.x": {...}} as TOML; JSON's values are TOML's, but for tables."""
    lines: list[str] = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


class SinksBroker(RulesBroker):
    """sections: `connectors`, `actions` and `rules`."""

    def __init__(
        self, workers: int, data_dir: Path, sections: Mapping[str, Mapping[str, Any]], settings: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(workers, data_dir, settings)
        self.sections = {name: dict(values) for name, values in sections.items()}
        self._file = data_dir.with_name(data_dir.name + ".toml")
        self._arguments = (f"--config={self._file}",)

    def start(self) -> None:
        self._file.write_text(toml(self.sections))
        super().start()

    def change(self, **sections: Mapping[str, Any] | None) -> None:
        """Replaces or removes sections, with `__` in place of a dot, while the broker runs."""
        for name, values in sections.items():
            if values is None:
                del self.sections[name.replace("__", ".")]
            else:
                self.sections[name.replace("__", ".")] = dict(values)
        self._file.write_text(toml(self.sections))
        with Control(self.data_dir) as control:
            control.call("config reload")

    def _clean(self) -> None:
        super()._clean()
        self._file.unlink(missing_ok=True)

    def all_figures(self) -> list[dict[str, Any]]:
        """Those of each process."""
        found = []
        for path in sorted(self.runtime_dir.glob("flows-?.json")):
            found.append(json.loads(path.read_bytes()))
        return found

    def await_figures(self) -> None:
        """Returns once all figures are later than the call: a process writes its own once a second, and leaves them when killed."""
        changed: dict[Path, set[int]] = {}

        def is_later() -> bool:
            for path in self.runtime_dir.glob("flows-?.json"):
                changed.setdefault(path, set()).add(path.stat().st_mtime_ns)
            return bool(changed) and all(len(times) > 2 for times in changed.values())  # the second one may have been under way

        until(is_later, lambda: str(changed), 30)

    def is_stopped(self, id: str) -> bool:
        """Returns whether an action is stopped in each process."""
        return all(one.get("actions", {}).get(id, {}).get("status") == "stopped" for one in self.all_figures())

    def action(self, id: str) -> dict[str, Any]:
        """Figures of an action, numbers added up over processes."""
        total: dict[str, Any] = {}
        for figures in self.all_figures():
            for name, value in figures.get("actions", {}).get(id, {}).items():
                if isinstance(value, int | float):
                    total[name] = total.get(name, 0) + value
                else:
                    total[name] = {**total.get(name, {}), **value} if isinstance(value, dict) else value
        return total
