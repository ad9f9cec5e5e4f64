"""Durations, sizes and limits with their notation: `15s`, `2h`, `infinity`; `256KB`, `1MB`."""

import re
from dataclasses import dataclass
from enum import Enum
from math import inf, isnan
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

__all__ = [
    "Allowed",
    "ByteRate",
    "Duration",
    "Limit",
    "MemoryMark",
    "Number",
    "OptionalDuration",
    "Rate",
    "Secret",
    "Size",
    "Unit",
    "Whole",
    "format_duration",
    "format_rate",
    "format_size",
    "mark_bytes",
    "parse_duration",
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+)\s*(B|KB|MB|GB)?", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:\s*/\s*(\d+)?(ms|s|m|h|d))?", re.ASCII)
_BYTES_OF_RATE = re.compile(r"(\d+)\s*(B|KB|MB|GB)(?=\s*(?:/|$))", re.ASCII | re.IGNORECASE)
_LEAST_RATE, _MOST_RATE = 1 / 86400, 1e9
"""Bounds of rates, per second: from one per day to more than a machine achieves."""
_LONGEST_S = 36500 * 86400.0
"""Longest finite duration, seconds: a hundred years, which in milliseconds still fits every counter."""
LEAST_MARK = 128 << 20
"""Lowest memory limit, bytes: a broker without clients needs about half of it."""
SECRET_FILE = "file:"
"""Prefix of a secret that is read from a file."""
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


class Unit(Enum):
    """Unit of a number, in the metadata of a field: it determines the notation."""

    DURATION = "duration"
    SIZE = "size"
    LIMIT = "limit"
    RATE = "rate"
    SECRET = "secret"


@dataclass(frozen=True)
class Allowed:
    """Description of what a field allows, where its type is not sufficient."""

    text: str


# `keys.allowed_text` replaces the text of these errors by what the field allows, with bounds.
def parse_duration(value: object) -> float:
    """Returns the seconds of a duration. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("not a duration")
    if isinstance(value, int | float):
        seconds = float(min(value, 2 * _LONGEST_S) if value != inf else inf)  # float() overflows on huge integers
    elif (text := str(value).strip()) == "infinity":
        return inf
    else:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("not a duration")
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds != inf and not seconds <= _LONGEST_S:  # NaN is not <= anything
        raise ValueError("not a duration")
    return seconds


def _optional_duration(value: object) -> float | None:
    return None if value is None or value == "disabled" else parse_duration(value)


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("not a size")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]


def _rate(value: object) -> float:
    if isinstance(value, bool):
        raise ValueError("not a rate")
    if isinstance(value, float) and (value == inf or _LEAST_RATE <= value <= _MOST_RATE):
        return value
    match = _RATE.fullmatch(str(value).strip())
    if match is None:
        if value == "infinity" or value == inf:
            return inf
        raise ValueError("not a rate")
    seconds = float(match[2] or 1) * _SECONDS[match[3] or "s"]
    rate = float(match[1]) / seconds if seconds else 0.0
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise ValueError("not a rate")
    return rate


def _byte_rate(value: object) -> float:
    if isinstance(value, str):
        value = _BYTES_OF_RATE.sub(lambda found: str(int(found[1]) * _BYTES[found[2].lower()]), value)
    return _rate(value)


def _number(value: object) -> object:
    # true would pass for 1
    if isinstance(value, bool) or (isinstance(value, float) and isnan(value)):
        raise ValueError("not a number")
    return value


def _limit(value: object) -> object:
    return 0 if value == "infinity" or value == inf else _number(value)


def _secret(value: object) -> str:
    """Returns a secret. `file:PATH` reads it from a file, without the line end, such as a systemd credential."""
    text = str(value)
    if not text.startswith(SECRET_FILE):
        return text
    try:
        return Path(text.removeprefix(SECRET_FILE)).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"allowed is text, or file:PATH of a file that can be read; {error}") from None


def _memory_mark(value: object) -> str:
    text = str(value).strip()
    if not isinstance(value, bool):
        mark_bytes(text, 0)
    else:
        raise ValueError("not a share or a size")
    return text


def mark_bytes(text: str, total: int) -> int:
    """Returns a share of `total` bytes such as 70%, or a size, in bytes; 0 for `disabled`. Raises ValueError."""
    if text == "disabled":
        return 0
    share = _SHARE.fullmatch(text)
    if share is None:
        size = _size(text)
        if not LEAST_MARK <= size <= 1 << 50:
            raise ValueError("not a size that makes sense")
        return size
    if not 1 <= float(share[1]) <= 100:
        raise ValueError("not a share")
    return max(int(total * float(share[1]) / 100), LEAST_MARK)


Duration = Annotated[float, BeforeValidator(parse_duration), Unit.DURATION]
"""Seconds; infinity means no limit. A bare number is seconds."""
OptionalDuration = Annotated[float | None, BeforeValidator(_optional_duration), Unit.DURATION]
"""Seconds, or None for `disabled`."""
Size = Annotated[int, BeforeValidator(_size), Unit.SIZE]
"""Bytes."""
Whole = Annotated[int, BeforeValidator(_number)]
"""A whole number."""
Rate = Annotated[float, BeforeValidator(_rate), Unit.RATE, Allowed("a rate such as 1000, 1000/s, 50/10s, infinity")]
"""Events per second; infinity means no limit."""
ByteRate = Annotated[
    float, BeforeValidator(_byte_rate), Unit.RATE, Allowed("a rate such as 65536, 100KB/s, 1MB/10s, infinity")
]
"""Bytes per second; infinity means no limit."""
Number = Annotated[float, BeforeValidator(_number)]
"""Any number."""
Secret = Annotated[str, BeforeValidator(_secret), Unit.SECRET, Allowed("text, or file:PATH")]
"""Text that is masked in all output."""
MemoryMark = Annotated[
    str, BeforeValidator(_memory_mark), Allowed("a share of the memory from 1% to 100%, a size of 128MB or more, disabled")
]
"""A share of the memory of the machine or a size, as text; see `mark_bytes`."""
Limit = Annotated[int, BeforeValidator(_limit), Unit.LIMIT]
"""A count; 0 and `infinity` mean no limit."""


def format_duration(seconds: float) -> str:
    """Returns a duration as text that parses to the same number, in one unit where a whole number of it is exact."""
    if seconds == inf:
        return "infinity"
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    milliseconds = round(seconds * 1000)
    if not seconds:
        return "0s"
    return f"{milliseconds}ms" if milliseconds * _SECONDS["ms"] == seconds else f"{seconds:.12f}".rstrip("0") + "s"


def format_rate(rate: float) -> str:
    """Returns a rate as text that parses to the same number, per shortest time with a whole number of events."""
    if rate == inf:
        return "infinity"
    for unit in ("s", "m", "h", "d"):
        count = round(rate * _SECONDS[unit])
        if count / _SECONDS[unit] == rate:
            return f"{count}/{unit}"
    return f"{rate:.22f}".rstrip("0")


def format_size(size: int) -> str:
    """Returns the shortest notation of a size."""
    for unit in ("GB", "MB", "KB"):
        if size and size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return str(size)
