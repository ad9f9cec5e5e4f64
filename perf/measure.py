"""One run: the engine of its scenario, and what the broker used meanwhile."""

import time
from typing import Any

from perf.churn import Churn
from perf.engine import Engine
from perf.plan import Plan
from perf.usage import measure

__all__ = ["CPU_MIN_S", "Result", "run_plan", "sound"]

Result = dict[str, Any]
CPU_MIN_S = 0.2
"""Less CPU time than this is within the clock's grain of 10 ms a process to a few per cent: such a run was too short."""


def run_plan(plan: Plan, host: str, port: int, broker_pid: int | None = None) -> Result:
    """A JSON-ready result: the plan's numbers, the engine's, and with `broker_pid` the broker's. Raises LoadError, OSError."""
    result: Result = {"scenario": plan.scenario, "qos": plan.qos, "payload": plan.payload, "rate": plan.rate}
    result |= {"publishers": plan.publishers, "subscribers": plan.subscribers, "window": plan.window}
    result |= {"version": plan.version, "time": time.time()}
    if plan.scenario == "conn":
        churn = Churn(plan, host, port)
        before = measure(broker_pid) if broker_pid else None
        result |= churn.run()
        done = result["connections"]
    else:
        with Engine(plan, host, port) as engine:
            engine.connect()
            before = measure(broker_pid) if broker_pid else None
            result |= engine.run()
        done = result["delivered"]
    if broker_pid and before:
        after = measure(broker_pid)
        used = after.cpu_s - before.cpu_s
        result["broker_cpu_s"] = used
        result["broker_cpu_s_per_million"] = used * 1e6 / done if done else None
        result["broker_pss_before"] = before.pss
        result["broker_pss_after"] = after.pss
        result["broker_processes"] = after.processes
    result["own_cpu_s_per_million"] = result["own_cpu_s"] * 1e6 / done if done else None
    return result


def sound(result: Result) -> bool:
    """Whether every message came once, in order, to where it belonged; and every client was served."""
    faults = ("lost", "duplicates", "disordered", "misrouted", "refused", "disconnected", "failed", "stalls")
    return not any(result.get(name) for name in faults)
