"""Two brokers in turn on one core, under the same scenarios, with the load on another core.

Each round starts either broker, runs every scenario and ends it. The rounds alternate in which broker is first, so that a drift of
the machine affects both alike. The figures compared are medians over the rounds.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perf.launch import launched, on_core
from perf.live import Live
from perf.measure import Result, run_plan
from perf.plan import HELD, LIMITS, Plan, PlanError

__all__ = ["DEFAULTS", "STANDARD", "compare", "plan_of"]

STANDARD = (
    "p2p:qos=0,window=2000",
    "p2p:qos=1,window=2000,inflight=100",
    "p2p:qos=2,window=2000,inflight=100",
    "fanout:subscribers=500,window=50",
    "wildcard:subscribers=20,others=1000,window=500",
    "p2p:publishers=1000,subscribers=1000,rate=40000,messages=160000",
    "p2p:publishers=1000,subscribers=1000,rate=20000,messages=80000,qos=1",
    "reconnect",
    "conn:others=4000,topic=perf/idle/%i,seconds=1",
)
"""Scenarios of a comparison by default."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "conn": {"publishers": 0, "subscribers": 0, "others": 200, "messages": 0, "seconds": 0, "keepalive": 300},
    "sub": {"publishers": 0, "subscribers": 200, "messages": 0, "seconds": 0, "keepalive": 300},
    "pub": {"publishers": 200, "subscribers": 0, "messages": 0, "seconds": 0, "keepalive": 300},
    "p2p": {"messages": 2_000_000, "seconds": 4},
    "fanout": {"publishers": 1, "subscribers": 500, "messages": 4_000, "window": 50, "seconds": 4},
    "fanin": {"publishers": 500, "subscribers": 5, "messages": 1_000_000, "window": 20, "seconds": 4},
    "wildcard": {"subscribers": 10, "messages": 1_000_000, "seconds": 4},
    "churn": {"others": 20, "messages": 2_000_000, "seconds": 4},
    "retained": {"publishers": 1, "subscribers": 200, "topics": 1_000, "window": 10, "qos": 1, "seconds": 10},
    "reconnect": {"publishers": 0, "subscribers": 0, "others": 50, "messages": 20_000, "seconds": 4},
    "takeover": {
        "publishers": 0, "subscribers": 0, "others": 50, "messages": 10_000, "seconds": 4, "version": 5, "session_expiry": 60,
    },
}  # fmt: skip
"""Differences of a scenario's numbers from those of Plan: enough messages to measure a fast broker, and a time limit for a slow
one. The compared figures do not depend on the number of messages."""
REALS = ("seconds", "rate", "connect_rate", "change_rate")
TEXTS = ("client_id", "placement")
SETTABLE = sorted([*(set(LIMITS) - {"processes"}), "qos", "version", "topic", "client_id", "placement"])
"""Settings that may follow a scenario's name."""


def plan_of(text: str, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Parses SCENARIO[:NAME=VALUE,...] with the names of Plan. Raises PlanError."""
    scenario, _, rest = text.partition(":")
    values: dict[str, Any] = DEFAULTS.get(scenario, {}) | dict(overrides or {})
    for setting in filter(None, rest.split(",")):
        name, _, value = setting.partition("=")
        if name not in SETTABLE:
            raise PlanError(f"{text}: {setting}: allowed are {', '.join(SETTABLE)}")
        try:
            read: Any = _topic if name == "topic" else str if name in TEXTS else float if name in REALS else int
            values[name] = read(value)
        except ValueError:
            raise PlanError(f"{text}: {setting}: allowed is a {'' if name in REALS else 'whole '}number") from None
    try:
        return Plan(scenario=scenario, **values)
    except PlanError as error:
        raise PlanError(f"{text}: {error}") from None


def _batches(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Groups plans that share a broker. Memory freed by earlier clients would hide the memory of new ones, so scenarios of held
    connections get a broker of their own."""
    busy = [plan for plan in plans if plan.scenario not in HELD]
    return [[plan] for plan in plans if plan.scenario in HELD] + ([busy] if busy else [])


def _topic(text: str) -> tuple[str, ...]:
    return (text,)


def compare(
    brokers: Sequence[tuple[str, str]],
    plans: Sequence[Plan],
    rounds: int,
    broker_core: int | None,
    load_core: int | None,
    started: Callable[[str, Plan, int], Live | None] = lambda name, plan, number: None,
) -> Iterator[tuple[str, Result]]:
    """Yields (name, result) run by run. `brokers` are (name, command); `started` is called before each run, and may return a
    display of its progress.

    Raises PlanError, LaunchError, LoadError, OSError.
    """
    for number in range(rounds):
        for name, command in brokers if number % 2 == 0 else reversed(brokers):
            for together in _batches(plans):
                with launched(command, broker_core, together[0].transport) as broker, on_core(load_core):
                    for plan in together:
                        live = started(name, plan, number)
                        with live or contextlib.nullcontext():
                            result = run_plan(plan, "127.0.0.1", broker.port, broker.pid, live)
                        yield name, result | {"broker": name, "round": number + 1}
