"""Values of `option(...)`, and the selection of records."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyspark_shardbroker.decode import Records
from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.records import KIND_NUMBERS

__all__ = ["Options", "Wanted", "parse_time", "topic_pattern"]

TABLES = ("journal", "damage", "sessions", "subscriptions", "retained", "routes")
PARTITION_BYTES = 64 << 20
"""Bytes of a segment read by one task: the size at which brokers end a segment."""
_FOREVER = 1 << 62
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OPTIONS = (
    "path", "table", "mode", "columns", "since", "until", "types", "topics", "workers", "partitionbytes", "startingposition",
    "maxrecordspertrigger", "maxbytespertrigger", "writeto", "partitionby", "snapshot",
)  # fmt: skip


def parse_time(name: str, text: str) -> int:
    """Returns µs of Unix time. Raises OptionError."""
    try:
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            moment = datetime.now(UTC) - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise OptionError(
            f"{name} {text!r}: allowed is a time such as 2026-01-31T12:00, of UTC, or an age such as 15m, 2h, 7d"
        ) from None


def topic_pattern(topic_filter: str) -> str:
    """Returns a regular expression for a topic filter (MQTT 5.0 §4.7). Raises OptionError."""
    levels = topic_filter.split("/")
    bad = not topic_filter or any(
        ("#" in level and (level != "#" or place < len(levels) - 1)) or ("+" in level and level != "+")
        for place, level in enumerate(levels)
    )
    if bad:
        raise OptionError(f"topics {topic_filter!r} is not a topic filter: + and # stand for whole levels, # for the last ones")
    start = r"^[^$/]" if levels[0] in ("+", "#") else "^"  # leading wildcards do not match the broker's own topics
    if levels == ["#"]:
        return r"^([^$]|$)"
    parts = [r"[^/]*" if level == "+" else re.escape(level) for level in levels if level != "#"]
    pattern = "/".join(parts) + (r"(/.*)?$" if levels[-1] == "#" else "$")
    if start == "^":
        return "^" + pattern
    return "^" + pattern.replace(r"[^/]*", r"([^$/][^/]*)?", 1)


@dataclass(frozen=True)
class Wanted:
    """The selection of records, as far as segments, blocks and records show it without Spark. All conditions must hold."""

    since_us: int = 0
    until_us: int = _FOREVER
    kinds: frozenset[int] | None = None
    workers: frozenset[int] | None = None
    topic_prefix: str = ""
    topic_pattern: str = ""

    def mask(self, records: Records, lowest: int, highest: int) -> np.ndarray:
        """Returns a mask of the wanted records."""
        mask = np.ones(len(records), bool)
        if len(records) and (records.sequence[0] < lowest or records.sequence[-1] >= highest):
            mask &= (records.sequence >= lowest) & (records.sequence < highest)
        if self.since_us or self.until_us != _FOREVER:
            mask &= (records.time_us >= self.since_us) & (records.time_us < self.until_us)
        if self.kinds is not None:
            mask &= np.isin(records.kinds, list(self.kinds))
        if self.topic_prefix and mask.any():
            mask &= pc.fill_null(pc.starts_with(records.text("topic"), self.topic_prefix), False).to_numpy(zero_copy_only=False)
        if self.topic_pattern and mask.any():
            match = pc.match_substring_regex(records.text("topic"), self.topic_pattern)
            mask &= pc.fill_null(match, False).to_numpy(zero_copy_only=False)
        return mask

    def and_filter(self, condition: Filter) -> "Wanted":
        """Adds a filter of Spark, as far as it can be applied here; Spark checks every row again."""
        column = getattr(condition, "attribute", ())
        value: Any = getattr(condition, "value", None)
        if isinstance(condition, EqualTo | EqualNullSafe | In):
            values = condition.value if isinstance(condition, In) else (value,)
            if any(one is None for one in values):
                return self
            if column == ("type",):
                kinds = frozenset(KIND_NUMBERS[one] for one in values if one in KIND_NUMBERS)
                # Kinds unknown to this version are named kind_<number>.
                return (
                    self if any(str(one).startswith("kind_") for one in values) else replace(self, kinds=_both(self.kinds, kinds))
                )
            if column == ("worker",):
                return replace(self, workers=_both(self.workers, frozenset(values)))
            if column == ("topic",) and len(values) == 1:
                return self._with_prefix(values[0])
        if column == ("topic",) and isinstance(condition, StringStartsWith):
            return self._with_prefix(value)
        if column == ("time",) and isinstance(value, datetime):
            moment = (value.astimezone(UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
            if isinstance(condition, EqualTo):
                return replace(self, since_us=max(self.since_us, moment), until_us=min(self.until_us, moment + 1))
            if isinstance(condition, GreaterThan | GreaterThanOrEqual):
                return replace(self, since_us=max(self.since_us, moment + isinstance(condition, GreaterThan)))
            if isinstance(condition, LessThan | LessThanOrEqual):
                return replace(self, until_us=min(self.until_us, moment + isinstance(condition, LessThanOrEqual)))
        return self

    def _with_prefix(self, prefix: str) -> "Wanted":
        return replace(self, topic_prefix=max(self.topic_prefix, prefix, key=len))


def _both(one: frozenset[int] | None, other: frozenset[int]) -> frozenset[int]:
    return other if one is None else one & other


@dataclass(frozen=True)
class Options:
    """The validated options of one DataFrame."""

    path: str
    table: str = "journal"
    fail_fast: bool = True
    columns: tuple[str, ...] = ()
    wanted: Wanted = Wanted()
    partition_bytes: int = PARTITION_BYTES
    from_latest: bool = False
    max_records: int | None = None
    max_bytes: int | None = None
    write_to: str = ""
    """Streams: a directory to which the tasks write Parquet themselves; their rows are then the names of the files."""
    partition_by: tuple[str, ...] = ()
    snapshot: str = "latest"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Options":
        """Parses the options. Raises OptionError."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = [name for name in given if name not in _OPTIONS]
        if unknown:
            raise OptionError(f"option {unknown[0]}: allowed are {', '.join(_OPTIONS)}")
        if not given.get("path"):
            raise OptionError(
                "no path: load(DIR) with the data directory of a broker, its journals, or a directory of several brokers'"
            )
        table = _one_of(given, "table", TABLES)
        types = _names(given, "types")
        wrong = [one for one in types if one not in KIND_NUMBERS]
        if wrong:
            raise OptionError(f"types {wrong[0]!r}: allowed are {', '.join(KIND_NUMBERS)}")
        topics = given.get("topics", "")
        fixed = re.split(r"/?[#+]", topics)[0] if topics else ""
        wanted = Wanted(
            since_us=parse_time("since", given["since"]) if "since" in given else 0,
            until_us=parse_time("until", given["until"]) if "until" in given else _FOREVER,
            kinds=frozenset(KIND_NUMBERS[one] for one in types) if types else None,
            workers=frozenset(_numbers(given, "workers")) if "workers" in given else None,
            topic_prefix=fixed,
            topic_pattern=topic_pattern(topics) if topics else "",
        )
        return cls(
            path=given["path"],
            table=table,
            fail_fast=_one_of(given, "mode", ("failFast", "permissive")) == "failFast",
            columns=_names(given, "columns"),
            wanted=wanted,
            partition_bytes=_number(given, "partitionbytes", PARTITION_BYTES) or PARTITION_BYTES,
            from_latest=_one_of(given, "startingposition", ("earliest", "latest")) == "latest",
            max_records=_number(given, "maxrecordspertrigger", None),
            max_bytes=_number(given, "maxbytespertrigger", None),
            write_to=given.get("writeto", ""),
            partition_by=_names(given, "partitionby"),
            snapshot=given.get("snapshot", "latest"),
        )


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in given.get(name, "").split(",") if one.strip())


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name, allowed[0])
    for one in allowed:
        if one.lower() == value.lower():
            return one
    raise OptionError(f"{name} {value!r}: allowed is {' or '.join(allowed)}")


def _number(given: Mapping[str, str], name: str, default: int | None) -> int | None:
    value = given.get(name)
    if value is None:
        return default
    if not value.isdecimal() or int(value) < 1:
        raise OptionError(f"{name} {value!r}: allowed is a whole number from 1 on")
    return int(value)


def _numbers(given: Mapping[str, str], name: str) -> list[int]:
    parts = [one.strip() for one in given[name].split(",")]
    if not all(one.isdecimal() for one in parts):
        raise OptionError(f"{name} {given[name]!r}: allowed are whole numbers with commas between them")
    return [int(one) for one in parts]
