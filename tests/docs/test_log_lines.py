"""docs/log-lines.md has every phrase of the log, and no other. Phrases are literals in the source: any other form fails here."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/log-lines.md"
PARTS = ("shardbroker", "acceptor", "shm")
LEVELS = ("debug", "info", "warning", "error")
CONVERTS = {"acceptor/notices.py", "shardbroker/logs/phrases.py", "shardbroker/management/inbox.py"}
"""Files that make a Line of a text: the two ends of a channel that carries lines, and the module that defines them."""
PROCESSES = {"api", "flows", "hooks", "integrations", "logs", "management", "session", "supervisor", "worker"}
"""Packages of processes that run in the background, which print nothing by themselves."""
PRINTS = {"shardbroker/logs/phrases.py", "shardbroker/supervisor/tree.py", "shardbroker/supervisor/witness.py"}
"""The function that prints lines, and the lines on standard output that a broker or a witness is ready."""
PROGRAMS = ("__main__.py", "reference.py")
"""Programs of their own within these packages: `make docs` runs them."""

PHRASE = re.compile(r"[a-z][a-z-]*(?: [a-z-]+)*")
ROW = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
IN_CYTHON = re.compile(r'\b(?:log_line|log_failure)\(\s*"([^"]*)"')
LOGGED_IN_CYTHON = re.compile(r'(?:\.log\("\w+", |\.complain\(|\.say\("\w+", |\bprint_line\("\w+", "?[^",]*"?, )(\w+\(|[^\n]*)')
LEVEL_IN_CYTHON = re.compile(r'"(debug|info|warning|error)", (?:"\w+", )?log_line\(\s*"([^"]+)"')
OF_CLIENTS = re.compile(r'b"(?:%b %b| INFO| WARNING) ([a-z ]+) client_id=')
"""The lines of clients are put together from bytes, in logs/lines.pyx."""


def files(suffix: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each file of a kind."""
    for part in PARTS:
        for path in sorted((ROOT / part).rglob(f"*{suffix}")):
            yield str(path.relative_to(ROOT)), path.read_text()


parsed = cache(ast.parse)


def called(node: ast.AST) -> str:
    """Returns the last name of what a call calls; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""


def lines_in(tree: ast.AST) -> list[ast.Call]:
    """Returns the calls of log_line() in a tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == "log_line"]


def phrase_of(call: ast.Call) -> str:
    """Returns the phrase of a call of log_line(). Fails if it is not a literal."""
    first = call.args[0] if call.args else None
    assert isinstance(first, ast.Constant) and isinstance(first.value, str), ast.unparse(call)
    return first.value


def phrases() -> set[str]:
    """Returns every phrase of the source."""
    found = set()
    for path, text in files(".py"):
        if path != "shardbroker/logs/phrases.py":
            found |= {phrase_of(node) for node in lines_in(parsed(text))}
    for path, text in files(".pyx"):
        assert len(re.findall(r"\blog_line\(", text)) == len(re.findall(r'\blog_line\(\s*"', text)), f"{path}: not a literal"
        found |= {*IN_CYTHON.findall(text)}
    return found | set(OF_CLIENTS.findall((ROOT / "shardbroker/logs/lines.pyx").read_text()))


def levels() -> Iterator[tuple[str, str]]:
    """Yields (phrase, level) where one call has both as literals."""
    for _, text in files(".py"):
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Call | ast.Tuple):
                parts = node.args if isinstance(node, ast.Call) else node.elts
                given = [one.value.lower() for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                for level in [one for one in given if one in LEVELS]:
                    yield from ((phrase_of(one), level) for part in parts for one in lines_in(part))
    for _, text in files(".pyx"):
        yield from ((phrase, level) for level, phrase in LEVEL_IN_CYTHON.findall(text))


def rows() -> dict[str, str]:
    """Returns the levels of each phrase of the page."""
    text = PAGE.read_text()
    found = ROW.findall(text)
    assert len(found) == len(re.findall(r"^\| `", text, re.MULTILINE)), "a row has another form"
    assert len({phrase for phrase, _ in found}) == len(found), "a phrase has two rows"
    return dict(found)


def test_the_page_has_every_phrase_and_no_other() -> None:
    assert rows().keys() == phrases()


def test_the_page_has_the_level_of_the_source() -> None:
    pairs = list(levels())
    assert len(pairs) > 30
    for phrase, level in pairs:
        assert level in rows()[phrase].split(", "), phrase


def test_phrases_are_lower_case_words() -> None:
    assert not [phrase for phrase in phrases() if not PHRASE.fullmatch(phrase)]


def test_only_known_places_make_a_line_of_a_text() -> None:
    """Elsewhere mypy refuses a text in place of a Line."""
    converting = {path for path, text in files(".py") for node in ast.walk(parsed(text)) if called(node) == "Line"}
    assert converting == CONVERTS


def test_cython_logs_lines_only() -> None:
    """mypy does not read these files."""
    for path, text in files(".pyx"):
        for part in LOGGED_IN_CYTHON.findall(text):
            assert part.startswith(("log_line(", 'f"{what} reason=')), f"{path}: {part}"
        for call in re.finditer(r"(?<!cdef int )\blog_failure\(\s*(.{9})", text):
            assert call[1] == "log_line(" or call[1].startswith('"'), f"{path}: {call[0]}"


def test_processes_print_nothing() -> None:
    for path, text in files(".py"):
        parts = path.split("/")
        if (parts[0] == "acceptor" or parts[1] in PROCESSES) and parts[-1] not in PROGRAMS and path not in PRINTS:
            assert not [node for node in ast.walk(parsed(text)) if called(node) == "print"], path


@pytest.mark.parametrize("call", ["log_line(phrase)", 'log_line(f"one {two}")', "log_line()"])
def test_a_phrase_that_is_not_a_literal_fails(call: str) -> None:
    (expression,) = ast.parse(call).body
    assert isinstance(expression, ast.Expr) and isinstance(expression.value, ast.Call)
    with pytest.raises(AssertionError):
        phrase_of(expression.value)
