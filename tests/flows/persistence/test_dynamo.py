"""The preset of DynamoDB, against Amazon's own server for tests: its tables as Amazon's own client reads them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import SCENARIOS, Rows, check
from tests.servers.dynamodb import ACCOUNT, dynamodb_server, own_client, scanned

pytestmark = pytest.mark.own_broker
TABLES = {
    "clients": ("mqtt_client", "clientid"),
    "subscriptions": ("mqtt_sub", "topic"),
    "messages": ("mqtt_msg", "msgid"),
    "retained": ("mqtt_retain", "topic"),
    "acked": ("mqtt_acked", "topic"),
}
"""Part -> table, and the attribute that is the order."""


class Database:
    kind = "dynamo"

    def __init__(self, port: int, client: Any) -> None:
        self.client = client
        self.settings = {"url": f"http://127.0.0.1:{port}", "region": "eu-central-1", "timeout": "10s", **ACCOUNT}

    def rows(self, part: str) -> Rows:
        table, order = TABLES[part]
        found = [{name: _plain(name, one) for name, one in item.items()} for item in scanned(self.client, table)]
        return sorted(found, key=lambda row: str(row[order]))


def _plain(name: str, attribute: dict[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    if kind == "N":
        return int(value)
    if name == "payload":
        return value.encode() if kind == "S" else value  # text that is UTF-8
    return None if kind == "NULL" else value


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with dynamodb_server() as server:
        yield server.port


@pytest.fixture
def store(port: int) -> Iterator[Database]:
    client = own_client(port)
    yield Database(port, client)
    for name in client.list_tables()["TableNames"]:
        client.delete_table(TableName=name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)
