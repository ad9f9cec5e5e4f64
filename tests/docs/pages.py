"""Examples of README and docs/, as they stand in the pages' sources.

An example is a fenced block, or an indented one. What it is: the fence says so; an indented one is shell, TOML if it begins with a
`[table]`, or a drawing if it is drawn. Comments of HTML, which readers of the page do not see, stand alone on a line:

    <!-- example: no: REASON -->      the next block is not run, for one of REASONS; `examples:` means all blocks from here on
    <!-- example: file: PATH -->      the next block is written there; TOML takes the place of what the file said of the same keys
    <!-- example: check: COMMAND -->  the next block is text, and the command, given a file with it, succeeds
    <!-- example: fails: TEXT -->     the last command of the next block fails, and says this
    <!-- example: says: TEXT -->      the last command of the next block says this, whether it fails or not
    <!-- example: with: OPTIONS -->   the next block is run, of a page that else is not, with these behind each command
    <!-- example: run: COMMAND -->    a command in between: what a reader has done and the test has not
    <!-- example: PLACE = COMMAND --> what the word PLACE stands for from here on: what the command prints
    <!-- example: shows: TEXT -->     something on the page has printed this, or does so within moments
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "REASONS", "ROOT", "Example", "Mark", "parts_of", "with_reasons"]

ROOT = Path(__file__).parents[2]
GENERATED = ("cli.md", "configuration.md", "counters.md", "ctl.md")
"""Made from the code, without examples of their own."""
PAGES = [
    page for page in (ROOT / "README.md", ROOT / "THREAT_MODEL.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name not in GENERATED
]  # fmt: skip
REASONS = {
    "forms": "forms of commands, not commands: test_commands.py looks them up",
    "output": "what something prints",
    "measurement": "takes minutes or hours of a quiet machine",
    "downloads": "needs registries of packages",
    "cluster": "needs further machines",
    "elsewhere": "is run by the test that is named behind it",
}
"""Why an example is not run."""
_MARK = re.compile(r"<!-- (examples?): (.*?) -->\s*")
_DRAWN = re.compile(r"[─│┌└┐┘├┤┬┴┼▲▼]|-> |  \|  ")


@dataclass(frozen=True)
class Example:
    """A block with the number of its first line."""

    line: int
    kind: str
    """sh, toml, python, or anything else that the first word of a fence says; `drawing`."""
    text: str


@dataclass(frozen=True)
class Mark:
    """A comment, by what stands before the colon, or by its PLACE."""

    line: int
    key: str
    value: str
    whole_page: bool = False


def with_reasons(page: Path) -> Iterator[tuple[Example, Mark | None]]:
    """Examples that are no drawings, and the mark that says why one is not run."""
    whole = once = None
    short = False
    for part in parts_of(page):
        if isinstance(part, Example):
            if part.kind != "drawing":
                yield part, None if short else once or whole
            once, short = None, False
        elif part.key == "with":
            short = True
        elif part.key == "no":
            if part.whole_page:
                whole = part
            else:
                once = part


def parts_of(page: Path) -> Iterator[Example | Mark]:
    """Examples and marks in their order."""
    lines = page.read_text().splitlines()
    at, after_blank = 0, True
    while at < len(lines):
        line, start = lines[at], at
        found = _MARK.fullmatch(line)
        at += 1
        if found:
            separator = ": " if re.match(r"[a-z]+: ", found[2]) else " = "
            key, _, value = found[2].partition(separator)
            yield Mark(at, key, value, found[1] == "examples")
        elif line.startswith("```"):
            while not lines[at].startswith("```"):
                at += 1
            yield Example(start + 2, line[3:].partition(" ")[0].strip() or "text", "\n".join(lines[start + 1 : at]) + "\n")
            at += 1
        elif line.startswith("    ") and after_blank:
            while at < len(lines) and _is_inside(lines, at):
                at += 1
            text = "\n".join(one[4:] for one in lines[start:at]) + "\n"
            yield Example(start + 1, _kind(text), text)
        after_blank = not line.strip() or bool(found)


def _is_inside(lines: list[str], at: int) -> bool:
    """An indented line, or an empty one before an indented one."""
    return lines[at].startswith("    ") or (not lines[at] and lines[at + 1 : at + 2] != [] and lines[at + 1].startswith("    "))


def _kind(text: str) -> str:
    if _DRAWN.search(text):
        return "drawing"
    return "toml" if re.match(r"\[\[?[a-z0-9_.]+\]", text) else "sh"
