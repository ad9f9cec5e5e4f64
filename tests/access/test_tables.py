"""The tables of authenticators and of sources, and the modules that their rows stand for."""

import ast
from pathlib import Path

import pytest

from shardbroker.config.access import AUTHENTICATORS, SOURCES
from shardbroker.integrations import auth
from shardbroker.integrations.auth.factory import CONVERSATIONS

FOLDER = Path(auth.__file__).parent


@pytest.mark.parametrize(
    ("function", "rows"), [("authenticator", set(AUTHENTICATORS) - set(CONVERSATIONS)), ("authorizer", set(SOURCES))]
)
def test_each_row_has_its_module_and_each_module_its_row(function: str, rows: set[str]) -> None:
    """Read, not imported: a library may be missing."""
    found = {
        path.stem
        for path in FOLDER.glob("*.py")
        if any(isinstance(one, ast.FunctionDef) and one.name == function for one in ast.parse(path.read_text()).body)
    }
    assert found == rows
