"""Templates of actions: `${a.b}` is a field of a rule's result, `${.}` all of it as JSON, `${.a}` the same as `${a}`.

A missing field is written as `undefined`. `$` without a bracket, and a bracket that is not closed, are text.
"""

import re
from dataclasses import dataclass
from typing import Final

from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.paths import get
from shardbroker.rules.syntax import Index, Step
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["TEMPLATE_MAX", "Template", "template"]

TEMPLATE_MAX: Final = 256 * 1024
"""Most characters of a template."""
PLACEHOLDER = re.compile(r"\$\{([^${}]*)\}")
NAME_OR_INDEX = re.compile(r"[^.\[\]]+|\[-?[0-9]{1,9}\]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: texts, and paths between them."""

    parts: tuple[str | tuple[Step, ...], ...]

    def render(self, fields: dict[str, Value]) -> str:
        """Returns the text for these fields. Raises EvaluationError."""
        return "".join([one if isinstance(one, str) else _text(self.value(fields, one)) for one in self.parts])

    @staticmethod
    def value(fields: dict[str, Value], steps: tuple[Step, ...]) -> Value:
        """Returns the value of one placeholder, or `UNDEFINED`."""
        if len(steps) == 1 and type(steps[0]) is str and type(fields) is dict:
            return fields.get(steps[0], UNDEFINED)
        return get(fields, steps) if steps else fields

    @property
    def is_constant(self) -> bool:
        """Returns whether the template has no placeholder."""
        return all(isinstance(one, str) for one in self.parts)


def template(text: str) -> Template:
    """Parses a template. Raises EvaluationError if it is too long."""
    if len(text) > TEMPLATE_MAX:
        raise EvaluationError(f"template: must be at most {TEMPLATE_MAX} characters, got {len(text)}")
    parts: list[str | tuple[Step, ...]] = []
    position = 0
    for match in PLACEHOLDER.finditer(text):
        if position < match.start():
            parts.append(text[position : match.start()])
        parts.append(_steps(match[1]))
        position = match.end()
    if position < len(text):
        parts.append(text[position:])
    return Template(tuple(parts))


def _steps(path: str) -> tuple[Step, ...]:
    """Returns the steps of `a.b[1]` or `.a`; none for `.`."""
    return tuple(Index(int(one[1:-1]) or None) if one[0] == "[" else one for one in NAME_OR_INDEX.findall(path))


def _text(value: Value) -> str:
    if type(value) is str:
        return value
    shown = text_of(value) if value is not UNDEFINED else "undefined"
    return shown if isinstance(shown, str) else shown.decode(errors="replace")
