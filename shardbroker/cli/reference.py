"""docs/cli.md: what each command says of itself, `ctl` apart, which has a page of its own. `make docs`"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress

from shardbroker.cli.main import main

__all__ = ["reference"]

COLUMNS = 100
INTRODUCTION = """\
# Command line

Made by `make docs`: what each command says with `--help`. The verbs of `shardbroker ctl`, for a running broker, are on [a page
of their own](ctl.md). `shardbroker perf VERB --help` has what a scenario can be told.

A command exits with 0 if all went well, 1 if it could not do it, 2 if the configuration or the command was wrong.
"""
ELSEWHERE = {"ctl"}
SHOWN: dict[tuple[str, ...], tuple[str, ...]] = {("perf",): ("p2p", "compare", "report")}
"""Verbs of a command whose other verbs have the same options."""
_VERB = re.compile(r"^    ([a-z]+)(?= |$)", re.MULTILINE)


def reference() -> str:
    """The page."""
    sections = (f"## shardbroker {' '.join(words)}\n\n```text\n{help_of(words)}\n```\n" for words in commands(()))
    return "\n".join((INTRODUCTION, *sections))


def commands(above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Those below; one that has verbs is its verbs, unless only some of them are shown."""
    verbs = _VERB.findall(help_of(above))
    if not verbs or above in SHOWN:
        yield above
    for verb in SHOWN.get(above, verbs):
        if verb not in ELSEWHERE:
            yield from commands((*above, verb))


def help_of(words: tuple[str, ...]) -> str:
    """As it is printed, at a width that does not depend on the terminal."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(COLUMNS)
    out = io.StringIO()
    try:
        with redirect_stdout(out), suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


if __name__ == "__main__":
    print(reference(), end="")
