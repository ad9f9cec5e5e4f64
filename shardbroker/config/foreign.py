"""Configuration of other brokers, as far as it means the same here.

A reader (`mosquitto`, `emqx`) turns a file into taken settings and remarks. Each setting is tried against the schema by itself,
those of a listener together, so one that does not fit becomes a remark with the reason, and what is printed passes `config check`.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from shardbroker.config.errors import ConfigError
from shardbroker.config.keys import KeyPath, dotted
from shardbroker.config.sources import load

__all__ = ["Imported", "to_toml"]


@dataclass
class Imported:
    """What was read: settings by path, and what a person has to look at."""

    settings: dict[KeyPath, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def take(self, path: KeyPath, value: Any, said: str) -> None:
        """`said` is the line of the other file, for a remark if the value does not fit."""
        self.take_together({path: value}, said)

    def take_together(self, values: dict[KeyPath, Any], said: str) -> None:
        """Settings that make sense beside each other only, such as those of a listener: all of them, or none."""
        try:
            load(None, None, [], {dotted(path): value for path, value in values.items()})
        except ConfigError as error:
            self.remarks.append(f"{said}: {' '.join(str(error).replace(' (command line)', '').split())}")
        else:
            self.settings |= values

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def to_toml(imported: Imported, source: str) -> str:
    """The configuration as TOML, remarks first. Raises ConfigError if the whole does not fit together."""
    load(None, None, [], {dotted(path): value for path, value in imported.settings.items()})
    lines = [f"# From {source}."]
    if imported.remarks:
        lines += ["# Not taken over; see docs/coming-from.md:", *(f"#   {text}" for text in imported.remarks)]
    sections: dict[KeyPath, list[str]] = {}
    for path, value in imported.settings.items():
        depth = 2 if path[0] == "listeners" else 1
        sections.setdefault(path[:depth], []).append(f"{dotted(path[depth:])} = {json.dumps(value, ensure_ascii=False)}")
    for section, body in sections.items():
        lines += ["", f"[{dotted(section)}]", *body]
    return "\n".join(lines) + "\n"
