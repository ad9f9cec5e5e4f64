"""Plugins: found by entry point or in a directory, loaded into and unloaded from a running worker.

A plugin is a module with a function `load`:

    def load(plugin):                                   # a Plugin
        plugin.hook("message.publish", mark)

It is an entry point of the group `shardbroker.plugins` that names such a module, or NAME.py or NAME/__init__.py in the directory
`plugins.dir`. If both have a plugin of the same name, the one in the directory is used.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardbroker.hooks.points import POINTS
from shardbroker.hooks.registry import ON_ERROR, PRIORITY, PRIORITY_MAX, Callback, Registry
from shardbroker.logs.phrases import Line, log_line

__all__ = ["GROUP", "NAME", "Found", "Plugin", "PluginError", "Plugins", "installed", "own_settings"]

GROUP = "shardbroker.plugins"
"""Group of the entry points."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""Pattern of a plugin's name."""
REASON_MAX = 500
"""Limit of an exception's text in an error, characters."""


class PluginError(Exception):
    """A plugin that does not exist or cannot be loaded. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """An available plugin: either `file` or `point` is set."""

    name: str
    source: str
    """Description of its origin."""
    file: Path | None = None
    point: EntryPoint | None = None


def own_settings(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """Returns the `plugins.settings` of one plugin: the keys that begin with its name and a dot, without this prefix."""
    return {key.removeprefix(name + "."): text for key, text in settings.items() if key.startswith(name + ".")}


def installed(directory: str) -> dict[str, Found]:
    """Returns all plugins by name. `directory`: that of `plugins.dir`; empty: none. Raises PluginError if it cannot be read."""
    importlib.invalidate_caches()  # a package may have been installed in the meantime
    found = {}
    for point in entry_points(group=GROUP):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        found[point.name] = Found(point.name, f"package {package}", point=point)
    if directory:
        try:
            entries = sorted(Path(directory).iterdir())
        except OSError as error:
            raise PluginError(f"plugins.dir = {directory!r}: {error.strerror}") from None
        for entry in entries:
            file = entry / "__init__.py" if entry.is_dir() else entry
            name = entry.name if entry.is_dir() else entry.stem
            if file.suffix == ".py" and file.is_file() and NAME.fullmatch(name):
                found[name] = Found(name, str(entry), file=file)
    return dict(sorted(found.items()))


class Plugin:
    """One plugin in one worker, the argument of its `load`."""

    def __init__(
        self, name: str, settings: Mapping[str, str], worker: int, registry: Registry, report: Callable[[str, Line], None]
    ) -> None:
        self.name = name
        self.settings: Mapping[str, str] = MappingProxyType(dict(settings))
        """Texts, as in `plugins.settings` or as given to `plugins load`."""
        self.worker = worker
        """Number of the worker that the plugin is loaded in."""
        self.source = ""
        self.callbacks: list[Callback] = []
        self._registry, self._report = registry, report
        self._loaded = False
        self._on_unload: list[Callable[[], None]] = []

    def hook(self, point: str, function: Callable[..., Any], priority: int = PRIORITY, on_error: str = "deny") -> None:
        """Adds a callback to a point, which is called from the end of `load` on, after those of a higher priority.

        `on_error` is the effect of its failure at a point that decides: `deny`, or `ignore`: the callback is skipped, as at other
        points. Raises ValueError.
        """
        if point not in POINTS:
            raise ValueError(f"point: must be one of {', '.join(POINTS)}, got {point!r}")
        if not callable(function):
            raise ValueError(f"{point}: function: must be callable, got {function!r}")
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"{point}: priority: must be from 0 to {PRIORITY_MAX}, got {priority!r}")
        if on_error not in ON_ERROR:
            raise ValueError(f"{point}: on_error: must be {' or '.join(ON_ERROR)}, got {on_error!r}")
        if self._loaded:
            raise ValueError(f"{point}: callbacks must be registered within load()")
        self.callbacks.append(Callback(self.name, point, function, priority, on_error))

    def on_unload(self, function: Callable[[], None]) -> None:
        """Registers a function to call when the plugin is unloaded, after the last call of its callbacks."""
        self._on_unload.append(function)

    def log(self, level: str, text: str) -> None:
        """Writes a line to the broker's log; level: debug, info, warning or error."""
        if level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"level: must be debug, info, warning or error, got {level!r}")
        self._report(level, log_line("plugin message", plugin=self.name, text=text))

    def start(self) -> None:
        """Activates the callbacks."""
        self._loaded = True
        self._registry.add(self.callbacks)

    def pause(self) -> None:
        """Deactivates the callbacks until start()."""
        self._registry.remove(self.callbacks)

    def end(self) -> None:
        """Deactivates the callbacks and calls the functions of on_unload, newest first."""
        self.pause()
        for function in reversed(self._on_unload):
            try:
                function()
            except BaseException as error:
                self._report("error", log_line("plugin unload failed", plugin=self.name, reason=_described(error)))


