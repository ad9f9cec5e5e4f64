"""One broker with three workers and the REST API for all tests here."""

from collections.abc import Iterator

import pytest

from tests.api.rest import ApiBroker, Rest

LAST = "test_every_route_was_asked"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the test behind all that asks what the modules here have asked."""
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture(scope="session")
def served() -> Iterator[ApiBroker]:
    with ApiBroker(3, {"acl.sources": '["builtin"]', "acl.no_match": "allow"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def rest(served: ApiBroker) -> Rest:
    """An administrator."""
    return Rest.logged_in(served)


@pytest.fixture(scope="session")
def viewer(served: ApiBroker, rest: Rest) -> Rest:
    """Somebody who may look."""
    rest.good("POST", "/users", {"username": "looker", "password": "look-but-do-not-touch", "role": "viewer"})
    return Rest.logged_in(served, "looker", "look-but-do-not-touch")
