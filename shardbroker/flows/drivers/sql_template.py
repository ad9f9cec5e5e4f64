"""Statements of SQL and CQL with placeholders: `INSERT INTO t (a, b) VALUES (${x}, ${payload.y})`.

A placeholder is a parameter of the statement: its value is never a part of the SQL. The text is read once, with the strings, quoted
names and comments of the dialect. Comments are left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from shardbroker.flows.sinks.row import Row
from shardbroker.rules.syntax import Step
from shardbroker.rules.templates import PLACEHOLDER, template
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["Dialect", "Insert", "Part", "Placeholder", "Statement", "column_of", "statement"]

PLACEHOLDERS_MAX: Final = 1000
"""Most placeholders of a statement: a table of PostgreSQL has at most 1600 columns."""
NAMES_FOLLOW: Final = frozenset({"INTO", "UPDATE", "FROM", "JOIN", "TABLE", "AS", "COLUMN", "CONSTRAINT"})
"""Words before a name, which cannot be a parameter."""


class Dialect(Enum):
    """What differs in strings, names and comments."""

    POSTGRESQL = "PostgreSQL"
    MYSQL = "MySQL"
    CASSANDRA = "Cassandra"

    @property
    def key(self) -> str:
        """The key of a statement, for errors."""
        return "cql" if self is Dialect.CASSANDRA else "sql"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """text: as it is written, for errors."""

    text: str
    steps: tuple[Step, ...]


Part = str | Placeholder


@dataclass(frozen=True, slots=True)
class Insert:
    """`INSERT ... VALUES (...) ...` of one row, whose placeholders are all between the brackets."""

    head: str
    """The text before VALUES."""
    table: tuple[str, ...]
    """Schema and table, without quotes; in lower case unless quoted or MySQL's. Empty: not understood."""
    columns: tuple[str, ...]
    """Empty: none are named, or not understood."""
    values: tuple[tuple[Part, ...], ...]
    tail: str
    """The text after the closing bracket."""

    @property
    def is_bare(self) -> bool:
        """Whether each value is a placeholder and nothing else."""
        return all(len(value) == 1 and isinstance(value[0], Placeholder) for value in self.values)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. insert: the same, if it is one that can be written for many rows at a time. words: outside of quotes and
    comments, in capitals."""

    parts: tuple[Part, ...]
    insert: Insert | None
    words: frozenset[str] = frozenset()

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @property
    def verb(self) -> str:
        """The first word, in capitals."""
        found = re.match(r"\s*(\w+)", self.parts[0]) if isinstance(self.parts[0], str) else None
        return found[1].upper() if found else ""


def column_of(placeholder: Placeholder, rows: Sequence[Row]) -> list[Value]:
    """Returns the values of one placeholder."""
    steps = placeholder.steps
    if len(steps) == 1 and type(steps[0]) is str and steps[0] not in ("id", "position"):
        name = steps[0]
        return [row.values.get(name, UNDEFINED) for row in rows]
    return [row.value(steps) for row in rows]


# --- tokens -----------------------------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    kind: str
    text: str
    at: int


COMMON: Final = r"(?P<placeholder>\$\{[^${}]*\})|(?P<space>\s+)|"
ENDS: Final = r"(?P<parameter>\$[0-9]+)|(?P<word>[^\W\d](?:\w|\$(?!\{))*)|(?P<number>[0-9][\w.]*)|(?P<other>.)"
TOKENS: Final = {
    Dialect.POSTGRESQL: re.compile(
        COMMON
        + r"(?P<comment>--[^\n]*|/\*)"
        + r"|(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)"
        + r'|(?P<name>"(?:[^"]|"")*")|'
        + ENDS,
        re.DOTALL,
    ),
    Dialect.MYSQL: re.compile(
        COMMON
        + r"(?P<hint>/\*[!+M].*?\*/)"
        + r"|(?P<comment>--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*.*?\*/)"
        + r"""|(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
        + r"|(?P<name>`(?:[^`]|``)*`)|"
        + ENDS,
        re.DOTALL,
    ),
    Dialect.CASSANDRA: re.compile(
        COMMON
        + r"(?P<comment>(?:--|//)[^\n]*|/\*.*?\*/)"
        + r"|(?P<string>'(?:[^']|'')*'|\$\$.*?\$\$)"
        + r'|(?P<name>"(?:[^"]|"")*")|'
        + ENDS,
        re.DOTALL,
    ),
}
NESTED: Final = re.compile(r"/\*|\*/")


