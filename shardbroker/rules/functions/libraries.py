"""Libraries of the extra `rules`, imported at their first use."""

import importlib
from functools import cache
from types import ModuleType

from shardbroker.rules.values import EvaluationError

__all__ = ["library"]


@cache
def library(name: str) -> ModuleType:
    """Returns a library; its absence names the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise EvaluationError(f"the library {name} is not installed: pip install 'shardbroker[rules]'") from None
