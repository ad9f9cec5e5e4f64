"""Positions of journals that are stored by the transaction that writes the rows: each row is there once.

The table has a row for each journal of an action. A batch moves it from at most its first position to behind its last one. If it is
further already, another transaction has written some of these rows: the batch is undone, and open() reads the position again.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.sinks.row import Row

__all__ = ["TABLE", "CursorMoved", "Span", "spans"]

TABLE: Final = "shardbroker_cursors"


class CursorMoved(ConnectorError):
    """Rows of a batch are there already."""

    def __init__(self, span: "Span") -> None:
        super().__init__(f"{TABLE}: journal {span.journal} is beyond position {span.first}: the last batch was written after all")


class Span(NamedTuple):
    """Positions of a batch in one journal."""

    journal: str
    first: int
    behind: int


def spans(rows: Sequence[Row]) -> list[Span]:
    """Returns the positions of rows by journal, which ascend."""
    found: dict[str, Span] = {}
    for row in rows:
        span = found.get(row.journal)
        found[row.journal] = Span(row.journal, row.position if span is None else span.first, row.position + 1)
    return list(found.values())
