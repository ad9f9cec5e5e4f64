"""Generates docs/cli.md from the help of each command, except for `ctl`, which has a page of its own. `make docs`"""

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

Made by `make docs`: the output of `--help` of each command. The verbs of `shardbroker ctl`, for a running broker, are on [a page
of their own](ctl.md). `shardbroker perf VERB --help` lists the options of a scenario.

Exit codes: 0 success, 1 failure, 2 invalid configuration or usage.
"""
ELSEWHERE = {"ctl"}
SHOWN: dict[tuple[str, ...], tuple[str, ...]] = {("perf",): ("p2p", "compare", "rules", "report")}
"""Shown verbs of a command whose other verbs have the same options."""
_VERB = re.compile(r"^    ([a-z]+)(?= |$)", re.MULTILINE)


def reference() -> str:
    """Returns the page."""
    sections = (f"## shardbroker {' '.join(words)}\n\n```text\n{help_of(words)}\n```\n" for words in commands(()))
    return "\n".join((INTRODUCTION, *sections))


def commands(above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the commands below `above`, at the lowest level, unless only some verbs are shown."""
    verbs = _VERB.findall(help_of(above))
    if not verbs or above in SHOWN:
        yield above
    for verb in SHOWN.get(above, verbs):
        if verb not in ELSEWHERE:
            yield from commands((*above, verb))


def help_of(words: tuple[str, ...]) -> str:
    """Returns the help as printed, at a width that does not depend on the terminal."""
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
