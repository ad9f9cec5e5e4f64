"""How the configuration is shown: `config show` as TOML with sources, `config reference` as the page in docs."""

import json
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from shardbroker.config.settings import Settings
from shardbroker.config.sources import Loaded
from shardbroker.config.units import Duration, OptionalDuration, Size, format_duration, format_size

__all__ = ["reference", "show"]


def show(loaded: Loaded) -> str:
    """The effective settings as TOML, each with a comment that says where it came from."""
    rows: list[tuple[str, str] | str] = []
    for section, model in _sections(loaded.settings, ""):
        rows.append(f"\n[{section}]")
        for name in type(model).model_fields:
            key = f"{section}.{name}"
            value = getattr(model, name)
            if value is not None:
                rows.append((f"{name} = {_toml(type(model), name, value)}", loaded.sources.get(key, "default")))
    width = max(len(row[0]) for row in rows if isinstance(row, tuple))
    return "\n".join(row if isinstance(row, str) else f"{row[0]:<{width}}  # {row[1]}" for row in rows).lstrip("\n")


def reference() -> str:
    """docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Made by `shardbroker config reference`; the schema is `shardbroker/config/settings.py`.",
        "",
        "Values come from, later ones over earlier: the default, the TOML file (`--config`), the environment",
        "(`SHARDBROKER__SECTION__KEY`), `--set section.key=value`, and the options of `serve`. An unknown key or a bad value is",
        "refused at start. `shardbroker config check` only checks, `shardbroker config show` prints what is in force and why.",
        "",
        "Durations are written `500ms`, `15s`, `2h`, `1d`, `infinity`; sizes `65536`, `256KB`, `1MB`.",
        "",
        "Keys of parts that are not built yet (TLS, WebSocket, authentication, access rules, journal, durability) are unknown.",
    ]
    for section, model in _sections(Settings(), ""):
        shown = section.replace("listeners.default", "listeners.<name>")
        summary = (type(model).__doc__ or "").splitlines()[0]
        lines += ["", f"## {shown}", "", summary, "", "| key | default | meaning |", "|---|---|---|"]
        for name, field in type(model).model_fields.items():
            value = getattr(model, name)
            default = "disabled" if value is None else _toml(type(model), name, value)
            lines.append(f"| `{shown}.{name}` | `{default}` | {field.description} |")
    return "\n".join(lines) + "\n"


def _sections(model: BaseModel, prefix: str) -> Iterable[tuple[str, BaseModel]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield prefix + name, value
        elif name == "listeners":
            for key, listener in value.items():
                yield f"{prefix}{name}.{key}", listener


def _toml(model: type[BaseModel], name: str, value: Any) -> str:
    field = model.model_fields[name]
    marks = list(field.metadata) + [mark for part in get_args(field.annotation) for mark in (get_args(part)[1:] or ())]
    if any(mark in get_args(Duration) + get_args(OptionalDuration) for mark in marks) and isinstance(value, float):
        return f'"{format_duration(value)}"'
    if any(mark in get_args(Size) for mark in marks) and isinstance(value, int):
        return f'"{format_size(value)}"'
    if get_origin(field.annotation) is dict:
        return "{ " + ", ".join(f"{json.dumps(k)} = {v}" for k, v in value.items()) + " }" if value else "{}"
    return json.dumps(value, default=str)
