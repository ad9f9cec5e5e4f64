"""Generates docs/cli.md from the help of each command, except for `ctl`, which has a page of its own. `make docs`"""

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress

__all__ = ["Program", "commands", "reference"]

Program = Callable[[list[str]], int]
"""`shardbroker.cli.main.main`, which imports the commands, and so cannot be imported by them."""

COLUMNS = 100
INTRODUCTION = """\
# Command line

Made by `make docs`: the output of `--help` of each command. The verbs of `shardbroker ctl`, for a running broker, are on [a page
of their own](ctl.md). `shardbroker perf VERB --help` lists the options of a scenario.

Exit codes: 0 success, 1 failure, 2 invalid configuration or usage.
"""
ELSEWHERE = {"ctl"}
SHOWN: dict[tuple[str, ...], tuple[str, ...]] = {("perf",): ("p2p", "compare", "rules", "report")}
"""Shown verbs of a command whose other verbs have the same options."""
_VERB = re.compile(r"^    ([a-z]+)(?= |$)", re.MULTILINE)


def reference(program: Program) -> str:
    """Returns the page."""
    sections = (f"## shardbroker {' '.join(words)}\n\n```text\n{help_of(program, words)}\n```\n" for words in commands(program))
    return "\n".join((INTRODUCTION, *sections))


def commands(program: Program, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the commands below `above`, at the lowest level, unless only some verbs are shown."""
    verbs = _VERB.findall(help_of(program, above))
    if not verbs or above in SHOWN:
        yield above
    for verb in SHOWN.get(above, verbs):
        if verb not in ELSEWHERE:
            yield from commands(program, (*above, verb))


def help_of(program: Program, words: tuple[str, ...]) -> str:
    """Returns the help as printed, at a width that does not depend on the terminal."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(COLUMNS)
    out = io.StringIO()
    try:
        with redirect_stdout(out), suppress(SystemExit):
            program([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())
