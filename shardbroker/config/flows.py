"""Keys of rules, and of the processes flows that evaluate them and write rows to other systems."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from shardbroker.config.base import SHORTEST_S, Section
from shardbroker.config.replay import needs_replays
from shardbroker.config.units import Allowed, Duration, Whole

__all__ = ["DEFINITIONS", "RULES_MAX", "RULE_ID", "Flows", "Rule", "RuleEngine", "needs_flows"]

DEFINITIONS = "flows.json"
"""Rules, connectors, actions and sources: those made while the broker runs in the data directory, all in force in the runtime
directory."""
PROCESSES_MAX = 64
RULE_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
RULES_MAX = 10_000
"""Rules of a broker: each change writes all of them, some 5 MB then."""
SQL_MAX = 65_536
"""Characters of a rule."""

Processes = Annotated[
    Literal["auto"] | Annotated[Whole, Field(ge=1, le=PROCESSES_MAX)], Allowed(f"auto or a number from 1 to {PROCESSES_MAX}")
]


class Flows(Section):
    """The processes that evaluate rules and carry out actions; they run only if there is a rule or a connector."""

    processes: Processes = Field("auto", description="Processes; auto: one for 8 workers. Never more than workers.")


class RuleEngine(Section):
    """What holds for all rules; EMQX's names."""

    ignore_sys_message: bool = Field(True, description="Whether rules do not see messages of topics below `$SYS/`.")
    jq_function_default_timeout: Duration = Field(
        1.0, ge=SHORTEST_S, le=10, description="Longest time of a program of `jq`, and the default of its third argument."
    )


class Rule(Section):
    """A rule of the configuration."""

    sql: str = Field("", max_length=SQL_MAX, description="The rule, see rules.md.")
    enable: bool = Field(True, description="Whether the rule is evaluated.")
    name: str = Field("", max_length=256, description="Name for people.")
    description: str = Field("", max_length=4096, description="What the rule is for.")
    metadata: Annotated[dict[str, Any], Allowed("a table of what programs keep about the rule")] = Field(
        {}, description="What programs keep about the rule; at most 16 KiB as JSON."
    )
    actions: Annotated[list[Any], Allowed("an array of tables with function and args")] = Field(
        [], description="What is done with each result, such as `{ function = \"republish\", args = { topic = \"out\" } }`."
    )


def needs_flows(settings: Any, listeners: Sequence[Any]) -> bool:
    """Returns whether there are rules, connectors, actions or presets, or may be replays."""
    configured = settings.rules or settings.connectors.by_id() or settings.actions.by_id() or settings.persistence.used()
    return bool(configured) or needs_replays(settings) or has_definitions(settings.process.data_dir / DEFINITIONS)


def has_definitions(path: Path) -> bool:
    """Returns whether a file of definitions has any; one that cannot be read may have some."""
    try:
        content = json.loads(path.read_bytes())
        return any(content.get(kind) for kind in ("rules", "connectors", "actions", "sources"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return True
