"""The preset of PostgreSQL, against the real server: its tables as psql shows them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import SCENARIOS, Rows, check
from tests.servers.postgresql import Postgresql, postgresql

pytestmark = pytest.mark.own_broker
ORDER = {"clients": "clientid", "subscriptions": "topic", "messages": "id", "retained": "topic", "acked": "topic"}
TABLES = {
    "clients": "mqtt_client",
    "subscriptions": "mqtt_sub",
    "messages": "mqtt_msg",
    "retained": "mqtt_retain",
    "acked": "mqtt_acked",
}


class Database:
    kind = "pgsql"

    def __init__(self, server: Postgresql) -> None:
        self.server = server
        self.settings = {"server": f"127.0.0.1:{server.port}", "username": "mqtt"}

    def rows(self, part: str) -> Rows:
        lines = self.server.psql(f"SELECT row_to_json(t) FROM {TABLES[part]} t ORDER BY {ORDER[part]}").splitlines()
        return [_row(json.loads(line)) for line in lines]


def _row(found: dict[str, Any]) -> dict[str, Any]:
    return found | ({"payload": bytes.fromhex(found["payload"][2:])} if "payload" in found else {})


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with postgresql() as found:
        yield found


@pytest.fixture
def store(server: Postgresql) -> Iterator[Database]:
    yield Database(server)
    server.psql(f"DROP TABLE IF EXISTS {', '.join(TABLES.values())}")


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)
