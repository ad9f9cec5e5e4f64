"""Text of a rule -> tokens.

Names start with a letter; keywords are names in any case, except `div` and `mod`, which are operators in lower case only. A quoted
name is `"..."`, a text is `'...'`; a doubled quote inside keeps both quotes. A comment starts with `--` and ends with its line.
"""

import re
from dataclasses import dataclass
from typing import Final

from shardbroker.rules.errors import SqlError

__all__ = ["SQL_MAX", "Token", "tokens"]

SQL_MAX: Final = 64 * 1024
"""Most characters of a rule. Longer ones are generated texts, and the time to compile grows with the length."""
DIGITS_MAX: Final = 300
"""Most digits of a number: those of the largest float; Python refuses to convert texts of more than 4,300 digits."""
KEYWORDS: Final = frozenset(
    (
        *("and", "as", "case", "do", "else", "elsif", "end", "foreach", "from"),
        *("if", "in", "incase", "not", "or", "select", "then", "when", "where"),
    )
)

TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | --[^\n]*\n)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<range>\[-?[0-9]+\.\.-?[0-9]+\])
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<int>[0-9]+)
  | (?P<name>[A-Za-z][A-Za-z0-9_$@~]*)
  | (?P<comparison>=~|!=|<>|<=|>=|=|<|>)
  | (?P<sign>[-+*/()\[\],.;])
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text. `kind`: keyword (`text` in lower case), name, text, int, float, range, sign, comparison or end."""

    kind: str
    text: str
    """Without quotes where `kind` is name or text."""
    position: int

    @property
    def shown(self) -> str:
        """Returns the token as messages name it."""
        return "the end of the text" if self.kind == "end" else f"'{self.text}'"


def tokens(sql: str) -> list[Token]:
    """Returns the tokens of a rule and a last one of kind `end`. Raises SqlError."""
    if len(sql) > SQL_MAX:
        raise SqlError(1, 1, f"at most {SQL_MAX} characters", f"{len(sql)} characters")
    found: list[Token] = []
    position = 0
    while position < len(sql):
        match = TOKEN.match(sql, position)
        if match is None:
            raise error_at(sql, position, *_expected(sql[position]))
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(_token(sql, kind, match[0], position))
        position = match.end()
    found.append(Token("end", "", len(sql)))
    return found


def _token(sql: str, kind: str, text: str, position: int) -> Token:
    if kind == "name":
        lower = text.lower()
        if lower in KEYWORDS:
            return Token("keyword", lower, position)
        return Token("sign" if text in ("div", "mod") else "name", text, position)
    if kind == "quoted":
        return Token("name", text[1:-1], position)
    if kind == "text":
        return Token("text", text[1:-1], position)
    if kind in ("int", "float", "range") and len(text) > DIGITS_MAX:
        raise error_at(sql, position, f"a number of at most {DIGITS_MAX} characters", f"{len(text)} characters")
    return Token(kind, text, position)


def _expected(character: str) -> tuple[str, str]:
    if character in "'\"":
        return f"a text that ends with {character}", "the end of the text"
    return "a name, a number, a text in '', a topic in \"\" or an operator", repr(character)


def error_at(sql: str, position: int, expected: str, found: str) -> SqlError:
    """Returns an error for this position of the text."""
    return SqlError(sql.count("\n", 0, position) + 1, position - sql.rfind("\n", 0, position), expected, found)
