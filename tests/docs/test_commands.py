"""Commands in README and docs exist as they are written: verbs, options, and targets of make."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "THREAT_MODEL.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"(?:^|[|;&(]\s*|sudo\s+)(?:\.venv/bin/|/opt/shardbroker/bin/)?shardbroker\s+(.*)")
GENERATED = ("ctl.md", "configuration.md", "rest.md")
"""Made from the code, so that what stands in them exists."""
END_OF_COMMAND = ("|", ";", "&", "&&", "||", ">", "2>", ")", "#")


def blocks(page: Path) -> Iterator[str]:
    """Lines of code, continued ones put together."""
    lines = re.sub(r"\\\n\s*", " ", page.read_text()).splitlines()
    fenced = False
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip().removeprefix("$ ")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.name in GENERATED:
            continue
        for line in blocks(page):
            for text in COMMAND.findall(line):
                if not re.match(r"[\d.]+ ready", text):  # what the broker prints
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
        for word in plain[1:3]:  # verbs of verbs: ctl clients list
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


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for line in blocks(page):
            for target in re.findall(r"(?:^|&& |sudo )make ([a-z]+)", line):
                assert target in targets, f"{page.name}: make {target}"
