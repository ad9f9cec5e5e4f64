"""The tree of a rule, as the parser makes it and the compiler reads it.

    SELECT <fields>                        FROM <filters> WHERE <condition>
    FOREACH <fields> DO <do> INCASE <case> FROM <filters> WHERE <condition>
"""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Arithmetic",
    "Binary",
    "Call",
    "Case",
    "Comparison",
    "Constant",
    "Expression",
    "Field",
    "In",
    "Index",
    "ListOf",
    "Logic",
    "Not",
    "Path",
    "Range",
    "Rule",
    "Slice",
    "Star",
    "Step",
    "Unary",
]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, text, `true` or `false`; a folded call may give bytes, null or a missing value."""

    value: int | float | str | bytes | bool | None


@dataclass(frozen=True, slots=True)
class Index:
    """`[1]`, `[-1]`, `[i]`. `number` is None for `[0]` and `[-0]`, which name the places before the first and behind the last."""

    number: int | None
    path: "Path | None" = None
    is_tail: bool = False
    """Whether `number` is None because of `[-0]`."""


Step: TypeAlias = str | Index


@dataclass(frozen=True, slots=True)
class Path:
    """`a.b[1]`: names and indexes; the first is a name."""

    steps: tuple[Step, ...]

    @property
    def root(self) -> str:
        assert isinstance(self.steps[0], str)
        return self.steps[0]


@dataclass(frozen=True, slots=True)
class Range:
    """`[1..3]`: integers, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`a.b[1..3]`: a part of an array."""

    path: Path
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[a, 1, 'x']`."""

    items: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, by its name as written."""

    name: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Unary:
    """A sign before an expression."""

    sign: str
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+ - * / div mod`."""

    operator: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`= != <> < <= > >= =~`; `<>` is kept as `!=`."""

    operator: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class In:
    """`x IN (...)`, compared strictly."""

    left: "Expression"
    items: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT condition`."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Logic:
    """`a AND b AND c` or `a OR b OR c`; flat, so that long chains are not deep."""

    operator: str
    operands: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN value ... ELSE value END`, or with `subject` `CASE subject WHEN value THEN value ...`."""

    subject: "Expression | None"
    branches: "tuple[tuple[Expression, Expression], ...]"
    otherwise: "Expression | None"


Binary: TypeAlias = Arithmetic | Comparison
Expression: TypeAlias = Constant | Path | Range | Slice | ListOf | Call | Unary | Arithmetic | Comparison | In | Not | Logic | Case


@dataclass(frozen=True, slots=True)
class Star:
    """`*`: all columns."""


@dataclass(frozen=True, slots=True)
class Field:
    """An expression, and its name behind AS if it has one."""

    value: Expression
    name: Path | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule."""

    fields: tuple[Field | Star, ...]
    filters: tuple[str, ...]
    where: Expression | None
    is_foreach: bool = False
    do: tuple[Field | Star, ...] = ()
    incase: Expression | None = None
