"""`shardbroker install` and `uninstall`: the environment that this runs in as a service of the machine."""

import argparse
import sys
from pathlib import Path
from typing import Any

from shardbroker.deploy import InstallError, Target, install, uninstall
from shardbroker.deploy.install_layout import DEFAULT_PREFIX

__all__ = ["add_install"]


def add_install(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds both commands."""
    for name, run, text in (
        ("install", install, "make a systemd service of this environment"),
        ("uninstall", uninstall, "remove the service; configuration and data stay"),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("--dry-run", action="store_true", help="say the steps and do nothing")
        parser.add_argument("--prefix", default=DEFAULT_PREFIX, metavar="DIR", help=f"of the environment; else {DEFAULT_PREFIX}")
        parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="root directory of an image")
        if run is install:
            parser.add_argument("--python", metavar="FILE", help="interpreter of the environment, of the version that runs this")
        parser.set_defaults(run=lambda arguments, run=run: _run(run, arguments))


def _run(run: Any, arguments: argparse.Namespace) -> int:
    python = getattr(arguments, "python", None)
    target = Target(arguments.root.resolve(), arguments.prefix.rstrip("/") or "/", arguments.dry_run, python)
    try:
        run(target, lambda text: print(text, flush=True))
    except InstallError as error:
        print(f"shardbroker {run.__name__}: {error}", file=sys.stderr)
        return 1
    return 0
