"""The code of docs/design/0006-connectors.md, against the real servers."""

import asyncio
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest
from pydantic import create_model

from shardbroker.access.contract import Client, Outcome
from shardbroker.config import access
from shardbroker.config.base import Section
from shardbroker.integrations.auth.services import Services, Stores
from tests.access import servers
from tests.servers.redis import redis

NOTE = Path(__file__).parents[2] / "docs/design/0006-connectors.md"
KEYS, ROW, AUTHENTICATOR, SINK = re.findall(r"^```python\n(.*?)^```", NOTE.read_text(), re.MULTILINE | re.DOTALL)


def run_in(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, str(NOTE), "exec"), module.__dict__)
    return module.__dict__


def test_the_authenticator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = {**vars(access)}
    exec(compile(KEYS, str(NOTE), "exec"), keys)
    monkeypatch.setattr(access, "RedisToken", keys["RedisToken"], raising=False)
    name, kind, default = re.fullmatch(r" +(\w+): (\w+) = (\w+)\(\)\n", ROW).groups()  # type: ignore[union-attr]
    assert kind == default == "RedisToken"
    table = create_model("Table", __base__=Section, **{name: (keys[kind], keys[kind]())})  # type: ignore[call-overload]
    module = run_in(f"shardbroker.integrations.auth.{name}", AUTHENTICATOR, monkeypatch)

    async def scenario(port: int) -> list[Outcome]:
        settings = table.model_validate({name: {"server": f"127.0.0.1:{port}", "password": "dbsecret"}})
        made = module["authenticator"](getattr(settings, name), Services(Stores(tmp_path), ThreadPoolExecutor(1)))
        try:
            logins = [("one", b"sesame"), ("one", b"sesame"), ("two", b"wrong"), ("three", b"any")]
            return [(await made.authenticate(Client(client, None, password))).outcome for client, password in logins]
        finally:
            await made.close()

    with redis(["SET", "token:one", "sesame"], ["SET", "token:two", "right"]) as port:
        assert asyncio.run(scenario(port)) == [Outcome.OK, Outcome.IGNORE, Outcome.DENY, Outcome.IGNORE]


def test_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    module = run_in("sink_of_the_note", SINK, monkeypatch)

    async def scenario(port: int) -> list[str]:
        settings = module["PostgresqlSink"](server=f"127.0.0.1:{port}", username="mqtt")
        driver = module["PostgresqlDriver"](settings, "sink")
        try:
            await driver.open()
            await driver.probe()
            await driver.write([(1, "a"), (2, "b")])
            with pytest.raises(asyncpg.UniqueViolationError):
                await driver.write([(3, "c"), (1, "again")])
            async with driver._connector.connection() as connection:
                return [row["topic"] for row in await connection.fetch("SELECT topic FROM mqtt_msg ORDER BY msgid")]
        finally:
            await driver.close()

    with servers.postgresql("CREATE TABLE mqtt_msg (msgid INTEGER PRIMARY KEY, topic TEXT);") as port:
        assert asyncio.run(scenario(port)) == ["a", "b"]
