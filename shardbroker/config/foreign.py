"""Configuration of other brokers, as far as it means the same here.

A reader (`mosquitto`, `emqx`) turns a file into taken settings and remarks. Each setting is tried against the schema by itself,
those of a listener together, so one that does not fit becomes a remark with the reason, and what is printed passes the schema.

What is imported is never more open than the file. A setting about who may connect or do what that cannot be taken over, or is
unknown, closes the imported configuration (`close_login`, `close_rules`): logins are checked against the broker's own users, of
which there are none yet, and topics against its own rules.
"""

from dataclasses import dataclass, field
from typing import Any

from shardbroker.config.errors import ConfigError
from shardbroker.config.keys import KeyPath, dotted, toml_value
from shardbroker.config.sources import load

__all__ = ["Imported", "rules_toml", "to_toml"]

OWN_STORE = "builtin"
"""Of users, and of rules: empty in a new broker, so that it refuses."""


@dataclass
class Imported:
    """What was read: settings by path, and what a person has to look at. `rules`: tables as in a file of rules, to be written by
    whoever has a place for them."""

    settings: dict[KeyPath, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What has no consequence here, such as where the other broker's log is."""
    rules: list[dict[str, Any]] | None = None

    def take(self, path: KeyPath, value: Any, said: str) -> bool:
        """`said` is the line of the other file, for a remark if the value does not fit. Whether it does."""
        return self.take_together({path: value}, said)

    def take_together(self, values: dict[KeyPath, Any], said: str) -> bool:
        """Settings that make sense beside each other only, such as those of a listener: all of them, or none."""
        try:
            load(None, None, [], {dotted(path): value for path, value in values.items()}, kept={})
        except ConfigError as error:
            self.remarks.append(f"{said}: {' '.join(str(error).replace(' (command line)', '').split())}")
            return False
        self.settings |= values
        return True

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def close_login(self, text: str = "") -> None:
        """Clients are checked against the broker's own users, whatever else there was. `text`: why, for a remark."""
        for path in [path for path in self.settings if path[0] == "listeners" and path[2] in ("auth_chain", "enable_authn")]:
            del self.settings[path]
        self.settings["auth", "chain"] = [OWN_STORE]
        if text:
            self.remark(f"{text}; no client is let in before it is among the broker's users: shardbroker ctl users add")

    def close_rules(self, text: str = "") -> None:
        """Nothing is allowed but by the broker's own rules. `text`: why, for a remark."""
        self.settings["acl", "sources"] = [OWN_STORE]
        self.settings["acl", "no_match"] = "deny"
        self.settings.pop(("acl", "file", "path"), None)
        self.rules = None
        if text:
            self.remark(f"{text}; nothing is allowed before there is a rule for it: shardbroker ctl acl add")


def to_toml(imported: Imported, source: str) -> str:
    """The configuration as TOML, remarks first. Raises ConfigError if the whole does not fit together."""
    load(None, None, [], {dotted(path): value for path, value in imported.settings.items()}, kept={})
    lines = [f"# From {source}."]
    if imported.notes:
        lines += ["# Without consequence here:", *(f"#   {_line(text)}" for text in imported.notes)]
    if imported.remarks:
        lines += ["# Not taken over; see docs/coming-from.md:", *(f"#   {_line(text)}" for text in imported.remarks)]
    sections: dict[KeyPath, list[str]] = {}
    for path, value in imported.settings.items():
        depth = 2 if path[0] == "listeners" else 1
        sections.setdefault(path[:depth], []).append(f"{dotted(path[depth:])} = {toml_value(value)}")
    for section, body in sections.items():
        lines += ["", f"[{dotted(section)}]", *body]
    return "\n".join(lines) + "\n"


def rules_toml(rules: list[dict[str, Any]], source: str) -> str:
    """A file of rules for acl.file.path."""
    lines = [f"# From {source}."]
    for rule in rules:
        lines += ["", "[[rules]]", *(f"{name} = {toml_value(value)}" for name, value in rule.items())]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """One line of a comment, whatever a value holds."""
    return "".join(character if character.isprintable() else " " for character in text)
