"""A statement is covered by tests that ran and passed, not by tests that are there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.coverage import covered_by, main

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def named(*ids): return pytest.mark.statement("5.0", *ids)

@named("A", "B")
@pytest.mark.parametrize("value", [1, 2])
def test_good(value): pass

@named("B")
@pytest.mark.parametrize("value", [1, 2])
def test_fails_once(value): assert value == 1

@named("C")
def test_skipped(): pytest.skip("only some tests of the module run")

@named("D")
@pytest.mark.parametrize("value", [1, 2])
def test_skipped_once(value):
    if value == 1: pytest.skip("only some tests of the module run")

@pytest.fixture
def untidy():
    yield
    assert False

@named("E")
def test_leaves_something(untidy): pass

@pytest.mark.parametrize("value", [pytest.param(1, marks=named("F")), pytest.param(2, marks=named("G"))])
def test_by_row(value): pass

def test_unmarked(): pass
"""


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_what_counts(tmp_path: Path, parallel: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys; from pathlib import Path; from tests.conformance.outcomes import *\n"
        "def pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput'): config.pluginmanager.register(Outcomes(Path('out/file')))\n"
    )
    (tmp_path / "test_a.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", *parallel, "."],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}, capture_output=True, text=True,
    )  # fmt: skip
    covered, failing = covered_by(json.loads((tmp_path / "out/file").read_text()))
    assert {one for _, one in covered} == {"A", "B", "D", "F", "G"}, done.stdout
    assert {one for _, one in failing} == {"B", "C", "E"}, done.stdout


def test_a_statement_without_a_test_that_passed_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {"tests/x.py::test_a": {"statements": [["5.0", "MQTT-3.1.2-2"]], "passed": 1, "failed": 1, "skipped": 0}}
    (tmp_path / "file").write_text(json.dumps(outcomes))
    assert main(str(tmp_path / "file")) == 1
    said = capsys.readouterr().out
    assert "named by a test that did not pass: 5.0 MQTT-3.1.2-2: tests/x.py::test_a" in said
    assert "not covered   MQTT-3.1.2-2 " in said
