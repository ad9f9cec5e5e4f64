"""What the text names, and examples that are not run, exists as it is written: verbs, options, targets of make, modules, files."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shardbroker.cli.main import main
from shardbroker.cli.reference import reference
from tests.docs.pages import PAGES, ROOT, with_reasons

COMMAND = re.compile(r"(?:^|[|;&(]\s*|sudo\s+)(?:\.venv/bin/|/opt/shardbroker/bin/)?shardbroker\s+(.*)")
INLINE = re.compile(r"`((?:sudo )?(?:\.venv/bin/)?shardbroker [a-z][^`]*)`")
FOLDERS = ("acceptor", "deploy", "docs", "examples", "fuzz", "perf", "shardbroker", "shm", "spark", "systemd", "tests")
END_OF_COMMAND = ("|", ";", "&", "&&", "||", ">", "2>", ")", "#")


def lines_not_run(page: Path) -> Iterator[str]:
    """Continued ones put together."""
    yield from INLINE.findall(page.read_text())
    for example, reason in with_reasons(page):
        if reason is not None and reason.value != "output":
            yield from re.sub(r"\\\n\s*|\n {8,}", " ", example.text).splitlines()


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in lines_not_run(page):
            for text in COMMAND.findall(line):
                yield page.name, text


@cache
def help_of(words: tuple[str, ...]) -> str | None:
    """What a command says about itself; None: there is no such command."""
    program = str(Path(sys.executable).with_name("shardbroker"))
    wide = {**os.environ, "COLUMNS": "200"}  # an option is not cut off
    done = subprocess.run([program, *words, "--help"], capture_output=True, text=True, timeout=60, env=wide)
    return done.stdout if done.returncode == 0 else None


@pytest.mark.parametrize(("page", "text"), [*commands()], ids=lambda value: value.replace("/", "_")[:60])
def test_a_command_is_there_with_its_options(page: str, text: str) -> None:
    text = re.sub(r"\s+#.*", "", re.sub(r"[\[\]]|\.\.\.|…", " ", text))
    try:
        words = shlex.split(text.split(" then ")[0])
    except ValueError:
        words = text.split()
    words = words[: next((place for place, word in enumerate(words) if word in END_OF_COMMAND), len(words))]
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    plain = [word for word in words if not word.startswith("-")]
    for verb in plain[0].split("|"):
        chain: tuple[str, ...] = (verb,)
        found = help_of(chain)
        assert found is not None, f"{page}: there is no shardbroker {verb}"
        said = found
        for word in plain[1:4]:  # verbs of verbs: ctl node evacuate start
            for one in word.split("|"):
                deeper = help_of((*chain, one)) if re.fullmatch(r"[a-z][a-z0-9-]*", one) and one in said else None
                if deeper is not None:
                    said += deeper
                    last = one
            if said != found:
                chain = (*chain, last)
                found = said
        for option in options:
            if len(option) > 2 or option == "-c":
                there = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", said)
                assert there, f"{page}: shardbroker {' '.join(chain)} has no {option}"


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    """How argparse lays help out differs between versions of Python, so it is not compared to the letter."""
    page = (ROOT / "docs/cli.md").read_text()
    for section in reference(main).split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        _, found, written = page.partition(f"## {name}\n")
        assert found, name
        told = {*re.findall(r"(?<!\w)--?[a-z][\w-]*", written.partition("\n## ")[0])}
        assert {*re.findall(r"(?<!\w)--?[a-z][\w-]*", text)} == told, f"{name}: make docs"


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        lines = [*lines_not_run(page), *re.findall(r"`([^`\n]+)`", page.read_text())]
        for line in lines:
            for target in re.findall(r"(?:^|&& |sudo )make ([a-z]+)", line):
                assert target in targets, f"{page.name}: make {target}"


def test_modules_that_are_run_are_there() -> None:
    found = 0
    for page in PAGES:
        for module in re.findall(r"python -m ([\w.]+)", page.read_text()):
            found += 1
            assert importlib.util.find_spec(module), f"{page.name}: python -m {module}"
    assert found


def test_files_that_are_named_are_there() -> None:
    for page in PAGES:
        for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./]*)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
