"""Earlier builds, compiled from the history of this repository. Kept below build/releases: a build takes minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

__all__ = ["FIRST_UPGRADABLE", "RELEASE", "build"]

RELEASE = "7015cce3"
"""0.1.0, which has no `ctl upgrade`."""
FIRST_UPGRADABLE = "1cdf3053"
"""The first build with today's numbers in shm/layouts.py and formats of the hand-over: an upgrade moves every client, both ways.
A commit that raises a number takes its place here, once the upgrade between the two was seen to drain."""
BUILD_S = 1800


def build(commit: str) -> Path:
    """Returns the compiled tree of a commit. Skips the test without that commit."""
    found = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    if found.returncode:
        pytest.skip(f"needs a clone with the commit {commit}")
    full = found.stdout.decode().strip()
    tree = ROOT / "build/releases" / full
    done = tree / ".built"
    if not done.exists():
        tree.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "x", "-C", tree], input=_git("archive", full).stdout, check=True)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=tree,
            check=True,
            timeout=BUILD_S,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        done.touch()
    return tree


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
