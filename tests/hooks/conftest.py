"""One broker for all tests here that need no settings of their own; each test leaves it without plugins."""

from collections.abc import Iterator

import pytest

from tests.hooks.plugged import Plugged


@pytest.fixture(scope="session")
def _plugged() -> Iterator[Plugged]:
    with Plugged() as broker:
        yield broker


@pytest.fixture
def plugged(_plugged: Plugged) -> Iterator[Plugged]:
    yield _plugged
    _plugged.unload_all()
