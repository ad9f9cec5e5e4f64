"""One rebalance of all nodes: the node where the command is given decides who gives what, and then has no part in it.

    1. each node answers what it has, and whether it is evacuated or rebalanced
    2. average, donors and recipients (balance.plan_of)
    3. each donor gets both goals and the names of all (`node rebalance give`), and carries its part out alone (evacuation.py)

So nothing has to be undone if this node dies, and a donor that dies ends its part only. `stop` and `status` ask all nodes again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shardbroker.control import ControlError
from shardbroker.management.balance import Load, Plan, plan_of
from shardbroker.management.cluster_view import Peer
from shardbroker.stores.evacuation import Thresholds

__all__ = ["GIVE", "STATUS", "Answers", "Ask", "ask_all", "participants", "planned", "rebalanced"]

GIVE = "node rebalance give"
STATUS = "node rebalance status"

Ask = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
"""Returns the result of a verb at a node: name, verb, parameters. Raises ControlError."""


class Answers(NamedTuple):
    """What nodes have answered, by name, and why others have not."""

    found: dict[str, Any]
    errors: dict[str, ControlError]

    @property
    def missing(self) -> list[dict[str, str]]:
        return [{"node": name, "reason": str(error)} for name, error in sorted(self.errors.items())]


async def ask_all(names: Sequence[str], ask: Ask, verb: str, params: Mapping[str, Any]) -> Answers:
    """Has nodes carry out a verb at the same time."""
    answers = await asyncio.gather(*(ask(name, verb, dict(params)) for name in names), return_exceptions=True)
    found, errors = {}, {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, ControlError):
            errors[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[name] = answer
    return Answers(found, errors)


def participants(own: str, peers: Sequence[Peer], wanted: Sequence[str]) -> list[str]:
    """Returns the names of the nodes that take part: those of `wanted`, or all that are linked. Raises ControlError."""
    links = {own: "up", **{peer.name: peer.link for peer in peers}}
    for name in wanted:
        if name not in links:
            raise ControlError("BAD_REQUEST", f"nodes: must be nodes of this cluster ({', '.join(sorted(links))}), got {name}")
        if links[name] != "up":
            raise ControlError("NOT_AVAILABLE", f"nodes: {name}: its link is {links[name]}")
    found = sorted({*wanted} or {name for name, link in links.items() if link == "up"})
    if len(found) < 2:
        raise ControlError("BAD_REQUEST", f"nodes: must be two linked nodes or more, got {', '.join(found)}")
    return found


def planned(
    states: Answers, counters: Answers, wanted: Sequence[str], thresholds: Thresholds, moves: bool
) -> tuple[Plan, list[dict[str, str]]]:
    """Returns the plan, and which nodes are left out of it. Raises ControlError."""
    loads, left_out = [], []
    for name in sorted({*states.found, *states.errors}):
        error = states.errors.get(name) or counters.errors.get(name)
        if error is not None:
            reason = str(error)
        elif (process := states.found[name].get("process")) == "rebalance":
            text = f"node {name} is being rebalanced already: stop that first (ctl cluster rebalance stop)"
            raise ControlError("BAD_REQUEST", text)
        elif process is not None:
            reason = "it is being evacuated"
        else:
            connections, sessions = (int(counters.found[name][f"{what}.count"]) for what in ("connections", "sessions"))
            loads.append(Load(name, connections, max(0, sessions - connections)))
            continue
        if name in wanted:
            raise ControlError("NOT_AVAILABLE", f"nodes: {name}: {reason}")
        left_out.append({"node": name, "reason": reason})
    if len(loads) < 2:
        reasons = "; ".join(f"{one['node']}: {one['reason']}" for one in left_out)
        raise ControlError("NOT_AVAILABLE", f"no other node takes part: {reasons}")
    plan = plan_of(loads, thresholds, moves)
    if plan is None:
        shown = ", ".join(f"{load.name} has {load.connections} and {load.absent}" for load in loads)
        raise ControlError(
            "BAD_REQUEST",
            f"nothing to balance, of clients and absent sessions {shown}; see --abs-conn-threshold and --abs-sess-threshold",
        )
    return plan, left_out


def rebalanced(name: str, found: Any) -> dict[str, Any]:
    """Returns the row of a node by its `node rebalance status`."""
    if found.get("process") != "rebalance":
        return {"node": name, "state": "disabled"}
    stats = found["stats"]
    return {
        "node": name, "state": found["state"], "coordinator": found["coordinator_node"], "connections": stats["current_connected"],
        "connection_goal": found["connection_goal"], "absent": max(0, stats["current_sessions"] - stats["current_connected"]),
        "session_goal": found["session_goal"], "message": found["message"],
    }  # fmt: skip
