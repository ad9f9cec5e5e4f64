"""docs/dashboard-emqx.md: what it says of each page of EMQX's dashboard is so."""

import re
from pathlib import Path

import pytest

from shardbroker.api.dashboard import MENU
from shardbroker.api.dashboard.settings import FORMS

HERE = Path(__file__)
PAGE = HERE.parents[2] / "docs" / "dashboard-emqx.md"
ROW = re.compile(r"\| ([^|]+) \| (yes|no) \| (?:`(/[^`]*)` )?\| (.*) \|")
PARTS = PAGE.read_text().split("## Further pages")
MENU_ROWS, FURTHER_ROWS = ([found.groups() for line in part.splitlines() if (found := ROW.fullmatch(line))] for part in PARTS)
TESTS = {*re.findall(r"^def (test_\w+)\(", "".join(file.read_text() for file in HERE.parent.glob("test_*.py")), re.MULTILINE)}
PATHS = {page.path for group in MENU.values() for page in group}
PAGES_OF_EMQX = 33
MISSING_MOST = 3


def test_each_page_of_the_menu_is_there_once() -> None:
    names = [name for name, *_ in (*MENU_ROWS, *FURTHER_ROWS)]
    assert len(MENU_ROWS) == PAGES_OF_EMQX and len(names) == len({*names})
    assert len(names) == len(re.findall(r"^\| .* \| (?:yes|no) \|", PAGE.read_text(), re.MULTILINE)), "a row has another form"
    assert [here for _, here, *_ in MENU_ROWS].count("no") <= MISSING_MOST


@pytest.mark.parametrize(("name", "here", "path", "reason"), [*MENU_ROWS, *FURTHER_ROWS], ids=lambda value: str(value)[:30])
def test_a_row_is_true(name: str, here: str, path: str | None, reason: str) -> None:
    if here == "no":
        assert path is None and len(reason) > 10
        return
    assert path is not None
    page, _, section = path.partition("?section=")
    assert page in PATHS and (not section or (page == "/settings" and section in FORMS))
    assert re.fullmatch(r"`test_\w+`", reason) and reason.strip("`") in TESTS
