"""Changes of the configuration at run time: one way for `ctl config`, the REST API and SIGHUP.

KEPT_FILE <-- set, reset                 sources of the start, read again (Loaded.again)
                                         |  keys that differ from those in force
                                         v
                    live keys -> in force in all processes that they reach (rollout.py)      others -> `needs_restart`
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from shardbroker.config import ConfigError, Loaded, Settings
from shardbroker.config.keys import KeyPath, dotted, is_secret, toml
from shardbroker.config.listeners import Listener
from shardbroker.config.live import is_live, reach_of, replaced
from shardbroker.config.show import leaves, sections
from shardbroker.config.sources import KEPT_FILE, parse_assignment, read_kept, without, write_kept
from shardbroker.control import ControlError
from shardbroker.management.rollout import Rollout
from shm.topology import Topology

__all__ = ["Configuration"]

FIXED = ("process.data_dir",)
"""Keys that locate KEPT_FILE and so cannot be in it."""
WHOLE = ("rules", "connectors", "actions", "sources", "streams", "gateways")
"""Sections that change as a whole: their keys are names."""


class Configuration:
    """The settings in force with their sources. One change runs at a time.

    check: called before a change with the new settings and with those whose faults do not count; raises ControlError for settings
    that cannot be used. prepare: called then with the new settings; likewise. on_change: called with the settings in force when
    live keys have changed.
    """

    def __init__(
        self,
        topology: Topology,
        rollout: Rollout,
        on_change: Callable[[Settings], None],
        check: Callable[[Loaded, Settings | None], Awaitable[None]],
        prepare: Callable[[Settings], None],
    ) -> None:
        self._rollout = rollout
        self._path = topology.data_dir / KEPT_FILE
        self._loaded: Loaded = topology.loaded or Loaded(topology.settings, {})
        self._on_change, self._check, self._prepare = on_change, check, prepare
        self._turn = asyncio.Lock()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._rollout.settings

    async def behind(self) -> list[str]:
        """Returns the titles of the processes that have not applied the settings in force; see Rollout.behind()."""
        return await self._rollout.behind()

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Returns the keys at or below `key`; without one, the keys that were set or wait for a restart. Raises ControlError."""
        wanted = self._flat(self._loaded.settings)
        rows = []
        for name, text in self._flat(self.settings).items():
            source = self._loaded.source(name)
            waits = wanted.get(name, text) != text
            if (name == key or name.startswith(f"{key}.")) if key else (source != "default" or waits):
                row = {"key": name, "value": text, "source": source, "live": is_live(name)}
                rows.append(row | {"after_restart": wanted[name]} if waits else row)
        if key and not rows:
            raise ControlError("NOT_FOUND", f"no key or section {key!r}")
        return rows

    async def set(self, key: str, text: str) -> dict[str, Any]:
        """Stores a value, and applies it if its key is live. Raises ControlError; nothing has changed then."""
        try:
            async with self._turn:
                path, value = self._parsed(key, text)
                return {"key": dotted(path), **await self._keep({**self._without(path), path: value}, path)}
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def set_many(self, assignments: Mapping[str, str]) -> dict[str, Any]:
        """Stores and applies several values together. Raises ControlError if one is invalid; nothing has changed then."""
        try:
            values = dict(self._parsed(key, text) for key, text in assignments.items())
            async with self._turn:
                loaded = await self._store({**self._without(*values), **values})
                result = self._apply(loaded)
            shadowed = {dotted(path): loaded.source(dotted(path)) for path in values}
            return result | {"shadowed_by": {key: by for key, by in shadowed.items() if not by.startswith("file ")}}
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    @staticmethod
    def _parsed(key: str, text: str) -> tuple[KeyPath, Any]:
        path, value = parse_assignment(key, text)
        if is_secret(path):
            raise ControlError("BAD_REQUEST", f"{key} is a secret; set it in the configuration file")
        if dotted(path) in FIXED:
            raise ControlError("BAD_REQUEST", f"{key} cannot be changed while the broker runs")
        return path, value

    def _without(self, *paths: KeyPath) -> dict[KeyPath, Any]:
        """Returns the kept values without those at these paths or below."""
        return {known: old for known, old in self._kept().items() if not any(known[: len(path)] == path for path in paths)}

    async def reset(self, key: str) -> dict[str, Any]:
        """Removes a value that was set, so that the sources below it apply again. Raises ControlError."""
        try:
            async with self._turn:
                kept = self._kept()
                path, left = without(kept, key)
                if len(left) == len(kept):
                    raise ControlError("NOT_FOUND", f"{key} has no value set while the broker runs")
                return {"key": dotted(path), **await self._keep(left, path)}
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def reload(self) -> dict[str, Any]:
        """Reads all sources again and applies what differs. Raises ControlError with all problems; nothing has changed then."""
        try:
            async with self._turn:
                loaded = self._loaded.again()
                await self._check(loaded, None)
                self._prepare(loaded.settings)
                return self._apply(loaded)
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def check_chain(self, listener: str, chain: Any) -> None:
        """Checks the chain of a listener. Raises ControlError."""
        try:
            one = Listener(auth_chain=chain, bind="127.0.0.1:0")
        except ValidationError:
            return  # the supervisor reports the error
        settings = replaced(self.settings, ["listeners"], {listener: one})
        before = replaced(self.settings, ["listeners"], {listener: Listener(bind="127.0.0.1:0")})
        await self._check(Loaded(settings, {}), before)

    def _kept(self) -> dict[KeyPath, Any]:
        try:
            return read_kept(self._path)
        except ConfigError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None

    async def _store(self, kept: Mapping[KeyPath, Any]) -> Loaded:
        loaded = self._loaded.again(kept=kept)
        await self._check(loaded, self._loaded.settings)
        self._prepare(loaded.settings)
        try:
            write_kept(self._path, kept)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{self._path}: {error.strerror}") from None
        return loaded

    async def _keep(self, kept: Mapping[KeyPath, Any], path: KeyPath) -> dict[str, Any]:
        loaded = await self._store(kept)
        name = dotted(path)
        source = loaded.source(name)
        result = self._apply(loaded)
        if path in kept and not source.startswith("file "):
            result["shadowed_by"] = source
        result["value"] = self._flat(loaded.settings).get(name)
        return result

    def _apply(self, loaded: Loaded) -> dict[str, Any]:
        before, after = _values(self.settings), _values(loaded.settings)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        live = [name for name in changed if is_live(name)]
        settings = self.settings
        for name in live:
            path = name.split(".")
            value: Any = loaded.settings
            for part in path:
                value = getattr(value, part)
            settings = replaced(settings, path, value)
        if live:
            self._rollout.publish(settings, frozenset().union(*map(reach_of, live)))
            self._on_change(settings)
        self._loaded = loaded
        return {"applied": live, "needs_restart": [name for name in changed if not is_live(name)]}

    @staticmethod
    def _flat(settings: Settings) -> dict[str, str]:
        """Returns every key with its value as TOML."""
        return {
            f"{section}.{name}": toml(field, getattr(model, name))
            for section, model in sections(settings)
            for name, field in leaves(model)
        }


def _values(settings: Settings) -> dict[str, Any]:
    """Returns every key with its value; secrets are not masked, so that a new one counts as a change. Rules, connectors,
    actions and sources are one value each."""
    keys = {
        f"{section}.{name}": getattr(model, name)
        for section, model in sections(settings)
        if section.partition(".")[0] not in WHOLE
        for name, _ in leaves(model)
    }
    return {**keys, **{name: getattr(settings, name) for name in WHOLE}}