class Plugins:
    """The plugins of one worker."""

    def __init__(self, registry: Registry, worker: int, report: Callable[[str, Line], None]) -> None:
        self._registry, self._worker, self._report = registry, worker, report
        self._loaded: dict[str, Plugin] = {}
        self._replaced: dict[str, Plugin | None] = {}
        """The plugin, or None, that a loaded one has replaced, until keep() or revert()."""
        self._problems: dict[str, str] = {}
        """Errors of plugins that should be loaded and are not, by name."""

    def load(self, name: str, settings: Mapping[str, str], directory: str) -> list[str]:
        """Loads a plugin, replacing one of the same name; returns the points that either of them uses.

        Raises PluginError; then nothing has changed.
        """
        found = installed(directory).get(name)
        if found is None:
            where = f"neither an entry point of {GROUP}, nor in plugins.dir ({directory or 'not set'})"
            raise PluginError(f"no plugin {name!r}: {where}")
        plugin = Plugin(name, settings, self._worker, self._registry, self._report)
        plugin.source = found.source
        try:
            module = _import(found)
            load = getattr(module, "load", None)
            if not callable(load):
                raise PluginError(f"plugin {name}: {found.source} has no function load")
            load(plugin)
        except PluginError:
            raise
        except BaseException as error:
            plugin.end()
            raise PluginError(f"plugin {name} cannot be loaded: {_described(error)}") from None
        self.keep(name)
        old = self._replaced[name] = self._loaded.get(name)
        if old is not None:
            old.pause()
        plugin.start()
        self._loaded[name] = plugin
        return sorted({one.point for one in plugin.callbacks + (old.callbacks if old is not None else [])})

    def keep(self, name: str) -> None:
        """Ends the replaced plugin, after all workers have loaded the new one."""
        self._problems.pop(name, None)
        old = self._replaced.pop(name, None)
        if old is not None:
            old.end()

    def revert(self, name: str, wanted: bool) -> None:
        """Restores the replaced plugin, after some worker failed to load the new one. `wanted`: it was loaded before."""
        if name not in self._replaced:
            if not wanted:
                self.unload(name)
            return
        old = self._replaced.pop(name)
        self._loaded.pop(name).end()
        if old is not None:
            self._loaded[name] = old
            old.start()

    def unload(self, name: str) -> list[str] | None:
        """Unloads a plugin; returns the points that it used, or None if it was not loaded."""
        self.keep(name)
        plugin = self._loaded.pop(name, None)
        if plugin is None:
            return None
        plugin.end()
        return sorted({one.point for one in plugin.callbacks})

    def start(self, wanted: Mapping[str, Mapping[str, str]], directory: str) -> None:
        """Loads the plugins that were loaded before the start of the worker. Failures are logged and skipped."""
        for name, settings in wanted.items():
            try:
                self.load(name, settings, directory)
                self.keep(name)
            except PluginError as error:
                self._problems[name] = str(error)
                self._report("error", log_line("plugin not loaded", plugin=name, reason=error))

    def state(self) -> dict[str, Any]:
        """Returns the loaded plugins, the problems, and the costs of callbacks."""
        return {"loaded": [*self._loaded], "problems": self._problems, "callbacks": self._registry.figures()}


def _import(found: Found) -> Any:
    """Imports the module of a plugin: one in the directory is read again each time, a package is cached by Python."""
    if found.point is not None:
        return found.point.load()
    assert found.file is not None
    name = f"shardbroker_plugin_{found.name.replace('-', '_')}"
    for known in [one for one in sys.modules if one == name or one.startswith(name + ".")]:
        del sys.modules[known]
    folders = [str(found.file.parent)] if found.file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, found.file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:REASON_MAX]}"
