"""The schema as a list of keys: their names, what each allows, and how values are written in TOML."""

import json
import re
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from shardbroker.config.settings import Settings
from shardbroker.config.units import Allowed, Unit, format_duration, format_rate, format_size

__all__ = [
    "MASK",
    "KeyPath",
    "allowed_at",
    "allowed_text",
    "dotted",
    "field_at",
    "is_map",
    "is_secret",
    "known_keys",
    "masked",
    "plain",
    "resolve",
    "section_of",
    "takes_text",
    "toml",
    "toml_value",
]

MASK = "******"
"""Text that replaces a secret in output."""

KeyPath: TypeAlias = tuple[str, ...]
"""The parts of a key; a part may contain dots, as topics do."""

_BARE = re.compile(r"[A-Za-z0-9_<>-]+")


def dotted(path: KeyPath) -> str:
    """Returns a path as it is written in a file, with quotes around parts where TOML requires them."""
    return ".".join(part if _BARE.fullmatch(part) else _quoted(part) for part in path)


def known_keys(model: type[BaseModel] = Settings, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields every key of the schema; `<name>` is the name of a listener."""
    for name, field in model.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            yield from known_keys(inner, (*prefix, name) if _is_section(field.annotation) else (*prefix, name, "<name>"))
        else:
            yield (*prefix, name)


def field_at(path: KeyPath) -> tuple[FieldInfo | None, int]:
    """Returns the field of a key and the number of path parts that name it; (None, parts) for a section or an unknown key."""
    model: type[BaseModel] = Settings
    at = 0
    while at < len(path):
        field = model.model_fields.get(path[at])
        if field is None:
            return None, at
        at += 1
        inner = section_of(field)
        if inner is None:
            return field, at
        model = inner
        if not _is_section(field.annotation):
            at += 1  # the name of a listener
    return None, at


def resolve(location: Iterable[int | str]) -> KeyPath:
    """Returns the path of a pydantic location, which also names branches of unions."""
    path = tuple(str(part) for part in location)
    field, parts = field_at(path)
    if field is None:
        return path
    if is_map(field):
        parts += 1
    return path[:parts]


def is_map(field: FieldInfo) -> bool:
    """Whether the value is a table with free keys, such as mqtt.mqueue_priorities."""
    return get_origin(field.annotation) is dict


def is_secret(path: KeyPath) -> bool:
    """Whether the value at this path is secret."""
    field, _ = field_at(path)
    return field is not None and _hidden(field)


def masked(path: KeyPath, value: Any) -> Any:
    """Returns the value of a key or section with its secrets masked, whether it fits the schema or not."""
    if isinstance(value, dict) and not is_secret(path):
        return {name: masked((*path, str(name)), inner) for name, inner in value.items()}
    if not value or not is_secret(path):
        return value
    return dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK


def _hidden(field: FieldInfo) -> bool:
    return _unit(list(_all_marks(field.annotation, field.metadata))) is Unit.SECRET


def takes_text(field: FieldInfo) -> bool:
    """Whether any text is a value, so that `2024` is not parsed as a number."""
    return field.annotation in (str, Path, SecretStr)


def allowed_at(path: KeyPath) -> str:
    """Returns what is allowed at a path, as the end of a sentence."""
    field, _ = field_at(path)
    return "a section of keys" if field is None else allowed_text(field)


def allowed_text(field: FieldInfo) -> str:
    """Returns what a field allows, from its type and bounds."""
    return " or ".join(_branches(field.annotation, field.metadata))


def _branches(annotation: Any, metadata: Iterable[Any]) -> Iterator[str]:
    marks = list(metadata)
    for mark in marks:
        if isinstance(mark, Allowed):
            yield mark.text
            return
    if get_origin(annotation) is Literal:
        yield ", ".join(repr(choice) for choice in get_args(annotation))
    elif annotation is bool:
        yield "true or false"
    elif annotation in (int, float):
        yield _number(annotation, marks)
    elif hasattr(annotation, "__metadata__"):
        yield from _branches(annotation.__origin__, (*annotation.__metadata__, *marks))
    elif get_origin(annotation) is not None:
        for branch in get_args(annotation):
            if branch is type(None):
                yield "'disabled'"
            else:
                yield from _branches(branch, marks)
    else:
        yield "a path" if annotation is Path else "text"


def _number(annotation: Any, marks: list[Any]) -> str:
    unit = _unit(marks)
    bounds: dict[str, float] = {}
    for mark in _flat(marks):
        for name in ("ge", "gt", "le"):
            if getattr(mark, name, None) is not None:
                bounds[name] = getattr(mark, name)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le")
    if unit is Unit.DURATION:
        what = "a duration such as 500ms, 15s, 2h"
    elif unit is Unit.SIZE:
        what = "a size such as 65536, 256KB, 1MB"
    else:
        what = "an integer" if annotation is int else "a number"
    more_than = "gt" in bounds and "ge" not in bounds
    if low is not None and (low or not more_than):
        what += f"{',' if unit in (Unit.DURATION, Unit.SIZE) else ''} {'above' if more_than else 'from'} {_shown(unit, low)}"
    elif low is not None:
        what += " above 0"
    if high is not None:
        what += f" to {_shown(unit, high)}" if low is not None else f" up to {_shown(unit, high)}"
    elif low is not None and not more_than:
        what += " on"
    if (unit is Unit.DURATION and high is None) or unit is Unit.LIMIT:
        what += " or infinity"
    return what


def _flat(marks: Iterable[Any]) -> Iterator[Any]:
    """Yields all marks, also those inside a FieldInfo where Field() is nested in Annotated."""
    for mark in marks:
        yield from _flat(mark.metadata) if isinstance(mark, FieldInfo) else (mark,)


def _unit(marks: Iterable[Any]) -> Unit | None:
    return next((mark for mark in marks if isinstance(mark, Unit)), None)


def _shown(unit: Unit | None, value: float) -> str:
    if unit is Unit.DURATION:
        return format_duration(value)
    return format_size(int(value)) if unit is Unit.SIZE else f"{value:g}" if value != int(value) else str(int(value))


def toml(field: FieldInfo, value: Any) -> str:
    """Returns a value of a field as TOML; reading it gives the same value."""
    if value is None:
        return '"disabled"'
    marks = list(_all_marks(field.annotation, field.metadata))
    if _hidden(field) and value:
        value = dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK
    if _unit(marks) is Unit.DURATION and isinstance(value, float):
        return f'"{format_duration(value)}"'
    if _unit(marks) is Unit.SIZE and isinstance(value, int):
        return f'"{format_size(value)}"' if value else "0"
    if _unit(marks) is Unit.RATE and isinstance(value, float):
        return f'"{format_rate(value)}"'
    return toml_value(value)


def plain(field: FieldInfo, value: Any) -> Any:
    """Returns a value of a field as JSON has it: secrets masked, durations and sizes as text."""
    marks = list(_all_marks(field.annotation, field.metadata))
    if _hidden(field) and value:
        return dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK
    if isinstance(value, SecretStr):
        return ""
    if _unit(marks) is Unit.DURATION and isinstance(value, float):
        return format_duration(value)
    if _unit(marks) is Unit.SIZE and isinstance(value, int):
        return format_size(value)
    return value


def toml_value(value: Any) -> str:
    """Returns a plain value as TOML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(key)} = {toml_value(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "inf" if value == inf else str(value)
    return _quoted(str(value))


def _item(value: int | str) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


def _all_marks(annotation: Any, metadata: Iterable[Any]) -> Iterator[Any]:
    yield from metadata
    if hasattr(annotation, "__metadata__"):
        yield from _all_marks(annotation.__origin__, annotation.__metadata__)
    elif get_origin(annotation) not in (None, Literal):
        for branch in get_args(annotation):
            yield from _all_marks(branch, ())


def _quoted(text: str) -> str:
    # Basic strings of TOML are those of JSON, except for DEL and for characters beyond 16 bits, which JSON would split in two.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Returns the model of a section, or of each entry of a table of sections; None for a key with a value."""
    inner: Any = get_args(field.annotation)[1] if get_origin(field.annotation) is dict else field.annotation
    return inner if _is_section(inner) else None
