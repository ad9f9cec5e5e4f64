"""Functions of SQL: one module a subject, each with a table `FUNCTIONS` of its own."""

from shardbroker.rules.functions import arrays, bits, convert, maps, math, text, type_tests
from shardbroker.rules.functions.table import FUNCTIONS, Function

__all__ = ["FUNCTIONS", "Function"]

for _module in (arrays, bits, convert, maps, math, text, type_tests):
    FUNCTIONS.update(_module.FUNCTIONS)
