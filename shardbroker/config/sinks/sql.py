"""Keys that actions on all databases with SQL share."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.units import Allowed

__all__ = ["SqlParameters"]

SQL_MAX = 65536
"""Most characters of a statement."""


class SqlParameters(Section):
    """The statement of a row."""

    sql: Annotated[str, Allowed("a statement such as INSERT INTO t (topic, payload) VALUES (${topic}, ${payload})")] = Field(
        "", max_length=SQL_MAX, description="Statement for each row; placeholders are its parameters, written without quotes."
    )
    statements: Annotated[dict[str, str], Allowed('a table such as { delete = "DELETE FROM t WHERE topic = ${topic}" }')] = Field(
        {},
        max_length=16,
        description="Other statements by name: a row whose field `statement` is such a name is written by that one, in order; "
        "not with `exactly_once`.",
    )
    undefined_vars_as_null: bool = Field(
        False, description="Whether a missing field is written as NULL; else as the text `undefined`, where the column takes one."
    )
    exactly_once: bool = Field(
        False,
        description="Whether each batch also stores its position, in the table shardbroker_cursors: no row is there twice.",
    )
