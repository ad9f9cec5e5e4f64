"""Tables for terminals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["console", "fields", "line", "rows"]

PIPE_WIDTH = 1000
"""Columns if the output is not a terminal: nothing is cut for a program that reads it."""

Human = Callable[[str, Any], str]


def console() -> Console:
    """Returns a console for standard output."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def rows(columns: Sequence[str], data: Iterable[Mapping[str, Any]], cursor: str | None, human: Human) -> None:
    """Prints a table, and a hint below it if there are more rows."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    count = 0
    for row in data:
        table.add_row(*(escape(human(column, row.get(column))) for column in columns))
        count += 1
    out.print(table)
    more = f"; more with --cursor {cursor}, or --all" if cursor else ""
    out.print(f"{count} {'row' if count == 1 else 'rows'}{more}", style="dim", soft_wrap=True)


def fields(data: Mapping[str, Any], human: Human) -> None:
    """Prints names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in data.items():
        table.add_row(escape(name), escape(human(name, value)))
    console().print(table)


def line(data: Any, human: Human) -> None:
    """Prints one item of a stream."""
    if isinstance(data, Mapping):
        print("  ".join(f"{name} {human(name, value)}" for name, value in data.items()), flush=True)
    else:
        print(data, flush=True)
