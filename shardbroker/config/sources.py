"""Sources of values, later ones override earlier ones: default, TOML file, values of all nodes of a cluster, values set at run time
on this node, environment, --set, options of the command line."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardbroker.config.cluster import Cluster
from shardbroker.config.cluster_values import CLUSTER, NO_VALUES, ClusterValue, ClusterValues, overlaps, read_copy
from shardbroker.config.errors import ConfigError, explain, refusal
from shardbroker.config.keys import KeyPath, dotted, field_at, is_map, is_secret, masked, resolve, takes_text, toml_value
from shardbroker.config.settings import Settings
from shardbroker.config.sinks.ids import normal_path, normal_tree
from shardbroker.stores.files import replace_file

__all__ = ["KEPT_FILE", "ConfigError", "Loaded", "load", "parse_assignment", "read_kept", "without", "write_kept"]

ENV_PREFIX = "SHARDBROKER__"

ROUNDS = 2
"""How often a value of all nodes that does not fit is tried again: another one may have been missing."""

KEPT_FILE = "runtime.toml"
"""File in the data directory with the values that were set at run time. Such changes are written nowhere else."""

_KEPT_HEADER = """\
# Written by `shardbroker ctl config set` and the REST API. Overrides the configuration file; environment and options override it.
"""


class Loaded:
    """The effective settings, and the source of each key that was set."""

    def __init__(
        self,
        settings: Settings,
        sources: Mapping[KeyPath, str],
        again: "Callable[..., Loaded] | None" = None,
        cluster: ClusterValues = NO_VALUES,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.sources = {dotted(path): source for path, source in sources.items()}
        self.again = again or (lambda **_: self)
        """Reads all sources again. `kept` replaces the contents of KEPT_FILE; `cluster`, `refused` and `trial` as in `load`. Raises
        ConfigError."""
        self.cluster = cluster
        """The values of all nodes, in force or not."""
        self.unusable = dict(unusable or {})
        """Those of them that are not in force on this node since they do not fit, with the reason."""

    def source(self, key: str) -> str:
        """Returns the source of a key; several if the value is a table that was merged from them."""
        if key in self.sources:
            return self.sources[key]
        parts = [source for known, source in self.sources.items() if known.startswith(key + ".")]
        return ", ".join(dict.fromkeys(parts)) or "default"


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    kept: Mapping[KeyPath, Any] | None = None,
    cluster: ClusterValues | None = None,
    refused: Mapping[str, str] | None = None,
    trial: Mapping[KeyPath, Any] | None = None,
) -> Loaded:
    """Reads all sources. `options` are dotted keys set by options of the command line; `kept` replaces the contents of KEPT_FILE in
    the data directory that the other sources name, and `cluster` those of the copy of the values of all nodes there. Of these the
    ones that do not fit are left out, and those in `refused`, key -> reason. `trial`: values over all others. Raises ConfigError.
    """
    environment = {name: text for name, text in (environment or {}).items() if name.startswith(ENV_PREFIX)}
    sources = file, environment, list(assignments), dict(options or {})
    again = partial(load, *sources)
    loaded = _checked(_gather(*sources, {}, ""), again)
    data_dir = loaded.settings.process.data_dir
    path = data_dir / KEPT_FILE
    if kept is None:
        kept = read_kept(path)
    layer = partial(_gather, *sources, kept, f"file {path}")
    if cluster is None:
        core = _cluster_of(layer() if kept else None, loaded)
        cluster = read_copy(data_dir, core.place) if core is not None else NO_VALUES
    if not kept and not trial and cluster == NO_VALUES:
        return loaded
    refused = refused or {}
    wanted = [one for one in cluster.values if one.key not in refused]
    fitting, unusable = _fitting(wanted, lambda some: _checked(layer(some, trial or {}), again))
    problems = {**cluster.problems, **{key: reason for key, reason in refused.items() if key in cluster.revisions}, **unusable}
    return _checked(layer(fitting, trial or {}), again, cluster, problems)


def _cluster_of(values: "_Values | None", loaded: Loaded) -> Cluster | None:
    """Returns the section of a cluster with a core, which no value of all nodes changes; None: there is no core."""
    found = loaded.settings.cluster
    if values is not None:
        try:
            found = Cluster.model_validate(values.tree().get("cluster", {}))
        except ValidationError:
            return None  # the check of all values reports it
    return found if found.has_core else None


def _fitting(
    values: list[ClusterValue], attempt: Callable[[list[ClusterValue]], Loaded]
) -> tuple[list[ClusterValue], dict[str, str]]:
    """Returns the values that fit the schema and the other sources, and the reasons of the others: of two that do not fit each
    other the one that was set first counts. Raises ConfigError if other sources are at fault."""
    fitting, doubtful = values, list[ClusterValue]()
    while True:
        try:
            _attempted(attempt, fitting)
            break
        except ConfigError as error:
            found = [one for one in fitting if any(overlaps(one.path, path) for path in error.paths)]
            if not found:
                raise
            doubtful += found
            fitting = [one for one in fitting if one not in found]
    reasons: dict[str, str] = {}
    for _ in range(ROUNDS):
        for one in [one for one in values if one in doubtful]:
            further = [other for other in values if other in fitting or other is one]  # in their order
            try:
                _attempted(attempt, further)
            except ConfigError as error:
                reasons[one.key] = str(error).partition("\n")[0]
            else:
                fitting = further
                doubtful.remove(one)
                reasons.pop(one.key, None)
    return fitting, reasons


def _attempted(attempt: Callable[[list[ClusterValue]], Loaded], values: list[ClusterValue]) -> None:
    """Raises ConfigError, also where a check of the schema is not made for what was written into the core by hand."""
    try:
        attempt(values)
    except ConfigError:
        raise
    except Exception as error:
        if not values:
            raise
        text = f"{dotted(values[-1].path)}: cannot be checked: {type(error).__name__}"
        raise ConfigError(text, [one.path for one in values]) from error


def _checked(
    values: "_Values",
    again: Callable[..., Loaded],
    cluster: ClusterValues = NO_VALUES,
    unusable: Mapping[str, str] | None = None,
) -> Loaded:
    try:
        return Loaded(Settings.model_validate(values.tree()), values.sources, again, cluster, unusable)
    except ValidationError as error:
        paths = [resolve(problem["loc"]) for problem in error.errors()]
        raise ConfigError(explain(error, values.values, values.sources), paths) from None


def _gather(
    file: Path | None,
    environment: Mapping[str, str],
    assignments: Iterable[str],
    options: Mapping[str, Any],
    kept: Mapping[KeyPath, Any],
    kept_source: str,
    cluster: Iterable[ClusterValue] = (),
    trial: Mapping[KeyPath, Any] | None = None,
) -> "_Values":
    values = _Values()
    if file is not None:
        values.put((), _read_file(file), f"file {file}")
    for one in cluster:
        values.put(one.path, one.value, CLUSTER)
    for path, value in kept.items():
        values.put(path, value, kept_source)
    for name, text in sorted(environment.items()):
        path = _split(name[len(ENV_PREFIX) :].lower().replace("__", "."))
        values.put(path, _literal(path, text), f"environment {name}")
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment}: allowed is key=value, such as mqtt.max_inflight=64")
        path, value = parse_assignment(key, text)
        if is_secret(path):
            raise ConfigError(f"--set {dotted(path)}: must be in a file or the environment: all users can read a command line")
        values.put(path, value, "--set")
    listening = {_split(key)[1] for key in options if key.startswith("listeners.")}
    for known in list(values.values) if listening else ():
        # --listen replaces the addresses only; other settings of a listener of the same name remain.
        if known[0] == "listeners" and (len(known) == 1 or known[1] not in listening):
            values.forget(known)
    for key, value in options.items():
        values.put(_split(key), value, "command line")
    for path, value in (trial or {}).items():
        values.put(path, value, CLUSTER)
    return values


def parse_assignment(key: str, text: str) -> tuple[KeyPath, Any]:
    """Returns the path of a dotted key and the value of a text at this path."""
    path = _split(key.strip())
    return path, _literal(path, text.strip())


def without(kept: Mapping[KeyPath, Any], key: str) -> tuple[KeyPath, dict[KeyPath, Any]]:
    """Returns (path of a dotted key, the kept values without those at this path or below)."""
    path = _split(key.strip())
    return path, {known: value for known, value in kept.items() if known[: len(path)] != path}


def read_kept(path: Path) -> dict[KeyPath, Any]:
    """Returns the values that were set at run time, by path. Raises ConfigError."""
    if not path.exists():
        return {}
    values = _Values()
    values.put((), _read_file(path), "")
    return values.values


def write_kept(path: Path, kept: Mapping[KeyPath, Any]) -> None:
    """Replaces the file durably. Raises OSError; the old file remains then."""
    lines = [f"{dotted(key)} = {toml_value(value)}\n" for key, value in sorted(kept.items())]
    replace_file(path, (_KEPT_HEADER + "".join(lines)).encode())


class _Values:
    """Values by path, each with its source. Sections are merged; any other value replaces the values at its path."""

    def __init__(self) -> None:
        self.values: dict[KeyPath, Any] = {}
        self.sources: dict[KeyPath, str] = {}

    def put(self, path: KeyPath, value: Any, source: str) -> None:
        path = normal_path(path)
        self._check_sections(path, value, source)
        field, parts = field_at(path)
        if isinstance(value, dict) and not (field is not None and parts == len(path) and is_map(field)):
            for name, inner in value.items():
                self.put((*path, name), inner, source)
            if path and not value and not any(known[: len(path)] == path for known in self.values):
                self.values[path], self.sources[path] = {}, source
            return
        self.forget(path)
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                self.values[(*path, name)], self.sources[(*path, name)] = inner, source
        else:
            self.values[path], self.sources[path] = value, source

    def _check_sections(self, path: KeyPath, value: Any, source: str) -> None:
        for length in range(1, len(path)):
            above = path[:length]
            if above not in self.values:
                continue
            if self.values[above] == {}:
                self.forget(above)  # the first entry replaces an empty table
            else:
                text = f"{dotted(above)} is given as a value ({self.sources[above]}), so it has no keys"
                raise ConfigError(refusal(dotted(path), masked(path, value), source, text), (above,))

    def forget(self, path: KeyPath) -> None:
        for known in [known for known in self.values if known[: len(path)] == path]:
            del self.values[known], self.sources[known]

    def tree(self) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for path, value in self.values.items():
            here = root
            for part in path[:-1]:
                here = here.setdefault(part, {})
            here[path[-1]] = value
        return root


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return normal_tree(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {file}: byte {error.start} is not UTF-8; allowed is TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {file}: not valid TOML: {error}") from None
    except ValueError as error:
        raise ConfigError(f"configuration file {file}: {error}") from None


def _split(key: str) -> KeyPath:
    """Returns the path of a dotted key. A name in a table with free keys is one part, also with dots in it."""
    path = normal_path(tuple(key.split(".")))
    field, parts = field_at(path)
    if field is not None and is_map(field) and len(path) > parts:
        return (*path[:parts], ".".join(path[parts:]))
    return path


def _literal(path: KeyPath, text: str) -> Any:
    """Returns the value of a TOML literal (number, true, table); for other text, or where any text is a value, the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    field, _ = field_at(path)
    if len(parsed) > 1 or (field is not None and takes_text(field) and not isinstance(value, str)):
        return text
    return value
