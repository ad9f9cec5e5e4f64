"""Functions of SQL: one module a subject, each with a table `FUNCTIONS` of its own."""

from shardbroker.rules.functions.table import FUNCTIONS, Function

__all__ = ["FUNCTIONS", "Function"]
