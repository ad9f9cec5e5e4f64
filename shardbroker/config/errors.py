"""Error messages of a configuration: key, value, source, and what is allowed."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shardbroker.config.keys import MASK, KeyPath, allowed_at, dotted, known_keys, masked, resolve
from shardbroker.config.sinks.ids import SECTIONS, types_text
from shardbroker.config.sinks.types import SINK_TYPES

__all__ = ["ConfigError", "complaints", "explain", "refusal"]

SECRETS = ("password", "secret", "token")
"""Words in last parts of keys whose values are secret: an unknown key may be a misspelt one."""

TABLES = ("listeners", "rules", "streams")
"""Tables of sections, whose names are free."""
VALUE_SHOWN = 200
"""Most characters of a rejected value in an error message."""


class ConfigError(Exception):
    """Raised for a configuration that is rejected; each line of the text names key, value, source and what is allowed."""

    def __init__(self, text: str, paths: Iterable[KeyPath] = ()) -> None:
        super().__init__(text)
        self.paths = tuple(paths)
        """Keys or sections whose values do not fit; empty: something else is wrong."""


def refusal(key: str, value: object, source: str, text: str) -> str:
    """Returns one line of a ConfigError."""
    shown = json.dumps(_masked(key.rpartition(".")[2], value), default=str, ensure_ascii=False)
    if len(shown) > VALUE_SHOWN:
        shown = shown[:VALUE_SHOWN] + "..."
    return f"{key} = {shown} ({source}): {text}"


def _masked(name: str, value: object) -> object:
    """Returns a value with its secrets masked, also within tables."""
    if isinstance(value, dict):
        return {key: _masked(str(key), inner) for key, inner in value.items()}
    return MASK if value and any(word in name for word in SECRETS) else value


def explain(error: ValidationError, values: Mapping[KeyPath, Any], sources: Mapping[KeyPath, str]) -> str:
    """Returns all problems that pydantic found, a line each; a value that fits no branch of a union is one problem.

    Values are shown as they were written, which may differ from what pydantic received.
    """
    lines: dict[str, str] = {}
    for problem in error.errors():
        path = resolve(problem["loc"])
        entry = _entry(problem, path)
        if problem["type"] == "extra_forbidden" and not entry:
            for key, value in _leaves(path, problem["input"]):
                lines[dotted(key)] = refusal(dotted(key), value, _source(key, sources), f"unknown key; {_hint(key)}")
        else:
            custom = problem["msg"].removeprefix("Value error, ") if problem["type"] == "value_error" else ""
            text = custom if custom.startswith("allowed is") else f"allowed is {allowed_at(path)}"
            value = masked(path, values.get(path, problem["input"]))
            lines.setdefault(dotted(path), refusal(dotted(path), value, _source(path, sources), text + entry))
    return "\n".join(lines.values())


def complaints(error: ValidationError, section: KeyPath) -> str:
    """Returns all problems of one section, with keys below it."""
    found: dict[str, str] = {}
    for problem in error.errors():
        path = resolve((*section, *problem["loc"]))
        key = dotted(path[len(section) :])
        if problem["type"] == "extra_forbidden":
            found[key] = f"{key}: unknown key; {_near(path, section)}"
            continue
        custom = problem["msg"].removeprefix("Value error, ") if problem["type"] == "value_error" else ""
        must = custom.removeprefix("allowed is ") if custom.startswith("allowed is ") else allowed_at(path)
        shown = json.dumps(masked(path, problem["input"]), default=str, ensure_ascii=False)[:VALUE_SHOWN]
        found.setdefault(key, f"{key}: must be {must}" + ("" if custom.startswith("allowed is ") else f", got {shown}"))
    return "; ".join(found.values())


def _near(path: KeyPath, section: KeyPath) -> str:
    """Returns the key of a section that is meant by an unknown one, or all that are there."""
    known = [dotted(key[len(section) :]) for key in known_keys() if key[: len(section)] == section]
    close = difflib.get_close_matches(dotted(path[len(section) :]), known, 1, cutoff=0.75)
    table = dotted(path[len(section) : -1])
    beside = [key.removeprefix(f"{table}.").partition(".")[0] for key in known if key.startswith(f"{table}.") or not table]
    return f"did you mean {close[0]}?" if close else f"allowed are {', '.join(dict.fromkeys(beside))}"


def _entry(problem: ErrorDetails, path: KeyPath) -> str:
    """Returns the problem in one table of a list of tables, as the end of a sentence; empty if the problem is elsewhere."""
    inside = problem["loc"][len(path) :]
    number = next((part for part in inside if isinstance(part, int)), None)
    if number is None or (problem["type"] == "value_error" and problem["msg"].startswith("Value error, allowed is")):
        return ""
    name = inside[-1] if isinstance(inside[-1], str) else ""
    if problem["type"] == "value_error":
        wrong = problem["msg"].removeprefix("Value error, ")
    elif problem["type"] == "missing":
        wrong = f"{name} is missing"
    elif problem["type"] == "extra_forbidden":
        wrong = f"there is no {name}"
    elif name:
        wrong = f"{name} must not be {problem['input']!r}"
    else:
        return ""
    return f"; in entry {number + 1}, {wrong}"


def _leaves(path: KeyPath, value: Any) -> Iterable[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves((*path, name), inner)
    else:
        yield path, value


def _source(path: KeyPath, sources: Mapping[KeyPath, str]) -> str:
    if path in sources:
        return sources[path]
    found = {source for known, source in sources.items() if known[: len(path)] == path or path[: len(known)] == known}
    return ", ".join(sorted(found)) or "default"


def _hint(path: KeyPath) -> str:
    if path[0] in SECTIONS and len(path) > 1 and path[1] not in SINK_TYPES:
        return f"allowed types of {path[0]} are {types_text()}"
    at = 2 if path[0] in SECTIONS else 1 if path[0] in TABLES else len(path)
    general = dotted((*path[:at], "<name>", *path[at + 1 :]) if len(path) > at else path)
    known = [dotted(key) for key in known_keys()]
    same_name = [key for key in known if key.rpartition(".")[2] == path[-1]]
    close = same_name or difflib.get_close_matches(general, known, 1) or _close_name(path[-1], known)
    if close:
        return f"did you mean {' or '.join(close)}?"
    section = general.rpartition(".")[0]
    siblings = [key for key in known if section and key.startswith(section + ".")]
    if siblings:
        return f"allowed in {section} are {', '.join(key.removeprefix(section + '.') for key in siblings)}"
    return f"allowed sections are {', '.join(dict.fromkeys(key.partition('.')[0] for key in known))}"


def _close_name(name: str, known: list[str]) -> list[str]:
    """Returns the known key whose last part is most similar to `name`, for misspelt keys in a wrong section."""
    by_name = {key.rpartition(".")[2]: key for key in known}
    return [by_name[match] for match in difflib.get_close_matches(name, by_name, 1, cutoff=0.75)]
