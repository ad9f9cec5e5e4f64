"""Import of configurations of other brokers, as far as keys have the same meaning here.

A reader (`mosquitto`, `emqx`) turns a file into settings and remarks. Each setting is validated against the schema on its own,
those of a listener together; an invalid one becomes a remark with the reason, so the output always passes the schema.

The imported configuration is never more open than the file. A setting of access control that cannot be imported, or is unknown,
restricts the configuration (`close_login`, `close_rules`): logins are checked against the users of the broker itself, which do not
exist yet, and topics against its own rules.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shardbroker.config.cluster_values import NO_VALUES
from shardbroker.config.errors import ConfigError
from shardbroker.config.keys import KeyPath, dotted, toml_value
from shardbroker.config.sinks.ids import SECTIONS
from shardbroker.config.sources import load

__all__ = ["OWN_STORE", "SECRET", "Imported", "bind_of", "flatten", "rules_toml", "section_name", "to_toml"]

OWN_STORE = "builtin"
"""The store of users and of rules: empty in a new broker, so that all clients are denied."""
SECRET = re.compile("password|secret|cookie")
"""Parts of names of keys whose values are masked."""


@dataclass
class Imported:
    """Result of an import: settings by path, and remarks for the operator. `rules`: tables as in a file of rules, which the caller
    writes."""

    settings: dict[KeyPath, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Keys without an effect here, such as the log file of the other broker."""
    rules: list[dict[str, Any]] | None = None
    cookie: str | None = field(default=None, repr=False)
    """The secret of a cluster, which the caller writes to a file of its own."""

    def take(self, path: KeyPath, value: Any, said: str) -> bool:
        """Returns whether the value is valid. `said` is the line of the other file, for a remark if it is not."""
        return self.take_together({path: value}, said)

    def take_together(self, values: dict[KeyPath, Any], said: str) -> bool:
        """Adds settings that belong together, such as those of a listener: all of them, or none."""
        try:
            load(None, None, [], {dotted(path): value for path, value in values.items()}, kept={}, cluster=NO_VALUES)
        except ConfigError as error:
            self.remarks.append(f"{said}: {' '.join(str(error).replace(' (command line)', '').split())}")
            return False
        self.settings |= values
        return True

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def close_login(self, text: str = "") -> None:
        """Restricts authentication to the users of the broker itself. `text`: the reason, for a remark."""
        for path in [path for path in self.settings if path[0] == "listeners" and path[2] in ("auth_chain", "enable_authn")]:
            del self.settings[path]
        self.settings["auth", "chain"] = [OWN_STORE]
        if text:
            self.remark(f"{text}; no client is let in before it is among the broker's users: shardbroker ctl users add")

    def close_rules(self, text: str = "") -> None:
        """Restricts authorization to the rules of the broker itself. `text`: the reason, for a remark."""
        self.settings["acl", "sources"] = [OWN_STORE]
        self.settings["acl", "no_match"] = "deny"
        self.settings.pop(("acl", "file", "path"), None)
        self.rules = None
        if text:
            self.remark(f"{text}; nothing is allowed before there is a rule for it: shardbroker ctl acl add")


def flatten(table: dict[str, Any], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the values of tables within tables, by path."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def bind_of(value: Any) -> str:
    """Returns an address; a port alone is that of all addresses of the machine, as in EMQX."""
    text = str(value)
    return text if ":" in text else f"0.0.0.0:{text}"


def section_name(given: str) -> str:
    """Returns the name of a connector, action or source that is near a name of the other broker."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", given)[:48].lstrip("-_") or "bridge"


def to_toml(imported: Imported, source: str) -> str:
    """Returns the configuration as TOML, remarks first. Raises ConfigError if it is not valid as a whole."""
    load(None, None, [], {dotted(path): value for path, value in imported.settings.items()}, kept={}, cluster=NO_VALUES)
    lines = [f"# From {source}."]
    if imported.notes:
        lines += ["# Without consequence here:", *(f"#   {_line(text)}" for text in imported.notes)]
    if imported.remarks:
        lines += ["# Not taken over; see docs/coming-from.md:", *(f"#   {_line(text)}" for text in imported.remarks)]
    sections: dict[KeyPath, list[str]] = {}
    for path, value in imported.settings.items():
        depth = 3 if path[0] in SECTIONS else 2 if path[0] in ("gateways", "listeners", "persistence", "rules", "streams") else 1
        sections.setdefault(path[:depth], []).append(f"{dotted(path[depth:])} = {toml_value(value)}")
    for section, body in sections.items():
        lines += ["", f"[{dotted(section)}]", *body]
    return "\n".join(lines) + "\n"


def rules_toml(rules: list[dict[str, Any]], source: str) -> str:
    """Returns a file of rules for acl.file.path."""
    lines = [f"# From {source}."]
    for rule in rules:
        lines += ["", "[[rules]]", *(f"{name} = {toml_value(value)}" for name, value in rule.items())]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """Returns a text as one line of a comment."""
    return "".join(character if character.isprintable() else " " for character in text)
