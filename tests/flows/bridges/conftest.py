"""A directory that tests of bridges need."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)
