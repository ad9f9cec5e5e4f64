"""A directory and a web service that several tests of sinks need."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.sinks.service import Service


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


@pytest.fixture
def service(place: Path) -> Iterator[Service]:
    with Service(place) as service:
        yield service
