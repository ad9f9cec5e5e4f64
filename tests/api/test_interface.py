"""The interface of the REST API stays as it is: paths, parameters, bodies, responses and operation ids."""

import json
from pathlib import Path

import pytest

from tests.api.interface import interface

KEPT = json.loads(Path(__file__).with_name("interface.json").read_text())


@pytest.fixture(scope="module")
def now() -> dict[str, object]:
    return interface()


@pytest.mark.parametrize("operation", KEPT)
def test_an_operation_is_as_before(operation: str, now: dict[str, object]) -> None:
    """A change of the interface, and a route that is to be kept from now on, are written down with the command in interface.py."""
    assert now.get(operation) == KEPT[operation]
