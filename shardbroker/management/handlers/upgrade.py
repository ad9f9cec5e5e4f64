"""Upgrade of the broker to the installed code, which the supervisor carries out; docs/design/0016-handover.md."""

import asyncio
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.upgrade_verbs import Begin
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.listeners import call_supervisor
from shm.requests import DRAINED, MOVED, REFUSED

__all__ = ["obstacle_of"]

SUPERVISOR = {
    "part": "supervisor", "way": "replaced", "reason": "pid, listening sockets and shared memory stay", "disconnects": False,
}  # fmt: skip
POLL_S = 0.1
"""Between two looks at the installed program, which answers after about a second."""


@handles("upgrade-check")
async def check(context: Context, params: Params) -> dict[str, Any]:
    """Runs the installed program beside the broker, and returns what it would do with each part."""
    found = await _ask(context, {"verb": "upgrade check"})
    while found["phase"] == "checking":
        await asyncio.sleep(POLL_S)
        found = await _ask(context, {"verb": "upgrade state"})
    if found["phase"] != "checked":
        raise ControlError("TRY_AGAIN", "another upgrade has begun")
    if found["way"] == MOVED:
        for part in found["parts"]:
            if part["way"] == MOVED and part["part"].startswith("worker-") and (reason := await obstacle_of(context, part["slot"])):
                part |= {"way": DRAINED, "reason": reason}
    else:
        for part in found["parts"]:
            part |= {"way": found["way"], "reason": "", "disconnects": False}
    disconnects = found["way"] == DRAINED or any(_disconnects(part) for part in found["parts"])
    shown: dict[str, Any] = {name: found[name] for name in ("before", "version", "way", "reason")}
    shown["parts"] = [SUPERVISOR | ({} if found["way"] == MOVED else {"way": found["way"], "reason": ""}), *found["parts"]]
    return shown | {"disconnects": disconnects and found["way"] != REFUSED}


@handles("upgrade")
async def begin(context: Context, params: Begin) -> dict[str, Any]:
    """Checks, and begins if that has found no obstacle; the upgrade is under way when this returns."""
    found: dict[str, Any] = await check(context, params)
    if found["way"] == REFUSED:
        raise ControlError("NOT_AVAILABLE", found["reason"])
    if found["disconnects"] and not params.drain:
        named = next((f"{part['part']}: {part['reason']}" for part in found["parts"] if _disconnects(part)), "")
        raise ControlError("NOT_AVAILABLE", f"clients would be disconnected: {found['reason'] or named}")
    await _ask(context, {"verb": "upgrade begin", "parts": [part for part in found["parts"] if "slot" in part]})
    return found


def _disconnects(part: dict[str, Any]) -> bool:
    return bool(part["way"] == DRAINED or part["disconnects"])


@handles("upgrade-state")
async def state(context: Context, params: Params) -> dict[str, Any]:
    """Returns the progress of the upgrade that runs, or was the last one since the supervisor started."""
    return await _ask(context, {"verb": "upgrade state"})


async def _ask(context: Context, request: dict[str, Any]) -> dict[str, Any]:
    answered = await call_supervisor(context, request)
    if answered["problem"]:
        raise ControlError("TRY_AGAIN", answered["problem"])
    state: dict[str, Any] = answered["state"]
    return state


async def obstacle_of(context: Context, worker: int) -> str:
    """Returns why the clients of a worker cannot move, or an empty text. A worker that does not answer is not drained for that: it
    refuses itself when it is to be replaced."""
    try:
        return str((await context.workers.call(worker, "handoff obstacle"))["reason"])
    except ControlError:
        return ""
