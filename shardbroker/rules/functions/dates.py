"""Dates and times: units, offsets from UTC, RFC 3339, and formats of EMQX (`%Y %m %d %H %M %S %N %3N %6N %z %:z %::z`)."""

import math
import re
import time
from datetime import date, timedelta

from shardbroker.rules.functions.arguments import from_octets, integer, octets, refusal
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS", "MongoDate"]

_UNITS = {"second": 1, "millisecond": 1_000, "microsecond": 1_000_000, "nanosecond": 1_000_000_000}
"""Ticks of a second."""

_DAY = 86_400

_EPOCH = date(1970, 1, 1)

_TIMEZONE_PRECISION = {"%z": 5, "%:z": 6, "%::z": 9}
"""Bytes of an offset in a date."""

_SIZES = {"%Y": 4, "%m": 2, "%d": 2, "%H": 2, "%M": 2, "%S": 2, "%N": 9, "%3N": 3, "%6N": 6, **_TIMEZONE_PRECISION}
"""Bytes of a part in a date."""

_FRACTIONS = {"%3N": 1_000, "%6N": 1_000_000, "%N": 1_000_000_000}
"""Ticks of a second of the parts below it."""

_PART = re.compile(rb"%(?:[YmdHMSNz]|3N|6N|:z|::z)")

_MAX_FORMAT = 1_024
"""Bytes of a format."""

_OFFSET = re.compile(r"([+-])(?:(\d+):(\d+)(?::(\d+))?|(\d\d)(\d\d))")

_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d).(\d\d):(\d\d):(\d\d)(\.\d{1,18})?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


class MongoDate(str):
    """A date for MongoDB: text for everything else, and milliseconds since 1970 for the driver."""

    __slots__ = ("milliseconds",)

    milliseconds: int

    @classmethod
    def of(cls, milliseconds: int) -> "MongoDate":
        made = cls(f"ISODate({_rfc3339(milliseconds, 'millisecond', 0)[:-6]}Z)")
        made.milliseconds = milliseconds
        return made


def _ticks(unit: Value) -> int:
    if isinstance(unit, str) and unit in _UNITS:
        return _UNITS[unit]
    raise refusal("unit", "one of " + ", ".join(_UNITS), unit)


def _now(unit: str) -> int:
    return time.time_ns() * _ticks(unit) // _UNITS["nanosecond"]


def _local_offset(seconds: int) -> int:
    return time.localtime(seconds).tm_gmtoff


def _offset_seconds(offset: Value) -> int:
    """Seconds from UTC of `Z`, `local`, `+08:00`, `+08:00:00` or `+0800`; of a number, itself."""
    if type(offset) is int:
        return offset
    if offset is UNDEFINED or offset in ("Z", "z"):
        return 0
    if offset == "local":
        return _local_offset(int(time.time()))
    found = _OFFSET.fullmatch(offset) if isinstance(offset, str) else None
    if found is None:
        raise refusal("offset", "Z, local or like +08:00", offset)
    sign, *parts = found.groups()
    hours, minutes, seconds = (int(part or 0) for part in (parts[0] or parts[3], parts[1] or parts[4], parts[2]))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise refusal("offset", "less than a day", offset)
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if sign == "-" else 1)


def _calendar(seconds: int) -> tuple[date, int]:
    """Returns the date of a second since 1970, and the second of the day."""
    days, rest = divmod(seconds, _DAY)
    try:
        return _EPOCH + timedelta(days=days), rest
    except OverflowError:
        raise refusal("time", "in the years 1 to 9999", seconds) from None


def _offset_text(offset: int, part: str) -> str:
    sign = "-" if offset < 0 else "+"
    minutes, seconds = divmod(abs(offset) % _DAY, 60)
    between = "" if part == "%z" else ":"
    shown = f"{sign}{minutes // 60:02d}{between}{minutes % 60:02d}"
    return f"{shown}:{seconds:02d}" if part == "%::z" else shown


def _rfc3339(epoch: int, unit: str, offset: int) -> str:
    ticks = _UNITS[unit]
    seconds, fraction = divmod(epoch, ticks)
    day, rest = _calendar(seconds + offset)
    digits = len(str(ticks)) - 1
    shown = f".{fraction:0{digits}d}" if digits else ""
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}T{clock}{shown}{_offset_text(offset, '%:z')}"


def _to_rfc3339(epoch: Value, unit: Value = "second") -> str:
    """In local time, as EMQX does."""
    seconds = integer(epoch, "time") // _ticks(unit)
    _calendar(seconds)
    return _rfc3339(epoch, unit, _local_offset(seconds))


def _now_rfc3339(unit: Value = "second") -> str:
    return _to_rfc3339(_now(unit), unit)


def _from_rfc3339(shown: Value, unit: Value = "second") -> int:
    ticks = _ticks(unit)
    found = _RFC3339.fullmatch(shown) if isinstance(shown, str) else None
    if found is None:
        raise refusal("date", "like 2024-02-29T12:00:00Z", shown)
    year, month, day, hours, minutes, seconds = (int(part) for part in found.groups()[:6])
    since = _seconds(year, month, day, hours, minutes, seconds)
    if found[8]:
        since -= (int(found[9]) * 3600 + int(found[10]) * 60) * (-1 if found[8] == "-" else 1)
    # In floats, as in Erlang; seconds ignore what is below them.
    fraction = math.floor(ticks * float("0" + found[7]) + 0.5) if found[7] and ticks > 1 else 0
    return since * ticks + (fraction if since >= 0 else -fraction)


