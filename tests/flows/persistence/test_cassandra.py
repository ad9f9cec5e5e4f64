"""The preset of Cassandra: its tables as the library's own client reads them."""

import calendar
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import SCENARIOS, Rows, check, keeps, on, running
from tests.servers.cassandra import ACCOUNT, CassandraServer, cassandra

pytestmark = pytest.mark.own_broker
TABLES = {"clients": "client", "subscriptions": "sub", "messages": "msg", "retained": "retain", "acked": "acked"}
NAMES = {"client_id": "clientid", "connected": "online_at", "disconnected": "offline_at"}
"""Of EMQX in this database -> in others."""
ORDERS = {"clients": "clientid", "messages": "msgid"}
BURST = 200


class Database:
    kind = "cassandra"

    def __init__(self, server: CassandraServer, session: Any) -> None:
        self.session = session
        self.settings = {"servers": [f"127.0.0.1:{server.port}"], "username": ACCOUNT, "password": ACCOUNT, "timeout": "20s"}

    def rows(self, part: str) -> Rows:
        names = {**NAMES, **({"msgid": "mid"} if part == "acked" else {})}
        found = self.session.execute(f"SELECT * FROM {TABLES[part]}")
        rows = [{names.get(name, name): _plain(value) for name, value in row._asdict().items()} for row in found]
        return sorted(rows, key=lambda row: str(row[ORDERS.get(part, "topic")]))


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return calendar.timegm(value.timetuple()) * 1000 + value.microsecond // 1000
    return value


@pytest.fixture(scope="module")
def server() -> Iterator[CassandraServer]:
    with cassandra() as found:
        yield found


@pytest.fixture
def store(server: CassandraServer) -> Iterator[Database]:
    with server.session() as session:
        yield Database(server, session)
        for table in TABLES.values():
            session.execute(f"DROP TABLE IF EXISTS {table}")


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)


def test_the_last_of_many_retained_messages_of_a_ms_is_kept_as_a_whole(store: Database) -> None:
    with running(store, retained=["#"]) as broker, on(broker, 0, "r") as client:
        for number in reversed(range(BURST)):  # the greatest payload is the first one
            client.publish("a", b"%03d" % number, 0, retain=True)
        (row,) = keeps(broker, store, "retained", {"topic": "a", "payload": b"000", "sender": client.client_id})
        for number in range(BURST):
            client.publish("a", b"1" if number % 2 == 0 else b"", 0, retain=True)
        keeps(broker, store, "retained")
        client.publish("a", b"", 0, retain=True)
        client.publish("a", b"last", 0, retain=True)
        keeps(broker, store, "retained", {"topic": "a", "payload": b"last"})
        assert row["msgid"] < store.rows("retained")[0]["msgid"]
