"""`shardbroker ctl workers set`: begins to change the number of workers, and follows it to its end."""

import json

import click

from shardbroker.cli.following import connected, states
from shardbroker.cli.locate import Target
from shardbroker.control import VERBS
from shardbroker.control.verbs import WORKERS_MAX

__all__ = ["set_workers"]


@click.command("set", short_help=VERBS["workers set"].summary)
@click.argument("workers", type=click.IntRange(1, WORKERS_MAX))
@click.option("--weights", default="auto", help="Relative share of the sessions of each worker, such as 3,1,1. [default: auto]")
@click.option("--json", "json_here", is_flag=True, help="JSON, for programs.")
@click.pass_context
def set_workers(context: click.Context, /, workers: int, weights: str, json_here: bool) -> int:
    """Change the number of workers, or their weights, without disconnecting clients.

    It lasts until the broker ends: a start of the service reads process.workers. Exit codes: 0 well, 1 refused or not complete.
    """
    target: Target = context.obj
    data_dir = target.here()
    with connected(data_dir) as control:
        control.call("workers set", workers=workers, weights=weights)
    *_, state = states(data_dir, "workers setting")
    if json_here or target.as_json:
        print(json.dumps(state))
    elif state["problem"]:
        print(f"not changed: {state['problem']}", flush=True)
    else:
        print(f"workers {state['before']} -> {state['workers']}, {state['connections']} connections stayed", flush=True)
        print(state["lasts"], flush=True)
    return 1 if state["problem"] else 0
