"""What fuzz/run.py makes of targets that do not run, and of what they reach; without sanitizers and libFuzzer."""

import os
import sys
from pathlib import Path

import pytest

from fuzz import coverage, run
from shm import ring


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "environment", lambda build, logs, *preloaded: dict(os.environ))


def python(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that does this in place of what it is started for."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_a_target_that_cannot_start_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run.fuzz("nothing", 1, tmp_path, "", False)
    assert "No module named 'fuzz.targets.nothing'" in outcome.finding
    assert run.report([run.Outcome("codec", 5, 7), outcome], {}) == 1
    assert "nothing                                           0          0  FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "nothing was executed"),
        ("echo '#9 DONE cov: 0 ft: 0'; echo 'stat::number_of_executed_units: 9'", "nothing counts branches"),
        ("echo broken; exit 3", "exit code 3 of fuzz.engine tls --write"),
        ("exec sleep 60", "timed out after 0.2 seconds"),
    ],
)
def test_a_target_that_did_nothing_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    python(tmp_path / "python", script, monkeypatch)
    monkeypatch.setattr(run, "START_MAX_S", 60 if "sleep" not in script else 0.2)
    outcome = run.fuzz("tls", 0, tmp_path, "", False)
    assert words in outcome.finding
    assert run.report([outcome], {}) == 1


def test_the_input_of_a_finding_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libFuzzer leaves it in a file."""
    script = f'case "$*" in *--write*) ;; *) printf ab >{tmp_path}/tls/finding-crash; exit 77;; esac'
    python(tmp_path / "python", script, monkeypatch)
    assert "input: 6162\n" in run.fuzz("tls", 0, tmp_path, "", False).finding


def test_what_a_target_leaves_goes_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libFuzzer ends a process without Python's clean-up."""
    python(tmp_path / "python", "echo in $TMPDIR; exit 1", monkeypatch)
    assert f"in {tmp_path}/tls\n" in run.fuzz("tls", 0, tmp_path, "", False).finding


def test_targets_that_ran(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [run.Outcome("codec", 5, 7), run.Outcome("tls", 6, 8)]
    assert run.report(outcomes, {"shm.ring": coverage.Share(9, 2, 30, 20)}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line] == [
        ["target", "executions", "branches"],
        ["codec", "5", "7"],
        ["tls", "6", "8"],
        ["together", "11"],
        ["module", "functions", "entered", "branches", "reached"],
        ["shm.ring", "9", "2", "30", "20"],
    ]


def test_what_targets_reach_is_put_together(tmp_path: Path) -> None:
    """Three functions of 2, 3 and 1 branches: of the second, two are reached."""
    for name, data in (("one", b"\2\0\3\0\0\2"), ("two", b"\2\0\2\0\1\2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shm.ring").write_bytes(data)
        (tmp_path / name / "shm.events").write_bytes(b"\2\0")
    assert coverage.reached([tmp_path / "one", tmp_path / "two"]) == {"shm.ring": coverage.Share(3, 1, 3, 2)}


def test_a_module_without_counters_is_an_error() -> None:
    with pytest.raises(ValueError, match="no __sancov_cntrs"):
        coverage._module(Path(ring.__file__))
