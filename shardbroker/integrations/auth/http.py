"""An HTTP service that authenticates or authorizes clients.

As in EMQX, 200 with {"result": "allow" | "deny" | "ignore", ...} decides, 204 allows, 4xx and 5xx ignore. All else is a failure.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from yarl import URL

from shardbroker.access.contract import IGNORE, Answer, AuthRequest, BackendError, Client, allow, deny
from shardbroker.access.placeholders import Template, values_of
from shardbroker.config.access import HttpAcl, HttpAuth
from shardbroker.connectors.http import Http, read_body
from shardbroker.integrations.auth.services import Services

__all__ = ["HttpService", "authenticator", "authorizer"]

Values = Mapping[str, str | None]


def authenticator(settings: HttpAuth, services: Services) -> "HttpAuthenticator":
    return HttpAuthenticator(HttpService(settings, "auth.http"))


def authorizer(settings: HttpAcl, services: Services) -> "HttpAuthorizer":
    return HttpAuthorizer(HttpService(settings, "acl.http"))


class HttpService:
    """Requests to one URL."""

    def __init__(self, settings: HttpAuth | HttpAcl, key: str) -> None:
        self._connector = Http(settings, key)
        self._method, self._most = settings.method, settings.max_answer_size
        self._url = Template.parse(settings.url)
        self._body = {name: Template.parse(text) for name, text in settings.body.items()}
        self._headers = {name: Template.parse(text) for name, text in settings.headers.items()}
        self.close = self._connector.close

    async def call(self, values: Values) -> tuple[int, Any]:
        """Returns (status, body as JSON or None). Raises BackendError, ConnectorError, TimeoutError, aiohttp.ClientError."""
        fields = {key: _sendable(text) for key, template in self._body.items() if (text := template.fill(values)) is not None}
        url = URL(self._url.fill({name: value or "" for name, value in values.items()}, _quoted) or "", encoded=True)
        if not _DOTS.isdisjoint(url.raw_path.split("/")):
            raise BackendError("client value must not be . or .. in the URL path")
        headers = {key: (template.fill(values) or "").translate(_NO_LINES) for key, template in self._headers.items()}
        options: dict[str, Any] = {"params": fields} if self._method == "get" else {"json": fields}
        async with (
            self._connector.connection() as session,
            session.request(self._method, url, headers=headers, allow_redirects=False, **options) as answer,
        ):
            if answer.status != 200:
                return answer.status, None
            return 200, _parsed(await read_body(answer, self._most))


class HttpAuthenticator:
    """The authenticator of auth.http."""

    priority = 0

    def __init__(self, service: HttpService) -> None:
        self._service = service
        self.close = service.close

    async def authenticate(self, client: Client) -> Answer:
        status, body = await self._service.call(values_of(client))
        result = _result(status, body)
        if result is None:
            return IGNORE
        if not result:
            return deny()
        expires_at = body.get("expire_at") if body else None
        if expires_at is not None and (isinstance(expires_at, bool) or not isinstance(expires_at, int | float)):
            raise BackendError("expire_at is not a number of seconds")
        return allow(
            is_superuser=bool(body) and body.get("is_superuser") is True,
            acl=body.get("acl") if body else None,
            expires_at=expires_at,
        )


class HttpAuthorizer:
    """The authorizer of acl.http: one request for each topic, as many at a time as the pool has connections."""

    priority = 0

    def __init__(self, service: HttpService) -> None:
        self._service = service
        self.close = service.close

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> Sequence[bool | None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._service.call(values_of(client, request))) for request in requests]
        return [_result(*task.result()) for task in tasks]


_NO_LINES = {ord(c): None for c in "\r\n\0"}
"""Characters that a value must not put into a header."""
_DOTS = {".", ".."}
"""Path segments that lead to another path (RFC 3986 §5.2.4). Quoting does not help: `%2E` means the same."""


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _sendable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise BackendError("response is not JSON") from None


def _result(status: int, body: Any) -> bool | None:
    if status == 204:
        return True
    if 400 <= status < 600:
        return None
    if status != 200:
        raise BackendError(f"response has status {status}")
    result = body.get("result") if isinstance(body, dict) else None
    if result not in ("allow", "deny", "ignore"):
        raise BackendError("response: result must be allow, deny or ignore")
    return {"allow": True, "deny": False, "ignore": None}[result]
