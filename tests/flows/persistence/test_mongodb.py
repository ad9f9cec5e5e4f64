"""The preset of MongoDB, against a stand-in: mongo-java-server speaks its protocol. Documents are read back by pymongo."""

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import SCENARIOS, Rows, check
from tests.servers.mongodb import mongodb_server

pytestmark = pytest.mark.own_broker
COLLECTIONS = {
    "clients": ("mqtt_client", "clientid"),
    "subscriptions": ("mqtt_sub", "topic"),
    "messages": ("mqtt_msg", "_id"),
    "retained": ("mqtt_retain", "topic"),
    "acked": ("mqtt_acked", "topic"),
}


class Database:
    kind = "mongodb"

    def __init__(self, port: int, database: Any) -> None:
        self.database = database
        self.settings = {"server": f"127.0.0.1:{port}"}

    def rows(self, part: str) -> Rows:
        collection, key = COLLECTIONS[part]
        found = list(self.database[collection].find().sort(key, 1))
        for row in found:
            if isinstance(row.get("payload"), str):
                row["payload"] = row["payload"].encode()  # text that is UTF-8
        return found


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with mongodb_server() as server:
        yield server.port


@pytest.fixture
def store(port: int) -> Iterator[Database]:
    with pymongo.MongoClient("127.0.0.1", port) as client:
        client.drop_database("mqtt")
        yield Database(port, client.mqtt)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)
