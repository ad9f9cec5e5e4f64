"""Authenticators and authorizers of other packages: see `shardbroker.access.contract`."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from shardbroker.access.contract import BackendError

__all__ = ["AUTHENTICATORS", "AUTHORIZERS", "expand", "load_modules"]

AUTHENTICATORS = "shardbroker.authenticators"
AUTHORIZERS = "shardbroker.authorizers"
ALL = "modules"
"""The name that denotes all installed modules in a chain."""


def load_modules(group: str, wanted: Collection[str], known: Collection[str], settings: Mapping[str, str]) -> dict[str, Any]:
    """Instantiates the modules that a chain names, the highest priority first. Raises BackendError."""
    installed = {point.name: point for point in entry_points(group=group)}
    clash = sorted(set(installed) & {*known, ALL})
    if clash:
        raise BackendError(f"module {clash[0]} of {installed[clash[0]].value}: the broker has one of this name")
    missing = [name for name in wanted if name not in known and name != ALL and name not in installed]
    if missing:
        close = get_close_matches(missing[0], [*known, ALL, *installed], 1)
        raise BackendError(
            f"{missing[0]}: no such module; installed: {', '.join(sorted(installed)) or 'none'}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    made = {}
    for name, point in installed.items():
        if name not in wanted and ALL not in wanted:
            continue
        own = {key.removeprefix(name + "."): text for key, text in settings.items() if key.startswith(name + ".")}
        try:
            made[name] = point.load()(own)
        except Exception as error:
            raise BackendError(f"module {name} not created: {type(error).__name__}: {error}") from error
    return dict(sorted(made.items(), key=lambda one: -getattr(one[1], "priority", 0)))


def expand(chain: Sequence[str], modules: Mapping[str, Any]) -> list[str]:
    """Returns a chain with the modules in place of `modules`; one that is also named is only at that position."""
    names: list[str] = []
    for name in chain:
        names += [module for module in modules if module not in chain] if name == ALL else [name]
    return names
