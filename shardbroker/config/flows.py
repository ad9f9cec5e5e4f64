"""Keys of the process flows, which evaluates rules."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.units import Allowed, Whole

__all__ = ["DEFINITIONS", "Flows", "needs_flows"]

DEFINITIONS = "flows.json"
"""Rules made while the broker runs, in the data directory; the rules in force, in the runtime directory."""
PROCESSES_MAX = 64

Processes = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1, le=PROCESSES_MAX)], Allowed(f"auto or a number from 1 to {PROCESSES_MAX}")
]


class Flows(Section):
    """The processes that evaluate rules; they run only if there is a rule."""

    processes: Processes = Field("auto", description="Processes; auto: one for 8 workers. Never more than workers.")


def needs_flows(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether there are rules."""
    return has_rules(settings.process.data_dir / DEFINITIONS)


def has_rules(path: Path) -> bool:
    """Returns whether a file of definitions has rules; one that cannot be read may have some."""
    try:
        return bool(json.loads(path.read_bytes()).get("rules"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return True
