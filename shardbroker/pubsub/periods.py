"""The period of a replay, `$replay/<since>/<filter>` or `$replay/<since>..<until>/<filter>`, and likewise of a stream.

15m  2h  7d                   so long ago: s, m, h, d, w
2026-11-25T06:00:00Z          RFC 3339
1764050400000                 Unix ms; from 100,000,000,000,000 on Unix µs, which EMQX's streams have
earliest  latest              the oldest message that there is; what is published from now on
"""

import re
from datetime import datetime

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import ReasonCode

__all__ = ["FOREVER", "parse_period"]

FOREVER = (1 << 64) - 1
"""End of a replay that continues with what is published."""
TIME_MAX_US = 1 << 62
"""Unix µs of the latest time: the year 148,000."""
SHOWN_MAX = 60
"""Characters of a wrong period in an error."""
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_AGO = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_UNIX = re.compile(r"[0-9]{1,18}", re.ASCII)
LEAST_US = 10**14
"""Least number that is µs: a time of 1973, and in ms one of the year 5138."""
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[-+][0-9]{2}:[0-9]{2})", re.ASCII
)


def parse_period(period: bytes, now_us: int, what: str = "$replay/<period>") -> tuple[int, int]:
    """Returns begin and end in Unix µs; FOREVER: it has no end. what: its name in an error. Raises MqttError 0x8F."""
    text = period.decode(errors="replace")
    since, dots, until = text.partition("..")
    begin = _time_us(since, now_us)
    end = _time_us(until, now_us) if dots else FOREVER
    if begin is None or end is None or (dots and end <= begin):
        allowed = "a time such as 15m, 2026-11-25T06:00:00Z, Unix ms, earliest or latest, or two in order with .. between them"
        raise MqttError(ReasonCode.TOPIC_FILTER_INVALID, f"{what}: must be {allowed}, got {text[:SHOWN_MAX]!r}")
    return begin, end


def _time_us(text: str, now_us: int) -> int | None:
    """Returns Unix µs; None: it is no time."""
    if text == "earliest":
        return 0
    if text == "latest":
        return now_us
    if ago := _AGO.fullmatch(text):
        return max(now_us - int(ago[1]) * _UNITS_US[ago[2]], 0)
    if _UNIX.fullmatch(text):
        return min(int(text) if int(text) >= LEAST_US else int(text) * 1000, TIME_MAX_US)
    if _RFC_3339.fullmatch(text):
        try:
            return max(int(datetime.fromisoformat(text.upper()).timestamp() * 1_000_000), 0)
        except (ValueError, OverflowError):
            return None
    return None
