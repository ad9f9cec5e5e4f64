"""Stands before every route: who asks, whether they may, and how much they may send. Nothing of a body is read before that."""

import asyncio
import base64
import binascii
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from shardbroker.access.accounts import ADMINISTRATOR, AccountError, Accounts, Role
from shardbroker.access.hashing import Scheme, hash_password, verify
from shardbroker.api.paths import routable
from shardbroker.control import ControlError

__all__ = ["PREFIX", "Caller", "Guard", "Logins", "error_body"]

PREFIX = "/api/v5"
PUBLIC = {f"{PREFIX}/status", f"{PREFIX}/login", f"{PREFIX}/error_codes"}
"""What anybody may ask."""
FOR_VIEWERS = {f"{PREFIX}/logout"}
"""What a viewer may ask by another method than GET."""
STRANGERS_BODY_MAX = 4096
"""Bytes of a body from somebody who has not logged in."""
BODY_MAX = 16 << 20
"""Bytes of a body."""
HASHES_AT_ONCE = 2
"""Passwords checked at a time: each takes 20 ms and 19 MB."""
FAILURES_MAX = 10
"""Wrong passwords from one address in FAILURES_S; after them it is asked to wait."""
FAILURES_S = 60.0
HEADERS = ((b"x-frame-options", b"DENY"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))
"""Of every answer: no page of others shows ours, and browsers believe what we say a body is."""
ADDRESSES_MAX = 10_000
"""Addresses whose failures are remembered; the oldest goes."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    role: Role
    token: str = ""
    """Of a login; empty: it is a key."""

    @property
    def by(self) -> str:
        """For the audit log."""
        return f"rest:{self.name}" if self.token else f"rest-key:{self.name}"


class Logins:
    """Checks passwords, not too many at a time and not too often for one address."""

    def __init__(self, accounts: Accounts, life_s: float) -> None:
        self.accounts = accounts
        self._life_s = life_s
        self._turn = asyncio.Semaphore(HASHES_AT_ONCE)
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._nobody = hash_password(b"")

    async def log_in(self, name: str, password: str, address: str) -> tuple[str, Role]:
        """A token and the role. Raises ControlError."""
        role = await self.check(name, password, address)
        return self.accounts.log_in(name, self._life_s), role

    async def check(self, name: str, password: str, address: str) -> Role:
        """The role of an account whose password it is. An unknown name takes as long as a wrong password. Raises ControlError."""
        async with self._turn:
            attempt = self._note_failure(address)
            known = self.accounts.account(name)
            stored = known[0] if known else self._nobody
            given = password.encode(errors="surrogateescape")
            right = await asyncio.to_thread(verify, Scheme(), stored, "", given)
        if known is None or not right or self.accounts.account(name) != known:
            raise ControlError("BAD_USERNAME_OR_PWD", "wrong user name or password")
        self._forget_failure(address, attempt)
        return known[1]

    def _note_failure(self, address: str) -> float:
        """Counts an attempt as a wrong password before it is checked: others may begin meanwhile. Raises ControlError."""
        now = time.monotonic()
        recent = [at for at in self._failures.get(address, ()) if at > now - FAILURES_S]
        if len(recent) >= FAILURES_MAX:
            raise ControlError("TOO_MANY_REQUESTS", f"too many wrong passwords: wait for {FAILURES_S:g} s")
        self._failures[address] = [*recent, now]
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        return now

    def _forget_failure(self, address: str, attempt: float) -> None:
        """Takes back this attempt alone: a right password says nothing about the wrong ones for other accounts."""
        left = [at for at in self._failures.pop(address, ()) if at != attempt]
        if left:
            self._failures[address] = left


class Guard:
    """ASGI middleware. A caller that may go on stands in the request's state as `caller`; None where nobody needs to be known."""

    def __init__(self, app: App, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        send = _walled(send)
        if not scope["path"].startswith(PREFIX):
            return await self._app(scope, receive, send)
        path = routable(scope["raw_path"])
        if path is None:
            return await _refuse(send, "BAD_REQUEST", "path: no MQTT text holds a NUL")
        scope["path"] = path
        caller = None
        try:
            if scope["path"].rstrip("/") not in PUBLIC:
                caller = self._caller(scope)
        except (ControlError, AccountError) as error:
            return await _refuse(send, error.code, str(error))
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, _bounded(receive, STRANGERS_BODY_MAX if caller is None else BODY_MAX), send)

    def _caller(self, scope: Message) -> Caller:
        """Raises ControlError and AccountError."""
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        kind, _, credentials = given.partition(" ")
        if kind.lower() == "bearer":
            caller = Caller(*self._accounts.of_token(credentials.strip()), token=credentials.strip())
        elif kind.lower() == "basic":
            caller = Caller(*self._accounts.of_key(*_key_and_secret(credentials)))
        else:
            raise ControlError("UNAUTHORIZED", "allowed are a token of POST /api/v5/login (Bearer) or an API key (Basic)")
        if caller.role != ADMINISTRATOR and scope["method"] not in ("GET", "HEAD") and scope["path"] not in FOR_VIEWERS:
            raise ControlError("FORBIDDEN", f"{caller.name!r} is a {caller.role}: allowed are GET and logout")
        return caller


def _key_and_secret(credentials: str) -> tuple[str, str]:
    try:
        key, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        raise ControlError("BAD_API_KEY_OR_SECRET", "Authorization: allowed is Basic with KEY:SECRET in base64") from None
    return key, secret


def _bounded(receive: Receive, most: int) -> Receive:
    """Raises HTTPException 413 for a body that is longer."""
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, f"a body of more than {most} bytes")
        return message

    return take


def _walled(send: Send) -> Send:
    """With HEADERS."""

    async def give(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return give


def error_body(code: str, text: str) -> dict[str, str]:
    """As EMQX tells errors."""
    return {"code": code, "message": text}


async def _refuse(send: Send, code: str, text: str) -> None:
    body = json.dumps(error_body(code, text)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if code not in ("FORBIDDEN", "NOT_AVAILABLE"):
        headers.append((b"www-authenticate", b'Bearer realm="shardbroker"'))
    await send({"type": "http.response.start", "status": ControlError(code, text).status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
