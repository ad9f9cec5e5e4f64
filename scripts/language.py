"""Counts the words and phrases that plain technical English avoids, per 1,000 words of the text in this repository.

    python scripts/language.py [--list] [PATH...]

Text is what a reader sees: Markdown without code, docstrings, comments, and string literals that contain a space (log lines, reason
strings, error messages). Quoted code (`...`) and placeholders ({...}) do not count. CHANGELOG.md and tests are left out unless a
PATH names them, this file always. Verbs of speech are counted separately: whether their subject is a mechanism takes a reader.
"""

import argparse
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["AREAS", "AVOIDED", "SPEECH", "TEXTS", "Hit", "Tally", "files", "passages", "tally"]

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "THREAT_MODEL.md", "acceptor", "docs", "examples", "fuzz", "perf", "scripts", "shardbroker", "shm", "spark")
"""Default paths, relative to the root of the repository."""
SUFFIXES = (".md", ".py", ".pyx", ".pxd")
AREAS = ("docs", "docstrings", "comments", "strings")
AVOIDED = (
    "nobody", "no one", "somebody", "someone", "everybody", "everyone", "anybody", "whoever", "who has", "who have", "those who",
    "anew", "of before", "of now", "(?:is|are|was|were) (?-i:none)",  # not Python's None
    "stands?(?! for| by| alone| still|-)",
    "comes?(?! first| last| from| with| after| before| in pairs)",
    "goes(?! through| to| into)",
)  # fmt: skip
SPEECH = ("says?", "said", "tells?", "told", "hears?", "heard", "asks?", "asked")
# Before and after a word: no identifier, path or hyphenated word.
_START, _END = r"(?<![\w.`/-])", r"(?![\w`(]|-\w)"
_ALL = "|".join(AVOIDED + SPEECH).replace(" ", r"\s+")
_FOUND = re.compile(f"{_START}(?:{_ALL}){_END}", re.IGNORECASE)
_SPEECH = re.compile("|".join(SPEECH), re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"``[^`]+``|`[^`\n]*`|\{[^{}\n]*\}|https?://\S+")
_MARKDOWN_CODE = re.compile(
    r"^(```|~~~).*?^\1|(?<=\n\n)(?:(?: {4}|\t)[^\n]*\n|\n)+|<!--.*?-->|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)
_CYTHON = re.compile(
    r"""(?P<long>\"{3}|'{3})(?P<text>.*?)(?P=long)|(?P<quote>["'])(?P<short>(?:\\.|[^\\\n])*?)(?P=quote)"""
    r"|(?P<comment>\#[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Hit:
    """One avoided word or phrase, with the line that it begins on."""

    path: Path
    line: int
    phrase: str
    is_speech: bool
    text: str


@dataclass
class Tally:
    """Words by area, and the avoided ones among them."""

    words: Counter[str] = field(default_factory=Counter)
    hits: dict[str, list[Hit]] = field(default_factory=lambda: {area: [] for area in AREAS})

    def count(self, area: str, *, speech: bool = False) -> int:
        """Returns the number of avoided phrases in an area, or of SPEECH."""
        return sum(hit.is_speech == speech for hit in self.hits[area])

    def per_1000(self, *areas: str, speech: bool = False) -> float:
        """Returns the avoided phrases, or SPEECH, per 1,000 words of the areas; of all areas if none is named."""
        areas = areas or AREAS
        return 1000 * sum(self.count(area, speech=speech) for area in areas) / max(1, sum(self.words[area] for area in areas))


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the files with text below the given paths, in order."""
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and "build" not in file.parts and file.resolve() != Path(__file__).resolve():
                yield file


def passages(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields (area, number of the first line, text) for each page, docstring, block of comments and string literal of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield "docs", 1, _MARKDOWN_CODE.sub(_blank, text)
        return
    comments: list[str] = []
    last = 0
    for area, line, part in _python(text) if path.suffix == ".py" else _cython(text):
        if area != "comments":
            yield area, line, part
            continue
        if comments and line != last + 1:
            yield "comments", last - len(comments) + 1, "\n".join(comments)
            comments = []
        comments.append(part.lstrip("#: "))
        last = line
    if comments:
        yield "comments", last - len(comments) + 1, "\n".join(comments)


def tally(paths: Iterable[Path]) -> Tally:
    """Counts all files below the given paths."""
    result = Tally()
    for path in files(paths):
        lines: list[str] = []
        for area, first, text in passages(path):
            text = _CODE.sub(_blank, text)
            result.words[area] += len(_WORD.findall(text))
            for found in _FOUND.finditer(text):
                lines = lines or path.read_text(encoding="utf-8").splitlines()
                line = first + text.count("\n", 0, found.start())
                phrase = " ".join(found[0].lower().split())
                result.hits[area].append(Hit(path, line, phrase, bool(_SPEECH.fullmatch(phrase)), lines[line - 1].strip()))
    return result


def _blank(found: re.Match[str]) -> str:
    """Preserves the lines of removed text, so that line numbers stay correct; a mark separates the words around it."""
    return " ~ " + "\n" * found[0].count("\n")


def _python(text: str) -> Iterator[tuple[str, int, str]]:
    is_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if name == "COMMENT":
            yield "comments", token.start[0], token.string
        elif name == "STRING" and is_statement:
            yield "docstrings", token.start[0], token.string
        elif name in ("STRING", "FSTRING_MIDDLE") and " " in token.string:
            yield "strings", token.start[0], token.string
        if name not in ("COMMENT", "NL"):
            is_statement = name in ("NEWLINE", "INDENT", "DEDENT", "ENCODING")


def _cython(text: str) -> Iterator[tuple[str, int, str]]:
    line, counted = 1, 0
    for found in _CYTHON.finditer(text):
        line += text.count("\n", counted, found.start())
        counted = found.start()
        if found["comment"]:
            yield "comments", line, found["comment"]
        elif found["long"] and not text[text.rfind("\n", 0, counted) + 1 : counted].strip():
            yield "docstrings", line, found["text"]
        else:
            part = found["text"] if found["long"] else found["short"]
            if " " in part:
                yield "strings", line, part


def _print_table(result: Tally) -> None:
    print(f"{'area':<12}{'words':>8}{'avoided':>9}{'per 1,000':>11}{'speech':>9}{'per 1,000':>11}")
    for name, areas in (*((area, (area,)) for area in AREAS), ("total", AREAS)):
        cells = f"{name:<12}{sum(result.words[area] for area in areas):>8}"
        for speech in (False, True):
            cells += f"{sum(result.count(area, speech=speech) for area in areas):>9}{result.per_1000(*areas, speech=speech):>11.2f}"
        print(cells)


def main() -> None:
    """Prints the table, or with --list each line with an avoided word."""
    parser = argparse.ArgumentParser(description="Counts the words that plain technical English avoids.")
    parser.add_argument("--list", action="store_true", help="print FILE:LINE, the phrase and the line")
    parser.add_argument("--speech", action="store_true", help="with --list: verbs of speech instead")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders; default: the whole product")
    options = parser.parse_args()
    result = tally(options.paths or [ROOT / name for name in TEXTS])
    if not options.list:
        _print_table(result)
        return
    for area in AREAS:
        for hit in result.hits[area]:
            if hit.is_speech == options.speech:
                path = hit.path.relative_to(ROOT) if hit.path.is_relative_to(ROOT) else hit.path
                sys.stdout.write(f"{path}:{hit.line}: {hit.phrase}: {hit.text}\n")


if __name__ == "__main__":
    main()
