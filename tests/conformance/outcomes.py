"""Notes which statements have tests that ran, and how they ended: `pytest --statements FILE`; tests/conftest.py loads this.

FILE gets one JSON object: the id of each test function that names statements -> {"statements": [[version, id], ...], "passed": n,
"failed": n, "skipped": n}, counted over its parameters. It is written when the run is over, and removed when one begins.
"""

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Outcomes", "pytest_collection_modifyitems"]

NAMES = "statement"
"""Of the user property that takes statements from the process of a test to the one that counts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("statement"):
            version, *ids = mark.args
            item.user_properties += [(NAMES, [version, one]) for one in ids]


class Outcomes:
    """Plugin of the process that reports. A test has passed if its call has, and neither set-up nor tear-down failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, dict[str, Any]] = {}
        self._worst: dict[str, str] = {}
        file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        named = [value for name, value in report.user_properties if name == NAMES]
        if not named:
            return
        self._tests.setdefault(report.nodeid.partition("[")[0], {"statements": []})["statements"] += named
        before = self._worst.get(report.nodeid, "")
        if report.failed or before == "failed":
            self._worst[report.nodeid] = "failed"
        elif report.skipped or hasattr(report, "wasxfail") or before == "skipped":
            self._worst[report.nodeid] = "skipped"
        elif report.when == "call":
            self._worst[report.nodeid] = "passed"

    def pytest_sessionfinish(self) -> None:
        found = {}
        for name, test in self._tests.items():
            ends = [outcome for node, outcome in self._worst.items() if node.partition("[")[0] == name]
            statements = sorted({tuple(one) for one in test["statements"]})
            found[name] = {"statements": statements} | {end: ends.count(end) for end in ("passed", "failed", "skipped")}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(found, indent=1))
