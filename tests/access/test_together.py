"""Clients that PostgreSQL is asked about together, against the real server: each gets what it would get alone."""

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shardbroker.access import contract
from shardbroker.access.placeholders import values_of
from shardbroker.config.access import PostgresqlAuth
from shardbroker.config.auto_subscribe import PostgresqlSubscriptions
from shardbroker.integrations.auth import postgresql
from shardbroker.integrations.auth.services import Services, Stores
from tests.access.guarded import Guarded
from tests.access.test_backends import EVIL
from tests.harness.client import Client
from tests.harness.wire import Connack
from tests.servers.postgresql import Postgresql
from tests.servers.postgresql import postgresql as postgresql_server

CLIENTS = [f"c{number}" for number in range(20)]
SALTED = hashlib.sha256(b"saltsecret").hexdigest()
SQL = f"""
CREATE TABLE mqtt_user (username TEXT PRIMARY KEY, password_hash TEXT, salt TEXT, is_superuser BOOLEAN, logins INTEGER DEFAULT 0);
INSERT INTO mqtt_user SELECT 'c' || n, '{SALTED}', 'salt', n % 2 = 1 FROM generate_series(0, 19) n;
CREATE TABLE mqtt_sub (clientid TEXT, topic TEXT, qos INTEGER, place INTEGER);
INSERT INTO mqtt_sub SELECT 'c' || n, 'to/' || n || '/' || k, k % 3, k FROM generate_series(0, 19) n, generate_series(1, n % 4) k;
CREATE FUNCTION seen(name TEXT) RETURNS SETOF mqtt_user LANGUAGE sql AS
    'UPDATE mqtt_user SET logins = logins + 1 WHERE username = name RETURNING *';
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with postgresql_server(SQL) as one:
        yield one


def subscriptions(server: Postgresql, query: str, names: list[str], tmp_path: Path, rounds: int = 2) -> list[Any]:
    """Returns the rows, or the failure, of each client, all looked up at once; of the last round."""

    async def run() -> list[Any]:
        settings = PostgresqlSubscriptions(server=f"127.0.0.1:{server.port}", username="mqtt", query=query)
        made = postgresql.subscriptions(settings, Services(Stores(tmp_path), ThreadPoolExecutor(1)))
        try:
            for _ in range(rounds):
                values = [values_of(contract.Client(name, name, b"\0\xff")) for name in names]
                found = await asyncio.gather(*map(made.find_rules, values), return_exceptions=True)
            return found
        finally:
            await made.close()

    return asyncio.run(run())


def expected(name: str) -> list[dict[str, Any]]:
    number = int(name[1:])
    return [{"topic": f"to/{number}/{k}", "qos": k % 3} for k in range(number % 4, 0, -1)]


QUERY = "SELECT topic, qos FROM mqtt_sub WHERE clientid = ${clientid}"
TIMED = QUERY.replace("qos", "qos, statement_timestamp() AS at", 1)


@pytest.mark.parametrize(
    ("query", "are_together"),
    [
        (f"{TIMED} ORDER BY place DESC", True),
        (f"{TIMED} AND ${{username}} <> '' ORDER BY place DESC ; ", True),
        (f"{TIMED} OR clientid = '${{clientid}}' AND topic LIKE 'to/%' ORDER BY place DESC -- the last one first", True),
        (f"WITH mine AS (SELECT * FROM mqtt_sub WHERE clientid = ${{clientid}}) {TIMED} ORDER BY place DESC", True),
        (f"SELECT topic, qos, at FROM ({TIMED} UNION {TIMED}) AS both_of_them ORDER BY topic DESC", True),
        (f"{TIMED} AND ${{$}}1 IS NOT NULL ORDER BY place DESC", False),
        (f"{TIMED} AND place + shardbroker_clients_place IS NULL", None),
    ],
)  # fmt: skip
def test_each_client_gets_its_own_rows_in_order(server: Postgresql, query: str, are_together: bool | None, tmp_path: Path) -> None:
    found = subscriptions(server, query, CLIENTS, tmp_path)
    if are_together is None:  # names of the statement for several do not exist for a query
        assert all(isinstance(one, asyncpg.UndefinedColumnError) for one in found)
        return
    times = {row.pop("at") for rows in found for row in rows}
    assert found == [expected(name) for name in CLIENTS]
    assert len(times) == 1 if are_together else len(times) > 1


def test_a_query_without_placeholders(server: Postgresql, tmp_path: Path) -> None:
    found = subscriptions(server, "SELECT topic FROM mqtt_sub WHERE clientid = 'c1'", CLIENTS, tmp_path)
    assert found == [[{"topic": "to/1/1"}]] * len(CLIENTS)


def test_values_of_clients_stay_values(server: Postgresql, tmp_path: Path) -> None:
    names = [*EVIL, "c3", "{c1,c2}", '"', "NULL", "c1\\", "shardbroker_clients", "$1", "c7"]
    found = subscriptions(server, f"{QUERY} ORDER BY place DESC", names, tmp_path)
    assert found == [expected(name) if name in CLIENTS else [] for name in names]


@pytest.mark.parametrize("condition", ["1 / (CASE WHEN ${clientid} = 'c5' THEN 0 ELSE 1 END) = 1", "${clientid} <> 'x' || chr(5)"])
def test_a_client_whose_values_fail_fails_alone(server: Postgresql, condition: str, tmp_path: Path) -> None:
    names = [*CLIENTS, "bad\0name"]
    found = subscriptions(server, f"{QUERY} AND {condition} ORDER BY place DESC", names, tmp_path, rounds=1)
    for name, rows in zip(names, found, strict=True):
        if name == "c5" and "1 /" in condition:
            assert isinstance(rows, asyncpg.DivisionByZeroError)
        elif "\0" in name:
            assert isinstance(rows, asyncpg.CharacterNotInRepertoireError)
        else:
            assert rows == expected(name)


def test_a_query_that_writes_does_so_once_for_each(server: Postgresql, tmp_path: Path) -> None:
    for query in (
        "SELECT username AS topic FROM seen(${username})",
        "UPDATE mqtt_user SET logins = logins + 1 WHERE username = ${username} RETURNING username AS topic",
    ):
        server.psql("UPDATE mqtt_user SET logins = 0")
        assert subscriptions(server, query, CLIENTS, tmp_path, rounds=1) == [[{"topic": name}] for name in CLIENTS]
        assert server.psql("SELECT DISTINCT logins FROM mqtt_user") == "1\n"


def test_a_query_that_is_wrong_fails_for_each(server: Postgresql, tmp_path: Path) -> None:
    for query, failure in (
        ("SELECT topic FROM none_of_these WHERE clientid = ${clientid}", asyncpg.UndefinedTableError),
        ("SELECT topic FROM mqtt_sub WHERE clientid = 'x${clientid}'", asyncpg.InterfaceError),  # no parameter within a text
    ):
        assert all(isinstance(one, failure) for one in subscriptions(server, query, CLIENTS, tmp_path))


def test_logins(server: Postgresql, tmp_path: Path) -> None:
    async def run() -> list[tuple[str, bool]]:
        settings = PostgresqlAuth(server=f"127.0.0.1:{server.port}", username="mqtt", hash="sha256")
        made = postgresql.authenticator(settings, Services(Stores(tmp_path), ThreadPoolExecutor(1)))
        try:
            clients = [contract.Client(name, name, b"wrong" if name == "c4" else b"secret") for name in [*CLIENTS, *EVIL]]
            answers = await asyncio.gather(*map(made.authenticate, clients))
            return [(answer.outcome.value, answer.is_superuser) for answer in answers]
        finally:
            await made.close()

    known = [("deny", False) if name == "c4" else ("ok", int(name[1:]) % 2 == 1) for name in CLIENTS]
    assert asyncio.run(run()) == [*known, *[("ignore", False)] * len(EVIL)]


@pytest.mark.own_broker
def test_clients_that_connect_at_once(server: Postgresql) -> None:
    keys = f'server = "127.0.0.1:{server.port}"\nusername = "mqtt"\n'
    query = f"{QUERY} AND 1 / (CASE WHEN ${{clientid}} = 'c5' THEN 0 ELSE 1 END) = 1"
    secrets = f'[auth.postgresql]\n{keys}hash = "sha256"\n[auto_subscribe.postgresql]\n{keys}query = "{query}"\n'
    settings = {"auth.chain": ["postgresql"], "auto_subscribe.sources": ["postgresql"], "auto_subscribe.on_error": "deny"}
    with Guarded(settings, secrets=secrets) as broker, broker.client("c0", username="c0", password="secret") as sender:
        clients = {
            name: Client(broker.address, 5, name, connect=False, username=name, password="wrong" if name == "c4" else "secret")
            for name in CLIENTS[1:]
        }
        for client in clients.values():
            client.send_raw(client._connect_packet)
        try:
            codes = {name: client.expect(Connack).code for name, client in clients.items()}
            assert codes == {name: {"c4": 0x86, "c5": 0x88}.get(name, 0) for name in clients}
            for name in clients:
                for one in expected(name):
                    sender.publish(one["topic"], name.encode(), 2)
            for name, client in clients.items():
                if not codes[name]:
                    got = {(one.topic, one.qos) for one in client.messages_from(sender, 2)}
                    assert got == {(one["topic"], one["qos"]) for one in expected(name)}
        finally:
            for client in clients.values():
                client.close()
