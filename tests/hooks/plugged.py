"""A broker that looks for plugins in a directory of the test's, and a plugin that writes down what it sees."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardbroker.control import Control
from tests.api.rest import ApiBroker
from tests.harness.waiting import until

WITNESS = '''
"""Writes every call of the points that its settings name as a line of JSON; returns what `returns` says, in Python."""

import json
from dataclasses import asdict, is_dataclass

from shardbroker.access.contract import IGNORE, allow, deny
from shardbroker.hooks import Refusal, Subscription, ok, stop


def plain(value):
    if is_dataclass(value):
        return asdict(value)
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def load(plugin):
    lines = open(f"{plugin.settings['file']}-{plugin.worker}", "a", buffering=1)

    def witness(point):
        answer = compile(plugin.settings.get("returns", "None"), point, "eval")

        def called(*arguments):
            line = {"worker": plugin.worker, "point": point, "arguments": [plain(one) for one in arguments]}
            lines.write(json.dumps(line, default=lambda one: one.decode("latin-1") if isinstance(one, bytes) else str(one)) + "\\n")
            return eval(answer, globals() | {"arguments": arguments, "last": arguments[-1]})

        return called

    for point in plugin.settings["points"].split():
        plugin.hook(point, witness(point), int(plugin.settings.get("priority", "500")), plugin.settings.get("on_error", "deny"))
    plugin.on_unload(lines.close)
'''


class Plugged(ApiBroker):
    """Three workers, REST, `plugins.dir`; `control` asks it."""

    def __init__(
        self, settings: dict[str, object] | None = None, data_dir: Path | None = None, plugins: Path | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="shardbroker-plugins-"))
        self.plugins = plugins or self._folder / "plugins"
        self.plugins.mkdir(exist_ok=True)
        self.notes = self._folder / "notes"
        super().__init__(3, {"plugins.dir": str(self.plugins), **(settings or {})}, data_dir)

    def __enter__(self) -> "Plugged":
        super().__enter__()
        self.control = Control(self.data_dir)
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.control.close()
            super().__exit__(*exc)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, name: str, source: str) -> None:
        (self.plugins / f"{name}.py").write_text(source)

    def load(self, name: str, **setting: str) -> dict[str, Any]:
        done: dict[str, Any] = self.control.call("plugins load", name=name, setting=setting)
        return done

    def unload(self, name: str) -> None:
        self.control.call("plugins unload", name=name)

    def unload_all(self) -> None:
        for row in self.control.call("plugins list")["data"]:
            if row["state"] != "not loaded":
                self.unload(row["name"])

    def witness(self, *points: str, name: str = "witness", **setting: str) -> None:
        """Loads the plugin that writes down what it sees; what it saw before is forgotten."""
        self.write(name, WITNESS)
        for file in self._folder.glob("notes-*"):
            file.write_text("")
        self.load(name, points=" ".join(points), file=str(self.notes), **setting)

    def seen(self, point: str) -> list[dict[str, Any]]:
        """What it has seen at one point, by worker and then in order."""
        lines = [line for file in sorted(self._folder.glob("notes-*")) for line in file.read_text().splitlines()]
        return [call for call in map(json.loads, lines) if call["point"] == point]

    def arguments(self, point: str, fits: Callable[[list[Any]], bool] = lambda arguments: True) -> list[Any]:
        """Those of the first call that fits, once there is one."""
        found: list[Any] = until(lambda: next((one["arguments"] for one in self.seen(point) if fits(one["arguments"])), None))
        return found

    def logged(self, pattern: str, behind: int = 0) -> str:
        """The first log line that holds this, behind so many others."""
        line: str = until(lambda: next((one for one in self.output[behind:] if re.search(pattern, one)), None))
        return line
