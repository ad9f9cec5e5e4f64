"""docs/rest-emqx.md: what it says of each path of EMQX is so. That each route is used is what test_every_route_was_asked shows."""

import re
from pathlib import Path

import pytest

from tests.api.interface import interface

HERE = Path(__file__)
PAGE = HERE.parents[2] / "docs" / "rest-emqx.md"
ROW = re.compile(r"\| ([A-Z, ]+) \| `(/[^`]*)` \| (yes|no) \| (.*) \|")
ROWS = [found.groups() for line in PAGE.read_text().splitlines() if (found := ROW.fullmatch(line))]
TESTS = {*re.findall(r"^def (test_\w+)\(", "".join(file.read_text() for file in HERE.parent.glob("test_*.py")), re.MULTILINE)}
ROUTES = [operation.partition(" /api/v5")[::2] for operation in interface() if " " in operation]
PLACE = re.compile(r"\{[^}]*\}")
ACTIONS = ("start", "stop", "restart", "users", "clients")
"""Values that a parameter of ours has, and that EMQX's paths have as they are."""


def has(method: str, path: str, literally: bool) -> bool:
    """Whether there is this route. literally: parts without a parameter in EMQX have none here."""

    def fits(part: str, other: str) -> bool:
        return part == other or bool(PLACE.fullmatch(part) and (PLACE.fullmatch(other) or (not literally and other in ACTIONS)))

    theirs = path.split("/")
    for ours, route in ROUTES:
        parts = route.split("/")
        if ours == method and len(parts) == len(theirs) and all(map(fits, parts, theirs)):
            return True
    return False


def test_the_page_has_rows() -> None:
    assert len(ROWS) == sum(line.startswith("| ") and "`/" in line for line in PAGE.read_text().splitlines()) > 150
    pairs = [(method, path) for methods, path, _, _ in ROWS for method in methods.split(", ")]
    assert len(pairs) == len(set(pairs)), "each path is there once"


@pytest.mark.parametrize(("methods", "path", "here", "reason"), ROWS, ids=lambda value: value[:40])
def test_a_row_is_true(methods: str, path: str, here: str, reason: str) -> None:
    for method in methods.split(", "):
        assert has(method, path, here == "no") == (here == "yes"), f"{method} {path}"
    if here == "yes":
        assert re.fullmatch(r"`test_\w+`", reason) and reason.strip("`") in TESTS
    else:
        assert len(reason) > 10
