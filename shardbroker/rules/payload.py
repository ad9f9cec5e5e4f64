"""The payload of a message as JSON, decoded once for all rules."""

import json
import re
from typing import Any, Final

from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

try:
    import orjson
except ImportError:  # the extra `rules` is not installed
    orjson = None  # type: ignore[assignment]

__all__ = ["Payload", "decode"]

BIG_NUMBER = re.compile(r"[0-9]{19}")
"""What may be an integer above 64 bits, which orjson makes a float."""
SAMPLES = slice(8, None, 9)
"""19 digits in a row include two of these characters next to each other: the search in a ninth of the text is the quicker one."""
TWO_DIGITS = re.compile(r"[0-9][0-9]")
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""What may be half a character, which `json` accepts and orjson refuses."""
SHOWN_MAX: Final = 40
"""Most characters of a payload in a message."""


def decode(text: Value) -> Value:
    """Returns the value of a JSON text. Raises ValueError."""
    if isinstance(text, bytes):
        raise ValueError("must be UTF-8")
    if orjson is not None and (TWO_DIGITS.search(text[SAMPLES]) is None or BIG_NUMBER.search(text) is None):
        return orjson.loads(text)
    try:
        value = json.loads(text, parse_constant=_refuse)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("must be nested less deeply") from None
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"must be JSON, got {name}")


class Payload:
    """A payload that is decoded when the first rule needs it."""

    __slots__ = ("_failed", "_map", "_value", "raw")

    def __init__(self, raw: Value) -> None:
        self.raw = raw
        self._value: Value = self
        self._map: dict[str, Value] | None = None
        self._failed = False

    def value(self) -> Value:
        """Returns the decoded payload; a payload that is no text is returned as it is. Raises EvaluationError."""
        if self._value is self:
            self._value = self._decoded()
        return self._value

    def map(self) -> dict[str, Value]:
        """Returns the decoded payload, or an empty map for another value, in which no name is found. Raises EvaluationError."""
        if self._map is None:
            value = self.value()
            if isinstance(value, str):
                value = nested(value)
            self._map = value if type(value) is dict else {}
        return self._map

    def _decoded(self) -> Value:
        if not isinstance(self.raw, str | bytes):
            return self.raw
        if not self._failed:
            try:
                return decode(self.raw)
            except ValueError:
                self._failed = True
        raise EvaluationError(f"payload: must be JSON, got {self.raw[:SHOWN_MAX]!r}")


def nested(text: str | bytes) -> Value:
    """Returns the value of a JSON text inside a payload, or `UNDEFINED`."""
    try:
        return decode(text)
    except ValueError:
        return UNDEFINED
