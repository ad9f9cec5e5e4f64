"""Manual pages: groff formats them without a warning, and every command, verb and key is there."""

import re
import subprocess

import pytest

from shardbroker.cli.main import main
from shardbroker.cli.manual import manual, roff
from shardbroker.cli.reference import commands
from shardbroker.config import reference
from shardbroker.control import VERBS

PAGES = manual(main)


def formatted(page: str) -> str:
    """As `man` shows it; lines are so long that none is broken, and nothing is bold."""
    command = ("groff", "-K", "utf8", "-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=9999n")
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PAGES)
def test_it_is_formatted_without_a_warning(name: str) -> None:
    text = formatted(PAGES[name])
    assert text.startswith(f"{name.partition('/')[2][:-2]}({name[-1]})")
    assert not re.search(r"\\f[BR]|\]\([\w#.]+\)", text), "marks of another language"


def test_every_command_verb_and_key_is_there() -> None:
    lines = {name: {line.strip() for line in formatted(page).splitlines()} for name, page in PAGES.items()}
    assert {f"shardbroker {' '.join(words)}" for words in commands(main)} <= lines["man1/shardbroker.1"]
    assert set(VERBS) <= lines["man1/shardbroker-ctl.1"]
    keys = re.findall(r"^\| `([^`]+)`", reference(), re.MULTILINE)
    assert len(keys) > 1000
    starts = {line.split(" ")[0] for line in lines["man5/shardbroker.toml.5"]}
    assert set(keys) <= starts


def test_what_roff_would_take_for_a_request_is_text() -> None:
    examples = "    .de x\n\n```text\n.ab\n'ab --x\n```\n"
    page = "## A\n\n.so /etc/passwd\n\n'so x\n\n| a | b |\n|---|---|\n| `.x` | \\n(.g \\\\ a-b |\n\n"
    text = formatted(roff("name", 1, page + examples))
    for wanted in (".so /etc/passwd", "'so x", ".de x", ".x", "\\n(.g \\\\ a-b", ".ab", "'ab --x"):
        assert wanted in text, text
