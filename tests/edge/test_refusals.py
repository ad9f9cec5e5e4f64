"""Each row of docs/refusals.md is provoked: what the client sees, what is counted and logged; and the page has them all."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edge.certificates import Authority
from tests.edge.refusals import ROWS, Place, Row, brokers
from tests.harness import until

pytestmark = pytest.mark.own_broker
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "refusals.md"
PROVOKED = [
    pytest.param(row, version, id=f"{row.who} ({version})")
    for row in ROWS
    for version, seen in ((5, row.five), (4, row.three))
    if row.provoke is not None and seen
]


@pytest.fixture(scope="module")
def place(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    stranger = authority.directory / "stranger"
    stranger.mkdir(exist_ok=True)
    Authority(stranger).issue("alice", "alice")
    with brokers(authority, tmp_path_factory.mktemp("refusals")) as made:
        yield made


@pytest.mark.parametrize(("row", "version"), PROVOKED)
def test_refusal(place: Place, row: Row, version: int) -> None:
    assert row.provoke is not None
    place.next_try()
    before, marks = place.counts(), place.marks()
    assert row.provoke(place, version) == (row.five if version == 5 else row.three)
    for name in row.counters:
        until(lambda name=name: place.counts()[name] > before[name], lambda name=name: f"{name} has not grown")  # type: ignore[misc]
    if row.line:
        pattern = re.compile(".*".join(map(re.escape, row.line)))
        until(lambda: any(map(pattern.search, place.lines_since(marks))), lambda: "".join(place.lines_since(marks)))


def test_rows_that_are_tested_elsewhere_are() -> None:
    for row in ROWS:
        if row.tested_by:
            file, _, name = row.tested_by.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), row.tested_by


def test_the_page_has_these_rows_and_no_others() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]] == [row.cells() for row in ROWS]
