"""The tables of statements name tests that exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["coap_statements.md", "mqttsn_statements.md", "stomp_statements.md"])
def test_every_test_of_a_table_exists(name: str) -> None:
    rows = [line for line in (HERE / name).read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 40
    for row in rows:
        file, found = "", re.findall(r"`([a-z_]+\.py)?::(\w+)`", row)
        assert found, row
        for named, test in found:
            file = named or file
            assert f"def {test}(" in (HERE / file).read_text(), f"{file}::{test}"
