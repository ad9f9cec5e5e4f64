"""What tests need of the machine: a test without it is skipped with a reason that tests/skips.py knows."""

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SYSTEM_PATH", "needed", "needed_module"]

SYSTEM_PATH = ":".join([os.environ.get("PATH", ""), "/usr/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))])
"""Where servers are too."""


def needed(*programs: str) -> str:
    """Returns the path of the first of these programs; skips the test unless all are installed (`make packages`)."""
    paths = {name: shutil.which(name, path=SYSTEM_PATH) for name in programs}
    for name, path in paths.items():
        if path is None:
            pytest.skip(f"needs {name}", allow_module_level=True)
    return str(paths[programs[0]])


def needed_module(name: str) -> Any:
    """Returns the module; skips the test if it was left out of `make tools`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        pytest.skip(f"needs {error.name}", allow_module_level=True)
