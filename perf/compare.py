"""Two brokers in turn on one core, under the same scenarios, with the load on another core.

Each round starts either broker, runs every scenario and ends it; the rounds alternate in which of them comes first, so that what
drifts on a machine meets both alike. The figures compared are medians over the rounds.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from perf.launch import launched, on_core
from perf.measure import Result, run_plan
from perf.plan import Plan

__all__ = ["STANDARD", "compare", "plan_of"]

STANDARD = (
    "p2p:qos=0", "p2p:qos=1", "p2p:qos=2", "fanout", "wildcard:subscribers=10",
    "p2p:publishers=500,subscribers=500,rate=20000,messages=60000", "conn",
)
"""Scenarios of a comparison, unless others are named."""

DEFAULTS: dict[str, dict[str, int | float]] = {
    "p2p": {"messages": 2_000_000, "seconds": 4},
    "fanout": {"publishers": 1, "subscribers": 500, "messages": 4_000, "window": 50, "seconds": 4},
    "wildcard": {"messages": 1_000_000, "seconds": 4},
    "conn": {"subscribers": 50, "messages": 20_000, "seconds": 4},
}
"""Where a scenario's numbers differ from those of Plan: much enough to be measured with a fast broker, and for a slow one an end
in time. What is compared does not depend on how many messages were passed on."""


def plan_of(text: str) -> Plan:
    """SCENARIO[:NAME=VALUE,...] with the names of Plan. Raises PlanError, ValueError, TypeError."""
    scenario, _, rest = text.partition(":")
    values = dict(DEFAULTS.get(scenario, {}))
    known = {field.name for field in dataclasses.fields(Plan)} - {"scenario", "run"}
    for setting in filter(None, rest.split(",")):
        name, _, value = setting.partition("=")
        if name not in known:
            raise ValueError(f"{setting}: allowed are {', '.join(sorted(known))}")
        values[name] = float(value) if name in ("seconds", "rate") else int(value)
    return Plan(scenario=scenario, **values)  # type: ignore[arg-type]


def compare(
    brokers: Sequence[tuple[str, str]],
    scenarios: Sequence[str],
    rounds: int,
    broker_core: int | None,
    load_core: int | None,
    started: Callable[[str, str, int], None] = lambda name, scenario, number: None,
) -> Iterator[tuple[str, Result]]:
    """Yields (name, result) run by run. `brokers` are (name, command); `started` is told of each run before it begins.

    Raises LaunchError, LoadError, OSError.
    """
    for number in range(rounds):
        for name, command in brokers if number % 2 == 0 else reversed(brokers):
            with launched(command, broker_core) as broker, on_core(load_core):
                for scenario in scenarios:
                    started(name, scenario, number)
                    yield name, run_plan(plan_of(scenario), "127.0.0.1", broker.port, broker.pid) | {"broker": name}