def _tokens(sql: str, dialect: Dialect) -> list[Token]:
    """Returns the tokens, with a space for each comment. Raises ValueError."""
    found: list[Token] = []
    at, pattern = 0, TOKENS[dialect]
    while at < len(sql):
        match = pattern.match(sql, at)
        assert match is not None, "`other` matches any character"
        kind, text, end = match.lastgroup or "", match[0], match.end()
        if match["string"] is not None:
            kind = "string"
        if text == "/*" and kind == "comment":
            end = _end_of_comment(sql, at)
        if kind == "comment":
            kind, text = "space", " "
        elif kind == "other" and (text in "'\"`" or sql.startswith("/*", at)):
            opened = text if text in "'\"`" else "/*"
            raise ValueError(f"must close what it opens, got {opened} at {_place(sql, at)} without its end")
        found.append(Token(kind, text, at))
        at = end
    return found


def _end_of_comment(sql: str, at: int) -> int:
    """Returns the end of a comment, which may hold others."""
    depth = 0
    for mark in NESTED.finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    raise ValueError(f"must close what it opens, got /* at {_place(sql, at)} without its end")


def _place(sql: str, at: int) -> str:
    line = sql.count("\n", 0, at) + 1
    return f"line {line}, column {at - sql.rfind(chr(10), 0, at)}"


# --- statements -------------------------------------------------------------------------------------------------------------------


def statement(sql: str, dialect: Dialect) -> Statement:
    """Reads a template. Raises ValueError with the place of what cannot be used."""
    try:
        return _statement(sql, dialect)
    except ValueError as error:
        raise ValueError(f"{dialect.key}: {error}") from None


def _statement(sql: str, dialect: Dialect) -> Statement:
    tokens = _tokens(sql, dialect)
    while tokens and (tokens[-1].kind == "space" or tokens[-1].text == ";"):
        tokens.pop()
    if not tokens:
        raise ValueError("must be a statement such as INSERT INTO t (topic) VALUES (${topic}), got an empty text")
    _check(sql, tokens)
    words = frozenset(token.text.upper() for token in tokens if token.kind == "word")
    return Statement(_parts(tokens), _insert(tokens, dialect), words)


def _check(sql: str, tokens: Sequence[Token]) -> None:
    """Raises ValueError for placeholders where no parameter can be, and for a second statement."""
    count, word = 0, ""
    for index, (kind, text, at) in enumerate(tokens):
        if kind in ("string", "name", "hint") and (inner := PLACEHOLDER.search(text)):
            what = "quoted name" if kind == "name" else "comment for the server" if kind == "hint" else "string"
            raise ValueError(
                f"must have placeholders outside of quotes, got {inner[0]} in a {what} at {_place(sql, at + inner.start())};"
                " a placeholder is a parameter, written without quotes"
            )
        if kind == "parameter":
            raise ValueError(f"must have placeholders such as ${{topic}}, got {text} at {_place(sql, at)}")
        if text == ";":
            raise ValueError(f"must be one statement, got another behind {_place(sql, at)}")
        if kind == "placeholder":
            count += 1
            touching = [*tokens[max(index - 1, 0) : index], *tokens[index + 1 : index + 2]]
            if word in NAMES_FOLLOW or any(one.kind not in ("space", "other") or one.text == "." for one in touching):
                raise ValueError(f"must have placeholders for values only, got {text} for a name at {_place(sql, at)}")
        if kind != "space":
            word = text.upper() if kind == "word" else ""
    if count > PLACEHOLDERS_MAX:
        raise ValueError(f"must have at most {PLACEHOLDERS_MAX} placeholders, got {count}")


