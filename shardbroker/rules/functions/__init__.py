"""Functions of SQL: one module a subject, each with a table `FUNCTIONS` of its own."""

from shardbroker.rules.functions import (
    arrays,
    bits,
    codec,
    convert,
    dates,
    events,
    formatting,
    hashes,
    jq,
    maps,
    math,
    misc,
    patterns,
    stores,
    text,
    type_tests,
)
from shardbroker.rules.functions.table import FUNCTIONS, Function

__all__ = ["FUNCTIONS", "Function"]

for _subject in (
    arrays, bits, codec, convert, dates, events, formatting, hashes, jq, maps, math, misc, patterns, stores, text, type_tests
):
    FUNCTIONS.update(_subject.FUNCTIONS)