def _seconds(year: int, month: int, day: int, hours: int, minutes: int, seconds: int) -> int:
    try:
        return (date(year, month, day) - _EPOCH).days * _DAY + hours * 3600 + minutes * 60 + seconds
    except ValueError:
        raise refusal("date", "one of the calendar", f"{year}-{month}-{day}") from None


def _parts(pattern: Value) -> list[bytes]:
    """Returns the parts of a format: names of fields, and what lies between them."""
    shown = octets(pattern, "format")
    if len(shown) > _MAX_FORMAT:
        raise refusal("format", f"at most {_MAX_FORMAT} bytes long", pattern)
    parts: list[bytes] = []
    at = 0
    for found in _PART.finditer(shown):
        parts += [shown[at : found.start()], found.group()]
        at = found.end()
    return [part for part in (*parts, shown[at:]) if part]


def _format_date(unit: Value, offset: Value, pattern: Value, epoch: Value = None) -> Value:
    ticks, shift = _ticks(unit), _offset_seconds(offset)
    epoch = _now(unit) if epoch is None else integer(epoch, "time")
    day, rest = _calendar(epoch // ticks + shift)
    fraction = epoch % ticks * (_UNITS["nanosecond"] // ticks)
    shown = {
        "%Y": f"{day.year:04d}",
        "%m": f"{day.month:02d}",
        "%d": f"{day.day:02d}",
        "%H": f"{rest // 3600:02d}",
        "%M": f"{rest // 60 % 60:02d}",
        "%S": f"{rest % 60:02d}",
        "%N": f"{fraction:09d}",
        "%6N": f"{fraction // 1_000:06d}",
        "%3N": f"{fraction // 1_000_000:03d}",
        **{part: _offset_text(shift, part) for part in _TIMEZONE_PRECISION},
    }
    made = [shown[part.decode()].encode() if _PART.fullmatch(part) else part for part in _parts(pattern)]
    return from_octets(b"".join(made))


def _fields(pattern: Value, shown: Value) -> dict[str, int]:
    """Returns the fields of a date. Characters between them are skipped, whatever they are, as in EMQX."""
    rest = octets(shown, "date")
    fields: dict[str, int] = {}
    for part in _parts(pattern):
        if not rest:
            break
        name = part.decode() if _PART.fullmatch(part) else ""
        size = _SIZES[name] if name else len(part)
        taken, rest = rest[:size], rest[size:]
        if len(taken) < size:
            raise refusal("date", "as long as its format", shown)
        if name in _TIMEZONE_PRECISION:
            fields["offset"] = _offset_seconds(taken.decode())
        elif name:
            if not re.fullmatch(rb"[+-]?[0-9]+", taken):
                raise refusal("date", "like its format", shown)
            fields[name] = int(taken)
    return fields


def _date_to_unix(unit: Value, *arguments: Value) -> int:
    """`(unit, format, date)` or `(unit, offset, format, date)`."""
    ticks = _ticks(unit)
    shift = _offset_seconds(arguments[0]) if len(arguments) == 3 else 0
    fields = _fields(arguments[-2], arguments[-1])
    missing = [name for name in ("%Y", "%m", "%d", "%H", "%M", "%S") if name not in fields]
    if missing:
        raise EvaluationError(f"date: must have {', '.join(missing)}")
    since = _seconds(*(fields[name] for name in ("%Y", "%m", "%d", "%H", "%M", "%S"))) - fields.get("offset", 0) - shift
    nanoseconds = sum(fields.get(name, 0) * (_UNITS["nanosecond"] // scale) for name, scale in _FRACTIONS.items())
    return (since * _UNITS["nanosecond"] + nanoseconds) * ticks // _UNITS["nanosecond"]


def _mongo_date(epoch: Value = None, unit: Value = "millisecond") -> MongoDate:
    """Now, or a time in milliseconds or another unit."""
    if epoch is None:
        return MongoDate.of(_now("millisecond"))
    return MongoDate.of(integer(epoch, "time") * 1_000 // _ticks(unit))


FUNCTIONS: dict[str, Function] = {
    "date_to_unix_ts": Function(_date_to_unix, (3, 4)),
    "format_date": Function(_format_date, (3, 4), is_pure=False),
    "mongo_date": Function(_mongo_date, (0, 1, 2), is_pure=False),
    "now_rfc3339": Function(_now_rfc3339, (0, 1), is_pure=False),
    "now_timestamp": Function(lambda unit="second": _now(unit), (0, 1), is_pure=False),
    "rfc3339_to_unix_ts": Function(_from_rfc3339, (1, 2)),
    "timezone_to_offset_seconds": Function(_offset_seconds, (1,), is_pure=False),
    "timezone_to_second": Function(_offset_seconds, (1,), is_pure=False),
    "unix_ts_to_rfc3339": Function(_to_rfc3339, (1, 2)),
}
