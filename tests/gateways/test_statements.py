"""The table of statements names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_of_the_table_exists() -> None:
    rows = [line for line in (HERE / "stomp_statements.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 40
    for row in rows:
        file, found = "", re.findall(r"`([a-z_]+\.py)?::(\w+)`", row)
        assert found, row
        for named, test in found:
            file = named or file
            assert f"def {test}(" in (HERE / file).read_text(), f"{file}::{test}"
