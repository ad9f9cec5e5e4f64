"""THREAT_MODEL.md: each row and list item names tests that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "THREAT_MODEL.md"
WITHOUT_CLAIMS = ("Assets", "What is not defended")
"""Sections that claim no protection."""
_NAME = re.compile(r"`([\w/]+\.py)?::(\w+)`")


def _claims() -> list[tuple[str, int, str]]:
    """(section, number of the line, text) of each row behind the head of a table, and of each list item with its further lines."""
    found: list[tuple[str, int, str]] = []
    section, lines = "", PAGE.read_text().splitlines()
    for at, line in enumerate(lines):
        if line.startswith("## "):
            section = line[3:]
        elif section in WITHOUT_CLAIMS:
            continue
        elif (re.match(r"\| [^|]", line) and not (lines[at + 1 : at + 2] or [""])[0].startswith("|--")) or line.startswith("- "):
            found.append((section, at + 1, line))
        elif line.startswith("  ") and lines[at - 1].startswith(("- ", "  ")):
            found[-1] = (*found[-1][:2], f"{found[-1][2]} {line.strip()}")
    return found


CLAIMS = _claims()


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text()


def _faults(claim: str) -> list[str]:
    """What is wrong with the evidence of a claim."""
    found, file = [], ""
    for named, test in _NAME.findall(claim):
        file = named or file
        if not (ROOT / "tests" / file).is_file():
            found.append(f"no file tests/{file}")
        elif not re.search(rf"^(async )?def {test}\(", _text(f"tests/{file}"), re.MULTILINE):
            found.append(f"no {test} in tests/{file}")
    if "by reading" in claim:
        found.append("by reading is no evidence: a claim comes with its test")
    if claim.count("::") != len(_NAME.findall(claim)):
        found.append("a test that cannot be read: it is `dir/test_file.py::test_name` or `::test_name`")
    return found if _NAME.search(claim) else [*found, "no test"]


@pytest.mark.parametrize(("section", "line", "claim"), CLAIMS, ids=lambda value: str(value)[:40])
def test_each_claim_has_a_test(section: str, line: int, claim: str) -> None:
    assert not _faults(claim), f"THREAT_MODEL.md:{line} ({section})"


def test_there_are_claims() -> None:
    assert len(CLAIMS) > 100, "a page without rows would pass"


@pytest.mark.parametrize(
    ("claim", "fault"),
    [
        ("| a | b |", "no test"),
        ("| a | `docs/test_threat_model.py::test_no_such` |", "no test_no_such in"),
        ("| a | `docs/test_no_such.py::test_x` |", "no file tests/docs"),
        ("| a | `::test_x` |", "no file tests/"),
        ("| a | test_x.py::test_x |", "cannot be read"),
        ("| a | `docs/test_threat_model.py::test_there_are_claims`; by reading `no/such.py` |", "by reading is no evidence"),
    ],
)
def test_what_is_no_evidence(claim: str, fault: str) -> None:
    assert any(one.startswith(fault) or fault in one for one in _faults(claim))
    assert not _faults("| a | `docs/test_threat_model.py::test_what_is_no_evidence`, `::test_each_claim_has_a_test` |")