def _parts(tokens: Sequence[Token]) -> tuple[Part, ...]:
    """Joins what is between placeholders."""
    parts: list[Part] = []
    for token in tokens:
        if token.kind == "placeholder":
            steps = template(token.text).parts[0]
            assert not isinstance(steps, str)
            parts.append(Placeholder(token.text, steps))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += token.text
        else:
            parts.append(token.text)
    return tuple(parts)


def _insert(tokens: Sequence[Token], dialect: Dialect) -> Insert | None:
    """Returns the parts of an INSERT of one row; None for other statements."""
    verbs = ("INSERT", "REPLACE") if dialect is Dialect.MYSQL else ("INSERT",)
    first = next(token for token in tokens if token.kind != "space")
    if first.kind != "word" or first.text.upper() not in verbs:
        return None
    begin = _at_top(tokens, 0, ("VALUES", "VALUE") if dialect is Dialect.MYSQL else ("VALUES",))
    opening = next((at for at in range(begin + 1, len(tokens)) if tokens[at].kind != "space"), len(tokens))
    if begin < 0 or opening == len(tokens) or tokens[opening].text != "(":
        return None
    values, end = _values(tokens, opening)
    head, tail = tokens[:begin], tokens[end + 1 :]
    following = next((token.text for token in tail if token.kind != "space"), "")
    if following == "," or any(token.kind == "placeholder" for token in (*head, *tail)):
        return None
    table, columns = _target(head, dialect)
    return Insert(_text(head), table, columns, tuple(_parts(value) for value in values), _text(tail))


def _at_top(tokens: Sequence[Token], start: int, words: Sequence[str]) -> int:
    """Returns the index of the first of these words outside of brackets, or -1."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if not depth and tokens[index].kind == "word" and tokens[index].text.upper() in words:
            return index
    return -1


def _values(tokens: Sequence[Token], opening: int) -> tuple[list[list[Token]], int]:
    """Returns the tokens of each value of a list in brackets, and the index of its end."""
    values: list[list[Token]] = [[]]
    depth = 0
    for index in range(opening + 1, len(tokens)):
        token = tokens[index]
        if token.text == ")" and not depth:
            return [_stripped(value) for value in values], index
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(token.text, 0)
        if token.text == "," and not depth:
            values.append([])
        else:
            values[-1].append(token)
    raise ValueError("must close what it opens, got VALUES ( without its end")


def _stripped(tokens: list[Token]) -> list[Token]:
    while tokens and tokens[0].kind == "space":
        tokens = tokens[1:]
    while tokens and tokens[-1].kind == "space":
        tokens = tokens[:-1]
    return tokens


def _text(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens).strip()


def _target(head: Sequence[Token], dialect: Dialect) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of table and columns of `INSERT INTO a.b (c, d)`; empty ones where it is written in another way."""
    tokens = [token for token in head if token.kind != "space"]
    into = next((index for index, token in enumerate(tokens) if token.kind == "word" and token.text.upper() == "INTO"), -1)
    opening = next((index for index, token in enumerate(tokens) if token.text == "("), len(tokens))
    table = _names(tokens[into + 1 : opening], ".", dialect) if into >= 0 else ()
    if opening == len(tokens) or tokens[-1].text != ")":
        return table, ()
    return table, _names(tokens[opening + 1 : -1], ",", dialect)


def _names(tokens: Sequence[Token], between: str, dialect: Dialect) -> tuple[str, ...]:
    """Returns names that are separated by a character; none if there is anything else."""
    if any(token.text != between for token in tokens[1::2]) or any(one.kind not in ("word", "name") for one in tokens[::2]):
        return ()
    return tuple(_name(token, dialect) for token in tokens[::2])


def _name(token: Token, dialect: Dialect) -> str:
    if token.kind == "name":
        quote = token.text[0]
        return token.text[1:-1].replace(quote * 2, quote)
    return token.text if dialect is Dialect.MYSQL else token.text.lower()
