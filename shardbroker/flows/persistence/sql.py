"""What presets of databases with SQL share: parameters of actions, and schemas of several statements."""

from importlib.resources import files
from typing import Any, NamedTuple

__all__ = ["Statements", "schema_of", "sql_parameters"]


class Statements(NamedTuple):
    """The statements of a database, each of which changes nothing when it is repeated, or older than what is stored."""

    client: str
    offline: str
    """Of clients that were online before the start of the broker."""
    subscription: str
    unsubscription: str
    message: str
    acked_message: str
    """Removes a message."""
    retained: str
    removed: str
    position: str

    def parameters(self, part: str, section: Any) -> dict[str, Any]:
        """Returns the parameters of the action of a part."""
        deletes = {"delete": self.acked_message} if section.acked and section.on_acked == "delete" else {}
        return {
            "clients": sql_parameters(self.client, offline=self.offline),
            "subscriptions": sql_parameters(self.subscription, delete=self.unsubscription),
            "messages": sql_parameters(self.message, **deletes),
            "retained": sql_parameters(self.retained, delete=self.removed),
            "acked": sql_parameters(self.position),
        }[part]


def sql_parameters(statement: str, **others: str) -> dict[str, Any]:
    """Returns the parameters of an action. others: statements by name."""
    return {"sql": statement, "statements": others, "undefined_vars_as_null": True}


def schema_of(file: str) -> list[str]:
    """Returns the statements of a file of `schemas`: each ends with a semicolon at the end of a line."""
    text = files("shardbroker.flows.persistence").joinpath("schemas", file).read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [one.strip() for one in lines.split(";\n") if one.strip(" \n;")]
