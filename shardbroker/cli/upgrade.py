"""`shardbroker ctl upgrade`: checks what would happen, and follows an upgrade to its end."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from shardbroker.cli import render
from shardbroker.cli.following import ABSENT_S, ENDED, POLL_S, connected, is_absent, states
from shardbroker.cli.locate import Target
from shardbroker.control import ControlError

__all__ = ["upgrade"]

COLUMNS = ("part", "way", "reason")
DISCONNECTS = 4
"""Exit code of --check: it works, and clients are disconnected."""


@click.command("upgrade", short_help="Move the broker to the installed code.")
@click.option("--check", is_flag=True, help="Show what would happen with each process, and change nothing.")
@click.option("--drain/--no-drain", default=True, help="Whether clients that cannot move may be disconnected. [default: drain]")
@click.option("--json", "json_here", is_flag=True, help="JSON, for programs.")
@click.pass_context
def upgrade(context: click.Context, /, check: bool, drain: bool, json_here: bool) -> int:
    """Move the broker to the code that is installed now, without disconnecting clients where that is possible.

    Exit codes: 0 well, 1 refused or not complete; of --check also 4: it works, and clients are disconnected.
    """
    target: Target = context.obj
    as_json = target.as_json or json_here
    data_dir = target.here()
    with connected(data_dir) as control:
        found = control.call("upgrade-check") if check else control.call("upgrade", drain=drain)
    if check:
        _show_check(found, as_json)
        return 1 if found["way"] == "refused" else DISCONNECTS if found["disconnects"] else 0
    if not as_json:
        print(f"{found['before']} -> {found['version']}", flush=True)
    state = _drained(data_dir, found["before"]) if found["way"] == "drained" else _followed(data_dir, as_json)
    if as_json:
        print(json.dumps(state))
    elif state["problem"]:
        print(f"not complete: {state['problem']}", flush=True)
    else:
        print(f"complete: {state['before']} -> {state['version']}", flush=True)
    return 1 if state["problem"] else 0


def _show_check(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    whole = {"running": found["before"], "installed": found["version"] or "-", "upgrade": _meaning(found)}
    render.fields(whole, lambda name, value: str(value))
    render.rows(COLUMNS, found["parts"], None, lambda name, value: str(value or ""))


def _meaning(found: Mapping[str, Any]) -> str:
    if found["way"] == "refused":
        return f"refused: {found['reason']}"
    if found["way"] == "drained":
        return f"the whole broker is drained and started: {found['reason']}"
    return "some clients are disconnected" if found["disconnects"] else "no client is disconnected"


def _followed(data_dir: Path, as_json: bool) -> dict[str, Any]:
    """Prints the progress, and returns the last state. Raises ControlError."""
    shown: set[str] = set()
    state: dict[str, Any] = {}
    for state in states(data_dir, "upgrade-state"):
        for part in () if as_json else state.get("parts", ()):
            if part.get("state") in ENDED and part["part"] not in shown:
                shown.add(part["part"])
                print(f"{part['part']}: {part['state'] if part['state'] == 'failed' else part['way']}"
                      + (f" ({part['reason']})" if part["reason"] else ""), flush=True)  # fmt: skip
    return state


def _drained(data_dir: Path, before: str) -> dict[str, Any]:
    """Waits for the broker that is started after the drain, and returns its state. Raises ControlError."""
    began = time.monotonic()
    until = began + ABSENT_S
    while True:
        try:
            with connected(data_dir) as control:
                status = control.call("status")
            if status["running"] and status["uptime_ms"] < (time.monotonic() - began) * 1000:
                return {"phase": "done", "problem": "", "before": before, "version": status["version"]}
            until = time.monotonic() + ABSENT_S
        except ControlError as error:
            if not is_absent(error) or time.monotonic() > until:
                raise
        time.sleep(POLL_S)
