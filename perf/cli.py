"""`shardbroker perf`: load tests. Exit codes: 0 all messages arrived correctly, 1 a fault or no broker, 2 wrong usage."""

import argparse
import dataclasses
import itertools
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from perf.compare import DEFAULTS, STANDARD, compare, plan_of
from perf.engine import LoadError
from perf.figures import Figure, as_json, shown
from perf.launch import LaunchError, on_core
from perf.live import Live, redraws, time_of_day
from perf.measure import Result, run_plan, sound
from perf.options import LOADS, Parser, add_load, add_scenario, choice, number, plan_from
from perf.page import PageError, write_page
from perf.plan import Plan, PlanError
from perf.report import comparison, json_line, table

__all__ = ["build_parser", "main"]

TEXTS = {
    "conn": "clients that connect and stay, with -t also subscribe",
    "sub": "clients that subscribe, and count their messages",
    "pub": "clients that publish at an interval",
    "p2p": "pairs: publisher n to subscriber n, each pair on its own topic",
    "fanout": "one publisher, all subscribers on its topic",
    "fanin": "many publishers, few subscribers in one shared subscription",
    "wildcard": "each publisher uses many topics in turn, subscribers use +",
    "churn": "pairs, while other clients subscribe and unsubscribe repeatedly",
    "retained": "subscribers that get many retained messages each",
    "reconnect": "clients connect, subscribe and disconnect, one after the other in each place",
    "takeover": "clients connect while another with the same client id is connected",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code. `argv` has no program name."""
    parser, verbs = build_parser()
    arguments = parser.parse_args(argv)
    verb = verbs[arguments.verb]
    # SIGTERM is treated like Ctrl-C: the results so far are shown, and no broker is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(arguments.act(arguments))
    except PlanError as error:
        verb.error(_as_option(verb, str(error)))
    except PageError as error:
        verb.error(str(error))
    except (LaunchError, LoadError, OSError, psutil.Error) as error:
        print(f"{verb.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def build_parser() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """Returns the parser, and those of its verbs."""
    parser = Parser(prog="shardbroker perf", description="Load tests of MQTT brokers.")
    subparsers = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    verbs: dict[str, argparse.ArgumentParser] = {}
    for name, text in TEXTS.items():
        verb = verbs[name] = subparsers.add_parser(name, help=text, description=text)
        (add_load if name in LOADS else add_scenario)(verb, name, _default(name))
        verb.set_defaults(act=_run_plan, scenario=name)
    text = "two brokers in turn under the same scenarios"
    verbs["compare"] = subparsers.add_parser("compare", help=text, description=text)
    _add_compare(verbs["compare"])
    text = "rules of this broker: evaluation, republished messages, and what is demanded of them"
    _add_rules(subparsers.add_parser("rules", help=text, description=text), verbs)
    text = "rows of rules in another system: a driver alone, and the whole way through a broker"
    _add_sinks(subparsers.add_parser("sinks", help=text, description=text), verbs)
    text = "one page of plots and tables, of one or several runs"
    report = verbs["report"] = subparsers.add_parser("report", help=text, description=text)
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="lines of JSON, from --out or --json")
    report.add_argument("--out", type=Path, default=Path("perf.html"), metavar="PAGE", help="the page to write; perf.html")
    report.add_argument("--title", default="Load test")
    report.set_defaults(act=_run_report)
    return parser, verbs


def _default(name: str) -> Plan:
    return Plan(**DEFAULTS[name] | ({"scenario": name} | ({"topic": ("t",)} if name in ("sub", "pub") else {})))


def _as_option(verb: argparse.ArgumentParser, text: str) -> str:
    """Rewrites an error of the plan for the command line: "others = 0: ..." becomes "argument --clients: 0: ..."."""
    name, separator, rest = text.partition(" = ")
    if not separator:
        name, separator, rest = text.partition(": ")
    for action in verb._actions:
        if action.dest == name and action.option_strings:
            return f"argument {'/'.join(action.option_strings)}: {rest}"
    return text


def _add_compare(verb: argparse.ArgumentParser) -> None:
    own = Path(sys.executable).with_name("shardbroker")
    options = "--listen {scheme}://127.0.0.1:{port} {tls} --data-dir {dir} --workers 1 --acceptors 1 --set api.bind=disabled"
    limits = "--set mqtt.max_inflight=1000 --set mqtt.max_mqueue_len=0"
    verb.add_argument("--broker", default=f"{own} serve {options} {limits}",
                      help="command; {port}, {scheme}, {tls} and {dir} are filled in")  # fmt: skip
    verb.add_argument("--against", default="mosquitto -c {conf}", help="command of the other broker; {conf} is a mosquitto.conf")
    text = f"default: {' '.join(STANDARD)}".replace("%", "%%")
    verb.add_argument("--scenario", action="append", metavar="NAME[:KEY=VALUE,...]", help=text)
    verb.add_argument("--transport", type=choice("transport"), default="tcp", help="tcp, ssl, ws or wss; tcp")
    verb.add_argument("--rounds", type=number("", low=1, high=1000), default=3)
    verb.add_argument("--seconds", type=number("seconds", whole=False, low=0.1), help="of each run, instead of the scenario's")
    verb.add_argument("--broker-core", type=number("", low=-1, high=4095), default=0, help="-1: any")
    verb.add_argument("--load-core", type=number("", low=-1, high=4095), default=1, help="-1: any")
    verb.add_argument("--json", action="store_true", help="a line of JSON per run instead of the table")
    verb.add_argument("--out", type=Path, metavar="FILE", help="append a line of JSON per run to this file, for `report`")
    verb.add_argument("--quiet", action="store_true", help="do not show progress")
    verb.set_defaults(act=_run_compare)


def _add_rules(verb: argparse.ArgumentParser, verbs: dict[str, argparse.ArgumentParser]) -> None:
    verbs["rules"] = verb
    verb.add_argument("--messages", type=number("", low=10_000, high=10_000_000), default=200_000, help="in the journal; 200000")
    verb.add_argument("--seconds", type=number("seconds", whole=False, low=1), default=5.0, help="of each load of the broker; 5")
    verb.add_argument("--no-broker", action="store_true", help="evaluation only, without republished messages")
    verb.add_argument("--core", type=number("", low=0, high=4095), help="run evaluation and load on this core")
    verb.add_argument("--json", action="store_true", help="a line of JSON per figure instead of the table")
    verb.set_defaults(act=_run_rules)


def _run_rules(arguments: argparse.Namespace) -> int:
    from perf import rules  # the other verbs need nothing of the broker

    figures: list[Figure] = []
    try:
        with _core(arguments.core, "--core"):
            figures += rules.evaluation(arguments.messages)
        if not arguments.no_broker:
            figures += rules.republish(arguments.seconds, arguments.core)
    except rules.RulesError as error:
        raise LaunchError(str(error)) from error
    return _show(figures, arguments, "rules")


def _show(measured: list[Figure], arguments: argparse.Namespace, scenario: str) -> int:
    print("\n".join(as_json(one, scenario) for one in measured) if arguments.json else shown(measured))
    return 0


def _add_sinks(verb: argparse.ArgumentParser, verbs: dict[str, argparse.ArgumentParser]) -> None:
    verbs["sinks"] = verb
    verb.add_argument("--type", required=True, help="type of the action, such as pgsql")
    verb.add_argument("--connector", type=_json_object, required=True, metavar="JSON", help="settings of the connector")
    verb.add_argument("--parameters", type=_json_object, default={}, metavar="JSON",
                      help="of the action; rows have id, clientid, topic, payload, qos and timestamp")  # fmt: skip
    verb.add_argument("--rows", type=number("", low=1000, high=10_000_000), default=200_000, help="of each measurement; 200000")
    verb.add_argument("--no-broker", action="store_true", help="the driver alone")
    verb.add_argument("--json", action="store_true", help="a line of JSON per figure instead of the table")
    verb.set_defaults(act=_run_sinks)


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"allowed is an object of JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"allowed is an object of JSON, not {text[:80]!r}")
    return found


def _run_sinks(arguments: argparse.Namespace) -> int:
    from perf import sinks  # the other verbs need nothing of the broker

    figures: list[Figure] = []
    rows = arguments.rows // sinks.BATCH * sinks.BATCH
    try:
        kind = sinks.type_of(arguments.type)
        figures += sinks.of_driver(kind, arguments.connector, arguments.parameters, rows)
        if not arguments.no_broker:
            figures += sinks.of_broker(kind, arguments.connector, arguments.parameters, rows)
    except sinks.SinksError as error:
        raise LaunchError(str(error)) from error
    return _show(figures, arguments, "sinks")


def _run_plan(arguments: argparse.Namespace) -> int:
    names = [field.name for field in dataclasses.fields(Plan)]
    plan = plan_from(arguments, DEFAULTS[arguments.scenario], names)
    _check_out(arguments.out)
    with _core(arguments.core, "--core"), Live(plan) as live:
        result = run_plan(plan, arguments.host, arguments.port, arguments.broker_pid, None if arguments.quiet else live)
    _keep(arguments.out, result)
    print(json_line(result) if arguments.json else table(result))
    return 0 if sound(result) else 1


def _run_compare(arguments: argparse.Namespace) -> int:
    scenarios = arguments.scenario or list(STANDARD)
    overrides: dict[str, Any] = {"transport": arguments.transport}
    if arguments.seconds is not None:
        overrides["seconds"] = arguments.seconds
    try:
        plans = [plan_of(scenario, overrides) for scenario in scenarios]  # invalid plans are refused before anything starts
    except PlanError as error:
        raise PlanError(f"scenario = {error}") from None
    _check_out(arguments.out)
    cores = []
    for option, core in (("--broker-core", arguments.broker_core), ("--load-core", arguments.load_core)):
        cores.append(None if core < 0 else core)
        with _core(cores[-1], option):
            pass

    runs, begun, began = arguments.rounds * len(plans) * 2, itertools.count(), time.monotonic()

    def started(name: str, plan: Plan, number: int) -> Live | None:
        done = next(begun)
        heading = [f"round {number + 1} of {arguments.rounds}", f"run {done + 1} of {runs}", name, plan.scenario]
        if done:
            heading.append(f"all end about {time_of_day((time.monotonic() - began) / done * (runs - done))}")
        if arguments.quiet:
            return None
        if redraws(sys.stderr):
            return Live(plan, heading)
        print(", ".join(heading), file=sys.stderr, flush=True)
        return None

    results: list[tuple[str, Result]] = []
    brokers = (("broker", arguments.broker), ("against", arguments.against))
    for name, result in compare(brokers, plans, arguments.rounds, cores[0], cores[1], started):
        results.append((name, result))
        _keep(arguments.out, result)
        if arguments.json:
            print(json_line(result), flush=True)
    if not arguments.json:
        print(comparison(("broker", "against"), results))
    return 0 if all(sound(result) for name, result in results if name == "broker") else 1


def _run_report(arguments: argparse.Namespace) -> int:
    write_page(arguments.files, arguments.out, arguments.title)
    print(arguments.out)
    return 0


def _core(core: int | None, option: str) -> Any:
    usable = psutil.Process().cpu_affinity()
    if core is not None and core not in usable:
        raise PlanError(f"{option} {core}: allowed is {', '.join(map(str, usable))}, the cores that this process may use")
    return on_core(core)


def _check_out(path: Path | None) -> None:
    """Checks before the run that the file can be written."""
    if path is not None:
        try:
            path.open("a").close()
        except OSError as error:
            raise PlanError(f"out = {path}: {error.strerror}; allowed is a file that can be written") from None


def _keep(path: Path | None, result: Result) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json_line(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
