"""Plugins: found by entry point or in a directory, loaded and unloaded in a worker that goes on meanwhile.

A plugin is a module with a function `load`:

    def load(plugin):                                   # a Plugin
        plugin.hook("message.publish", mark)

It is an entry point of the group `shardbroker.plugins` that names such a module, or NAME.py or NAME/__init__.py in the directory
`plugins.dir`. Where both have one of a name, the directory's is taken.
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

__all__ = ["GROUP", "NAME", "Found", "Plugin", "PluginError", "Plugins", "installed", "own_settings"]

GROUP = "shardbroker.plugins"
"""Of entry points."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""Of a plugin."""
REASON_MAX = 500
"""Characters of an exception in an error."""


class PluginError(Exception):
    """A plugin that there is not, or that cannot be loaded. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin that could be loaded: one of `file` and `point`."""

    name: str
    source: str
    """Where it comes from, in words."""
    file: Path | None = None
    point: EntryPoint | None = None


def own_settings(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """What `plugins.settings` has for one plugin: the keys that begin with its name and a dot, without these."""
    return {key.removeprefix(name + "."): text for key, text in settings.items() if key.startswith(name + ".")}


def installed(directory: str) -> dict[str, Found]:
    """All plugins by name. `directory`: that of `plugins.dir`; empty: none. Raises PluginError if it cannot be read."""
    importlib.invalidate_caches()  # a package may have been installed since
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
    """One plugin in one worker, as its `load` gets it."""

    def __init__(self, name: str, settings: Mapping[str, str], worker: int, registry: Registry, tell: Callable[[str, str], None]):
        self.name = name
        self.settings: Mapping[str, str] = MappingProxyType(dict(settings))
        """Texts, as they stand in `plugins.settings` or were given to `plugins load`."""
        self.worker = worker
        """Number of the worker that this one is loaded in."""
        self.source = ""
        self.callbacks: list[Callback] = []
        self._registry, self._tell = registry, tell
        self._loaded = False
        self._on_unload: list[Callable[[], None]] = []

    def hook(self, point: str, function: Callable[..., Any], priority: int = PRIORITY, on_error: str = "deny") -> None:
        """From the end of `load` on `function` is called at this point, behind those of a higher priority. `on_error`: what follows
        if it fails at a point that decides: `deny`, or `ignore`: it is skipped, as at other points. Raises ValueError."""
        if point not in POINTS:
            raise ValueError(f"there is no hook point {point!r}; there are {', '.join(POINTS)}")
        if not callable(function):
            raise ValueError(f"{point}: {function!r} cannot be called")
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"{point}: priority {priority!r}; allowed is a number from 0 to {PRIORITY_MAX}")
        if on_error not in ON_ERROR:
            raise ValueError(f"{point}: on_error: must be {' or '.join(ON_ERROR)}, got {on_error!r}")
        if self._loaded:
            raise ValueError(f"{point}: callbacks are registered within load() alone")
        self.callbacks.append(Callback(self.name, point, function, priority, on_error))

    def on_unload(self, function: Callable[[], None]) -> None:
        """`function` is called when the plugin goes, after its callbacks were called for the last time."""
        self._on_unload.append(function)

    def log(self, level: str, text: str) -> None:
        """A line in the broker's log; level: debug, info, warning or error."""
        if level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"level {level!r}; allowed are debug, info, warning and error")
        self._tell(level, f"plugin {self.name}: {text}")

    def start(self) -> None:
        """Its callbacks are called from now on."""
        self._loaded = True
        self._registry.add(self.callbacks)

    def pause(self) -> None:
        """Its callbacks are not called until start()."""
        self._registry.remove(self.callbacks)

    def end(self) -> None:
        """Takes everything back, the newest first."""
        self.pause()
        for function in reversed(self._on_unload):
            try:
                function()
            except BaseException as error:
                self._tell("error", f"plugin {self.name}: a function of on_unload failed: {_described(error)}")


class Plugins:
    """Those of one worker."""

    def __init__(self, registry: Registry, worker: int, tell: Callable[[str, str], None]) -> None:
        self._registry, self._worker, self._tell = registry, worker, tell
        self._loaded: dict[str, Plugin] = {}
        self._replaced: dict[str, Plugin | None] = {}
        """What stood in the place of one that was loaded, until keep() or revert()."""
        self._problems: dict[str, str] = {}
        """Of plugins that should be here and are not."""

    def load(self, name: str, settings: Mapping[str, str], directory: str) -> list[str]:
        """Loads a plugin, in place of the one of this name that is there; the points that either of them uses. Raises PluginError:
        nothing has changed then."""
        found = installed(directory).get(name)
        if found is None:
            where = f"neither an entry point of {GROUP}, nor in plugins.dir ({directory or 'not set'})"
            raise PluginError(f"no plugin {name!r}: {where}")
        plugin = Plugin(name, settings, self._worker, self._registry, self._tell)
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
        """It was loaded everywhere: what it takes the place of can go."""
        self._problems.pop(name, None)
        old = self._replaced.pop(name, None)
        if old is not None:
            old.end()

    def revert(self, name: str, wanted: bool) -> None:
        """It could not be loaded everywhere: what it takes the place of is back. `wanted`: whether it was loaded before."""
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
        """The points that it used; None if it was not loaded."""
        self.keep(name)
        plugin = self._loaded.pop(name, None)
        if plugin is None:
            return None
        plugin.end()
        return sorted({one.point for one in plugin.callbacks})

    def start(self, wanted: Mapping[str, Mapping[str, str]], directory: str) -> None:
        """Loads what was loaded before the worker started; what cannot be loaded is told, and the worker goes on without."""
        for name, settings in wanted.items():
            try:
                self.load(name, settings, directory)
                self.keep(name)
            except PluginError as error:
                self._problems[name] = str(error)
                self._tell("error", str(error))

    def state(self) -> dict[str, Any]:
        """What is loaded and what is not, and what callbacks have cost."""
        return {"loaded": [*self._loaded], "problems": self._problems, "callbacks": self._registry.figures()}


def _import(found: Found) -> Any:
    """The module of a plugin; that of a directory is read anew each time, a package as Python keeps it."""
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
