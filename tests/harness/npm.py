"""Packages of the npm registry, installed beside the tests that use them."""

import subprocess
from pathlib import Path

from tests.harness.locked import locked

__all__ = ["installed"]

BUILD = Path(__file__).parents[2] / "build"


def installed(directory: Path, package: str) -> Path:
    """Installs what package.json of a directory names, once for this clone; returns the directory of one package. Needs npm."""
    found = directory / "node_modules" / package
    with locked(BUILD / f"npm-{directory.name}"):
        if not found.is_dir():
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return found
