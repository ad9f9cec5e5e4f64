"""The cookie of a login: closed to scripts and to other pages, and worth nothing at the REST API."""

import asyncio
from pathlib import Path

import httpx
from fastapi import FastAPI

from shardbroker.access.accounts import Accounts
from shardbroker.access.hashing import hash_password
from shardbroker.api.dashboard.session import COOKIE, PREFIX, add_login
from shardbroker.api.guard import Guard, Logins


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
