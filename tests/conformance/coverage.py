"""Which normative statements the tests cover: `python -m tests.conformance.coverage`.

A statement that binds a server (applies_to server or both) and is observable has to be named by the
`statement` mark of a test, or stand in OUT_OF_SCOPE with the reason. Exits with 1 if one does neither, if a
mark names a statement that does not exist, or if one is both covered and out of scope.
"""

import contextlib
import csv
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["OUT_OF_SCOPE", "Statement", "main", "statements"]

TESTS = Path(__file__).resolve().parent.parent
STATEMENTS = Path(__file__).with_name("statements.csv")
FOLDERS = ("conformance", "clients", "edge")
"""Where marked tests are collected from."""

OUT_OF_SCOPE: dict[tuple[str, str], str] = {
}
"""Observable statements that no test covers yet: (version, id) to the reason."""


@dataclass(frozen=True)
class Statement:
    """One row of statements.csv."""

    version: str
    id: str
    applies_to: str
    paraphrase: str
    observable: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.version, self.id

    @property
    def binds_a_server(self) -> bool:
        return self.applies_to in ("server", "both")


def statements() -> Iterator[Statement]:
    """The normative statements of all versions, in the order of the standard."""
    with STATEMENTS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Statement(row["version"], row["id"], row["applies_to"], row["paraphrase"], row["observable"] == "yes")


class _Collector:
    """Pytest plugin: notes which tests name which statement."""

    def __init__(self) -> None:
        self.tests: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("statement"):
                version, *ids = mark.args
                for one in ids:
                    self.tests[version, one].add(item.nodeid.partition("[")[0])


def _collect() -> dict[tuple[str, str], set[str]]:
    """Statements to the test functions that cover them; SystemExit if the tests cannot be collected."""
    collector = _Collector()
    folders = [str(TESTS / name) for name in FOLDERS]
    arguments = ["--collect-only", "-qq", "--no-summary", "-p", "no:cacheprovider", *folders]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(arguments, plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"{output.getvalue()}\nthe tests cannot be collected: {code!r}")
    return collector.tests


def _report(version: str, rows: list[Statement], covered: dict[tuple[str, str], set[str]]) -> int:
    """Prints the state of one version and returns the number of statements that lack a test."""
    binding = [row for row in rows if row.binds_a_server]
    observable = [row for row in binding if row.observable]
    tested = [row for row in observable if covered.get(row.key)]
    excused = [row for row in observable if not covered.get(row.key) and row.key in OUT_OF_SCOPE]
    missing = [row for row in observable if not covered.get(row.key) and row.key not in OUT_OF_SCOPE]
    functions = {name for row in rows for name in covered.get(row.key, ())}
    print(
        f"MQTT {version}: {len(rows)} statements, {len(binding)} bind a server,"
        f" {len(observable)} of them observable: {len(tested)} covered by {len(functions)} test functions,"
        f" {len(excused)} out of scope, {len(missing)} not covered"
    )
    for row in missing:
        print(f"  not covered   {row.id:14} {row.paraphrase}")
    for row in excused:
        print(f"  out of scope  {row.id:14} {OUT_OF_SCOPE[row.key]}")
    return len(missing)


def main() -> int:
    """Prints the report; the exit code."""
    rows = list(statements())
    covered = _collect()
    known = Counter(row.key for row in rows)
    unknown = sorted({*covered, *OUT_OF_SCOPE} - set(known))
    both = sorted(key for key in OUT_OF_SCOPE if covered.get(key))
    missing = 0
    for version in dict.fromkeys(row.version for row in rows):
        missing += _report(version, [row for row in rows if row.version == version], covered)
    for key in unknown:
        where = ", ".join(sorted(covered.get(key, {"OUT_OF_SCOPE"})))
        print(f"unknown statement {' '.join(key)}: {where}")
    for key in both:
        print(f"covered, but listed as out of scope: {' '.join(key)}")
    return 1 if missing or unknown or both else 0


if __name__ == "__main__":
    sys.exit(main())
