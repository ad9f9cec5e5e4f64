"""`shardbroker ctl actions cursor`: shows where an action is in the journals, or lets it continue elsewhere."""

import json

import click

from shardbroker.cli import render
from shardbroker.cli.locate import Target

__all__ = ["cursor"]


@click.command("cursor", short_help="Position of an action in the journals, and how far it is behind them.")
@click.argument("id")
@click.option("--rewind", metavar="TIME", help="Continue at an age such as 15m, 2h, 7d, a UTC time, earliest or latest.")
@click.option("--json", "json_here", is_flag=True, help="JSON, for programs.")
@click.pass_context
def cursor(context: click.Context, /, id: str, rewind: str | None, json_here: bool) -> int:
    """Show the position of the action ID in the journals, and how far it is behind them.

    With --rewind the action continues at another time: rows since then are written again, or left out.
    """
    target: Target = context.obj
    with target.connect() as control:
        if rewind is not None:
            control.call("actions rewind", id=id, at=rewind)
        found = control.call("actions cursor", id=id)
    if json_here or target.as_json:
        print(json.dumps(found))
    else:
        render.fields(found, lambda name, value: json.dumps(value) if isinstance(value, dict) else str(value))
    return 0
