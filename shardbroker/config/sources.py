"""Where values come from, later ones over earlier: default, TOML file, environment, --set, command line options."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from shardbroker.config.settings import Settings

__all__ = ["ConfigError", "Loaded", "load"]

ENV_PREFIX = "SHARDBROKER__"


class ConfigError(Exception):
    """The configuration is refused; every line of the text names key, value, source and what is allowed."""


class Loaded:
    """The effective settings, and for each key that was set the source it came from."""

    def __init__(self, settings: Settings, sources: dict[str, str]) -> None:
        self.settings = settings
        self.sources = sources


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Loaded:
    """Reads all sources. `options` are dotted keys set by options of the command line. Raises ConfigError."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file is not None:
        for key, value in _flatten(_read_file(file)):
            _put(values, sources, key, value, f"file {file}")
    for name, text in (environment or {}).items():
        if name.startswith(ENV_PREFIX):
            key = name[len(ENV_PREFIX) :].lower().replace("__", ".")
            _put(values, sources, key, _literal(text), f"environment {name}")
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {assignment}: allowed is key=value, such as mqtt.max_inflight=64")
        _put(values, sources, key.strip(), _literal(text), "--set")
    for key, value in (options or {}).items():
        _put(values, sources, key, value, "command line")
    try:
        return Loaded(Settings.model_validate(values), sources)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem, sources) for problem in error.errors())) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {file}: not valid TOML: {error}") from None


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path != "mqtt.mqueue_priorities":
            yield from _flatten(value, path + ".")
        else:
            yield path, value


def _literal(text: str) -> Any:
    """TOML's literals where the text is one (numbers, true, lists), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(values: dict[str, Any], sources: dict[str, str], key: str, value: Any, source: str) -> None:
    *path, last = key.split(".")
    here = values
    for part in path:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise ConfigError(f"{key} = {value!r} ({source}): {part} is a value, not a section")
    here[last] = value
    sources[key] = source


def _explain(problem: Any, sources: dict[str, str]) -> str:
    location = [str(part) for part in problem["loc"] if not str(part).startswith(("function-", "literal", "int", "constrained"))]
    key = ".".join(location)
    source = sources.get(key) or next((where for known, where in sources.items() if known.startswith(key + ".")), "?")
    value = json.dumps(problem["input"], default=str)
    if problem["type"] == "extra_forbidden":
        known = list(_known_keys(Settings))
        close = difflib.get_close_matches(key, known, 1)
        siblings = [name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]]
        hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(siblings or known)}"
        return f"{key} = {value} ({source}): unknown key; {hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key} = {value} ({source}): {message}"


def _known_keys(model: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _known_keys(annotation, f"{prefix}{name}.")
        elif (
            get_origin(annotation) is dict
            and isinstance(get_args(annotation)[1], type)
            and issubclass(get_args(annotation)[1], BaseModel)
        ):
            yield from _known_keys(get_args(annotation)[1], f"{prefix}{name}.<name>.")
        else:
            yield prefix + name
