"""Log lines: a fixed lower-case phrase, then `key=value` pairs. docs/log-lines.md lists every phrase.

Every function that takes a line is annotated with `Line`, so mypy refuses free text. The manager, which gets lines of other
processes as bytes, converts them back with `Line(...)`.
"""

import sys
from datetime import UTC, datetime
from typing import NewType

__all__ = ["Line", "log_line", "of_process", "print_line", "shown"]

Line = NewType("Line", str)
"""A line without its time and level."""


def log_line(phrase: str, **fields: object) -> Line:
    """Returns a line. `phrase` is a string literal: the test of docs/log-lines.md collects it from the source."""
    return Line(" ".join([phrase, *(f"{name}={shown(value)}" for name, value in fields.items())]))


def of_process(title: str, line: Line) -> Line:
    """Returns a line with the title of the process that it is about in front."""
    return Line(f"{title}: {line}")


def print_line(level: str, title: str, line: Line) -> None:
    """Writes a line to standard error at once, for processes that have no Log."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        print(f"{at} {level.upper()} {title}: {line}", file=sys.stderr, flush=True)
    except OSError:
        pass  # standard error is closed; the process continues


def shown(value: object) -> str:
    """Returns a value as a line has it: in double quotes, with escapes, unless it is printable and has no space, quote or `=`."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "\\='):
        return text
    return '"' + "".join([_escape(c) for c in text]) + '"'


def _escape(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else c.encode("unicode_escape").decode()
