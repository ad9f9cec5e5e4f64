"""schemathesis asks every operation of the OpenAPI document what it likes: no answer is a server error, and the broker goes on."""

import re
from typing import Any

import hypothesis
import pytest
import schemathesis

from tests.api.rest import ApiBroker, Rest
from tests.harness import Client

pytestmark = pytest.mark.own_broker
EXAMPLES = 6
"""Requests for an operation; there are some 90 operations."""
LEFT_OUT = re.compile(
    r"^/api/v5/(login|logout|workers/setting|workers/.*/restart|configs.*|mqtt/retainer|authorization/settings|slow_subscriptions/settings|listeners.*|journal/seal|users.*)$"
)
"""What would log the test out, or take away what it asks: it is asked by GET only."""


@pytest.fixture(scope="module")
def asked(served: ApiBroker, rest: Rest) -> Any:
    return schemathesis.openapi.from_dict(rest.good("GET", "/api-docs/swagger.json"))


def operations(schema: Any) -> list[Any]:
    found = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.method.upper() == "GET" or not LEFT_OUT.fullmatch(operation.path):
            found.append(operation)
    return found


def test_no_request_is_a_server_error(served: ApiBroker, rest: Rest, asked: Any) -> None:
    failures: list[str] = []
    for operation in operations(asked):

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def run(case: Any) -> None:
            response = case.call(base_url=f"http://127.0.0.1:{served.api_port}", headers={"Authorization": rest.authorization})
            if response.status_code >= 500 and response.status_code != 503:
                raise AssertionError(
                    f"{case.method} {case.formatted_path} {case.body!r:.300}: {response.status_code} {response.text}"
                )

        try:
            run()
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)
    with Client(served.address, 5, "still-there") as client:
        client.ping()
    rest.good("GET", "/clients")
