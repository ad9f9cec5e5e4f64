"""`shardbroker tune`: settings for this machine, with reasons, or the obstacles to a given load."""

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

from shardbroker.config import ConfigError, load
from shardbroker.deploy.machine import MachineError, parse_machine, read_machine
from shardbroker.deploy.tuning import Wanted, apply, apply_to, check, propose

__all__ = ["add_tune"]

WIDTH = 100


def add_tune(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "tune",
        help="propose settings for this machine, with reasons",
        description="Propose settings for this machine, with reasons. Nothing is changed without --apply.",
    )
    parser.add_argument("--machine", type=Path, metavar="FILE", help="another machine, as --describe printed it there")
    parser.add_argument("--describe", action="store_true", help="print what was found, as JSON, and nothing else")
    parser.add_argument("--apply", type=Path, metavar="FILE", help="write what is proposed into this configuration file")
    parser.add_argument("--check", action="store_true", help="what prevents the numbers below; exit code 1 if anything does")
    parser.add_argument("--connections", type=_count, default=0, metavar="N", help="with --check: at a time")
    parser.add_argument("--rate", type=_count, default=0, metavar="N", help="with --check: messages delivered a second")
    parser.add_argument("--connects", type=_count, default=0, metavar="N", help="with --check: clients that connect per second")
    parser.add_argument("--tls", action="store_true", help="with --check: over TLS")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    if not text.replace("_", "").isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number such as 100000, got {text!r}")
    return int(text.replace("_", ""))


def _run(arguments: argparse.Namespace) -> int:
    try:
        machine = parse_machine(arguments.machine.read_text()) if arguments.machine else read_machine()
        if arguments.describe:
            print(machine.model_dump_json(indent=1))
            return 0
        if arguments.check:
            return _check(arguments, machine)
        proposals = propose(machine)
        for one in proposals:
            print(f"{one.key} = {one.value}")
            print(textwrap.fill(one.why, WIDTH, initial_indent="    ", subsequent_indent="    "))
        if arguments.apply:
            _apply(arguments.apply, proposals)
    except MachineError as error:
        print(f"shardbroker tune: {arguments.machine}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"shardbroker tune: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _apply(path: Path, proposals: Any) -> None:
    """Writes only a file that `config check` accepts. Raises ConfigError, OSError."""
    text = apply(path.read_text() if path.exists() else "", proposals)
    trial = path.with_name(path.name + ".trial")
    try:
        trial.write_text(text)
        load(trial)
    except ConfigError as error:
        raise ConfigError(f"nothing was written: {str(error).replace(str(trial), str(path))}") from None
    finally:
        trial.unlink(missing_ok=True)
    apply_to(path, proposals)
    print(f"\nwritten to {path}; applied at the next start of the broker")


def _check(arguments: argparse.Namespace, machine: Any) -> int:
    wanted = Wanted(arguments.connections, arguments.rate, arguments.connects, arguments.tls)
    if wanted == Wanted(tls=wanted.tls):
        print("shardbroker tune --check: one of --connections N, --rate N or --connects N is required", file=sys.stderr)
        return 2
    findings = check(machine, wanted)
    for one in findings:
        print(f"{'ok ' if one.enough else 'NO '} {one.text}")
        if one.remedy:
            print(f"     -> {one.remedy}")
    return 0 if all(one.enough for one in findings) else 1
