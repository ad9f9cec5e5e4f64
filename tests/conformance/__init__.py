"""Conformance tests, black box: what the standard says, seen from the socket.

statements.csv        every normative statement of MQTT 3.1.1 and 5.0, one row each
wire_table.py         one-connection cases as data; test_wire_table.py runs them
test_v3_*.py          MQTT 3.1.1, and MQTT 3.1 where it says the same; test_v5_*.py: MQTT 5.0
known_differences.py  where a named other broker is known to differ, so that the cases are checked against it
outcomes.py           notes how the tests of each statement ended
coverage.py           which statements are covered by tests that passed; fails if one is missing

All of them run against any broker: `pytest tests/conformance --broker HOST:PORT`.
"""

import pytest

__all__ = ["V3", "V311"]

V3 = pytest.mark.parametrize("version", [3, 4], ids=["3.1", "3.1.1"])
"""Runs the test with MQTT 3.1 and 3.1.1."""
V311 = pytest.mark.parametrize("version", [4], ids=["3.1.1"])
"""Runs the test with 3.1.1 only: MQTT 3.1 is silent or says otherwise."""
