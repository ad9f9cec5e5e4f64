"""`shardbroker install` and `uninstall`: the current environment as a service of the machine."""

import argparse
import sys
from pathlib import Path
from typing import Any

from shardbroker.cli.reference import Program
from shardbroker.deploy import InstallError, Target, install, uninstall
from shardbroker.deploy.install_layout import DEFAULT_PREFIX

__all__ = ["add_install"]


def add_install(commands: "argparse._SubParsersAction[Any]", program: Program) -> None:
    """Adds both commands; the manual has the help of all commands of the program."""
    for name, run, text in (
        ("install", install, "install this environment as a systemd service"),
        ("uninstall", uninstall, "remove the service, but not configuration and data"),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("--dry-run", action="store_true", help="print the steps without running them")
        parser.add_argument("--prefix", default=DEFAULT_PREFIX, metavar="DIR", help=f"of the environment; {DEFAULT_PREFIX}")
        parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="root directory of an image")
        if run is install:
            parser.add_argument("--python", metavar="FILE", help="interpreter of the environment, of the running version")
        parser.set_defaults(run=lambda arguments, run=run: _run(run, arguments, program))


def _run(run: Any, arguments: argparse.Namespace, program: Program) -> int:
    from shardbroker.cli.manual import manual  # which loads all settings

    python = getattr(arguments, "python", None)
    target = Target(arguments.root.resolve(), arguments.prefix.rstrip("/") or "/", arguments.dry_run, python, manual(program))
    try:
        run(target, lambda text: print(text, flush=True))
    except InstallError as error:
        print(f"shardbroker {run.__name__}: {error}", file=sys.stderr)
        return 1
    return 0
