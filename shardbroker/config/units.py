"""Durations and sizes as people write them: `15s`, `2h`, `infinity`; `256KB`, `1MB`."""

import re
from math import inf
from typing import Annotated

from pydantic import BeforeValidator

__all__ = ["Duration", "OptionalDuration", "Size", "format_duration", "format_size"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+)\s*(B|KB|MB|GB)?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
DURATION_HELP = "a duration such as 500ms, 15s, 2h, 1d, or infinity"
SIZE_HELP = "a size such as 65536, 256KB, 1MB"


def _duration(value: object) -> float:
    if isinstance(value, bool):
        raise ValueError(f"allowed is {DURATION_HELP}")
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip()
    if text == "infinity":
        return inf
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"allowed is {DURATION_HELP}")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _optional_duration(value: object) -> float | None:
    return None if value is None or value == "disabled" else _duration(value)


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"allowed is {SIZE_HELP}")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds; infinity means no limit."""
OptionalDuration = Annotated[float | None, BeforeValidator(_optional_duration)]
"""Seconds, or None for `disabled`."""
Size = Annotated[int, BeforeValidator(_size)]
"""Bytes."""


def format_duration(seconds: float) -> str:
    """The shortest way to write a duration."""
    if seconds == inf:
        return "infinity"
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    return f"{round(seconds * 1000)}ms" if seconds else "0s"


def format_size(size: int) -> str:
    """The shortest way to write a size."""
    for unit in ("GB", "MB", "KB"):
        if size and size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return str(size)
