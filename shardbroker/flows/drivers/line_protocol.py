r"""Line protocol of InfluxDB from templates: `measurement,tag=${a} field=${b},count=${c}i ${timestamp}`.

A template is split once, and each value is written for its place, so that no text of a client adds a tag, a field or a line:

| place | value |
|---|---|
| measurement, tag, name | text; `,`, `=`, space, line ends are escaped; a backslash before these or last is left out |
| `f=${a}` | number, boolean, or text in quotes |
| `f=${a}i`, `f=${a}u` | an integer, also as a float or text |
| `f="...${a}..."` | text in quotes; a line feed becomes the two characters `\n` |
| time | an integer; by default the time of the record |

A tag or field whose value is missing, null or not finite is left out; a point without fields is an error.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shardbroker.flows.drivers.getters import Getter
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.templates import PLACEHOLDER, template
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["PointError", "Points", "line_protocol"]

BEGIN, END = "\ue000", "\ue001"
"""Around the number of a placeholder while a template is split; not allowed in a template."""
MARK = re.compile(f"({BEGIN}[0-9]+{END})")
SPECIAL = re.compile(r"[\\,= \n\r\t\f]")
LOST_BACKSLASH = re.compile(r"\\+(?=[,= \n\r\t\f]|$)")
"""Servers differ in whether two backslashes before a comma escape it."""
NAMES = str.maketrans({",": r"\,", "=": r"\=", " ": r"\ ", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"})
QUOTED = re.compile(r'["\\\n]')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[iu]")
BOOLEANS = {"t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE"}
INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
RANGES = {"i": (-(2**63), 2**63 - 1), "u": (0, 2**64 - 1)}
PER_MS = {"ns": 1_000_000, "us": 1_000, "ms": 1, "s": 0.001}
"""Units of a precision in a millisecond."""
NAME_MAX = 64 * 1024
"""Most bytes of a measurement, a tag or a name: the limit of InfluxDB 1 for all of them together."""

Piece = Callable[[Row], str]
"""Returns the text of a part of a point; empty: it is left out."""


class PointError(Exception):
    """A row has no point; the text names the part of the template and no value."""


class Points(NamedTuple):
    """write: returns the points of a row, one in each line, without the last line end. Raises PointError."""

    write: Callable[[Row], str]
    lines: int


def line_protocol(text: str, precision: str) -> Points:
    """Returns what writes the points of a row. Raises ValueError for a wrong template."""
    if BEGIN in text or END in text:
        raise ValueError(f"must not have the characters {BEGIN!r} and {END!r}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("must be at least one line such as measurement,tag=${a} field=${b}")
    points = [_Point(line, precision) for line in lines]
    if len(points) == 1:
        return Points(points[0].write, 1)
    return Points(lambda row: "\n".join([one.write(row) for one in points]), len(points))


@dataclass(frozen=True, slots=True)
class _Text:
    """A part of a template: texts, and getters between them."""

    parts: list[str | Getter]

    @property
    def constant(self) -> str | None:
        return "".join(map(str, self.parts)) if all(isinstance(one, str) for one in self.parts) else None

    def value(self, row: Row) -> str | None:
        """Returns the text; None if the template is one placeholder whose value is missing."""
        if len(self.parts) == 1 and not isinstance(get := self.parts[0], str):
            value = get(row)
            if type(value) is str:
                return value
            return None if value is UNDEFINED or value is None else _shown(value)
        return "".join([one if isinstance(one, str) else _shown(one(row)) for one in self.parts])


class _Point:
    """A line of a template."""

    def __init__(self, line: str, precision: str) -> None:
        self._getters: list[Getter] = []
        parts = [one for one in _split(PLACEHOLDER.sub(self._mark, line), " ") if one]
        if not 2 <= len(parts) <= 3:
            raise ValueError(f"must be measurement[,tags] fields [time] in each line, got {line[:100]!r}")
        head, fields, time = [*parts, ""][:3]
        measurement, *tags = _split(head, ",")
        self._measurement = self._text(measurement)
        self._constant_measurement = _name(constant) if (constant := self._measurement.constant) is not None else None
        self._tags = [self._tag(one) for one in tags]
        self._fields = [self._field(one) for one in _split(fields, ",")]
        self._time = self._time_of(time, precision)

    def write(self, row: Row) -> str:
        try:
            measurement = self._constant_measurement or _name(self._measurement.value(row) or "")
            if not measurement or measurement.startswith("#"):
                raise PointError("the measurement must not be empty or begin with #")
            tags = "".join([one(row) for one in self._tags])
            fields = ",".join([text for one in self._fields if (text := one(row))])
            if not fields:
                raise PointError("no field has a value")
            return f"{measurement}{tags} {fields} {self._time(row)}"
        except EvaluationError:
            raise PointError("a value cannot be written as text") from None

    def _mark(self, found: re.Match[str]) -> str:
        (steps,) = template(found[0]).parts
        assert not isinstance(steps, str)
        self._getters.append(Getter(steps))
        return f"{BEGIN}{len(self._getters) - 1}{END}"

    def _text(self, marked: str) -> _Text:
        return _Text([re.sub(r"\\([,= ])", r"\1", one) if isinstance(one, str) else one for one in self._raw(marked)])

    def _pair(self, marked: str) -> tuple[str, str]:
        name, *rest = _split(marked, "=")
        if not name or not rest:
            raise ValueError(f"must be name=value, got {self._shown(marked)!r}")
        return name, "=".join(rest)

    def _shown(self, marked: str) -> str:
        return MARK.sub("${...}", marked)[:100]

    def _tag(self, marked: str) -> Piece:
        name, value = map(self._text, self._pair(marked))
        if (constant := name.constant) is not None:
            before = f",{_name(constant)}="
            return lambda row: before + text if (text := _name(value.value(row) or "")) else ""

        def write(row: Row) -> str:
            key, text = _name(name.value(row) or ""), _name(value.value(row) or "")
            return f",{key}={text}" if key and text else ""

        return write

    def _field(self, marked: str) -> Piece:
        key, marked_value = self._pair(marked)
        name = self._text(key)
        shown = self._shown(key)
        value = self._field_value(marked_value, shown)
        if (constant := name.constant) is not None:
            before = f"{_name(constant)}="
            return lambda row: before + text if (text := value(row)) else ""

        def write(row: Row) -> str:
            named, text = _name(name.value(row) or ""), value(row)
            return f"{named}={text}" if named and text else ""

        return write

    def _field_value(self, marked: str, name: str) -> Piece:
        if len(marked) > 1 and marked[0] == marked[-1] == '"':
            return _in_quotes(
                _Text([re.sub(r"\\(.)", r"\1", one) if isinstance(one, str) else one for one in self._raw(marked[1:-1])])
            )
        parts = self._raw(marked)
        if len(parts) == 1 and isinstance(parts[0], str) and (NUMBER.fullmatch(parts[0]) or parts[0] in BOOLEANS):
            constant = parts[0]
            return lambda row: constant
        if parts and not isinstance(parts[0], str):
            get = parts[0]
            if len(parts) == 1:
                return lambda row: _scalar(get(row))
            if len(parts) == 2 and parts[1] in RANGES:
                suffix = str(parts[1])
                return lambda row: _whole(get(row), suffix, name)
        raise ValueError(f"field {name}: must be a placeholder with or without i or u, a number, a boolean or text in quotes")

    def _raw(self, marked: str) -> list[str | Getter]:
        return [self._getters[int(one[1:-1])] if one[0] == BEGIN else one for one in MARK.split(marked) if one]

    def _time_of(self, marked: str, precision: str) -> Piece:
        per_ms = PER_MS[precision]
        parts = self._raw(marked)
        if not parts:
            return lambda row: str(int(row.at_ms * per_ms))
        if len(parts) > 1 or (isinstance(parts[0], str) and not INTEGER.fullmatch(parts[0])):
            raise ValueError("the time must be one placeholder or an integer")
        (only,) = parts
        if isinstance(only, str):
            return lambda row: only
        return lambda row: _whole(only(row), "i", "time")[:-1] or str(int(row.at_ms * per_ms))


def _split(text: str, at: str) -> list[str]:
    """Splits at a character that is not escaped and not within quotes."""
    parts, begin, quoted, index = [], 0, False, 0
    while index < len(text):
        if text[index] == "\\":
            index += 1
        elif text[index] == '"' and (quoted or text[index - 1 : index] == "="):
            quoted = not quoted
        elif text[index] == at and not quoted:
            parts.append(text[begin:index])
            begin = index + 1
        index += 1
    return [*parts, text[begin:]]


def _name(text: str) -> str:
    """Returns a measurement, a tag or a name as it is written."""
    if SPECIAL.search(text) is not None:
        text = LOST_BACKSLASH.sub("", text).translate(NAMES)
    if len(text) > NAME_MAX:
        raise PointError(f"a measurement, a tag or a name is longer than {NAME_MAX} characters")
    return text


def _quote(text: str) -> str:
    """Returns text in quotes. InfluxDB takes line feeds within them; VictoriaMetrics ends the line there."""
    if QUOTED.search(text) is not None:
        text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{text}"'


def _in_quotes(text: _Text) -> Piece:
    def write(row: Row) -> str:
        value = text.value(row)
        return "" if value is None else _quote(value)

    return write


def _shown(value: Value) -> str:
    if type(value) is str:
        return value
    shown = text_of(value)
    return shown if isinstance(shown, str) else shown.decode(errors="replace")


def _scalar(value: Value) -> str:
    kind = type(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else ""
    if kind is int:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if value is UNDEFINED or value is None:
        return ""
    return _quote(_shown(value))


def _whole(value: Value, suffix: str, name: str) -> str:
    low, high = RANGES[suffix]
    if type(value) is int and low <= value <= high:
        return f"{value}{suffix}"
    if (type(value) is float and value.is_integer()) or (isinstance(value, str) and INTEGER.fullmatch(value)):
        value = int(value)
    if value is UNDEFINED or value is None or (type(value) is float and not math.isfinite(value)):
        return ""
    if type(value) is not int or not low <= value <= high:
        raise PointError(f"{name}: must be an integer from {low} to {high}")
    return f"{value}{suffix}"
