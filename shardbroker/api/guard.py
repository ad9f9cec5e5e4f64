"""Middleware in front of every route: authentication, roles and sizes of bodies. No body is read before these checks."""

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
from shardbroker.control.data_verbs import FILE_BYTES_MAX

__all__ = ["PREFIX", "Caller", "Guard", "Logins", "error_body"]

PREFIX = "/api/v5"
PUBLIC = {f"{PREFIX}/status", f"{PREFIX}/login", f"{PREFIX}/error_codes", f"{PREFIX}/load_rebalance/availability_check"}
"""Paths without authentication."""
FOR_VIEWERS = {f"{PREFIX}/logout"}
"""Paths that a viewer may call with another method than GET."""
FOR_ADMINISTRATORS = f"{PREFIX}/data/files/"
"""Below it a viewer may not GET either: files there have hashes of passwords and secrets."""
PUBLIC_BODY_MAX = 4096
"""Most bytes of a body without authentication."""
BODY_MAX = 16 << 20
"""Most bytes of a body, but for uploads."""
UPLOADS = f"{PREFIX}/data/files"
UPLOAD_MAX = FILE_BYTES_MAX + (1 << 16)
"""Most bytes of the body of an upload: a file, and the headers of a form."""
HASHES_AT_ONCE = 2
"""Passwords verified concurrently; each takes 20 ms and 19 MB."""
FAILURES_MAX = 10
"""Wrong passwords from one address within FAILURES_S; further attempts are rejected."""
FAILURES_S = 60.0
HEADERS = ((b"x-frame-options", b"DENY"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))
"""Headers of every response: no framing by other sites, no sniffing of content types."""
ADDRESSES_MAX = 10_000
"""Addresses whose failures are kept; the oldest is removed."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Caller:
    """The account or key of a request."""

    name: str
    role: Role
    token: str = ""
    """Token of a login; empty for a key."""

    @property
    def by(self) -> str:
        """Returns the author for the audit log."""
        return f"rest:{self.name}" if self.token else f"rest-key:{self.name}"


class Logins:
    """Verifies passwords, with a limit of concurrency and of failures per address."""

    def __init__(self, accounts: Accounts, life_s: float) -> None:
        self.accounts = accounts
        self._life_s = life_s
        self._turn = asyncio.Semaphore(HASHES_AT_ONCE)
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._nobody = hash_password(b"")

    async def log_in(self, name: str, password: str, address: str) -> tuple[str, Role]:
        """Returns a token and the role. Raises ControlError."""
        role = await self.check(name, password, address)
        return self.accounts.log_in(name, self._life_s), role

    async def check(self, name: str, password: str, address: str) -> Role:
        """Returns the role of an account. An unknown name takes as long as a wrong password. Raises ControlError."""
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
        """Counts an attempt as a failure before it is verified, since others may start meanwhile. Raises ControlError."""
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
        """Removes this attempt only: a right password does not excuse failures for other accounts."""
        left = [at for at in self._failures.pop(address, ()) if at != attempt]
        if left:
            self._failures[address] = left


class Guard:
    """ASGI middleware. The authenticated caller is in the state of the request as `caller`; None for public paths."""

    def __init__(self, app: App, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        send = _walled(send)
        if not scope["path"].startswith(PREFIX):
            return await self._app(scope, _bounded(receive, UPLOAD_MAX), send)  # the dashboard takes uploads, too
        path = routable(scope["raw_path"])
        if path is None:
            return await _refuse(send, "BAD_REQUEST", "path: must not contain NUL")
        scope["path"] = path
        caller = None
        try:
            if scope["path"].rstrip("/") not in PUBLIC:
                caller = self._caller(scope)
        except (ControlError, AccountError) as error:
            return await _refuse(send, error.code, str(error))
        scope.setdefault("state", {})["caller"] = caller
        most = PUBLIC_BODY_MAX if caller is None else UPLOAD_MAX if path.rstrip("/") == UPLOADS else BODY_MAX
        await self._app(scope, _bounded(receive, most), send)

    def _caller(self, scope: Message) -> Caller:
        """Returns the caller of a request. Raises ControlError and AccountError."""
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        kind, _, credentials = given.partition(" ")
        if kind.lower() == "bearer":
            caller = Caller(*self._accounts.of_token(credentials.strip()), token=credentials.strip())
        elif kind.lower() == "basic":
            caller = Caller(*self._accounts.of_key(*_key_and_secret(credentials)))
        else:
            raise ControlError("UNAUTHORIZED", "Authorization: must be a token of /api/v5/login (Bearer) or an API key (Basic)")
        if caller.role != ADMINISTRATOR and scope["method"] not in ("GET", "HEAD") and scope["path"] not in FOR_VIEWERS:
            raise ControlError("FORBIDDEN", f"{caller.name!r} has the role {caller.role}, which permits GET and logout only")
        if caller.role != ADMINISTRATOR and scope["path"].startswith(FOR_ADMINISTRATORS):
            raise ControlError("FORBIDDEN", f"{caller.name!r} has the role {caller.role}, which permits no download of secrets")
        return caller


def _key_and_secret(credentials: str) -> tuple[str, str]:
    try:
        key, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        raise ControlError("BAD_API_KEY_OR_SECRET", "Authorization: must be Basic with KEY:SECRET in base64") from None
    return key, secret


def _bounded(receive: Receive, most: int) -> Receive:
    """Returns a receive() that raises HTTPException 413 for a longer body."""
    taken = 0

    async def take() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, f"body: must have at most {most} bytes")
        return message

    return take


def _walled(send: Send) -> Send:
    """Returns a send() that adds HEADERS."""

    async def give(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return give


def error_body(code: str, text: str) -> dict[str, str]:
    """Returns an error in the format of EMQX."""
    return {"code": code, "message": text}


async def _refuse(send: Send, code: str, text: str) -> None:
    body = json.dumps(error_body(code, text)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if code not in ("FORBIDDEN", "NOT_AVAILABLE"):
        headers.append((b"www-authenticate", b'Bearer realm="shardbroker"'))
    await send({"type": "http.response.start", "status": ControlError(code, text).status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
