"""Arithmetic and mathematics. Functions of real numbers return floats, also for integers; what is outside their domain raises."""

import math
import random as generator
from collections.abc import Callable
from typing import Any

from shardbroker.rules.functions.arguments import integer, number
from shardbroker.rules.functions.equality import equal
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import Value

__all__ = ["FUNCTIONS"]


def _real(function: Callable[[Any], float]) -> Function:
    """A function of one number."""
    return Function(lambda value: function(number(value)), (1,))


def _absolute(value: Value) -> int:
    # EMQX takes integers only here.
    return abs(integer(value))


def _round(value: Value) -> int:
    """Half away from zero, where Python rounds to even."""
    size = abs(number(value))
    whole: int = math.floor(size)
    whole += size - whole >= 0.5
    return -whole if value < 0 else whole


def _power(base: Value, exponent: Value) -> float:
    """In floats, as EMQX does, so that no exponent makes more than 64 bits."""
    return math.pow(number(base), number(exponent))


def _fmod(left: Value, right: Value) -> float:
    return math.fmod(number(left), number(right))


def _div(left: Value, right: Value) -> int:
    """Truncates toward zero."""
    dividend, divisor = integer(left), integer(right)
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _mod(left: Value, right: Value) -> int:
    """Has the sign of the dividend."""
    dividend, divisor = integer(left), integer(right)
    remainder = abs(dividend) % abs(divisor)
    return -remainder if dividend < 0 else remainder


FUNCTIONS: dict[str, Function] = {
    "abs": Function(_absolute, (1,)),
    "acos": _real(math.acos),
    "acosh": _real(math.acosh),
    "asin": _real(math.asin),
    "asinh": _real(math.asinh),
    "atan": _real(math.atan),
    "atanh": _real(math.atanh),
    "ceil": _real(math.ceil),
    "cos": _real(math.cos),
    "cosh": _real(math.cosh),
    "div": Function(_div, (2,)),
    "eq": Function(equal, (2,)),
    "exp": _real(math.exp),
    "floor": _real(math.floor),
    "fmod": Function(_fmod, (2,)),
    "log": _real(math.log),
    "log10": _real(math.log10),
    "log2": _real(math.log2),
    "mod": Function(_mod, (2,)),
    "power": Function(_power, (2,)),
    "random": Function(generator.random, (0,), is_pure=False),
    "round": Function(_round, (1,)),
    "sin": _real(math.sin),
    "sinh": _real(math.sinh),
    "sqrt": _real(math.sqrt),
    "tan": _real(math.tan),
    "tanh": _real(math.tanh),
}
