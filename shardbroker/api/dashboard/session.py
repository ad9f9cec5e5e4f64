"""Sessions of the dashboard: login, and calls of verbs in the name of the account."""

from collections.abc import Awaitable
from html import escape
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from nicegui import ui

from shardbroker.access.accounts import ADMINISTRATOR, AccountError
from shardbroker.api.calls import LONG_S
from shardbroker.api.guard import Logins
from shardbroker.api.monitor import Monitor
from shardbroker.control import VERBS, AsyncControl, ControlError

__all__ = ["COOKIE", "PREFIX", "Session", "add_login"]

PREFIX = "/dashboard"
COOKIE = "shardbroker_token"
FORM_MAX = 4096
"""Most bytes of the form of a login."""
HEADERS = {"Cache-Control": "no-store"}

LOGIN_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>shardbroker: log in</title><style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 100vh; margin: 0;
       background: light-dark(#f1f5f9, #0b1220); color: light-dark(#0f172a, #e2e8f0) }
form { width: 20rem; padding: 2rem; border-radius: 1rem; background: light-dark(#fff, #111c2f); box-shadow: 0 8px 30px #0003 }
h1 { font-size: 1.3rem; margin: 0 0 1rem } label { display: block; margin: .8rem 0 .2rem; font-size: .9rem }
input, button { box-sizing: border-box; width: 100%; padding: .6rem .7rem; font: inherit;
                border-radius: .5rem; border: 1px solid #8886 }
button { margin-top: 1.4rem; background: #2563eb; color: #fff; border: 0; cursor: pointer } p { color: #dc2626; margin: 1rem 0 0 }
</style></head><body><form method="post"><h1>shardbroker</h1>
<label for="u">User name</label><input id="u" name="username" autocomplete="username" required autofocus>
<label for="p">Password</label><input id="p" name="password" type="password" autocomplete="current-password" required>
<button>Log in</button>{message}</form></body></html>"""


class Session:
    """An open page of a logged-in account."""

    def __init__(self, app: FastAPI, token: str) -> None:
        self.app = app
        self.token = token
        self.name, self.role = self._known()

    @classmethod
    def of(cls, app: FastAPI, request: Request) -> "Session | None":
        """Returns the session of the cookie of a request, or None."""
        token = request.cookies.get(COOKIE)
        try:
            return cls(app, token) if token else None
        except ControlError:
            return None

    @property
    def logins(self) -> Logins:
        logins: Logins = self.app.state.logins
        return logins

    @property
    def monitor(self) -> Monitor:
        monitor: Monitor = self.app.state.monitor
        return monitor

    @property
    def may_change(self) -> bool:
        return self.role == ADMINISTRATOR

    def _known(self) -> tuple[str, str]:
        try:
            return self.logins.accounts.of_token(self.token)
        except AccountError as error:
            raise ControlError(error.code, str(error)) from None

    def check(self, changes: bool) -> None:
        """Raises ControlError if the login has ended, or if the role does not permit a change."""
        self.name, self.role = self._known()
        if changes and not self.may_change:
            raise ControlError("FORBIDDEN", f"{self.name} has the role {self.role}, which is read-only")

    async def call(self, verb: str, /, **params: Any) -> Any:
        """Returns the result of a verb, if login and role permit it. Raises ControlError."""
        return await self._call(verb, params)

    async def call_at_length(self, verb: str, /, **params: Any) -> Any:
        """Returns the result of a verb that may take minutes, as call() does."""
        return await self._call(verb, params, patience_s=LONG_S)

    async def rows(self, verb: str, /, **params: Any) -> Any:
        """Returns a list with the rows of all nodes of the cluster, as call() does."""
        return await self._call(verb, params, of_all_nodes=True)

    async def _call(self, verb: str, params: dict[str, Any], of_all_nodes: bool = False, **patience: Any) -> Any:
        self.check(VERBS[verb].changes)
        control: AsyncControl = self.app.state.control
        given = {name: value for name, value in params.items() if value is not None}
        try:
            by = f"dashboard:{self.name}"
            return await control.call(verb, requested_by=by, of_all_nodes=of_all_nodes, **patience, **given)
        except UnicodeError:
            raise ControlError("BAD_REQUEST", "text with an unpaired surrogate is not valid Unicode") from None

    async def show_errors(self, request: Awaitable[Any]) -> Any:
        """Returns the result of a call, or None after showing its error on the page."""
        try:
            return await request
        except ControlError as error:
            self.notify(error)
            return None

    def notify(self, error: ControlError) -> None:
        """Shows an error on the page; an ended login leads to the login page."""
        if error.status == 401:
            ui.navigate.to("/login")
        else:
            ui.notify(f"{error.code}: {error}", type="negative")

    def log_out(self) -> None:
        """Ends the login."""
        self.logins.accounts.log_out(self.token)


def add_login(app: FastAPI) -> None:
    """Adds the login form, which needs no script."""

    @app.get("/", include_in_schema=False)
    async def start() -> Response:
        return RedirectResponse(f"{PREFIX}/")

    @app.get(f"{PREFIX}/login", include_in_schema=False)
    async def form() -> Response:
        return HTMLResponse(LOGIN_PAGE.replace("{message}", ""), headers=HEADERS)

    @app.post(f"{PREFIX}/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_MAX:
                raise ControlError("PAYLOAD_TOO_LARGE", f"form: must have at most {FORM_MAX} bytes")
        fields = parse_qs(body.decode(errors="replace"))
        name, password = (fields.get(field, [""])[0] for field in ("username", "password"))
        try:
            token, _ = await app.state.logins.log_in(name, password, request.client.host if request.client else "")
        except ControlError as error:
            return HTMLResponse(LOGIN_PAGE.replace("{message}", f"<p>{escape(str(error))}</p>"), error.status, headers=HEADERS)
        answer = RedirectResponse(f"{PREFIX}/", 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, path=PREFIX, httponly=True, samesite="strict", secure=secure)
        return answer
