"""Changes of the configuration at run time: one way for `ctl config`, the REST API and SIGHUP.

KEPT_FILE <-- set, reset                 sources of the start, read again (Loaded.again)
core of the cluster --> apply_cluster    |
                                         |  keys that differ from those in force
                                         v
                    live keys -> in force in all processes that they reach (rollout.py)      others -> `needs_restart`
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from shardbroker.config import ConfigError, Loaded, Settings
from shardbroker.config.cluster_values import CLUSTER, ClusterValues, concerned
from shardbroker.config.keys import KeyPath, dotted, is_secret, toml, toml_value
from shardbroker.config.listeners import Listener
from shardbroker.config.live import is_live, reach_of, replaced
from shardbroker.config.show import leaves, sections
from shardbroker.config.sources import KEPT_FILE, parse_assignment, read_kept, without, write_kept
from shardbroker.control import ControlError
from shardbroker.management.preflight import Refused
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
        self._refused = dict(self._loaded.unusable)
        """Settings of all nodes that the checks of a start or of this process have refused, with the reasons."""
        self.changes = 0
        """Counts changes of the sources or of what is in force."""
        self.retries_cluster = False
        """Whether refused settings of all nodes are to be tried again."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._rollout.settings

    @property
    def cluster(self) -> ClusterValues:
        """The settings of all nodes, whether they are in force here or not."""
        return self._loaded.cluster

    @property
    def unusable(self) -> Mapping[str, str]:
        """Those of them that this node cannot apply, with the reasons."""
        return self._loaded.unusable

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
                if source == CLUSTER and (set_by := self.cluster.value(name)) is not None:
                    row |= {"by": set_by.by, "at": set_by.at}
                rows.append(row | {"after_restart": wanted[name]} if waits else row)
        if key and not rows:
            raise ControlError("NOT_FOUND", f"no key or section {key!r}")
        return rows

    async def set(self, key: str, text: str) -> dict[str, Any]:
        """Stores a value, and applies it if its key is live. Raises ControlError; nothing has changed then."""
        try:
            async with self._turn:
                path, value = self.parsed(key, text)
                return {"key": dotted(path), **await self._keep({**self._without(path), path: value}, path)}
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def set_many(self, assignments: Mapping[str, str]) -> dict[str, Any]:
        """Stores and applies several values together. Raises ControlError if one is invalid; nothing has changed then."""
        try:
            return await self.set_values(dict(self.parsed(key, text) for key, text in assignments.items()))
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def set_values(self, values: Mapping[KeyPath, Any]) -> dict[str, Any]:
        """Stores and applies several values together. Raises ControlError if one is invalid; nothing has changed then."""
        try:
            for path in values:
                self._check_settable(path)
            async with self._turn:
                loaded = await self._store({**self._without(*values), **values})
                result = self._apply(loaded)
            shadowed = {dotted(path): loaded.source(dotted(path)) for path in values}
            return result | {"shadowed_by": {key: by for key, by in shadowed.items() if not by.startswith("file ")}}
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    @staticmethod
    def path_of(key: str) -> KeyPath:
        """Returns the path of a dotted key."""
        return without({}, key)[0]

    @staticmethod
    def parsed(key: str, text: str) -> tuple[KeyPath, Any]:
        """Returns the path of a key that may be set at run time, and its value. Raises ControlError."""
        path, value = parse_assignment(key, text)
        Configuration._check_settable(path)
        return path, value

    @staticmethod
    def _check_settable(path: KeyPath) -> None:
        """Raises ControlError for a key that must not be set at run time."""
        if is_secret(path):
            raise ControlError("BAD_REQUEST", f"{dotted(path)} is a secret; set it in the configuration file")
        if dotted(path) in FIXED:
            raise ControlError("BAD_REQUEST", f"{dotted(path)} cannot be changed while the broker runs")

    def _without(self, *paths: KeyPath) -> dict[KeyPath, Any]:
        """Returns the kept values without those at these paths or below."""
        return {known: old for known, old in self.kept().items() if not any(known[: len(path)] == path for path in paths)}

    async def reset(self, key: str) -> dict[str, Any]:
        """Removes a value that was set, so that the sources below it apply again. Raises ControlError."""
        try:
            async with self._turn:
                kept = self.kept()
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
                loaded = self._again()
                await self._check(loaded, None)
                self._prepare(loaded.settings)
                self.retries_cluster = bool(self._refused)
                return self._apply(loaded)
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    # --- join and leave ---------------------------------------------------------------------------------------------------

    def read(self) -> Loaded:
        """Returns the settings as all sources have them now, in force or waiting for a restart. Raises ControlError."""
        try:
            return self._again()
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def adopt(
        self,
        values: Mapping[str, Any],
        replaceable: Mapping[str, str],
        confirm: Callable[[Loaded, dict[str, str]], Awaitable[None]],
    ) -> dict[str, Any]:
        """Stores values that this node has to have, unless one would hide, or be hidden by, another value that was set.

        replaceable: key -> TOML of values in KEPT_FILE that may be replaced. confirm: called with the settings and with what is
        to be stored, before it is; raises ControlError. Raises ControlError; nothing has changed then.
        """
        try:
            async with self._turn:
                kept = _others(self.kept(), replaceable)
                loaded = self._again(kept=kept)
                new, conflicts = dict[KeyPath, Any](), list[str]()
                for key, value in values.items():
                    now, source = _at(loaded.settings, key), loaded.source(key)
                    if _is_same(now, value):
                        continue
                    new[self.path_of(key)] = value
                    if source != "default":
                        conflicts.append(f"{key}: must be {toml_value(value)}, got {toml_value(now)} ({source}); change it there")
                if conflicts:
                    raise ControlError("BAD_REQUEST", "\n".join(conflicts))
                after = {**kept, **new}
                wanted = self._again(kept=after)
                await self._check(wanted, self._loaded.settings)
                self._prepare(wanted.settings)
                await confirm(wanted, {dotted(path): toml_value(value) for path, value in new.items()})
                self._write_kept(after)
                return self._apply(wanted)
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def disown(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Removes keys with these values, as TOML, from KEPT_FILE. They are of the next start. Raises ControlError."""
        try:
            async with self._turn:
                left = _others(self.kept(), values)
                wanted = self._again(kept=left)
                self._write_kept(left)
                return self._apply(wanted)
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    # --- settings of all nodes ------------------------------------------------------------------------------------------------

    async def check_cluster(self, before: ClusterValues, after: ClusterValues, trial: Mapping[KeyPath, Any]) -> None:
        """Checks a change of the settings of all nodes as this node can. trial: the new values, checked also where this node has
        others over them. Raises ControlError."""
        try:
            known = self._loaded.again(cluster=before)
            wanted = self._loaded.again(cluster=after)
            more = {key: reason for key, reason in wanted.unusable.items() if key not in known.unusable or dotted_in(key, trial)}
            if more:
                raise ControlError("BAD_REQUEST", "\n".join(more.values()))
            if trial:
                wanted = self._loaded.again(cluster=before, trial=trial)
            await self._check(wanted, known.settings)
        except ConfigError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    async def apply_cluster(self, values: ClusterValues) -> dict[str, Any]:
        """Applies the settings of all nodes but those that cannot be used here. Raises ControlError; nothing has changed then."""
        try:
            async with self._turn:
                self.retries_cluster = False
                loaded, self._refused = await self._usable(values)
                return self._apply(loaded)
        except ConfigError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None

    async def _usable(self, values: ClusterValues) -> tuple[Loaded, dict[str, str]]:
        """Returns the settings without what checks refuse, and that with the reasons. Raises ConfigError, ControlError."""
        refused: dict[str, str] = {}
        while True:
            loaded = self._loaded.again(cluster=values, refused=refused)
            in_force = [one for one in values.values if one.key not in loaded.unusable]
            try:
                await self._check(loaded, self._loaded.settings)
                self._prepare(loaded.settings)
                return loaded, refused
            except Refused as error:
                culprits = {one.key: text for key, text in error.found for one in concerned(in_force, key)}
                if not culprits:
                    raise
                refused |= culprits

    def applied_cluster(self) -> dict[str, Any]:
        """Returns the revision of the settings of all nodes, and which are not in force: `errors`, key -> reason; `restart`: keys
        that wait for one; `shadowed`, key -> source that hides it."""
        loaded, in_force, wanted = self._loaded, self._flat(self.settings), self._flat(self._loaded.settings)
        waiting = [name for name, text in wanted.items() if in_force.get(name, text) != text]
        usable = [one for one in loaded.cluster.values if one.key not in loaded.unusable]
        sources = {one.key: loaded.source(one.key) for one in usable}
        return {
            "revision": loaded.cluster.revision,
            "errors": dict(loaded.unusable),
            "restart": [one.key for one in usable if any(_is_part(name, one.key) for name in waiting)],
            "shadowed": {key: source for key, source in sources.items() if CLUSTER not in source.split(", ")},
        }

    def _again(self, **replaced: Any) -> Loaded:
        """Reads all sources again, but the settings of all nodes, which are those that the core had last."""
        return self._loaded.again(cluster=self._loaded.cluster, refused=self._refused, **replaced)

    async def check_chain(self, listener: str, chain: Any) -> None:
        """Checks the chain of a listener. Raises ControlError."""
        try:
            one = Listener(auth_chain=chain, bind="127.0.0.1:0")
        except ValidationError:
            return  # the supervisor reports the error
        settings = replaced(self.settings, ["listeners"], {listener: one})
        before = replaced(self.settings, ["listeners"], {listener: Listener(bind="127.0.0.1:0")})
        await self._check(Loaded(settings, {}), before)

    def kept(self) -> dict[KeyPath, Any]:
        """Returns the values that were set at run time, by path. Raises ControlError."""
        try:
            return read_kept(self._path)
        except ConfigError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None

    async def _store(self, kept: Mapping[KeyPath, Any]) -> Loaded:
        loaded = self._again(kept=kept)
        await self._check(loaded, self._loaded.settings)
        self._prepare(loaded.settings)
        self._write_kept(kept)
        return loaded

    def _write_kept(self, kept: Mapping[KeyPath, Any]) -> None:
        """Raises ControlError."""
        try:
            write_kept(self._path, kept)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{self._path}: {error.strerror}") from None

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
        self.changes += 1
        return {"applied": live, "needs_restart": [name for name in changed if not is_live(name)]}

    @staticmethod
    def _flat(settings: Settings) -> dict[str, str]:
        """Returns every key with its value as TOML."""
        return {
            f"{section}.{name}": toml(field, getattr(model, name))
            for section, model in sections(settings)
            for name, field in leaves(model)
        }


def dotted_in(key: str, paths: Iterable[KeyPath]) -> bool:
    """Returns whether a key is one of these paths."""
    return any(key == dotted(path) for path in paths)


def _others(kept: Mapping[KeyPath, Any], values: Mapping[str, str]) -> dict[KeyPath, Any]:
    """Returns the kept values without those that are as in `values`, key -> TOML."""
    return {path: value for path, value in kept.items() if values.get(dotted(path)) != toml_value(value)}


def _at(settings: Settings, key: str) -> Any:
    """Returns the value of a dotted key of sections."""
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two values are the same setting; the order of a list of addresses or names is no matter."""
    return sorted(one) == sorted(other) if isinstance(one, list) and isinstance(other, list) else bool(one == other)


def _is_part(name: str, key: str) -> bool:
    """Returns whether a key with a value is at or below another one, or above it, as a table is."""
    return f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.")


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
