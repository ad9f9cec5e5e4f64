"""Which normative statements the tests cover: `python -m tests.conformance.coverage FILE`, behind `pytest --statements FILE`.

A statement that binds a server (applies_to server or both) and is observable has to be named by the
`statement` mark of a test that ran and passed with all its parameters, or stand in OUT_OF_SCOPE with the reason.
Exits with 1 if one does neither, if a test that names it failed, if a mark names a statement that does not exist, or
if one is both covered and out of scope.
"""

import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OUT_OF_SCOPE", "Statement", "covered_by", "main", "statements"]

STATEMENTS = Path(__file__).with_name("statements.csv")

Key = tuple[str, str]
"""Version and id."""
OUT_OF_SCOPE: dict[Key, str] = {
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
    def key(self) -> Key:
        return self.version, self.id

    @property
    def binds_a_server(self) -> bool:
        return self.applies_to in ("server", "both")


def statements() -> Iterator[Statement]:
    """The normative statements of all versions, in the order of the standard."""
    with STATEMENTS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Statement(row["version"], row["id"], row["applies_to"], row["paraphrase"], row["observable"] == "yes")


def covered_by(outcomes: dict[str, Any]) -> tuple[dict[Key, set[str]], dict[Key, set[str]]]:
    """Statements to the test functions that cover them, and to those that name them and do not: they failed, or none of their
    parameters ran. `outcomes` is what tests/conformance/outcomes.py notes."""
    covering: defaultdict[Key, set[str]] = defaultdict(set)
    failing: defaultdict[Key, set[str]] = defaultdict(set)
    for name, test in outcomes.items():
        for version, one in test["statements"]:
            (covering if test["passed"] and not test["failed"] else failing)[version, one].add(name)
    return covering, failing


def _report(version: str, rows: list[Statement], covered: dict[Key, set[str]]) -> int:
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


def main(file: str) -> int:
    """Prints the report; the exit code."""
    rows = list(statements())
    covered, failing = covered_by(json.loads(Path(file).read_text(encoding="utf-8")))
    known = Counter(row.key for row in rows)
    unknown = sorted({*covered, *failing, *OUT_OF_SCOPE} - set(known))
    both = sorted(key for key in OUT_OF_SCOPE if covered.get(key))
    missing = 0
    for version in dict.fromkeys(row.version for row in rows):
        missing += _report(version, [row for row in rows if row.version == version], covered)
    for key in unknown:
        where = ", ".join(sorted(covered.get(key, set()) | failing.get(key, set()))) or "OUT_OF_SCOPE"
        print(f"unknown statement {' '.join(key)}: {where}")
    for key in sorted(failing):
        print(f"named by a test that did not pass: {' '.join(key)}: {', '.join(sorted(failing[key]))}")
    for key in both:
        print(f"covered, but listed as out of scope: {' '.join(key)}")
    return 1 if missing or unknown or failing or both else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
