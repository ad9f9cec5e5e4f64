"""`shardbroker perf`: load tests. Exit codes: 0 all messages came as they should, 1 not so or no broker, 2 wrong usage."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from perf.compare import DEFAULTS, STANDARD, compare, plan_of
from perf.engine import LoadError
from perf.launch import LaunchError, on_core
from perf.measure import run_plan, sound
from perf.plan import SCENARIOS, Plan
from perf.report import comparison, json_line, table

__all__ = ["main"]

TEXTS = {
    "p2p": "pairs: publisher n to subscriber n, each pair on its own topic",
    "fanout": "one publisher, all subscribers on its topic",
    "wildcard": "each publisher goes through many topics, subscribers take them by + and #",
    "conn": "clients connect, subscribe and disconnect, one after the other in each place",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; `argv` without the program's name."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (ValueError, TypeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except (LaunchError, LoadError, OSError, psutil.NoSuchProcess) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shardbroker perf", description="Load tests of MQTT brokers.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for scenario in SCENARIOS:
        _add_scenario(verbs.add_parser(scenario, help=TEXTS[scenario], description=TEXTS[scenario]), scenario)
    _add_compare(verbs.add_parser("compare", help="two brokers in turn under the same scenarios"))
    return parser


def _add_scenario(verb: argparse.ArgumentParser, scenario: str) -> None:
    default = plan_of(scenario)
    verb.add_argument("--host", default="127.0.0.1")
    verb.add_argument("--port", type=int, default=1883)
    verb.add_argument("--qos", type=int, default=default.qos, help="of messages and subscriptions")
    verb.add_argument("--version", type=int, default=default.version, help="protocol level, 4 or 5")
    verb.add_argument("--seconds", type=float, default=default.seconds, help="nothing is published after this long")
    if scenario == "conn":
        verb.add_argument("--clients", dest="subscribers", type=int, default=default.subscribers, help="at a time")
        verb.add_argument("--connections", dest="messages", type=int, default=default.messages, help="in all")
    else:
        _add_load(verb, scenario, default)
    verb.add_argument("--broker-pid", type=int, help="root of the broker's processes: its CPU and memory are measured")
    verb.add_argument("--core", type=int, help="run on this core")
    verb.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    verb.set_defaults(run=_run_scenario, scenario=scenario)


def _add_load(verb: argparse.ArgumentParser, scenario: str, default: Plan) -> None:
    if scenario == "p2p":
        verb.add_argument("--pairs", dest="subscribers", type=int, default=default.subscribers)
    else:
        verb.add_argument("--subscribers", type=int, default=default.subscribers)
    if scenario == "wildcard":
        verb.add_argument("--publishers", type=int, default=default.publishers)
        verb.add_argument("--topics", type=int, default=default.topics, help="of each publisher")
    verb.add_argument("--messages", type=int, default=default.messages, help="published in all")
    verb.add_argument("--payload", type=int, default=default.payload, help="bytes")
    verb.add_argument("--window", type=int, default=default.window, help="undelivered messages per publisher")
    verb.add_argument("--inflight", type=int, default=default.inflight, help="unacknowledged messages per publisher")
    verb.add_argument("--rate", type=float, default=default.rate, help="messages a second in all; 0: as fast as it goes")


def _add_compare(verb: argparse.ArgumentParser) -> None:
    own = Path(sys.executable).with_name("shardbroker")
    options = "--listen tcp://127.0.0.1:{port} --data-dir {dir} --workers 1 --acceptors 1"
    verb.add_argument("--broker", default=f"{own} serve {options}", help="with {port} and {dir} to be filled in")
    verb.add_argument("--against", default="mosquitto -c {conf}", help="the other one; {conf} is a mosquitto.conf")
    verb.add_argument("--scenario", action="append", metavar="NAME[:KEY=VALUE,...]", help=f"default: {' '.join(STANDARD)}")
    verb.add_argument("--rounds", type=int, default=3)
    verb.add_argument("--broker-core", type=int, default=0, help="-1: any")
    verb.add_argument("--load-core", type=int, default=1, help="-1: any")
    verb.add_argument("--json", action="store_true", help="a line of JSON per run instead of the table")
    verb.set_defaults(run=_run_compare)


def _run_scenario(arguments: argparse.Namespace) -> int:
    names = [field.name for field in dataclasses.fields(Plan)]
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    values = DEFAULTS[arguments.scenario] | given
    if arguments.scenario == "p2p":
        values["publishers"] = values["subscribers"]
    plan = Plan(**values)
    with on_core(arguments.core):
        result = run_plan(plan, arguments.host, arguments.port, arguments.broker_pid)
    print(json_line(result) if arguments.json else table(result))
    return 0 if sound(result) else 1


def _run_compare(arguments: argparse.Namespace) -> int:
    scenarios = arguments.scenario or list(STANDARD)
    for scenario in scenarios:
        plan_of(scenario)  # wrong ones are refused before anything starts
    if arguments.rounds < 1:
        raise ValueError(f"--rounds {arguments.rounds}: allowed is 1 or more")
    cores = [None if core < 0 else core for core in (arguments.broker_core, arguments.load_core)]

    def started(name: str, scenario: str, number: int) -> None:
        print(f"round {number + 1} of {arguments.rounds}: {name}, {scenario}", file=sys.stderr, flush=True)

    results = []
    brokers = (("broker", arguments.broker), ("against", arguments.against))
    for name, result in compare(brokers, scenarios, arguments.rounds, cores[0], cores[1], started):
        results.append((name, result))
        if arguments.json:
            print(json_line(result), flush=True)
    if not arguments.json:
        print(comparison(("broker", "against"), results))
    return 0 if all(sound(result) for name, result in results if name == "broker") else 1


if __name__ == "__main__":
    sys.exit(main())
