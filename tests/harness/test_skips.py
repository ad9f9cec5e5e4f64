"""A skip that is not in the list fails, and in CI so does one that a command would mend."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import LISTED, fault_of

ROOT = Path(__file__).parents[2]
FILES = {
    "perf/test_a.py": """
import pytest

@pytest.mark.skip(reason="needs valgrind")
def test_listed(): pass

@pytest.mark.skip(reason="flaky")
def test_mark(): pass

def test_call(): pytest.skip("flaky")

@pytest.mark.xfail(reason="some day")
def test_expected_to_fail(): assert False

@pytest.mark.xfail(reason="some day")
def test_passes_against_expectation(): pass

@pytest.fixture
def fixture(): pytest.skip("flaky")

def test_fixture(fixture): pass

def test_good(): pass
""",
    "perf/test_b.py": "import pytest; pytest.importorskip('no_such_module')",
}
UNLISTED = {"mark", "call", "expected_to_fail", "passes_against_expectation", "fixture"}


@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize("parallel", [(), ("-n", "1")])
def test_what_is_not_listed_fails(tmp_path: Path, ci: str, parallel: tuple[str, ...]) -> None:
    for name, text in FILES.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arguments = ["-p", "tests.skips", "-p", "no:cacheprovider", "-rA", "--rootdir", str(tmp_path), "-c", os.devnull, *parallel]
    for name, code, failed in (
        ("perf/test_a.py", 1, UNLISTED | ({"listed"} if ci else set())),
        ("perf/test_b.py", 1 if parallel else 2, set()),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, str(tmp_path / "tests" / name)],
            cwd=ROOT, env=os.environ | {"CI": ci, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert {*re.findall(r"^(?:FAILED|ERROR) .*::test_(\w+)", done.stdout, re.MULTILINE)} == failed
        assert "not in the list of tests/skips.py" in done.stdout


def test_every_entry_says_why() -> None:
    for entry in LISTED:
        assert entry.why and entry.reason and entry.files.startswith("tests/"), entry


def test_a_reason_counts_whole_and_where_it_is_listed() -> None:
    assert not fault_of("tests/perf/test_x.py", "needs valgrind", complete=False)
    assert "make packages" in fault_of("tests/perf/test_x.py", "needs valgrind", complete=True)
    assert fault_of("tests/perf/test_x.py", "needs valgrind and luck", complete=False)
    assert fault_of("tests/behaviour/test_x.py", "needs valgrind", complete=False)
    assert fault_of("tests/conformance/test_x.py", "needs a shardbroker") and not fault_of(
        "tests/conformance/test_x.py", "needs a shardbroker", external=True
    )
