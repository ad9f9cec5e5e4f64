"""The preset of MySQL, against MariaDB: its tables as the program `mariadb` shows them."""

from collections.abc import Iterator

import pytest

from tests.flows.persistence.lookups import LOOKUPS, check_lookup
from tests.flows.persistence.scenario import SCENARIOS, Rows, check
from tests.servers.mysql import Mariadb, mariadb

pytestmark = pytest.mark.own_broker
COLUMNS = {
    "clients": ("mqtt_client", "clientid", "state", "node", "online_at", "offline_at", "created"),
    "subscriptions": ("mqtt_sub", "topic", "clientid", "qos", "created"),
    "messages": ("mqtt_msg", "id", "msgid", "topic", "sender", "node", "qos", "retain", "payload", "arrived"),
    "retained": ("mqtt_retain", "topic", "msgid", "sender", "node", "qos", "payload", "arrived"),
    "acked": ("mqtt_acked", "topic", "clientid", "mid", "created"),
}
"""Table, and its columns, of which the first one is the order."""
TEXTS = ("clientid", "node", "topic", "msgid", "sender", "mid", "payload")


class Database:
    kind = "mysql"

    def __init__(self, server: Mariadb) -> None:
        self.server = server
        self.settings = {"server": f"127.0.0.1:{server.port}", "username": "mqtt", "password": "dbsecret"}

    def rows(self, part: str) -> Rows:
        table, *names = COLUMNS[part]
        shown = ", ".join(f"HEX({name})" if name in TEXTS else name for name in names)
        lines = self.server.client(f"SELECT {shown} FROM mqtt.{table} ORDER BY {names[0]}").splitlines()
        return [{name: _value(name, text) for name, text in zip(names, line.split("\t"), strict=True)} for line in lines]


def _value(name: str, text: str) -> object:
    if text == "NULL":
        return None
    if name == "payload":
        return bytes.fromhex(text)
    return bytes.fromhex(text).decode() if name in TEXTS else int(text)


@pytest.fixture(scope="module")
def server() -> Iterator[Mariadb]:
    with mariadb() as found:
        yield found


@pytest.fixture
def store(server: Mariadb) -> Iterator[Database]:
    yield Database(server)
    server.client("".join(f"DROP TABLE IF EXISTS mqtt.{table};" for table, *_ in COLUMNS.values()))


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_part_is_kept(store: Database, name: str) -> None:
    check(store, name)


@pytest.mark.parametrize("name", LOOKUPS)
def test_new_subscriptions_get_what_is_kept(store: Database, name: str) -> None:
    check_lookup(store, name)
