"""Disks that are full, read-only or broken: nothing is lost, all is said, and it goes on when it can (tests/journal/failing.py).

`size_limit` and `small_disk` are the kernel's own refusals; for the others tests/journal/faults.c stands between writer and libc.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.faulty_disk import build_shim

REAL = ("size_limit",)
FAULTS = ("full", "reports_full", "no_new_segment", "write_error", "sync_error")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_shim(tmp_path_factory.mktemp("faults")))


def run(name: str, directory: Path, seed: int, preload: str | None = None) -> None:
    environment = dict(os.environ) if preload is None else {**os.environ, "LD_PRELOAD": preload}
    command = [sys.executable, "-m", "tests.journal.failing", name, str(directory), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, f"{name}, seed {seed}:\n{done.stderr}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, seed: int, shim: str, tmp_path: Path) -> None:
    run(name, tmp_path / "journal", seed, shim)


@pytest.mark.parametrize("seed", range(12))
def test_anything(seed: int, shim: str, tmp_path: Path) -> None:
    run("anything", tmp_path / "journal", seed, shim)


@pytest.mark.parametrize("name", REAL)
def test_limit(name: str, tmp_path: Path) -> None:
    run(name, tmp_path / "journal", 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs the right to mount a small tmpfs; test_fault[full] does the same without")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small tmpfs: {done.stderr.strip()}; test_fault[full] does the same without")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_small_disk(small_disk: Path) -> None:
    run("small_disk", small_disk / "journal", 1)
