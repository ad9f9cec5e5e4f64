"""The page of counters is that of the table."""

from pathlib import Path

from shardbroker.management.reference import reference


def test_the_page_is_that_of_the_table() -> None:
    assert (Path(__file__).parents[2] / "docs/counters.md").read_text() == reference(), "make docs"
