"""Logins of the dashboard: a cookie that scripts, other pages and the REST API cannot use, and a role that each request checks."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shardbroker.access.accounts import Accounts
from shardbroker.access.hashing import hash_password
from shardbroker.api import dashboard
from shardbroker.api.dashboard.session import COOKIE, PREFIX, Session, add_login
from shardbroker.api.guard import Guard, Logins
from shardbroker.control import VERBS, ControlError


def test_the_cookie_is_closed_to_scripts_and_other_pages_and_no_token_of_rest(tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/api/v5/clients")
    async def clients() -> str:
        return "found"

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://broker") as client:
            answer = await client.post(f"{PREFIX}/login", content="username=ada&password=secret")
            assert answer.status_code == 303 and answer.headers["x-frame-options"] == "DENY"
            value, *flags = answer.headers["set-cookie"].split("; ")
            assert value.startswith(f"{COOKIE}=") and {flag.lower() for flag in flags} >= {"httponly", "samesite=strict", "secure"}
            token = client.cookies[COOKIE]
            cookie = {"Cookie": f"{COOKIE}={token}"}
            assert (await client.get("/api/v5/clients", headers=cookie)).status_code == 401
            assert (await client.get("/api/v5/clients", headers={"Authorization": f"Bearer {token}"})).json() == "found"

    with Accounts(tmp_path) as accounts:
        accounts.add("ada", hash_password(b"secret"), "administrator", "")
        app.state.logins = Logins(accounts, 60)
        app.add_middleware(Guard, accounts=accounts)
        add_login(app)
        asyncio.run(ask())


def test_an_open_page_may_change_nothing_once_its_account_is_a_viewer(tmp_path: Path) -> None:
    """The role at the time of each request counts, not that of the login."""
    asked: list[str] = []

    class Control:
        async def call(self, verb: str, **_: Any) -> None:
            asked.append(verb)

    changes = [name for name, verb in VERBS.items() if verb.changes]
    looks = [name for name, verb in VERBS.items() if not verb.changes]
    with Accounts(tmp_path) as accounts:
        accounts.add("ada", hash_password(b"secret"), "administrator", "")
        accounts.add("eve", hash_password(b"secret"), "administrator", "")  # one has to be left
        app: Any = SimpleNamespace(state=SimpleNamespace(logins=Logins(accounts, 60), control=Control()))
        session = Session(app, accounts.log_in("ada", 60))
        for verb in VERBS:
            asyncio.run(session.call(verb))
        assert asked == [*VERBS] and "clients kick" in changes
        accounts.update("ada", "viewer", None)
        asked.clear()
        for verb in changes:
            with pytest.raises(ControlError, match="read-only"):
                asyncio.run(session.call(verb))
        for verb in looks:
            asyncio.run(session.call(verb))
        assert asked == looks
        accounts.log_out(session.token)
        with pytest.raises(ControlError):
            asyncio.run(session.call(looks[0]))


def test_pages_ask_for_nothing_past_their_session() -> None:
    pages = [path for path in Path(dashboard.__file__).parent.glob("*.py") if path.name != "session.py"]
    assert len(pages) > 10
    assert not [path.name for path in pages if "state.control" in path.read_text() or "AsyncControl" in path.read_text()]
