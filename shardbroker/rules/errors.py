"""What is wrong with the text of a rule, and where."""

from typing import final

__all__ = ["SqlError"]

SHOWN_MAX = 40
"""Most characters of a found text in a message: texts of rules are up to 64 KiB."""


@final
class SqlError(Exception):
    """The SQL cannot be parsed; `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        shown = found if len(found) <= SHOWN_MAX else found[:SHOWN_MAX] + "..."
        super().__init__(f"line {line}, column {column}: must be {expected}, got {shown}")
        self.line = line
        self.column = column
        self.expected = expected
        self.found = shown
