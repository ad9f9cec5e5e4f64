"""Tests of starting: brokers are started by exec, as people start them."""

from collections.abc import Iterator

import pytest

from tests.harness import Broker


@pytest.fixture(autouse=True, scope="module")
def by_exec() -> Iterator[None]:
    Broker.by_fork = False
    yield
    Broker.by_fork = True
