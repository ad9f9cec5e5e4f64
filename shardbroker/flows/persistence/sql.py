"""What presets of databases with SQL share: parameters of actions, and schemas of several statements."""

from importlib.resources import files
from typing import Any

__all__ = ["schema_of", "sql_parameters"]


def sql_parameters(statement: str, **others: str) -> dict[str, Any]:
    """Returns the parameters of an action. others: statements by name."""
    return {"sql": statement, "statements": others, "undefined_vars_as_null": True}


def schema_of(file: str) -> list[str]:
    """Returns the statements of a file of `schemas`: each ends with a semicolon at the end of a line."""
    text = files("shardbroker.flows.persistence").joinpath("schemas", file).read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [one.strip() for one in lines.split(";\n") if one.strip(" \n;")]
