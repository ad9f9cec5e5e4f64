"""Settings of all nodes of a cluster: changed in its core, applied on this node, and what each node has applied of them.

    config set --cluster --> checks here --> core: one transaction --> every node: follow() --> core: applied/<n> --> answer

The process `cluster` passes them through files (membership/settings.py): a kill of either process loses nothing. A change replaces
one row of the core under a condition, so of two changes at the same time the second one is checked again, with the first.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import cbor2

from shardbroker.cluster.core import APPLIED_MAX, APPLIED_TEXT_MAX
from shardbroker.config.cluster_values import (
    COUNT_MAX,
    KEY_BYTES_MAX,
    TOTAL_BYTES_MAX,
    VALUE_BYTES_MAX,
    ClusterValue,
    ClusterValues,
    decode_rows,
    encode_value,
    overlaps,
    unfit,
    values_of,
)
from shardbroker.config.keys import KeyPath, dotted, toml_value
from shardbroker.control import ControlError
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.configuration import Configuration
from shardbroker.management.core_calls import CoreCalls
from shardbroker.stores.files import Stamp, replace_file, stamp_of
from shm.topology import Topology

__all__ = ["ClusterSettings"]

APPLIED_S = 10.0
"""Longest wait of a change for the nodes to apply it."""
ANSWER_S = 25.0
"""Longest time of a change with its checks, shorter than the timeout of `ctl`; nodes are waited for less then."""
LOOK_S = 0.2
"""Between two looks for changed settings."""
WAIT_S = 0.05
RETRY_S = 5.0
"""Pause behind settings that could not be applied for a reason that is not theirs, such as a check that took too long."""
TRIES = 5
"""Attempts of a change that finds others before it."""
CHANGES_MAX = 100
"""Keys that are set or removed at once: a transaction of etcd has at most 128 operations."""
REQUEST_MAX = 128 << 10
"""Bytes of the keys and values of a change: a message between processes has at most some 200 KB."""

OFF = "settings of all nodes need a cluster: cluster.enable must be true on each node"
NO_CORE = "settings of all nodes need etcd: cluster.core.mode must be managed or external, got none; set the key on each node"
TOO_LONG = f"must have a value of at most {VALUE_BYTES_MAX} bytes for all nodes"
LIVING = "joining", "up", "draining"


class NodeState(NamedTuple):
    """A node, and what it has made of a change: applied, restart, shadowed, failed, waiting, or down."""

    node: str
    state: str
    reason: str = ""


class ClusterSettings:
    """One per manager. The file of values is there once the core was reached, and before that the copy of the last time counts."""

    def __init__(self, topology: Topology, configuration: Configuration, core: CoreCalls, log: Log) -> None:
        self._topology, self._configuration, self._core, self._log = topology, configuration, core, log
        self._stamp: Stamp | None = None
        self._reported = b""
        self._changes: tuple[int, str] = -1, ""
        """Changes of the configuration, and the failure, that were reported last."""
        self._failure = ""
        """Why the settings could not be applied as a whole; empty: they were."""
        self._retry_at = 0.0

    # --- requests -------------------------------------------------------------------------------------------------------------

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Returns the settings of all nodes at or below `key`, or all, each with the nodes that have applied it. Raises
        ControlError."""
        self._check_core()
        known, nodes = self._known(), self._nodes()
        found = {one.key: {"value": one.text, "by": one.by, "at": one.at} for one in known.values}
        rows = []
        for name in sorted(known.revisions):
            if key and name != key and not name.startswith(f"{key}."):
                continue
            states = [_state(node, known.revisions[name], [name]) for node in nodes]
            rows.append({
                "key": name, **found.get(name, {"value": None, "by": "", "at": None}), "revision": known.revisions[name],
                "applied": [one.node for one in states if one.state in ("applied", "restart", "shadowed")],
                "not_applied": [f"{one.node}: {one.reason}" for one in states if one.state in ("failed", "waiting", "down")],
                "remarks": [f"{one.node}: {one.reason}" for one in states if one.state in ("restart", "shadowed")],
            })  # fmt: skip
        if key and not rows:
            raise ControlError("NOT_FOUND", f"no setting of all nodes at {key!r}")
        return rows

    async def set(self, assignments: Mapping[str, str], by: str) -> dict[str, Any]:
        """Sets values on all nodes, all or none of them. Raises ControlError; nothing has changed then, unless its text says that
        this is not known."""
        self._check_core()
        wanted = dict(_checked(self._configuration, key, text) for key, text in assignments.items())
        if not wanted or len(wanted) > CHANGES_MAX:
            raise ControlError("BAD_REQUEST", f"values: must be 1 to {CHANGES_MAX}, got {len(wanted)}")

        def change(known: ClusterValues) -> ClusterValues:
            for path in wanted:
                known = known.without(path)
            now = time.time_ns() // 1_000_000
            new = [
                ClusterValue(dotted(path), path, value, toml_value(value), by, now, known.revision + number)
                for number, (path, value) in enumerate(wanted.items(), 1)
            ]
            return known._replace(values=(*known.values, *new))

        done = await self._change([*wanted], change, by, wanted)
        shown = {dotted(path): toml_value(value) for path, value in wanted.items()}
        return {"values": shown, **done}

    async def reset(self, key: str, by: str) -> dict[str, Any]:
        """Removes a value, and those below the key: the sources below apply again on all nodes. A key that no node can use is
        removed alone, by its name in lists. Raises ControlError."""
        self._check_core()
        path = self._configuration.path_of(key)

        def change(known: ClusterValues) -> ClusterValues:
            return known if key in known.problems else known.without(path)

        return {"key": dotted(path), **await self._change([path], change, by, {}, key)}

    async def _change(
        self, paths: list[KeyPath], change: Callable[[ClusterValues], ClusterValues], by: str, trial: Mapping[KeyPath, Any],
        name: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """name: of a row to remove, usable or not."""
        begun = time.monotonic()
        first: ClusterValues | None = None
        for _ in range(TRIES):
            await self._core.ask("config read", code="NOT_AVAILABLE")
            known = self._known()
            first = first or known
            _check_unchanged(first, known, paths)
            wanted = change(known)
            kept = {one.key for one in wanted.values}
            puts = {one.key: encode_value(one.text, one.by, one.at) for one in wanted.values if one not in known.values}
            deletes = [one.key for one in known.values if one.key not in kept]
            deletes += [name] if name in known.problems and name in known.revisions else []
            if not puts and not deletes:
                raise ControlError("NOT_FOUND", f"{name[:KEY_BYTES_MAX]} has no value set on all nodes")
            _check_bounds(wanted, puts, deletes, known)
            await self._configuration.check_cluster(known, wanted, trial)
            done = await self._core.ask(
                "config change", code="NOT_AVAILABLE", by=by, changed=known.changed,
                puts={key.encode(): value for key, value in puts.items()}, deletes=[known.names[key] for key in deletes],
                revisions={known.names.get(key, key.encode()): known.revisions.get(key, 0) for key in (*puts, *deletes)},
            )  # fmt: skip
            if done["revision"]:
                rest_s = min(APPLIED_S, ANSWER_S - (time.monotonic() - begun))
                nodes = await self._applied(done["revision"], [*puts, *deletes], rest_s)
                return {"revision": done["revision"], "nodes": [one._asdict() for one in nodes]}
        raise ControlError("TRY_AGAIN", f"other nodes have changed settings during each of {TRIES} attempts; nothing was changed")

    async def _applied(self, revision: int, keys: list[str], timeout_s: float) -> list[NodeState]:
        """Returns the nodes, once all that live have applied the settings of a revision, or after a time."""
        deadline = time.monotonic() + timeout_s
        while True:
            states = [_state(node, revision, keys) for node in self._nodes()]
            if not any(one.state == "waiting" for one in states) or time.monotonic() >= deadline:
                return states
            await asyncio.sleep(WAIT_S)

    def _nodes(self) -> list[dict[str, Any]]:
        """Returns what the process `cluster` knows of the nodes."""
        try:
            found: list[dict[str, Any]] = json.loads(self._topology.cluster_report.read_bytes())
        except (OSError, ValueError):
            return []
        return found

    def _known(self) -> ClusterValues:
        """Returns the values as the core had them last."""
        try:
            return values_of(decode_rows(self._topology.cluster_values.read_bytes()))
        except (OSError, ValueError):
            return self._configuration.cluster

    def _check_core(self) -> None:
        cluster = self._topology.settings.cluster
        if not cluster.has_core:
            raise ControlError("NOT_AVAILABLE", NO_CORE if cluster.enable else OFF)

    # --- this node ------------------------------------------------------------------------------------------------------------

    @property
    def unusable(self) -> Mapping[str, str]:
        """Returns the settings of all nodes that this node cannot apply, with the reasons."""
        return {**({"config/": self._failure} if self._failure else {}), **self._configuration.unusable}

    async def follow(self) -> None:
        """Applies the settings of all nodes whenever they have changed; never ends."""
        while self._topology.settings.cluster.has_core:
            try:
                await self._look()
            except ControlError as error:
                self._fail(str(error))
            except Exception as error:  # what the core has may not end the manager, and its successor after it
                self._fail(f"{type(error).__name__}: {error}")
            self._report()
            await asyncio.sleep(LOOK_S)
        await asyncio.Event().wait()

    async def _look(self) -> None:
        """Raises ControlError, and what applying a value may raise."""
        configuration, stamp = self._configuration, stamp_of(self._topology.cluster_values)
        is_due = stamp != self._stamp or configuration.retries_cluster or (self._failure and time.monotonic() >= self._retry_at)
        if stamp is None or not is_due:
            return
        self._stamp = stamp
        values = values_of(decode_rows(self._topology.cluster_values.read_bytes()))
        done = await configuration.apply_cluster(values)
        if done["applied"] or done["needs_restart"]:
            fields = {name: ",".join(done[name]) for name in ("applied", "needs_restart")}
            self._log.add("info", log_line("settings of all nodes applied", revision=values.revision, **fields))
            self._log.flush()
        if (done["applied"] or self._failure) and (behind := await configuration.behind()):
            raise ControlError("NOT_AVAILABLE", f"{', '.join(behind)}: settings not applied in time")
        self._failure = ""

    def _fail(self, reason: str) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        if reason != self._failure:
            self._log.add("error", log_line("settings of all nodes not applied", reason=reason))
            self._log.flush()
        self._failure = reason

    def _report(self) -> None:
        """Writes what this node has applied, for the process `cluster`, if it has changed."""
        if self._changes == (changes := (self._configuration.changes, self._failure)):
            return
        self._changes = changes
        text = cbor2.dumps(_bounded(self._configuration.applied_cluster(), self._failure), canonical=True)
        if text != self._reported:
            try:
                replace_file(self._topology.cluster_applied, text, sync=False)
            except OSError as error:
                self._fail(f"{self._topology.cluster_applied}: {error.strerror}")
            else:
                self._reported = text


def _bounded(applied: dict[str, Any], failure: str) -> dict[str, Any]:
    """Returns what was applied within the bounds of its row. A failure as a whole leaves the revision behind."""

    def pairs(found: Iterable[tuple[str, str]]) -> dict[str, str]:
        return {key[:APPLIED_TEXT_MAX]: text[:APPLIED_TEXT_MAX] for key, text in [*found][:APPLIED_MAX]}

    errors = [*([("", failure)] if failure else []), *applied["errors"].items()]
    return {
        "revision": 0 if failure else applied["revision"], "errors": pairs(errors), "shadowed": pairs(applied["shadowed"].items()),
        "restart": [key[:APPLIED_TEXT_MAX] for key in applied["restart"][:APPLIED_MAX]],
    }  # fmt: skip


def _state(node: Mapping[str, Any], revision: int, keys: list[str]) -> NodeState:
    """Returns what a node has made of a change of keys."""
    name, applied = node["name"], node["applied"]
    if node["state"] not in LIVING:
        return NodeState(name, "down", "it has no lease in etcd, and applies the settings when it is back")
    if applied is None:
        return NodeState(name, "waiting", "it has not reported; a version before settings of all nodes does not")
    failure = applied["errors"].get("", "")
    if applied["revision"] < revision:
        return NodeState(name, "waiting", failure or f"it has applied revision {applied['revision']} only")
    errors = {key: applied["errors"][key] for key in keys if key in applied["errors"]}
    if errors:
        return NodeState(name, "failed", "; ".join(errors.values()))
    hidden = [f"{key} by {applied['shadowed'][key]}" for key in keys if key in applied["shadowed"]]
    if hidden:
        return NodeState(name, "shadowed", f"shadowed: {'; '.join(hidden)}")
    restart = [key for key in keys if key in applied["restart"]]
    return NodeState(name, "restart", f"in force after a restart: {', '.join(restart)}") if restart else NodeState(name, "applied")


def _checked(configuration: Configuration, key: str, text: str) -> tuple[KeyPath, Any]:
    """Returns path and value of an assignment. Raises ControlError for one that cannot be of all nodes."""
    if len(text.encode(errors="replace")) > VALUE_BYTES_MAX:
        raise ControlError("BAD_REQUEST", f"{key[:KEY_BYTES_MAX]}: {TOO_LONG}")
    path, value = configuration.parsed(key, text)
    name = dotted(path)
    if len(name.encode(errors="replace")) > KEY_BYTES_MAX:
        raise ControlError("BAD_REQUEST", f"key: must have at most {KEY_BYTES_MAX} bytes for all nodes, got {len(name)} characters")
    if not name.isprintable():
        raise ControlError("BAD_REQUEST", f"key: must be printable for all nodes, got {name!a}")
    if reason := unfit(path, value):
        raise ControlError("BAD_REQUEST", reason)
    if len(toml_value(value).encode(errors="replace")) > VALUE_BYTES_MAX:
        raise ControlError("BAD_REQUEST", f"{name}: {TOO_LONG}")
    return path, value


def _check_unchanged(first: ClusterValues, known: ClusterValues, paths: list[KeyPath]) -> None:
    """Raises ControlError if another node has changed one of the keys since this request has begun."""
    before = {one.key: one for one in first.values}
    after = {one.key: one for one in known.values}
    for key in {*before, *after}:
        was, now = before.get(key), after.get(key)
        path = (now or was or ClusterValue("", (), None, "", "", 0, 0)).path
        if (was and was.revision) != (now and now.revision) and any(overlaps(path, one) for one in paths):
            what = f"{now.text} by {now.by}" if now is not None else "no value"
            raise ControlError("NOT_MATCH", f"{key}: was changed at the same time to {what}; nothing else was changed")


def _check_bounds(wanted: ClusterValues, puts: Mapping[str, bytes], deletes: list[str], known: ClusterValues) -> None:
    """Raises ControlError for more than the core may have."""
    if not puts:
        return
    if len(puts) + len(deletes) > CHANGES_MAX:
        raise ControlError("EXCEED_LIMIT", f"at most {CHANGES_MAX} keys are set or removed at once for all nodes")
    unusable = sum(key in known.problems for key in known.revisions)
    if len(wanted.values) + unusable > COUNT_MAX:
        raise ControlError("EXCEED_LIMIT", f"a cluster has at most {COUNT_MAX} settings of all nodes")
    total = sum(len(one.key.encode()) + len(encode_value(one.text, one.by, one.at)) for one in wanted.values)
    if total > TOTAL_BYTES_MAX:
        raise ControlError("EXCEED_LIMIT", f"settings of all nodes have at most {TOTAL_BYTES_MAX} bytes together, got {total}")
    if sum(len(key.encode()) + len(value) for key, value in puts.items()) > REQUEST_MAX:
        raise ControlError("EXCEED_LIMIT", f"a change of settings of all nodes has at most {REQUEST_MAX} bytes")
